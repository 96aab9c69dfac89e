"""What runs of flows do: when one begins and ends, and each change of a step's state."""

from __future__ import annotations

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import NOTICE, WARNING, Object, Reported, Text

_STATES = ("pending", "running", "success", "failed", "skipped", "waiting_approval", "cancelled")


class FlowStarted(Reported, topic="flow.run", type="started"):
    """A run of a flow begins, or goes on after it ended."""

    catalog = """A flow runs
    Somebody, a trigger or an agent had a flow run. The run goes on after a restart of the daemon.
    > How it stands: lactl flows runs"""
    message: Text
    run: Text
    flow: Text
    digest: Text
    """Of the definition."""
    inputs: Object
    again: Text = ""
    """Why it goes on: resume, rerun, or the run whose outputs it has."""


class FlowEnded(Reported, topic="flow.run", type="ended"):
    """A run of a flow is over."""

    catalog = """A run of a flow is over
    The message says how it ended.
    > What each step did: lactl flows runs, then lactl flows show RUN. To go on with one that failed: lactl
    flows resume RUN"""
    message: Text
    run: Text
    flow: Text
    state: Text
    code: Text = ""

    @classmethod
    def priority_of(cls, event: Event) -> str:
        return WARNING if (event.data or {}).get("state") == "failed" else cls.priority


class FlowStepMoved(Reported, topic="flow.step", types=_STATES):
    """A step of a run is in another state; the type says which."""

    message: Text
    run: Text
    flow: Text
    step: Text
    state: Text
    attempt: int
    output: Text = ""
    code: Text = ""
    waits_for: Text = ""
    """The approval or input that it waits for."""
    duration_ms: int = 0

    @property
    def event_type(self) -> str:
        return self.state

    @classmethod
    def priority_of(cls, event: Event) -> str:
        if event.type == "failed":
            return WARNING
        return NOTICE if event.type == "waiting_approval" else cls.priority

    @classmethod
    def catalog_of(cls, event_type: str) -> str:
        return _CATALOG[event_type]


_CATALOG = {
    "pending": """A step of a flow is to run again
    A person resumed the run, or had the step run again.
    > How the run stands: lactl flows runs""",
    "running": """A step of a flow runs
    An agent is asked, a tool is called, or another flow runs, as the flow says.
    > How the run stands: lactl flows runs""",
    "success": """A step of a flow is done
    Its output is kept with the run, and the step is not run again.
    > What it said: lactl flows show RUN""",
    "failed": """A step of a flow failed
    The message says why. Unless the flow says otherwise, nothing more of the run begins.
    > What it did: lactl flows show RUN. To try it again: lactl flows resume RUN""",
    "skipped": """A step of a flow was skipped
    What its condition asks for is not so, and what is behind it goes on.
    > How the run stands: lactl flows runs""",
    "waiting_approval": """A step of a flow waits for a person
    It needs an approval or an answer, or was stopped in the middle of what may have changed something.
    > What it asks: lactl approvals, lactl inputs""",
    "cancelled": """A step of a flow was cancelled
    A person cancelled the run, or a condition of the flow did.
    > How the run stands: lactl flows runs""",
}
