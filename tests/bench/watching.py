"""A burst of file creations under a watch: what is told at once, what is lost and said, what a rescan finds.

The files are made by another process as fast as it can. The watcher is a real worker in its sandbox; the
events on the bus come from its stream, and the records from polls that run meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lightagentd.agents.watches import result_of
from lightagentd.config import configuration
from lightagentd.tool import Effect, Place
from lightagentd.worker.pool import Call, Pool
from tests.bench.rig import show
from tests.worker import running

FILES = 50_000
BUFFERS = (5_000, 20_000)
"""The one that a watch has when nothing is said, and the largest."""
MAKE = """
import os, sys
folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
for number in range(int(sys.argv[2])):
    os.close(os.open(f"n{number}", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
"""


def run(rounds: int) -> None:
    del rounds  # the account of one burst is the figure, not its time
    for buffer in BUFFERS:
        account, seconds = asyncio.run(_burst(buffer))
        known = account["told"] + account["rescan"] + account["lost"]
        missing = max(0, FILES - known)
        print(
            f"inotify, burst of {FILES} creations, buffer of {buffer}: {account['told']} told at once,"
            f" {account['rescan']} found by {account['rescans']} rescans after {account['overflows']}"
            f" overflows of the kernel's queue, {account['lost']} fell out of the buffer and were said;"
            f" unaccounted: {missing}; on the bus {account['events']} events,"
            f" which account for {account['on_bus']}"
        )
        show("  from the first creation to the last record", [seconds], "s")
        assert account["on_bus"] == FILES, account
        # The remarks about an overflow are records too, and may be among those that fell out.
        assert FILES <= known <= FILES + 2 * account["overflows"], account


async def _burst(buffer: int) -> tuple[dict[str, int], float]:
    with running.folders() as paths:
        folder = paths.state.parent / "watched"
        folder.mkdir()
        folder.chmod(0o755)
        pool = Pool(configuration.Worker(), paths)
        await pool.start()
        published: list[dict[str, Any]] = []
        following = asyncio.create_task(_follow(pool, published))
        try:
            return await _measure(pool, folder, buffer, published)
        finally:
            following.cancel()
            await asyncio.wait([following])
            await pool.close()


async def _measure(
    pool: Pool, folder: Path, buffer: int, published: list[dict[str, Any]]
) -> tuple[dict[str, int], float]:
    made = await result_of(pool, _call("watch", path=str(folder), events=["create"], buffer=buffer))
    account = {"told": 0, "rescan": 0, "lost": 0}
    started = time.perf_counter()
    maker = subprocess.Popen([sys.executable, "-c", MAKE, str(folder), str(FILES)])
    try:
        async with asyncio.timeout(120):
            while sum(account.values()) < FILES:
                page = await result_of(pool, _call("poll", watch=made["watch"], limit=500, wait_s=10))
                account["lost"] += page["lost"]
                for change in page["changes"]:
                    if "create" in change["events"]:
                        account["rescan" if change.get("found_by") == "rescan" else "told"] += 1
    except TimeoutError:
        pass  # the account shows what is missing
    finally:
        await asyncio.to_thread(maker.wait)
    seconds = time.perf_counter() - started
    [state] = (await result_of(pool, _call("list")))["watches"]
    await result_of(pool, _call("stop", watch=made["watch"]))
    async with asyncio.timeout(20):
        while not any(event["type"] == "watch_stopped" for event in published):
            await asyncio.sleep(0.01)
    batches = [event["data"] for event in published if event["type"] == "fs_event"]
    creations = sum("create" in change["events"] for data in batches for change in data["changes"])
    summed = sum(data["summary"]["events"].get("create", 0) for data in batches if "summary" in data)
    return account | {
        "overflows": state["overflows"],
        "rescans": state["rescans"],
        "events": len(batches),
        "on_bus": creations + summed,
    }, seconds


async def _follow(pool: Pool, published: list[dict[str, Any]]) -> None:
    async with contextlib.aclosing(pool.follow("bench", 0)) as events:
        async for event in events:
            published.append(event)  # noqa: PERF401 - it is read while it grows


def _call(action: str, **args: Any) -> Call:
    return Call(
        call_id=f"call_{os.urandom(8).hex()}",
        tool="inotify",
        action=action,
        args=args,
        agent="bench",
        session="",
        effect=Effect.OBSERVE,
        timeout_s=75,
        place=Place.WATCHER,
    )
