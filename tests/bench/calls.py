"""What a tool call costs beyond its work: with a warm worker, with a cold one, through the whole daemon."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from lightagentd.client.blocking import Client
from lightagentd.config import configuration
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker.pool import Call, Pool
from tests.bench.rig import rig, show
from tests.conftest import write

WARM_TARGET_MS, COLD_TARGET_MS, PROCESSES_TARGET_MS = 3, 400, 60
PROCESSES = 500
CALLS = 50
INTERVAL_S = 0.2
NOTHING = """
from lightagentd.tool import Args, Context, Result, Tool, action

class Nothing(Tool):
    "Does nothing."
    name = "nothing"

    @action()
    async def do(self, ctx: Context, args: Args) -> Result:
        "Do nothing."
        return Result(output="done")
"""


def run(rounds: int) -> None:
    asyncio.run(_in_pool(rounds))
    _through_daemon(rounds)


async def _in_pool(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-") as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        paths.runtime.mkdir()
        write(paths.config / "tools/nothing.py", NOTHING)
        pool = Pool(configuration.Worker(), paths)
        await pool.start()
        try:
            cold, warm, listing, sampling, ps = await _rounds(pool, rounds)
        finally:
            await pool.close()
    show(f"first call to a cold worker (target: at most {COLD_TARGET_MS})", cold, "ms")
    show(f"call overhead, warm worker, checked and run (target: at most {WARM_TARGET_MS})", warm, "ms")
    show(f"proc list with {PROCESSES} processes (target: at most {PROCESSES_TARGET_MS})", listing, "ms")
    show(f"the same with CPU use over {INTERVAL_S} s, beyond these {INTERVAL_S} s", sampling, "ms")
    show("ps -eo pid,ppid,user,stat,pcpu,rss,args beside it", ps, "ms")


async def _rounds(pool: Pool, rounds: int) -> tuple[list[float], ...]:
    cold: list[float] = []
    warm: list[float] = []
    listing: list[float] = []
    sampling: list[float] = []
    ps: list[float] = []
    crowd = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]
    try:
        await _call(pool, "nothing", "do")  # the first one compiles what Python keeps on disk
        for _ in range(rounds):
            await pool.end_idle_now()
            cold.append(await _timed(lambda: _call(pool, "nothing", "do")))
            warm.append(await _timed(lambda: _many(pool)) / CALLS)
            listing.append(await _timed(lambda: _call(pool, "proc", "list", interval_s=0)))
            sampled = await _timed(lambda: _call(pool, "proc", "list", interval_s=INTERVAL_S))
            sampling.append(sampled - INTERVAL_S * 1000)
            ps.append(_ps_ms())
    finally:
        for one in crowd:
            one.kill()
        for one in crowd:
            one.wait()
    return cold, warm, listing, sampling, ps


async def _many(pool: Pool) -> None:
    for _ in range(CALLS):
        await pool.check("ops", Effect.OBSERVE, "nothing", "do", {})
        await _call(pool, "nothing", "do")


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def _call(pool: Pool, tool: str, action: str, **args: object) -> None:
    call = Call(
        call_id="call_bench",
        tool=tool,
        action=action,
        args=args,
        agent="ops",
        session="",
        effect=Effect.OBSERVE,
        timeout_s=30.0,
    )
    async for event in pool.call(call):
        assert event["kind"] != "result" or event["output"], event


def _ps_ms() -> float:
    started = time.perf_counter()
    subprocess.run(["ps", "-eo", "pid,ppid,user,stat,pcpu,rss,args"], check=True, capture_output=True)
    return (time.perf_counter() - started) * 1000


def _through_daemon(rounds: int) -> None:
    """`lactl tools call` without lactl: its bash runs `true`, beside a bash that runs it without a daemon."""
    ours: list[float] = []
    bare: list[float] = []
    with rig(1) as ready, ready.daemon.client() as client:
        _bash_ms(client)
        for _ in range(rounds):
            for _ in range(CALLS):
                ours.append(_bash_ms(client))
                bare.append(_bare_bash_ms())
    show("bash.exec of true through the API, policy and history", ours, "ms")
    show("bash -c true beside it", bare, "ms")


def _bash_ms(client: Client) -> float:
    started = time.perf_counter()
    last: dict[str, object] = {}
    args = {"command": "true"}
    for reply in client.stream(
        "org.lightagent1.Tools.Call", agent="bench", tool="bash", action="exec", args=args
    ):
        last = reply["event"]
    assert last["type"] == "done", json.dumps(last)
    return (time.perf_counter() - started) * 1000


def _bare_bash_ms() -> float:
    started = time.perf_counter()
    subprocess.run(["bash", "-c", "true"], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000
