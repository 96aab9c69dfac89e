"""A running agent: its sessions, the task of each session that has work, and its supervision.

The registry owns the agents. An agent owns its sessions, their tasks and its model clients. An error that
no turn expects ends that turn and fails the agent: its other turns are cancelled, its conversations are read
from the history again, and it goes on with the waiting prompts after a pause that doubles with each failure.
No other agent notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from lightagentd.agents.one_turn import end_turn, stays, take_steps
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.planning.plans import Plans
from lightagentd.agents.sessions.recovery import Left, end_stored_turns, take_up, unfinished_turns
from lightagentd.agents.sessions.session import Session, SessionRecord, check_room
from lightagentd.agents.turn import Step, Turn
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.agents.watches import Watches
from lightagentd.api import turn_events
from lightagentd.errors import AgentNotRunning, LightagentError
from lightagentd.events.context import own_task, within
from lightagentd.events.history import History
from lightagentd.events.types.daemon import AgentFailed, AgentRestarted, AgentStarted, AgentStopped
from lightagentd.events.types.event_type import Kind
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions.asked import Asked
from lightagentd.policy.questions.questions import Suspended
from lightagentd.quoted import Prompt
from lightagentd.redaction import off_loop

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_STILL_QUEUED = AgentNotRunning(
    "The agent stopped before this prompt's turn came.",
    suggestion="The prompt stays queued for its next start.",
)
_STILL_WAITING = AgentNotRunning(
    "The agent stopped while this turn waits for an approval, or for an answer.",
    suggestion="The turn goes on at its next start; lactl approvals and lactl inputs show the question.",
)
_LOADED_SESSIONS = 256
"""Idle sessions beyond this number do not keep their messages in memory."""
_LOADED_CHARS = 4 << 20
"""Nor does one with longer messages in all: a prompt may have millions of characters."""


class Agent:
    """One agent. `state` is stopped, running or failed; while failed it waits to be started again."""

    def __init__(
        self,
        name: str,
        make_parts: Callable[[], AgentParts],
        history: History,
        asked: Asked,
        plans: Plans,
        panic: Panic | None = None,
        waiting_bytes: Callable[[int], int] | None = None,
    ) -> None:
        """`waiting_bytes` says how large the prompts of one uid are that wait, with whatever agent."""
        self.name = name
        self._panic = panic or Panic()
        self.state = "stopped"
        self.problem = ""
        self.restarts = 0
        self.sessions: dict[str, Session] = {}
        self.parts: AgentParts | None = None
        self.calls: set[asyncio.Task[None]] = set()
        """The calls that people make just now, without a turn; each belongs to its caller."""
        self.watches: Watches | None = None
        """Is told when this agent starts and stops."""
        self._make_parts = make_parts
        self._history = history
        self._asked = asked
        self._plans = plans
        self._current: dict[int, Session] = {}
        """By owner: the session that was made the current one last; it may be deleted."""
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._waiting_bytes = waiting_bytes or self.waiting_bytes
        self._changing = asyncio.Lock()
        """Held by a start or a stop, which may be asked for from several sides at once."""
        self.left = Left()
        self.recovering = asyncio.Lock()
        """Held while the turns are ended or taken up that an earlier run left."""
        self._supervisor: asyncio.Task[None] | None = None
        self._failure = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S
        self._draining = False

    @property
    def panic(self) -> Panic:
        """The daemon's emergency stop."""
        return self._panic

    @property
    def turns_running(self) -> int:
        return sum(1 for session in self.sessions.values() if session.running)

    @property
    def turns_waiting(self) -> int:
        """How many of the running turns wait for a person's answer."""
        return sum(1 for session in self.sessions.values() if session.waiting)

    @property
    def turns_queued(self) -> int:
        return sum(len(session.queue) for session in self.sessions.values())

    def waiting_bytes(self, owner: int) -> int:
        """How large the prompts of one uid are that wait for their turns."""
        busy = (one for one in self.sessions.values() if one.queue or one.storing)
        return sum(one.waiting_bytes for one in busy if one.record.owner == owner)

    def current_of(self, owner: int) -> Session | None:
        """Where the prompts of one uid go that name no session: to the current one, else to the latest."""
        current = self._current.get(owner)
        if current is not None and current.is_current and not current.deleted:
            return current
        own = [one for one in self.sessions.values() if one.record.owner == owner and not one.deleted]
        return max(own, key=lambda one: (one.is_current, one.record.updated_us), default=None)

    async def start(self) -> None:
        """Start, with the sessions that the history has. Raises LightagentError; then it is stopped."""
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
        """Wait until no turn runs, and begin none; what is queued stays stored. Turns that wait for an
        approval have been told already to leave off (`Asked.suspend`).
        """
        self._draining = True
        while self._runners:
            await asyncio.wait(list(self._runners.values()))

    async def prompt(
        self,
        session: Session,
        prompt: Prompt | str,
        correlation_id: str = "",
        *,
        unattended: bool = False,
        outside: bool = False,
        becomes_current: bool = False,
    ) -> Turn:
        """Store a prompt, and run its turn when those before it are done.

        `unattended` says that nobody is there to be asked: what policy would ask about is refused. `outside`
        says that the prompt holds text from outside, which taints the session, and `becomes_current` that
        its owner chose the session.
        """
        return await self._prompt(
            session,
            prompt,
            correlation_id,
            stepwise=False,
            unattended=unattended,
            outside=outside,
            becomes_current=becomes_current,
        )

    async def run(self, session: Session, text: str) -> AsyncGenerator[Step, None]:
        """Prompt, and drive the turn: no step begins before the one before it was taken.

        Closing the generator cancels the turn. Raises what the turn ended with, if that was an error.
        """
        turn = await self._prompt(session, text, "", stepwise=True)
        assert turn.handed is not None
        try:
            while (step := await turn.handed.get()) is not None:
                yield step
                turn.handed.task_done()
        finally:
            turn.cancel()
            if turn.begun:
                await turn.over.wait()
        if turn.failure is not None:
            raise turn.failure

    def cancel(self, session: Session) -> int:
        """Cancel the running turn and the queue; says how many turns that were."""
        turns = [*session.queue, *([session.running] if session.running else [])]
        for turn in turns:
            turn.cancel()
        self._run_session(session)
        return len(turns)

    def cancel_running(self, why: LightagentError) -> int:
        """Cancel the running turns and calls; the turns end with `why`. Says how many there were; waits for
        nothing.
        """
        running = [session.running for session in self.sessions.values() if session.running]
        for turn in running:
            turn.cancel(why)
        for call in self.calls:
            call.cancel()
        return len(running) + len(self.calls)

    async def end_all_turns(self) -> None:
        """During an emergency stop: wait until every turn is ended, those that were queued too.

        Raises StorageError when that cannot be stored; the turns are ended all the same.
        """
        async with self._changing:
            while self._runners:
                await asyncio.wait(list(self._runners.values()))
            if self.state == "failed":
                await uninterrupted(self._start())  # which takes up what waits, and that ends at once
            while self._runners:
                await asyncio.wait(list(self._runners.values()))
            await uninterrupted(self._end_stored_turns())

    async def _end_stored_turns(self) -> None:
        """End what would run at the next start: the prompts of an agent that is stopped, and turns whose end
        could not be stored.
        """
        why = self._panic.error()
        await end_stored_turns(self._history, self._asked, why, agent=self.name, sessions=self.sessions)

    def adopt(self, session: Session) -> Session:
        """Take a session that was just stored into memory."""
        session.driver, session.take_current = self.run, self.take_current
        return self.sessions.setdefault(session.id, session)

    def take_current(self, session: Session) -> None:
        """A session was just stored as the current one of its owner."""
        before = self._current.get(session.record.owner)
        if before is not None:
            before.is_current = False
        session.is_current = True
        self._current[session.record.owner] = session

    def go_on(self, session: Session) -> None:
        """Begin what waits in a session, if nothing keeps it from that any more."""
        session.stream.ring()
        self._run_session(session)

    async def end_turns(self, session: Session, why: LightagentError) -> None:
        """For a session that is being deleted: wait until none of its turns is left, running or queued.

        Raises StorageError.
        """
        while True:
            for turn in [*session.queue, *([session.running] if session.running else [])]:
                turn.cancel(why)
            self._run_session(session)
            if runner := self._runners.get(session.id):
                await asyncio.wait([runner])
            elif session.storing:
                await self._history.append()  # appends keep their order
                await asyncio.sleep(0)
            else:
                break
        while session.queue:  # nothing runs them, since the agent does not run
            session.queue.popleft().finish(why, {"steps": 0, "duration_ms": 0})

    def end_watching(self) -> None:
        """Nobody hears of its sessions any more: it is gone, or the daemon stops."""
        for session in self.sessions.values():
            session.stream.end()

    def running_parts(self) -> AgentParts:
        """Raises AgentNotRunning."""
        if self.parts is None or self.state != "running":
            raise AgentNotRunning(
                f"The agent {self.name} is {self.state}{f': {self.problem}' if self.problem else ''}.",
                suggestion=f"Start it with: lactl agents start {self.name}",
            )
        return self.parts

    async def _prompt(
        self,
        session: Session,
        prompt: Prompt | str,
        correlation_id: str,
        *,
        stepwise: bool,
        unattended: bool = False,
        outside: bool = False,
        becomes_current: bool = False,
    ) -> Turn:
        prompt = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        clean = self._history.redactor.text
        prompt = await off_loop(lambda whole: whole.cleaned(clean), prompt)  # storing it finds it clean
        self._panic.check()
        parts = self.running_parts()
        check_room(session, prompt.text, self._waiting_bytes, parts.limits.max_prompt_bytes)
        try:
            turn = await session.enqueue(
                prompt,
                correlation_id=correlation_id,
                max_queue=parts.max_queue,
                stepwise=stepwise,
                unattended=unattended,
                outside=outside,
                becomes_current=becomes_current,
            )
        finally:
            self._run_session(session)  # also when the caller went away: what is stored is run
            if self.state == "stopped":
                self._release_queues()
        if turn in session.queue:
            ahead = session.queue.index(turn) + (session.running is not None)
            turn.stream.emit(turn_events.Queued(position=ahead))
        return turn

    async def _start(self) -> None:
        await self._cancel_supervisor()
        await self._end()
        try:
            await self._begin()
        except LightagentError:
            self.state = "stopped"
            self._release_queues()
            raise
        self._supervisor = own_task(self._supervise(), name=f"agent-{self.name}")
        await self._tell(AgentStarted())
        if self.watches is not None:
            self.watches.agent_started(self.name)

    async def _stop(self) -> None:
        self.state, self.problem = "stopped", ""
        await self._cancel_supervisor()
        await self._end()
        self._release_queues()
        if self.watches is not None:
            await self.watches.agent_stopped(self.name)
        await self._tell(AgentStopped())

    async def _begin(self) -> None:
        """Make the parts, read the sessions, end or queue what the last run left, and work. Raises."""
        parts = self._make_parts()
        plans = self._history.state("plans")
        for key, value in self._history.state("sessions").items():
            record = SessionRecord.from_dict(value)
            if record.agent == self.name:
                session = self.adopt(Session(record, self._history))
                session.plan = Plan.from_dict(plans[key]) if key in plans else None
                session.forget_messages()
        for value in self._history.state_below("current", f"{self.name}/").values():
            if current := self.sessions.get(str(value["session"])):
                self.take_current(current)
        async with self.recovering:
            for session_id, unfinished in unfinished_turns(self._history).items():
                session_found = self.sessions.get(session_id)
                if session_found is not None and not session_found.deleted:
                    self.left.count(await take_up(session_found, unfinished))
        self.parts, self.state, self.problem = parts, "running", ""
        for session in self.sessions.values():
            await self._plans.take_up(self, session)
            self._run_session(session)

    async def _end(self) -> None:
        """Cancel what runs, wait until it has ended, and let go of the model clients."""
        while runners := list(self._runners.values()):
            for task in runners:
                task.cancel()
            await asyncio.wait(runners)
        parts, self.parts = self.parts, None
        if parts is not None:
            for client in (*parts.clients, *parts.last_resort):
                await client.close()

    def _release_queues(self) -> None:
        """Tell those who wait that the agent stopped; the prompts stay stored."""
        for session in self.sessions.values():
            while session.queue:
                session.queue.popleft().finish(_STILL_QUEUED, {"steps": 0, "duration_ms": 0})

    async def _supervise(self) -> None:
        """Start the agent again whenever it fails."""
        while True:
            await self._failure.wait()
            self._failure.clear()
            pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S)
            await self._end()
            with contextlib.suppress(LightagentError):  # the history says so itself in the journal
                await self._tell(AgentFailed(message=self.problem, pause_s=pause_s))
            await asyncio.sleep(pause_s)
            try:
                await self._begin()
                self.restarts += 1
                await self._tell(AgentRestarted())
            except Exception as err:  # noqa: BLE001 - whatever it is, the agent is tried again
                self._fail(err)

    async def _cancel_supervisor(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
            self._supervisor = None
        self._failure.clear()

    def _fail(self, why: BaseException) -> None:
        """From here on no turn begins; the supervisor does the rest."""
        if self.state == "stopped":
            return
        self.state = "failed"
        self.problem = f"{type(why).__name__}: {why}"
        _log.error("agent %s failed", self.name, exc_info=why)
        self._failure.set()

    def _run_session(self, session: Session) -> None:
        if session.id not in self._runners and session.queue and self._may_begin(session):
            task = own_task(self._work_off(session), name=f"session-{session.id}")
            self._runners[session.id] = task
            task.add_done_callback(lambda done: self._runner_done(session, done))

    def _may_begin(self, session: Session) -> bool:
        """In a paused session goes on what had begun and waits since before a restart, and what is cancelled
        comes to its end.
        """
        if self.state != "running" or self._draining:
            return False
        first = session.queue[0]
        return first.cancelled or not (session.deleted or (session.record.paused and first.taken_up is None))

    def _runner_done(self, session: Session, runner: asyncio.Task[None]) -> None:
        self._runners.pop(session.id, None)
        session.stream.ring()
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._fail(error)
        self._run_session(session)
        too_much = len(self.sessions) > _LOADED_SESSIONS or session.loaded_chars > _LOADED_CHARS
        if too_much and session.id not in self._runners:
            session.forget_messages()

    async def _work_off(self, session: Session) -> None:
        """Run the queued turns of a session, one after the other."""
        while session.queue and self._may_begin(session):
            with contextlib.suppress(LightagentError):  # the turn reads it again, and ends with that
                await session.load()
            if not session.queue or not self._may_begin(session):
                continue
            parts = self.running_parts()
            turn = session.queue.popleft()
            session.running = turn
            turn.task = asyncio.create_task(self._run_turn(session, turn, parts), name=turn.trace_id)
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
                    self._fail(error)
            self._pause_s = FIRST_PAUSE_S if self.state == "running" else self._pause_s
            if turn.over.is_set():
                await self._plans.after_turn(self, session, turn)

    async def _run_turn(self, session: Session, turn: Turn, parts: AgentParts) -> None:
        """One turn to its stored end. An error that no turn should have fails the agent."""
        turn.begun = True
        error: BaseException | None = None
        with session.context(turn):
            try:
                self._panic.check()
                if turn.cancelled:
                    raise asyncio.CancelledError
                await take_steps(session, turn, parts, self._plans)
            except (LightagentError, Suspended) as err:
                error = err
            except asyncio.CancelledError as err:
                error = err
                raise
            except Exception as err:  # noqa: BLE001 - the boundary of a turn: recorded, and the agent restarts
                error = err
                self._fail(err)
            finally:
                if isinstance(error, Suspended) and turn.handed is not None:
                    error = asyncio.CancelledError()  # who drives the turn goes, and it with him
                if stays(turn, error, parts, failed=self.state == "failed"):
                    session.forget_messages()
                    turn.finish(_STILL_WAITING, {"steps": turn.steps_done, "duration_ms": turn.duration_ms})
                else:
                    await uninterrupted(end_turn(session, turn, error, parts, self._plans))

    async def _tell(self, kind: Kind) -> None:
        with within(agent=self.name):
            await self._history.append(kind.event())
