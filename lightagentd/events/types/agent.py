"""What agents do in their turns: prompts, model calls, decisions on tool calls, messages and errors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lightagentd import errors
from lightagentd.events.types.event_type import Kind, Object, Objects, Text


class Prompted(Kind, topic="agent.prompt", type="prompt", source="agent"):
    """A prompt was taken: its turn is in the queue of the session."""

    text: Text
    question_chars: int = 0
    """How long the question is before its blocks; absent when all of it is the question."""


class _ModelCall(Kind):
    """What one model call came to, and what it cost."""

    model: Text
    finish_reason: Text
    tool_calls: int
    """How many tool calls the model asked for."""
    text_chars: int
    duration_ms: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    counted: bool
    """Whether the endpoint said how many tokens it took; else the three figures are 0."""
    cost: float | int | None
    """In the currency of the configured prices; null when there is no price, or no count."""


class ModelAnswered(_ModelCall, topic="agent.llm_response", type="response", source="agent"):
    """A model answered a step of a turn."""


class ModelSummedUp(_ModelCall, topic="agent.llm_response", type="summary", source="agent"):
    """A model was asked to shorten a conversation; no step of a turn."""


class ModelBrokeOff(_ModelCall, topic="agent.llm_response", type="failed", source="agent"):
    """A model call came to nothing: it was cancelled, refused, broke off, or its answer was empty."""


class CallIntended(Kind, topic="agent.tool_dispatch", type="intent", source="agent"):
    """A tool call was decided on and is about to run. Without an invocation its outcome is unknown."""

    call_id: Text
    function: Text
    """As the model called it."""
    trigger: Text = ""
    """Why nobody can be asked: `unattended`, or the check of a plan's task; absent for a person's prompt."""
    tool: Text
    action: Text
    effect: Text
    args: Object
    """As they run, without those that nobody gets to see."""
    decision: Text
    rule: Text
    """What decided: the name of a rule, or of a built-in one."""
    tainted: bool = False
    """Text from outside is in the conversation."""
    plan: Text = ""
    """What may run while a plan is drafted."""
    host: Text = ""
    known_host: bool = False
    """Whether the session went to `host` untainted before, or was let."""
    approval: Text = ""
    """The approval that was asked for; it is used up with this event."""


class CallRefused(Kind, topic="agent.tool_dispatch", type="refused", source="agent"):
    """A tool call does not run. What was not known of it by then is absent."""

    call_id: Text
    function: Text
    trigger: Text = ""
    tool: Text = ""
    action: Text = ""
    effect: Text = ""
    args: Object = Field(default_factory=dict)
    decision: Text = ""
    rule: Text = ""
    tainted: bool = False
    plan: Text = ""
    host: Text = ""
    known_host: bool = False
    approval: Text = ""
    result: Text
    """The code of the error."""
    message: Text


class Said(Kind, topic="agent.message", type="message", source="agent"):
    """A message of the conversation: a session's messages are rebuilt from these, and from nothing else."""

    role: Literal["user", "assistant", "tool"]
    content: Text
    tool_calls: Objects = Field(default_factory=list)
    """Of an assistant: `id`, `name` and `arguments`, which is JSON as the model wrote it."""
    reasoning: Objects = Field(default_factory=list)
    """Of an assistant: blocks of reasoning that go back to the `model` that gave them, and to no other."""
    question_chars: int = 0
    """Of a user: how long the question is before its blocks; absent when all of it is the question."""
    tool_call_id: Text = ""
    name: Text = ""
    """Of a tool's result: the function that was called."""
    copied_from: int = 0
    """Of a forked session: the number of the event that has the message in the session before."""
    said_us: int = 0
    """Of a copied or imported message: when it was said, in microseconds UTC."""


class TurnFailed(Kind, topic="agent.error", types=[row.code for row in errors.table()], source="agent"):
    """A turn ended without an answer; the type is the code of the error."""

    code: Text
    message: Text
    field: Text = ""
    suggestion: Text = ""
    steps: int
    duration_ms: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0
    cost: float | int | None = None
    calls: int = 0
    unattended: bool = False

    @property
    def event_type(self) -> str:
        return self.code


class FellBack(Kind, topic="agent.error", type="fallback"):
    """A model failed before it said anything, and the turn goes on with the next one."""

    code: Text
    message: Text


class ModelTriedAgain(Kind, topic="agent.retry", type="retry"):
    """A model call failed in a way that may pass before it said anything, and is made again."""

    code: Text
    message: Text
    model: Text
    tries: int
    """How often the call was made until now."""
    wait_s: float | int
    """How long until it is made again."""


class TurnInterrupted(Kind, topic="agent.error", type="interrupted", source="agent"):
    """The daemon stopped in the middle of a turn; its next start found and ended it."""

    code: Text
    """`outcome_unknown` when a call ran by then, else `interrupted`."""
    message: Text
    unknown_calls: int
    unattended: bool = False
