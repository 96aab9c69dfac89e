"""Drafts and applies plans: moves a session's plan from one phase to the next.

Each change of a plan commits with its event (`plan.*`). A task is one turn of the session. It is done when
the turn ended without an error and its check passed; this is stored together with the turn's end. After a
failed task a person chooses how to go on. Prompts that arrive while a plan is applied run after the current
task and before the next one.

A plan changes one step at a time. A change that forbids more takes effect before it is stored, one that
allows more afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lightagentd.agents.planning import task as plan_task
from lightagentd.agents.planning.plan import (
    DRAFTING,
    Plan,
    Task,
    TaskState,
    check_not_applying,
    fresh,
    shown,
    to_apply,
)
from lightagentd.agents.planning.proposal import proposal_in_text, ready_plan
from lightagentd.agents.turn import Asked
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.errors import (
    InvalidArgument,
    LightagentError,
    PlanConflict,
    PlanInvalid,
    SessionPaused,
    StorageError,
)
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import within
from lightagentd.events.types import plan as kinds
from lightagentd.events.types.event_type import EventType

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.parts import AgentParts
    from lightagentd.agents.sessions.session import Lapsed, Session
    from lightagentd.agents.turn import Turn

_log = logging.getLogger(__name__)

CHOICES = ("retry", "skip", "abort")
"""How it goes on after a task that failed."""


class Plans:
    """The daemon has one; all its state is in the sessions."""

    def __init__(self, history: History) -> None:
        self._history, self._redactor = history, history.redactor
        self._locks: WeakKeyDictionary[Session, asyncio.Lock] = WeakKeyDictionary()

    async def begin(self, session: Session, *, by: int) -> Plan:
        """Begin to draft; a plan that is drafting or ready stays. A running call is not stopped.

        Raises PlanConflict while a plan is applied, StorageError.
        """
        return await uninterrupted(self._begin(session, by))

    async def set(self, session: Session, value: Any, *, by: int) -> Plan:
        """Take a plan from a person. Raises PlanInvalid, PlanConflict while one is applied, StorageError."""
        return await uninterrupted(self._take(session, value, by=by))

    async def propose(self, session: Session, value: Any, turn: Turn) -> Plan:
        """Take a plan from the agent. Raises as `set`, and PlanConflict unless one is being drafted."""
        return await uninterrupted(self._take(session, value, turn=turn))

    async def apply(
        self, agent: Agent, session: Session, choice: str, *, by: int, digest: str = ""
    ) -> Plan | None:
        """Start a ready plan, or continue with one of CHOICES after a failed task. Gives the plan; None when
        it was aborted. With `digest`, the plan must have this digest.

        Raises PlanConflict, InvalidArgument, SessionPaused, AgentNotRunning, Panicked, StorageError.
        """
        if choice and choice not in CHOICES:
            raise InvalidArgument(
                f"{choice[:60]!r} is no choice.", field="choice", suggestion=f"Use {', '.join(CHOICES)}."
            )
        if choice != "abort":
            agent.panic.check()
            agent.running_parts()
            if session.record.paused:
                raise SessionPaused(
                    f"The session {session.id} is paused.",
                    suggestion=f"Run: lactl sessions resume {session.id}",
                )
        return await uninterrupted(self._apply(agent, session, choice, by, digest))

    async def end(self, agent: Agent, session: Session, *, by: int) -> None:
        """Leave plan mode: drop the plan and cancel its running task. Raises StorageError."""
        await uninterrupted(self._end(agent, session, by))

    async def check_task(self, turn: Turn, parts: AgentParts) -> None:
        """After a turn's answer: check whether its task is done."""
        task = _task_of(turn)
        if task is not None and task.check:
            turn.task_note = await plan_task.check(task, turn, parts)

    @contextlib.asynccontextmanager
    async def ending(
        self, session: Session, turn: Turn, failure: LightagentError | None
    ) -> AsyncIterator[Lapsed]:
        """A block around storing a turn's end: gives what to store with it for the plan."""
        async with self._lock(session):
            plan, events = self._after(session, turn, failure)
            yield events, () if plan is None else (plan.change(),)
            if plan is not None:
                session.plan = plan
                _tell(session, turn.task_id, turn)

    async def after_turn(self, agent: Agent, session: Session, turn: Turn) -> None:
        """After a turn's end: go on to the next task, if a plan is applied."""
        if session.plan is not None and session.plan.phase == "applying":
            await uninterrupted(self._go_on(agent, session, turn))

    async def resume(self, agent: Agent, session: Session) -> None:
        """At the agent's start, after its unfinished turns were found: continue the plan.

        A task whose turn is gone has failed. Raises StorageError.
        """
        if not session.deleted and (session.plan or any(turn.task_id for turn in session.queue)):
            await uninterrupted(self._resume(agent, session))

    async def _begin(self, session: Session, by: int) -> Plan:
        async with self._lock(session):
            plan = session.plan
            check_not_applying(plan)
            if plan is not None and plan.phase in DRAFTING:
                return plan
            drafted = Plan(session=session.id, phase="drafting")
            await self._forbid(session, drafted, _event(session, kinds.PlanBegun(by=by)))
            return drafted

    async def _take(
        self, session: Session, value: Any, *, by: int | None = None, turn: Turn | None = None
    ) -> Plan:
        async with self._lock(session):
            plan = session.plan
            check_not_applying(plan)
            if turn is not None and (plan is None or plan.phase not in DRAFTING):
                raise PlanConflict(
                    "No plan is drafted in this session.",
                    suggestion="Do what you are asked without one, or ask the user to begin plan mode.",
                )
            ready = ready_plan(session.id, value, self._redactor)
            events = [] if plan and plan.phase in DRAFTING else [_event(session, kinds.PlanBegun(by=by))]
            events.append(_event(session, _proposed(ready, by), turn))
            await self._forbid(session, ready, *events, turn=turn)
            return ready

    async def _apply(self, agent: Agent, session: Session, choice: str, by: int, digest: str) -> Plan | None:
        async with self._lock(session):
            plan = replace(to_apply(session, choice), caller=by)
            if digest and digest != plan.digest:
                raise PlanConflict(
                    "The plan is not the one that was read: it was revised meanwhile.",
                    suggestion="Look at it again with: lactl plan show",
                    field="digest",
                )
            if choice == "abort":
                await self._drop(session, by)
                return None
            if choice == "retry":
                await self._start(agent, session, plan, plan.task(plan.stopped_at))
            elif choice == "skip":
                skipped = plan.with_task(plan.stopped_at, state="skipped")
                event = _task_event(session, plan.stopped_at, "skipped", by=by)
                await self._start(agent, session, skipped, skipped.next, event)
            else:
                applying = replace(plan, phase="applying", problem="", tasks=fresh(plan.tasks))
                event = _event(session, kinds.PlanApplying(by=by, tasks=len(plan.tasks)))
                await self._start(agent, session, applying, applying.next, event)
        agent.go_on(session)
        return session.plan

    async def _end(self, agent: Agent, session: Session, by: int) -> None:
        async with self._lock(session):
            if session.plan is None:
                return
            tasks = _turns_of_tasks(session)
            await self._drop(session, by)
            for turn in tasks:
                turn.cancel()
        agent.go_on(session)

    async def _drop(self, session: Session, by: int) -> None:
        session.check_there()
        gone = Change(state="plans", key=session.id, value=None)
        await self._history.append(_event(session, kinds.PlanEnded(by=by)), changes=(gone,))
        session.plan = None
        _tell(session)

    async def _forbid(
        self, session: Session, plan: Plan, *events: NewEvent, turn: Turn | None = None
    ) -> None:
        """Store a plan that is drafting or ready. It takes effect before, and is undone if storing fails."""
        session.check_there()
        before, session.plan = session.plan, plan
        try:
            await self._history.append(*events, changes=(plan.change(),))
        except LightagentError:
            session.plan = before
            raise
        _tell(session, turn=turn)

    async def _start(
        self, agent: Agent, session: Session, plan: Plan, task: Task | None, *events: NewEvent
    ) -> None:
        """Store a plan in application with the turn of its next task; without a next task it is completed."""
        with within(caller=plan.caller):  # also where it goes on after somebody else's prompt
            await self._begin_next(agent, session, plan, task, *events)

    async def _begin_next(
        self, agent: Agent, session: Session, plan: Plan, task: Task | None, *events: NewEvent
    ) -> None:
        if task is None:
            session.check_there()
            done = replace(plan, phase="completed")
            await self._history.append(*events, _completed(session, done), changes=(done.change(),))
            session.plan = done
            _tell(session)
            return

        def of_plan(turn: Turn) -> tuple[Plan, Sequence[NewEvent]]:
            turn.task_id = task.id
            running = plan.with_task(task.id, state="running", trace_id=turn.trace_id)
            return running, (*events, _task_event(session, task.id, "running"))

        prompt = plan_task.prompt_of(plan, task)
        await session.enqueue(Asked(prompt=prompt), max_queue=0, of_plan=of_plan)
        _tell(session, task.id)
        agent.go_on(session)

    async def _go_on(self, agent: Agent, session: Session, turn: Turn) -> None:
        async with self._lock(session):
            plan = session.plan
            if plan is None or plan.phase != "applying" or plan.stopped_at or session.deleted:
                return
            if plan.running is None:
                await self._start(agent, session, plan, plan.next)
            elif plan.running.trace_id == turn.trace_id and isinstance(turn.failure, StorageError):
                try:  # its end could not be stored: the plan must not wait for it for ever
                    await self._fail(session, plan, plan.running, turn.failure.message)
                except StorageError as err:
                    _log.error("the plan of %s does not go on: %s", session.id, err.message)

    async def _resume(self, agent: Agent, session: Session) -> None:
        async with self._lock(session):
            plan = session.plan
            wanted = plan.running.trace_id if plan is not None and plan.running is not None else ""
            tasks = _turns_of_tasks(session)
            for turn in tasks:
                if turn.trace_id != wanted:
                    turn.cancel()  # its plan ended before it did
            if plan is None or plan.phase != "applying" or plan.stopped_at:
                return
            if plan.running is None:
                await self._start(agent, session, plan, plan.next)
            elif wanted not in {turn.trace_id for turn in tasks}:
                await self._fail(
                    session, plan, plan.running, plan_task.ended_with(self._history.queries, wanted)
                )

    def _after(
        self, session: Session, turn: Turn, failure: LightagentError | None
    ) -> tuple[Plan | None, Sequence[NewEvent]]:
        """The plan after the end of a turn, and its events; None when nothing changes."""
        task = _task_of(turn)
        if task is not None and session.plan is not None:
            failed = turn.task_note if failure is None else failure.message
            return _after_task(session, session.plan, task, plan_task.note(failed, self._redactor))
        if failure is not None or session.plan is None or session.plan.phase not in DRAFTING:
            return None, ()
        if (value := proposal_in_text(turn.answer)) is None:
            return None, ()
        try:
            ready = ready_plan(session.id, value, self._redactor)
        except PlanInvalid as err:
            why = f"The answer was not taken as a plan: {err.message}"
            problem = plan_task.note(why, self._redactor)
            turn.stream.emit(turn_events.Notice(code=err.code, message=problem))
            return replace(session.plan, problem=problem), ()
        return ready, (_event(session, _proposed(ready, None), turn),)

    async def _fail(self, session: Session, plan: Plan, task: Task, note: str) -> None:
        failed = plan.with_task(task.id, state="failed", note=plan_task.note(note, self._redactor))
        with within(caller=plan.caller):
            event = _task_event(session, task.id, "failed", note=failed.task(task.id).note)
        await self._history.append(event, changes=(failed.change(),))
        session.plan = failed
        _tell(session, task.id)

    def _lock(self, session: Session) -> asyncio.Lock:
        return self._locks.setdefault(session, asyncio.Lock())


