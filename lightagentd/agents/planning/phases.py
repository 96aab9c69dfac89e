"""What can be done to a plan in which phase, and what whoever tries something else is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightagentd.agents.planning.plan import Plan
from lightagentd.errors import PlanConflict

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session


def to_apply(session: Session, choice: str) -> Plan:
    """The plan that can be applied, or go on. Raises PlanConflict."""
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
