"""The interface between the turn loop and a model client.

A client takes a `Request` (system prompt, messages, functions) and answers with a stream of parts: text and
reasoning as they arrive, whole tool calls, and one `Finish` with the usage at the end. It raises only
ModelError. An administrator's own client (`module:Class` in the configuration) implements `ModelClient` too.
Messages use the terms of chat completions, independent of any endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

Role = Literal["user", "assistant", "tool"]

ASSUMED_WINDOW = 128_000
"""The window, in tokens, of a model whose window is unknown."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A function call by the model. `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, str]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """A whole block of a model's reasoning, which its endpoint may want back with the results of the calls.

    Only `model` gets it back, unchanged: an endpoint that signs its blocks refuses an altered one.
    """

    model: str
    """The model string of the client that gave it."""
    text: str = ""
    signature: str = ""
    """The endpoint's signature of the text."""
    data: str = ""
    """Encrypted text, which only the endpoint can read."""
    id: str = ""

    def to_dict(self) -> dict[str, str]:
        """The fields that are not empty."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True, kw_only=True)
class Message:
    """One entry of the conversation. `tool_call_id` is set in role tool; `tool_calls` and `reasoning`, which
    came before the text and the calls, in role assistant.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    """In role tool: the function that was called."""
    question_chars: int = 0
    """In role user: how long the question is before its blocks; 0 when all of it is the question."""
    cut_off: str = ""
    """In role assistant: the error that ended the turn before the answer was whole."""

    def for_model(self) -> Message:
        """The message as models get it: that it broke off is in its text, without an endpoint's words."""
        if not self.cut_off:
            return self
        told = f"[The answer ended here. {self.cut_off.partition(':')[0]}.]"
        return replace(self, content=f"{self.content}\n\n{told}".lstrip(), cut_off="")

    @property
    def thoughts(self) -> str:
        """The reasoning in words."""
        return "\n\n".join(block.text for block in self.reasoning if block.text.strip())

    @property
    def question(self) -> str:
        return self.content[: self.question_chars or None]

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            found["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.reasoning:
            found["reasoning"] = [block.to_dict() for block in self.reasoning]
        if self.tool_call_id:
            found["tool_call_id"] = self.tool_call_id
            found["name"] = self.name
        if self.cut_off:
            found["cut_off"] = self.cut_off
        return found

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Message:
        """The message in the data of an `agent.message` event."""
        return Message(
            role=data["role"],
            content=data["content"],
            tool_calls=tuple(ToolCall(**call) for call in data.get("tool_calls", ())),
            reasoning=tuple(Reasoning(**block) for block in data.get("reasoning", ())),
            tool_call_id=data.get("tool_call_id", ""),
            name=data.get("name", ""),
            question_chars=data.get("question_chars", 0),
            cut_off=data.get("cut_off", ""),
        )


@dataclass(frozen=True, kw_only=True)
class Function:
    """A tool's action as a model sees it: `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the model's reasoning before the answer; not part of the answer."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one model call, as the endpoint counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of the stream. `reason` is one of stop, length, tool_calls, content_filter."""

    reason: str
    usage: Usage | None = None
    unread: str = ""
    """Why a call that the model wrote into its text cannot be read. That text is in no delta."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One model call."""

    system: str
    messages: Sequence[Message]
    functions: Sequence[Function] = ()
    schema: dict[str, Any] | None = None
    """The JSON Schema that the answer is to fit once there are no more calls, for endpoints that can see to
    it. The system prompt says it as well, and whoever asks checks the answer."""
    must_answer: bool = False
    """With a schema: the model was told that its answer does not fit, and is to give it again."""
    on_usage: Callable[[Usage], None] | None = field(default=None, compare=False, repr=False)
    """Is told as soon as the endpoint says what the call took until then, which may be before its end."""


Part = TextDelta | ReasoningDelta | Reasoning | ToolCall | Finish


class ModelClient(Protocol):
    """A model behind one endpoint. Clients are made once per agent and closed with it.

    A client of an administrator's own is such a class, named in the configuration as

        [models.providers.ours]
        kind = "our_models:Client"

    and importable by the daemon; a model string is then `ours/ANYTHING`. It is made as `Client(settings)`
    with `ModelSettings` when its agent starts, and may take connections and the like when it is first
    asked. It runs in the daemon's event loop with all that the daemon may do: it is to be trusted as the
    daemon is, and must not block. `stream` is an async generator: it yields TextDelta and ReasoningDelta as
    they arrive, whole Reasoning blocks and ToolCalls, and one Finish as the last part. It makes one attempt
    and raises ModelError (or one of its subclasses in `errors`: `transient` says that another attempt may
    succeed); whoever calls tries again. What it yields is checked, and whatever else it raises fails the
    one call (`own_client`). When the turn is cancelled, the generator gets CancelledError or is closed, and
    lets go of its connection.

    A client may have two attributes more: `retry` (`retry.RetrySettings`), without which the default counts,
    and `endpoint`, such as `https://api.openai.com:443`, without which no circuit breaker stands before it.
    """

    name: str
    """The model string, such as `openai/gpt-5` or `runbook`."""

    context_tokens: int
    """The window: how many tokens a request and its answer may have; 0 when there is no such limit."""
    window_known: bool
    """Whether the window is configured, and not assumed: then nothing longer is sent."""

    def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """Make one model call. Closing the generator closes the connection. Raises ModelError."""

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of one model, merged from the configuration, the metadata and the agent's definition."""

    provider: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    extra_body: dict[str, Any] = field(default_factory=dict)
    """More fields of each request's JSON; they win over those of the client."""
    context_tokens: int | None = None
    """The window; None when it is not known."""
    max_output_tokens: int | None = None
    """How long an answer may be; None for what the endpoint thinks right."""
    native_tools: bool = True
    """Whether the endpoint takes functions; else they are described in the system prompt (`text_calls`)."""
    thinking_tokens: int = 0
    """How much the model may think before it answers, where the protocol has that; 0 for none."""
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    """How long the endpoint may be silent."""
    total_timeout_s: float = 900.0
    """How long one answer may take."""
    max_retries: int = 4
    """How often a call is made again that failed in a way that may pass."""
    max_retry_s: float = 60.0
    """How long all waiting between these calls may take."""
    proxy: str = ""
    """Empty for what the environment names; `none` for no proxy."""
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
