"""The daemon's side of the workers: starts them, calls them, streams from them, ends them.

A `Pool` owns the workers of all agents. For each agent and effect there are up to `max_per_effect` workers,
and each runs one call at a time; more calls wait in line. A place that holds something between calls
(watches, keys) has one worker, with a connection for each call that runs at once. A worker is started when a
call needs it and ended when it was idle for a while. Cancelling a call hangs up on its worker, which kills
what the call started; a worker that does not come back from that in time is killed, with all that it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightagentd import config
from lightagentd.errors import LightagentError, OutcomeUnknown, TimedOut, Unavailable, WorkerUnavailable
from lightagentd.paths import Paths, content_folders
from lightagentd.tool import Effect, Place
from lightagentd.varlink import VarlinkConnection
from lightagentd.worker import sandbox
from lightagentd.worker.busproxy import BusProxy
from lightagentd.worker.leftovers import Ends

_log = logging.getLogger(__name__)

OVERTIME_S = 5.0
"""How much longer than a call's own time the daemon waits for the worker to end it."""

SHARED_CONNECTIONS = 16
"""How many calls the one worker of a place runs at once."""

ABSTRACT_SOCKETS = (
    "Shell commands can reach the abstract Unix sockets of other programs, because the kernel cannot scope"
    " them (Landlock ABI 6, Linux 6.12)."
)


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
    owner: int = 0
    """The uid on whose behalf it runs."""
    place: Place | None = None
    expected: dict[str, Any] = field(default_factory=dict)
    """What an approved call's preview rested on."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A call's arguments as its action will get them, and what it would do (`lightagentd.tool.Preview`)."""

    args: dict[str, Any]
    preview: str = ""
    expected: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class WorkerProcess:
    """A connection to a running worker; where a place has one worker, several share it. The pool owns it."""

    agent: str
    where: Effect | Place
    child: sandbox.Child
    socket_path: Path
    connection: VarlinkConnection
    busy: bool = False
    outdated: bool = False
    """The files that it loaded may have changed: it is ended after its call."""
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def backend(self) -> sandbox.Backend:
        return self.child.backend

    @property
    def process(self) -> asyncio.subprocess.Process:
        """What the daemon started: bwrap, or the worker's keeper."""
        return self.child.process


class _Lane:
    """The workers of one agent and effect, or of a place, and who waits for one."""

    def __init__(self, limit: int, *, shared: bool) -> None:
        self.free = asyncio.Semaphore(limit)
        self.workers: list[WorkerProcess] = []
        self.shared = shared
        self.starting = asyncio.Lock()
        """Held while a shared worker is started, so that there is only one."""


