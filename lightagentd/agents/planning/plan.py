"""A plan: tasks that an agent proposes, a person reviews, and the agent then carries out one by one.

A plan belongs to a session. Its phase goes from `drafting` to `ready` when there is a plan to review, to
`applying` when the person starts it, and to `completed`. While it is drafting or ready, only calls that
observe run in the session (`policy.decide`). `plans` moves it from phase to phase.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightagentd import api
from lightagentd.errors import PlanConflict
from lightagentd.events.history import Change
from lightagentd.events.model import dump_json
from lightagentd.events.store.states import checked, decoding

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session

Phase = Literal["drafting", "ready", "applying", "completed"]
TaskState = Literal["pending", "running", "done", "failed", "skipped"]
DRAFTING: tuple[Phase, ...] = ("drafting", "ready")
"""The phases in which nothing but what observes may run."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task. `check` is a shell command that observes and must end with status 0; empty for none."""

    id: str
    text: str
    check: str = ""
    state: TaskState = "pending"
    note: str = ""
    """Why it failed."""
    trace_id: str = ""
    """Its last turn."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Task:
        """The task that was stored. Raises TypeError or ValueError when it is not valid."""
        found = cls(**checked(value, **dict.fromkeys(("id", "text", "check", "note", "trace_id"), str)))
        if found.state not in get_args(TaskState):
            raise ValueError("its state is not known")
        return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one session, as it is stored."""

    session: str
    phase: Phase
    title: str = ""
    tasks: tuple[Task, ...] = ()
    stopped_at: str = ""
    """The task that failed, while it is being applied: a person has to choose."""
    problem: str = ""
    """Why the newest answer that was meant as a plan was not taken."""
    caller: int | None = None
    """The uid on whose word it is applied, and its tasks run."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Plan:
        """The plan that was stored. Raises HistoryDamaged."""
        texts = ("session", "title", "stopped_at", "problem")
        with decoding("plans", str(value.get("session"))):
            checked(value, tasks=list, caller=(int, type(None)), **dict.fromkeys(texts, str))
            if value["phase"] not in get_args(Phase):
                raise ValueError("its phase is not known")
            return cls(**{**value, "tasks": tuple(Task.from_dict(task) for task in value.get("tasks", ()))})

    def to_dict(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "phase": self.phase,
            "title": self.title,
            "tasks": [vars(task) for task in self.tasks],
            "stopped_at": self.stopped_at,
            "problem": self.problem,
            "caller": self.caller,
        }

    def change(self) -> Change:
        """The change of state that stores this plan."""
        return Change(state="plans", key=self.session, value=self.to_dict())

    @property
    def digest(self) -> str:
        """The digest of the title, the tasks and their checks, by which a person names what they read."""
        read = [self.title, [[task.id, task.text, task.check] for task in self.tasks]]
        return hashlib.sha256(dump_json(read)).hexdigest()[:32]

    @property
    def running(self) -> Task | None:
        """The task whose turn is queued, runs or waits for a person."""
        return next((task for task in self.tasks if task.state == "running"), None)

    @property
    def next(self) -> Task | None:
        """The first task that has not begun."""
        return next((task for task in self.tasks if task.state == "pending"), None)

    def task(self, task_id: str) -> Task:
        return next(task for task in self.tasks if task.id == task_id)

    def with_task(self, task_id: str, *, state: TaskState, note: str = "", trace_id: str = "") -> Plan:
        """The plan with one task in another state; the plan stops at a failed task."""
        tasks = tuple(
            replace(task, state=state, note=note, trace_id=trace_id or task.trace_id)
            if task.id == task_id
            else task
            for task in self.tasks
        )
        return replace(self, tasks=tasks, stopped_at=task_id if state == "failed" else "")

    def count(self, state: TaskState) -> int:
        return sum(task.state == state for task in self.tasks)


def fresh(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks, reset to their state before the start."""
    return tuple(Task(id=task.id, text=task.text, check=task.check) for task in tasks)


def shown(session: str, plan: Plan | None) -> api.Plan:
    """The plan as callers see it; the phase is `off` without a plan."""
    if plan is None:
        note = "There is no plan in this session."
        return api.Plan(session=session, phase="off", title="", tasks=[], stopped_at="", note=note, digest="")
    return api.Plan(
        session=session,
        phase=plan.phase,
        title=plan.title,
        tasks=[api.PlanTask(**asdict(task)) for task in plan.tasks],
        stopped_at=plan.stopped_at,
        note=_note(plan),
        digest=plan.digest,
    )


def _note(plan: Plan) -> str:
    if plan.phase == "drafting":
        return f"Prompts draft the plan; only what observes runs. {plan.problem}".strip()
    if plan.phase == "ready":
        tasks = "1 task waits" if len(plan.tasks) == 1 else f"{len(plan.tasks)} tasks wait"
        return f"{tasks} to be applied; prompts revise the plan. {plan.problem}".strip()
    counts = Counter(task.state for task in plan.tasks)
    order: tuple[TaskState, ...] = ("done", "running", "failed", "skipped", "pending")
    counted = ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
    stopped = f" Task {plan.stopped_at} failed: retry it, skip it or abort." if plan.stopped_at else ""
    return f"Tasks: {counted}.{stopped}"


def to_apply(session: Session, choice: str) -> Plan:
    """The plan, if it can be applied or continued. Raises PlanConflict."""
    plan = session.plan
    if plan is not None and plan.phase == "applying":
        if plan.stopped_at and choice:
            return plan
        if choice:
            raise PlanConflict(
                "No task has failed, so there is nothing to choose.",
                suggestion="Watch how it goes on, or leave plan mode with: lactl plan end",
                field="choice",
            )
        if plan.stopped_at:
            raise PlanConflict(
                f"The plan stopped at the task {plan.stopped_at}, which failed.",
                suggestion="Say how it goes on: retry, skip or abort.",
                field="choice",
            )
        raise PlanConflict(
            "The plan is being applied already.", suggestion="See how it goes with: lactl plan show"
        )
    if choice:
        raise PlanConflict(
            "No plan is being applied, so there is nothing to choose.",
            suggestion="Without a choice a plan that is ready begins.",
            field="choice",
        )
    if plan is None or plan.phase != "ready":
        how = "completed" if plan is not None and plan.phase == "completed" else "not ready"
        raise PlanConflict(
            f"The plan is {how}." if plan is not None else "There is no plan in this session.",
            suggestion="Have one drafted after 'lactl plan begin', or give one with: lactl plan set",
        )
    if session.queue or session.storing or (session.running and not session.running.over.is_set()):
        raise PlanConflict(
            "A prompt of this session is still being worked on, and may revise the plan.",
            suggestion="Wait for its answer, or cancel it with: lactl sessions cancel",
        )
    return plan


def check_not_applying(plan: Plan | None) -> None:
    if plan is not None and plan.phase == "applying":
        raise PlanConflict(
            "The plan of this session is being applied.",
            suggestion="Wait until it is completed, or leave it with: lactl plan end",
        )
