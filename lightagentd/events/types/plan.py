"""What becomes of a session's plan."""

from __future__ import annotations

from typing import Literal

from lightagentd.events.types.event_type import Kind, Objects, Text


class PlanBegun(Kind, topic="plan.begun", type="begun", source="agent"):
    """Plan mode began: from now on nothing runs but what observes."""

    by: int | None
    """The uid of who asked for it; null when the agent did."""


class PlanReady(Kind, topic="plan.ready", type="ready", source="agent"):
    """There is a plan to look at."""

    title: Text
    tasks: Objects
    """`id`, `text` and `check` of each."""
    by: int | None = None
    """The uid of who gave it; absent when the agent proposed it."""


class PlanApplying(Kind, topic="plan.applying", type="applying", source="agent"):
    """A person had the plan applied."""

    by: int
    tasks: int


class PlanTask(Kind, topic="plan.task", type="task", source="agent"):
    """A task of the plan is in another state."""

    task: Text
    state: Literal["pending", "running", "done", "failed", "skipped"]
    by: int | None = None
    """The uid of who had it skipped."""
    note: Text = ""
    """Why it failed."""


class PlanCompleted(Kind, topic="plan.completed", type="completed", source="agent"):
    """All tasks are done, or were skipped."""

    done: int
    skipped: int


class PlanEnded(Kind, topic="plan.ended", type="ended", source="agent"):
    """The plan was dropped."""

    by: int
