"""The daemon's side of the workers: starts them, calls them, streams from them, ends them.

A `Pool` owns the workers of all agents. For each agent and effect there are up to `max_per_effect` workers,
and each runs one call at a time; more calls wait in line. A worker is started when a call needs it and
ended when it was idle for a while. Cancelling a call hangs up on its worker, which kills what the call
started; a worker that does not come back from that in time is killed, and its namespace with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd import config
from lightagentd.errors import LightagentError, OutcomeUnknown, TimedOut, Unavailable, WorkerUnavailable
from lightagentd.paths import Paths, content_folders
from lightagentd.tool import Effect
from lightagentd.varlink import VarlinkConnection
from lightagentd.worker import sandbox
from lightagentd.worker.process import start

_log = logging.getLogger(__name__)

OVERTIME_S = 5.0
"""How much longer than a call's own time the daemon waits for the worker to end it."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call as a worker gets it."""

    call_id: str
    tool: str
    action: str
    args: dict[str, Any]
    agent: str
    session: str
    effect: Effect
    timeout_s: float


@dataclass(kw_only=True, eq=False)
class WorkerProcess:
    """One running worker. The pool owns it."""

    agent: str
    effect: Effect
    backend: sandbox.Backend
    process: asyncio.subprocess.Process
    socket_path: Path
    connection: VarlinkConnection
    busy: bool = False
    idle_since: float = field(default_factory=time.monotonic)


class _Lane:
    """The workers of one agent and effect, and who waits for one."""

    def __init__(self, limit: int) -> None:
        self.free = asyncio.Semaphore(limit)
        self.workers: list[WorkerProcess] = []


