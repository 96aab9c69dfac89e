"""The supervision of one agent: its state, the tasks that run its turns, and its restarts.

An unexpected error ends its turn and fails the agent: the other turns are cancelled, and the conversations
are read from the history again. After a pause, which doubles with each failure, the agent continues with the
waiting prompts. Other agents are not affected. The agent owns its `Supervision`, which owns the tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from lightagentd.agents.sessions.recovery import end_stored_turns
from lightagentd.agents.turn_loop import TurnLoop
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import LightagentError
from lightagentd.events.context import own_task, within
from lightagentd.events.types.daemon import AgentFailed, AgentRestarted, AgentStarted, AgentStopped
from lightagentd.events.types.event_type import EventType

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.parts import SharedParts
    from lightagentd.agents.sessions.session import Session

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_LOADED_SESSIONS = 16
"""Only so many idle sessions of an agent keep their messages in memory, those used last."""
_LOADED_CHARS = 4 << 20
"""The length of these messages in all: a prompt may have millions of characters."""


class Supervision:
    """Starts, stops and restarts an agent. `tasks` has one task for each session with queued turns."""

    def __init__(self, agent: Agent, shared: SharedParts) -> None:
        self.state = "stopped"
        self._loaded: OrderedDict[Session, int] = OrderedDict()
        """The sessions whose messages are in memory, with their length; the one used last at the end."""
        self.problem = ""
        self.restarts = 0
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._agent = agent
        self._shared = shared
        self._changing = asyncio.Lock()
        """Held by a start or a stop, which may be asked for from several sides at once."""
        self._restarter: asyncio.Task[None] | None = None
        self._failure = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S
        self._draining = False

    async def start(self) -> None:
        """Start with the sessions of the history. Raises LightagentError; then the agent is stopped."""
        async with self._changing:
            if self.state != "running":
                await uninterrupted(self._start())

    async def stop(self) -> None:
        """Cancel the running turns and stop. Queued prompts stay stored, for the next start; so do turns that
        wait for an approval, when the whole daemon stops.
        """
        async with self._changing:
            if self.state != "stopped":
                await uninterrupted(self._stop())

    async def drain(self) -> None:
        """Wait until no turn runs, and begin none; queued prompts stay stored. Turns that wait for an
        approval were suspended before (`Approvals.suspend`).
        """
        self._draining = True
        await self._idle()

    async def end_all_turns(self) -> None:
        """During an emergency stop: wait until every turn has ended. This includes the turns that the next
        start would run: prompts of a stopped agent, and turns whose end could not be stored.

        Raises StorageError when their end cannot be stored; the turns end all the same.
        """
        shared, agent = self._shared, self._agent
        async with self._changing:
            await self._idle()
            if self.state == "failed":
                await uninterrupted(self._start())  # which takes up what waits, and that ends at once
            await self._idle()
            ending = end_stored_turns(
                shared.history,
                shared.asked,
                shared.panic.error(),
                agent=agent.name,
                sessions=agent.sessions,
            )
            await uninterrupted(ending)

    def fail(self, why: BaseException) -> None:
        """Begin no more turns, and restart the agent."""
        if self.state == "stopped":
            return
        self.state = "failed"
        self.problem = f"{type(why).__name__}: {why}"
        _log.error("agent %s failed", self._agent.name, exc_info=why)
        self._failure.set()

    def run(self, session: Session) -> None:
        """Run the queued turns of a session, unless a task already does."""
        if session.id not in self.tasks and session.queue and self._may_begin(session):
            task = own_task(self._work_off(session), name=f"session-{session.id}")
            self.tasks[session.id] = task
            task.add_done_callback(lambda done: self._worked_off(session, done))
        elif session.id not in self.tasks and not self._draining:
            self._shared.mail.wake(self._agent, session)

    # Starts and stops

    async def _start(self) -> None:
        await self._end()
        try:
            await self._begin()
        except LightagentError:
            self.state = "stopped"
            self._agent.release_queues()
            raise
        self._restarter = own_task(self._restart_on_failure(), name=f"agent-{self._agent.name}")
        await self._tell(AgentStarted())
        self._shared.watches.agent_started(self._agent.name)

    async def _stop(self) -> None:
        self.state, self.problem = "stopped", ""
        await self._end()
        self._agent.release_queues()
        await self._shared.watches.agent_stopped(self._agent.name)
        await self._tell(AgentStopped())

    async def _begin(self) -> None:
        await self._agent.begin()
        self.state, self.problem = "running", ""
        for session in self._agent.sessions.values():
            await self._shared.plans.resume(self._agent, session)
            self.run(session)

    async def _end(self) -> None:
        """End the restarts and the turns, and close the model clients."""
        if self._restarter is not None:
            self._restarter.cancel()
            await asyncio.wait([self._restarter])
            self._restarter = None
        self._failure.clear()
        await self._end_turns()

    async def _end_turns(self) -> None:
        while self.tasks:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.wait(list(self.tasks.values()))
        await self._agent.let_go()

    async def _idle(self) -> None:
        """Wait until no turn runs."""
        while self.tasks:
            await asyncio.wait(list(self.tasks.values()))

    async def _restart_on_failure(self) -> None:
        while True:
            await self._failure.wait()
            self._failure.clear()
            pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S)
            await self._end_turns()
            with contextlib.suppress(LightagentError):  # the history says so itself in the journal
                await self._tell(AgentFailed(message=self.problem, pause_s=pause_s))
            await asyncio.sleep(pause_s)
            try:
                await self._begin()
                self.restarts += 1
                await self._tell(AgentRestarted())
            except Exception as err:  # noqa: BLE001 - whatever it is, the agent is tried again
                self.fail(err)

    async def _tell(self, kind: EventType) -> None:
        with within(agent=self._agent.name):
            await self._shared.history.append(kind.event())

    # The task of a session

    def _may_begin(self, session: Session) -> bool:
        """Whether the next turn may run. In a paused session, a turn that began before a restart may
        continue, and a cancelled turn may end.
        """
        first = session.queue[0]
        if self.state != "running" or session.compacting or (self._draining and first.above is None):
            return False
        return first.cancelled or not (session.deleted or (session.record.paused and first.resumed is None))

    def _worked_off(self, session: Session, task: asyncio.Task[None]) -> None:
        self.tasks.pop(session.id, None)
        session.stream.ring()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self.run(session)
        self._loaded.pop(session, None)
        self._loaded[session] = session.loaded_chars
        while len(self._loaded) > _LOADED_SESSIONS or sum(self._loaded.values()) > _LOADED_CHARS:
            oldest, _ = self._loaded.popitem(last=False)
            if oldest.id not in self.tasks:
                oldest.forget_messages()

    async def _work_off(self, session: Session) -> None:
        """Run the queued turns of a session, one after the other."""
        while session.queue and self._may_begin(session):
            with contextlib.suppress(LightagentError):  # the turn reads it again, and ends with that
                await session.load()
            if not session.queue or not self._may_begin(session):
                continue
            parts = self._agent.running_parts()
            session.running = turn = session.queue.popleft()
            loop = TurnLoop(turn, parts, self)
            turn.task = asyncio.create_task(loop.run(), name=turn.trace_id)
            try:
                await asyncio.wait([turn.task])
            except asyncio.CancelledError:
                # Only a stop or a failure of the agent cancels this task; the turn ends first.
                if not turn.begun:
                    session.queue.appendleft(turn)
                turn.task.cancel()
                await uninterrupted(asyncio.wait([turn.task]))
                raise
            finally:
                session.running = None
                if turn.task.done() and not turn.task.cancelled() and (error := turn.task.exception()):
                    self.fail(error)
            self._pause_s = FIRST_PAUSE_S if self.state == "running" else self._pause_s
            if turn.over.is_set():
                await self._shared.plans.after_turn(self._agent, session, turn)
