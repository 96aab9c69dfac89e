"""`lightagent-triggers.service`: follows what triggers wait for, and delivers the answers of their agents.

The daemon says which triggers to follow and gives the answers; it is told of everything that happened, and
decides what is asked. What is followed, who owns it and where an answer goes is read here, from the files
below /etc/lightagentd: the daemon cannot have a command run, or a file written, that root did not name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightagentd.agents.triggers.records import small
from lightagentd.client.aio import AsyncClient
from lightagentd.client.pause import Pause, keep_trying
from lightagentd.config.triggers import TriggerFile, TriggerFiles
from lightagentd.errors import DaemonUnreachable, InvalidArgument, LightagentError
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.host.paths import default_paths
from lightagentd.host.process import run
from lightagentd.host.systemd import notify
from lightagentd.unattended import journal
from lightagentd.unattended.asking import CONNECT_TIMEOUT_S, Answer, run_until_told
from lightagentd.unattended.sources import SOURCES, Batch, problem_of

_log = logging.getLogger("lightagentd.triggers")

DELIVERY_TIMEOUT_S = 900.0
_AT_ONCE = 4
"""So many answers are delivered at the same time."""
_KNOWN = 1000


@dataclass(frozen=True, kw_only=True)
class _Following:
    file: TriggerFile
    task: asyncio.Task[None]


class Service:
    """`await run()` follows and delivers until it is cancelled."""

    def __init__(self, folder: Path, *, control: Path | None = None, journal_socket: Path = SOCKET) -> None:
        self._folder, self._control, self._journal = folder, control, journal_socket
        self._files = TriggerFiles(folder)
        self._following: dict[str, _Following] = {}
        self._deliveries: dict[str, asyncio.Task[str]] = {}
        """Deliveries under way, and the last that are done, by their firings: one may come again."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Never returns."""
        try:
            await keep_trying(self._connection, self._follow, "daemon", _wait_for_daemon)
        finally:
            await self._end([*self._reporting, *self._deliveries.values()])

    def _connection(self) -> AsyncClient:
        return AsyncClient(self._control, timeout_s=CONNECT_TIMEOUT_S)

    async def _follow(self, client: AsyncClient) -> None:
        try:
            async with contextlib.aclosing(client.stream("Triggers.Follow")) as replies:
                async for reply in replies:
                    work = reply["work"]
                    if work is None:
                        break
                    if (answer := work["answer"]) is not None:
                        self._start_delivery(answer)
                    else:
                        await self._sync({one["name"]: one["position"] for one in work["follow"]})
                        notify(f"READY=1\nSTATUS=following {len(self._following)} triggers")
        finally:
            await self._end([one.task for one in self._following.values()])
            self._following.clear()
        raise DaemonUnreachable("The daemon stops, or somebody else follows the triggers.")

    async def _sync(self, wanted: dict[str, str]) -> None:
        """Follow these triggers, each from its position on, as their files say now."""
        await asyncio.to_thread(self._files.read)
        files = {
            name: file
            for name in wanted
            if isinstance(file := self._files.found.get(name), TriggerFile) and file.on in SOURCES
        }
        gone = [name for name, one in self._following.items() if files.get(name) != one.file]
        await self._end([self._following.pop(name).task for name in gone])
        for name, file in files.items():
            if name not in self._following:
                position = file.unmarked(wanted[name])
                task = asyncio.create_task(self._keep(name, file, position), name=f"follow-{name}")
                self._following[name] = _Following(file=file, task=task)

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, name: str, file: TriggerFile, position: str) -> None:
        """Follow one source, again after each failure."""
        pause = Pause()
        while True:
            await pause.wait()
            try:
                async with contextlib.aclosing(SOURCES[file.on](file, position)) as batches:
                    async for batch in batches:
                        await self._tell_all(name, file, batch)
                        position = batch.position or position
            except LightagentError as err:
                _log.warning("%s: %s", name, problem_of(err))
                await self._tell_problem(name, problem_of(err))
            except Exception as err:  # noqa: BLE001 - the boundary of a source: it is told, and tried again
                _log.exception("%s cannot be followed", name)
                await self._tell_problem(name, f"{type(err).__name__}: {err}"[:500])
            pause.failed()

    async def _tell_all(self, name: str, file: TriggerFile, batch: Batch) -> None:
        """Tell the daemon what happened, again until it has stored it. Raises InvalidArgument."""
        happened = [one | {"data": small(one["data"])} for one in batch.happened]
        pause = Pause()
        while True:
            await pause.wait()
            try:
                await self._tell(name, happened=happened, position=file.marked(batch.position))
            except InvalidArgument:
                raise
            except LightagentError as err:
                _log.warning("%s: %s", name, problem_of(err))
                pause.failed()
            else:
                return

    async def _tell_problem(self, name: str, problem: str) -> None:
        with contextlib.suppress(LightagentError):
            await self._tell(name, happened=[], problem=problem)

    async def _tell(self, name: str, **told: Any) -> None:
        async with self._connection() as client:
            await client.call("Triggers.Fire", name=name, **told)

    # Delivering

    def _start_delivery(self, answer: dict[str, Any]) -> None:
        task = asyncio.create_task(self._deliver(answer), name=f"report-{answer['firing']}")
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _deliver(self, answer: dict[str, Any]) -> None:
        """Deliver an answer, unless that is under way or done, and say what became of it. When the daemon is
        away by then, it gives the answer again.
        """
        firing = str(answer["firing"])
        if firing not in self._deliveries:
            delivering = asyncio.create_task(self._delivered(answer), name=f"deliver-{firing}")
            self._deliveries[firing] = delivering
        problem = await asyncio.shield(self._deliveries[firing])
        with contextlib.suppress(LightagentError):
            async with self._connection() as client:
                await client.call("Triggers.Delivered", firing=firing, problem=problem)
        for old in list(self._deliveries)[:-_KNOWN]:
            if self._deliveries[old].done():
                del self._deliveries[old]

    async def _delivered(self, answer: dict[str, Any]) -> str:
        """Deliver an answer; gives why that cannot be, or nothing."""
        async with self._room:
            try:
                return await self._take_there(answer)
            except LightagentError as err:
                return problem_of(err)
            except Exception as err:  # noqa: BLE001 - the boundary of a delivery: it is told
                _log.exception("the answer %s cannot be delivered", answer["firing"])
                return f"{type(err).__name__}: {err}"[:500]

    async def _take_there(self, answer: dict[str, Any]) -> str:
        """As `_delivered`. Raises NotFound, ConfigError, ToolError."""
        name = str(answer["trigger"])
        file = self._files.get(name)
        fields = self._fields(answer)
        enter = partial(journal.enter, fields=fields, socket=self._journal)
        if answer["refused"]:
            refused = ", ".join(map(str, answer["refused"]))
            said = (
                f"Nobody was there to allow what {answer['agent']} wanted to do, so it was refused: {refused}"
            )
            enter("trigger.refused", said, priority=journal.NOTICE)
        text = str(answer["text"])
        if answer["code"]:
            enter("trigger.failed", f"{name}: {text}", priority=journal.ERROR)
            if file.answer not in ("mail", "desktop"):
                return ""
            text = f"The agent came to no answer: {text}"
        if file.answer != "journal":
            about = {"agent": answer["agent"], "text": text, "session": answer["session"]}
            argv = [sys.executable, "-I", "-m", "lightagentd.unattended.delivery", f"--name={name}"]
            done = await run(
                [*argv, f"--folder={self._folder}"],
                timeout_s=DELIVERY_TIMEOUT_S,
                stdin=json.dumps(about).encode(),
            )
            if done.timed_out or done.status != 0:
                problem = " ".join(done.stderr.text().split())[:1000] or "It took too long."
                enter("trigger.failed", f"{name}: {problem}", priority=journal.ERROR)
                return problem
            text = done.stdout.text().strip()
        if not answer["code"]:
            enter("trigger.answered", text, priority=journal.NOTICE)
        return ""

    def _fields(self, answer: dict[str, Any]) -> dict[str, str]:
        known = Answer(
            text="",
            session=str(answer["session"]),
            trace_id=str(answer["trace_id"]),
            duration_ms=int(answer["duration_ms"]),
            refused=(),
        )
        name, firing = str(answer["trigger"]), str(answer["firing"])
        found = journal.fields_of(str(answer["agent"]), known, f"trigger:{name}:{firing}")
        return {**found, "LIGHTAGENT_TRIGGER": name}


def _wait_for_daemon() -> None:
    notify("READY=1\nSTATUS=waiting for the daemon")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-triggers",
        description="Follow what triggers wait for, and deliver the answers of their agents. It is what "
        "lightagent-triggers.service starts.",
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="the daemon's (default: as lactl finds it)"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    service = Service(options.folder or default_paths().config, control=options.socket)
    with contextlib.suppress(LightagentError):  # told to end
        run_until_told(service.run)


if __name__ == "__main__":
    main()
