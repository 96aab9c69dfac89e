"""Flows, their runs and the steps of these."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FlowInput:
    """What a run is given. `type`: string, integer, number, boolean or list."""

    name: str
    type: str
    description: str
    required: bool
    default: Any


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One flow. `problem` says why it cannot be used, and is empty when it can."""

    name: str
    path: str
    description: str
    agent: str
    inputs: list[FlowInput]
    steps: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class FlowCheck:
    """What is wrong with a flow, and what looks strange, as sentences with file and line."""

    name: str
    faults: list[str]
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class FlowRun:
    """One run. `state`: running, waiting (for a person), success, failed or cancelled. `waits` are the
    approvals and inputs that it waits for. `steps` are those of its definition, of which `done` are over.
    `inputs` is a JSON object. Times are in microseconds UTC; `ended_us` is 0 while it goes on.
    """

    id: str
    flow: str
    state: str
    owner: int
    agent: str
    session: str
    inputs: str
    unattended: bool
    trigger: str
    parent: str
    copied_from: str
    changed: bool
    started_us: int
    ended_us: int
    code: str
    message: str
    waits: list[str]
    done: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class FlowStep:
    """One step of a run; of a step with for_each also each item, NAME/0000, and of one that is taken back
    NAME/undo. `state`: pending, running, success, failed, skipped, waiting_approval or cancelled.

    `session` is where a prompt is asked, `trace_id` finds the events of a call, `run` is that of a nested
    flow. `will` is what it would run, where nothing has run yet. `cost` is null without a price.
    """

    name: str
    kind: str
    state: str
    after: list[str]
    attempt: int
    agent: str
    session: str
    trace_id: str
    run: str
    waits_for: str
    will: str
    output: str
    code: str
    message: str
    total_tokens: int
    cost: float | None
    started_us: int
    ended_us: int


@dataclass(frozen=True, kw_only=True)
class FlowShown:
    """A run with its steps, in an order in which they can run."""

    run: FlowRun
    steps: list[FlowStep]


@dataclass(frozen=True, kw_only=True)
class FlowProgress:
    """What is new in a run: the run as it is now, and the steps that changed."""

    run: FlowRun
    steps: list[FlowStep]