class Pool:
    """Start with `start()`, end with `close()`."""

    def __init__(self, settings: config.Worker, paths: Paths) -> None:
        self._settings = settings
        self._paths = paths
        self._lanes: dict[tuple[str, Effect | Place], _Lane] = {}
        self._numbers = itertools.count(1)
        self._reaper: asyncio.Task[None] | None = None
        self.bus = BusProxy(paths.runtime / "bus")
        self._returning: set[asyncio.Task[None]] = set()
        """Workers whose call was given up, and that come back or are killed."""
        self._closed = False
        self.backend = sandbox.Backend(name="none", enforced=False, reason="The pool is not started.")

    async def start(self) -> None:
        """Try which sandbox works here, and begin to end idle workers."""
        self._paths.workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stale in self._paths.workers.iterdir():
            stale.unlink()
        self.backend = await sandbox.choose(self._settings.sandbox, self._paths)
        if self.backend.name == "bwrap":
            await self.bus.start(sandbox.switch_user_argv())
            found = [self.bus.problem] if self.bus.problem else []
            if self.bus.path is not None and self.backend.ends is not Ends.DOMAIN:
                found.append(ABSTRACT_SOCKETS)
            self.backend = replace(self.backend, limits=(*self.backend.limits, *found))
        self._reaper = asyncio.create_task(self._end_idle(), name="worker-reaper")

    async def close(self) -> None:
        """End all workers and what they run."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        while self._returning:
            await asyncio.wait(self._returning)
        await asyncio.gather(*(self._end(worker) for worker in self._connections()))
        self._lanes.clear()
        await self.bus.close()

    def workers(self) -> list[WorkerProcess]:
        """One entry for each worker, busy if any of its connections is."""
        found: dict[int, WorkerProcess] = {}
        for worker in self._connections():
            if id(worker.child) not in found or worker.busy:
                found[id(worker.child)] = worker
        return list(found.values())

    def _connections(self) -> list[WorkerProcess]:
        return [worker for lane in self._lanes.values() for worker in lane.workers]

    def has_change(self, agent: str) -> bool:
        """Whether an administrator has given this agent a worker for change."""
        return agent in self._settings.change_agents

    async def end_agent(self, agent: str) -> None:
        """End the workers of an agent that stops."""
        await asyncio.gather(*(self._end(worker) for worker in self._connections() if worker.agent == agent))

    async def end_idle_now(self) -> None:
        """Have the next call start a worker with the current files: busy ones are ended after their call."""
        for worker in self._connections():
            worker.outdated = True
        await asyncio.gather(*(self._end(worker) for worker in self._connections() if not worker.busy))

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

    async def check(
        self,
        agent: str,
        effect: Effect,
        tool: str,
        action: str,
        args: dict[str, Any],
        *,
        session: str = "",
        owner: int = 0,
        place: Place | None = None,
        preview: bool = False,
    ) -> Checked:
        """Have the action's own model check arguments, in a worker that can change nothing.

        Raises InvalidArgument, ToolNotFound, what the preview raises, and WorkerUnavailable.
        """
        where = place or (Effect.OBSERVE if effect is Effect.CHANGE else effect)
        async with self._worker(agent, where) as worker:
            try:
                reply = await worker.connection.call(
                    "org.lightagent1.Worker.Check",
                    tool=tool,
                    action=action,
                    args=args,
                    agent=agent,
                    session=session,
                    owner=owner,
                    preview=preview,
                )
            except Unavailable as err:
                if type(err) is not Unavailable:
                    raise
                await self._end(worker)
                raise WorkerUnavailable(f"The worker broke off while it checked a call: {err}") from err
            except asyncio.CancelledError:
                await self._end(worker)  # its answer may still be on the way
                raise
        return Checked(**reply["checked"])

    async def follow(self, agent: str) -> AsyncGenerator[dict[str, Any], None]:
        """What the tools of an agent's watcher publish; the watcher stays as long as somebody follows.

        Yields `{kind: event, topic, type, data}` and `{kind: lost, count}`. Raises WorkerUnavailable when it
        cannot be started, and when it is lost.
        """
        async with self._worker(agent, Place.WATCHER) as worker:
            try:
                async for reply in worker.connection.stream("org.lightagent1.Worker.Follow"):
                    yield reply["event"]
            except Unavailable as err:
                raise WorkerUnavailable(f"The watcher of {agent} was lost: {err}") from err
            finally:
                await self._end(worker)

    async def call(self, call: Call) -> AsyncGenerator[dict[str, Any], None]:
        """Run a call; yields its output and events as they come, and its result last.

        Raises what the tool raised; WorkerUnavailable when no worker can be had (the call did not start);
        OutcomeUnknown when the worker was lost in the middle; TimedOut when it did not end in time.
        """
        async with self._worker(call.agent, call.place or call.effect) as worker:
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
                        owner=call.owner,
                        effect=call.effect.value,
                        timeout_s=call.timeout_s,
                        expected=call.expected,
                    ):
                        ended = reply["event"]["kind"] == "result"
                        yield reply["event"]
            except TimeoutError as err:
                raise TimedOut(
                    f"The worker did not end {call.tool}.{call.action} in time, and was killed."
                ) from err
            except Unavailable as err:
                if type(err) is not Unavailable:  # the tool's own answer, such as SystemdUnavailable
                    ended = True
                    raise
                raise OutcomeUnknown(
                    f"The worker was lost during {call.tool}.{call.action}: {err}",
                    suggestion="Look at what the call changed before you ask for it again.",
                ) from err
            except LightagentError:
                ended = True
                raise
            finally:
                if not ended:
                    task = asyncio.create_task(self._hang_up(worker, call.call_id), name="worker-hang-up")
                    self._returning.add(task)
                    task.add_done_callback(self._returning.discard)
                    await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _worker(self, agent: str, where: Effect | Place) -> AsyncGenerator[WorkerProcess, None]:
        """An idle worker of this agent and effect, or a new one, for the length of the block."""
        lane = self._lane(agent, where)
        async with lane.free:
            worker = await self._idle_worker(lane) or await self._open(lane, agent, where)
            worker.busy = True
            try:
                yield worker
            finally:
                worker.idle_since = time.monotonic()
                if worker not in lane.workers:
                    pass  # ended, or on its way back
                elif worker.outdated:
                    await self._end(worker)
                else:
                    worker.busy = False

    def _lane(self, agent: str, where: Effect | Place) -> _Lane:
        shared = isinstance(where, Place)
        limit = SHARED_CONNECTIONS if shared else self._settings.max_per_effect
        return self._lanes.setdefault((agent, where), _Lane(limit, shared=shared))

    async def _idle_worker(self, lane: _Lane) -> WorkerProcess | None:
        while worker := next((one for one in lane.workers if not one.busy), None):
            if worker.process.returncode is None:
                return worker
            await self._end(worker)
        return None

    async def _open(self, lane: _Lane, agent: str, where: Effect | Place) -> WorkerProcess:
        """A connection to a new worker, or another one to the worker that a place has already."""
        if not lane.shared:
            return await self._start_worker(lane, agent, where)
        async with lane.starting:
            running = next((one for one in lane.workers if one.process.returncode is None), None)
            if running is None or running.outdated:
                return await self._start_worker(lane, agent, where)
            self._check_open()
            connection = await self._connect(running.process, running.socket_path)
            worker = replace(running, connection=connection, busy=True)
            lane.workers.append(worker)
            return worker

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerUnavailable("The daemon is stopping.")

    async def _start_worker(self, lane: _Lane, agent: str, where: Effect | Place) -> WorkerProcess:
        self._check_open()
        if where is Effect.CHANGE and not self.has_change(agent):
            raise WorkerUnavailable(
                f"The agent {agent} has no worker for change.",
                suggestion="An administrator adds it to change_agents in [worker] of the configuration.",
            )
        path = self._paths.workers / f"{next(self._numbers)}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        skills = content_folders("skills", self._paths)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(8)
            child = await sandbox.spawn(
                where,
                self.backend,
                self._paths,
                listen_fd=listener.fileno(),
                tools=content_folders("tools", self._paths),
                extra=skills,
                bus=self.bus.path,
                env=self._environment(agent, where, skills),
            )
        except OSError as err:
            path.unlink(missing_ok=True)
            raise WorkerUnavailable(
                f"A worker for {where} cannot be started: {err}.", suggestion="lactl status says more."
            ) from err
        finally:
            listener.close()
        try:
            connection = await self._connect(child.process, path)
            try:
                self._check_open()
            except WorkerUnavailable:
                connection.close()
                raise
        except BaseException:
            await child.end()
            path.unlink(missing_ok=True)
            raise
        worker = WorkerProcess(
            agent=agent, where=where, child=child, socket_path=path, connection=connection, busy=True
        )
        lane.workers.append(worker)
        return worker

    def _environment(self, agent: str, where: Effect | Place, skills: Sequence[Path]) -> dict[str, str]:
        """What tools are told beside `clean_environment`."""
        undo = {"LIGHTAGENT_UNDO": str(self._paths.undo(agent))} if where is Effect.CHANGE else {}
        env = undo | {
            "LIGHTAGENT_SKILLS": ":".join(str(folder) for folder in skills),
            "LIGHTAGENT_WEB_ALLOW": ",".join(self._settings.web_allow),
        }
        # Where the administrator keeps certificates of his own (ssl(3ssl)).
        return env | {
            name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ
        }

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

    async def _hang_up(self, worker: WorkerProcess, call_id: str) -> None:
        """Let the worker cancel its call by closing the connection; kill it when it does not come back."""
        lane = self._lanes[worker.agent, worker.where]
        if worker not in lane.workers:
            return
        lane.workers.remove(worker)
        worker.connection.close()
        try:
            async with asyncio.timeout(OVERTIME_S):
                worker.connection = await self._connect(worker.process, worker.socket_path)
                await worker.connection.call("org.lightagent1.Worker.Settle", call_id=call_id)
        except (TimeoutError, Unavailable):
            for other in [one for one in lane.workers if one.child is worker.child]:
                lane.workers.remove(other)  # it goes down with the others' calls
                other.connection.close()
            await self._end(worker)
            return
        if worker.outdated:
            await self._end(worker)
        else:
            # A new object: whoever gave the call up still holds the old one, and has no say any more.
            lane.workers.append(replace(worker, busy=False, idle_since=time.monotonic()))

    async def _end(self, worker: WorkerProcess) -> None:
        """Close a connection, and end its worker with the last one."""
        lane = self._lanes.get((worker.agent, worker.where))
        if lane is not None and worker in lane.workers:
            lane.workers.remove(worker)
        worker.connection.close()
        if lane is not None and any(one.child is worker.child for one in lane.workers):
            return
        await worker.child.end()
        worker.socket_path.unlink(missing_ok=True)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._settings.idle_timeout_s))
            limit = time.monotonic() - self._settings.idle_timeout_s
            for worker in self._connections():
                if not worker.busy and worker.idle_since < limit:
                    await self._end(worker)
