"""The daemon's side of the workers: starts them, calls them, streams from them, ends them.

A `Pool` owns the workers of all agents. Each agent, effect and owner has workers of its own, so that the
kernel keeps apart what different people do; up to `max_per_effect` calls run there at once, and more wait in
a queue. A place that keeps state between calls (watches, keys) has one worker, with a connection for each
concurrent call. A worker is started when a call needs it, and ended after an idle time, or when there are
`max_workers` and another one is needed: the one that was idle longest goes. Cancelling a call closes its
connection; the worker then kills the processes of the call. A worker that does not finish this in time is
killed, with all that it runs.

When there are `max_workers`, an idle worker of observe or reach is handed over to another agent of the same
person instead: a hundred agents that call at once would otherwise start a worker for most calls. Agents with
a kit are left out of that: their workers load the kit's tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lightagentd.config import configuration
from lightagentd.errors import (
    LightagentError,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
    WorkerUnavailable,
)
from lightagentd.events.context import current_context
from lightagentd.host.paths import Paths
from lightagentd.policy.panic import Panic
from lightagentd.text.reason import LOOK_FIRST
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import PeerLost, VarlinkConnection
from lightagentd.worker import first_units
from lightagentd.worker.call import OWN_PREVIEWS, Call
from lightagentd.worker.calls import LAST
from lightagentd.worker.hooking import HookWorkers
from lightagentd.worker.kept import READ, KeptOutputs
from lightagentd.worker.lanes import (
    SHARED_CONNECTIONS,
    Checked,
    Lane,
    Lanes,
    WorkerProcess,
    distinct,
)
from lightagentd.worker.local import LocalWorkers, clear_folder
from lightagentd.worker.mcp_looking import ServerWorkers
from lightagentd.worker.own_tools import OwnTools
from lightagentd.worker.room import Room
from lightagentd.worker.sandbox import Backend
from lightagentd.worker.source import Child, Source, Whom
from lightagentd.worker.units import UnitWorkers

__all__ = ["Call", "Checked", "Pool", "WorkerProcess"]

_log = logging.getLogger(__name__)

SURVEY_S = 6.0
"""How long a skill waits for the survey of all processes, with the start of the worker that makes it."""
OVERTIME_S = 5.0
"""How much longer than a call's own time the daemon waits for the worker to end it."""


