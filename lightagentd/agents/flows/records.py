"""What is stored of the runs of flows: each run, each of its steps, and the definition that it began with.

The rows of a run are found by its session, so they are deleted with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lightagentd.agents.tool_calls.results import cap_text
from lightagentd.config.flows.conditions import Outcome, State
from lightagentd.config.flows.definition import Flow
from lightagentd.config.flows.references import MISSING
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types.flow import FlowStepMoved
from lightagentd.text.strict_json import BadJson, decoded

RUNS, STEPS, DEFINITIONS = "flow_runs", "flow_steps", "flow_definitions"
RunState = Literal["running", "success", "failed", "cancelled"]
AsksFor = Literal["", "approval", "begin", "answer", "unknown"]
OVER: tuple[State, ...] = ("success", "failed", "skipped", "cancelled")
MOST_OUTPUT_BYTES, MOST_LIST_BYTES = 128 << 10, 1 << 20
"""Of the output of a step, and of the list of one with for_each; what is longer is cut in its middle."""
_JSON_DEPTH = 64
_OF_RUN = ("id", "flow", "digest", "state", "agent", "client", "trigger", "parent", "code", "message")
_OF_STEP = (
    *("run", "name", "state", "agent", "session", "trace_id", "call_id", "waits_for", "asks_for", "output"),
    *("code", "message", "effect", "nested"),
)


def now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. Its session has the same digits."""

    id: str
    flow: str
    digest: str
    """Of the definition that it runs."""
    owner: int
    agent: str
    inputs: dict[str, Any]
    client: str = ""
    """As `EventContext.client`."""
    state: RunState = "running"
    unattended: bool = False
    trigger: str = ""
    sent_by: tuple[dict[str, Any], ...] = ()
    """The agents that had it run, as `Letter.by`."""
    parent: str = ""
    """The run of which it is a step."""
    copied_from: str = ""
    """The run whose first outputs it has."""
    started_us: int = 0
    ended_us: int = 0
    code: str = ""
    message: str = ""
    done: int = 0
    """How many of its steps are over, once it is."""

    @property
    def session(self) -> str:
        return session_of(self.id)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> RunRecord:
        """Raises HistoryDamaged."""
        with decoding(RUNS, str(value.get("id"))):
            checked(value, **dict.fromkeys(_OF_RUN, str), inputs=dict, sent_by=list, unattended=bool)
            checked(value, **dict.fromkeys(("owner", "started_us", "ended_us", "done"), int))
            return cls(**{**value, "sent_by": tuple(map(dict, value["sent_by"]))})

    def change(self) -> Change:
        return Change(state=RUNS, key=self.session, value={**asdict(self), "sent_by": list(self.sent_by)})


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One step of a run, or with for_each one item of it (`NAME/0003`), or its undoing (`NAME/undo`)."""

    run: str
    name: str
    state: State = "pending"
    attempt: int = 0
    agent: str = ""
    session: str = ""
    """The child session where a prompt is asked."""
    trace_id: str = ""
    call_id: str = ""
    waits_for: str = ""
    """The approval or input that it waits for."""
    asks_for: AsksFor = ""
    """What that is about: a call, whether the step begins, its question, or what became of it."""
    tries: int = 0
    """How often it has failed since a person last had it run."""
    allowed: bool = False
    """Whether a person let it begin."""
    ran: bool = False
    """Whether what it does is done, and has an output: what is left is to judge that."""
    nested: str = ""
    """The run that it is."""
    item: Any = None
    output: str = ""
    code: str = ""
    message: str = ""
    effect: str = ""
    started_us: int = 0
    ended_us: int = 0
    used: dict[str, Any] = field(default_factory=dict)
    """Tokens and cost."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> StepRecord:
        """Raises HistoryDamaged."""
        with decoding(STEPS, str(value.get("name"))):
            checked(value, **dict.fromkeys(_OF_STEP, str), allowed=bool, ran=bool, used=dict)
            checked(value, **dict.fromkeys(("attempt", "tries", "started_us", "ended_us"), int))
            return cls(**value)

    @property
    def key(self) -> str:
        return f"{session_of(self.run)}/{self.name}"

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def of(self) -> str:
        """The step of the definition."""
        return self.name.partition("/")[0]

    def change(self, *, there: bool = True) -> Change:
        return Change(state=STEPS, key=self.key, value=asdict(self) if there else None)

    def moved(self, state: State, **changes: Any) -> StepRecord:
        """In another state, with the time of that."""
        now = now_us()
        times = {"ended_us": now} if state in OVER else {"ended_us": 0}
        if state == "running" and not self.started_us:
            times["started_us"] = now
        if state in OVER:
            times |= {} if self.started_us else {"started_us": now}
            changes = {"waits_for": "", "asks_for": "", **changes}
        return replace(self, state=state, **(times | changes))

    def again(self) -> StepRecord:
        """To run once more."""
        return StepRecord(run=self.run, name=self.name, attempt=self.attempt, item=self.item)

    def event(self, flow: str) -> NewEvent:
        """What is told of its state."""
        more: dict[str, Any] = {}
        if self.is_over:
            more["duration_ms"] = (self.ended_us - self.started_us) // 1000
        if self.output and self.state == "success":
            more["output"] = self.output
        if self.code:
            more["code"] = self.code
        if self.waits_for:
            more["waits_for"] = self.waits_for
        said = f": {self.message}" if self.message else ""
        words = self.state.replace("_", " ").replace("waiting approval", "waiting for a person")
        return FlowStepMoved(
            message=f"{flow}: {self.name}: {words}{said}",
            run=self.run,
            flow=flow,
            step=self.name,
            state=self.state,
            attempt=self.attempt,
            **more,
        ).event()

    def outcome(self) -> Outcome:
        """As conditions and references see it."""
        return Outcome(state=self.state, output=self.output, data=json_in(self.output))


def json_in(text: str) -> Any:
    """The value of a text that is JSON; MISSING when it is not."""
    if text.lstrip()[:1] not in tuple('{["-0123456789tfn'):
        return MISSING
    try:
        return decoded(text, depth=_JSON_DEPTH, surrogates=False)
    except BadJson:
        return MISSING


def session_of(run: str) -> str:
    return f"ses_{run.partition('_')[2]}"


def definition_change(digest: str, flow: Flow) -> Change:
    """The change that keeps a definition."""
    value = {"flow": flow.model_dump(mode="json", by_alias=True, exclude_unset=True)}
    return Change(state=DEFINITIONS, key=digest, value=value)


def digest_of(flow: Flow) -> str:
    import hashlib

    said = flow.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def flow_in(value: Mapping[str, Any]) -> Flow:
    """A kept definition. Raises HistoryDamaged."""
    with decoding(DEFINITIONS, "flow"):
        return Flow.model_validate(value["flow"])


def aggregate(items: Sequence[StepRecord]) -> str:
    """The output of a step with for_each: a list with the output of each item."""
    found, most = [], MOST_LIST_BYTES // max(1, len(items))
    for one in items:
        text = cap_text(one.output, most)
        data = json_in(text)
        found.append(text if data is MISSING else data)
    return json.dumps(found, ensure_ascii=False)
