"""What becomes of a session's plan."""

from __future__ import annotations

from typing import Literal

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import EventType, Objects, Text


class PlanBegun(EventType, topic="plan.begun", type="begun", source="agent"):
    """Plan mode began: from now on nothing runs but what observes."""

    catalog = """A plan is drafted with @AGENT@
    The user with uid @CALLER_UID@ began plan mode in the session @SESSION@. Until the plan is applied,
    nothing runs in it but calls that observe; where the agent says plan_tools: none, no call at all.
    > To look at the plan: lactl plan show @SESSION@"""
    by: int | None
    """The uid of who asked for it; null when the agent did."""


class PlanReady(EventType, topic="plan.ready", type="ready", source="agent"):
    """There is a plan to look at."""

    catalog = """A plan of @AGENT@ is ready
    The agent, or the user, wrote a plan in the session @SESSION@, or wrote it anew. The history has its
    tasks. Nothing of it runs until the user applies it.
    > To look at it: lactl plan show @SESSION@
    > To apply it: lactl plan apply @SESSION@"""
    title: Text
    tasks: Objects
    """`id`, `text` and `check` of each."""
    by: int | None = None
    """The uid of who gave it; absent when the agent proposed it."""


class PlanApplying(EventType, topic="plan.applying", type="applying", source="agent"):
    """A person had the plan applied."""

    catalog = """A plan of @AGENT@ is applied
    The user with uid @CALLER_UID@ had the plan of the session @SESSION@ applied. Each task is a turn of its
    own; policy and approvals count in it as in every turn.
    > To see how it goes: lactl plan show @SESSION@"""
    by: int
    tasks: int


class PlanTask(EventType, topic="plan.task", type="task", source="agent"):
    """A task of the plan is in another state."""

    catalog = """A task of a plan of @AGENT@ began or ended
    The message names the task and its state: running, done, failed or skipped. A task is done when its turn
    ended without an error and its check passed. At the first that failed the plan stops, until the user says
    how it goes on.
    > To see why: lactl plan show @SESSION@
    > To go on: lactl plan apply @SESSION@ with --retry, --skip or --abort"""
    task: Text
    state: Literal["pending", "running", "done", "failed", "skipped"]
    by: int | None = None
    """The uid of who had it skipped."""
    note: Text = ""
    """Why it failed."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        return f"plan: task {data.get('task', '')} {data.get('state', '')}"


class PlanCompleted(EventType, topic="plan.completed", type="completed", source="agent"):
    """All tasks are done, or were skipped."""

    catalog = """A plan of @AGENT@ is completed
    Every task of the plan of the session @SESSION@ is done or was skipped, and the session is in normal mode
    again.
    > What was done: lactl plan show @SESSION@"""
    done: int
    skipped: int


class PlanEnded(EventType, topic="plan.ended", type="ended", source="agent"):
    """The plan was dropped."""

    catalog = """A plan of @AGENT@ was dropped
    The user with uid @CALLER_UID@ left plan mode in the session @SESSION@, or aborted its plan. What had
    not been applied until then is dropped, a task that ran is cancelled, and the session is in normal
    mode."""
    by: int