class Pool:
    """Start with `start()`, end with `close()`."""

    def __init__(self, settings: configuration.Worker, paths: Paths, panic: Panic | None = None) -> None:
        self._settings = settings
        self._panic = panic or Panic()
        self._paths = paths
        self._lanes = Lanes()
        self._room = Room(settings.max_workers, self.workers)
        self.own_tools = OwnTools(self._worker, lambda: self.source.shares)
        self.hooks = HookWorkers(self._worker, self._end, self._lanes.kill)
        self.servers = ServerWorkers(self._worker, self._end, self.own_tools.kit_for)
        self._folders = lambda: [*self.own_tools.folders(), *self.hooks.folders.values()]
        """Gives the folders of kits and hooks, which workers must be able to read."""
        self.source: Source = LocalWorkers(settings, paths, self._folders)
        """Where the workers come from."""
        self._reaper: asyncio.Task[None] | None = None
        self.kept = KeptOutputs(paths.runtime / "kept")
        self._returning: set[asyncio.Task[None]] = set()
        """Workers whose call was given up, and that come back or are killed."""
        self._closed = False
        self.kill_problems: list[str] = []
        """What the last `kill_all` could not make sure of, as sentences."""
        self.on_watch: Callable[[Call], None] | None = None
        """Is told of each call to a watcher, in its caller's context, before it runs."""

    @property
    def backend(self) -> Backend:
        """The sandbox of the workers of observe and reach."""
        return self.source.backend

    async def start(self) -> None:
        """Choose the source of workers, and begin to end idle ones. Raises WorkerUnavailable."""
        clear_folder(self._paths.workers)
        await self.kept.start()
        self.source = await choose_source(self._settings, self._paths, self._folders)
        self._reaper = asyncio.create_task(self._end_idle(), name="worker-reaper")

    async def close(self) -> None:
        """End all workers and everything that they run."""
        self.source.leave()
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        while self._returning:
            await asyncio.wait(self._returning)
        await asyncio.gather(*(self._end(worker) for worker in self._lanes.connections()))
        self._lanes.clear()
        await self.source.close()
        await self.kept.close()

    def workers(self) -> list[WorkerProcess]:
        """One entry for each worker, busy if any of its connections is."""
        return distinct(self._lanes.connections())

    async def kill_all(self) -> int:
        """In an emergency stop: kill every worker with all that it runs, at once. Gives their number."""
        connected = {worker.child for worker in self._lanes.connections()}
        for child in connected:
            self._lanes.drop(child)
        # Nothing may pause here, or workers would see the connections end before they are killed.
        killed, self.kill_problems = await self.source.kill_all(connected)
        return killed

    def has_change(self, agent: str) -> bool:
        """Whether an administrator has given this agent a worker for change."""
        return self.source.has(agent, Effect.CHANGE)

    async def end_agent(self, agent: str) -> None:
        """End the workers of an agent that stops."""
        await asyncio.gather(
            *(self._end(worker) for worker in self._lanes.connections() if worker.agent == agent)
        )
        await self.source.end_agent(agent)

    async def end_watchers(self, agent: str) -> None:
        """End an agent's watchers and their watches as soon as no call runs in them."""
        workers = [
            one for one in self._lanes.connections() if one.agent == agent and one.where is Place.WATCHER
        ]
        for worker in workers:
            worker.outdated = True
        await asyncio.gather(*(self._end(worker) for worker in workers if not worker.busy))

    async def end_idle_now(self) -> None:
        """Make the next call start a worker with the current files; busy workers end after their call."""
        for worker in self._lanes.connections():
            worker.outdated = worker.child.outdated = True
        await asyncio.gather(*(self._end(worker) for worker in self._lanes.connections() if not worker.busy))
        await self.source.end_unconnected(lambda: {worker.child for worker in self._lanes.connections()})

    async def describe(self) -> list[dict[str, Any]]:
        """A worker's description of the tools. Raises WorkerUnavailable."""
        async with self._worker(Whom("", Effect.OBSERVE)) as worker:
            worker.outdated = True  # it ends with this, also when that is cancelled
            try:
                reply = await worker.connection.call("org.lightagent1.Worker.Describe")
            except PeerLost as err:
                raise WorkerUnavailable(f"The worker broke off while it described its tools: {err}") from err
        found: list[dict[str, Any]] = reply["tools"]
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
        """Check arguments with the action's own pydantic model, in a worker that can change nothing.

        Only the actions in `OWN_PREVIEWS` make their preview in the worker for change. Raises
        InvalidArgument, ToolNotFound, the preview's errors, and WorkerUnavailable.
        """
        if place in (Place.INSPECT, Place.SERVER, Place.REMOTE):
            place = None  # what it may see beyond others is not needed to look at arguments
        where: Effect | Place = place or (Effect.OBSERVE if effect is Effect.CHANGE else effect)
        if preview and (tool, action) in OWN_PREVIEWS:
            where = effect
        question = {
            "tool": tool,
            "action": action,
            "args": args,
            "agent": agent,
            "session": session,
            "owner": owner,
            "preview": preview,
            "kit": self.own_tools.kit_for(agent, where),
            "context": current_context().to_wire(),
        }
        lost: PeerLost | None = None
        for _ in range(2):  # a check changes nothing, so another worker may make that of one that was killed
            async with self._worker(Whom.of(agent, where, owner), owner) as worker:
                try:
                    reply = await worker.connection.call("org.lightagent1.Worker.Check", **question)
                    break
                except PeerLost as err:
                    await self._end(worker)
                    lost = err
                except asyncio.CancelledError:
                    await self._end(worker)  # its answer may still be on the way
                    raise
        else:
            raise WorkerUnavailable(f"The worker broke off while it checked a call: {lost}") from lost
        return Checked(**reply["checked"])

    async def keep_change(self, agent: str, call_id: str) -> None:
        """Tell the worker for change of an agent that a change stays, where that looks after it itself.
        Raises WorkerUnavailable.
        """
        if not self.source.verifies:
            return
        async with self._worker(Whom.of(agent, Effect.CHANGE, 0)) as worker:
            try:
                await worker.connection.call("org.lightagent1.Worker.Keep", call_id=call_id)
            except BaseException:
                await self._end(worker)  # its answer may still be on the way
                raise

    async def survey(self, owner: int, *, files: bool) -> str:
        """All processes as JSON, as `owner` may know them (`toolkit.proc.survey`); empty without INSPECT."""
        if not self.source.has("", Place.INSPECT):
            return ""
        try:
            async with asyncio.timeout(SURVEY_S), self._worker(Whom("", Place.INSPECT), owner) as worker:
                try:
                    reply = await worker.connection.call(
                        "org.lightagent1.Worker.Survey", owner=owner, files=files
                    )
                except BaseException:
                    await self._end(worker)  # its answer may still be on the way
                    raise
        except (TimeoutError, LightagentError) as err:
            _log.warning("There is no survey of the processes for a skill: %s", err)
            return ""
        return str(reply["survey"])

    async def follow(self, agent: str, owner: int) -> AsyncGenerator[dict[str, Any], None]:
        """The events published by an owner's watcher, which stays alive as long as somebody follows.

        Yields `{kind: event, topic, type, data}` and `{kind: lost, count}`. Raises WorkerUnavailable when the
        watcher cannot be started, and when it is lost.
        """
        async with self._worker(Whom.of(agent, Place.WATCHER, owner), owner) as worker:
            try:
                async for reply in worker.connection.stream("org.lightagent1.Worker.Follow"):
                    yield reply["event"]
            except PeerLost as err:
                raise WorkerUnavailable(f"The watcher of {agent} was lost: {err}") from err
            finally:
                await self._end(worker)

    async def call(self, call: Call) -> AsyncGenerator[dict[str, Any], None]:
        """Run a call; yields its output and events as they arrive, and its result, or what it asks, last.

        Raises the tool's error; WorkerUnavailable when there is no worker (the call did not start);
        OutcomeUnknown when the worker was lost during the call; TimedOut when it did not end in time.
        """
        if (call.tool, call.action) == READ:
            self._panic.check()
            yield await self.kept.answer(call)
            return
        if call.place is Place.WATCHER and self.on_watch is not None:
            self.on_watch(call)
        where = call.place or call.effect
        if where is Place.INSPECT and not self.source.has("", Place.INSPECT):
            where = call.effect  # whose worker sees less, and says so
        server = call.tool if where in (Place.SERVER, Place.REMOTE) else ""
        if server:
            where = call.effect if where is Place.SERVER else Effect.REACH
        async with self._worker(Whom.of(call.agent, where, call.owner, server), call.owner) as worker:
            ended = False
            try:
                async with asyncio.timeout(call.timeout_s + OVERTIME_S):
                    async for reply in worker.connection.stream(
                        "org.lightagent1.Worker.Call",
                        call=call.to_wire(self.own_tools.kit_for(call.agent, where)),
                        context=current_context().to_wire(),
                    ):
                        event = reply["event"]
                        if event["kind"] == "kept":
                            await self.kept.add(call, event)
                            continue
                        if server:
                            self.servers.note(server, event)
                        ended = event["kind"] in LAST
                        if ended:
                            await self.kept.whole(call)
                        yield event
            except TimeoutError as err:
                raise TimedOut(
                    f"The worker did not end {call.tool}.{call.action} in time, and was killed."
                ) from err
            except PeerLost as err:
                raise OutcomeUnknown(
                    f"The worker was lost during {call.tool}.{call.action}: {err}",
                    suggestion=LOOK_FIRST,
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
    async def _worker(self, whom: Whom, owner: int = 0) -> AsyncGenerator[WorkerProcess, None]:
        """A block with an idle or new worker that serves them; `owner` is whose call it is."""
        place = isinstance(whom.where, Place) or bool(whom.server)
        limit = SHARED_CONNECTIONS if place else self._settings.max_per_effect
        lane = self._lanes.lane(whom, limit, shared=place or self.source.shares)
        async with lane.turn(owner), lane.free:
            self._panic.check()
            worker = await self._idle_worker(lane) or await self._open(lane, whom)
            worker.busy = True
            try:
                yield worker
            finally:
                worker.idle_since = time.monotonic()
                if worker not in lane.workers:
                    pass  # ended, or on its way back
                elif worker.stale:
                    await self._end(worker)
                else:
                    worker.busy = False
                self._room.changed.set()

    async def _idle_worker(self, lane: Lane) -> WorkerProcess | None:
        while worker := next((one for one in lane.workers if not one.busy), None):
            if worker.running:
                return worker
            await self._end(worker)
        return None

    async def _open(self, lane: Lane, whom: Whom) -> WorkerProcess:
        """A connection to a new worker, or to the existing worker of a place or unit."""
        self._check_open()
        if whom.where is Effect.CHANGE and not self.has_change(whom.agent):
            raise WorkerUnavailable(
                f"The agent {whom.agent} has no worker for change.",
                suggestion=self.source.how_to_give_change(whom.agent),
            )
        if not lane.shared:
            return await self._opened(lane, whom)
        async with lane.starting:
            running = next((one for one in lane.workers if one.running and not one.stale), None)
            if running is None:
                return await self._opened(lane, whom)
            return lane.add(whom, running.child, await self._connect(running.child))

    async def _opened(self, lane: Lane, whom: Whom) -> WorkerProcess:
        def serves(idle: WorkerProcess) -> bool:
            own = self.own_tools.kits.keys() & {whom.agent, idle.agent}
            return not own and not self.source.holds(whom) and self._lanes.may_serve(whom, idle)

        async with self._room.place(whom, serves, partial(self._end, whole=True)) as idle:
            if idle is not None:
                # No pause here, or it could get another call meanwhile.
                connection = self._lanes.take(idle.child)
                self.source.hand_over(idle.child, whom)
                return lane.add(whom, idle.child, connection)
            child = await self.source.open(whom)
            try:
                # No pause after it is connected to, or `_end` could stop it meanwhile.
                return lane.add(whom, child, await self._connect(child))
            except BaseException:
                if not self._lanes.of(child):
                    await child.discard(at_once=self._panic.on)
                raise

    async def _connect(self, child: Child) -> VarlinkConnection:
        """Connect and wait for the first answer. Raises WorkerUnavailable, Panicked."""
        async with child.lock:
            self._check_open()  # a stop may have come while the worker was started, unseen by `kill_all`
            connection = await child.connect()
        try:
            self._check_open()
        except Unavailable:
            connection.close()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerUnavailable("The daemon is stopping.")
        self._panic.check()

    async def _hang_up(self, worker: WorkerProcess, call_id: str) -> None:
        """Close the connection so that the worker cancels its call; kill a worker that does not finish."""
        if not self._lanes.remove(worker):
            return
        try:
            async with asyncio.timeout(0 if worker.child.stopped else OVERTIME_S):
                async with worker.child.lock:
                    worker.connection = await worker.child.connect()
                await worker.connection.call("org.lightagent1.Worker.Settle", call_id=call_id)
        except (TimeoutError, Unavailable):
            await self._lanes.kill(worker)
            return
        if worker.stale or worker.child.agent != worker.agent:
            await self._end(worker)  # it is to end, or was handed over
        else:
            # A new object: whoever gave the call up still holds the old one, and has no say any more.
            self._lanes.restore(replace(worker, busy=False, idle_since=time.monotonic()))
            self._room.changed.set()

    async def _end(self, worker: WorkerProcess, *, whole: bool = False) -> None:
        """Close a connection, or all of its worker, and with the last one end that."""
        if whole:
            self._lanes.drop(worker.child)
        self._lanes.remove(worker)
        worker.connection.close()
        async with worker.child.lock:
            if not self._lanes.of(worker.child):
                await worker.child.end()
        self._room.changed.set()

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._settings.idle_timeout_s))
            limit = time.monotonic() - self._settings.idle_timeout_s
            for worker in self._lanes.connections():
                if not worker.busy and worker.idle_since < limit:
                    await self._end(worker)


async def choose_source(
    settings: configuration.Worker, paths: Paths, kits: Callable[[], list[str]] = list
) -> Source:
    """The worker units if they are proven to work, else the best sandbox that works here.

    Raises WorkerUnavailable if the configuration requires units that do not work.
    """
    problem = ""
    if settings.sandbox in ("auto", "systemd") and first_units.expected():
        units = UnitWorkers(settings.start_timeout_s)
        problem = await units.problem()
        if not problem:
            return units
        await units.end_agent("")
        problem = f"The worker units are not in force: {problem}"
        _log.error("%s", problem)
    if settings.sandbox == "systemd":
        raise WorkerUnavailable(
            problem or "The worker units serve only the system's own daemon, as the user lightagent.",
            suggestion='See systemctl status "lightagent-*", or configure sandbox = "auto".',
        )
    local = LocalWorkers(settings, paths, kits)
    await local.start(problem)
    return local