class Pool:
    """Start with `start()`, end with `close()`."""

    def __init__(self, settings: config.Worker, paths: Paths) -> None:
        self._settings = settings
        self._paths = paths
        self._lanes: dict[tuple[str, Effect], _Lane] = {}
        self._numbers = itertools.count(1)
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False
        self.backend = sandbox.Backend(name="none", enforced=False, reason="The pool is not started.")

    async def start(self) -> None:
        """Try which sandbox works here, and begin to end idle workers."""
        self._paths.workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stale in self._paths.workers.iterdir():
            stale.unlink()
        self.backend = await sandbox.choose(self._settings.sandbox, self._paths)
        self._reaper = asyncio.create_task(self._end_idle(), name="worker-reaper")

    async def close(self) -> None:
        """End all workers and what they run."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in self.workers()))
        self._lanes.clear()

    def workers(self) -> list[WorkerProcess]:
        return [worker for lane in self._lanes.values() for worker in lane.workers]

    async def end_agent(self, agent: str) -> None:
        """End the workers of an agent that stops."""
        await asyncio.gather(*(self._end(worker) for worker in self.workers() if worker.agent == agent))

    async def end_idle_now(self) -> None:
        """End every worker that has nothing to do: the next call starts one with the current files."""
        await asyncio.gather(*(self._end(worker) for worker in self.workers() if not worker.busy))

    async def describe(self) -> list[dict[str, Any]]:
        """The tools, as a worker describes them. Raises WorkerUnavailable."""
        async with self._worker("", Effect.OBSERVE) as worker:
            try:
                reply = await worker.connection.call("org.lightagent1.Worker.Describe")
            except Unavailable as err:
                await self._end(worker)
                raise WorkerUnavailable(f"The worker broke off while it described its tools: {err}") from err
        found: list[dict[str, Any]] = reply["tools"]
        await self._end(worker)
        return found

    async def call(self, call: Call) -> AsyncGenerator[dict[str, Any], None]:
        """Run a call; yields its output and events as they come, and its result last.

        Raises what the tool raised; WorkerUnavailable when no worker can be had (the call did not start);
        OutcomeUnknown when the worker was lost in the middle; TimedOut when it did not end in time.
        """
        async with self._worker(call.agent, call.effect) as worker:
            ended = False
            try:
                async with asyncio.timeout(call.timeout_s + OVERTIME_S):
                    async for reply in worker.connection.stream(
                        "org.lightagent1.Worker.Call",
                        call_id=call.call_id,
                        tool=call.tool,
                        action=call.action,
                        args=call.args,
                        agent=call.agent,
                        session=call.session,
                        effect=call.effect.value,
                        timeout_s=call.timeout_s,
                    ):
                        ended = reply["event"]["kind"] == "result"
                        yield reply["event"]
            except TimeoutError as err:
                raise TimedOut(
                    f"The worker did not end {call.tool}.{call.action} in time, and was killed."
                ) from err
            except Unavailable as err:
                raise OutcomeUnknown(
                    f"The worker was lost during {call.tool}.{call.action}: {err}",
                    suggestion="Look at what the call changed before you ask for it again.",
                ) from err
            except LightagentError:
                ended = True
                raise
            finally:
                if not ended:
                    await self._hang_up(worker)

    @contextlib.asynccontextmanager
    async def _worker(self, agent: str, effect: Effect) -> AsyncGenerator[WorkerProcess, None]:
        """An idle worker of this agent and effect, or a new one, for the length of the block."""
        if self._closed:
            raise WorkerUnavailable("The daemon is stopping.")
        lane = self._lanes.setdefault((agent, effect), _Lane(self._settings.max_per_effect))
        async with lane.free:
            worker = next((one for one in lane.workers if not one.busy), None)
            if worker is not None and worker.process.returncode is not None:
                await self._end(worker)
                worker = None
            if worker is None:
                worker = await self._start_worker(agent, effect)
                lane.workers.append(worker)
            worker.busy = True
            try:
                yield worker
            finally:
                worker.busy = False
                worker.idle_since = time.monotonic()

    async def _start_worker(self, agent: str, effect: Effect) -> WorkerProcess:
        path = self._paths.workers / f"{next(self._numbers)}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        tools = content_folders("tools", self._paths)
        skills = content_folders("skills", self._paths)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(8)
            with sandbox.Filter(effect) as held:
                argv = sandbox.worker_argv(
                    effect,
                    self.backend,
                    self._paths,
                    filter_fd=held.fd,
                    listen_fd=listener.fileno(),
                    tools=tools,
                    extra=skills,
                )
                process = await start(
                    argv,
                    env={"LIGHTAGENT_SKILLS": ":".join(str(folder) for folder in skills)},
                    pass_fds=(held.fd, listener.fileno()),
                )
        except OSError as err:
            path.unlink(missing_ok=True)
            raise WorkerUnavailable(f"A worker for {effect} cannot be started: {err}") from err
        finally:
            listener.close()
        try:
            connection = await self._connect(process, path)
        except BaseException:
            await sandbox.terminate(process)
            path.unlink(missing_ok=True)
            raise
        return WorkerProcess(
            agent=agent,
            effect=effect,
            backend=self.backend,
            process=process,
            socket_path=path,
            connection=connection,
        )

    async def _connect(self, process: asyncio.subprocess.Process, path: Path) -> VarlinkConnection:
        """Connect and wait for the first answer; the socket listens before the program runs."""
        try:
            connection = await VarlinkConnection.connect(path)
            try:
                async with asyncio.timeout(self._settings.start_timeout_s):
                    await connection.call("org.varlink.service.GetInfo")
            except BaseException:
                connection.close()
                raise
        except (OSError, TimeoutError, Unavailable) as err:
            raise WorkerUnavailable(
                f"A worker ended with status {process.returncode} before it answered: {err}",
                suggestion="The daemon's log has what the worker said.",
            ) from err
        return connection

    async def _hang_up(self, worker: WorkerProcess) -> None:
        """Let the worker cancel its call by closing the connection; kill it when it does not come back."""
        worker.connection.close()
        try:
            async with asyncio.timeout(OVERTIME_S):
                worker.connection = await self._connect(worker.process, worker.socket_path)
        except (TimeoutError, WorkerUnavailable):
            await asyncio.shield(self._end(worker))

    async def _end(self, worker: WorkerProcess) -> None:
        lane = self._lanes.get((worker.agent, worker.effect))
        if lane is not None and worker in lane.workers:
            lane.workers.remove(worker)
        worker.connection.close()
        await sandbox.terminate(worker.process)
        worker.socket_path.unlink(missing_ok=True)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._settings.idle_timeout_s))
            limit = time.monotonic() - self._settings.idle_timeout_s
            for worker in self.workers():
                if not worker.busy and worker.idle_since < limit:
                    await self._end(worker)