def _after_task(session: Session, plan: Plan, task: Task, failed: str) -> tuple[Plan, Sequence[NewEvent]]:
    """The plan after the turn of a task; `failed` says why the task is not done, if so."""
    after = plan.with_task(task.id, state="failed" if failed else "done", note=failed)
    why = {"note": failed} if failed else {}
    events = [_task_event(session, task.id, after.task(task.id).state, **why)]
    if not failed and after.next is None:
        after = replace(after, phase="completed")
        events.append(_completed(session, after))
    return after, events


def _task_of(turn: Turn) -> Task | None:
    """The task that a turn works on, according to the plan."""
    plan = turn.session.plan
    running = plan.running if plan is not None and turn.task_id else None
    return running if running is not None and running.trace_id == turn.trace_id else None


def _turns_of_tasks(session: Session) -> list[Turn]:
    turns = [*session.queue, *([session.running] if session.running else [])]
    return [turn for turn in turns if turn.task_id]


def _event(session: Session, kind: EventType, turn: Turn | None = None) -> NewEvent:
    with session.context(turn):
        return kind.event()


def _task_event(session: Session, task: str, state: TaskState, **data: Any) -> NewEvent:
    return _event(session, kinds.PlanTask(task=task, state=state, **data))


def _completed(session: Session, plan: Plan) -> NewEvent:
    return _event(session, kinds.PlanCompleted(done=plan.count("done"), skipped=plan.count("skipped")))


def _proposed(plan: Plan, by: int | None) -> EventType:
    tasks = [{"id": task.id, "text": task.text, "check": task.check} for task in plan.tasks]
    person = {} if by is None else {"by": by}
    return kinds.PlanReady(title=plan.title, tasks=tasks, **person)


def _tell(session: Session, task: str = "", turn: Turn | None = None) -> None:
    """Tell the watchers of the session, or of the turn, the state of the plan."""
    stream = session.stream if turn is None else turn.stream
    stream.emit(turn_events.PlanChanged(plan=asdict(shown(session.id, session.plan)), task=task))
