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
import logging
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightagentd.config import configuration
from lightagentd.errors import LightagentError, OutcomeUnknown, TimedOut, Unavailable, WorkerUnavailable
from lightagentd.events.context import current_context
from lightagentd.host.paths import Paths
from lightagentd.policy.panic import Panic
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker import busdoor, first_units, places, sandbox
from lightagentd.worker.kept import READ, KeptOutputs
from lightagentd.worker.lanes import (
    OWN_PREVIEWS,
    SHARED_CONNECTIONS,
    Call,
    Checked,
    Lane,
    WorkerProcess,
    distinct,
)
from lightagentd.worker.local import start_local
from lightagentd.worker.local_bus import BusProxy
from lightagentd.worker.units import UnitChild, Units, name_of

__all__ = ["Call", "Checked", "Pool", "WorkerProcess"]

_log = logging.getLogger(__name__)

OVERTIME_S = 5.0
"""How much longer than a call's own time the daemon waits for the worker to end it."""


class Pool:
    """Start with `start()`, end with `close()`."""

    def __init__(self, settings: configuration.Worker, paths: Paths, panic: Panic | None = None) -> None:
        self._settings = settings
        self._panic = panic or Panic()
        self._children: set[sandbox.Child] = set()
        """Every worker that was started, also those that serve nobody yet or no more."""
        self._paths = paths
        self._lanes: dict[tuple[str, Effect | Place], Lane] = {}
        self._units: Units | None = None
        """Where systemd holds the workers."""
        self._reaper: asyncio.Task[None] | None = None
        self.bus = BusProxy(paths.runtime / "bus")
        self.kept = KeptOutputs(paths.runtime / "kept")
        self._returning: set[asyncio.Task[None]] = set()
        """Workers whose call was given up, and that come back or are killed."""
        self._closed = False
        self._leaving = False
        self.kill_problems: list[str] = []
        """What the last `kill_all` could not make sure of, as sentences."""
        self.on_watch: Callable[[Call], None] | None = None
        """Is told of each call to a watcher, in its caller's context, before it runs."""
        self.backend = sandbox.Backend(name="none", enforced=False, reason="The pool is not started.")

    async def start(self) -> None:
        """Try which sandbox works here, and begin to end idle workers."""
        workers = self._paths.workers
        if workers.is_symlink() or (workers.exists() and not workers.is_dir()):
            workers.unlink()  # planted: what lies behind a link is not ours to clear
        workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stale in workers.iterdir():
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink()
        await self.kept.start()
        await self._choose()
        if self.backend.name == "bwrap":
            await self.bus.start(sandbox.switch_user_argv())
            found = [self.bus.problem] if self.bus.problem else []
            if self.bus.path is not None and not await sandbox.has_bus_door():
                found.append(busdoor.IMPOSSIBLE)
            self.backend = replace(self.backend, limits=(*self.backend.limits, *found))
        self._reaper = asyncio.create_task(self._end_idle(), name="worker-reaper")

    async def _choose(self) -> None:
        """The worker units where they are proven to work, else what `sandbox.choose` finds.

        Raises WorkerUnavailable where the configuration wants the units and nothing else.
        """
        wanted = self._settings.sandbox
        problem = ""
        if wanted in ("auto", "systemd") and first_units.expected():
            units = Units(self._settings.start_timeout_s)
            problem = await units.problem()
            if not problem:
                self._units, self.backend = units, units.backend
                return
            await units.end_agent("")
            problem = f"The worker units are not in force: {problem}"
            _log.error("%s", problem)
        if wanted == "systemd":
            raise WorkerUnavailable(
                problem or "The worker units serve only the system's own daemon, as the user lightagent.",
                suggestion='See systemctl status "lightagent-*", or configure sandbox = "auto".',
            )
        found = await sandbox.choose(wanted, self._paths)
        more = (*places.limits(found), *([problem] if problem else []))
        self.backend = replace(found, limits=(*found.limits, *more))

    def leave(self) -> None:
        """The daemon is being stopped: running calls go on, and no job is asked of the service manager."""
        self._leaving = True
        if self._units is not None:
            self._units.leaving = True

    async def close(self) -> None:
        """End all workers and what they run."""
        self.leave()
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        while self._returning:
            await asyncio.wait(self._returning)
        await asyncio.gather(*(self._end(worker) for worker in self._connections()))
        self._lanes.clear()
        await self.bus.close()
        await self.kept.close()

    def workers(self) -> list[WorkerProcess]:
        """One entry for each worker, busy if any of its connections is."""
        return distinct(self._connections())

    async def kill_all(self) -> int:
        """In an emergency stop: kill every worker with all that it runs, without grace. Says how many."""
        killed = [child for child in self._children if child.process.returncode is None]
        for child in killed:
            child.tell_at_once()
        asked = {one.child for one in self._connections() if isinstance(one.child, UnitChild)}
        ends = [child.kill() for child in killed]
        ends += [child.kill() for child in asked if not child.stoppable]
        for lane in self._lanes.values():
            for worker in lane.workers:
                worker.connection.close()
                if not isinstance(worker.child, UnitChild):
                    worker.socket_path.unlink(missing_ok=True)
            lane.workers.clear()
        ending = asyncio.gather(*ends)
        stopped = 0
        self.kill_problems = []
        if self._units is not None:
            stopped, self.kill_problems = await self._units.kill_all()
        await ending
        return len(killed) + stopped

    def _connections(self) -> list[WorkerProcess]:
        return [worker for lane in self._lanes.values() for worker in lane.workers]

    def has_change(self, agent: str) -> bool:
        """Whether an administrator has given this agent a worker for change."""
        if self._units is not None:
            return self._units.has(agent, Effect.CHANGE)
        return agent in self._settings.change_agents

    def held_by(self, agent: str, effect: Effect) -> tuple[str, str]:
        """What a worker runs in, in a word, and what there is to say about that."""
        if effect is not Effect.CHANGE:
            return self.backend.name, self.backend.reason
        if self._units is None:
            return "the daemon's own user", ""
        unit = name_of(agent, effect, "service")
        return "systemd", f"It may do what {unit} leaves it: systemd-analyze security {unit}"

    async def end_agent(self, agent: str) -> None:
        """End the workers of an agent that stops."""
        await asyncio.gather(*(self._end(worker) for worker in self._connections() if worker.agent == agent))
        if self._units is not None:
            await self._units.end_agent(agent)

    async def end_watcher(self, agent: str) -> None:
        """End an agent's watcher and its watches, the next time that no call runs in it."""
        lane = self._lanes.get((agent, Place.WATCHER))
        workers = [*lane.workers] if lane is not None else []
        for worker in workers:
            worker.outdated = True
        await asyncio.gather(*(self._end(worker) for worker in workers if not worker.busy))

    async def end_idle_now(self) -> None:
        """Have the next call start a worker with the current files: busy ones are ended after their call."""
        for worker in self._connections():
            worker.outdated = True
            if isinstance(worker.child, UnitChild):
                worker.child.outdated = True
        await asyncio.gather(*(self._end(worker) for worker in self._connections() if not worker.busy))
        if self._units is not None:
            await self._units.end_unconnected(self._connected_units)

    def _connected_units(self) -> set[str]:
        children = (worker.child for worker in self._connections())
        return {child.service for child in children if isinstance(child, UnitChild)}

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

        Only what `OWN_PREVIEWS` names says in the worker for change what it would do. Raises InvalidArgument,
        ToolNotFound, what the preview raises, and WorkerUnavailable.
        """
        if place is Place.INSPECT:
            place = None  # what it may see beyond others is not needed to look at arguments
        where: Effect | Place = place or (Effect.OBSERVE if effect is Effect.CHANGE else effect)
        if preview and (tool, action) in OWN_PREVIEWS:
            where = effect
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
                    context=current_context().to_wire(),
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
        if (call.tool, call.action) == READ:
            self._panic.check()
            yield await self.kept.answer(call)
            return
        if call.place is Place.WATCHER and self.on_watch is not None:
            self.on_watch(call)
        async with self._worker(call.agent, self._where(call)) as worker:
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
                        context=current_context().to_wire(),
                    ):
                        event = reply["event"]
                        if event["kind"] == "kept":
                            await self.kept.add(call, event)
                            continue
                        ended = event["kind"] == "result"
                        if ended:
                            await self.kept.whole(call)
                        yield event
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
        agent = places.owner_of(agent, where)
        lane = self._lane(agent, where)
        async with lane.free:
            self._panic.check()
            worker = await self._idle_worker(lane) or await self._open(lane, agent, where)
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

    def _where(self, call: Call) -> Effect | Place:
        """The lane of a call. Where there is no inspect, the worker of the effect sees less and says so."""
        if call.place is Place.INSPECT:
            units = self._units
            has = units.has("", Place.INSPECT) if units is not None else places.has_inspect(self.backend)
            return Place.INSPECT if has else call.effect
        return call.place or call.effect

    def _lane(self, agent: str, where: Effect | Place) -> Lane:
        shared = isinstance(where, Place)  # with units each is, and the limit is one of connections
        limit = SHARED_CONNECTIONS if shared else self._settings.max_per_effect
        return self._lanes.setdefault((agent, where), Lane(limit, shared=shared))

    async def _idle_worker(self, lane: Lane) -> WorkerProcess | None:
        while worker := next((one for one in lane.workers if not one.busy), None):
            if worker.running:
                return worker
            await self._end(worker)
        return None

    async def _open(self, lane: Lane, agent: str, where: Effect | Place) -> WorkerProcess:
        """A connection to a new worker, or another one to the worker that a place or a unit has already."""
        self._check_open()
        if where is Effect.CHANGE and not self.has_change(agent):
            enable = f"systemctl enable --now {name_of(agent, where, 'socket')}"
            raise WorkerUnavailable(
                f"The agent {agent} has no worker for change.",
                suggestion=f"An administrator can give it one: {enable}"
                if self._units is not None
                else "An administrator adds it to change_agents in [worker] of the configuration.",
            )
        if self._units is not None:
            return await self._open_unit(self._units, lane, agent, where)
        if not lane.shared:
            return await self._start_worker(lane, agent, where)
        async with lane.starting:
            running = next((one for one in lane.workers if one.running), None)
            if running is None or running.outdated:
                return await self._start_worker(lane, agent, where)
            self._check_open()
            connection = await self._connect(running.child, running.socket_path)
            worker = replace(running, connection=connection, busy=True)
            lane.workers.append(worker)
            return worker

    async def _open_unit(self, units: Units, lane: Lane, agent: str, where: Effect | Place) -> WorkerProcess:
        child = units.child(agent, where)
        async with child.lock:
            connection = await units.connect(child)
        # No pause from here on, or `_end` could stop it meanwhile.
        try:
            self._check_open()
        except Unavailable:
            connection.close()
            raise
        worker = WorkerProcess(
            agent=agent, where=where, child=child, socket_path=child.path, connection=connection, busy=True
        )
        lane.workers.append(worker)
        return worker

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerUnavailable("The daemon is stopping.")
        self._panic.check()

    async def _start_worker(self, lane: Lane, agent: str, where: Effect | Place) -> WorkerProcess:
        self._check_open()
        child, path = await start_local(
            agent, where, self.backend, self._settings, self._paths, self.bus.path
        )
        self._children = {one for one in self._children if one.process.returncode is None} | {child}
        try:
            self._panic.check()  # it may have come while the worker was started, which `kill_all` did not see
            connection = await self._connect(child, path)
            try:
                self._check_open()
            except Unavailable:
                connection.close()
                raise
        except BaseException:
            await (child.kill() if self._panic.on else child.end())
            path.unlink(missing_ok=True)
            raise
        worker = WorkerProcess(
            agent=agent, where=where, child=child, socket_path=path, connection=connection, busy=True
        )
        lane.workers.append(worker)
        return worker

    async def _connect(self, child: sandbox.Child | UnitChild, path: Path) -> VarlinkConnection:
        """Connect and wait for the first answer; the socket listens before the program runs."""
        if isinstance(child, UnitChild):
            assert self._units is not None
            async with child.lock:
                return await self._units.connect(child)
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
                f"A worker ended with status {child.process.returncode} before it answered: {err}",
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
                worker.connection = await self._connect(worker.child, worker.socket_path)
                await worker.connection.call("org.lightagent1.Worker.Settle", call_id=call_id)
        except (TimeoutError, Unavailable):
            for other in [one for one in self._connections() if one.child is worker.child]:
                self._lanes[other.agent, other.where].workers.remove(other)  # it goes down with their calls
                other.connection.close()
            if isinstance(worker.child, UnitChild):
                worker.connection.close()
                await worker.child.kill()
            else:
                await self._end(worker)
            return
        if worker.stale:
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
        child = worker.child
        if isinstance(child, UnitChild):
            async with child.lock:
                # With the daemon its workers are stopped (PartOf=), and systemd would not do it before.
                if not self._serves(child) and not self._leaving:
                    await child.end()
            return
        if self._serves(child):
            return
        await child.end()
        worker.socket_path.unlink(missing_ok=True)

    def _serves(self, child: sandbox.Child | UnitChild) -> bool:
        """Whether there is a connection to this worker."""
        return any(one.child is child for one in self._connections())

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._settings.idle_timeout_s))
            limit = time.monotonic() - self._settings.idle_timeout_s
            for worker in self._connections():
                if not worker.busy and worker.idle_since < limit:
                    await self._end(worker)
