"""The events of a turn: a class for each type, and `TurnEvent`, the shape in which they all go out.

Whoever tells of something makes one of the classes and hands it to a stream (`agents.stream`), which adds the
session and the turn. Those who watch get a `TurnEvent`: a dictionary with `type`, `session`, `trace_id` and
the fields of that type. A turn ends with exactly one `Done` or `Failed`.
"""

# No `from __future__ import annotations` here: the Varlink library reads these annotations at run time.
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, dataclass_transform

from lightagentd.errors import LightagentError


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event:
    """Something that happens in a turn, or to a session that is watched; each type is a frozen dataclass."""

    type: ClassVar[str]

    def __init_subclass__(cls, *, type: str) -> None:  # noqa: A002 - the field on the wire
        cls.type = type
        dataclass(frozen=True, kw_only=True)(cls)

    def fields(self) -> dict[str, Any]:
        """The fields that go with its type."""
        return dict(vars(self))


class PromptTaken(Event, type="prompt"):
    """A prompt is stored. Only those who watch its session get this."""

    text: str


class Queued(Event, type="queued"):
    """The prompt waits for `position` earlier ones."""

    position: int


class Started(Event, type="started"):
    """The turn runs."""

    model: str


class TextDelta(Event, type="text_delta"):
    """The answer goes on."""

    text: str


class ReasoningDelta(Event, type="reasoning_delta"):
    """The model thinks, before its answer or a call."""

    text: str


class ToolCallStarted(Event, type="tool_call"):
    """A call begins."""

    call_id: str
    tool: str
    action: str
    effect: str
    decision: str
    args: Any


class ToolOutput(Event, type="tool_output"):
    """A call wrote something to `stream` while it ran."""

    call_id: str
    stream: str
    text: str


class ToolResult(Event, type="tool_result"):
    """A call ended. `result` is ok or an error's code."""

    call_id: str
    tool: str
    action: str
    result: str
    text: str
    metadata: Any
    duration_ms: int


class ApprovalRequested(Event, type="approval_requested"):
    """The turn waits until a call is allowed. `may_answer`: whether whoever reads this may allow it;
    `must_authenticate`: they may once an administrator has authenticated, so that call needs to allow to ask.
    `approver` as in `Approval`: where it is not empty, the approver answers it.
    """

    approval: str
    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    cwd: str
    preview: str
    rule: str
    reason: str
    expires_us: int
    volatile: bool
    digest: str
    confirm_within_s: int = 0
    check: str = ""
    inverse: str = ""
    approver: str = ""
    may_answer: bool = False
    must_authenticate: bool = False


class ApprovalAnswered(Event, type="approval_answered"):
    """The question about the call is closed. `state`: granted, denied, expired or lapsed."""

    approval: str
    call_id: str
    tool: str
    action: str
    state: str
    answered_by: int | None
    note: str


class InputRequested(Event, type="input_requested"):
    """The turn waits for the answer to a question of the agent."""

    input: str
    call_id: str
    question: str
    choices: list[str]
    expires_us: int


class InputAnswered(Event, type="input_answered"):
    """The question is closed. `state`: answered, expired or lapsed."""

    input: str
    call_id: str
    state: str
    answer: str
    answered_by: int | None


class PlanChanged(Event, type="plan"):
    """The plan changed. `plan` is an api.Plan, `task` the id of the task that changed, or empty."""

    plan: Any
    task: str


class SessionChanged(Event, type="session"):
    """The session itself changed. Only those who watch it get this. `session_info` is an api.Session, or null
    when the session was deleted.
    """

    session_info: Any


class Compacted(Event, type="compacted"):
    """A summary took the place of older messages: `removed` of them went, `kept` of them stay."""

    kept: int
    removed: int
    tokens_before: int
    tokens_after: int
    summarized_by: str


class Used(Event, type="usage"):
    """What one call of a model used. `cost` is null when no price is known."""

    total_tokens: int
    cost: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Notice(Event, type="notice"):
    """Something that a person should know, and that ends nothing."""

    code: str
    message: str


class Failed(Event, type="error"):
    """The turn ended without an answer."""

    code: str
    message: str
    suggestion: str
    steps: int
    duration_ms: int

    @classmethod
    def of(cls, failure: LightagentError, *, steps: int = 0, duration_ms: int = 0) -> Self:
        """The end of a turn that failed so."""
        return cls(
            code=failure.code,
            message=failure.message,
            suggestion=failure.suggestion,
            steps=steps,
            duration_ms=duration_ms,
        )


class Done(Event, type="done"):
    """The turn ended; `text` is the final answer, and `data` its value when the prompt had a schema. `usage`
    has prompt_tokens, completion_tokens, cached_tokens, total_tokens and cost (null when no price is known),
    of the agents that the turn asked, too. `calls` has for each of the turn's first 1000 calls call_id, tool,
    action, effect, result (ok or an error's code) and duration_ms. `finish_reason` is the model's: stop,
    length or content_filter.
    """

    text: str
    steps: int
    duration_ms: int
    data: Any = None
    usage: Any = None
    calls: list[Any] | None = None
    finish_reason: str | None = None


EVENTS = (
    PromptTaken, Queued, Started, TextDelta, ReasoningDelta, ToolCallStarted, ToolOutput, ToolResult,
    ApprovalRequested, ApprovalAnswered, InputRequested, InputAnswered, PlanChanged, SessionChanged,
    Compacted, Used, Notice, Failed, Done,
)  # fmt: skip
"""All of them. Their order is the one of the fields in the Varlink interface, which is frozen."""
LAST_EVENTS = (Done.type, Failed.type)
"""The types of turn event that end a stream."""


class _EveryTurnEvent(TypedDict):
    type: str
    session: str
    trace_id: str


def _every_field() -> dict[str, Any]:
    found = {name: shape for event in EVENTS for name, shape in event.__annotations__.items()}
    found["duration_ms"] = found.pop("duration_ms")  # it stands last in the interface
    return found


def _documentation() -> str:
    said = [
        f"{event.type} ({', '.join(event.__annotations__)}): {' '.join((event.__doc__ or '').split())}"
        for event in EVENTS
    ]
    first = "What happens in a turn, as it happens. It ends with exactly one done or error."
    return "\n\n".join((first, "The types, and the fields that go with each:", *said))


if TYPE_CHECKING:
    TurnEvent = dict[str, Any]
else:
    TurnEvent = types.new_class(
        "TurnEvent",
        (_EveryTurnEvent,),
        {"total": False},
        lambda names: names.update(
            __annotations__=_every_field(), __doc__=_documentation(), __module__=__name__
        ),
    )
