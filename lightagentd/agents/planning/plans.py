"""Drafts plans and applies them: what moves a session's plan from one phase to the next.

Each change of a plan commits with its event (`plan.*`). A task is one turn of the session; it is done when
that turn ended without an error and its check passed, and that is stored together with the turn's end. After
the first task that failed a person chooses. Prompts that come while a plan is applied wait for the running
task, and go before the next one.

One change at a time is made to a plan. What forbids more takes effect before it is stored, and what allows
more after it.
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
from lightagentd.agents.planning.proposal import proposal, proposal_in_text
from lightagentd.agents.tool_calls.results import cap_text
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
from lightagentd.events.queries import Filter
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
STOPPED = "The daemon stopped in the middle; look at what the task did until then before you try it again."


class Plans:
    """One for the daemon; it holds nothing but what is in the sessions."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._locks: WeakKeyDictionary[Session, asyncio.Lock] = WeakKeyDictionary()

    async def begin(self, session: Session, *, by: int) -> Plan:
        """Begin to draft; a plan that is drafted or ready stays. A call that runs already is not stopped.

        Raises PlanConflict while a plan is applied, StorageError.
        """
        return await uninterrupted(self._begin(session, by))

    async def set(self, session: Session, value: Any, *, by: int) -> Plan:
        """Have a plan of a person's. Raises PlanInvalid, PlanConflict while one is applied, StorageError."""
        return await uninterrupted(self._take(session, value, by=by))

    async def propose(self, session: Session, value: Any, turn: Turn) -> Plan:
        """Have a plan of the agent's. Raises as `set`, and PlanConflict unless one is drafted."""
        return await uninterrupted(self._take(session, value, turn=turn))

    async def apply(
        self, agent: Agent, session: Session, choice: str, *, by: int, digest: str = ""
    ) -> Plan | None:
        """Begin with the first task of a plan that is ready, or go on with one of CHOICES after a task that
        failed. Gives the plan; None when it was aborted. With `digest` only the plan that has it is meant.

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
        """Leave plan mode: the plan is dropped, and a task that runs is cancelled. Raises StorageError."""
        await uninterrupted(self._end(agent, session, by))

    async def check_task(self, turn: Turn, parts: AgentParts) -> None:
        """At the end of a turn that came to its answer: see whether the task that it worked on is done."""
        task = _task_of(turn)
        if task is not None and task.check:
            turn.task_note = await plan_task.check(task, turn, parts)

    @contextlib.asynccontextmanager
    async def ending(
        self, session: Session, turn: Turn, failure: LightagentError | None
    ) -> AsyncIterator[Lapsed]:
        """Around storing how a turn ended: gives what is to be stored with it for the plan."""
        async with self._lock(session):
            plan, events = self._after(session, turn, failure)
            yield events, () if plan is None else (plan.change(),)
            if plan is not None:
                session.plan = plan
                _tell(session, turn.task_id, turn)

    async def after_turn(self, agent: Agent, session: Session, turn: Turn) -> None:
        """A turn of the session is over: go on to the next task, if a plan is applied."""
        if session.plan is not None and session.plan.phase == "applying":
            await uninterrupted(self._go_on(agent, session, turn))

    async def resume(self, agent: Agent, session: Session) -> None:
        """At the agent's start, once its unfinished turns were found: go on where the plan was.

        A task whose turn is not there any more has failed. Raises StorageError.
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
            ready = self._ready(session, value)
            events = [] if plan and plan.phase in DRAFTING else [_event(session, kinds.PlanBegun(by=by))]
            events.append(_event(session, _proposed(ready, by), turn))
            await self._forbid(session, ready, *events, turn=turn)
            return ready

    def _ready(self, session: Session, value: Any) -> Plan:
        """The plan that is proposed, as it will be stored: without secrets. Raises PlanInvalid."""
        title, tasks = proposal(value)
        plan = Plan(session=session.id, phase="ready", title=title, tasks=tasks)
        kept = Plan.from_dict(self._history.redactor.value(plan.to_dict()))
        for at, (task, before) in enumerate(zip(kept.tasks, tasks, strict=True)):
            if (task.check, task.id) != (before.check, before.id):
                raise PlanInvalid(
                    f"The check of the task {task.id} holds a secret, which is not stored.",
                    field=f"tasks[{at}].check",
                    suggestion="Have the command read it from a file.",
                )
        return kept

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
        """Store a plan that is drafted or ready. It is in force before, unless it cannot be stored."""
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
        """Store a plan that is applied, with the turn of its next task; without one it is completed."""
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
                await self._fail(session, plan, plan.running, self._ended_with(wanted))

    def _after(
        self, session: Session, turn: Turn, failure: LightagentError | None
    ) -> tuple[Plan | None, Sequence[NewEvent]]:
        """What the end of a turn makes of the plan, and the events that say so; None when nothing."""
        task = _task_of(turn)
        if task is not None and session.plan is not None:
            failed = turn.task_note if failure is None else failure.message
            return _after_task(session, session.plan, task, self._note(failed))
        if failure is not None or session.plan is None or session.plan.phase not in DRAFTING:
            return None, ()
        if (value := proposal_in_text(turn.answer)) is None:
            return None, ()
        try:
            ready = self._ready(session, value)
        except PlanInvalid as err:
            problem = self._note(f"The answer was not taken as a plan: {err.message}")
            turn.stream.emit(turn_events.Notice(code=err.code, message=problem))
            return replace(session.plan, problem=problem), ()
        return ready, (_event(session, _proposed(ready, None), turn),)

    def _ended_with(self, trace_id: str) -> str:
        """Why the turn of a task ended, when the plan was not told."""
        errors = self._history.select(Filter(trace=trace_id, topic="agent.error"), limit=1000)
        last = next((event for event in reversed(errors) if event.data and event.type != "fallback"), None)
        if last is None or last.data is None or last.type == "interrupted":
            return STOPPED
        return str(last.data.get("message", "")) or STOPPED

    async def _fail(self, session: Session, plan: Plan, task: Task, note: str) -> None:
        failed = plan.with_task(task.id, state="failed", note=self._note(note))
        with within(caller=plan.caller):
            event = _task_event(session, task.id, "failed", note=failed.task(task.id).note)
        await self._history.append(event, changes=(failed.change(),))
        session.plan = failed
        _tell(session, task.id)

    def _note(self, text: str) -> str:
        """A note as it will be stored: short, and without secrets."""
        return str(self._history.redactor.value(cap_text(text, plan_task.NOTE_BYTES)))

    def _lock(self, session: Session) -> asyncio.Lock:
        return self._locks.setdefault(session, asyncio.Lock())


def _after_task(session: Session, plan: Plan, task: Task, failed: str) -> tuple[Plan, Sequence[NewEvent]]:
    """The plan after the turn of a task; `failed` says why that is not done, if it is not."""
    after = plan.with_task(task.id, state="failed" if failed else "done", note=failed)
    why = {"note": failed} if failed else {}
    events = [_task_event(session, task.id, after.task(task.id).state, **why)]
    if not failed and after.next is None:
        after = replace(after, phase="completed")
        events.append(_completed(session, after))
    return after, events


def _task_of(turn: Turn) -> Task | None:
    """The task that a turn works on, while the plan takes it for that."""
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
    """Have whoever watches the session, or the turn, know how the plan stands."""
    stream = session.stream if turn is None else turn.stream
    stream.emit(turn_events.PlanChanged(plan=asdict(shown(session.id, session.plan)), task=task))
