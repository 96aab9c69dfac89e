"""Encodes requests for the Messages API of Anthropic and some other servers (answers: `messages_decoder`).

The API reference is "Create a Message" with `stream: true`, version 2023-06-01, and the guides about tool
use, prompt caching and extended thinking. Models and servers differ: a request first uses what most of them
accept, and drops what this one refuses, see `Messages.concedes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lightagentd.events.model import dump_json
from lightagentd.llm.dialects.dialect import (
    TEMPERATURE,
    UNSUPPORTED,
    ToolsJson,
    about_schema,
    joined_url,
    marked_result,
)
from lightagentd.llm.dialects.fitting import (
    GO_ON,
    arguments_object,
    fitted,
    function_name,
    loop_start,
    own_reasoning,
    wrapped_arguments,
)
from lightagentd.llm.dialects.messages_decoder import MessagesDecoder, place_of
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall

VERSION = "2023-06-01"
ANSWER_TOKENS = 8192
"""How long an answer may be where nothing says so: the API wants to be told."""
LEAST_TOKENS = 1024
"""The smallest budget for thinking that the API takes; and the shortest answer that is worth a call."""
_BYTES_PER_TOKEN = 3
"""Fewer than a token has anywhere but in languages that no prompt is full of."""
_BUDGET_UNTIL = (4, 6)
"""The last version of the models that take a budget; newer ones decide themselves how much they think."""
_MODEL_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_TOO_MANY = re.compile(r"max_tokens: (\d{1,9}) > (\d{1,9})")
_ABOUT_BLOCKS = re.compile(r"signature|\bblocks?\b|redacted_thinking|expected", re.IGNORECASE)
_WANTED_BACK = "must be passed back"
"""What DeepSeek says of thinking that belongs to an earlier prompt, too."""
_CACHED = {"cache_control": {"type": "ephemeral"}}
"""Has the endpoint keep all that comes before the end of a block. A request may say so four times."""
_NOT_WITH_THINKING = ("temperature", "top_k")
_EMPTY = "(empty)"


class Messages:
    """The dialect for one model."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._name = f"{settings.provider}/{settings.model}"
        self._tools = ToolsJson()
        self._forms: list[str] = []
        """The forms in which thinking can be requested, the next one first; empty for no thinking."""
        if settings.thinking_tokens > 0:
            self._forms = (
                ["adaptive", "enabled"] if _thinks_by_itself(settings.model) else ["enabled", "adaptive"]
            )
        self._thinking_back = True
        self._all_thinking = False
        """Whether the endpoint wants it back with each call of the conversation."""
        self._cached: dict[str, Any] = _CACHED
        self._no_choice = {"tool_choice": {"type": "none"}}
        self._form = True
        self._temperature = True
        self._most_tokens: int | None = None
        """The longest answer that the endpoint allows, as it said."""

    def url(self, base_url: str) -> str:
        base = base_url.partition("?")[0].rstrip("/")
        return joined_url(base_url, "/messages" if base.endswith(("/v1", "/v1/messages")) else "/v1/messages")

    def headers(self, api_key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": api_key} if api_key else {})}

    def body(self, request: Request) -> bytes:
        messages = fitted(request.messages)
        wire = dump_json(self._wire_messages(messages))
        fields: dict[str, Any] = {"model": self._settings.model, "stream": True}
        if request.system.strip():
            fields["system"] = [{"type": "text", "text": request.system, **self._cached}]
        functions = request.functions
        if not functions and (called := _called(messages)):
            # The API refuses calls in a conversation without tools; this choice prevents new ones.
            functions = called
            fields |= self._no_choice
        tools = self._tools.of(functions, self._wire_tools) if functions else b"[]"
        fields |= self._limits(messages, len(wire) + len(tools) + len(request.system.encode()))
        if self._form and request.schema is not None:
            fields["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
        fields |= self._extra(fields)
        if not self._temperature:
            fields.pop(TEMPERATURE, None)
        body = dump_json(fields)[:-1]
        if functions and "tools" not in fields:
            body += b',"tools":' + tools
        return body + b',"messages":' + wire + b"}"

    def decoder(self, request: Request) -> MessagesDecoder:
        return MessagesDecoder(self._name, request.on_usage)

    def concedes(self, message: str) -> bool:
        """Drop what a model refuses: the form of the answer, a temperature, a form of thinking, its blocks,
        a long answer. Other servers with the same protocol refuse caching, or the choice of no tool.
        """
        said = message.replace(self._name, "")
        if self._form and about_schema(said):
            self._form = False
            return True
        given = self._temperature and TEMPERATURE in self._settings.extra_body
        if given and TEMPERATURE in said and UNSUPPORTED.search(said):
            self._temperature = False
            return True
        if found := _TOO_MANY.search(said):
            before, most = self._most_tokens, int(found[2])
            self._most_tokens = most or before
            return 0 < most < (before or int(found[1]))
        if "cache_control" in said and self._cached:
            self._cached = {}
            self._tools.forget()
            return True
        if "tool_choice" in said and self._no_choice:
            self._no_choice = {}
            return True
        if "thinking" not in said:
            return False
        if _WANTED_BACK in said:
            known, self._all_thinking = self._all_thinking, True
            self._thinking_back = True
            return not known
        if self._thinking_back and _ABOUT_BLOCKS.search(said):
            self._thinking_back = False
            return True
        refused, self._forms = self._forms[:1], self._forms[1:]
        return bool(refused)

    def _limits(self, messages: Sequence[Message], size_bytes: int) -> dict[str, Any]:
        """The limits of the answer and of its thinking."""
        settings, budget = self._settings, self._settings.thinking_tokens
        given = settings.extra_body.get("max_tokens")
        if isinstance(given, int):
            most = given
        else:
            most = settings.max_output_tokens or ANSWER_TOKENS + budget
            if settings.context_tokens is not None:
                # Older models refuse a request that would not fit with the longest possible answer.
                most = min(most, max(LEAST_TOKENS, settings.context_tokens - size_bytes // _BYTES_PER_TOKEN))
            if self._most_tokens is not None:
                most = min(most, self._most_tokens)
        fields: dict[str, Any] = {"max_tokens": most}
        form = self._forms[0] if self._forms else ""
        if form == "adaptive":
            fields["thinking"] = {"type": "adaptive"}
        elif form and self._may_think(messages):
            # The budget is a part of max_tokens, and something has to be left for the answer.
            budget = max(LEAST_TOKENS, budget if budget < most else most // 2)
            if budget < most:
                fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
        return fields

    def _may_think(self, messages: Sequence[Message]) -> bool:
        """Whether thinking may be on in the next answer.

        A tool loop with thinking begins with a block of it, which the API wants back. If that block is gone,
        or another model took part in the loop, thinking is off until the next prompt.
        """
        spoken = [message for message in messages[loop_start(messages) :] if message.role == "assistant"]
        if not spoken:
            return True
        foreign = any(message.reasoning and not own_reasoning(message, self._name) for message in spoken)
        return self._thinking_back and bool(own_reasoning(spoken[0], self._name)) and not foreign

    def _extra(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The administrator's own fields, without those that the API refuses for a thinking model."""
        extra = {name: value for name, value in self._settings.extra_body.items() if name != "messages"}
        thinking = extra.get("thinking", fields.get("thinking"))
        if isinstance(thinking, dict) and thinking.get("type") != "disabled":
            for name in _NOT_WITH_THINKING:
                extra.pop(name, None)
        return extra

    def _wire_tools(self, functions: Sequence[Function]) -> list[dict[str, Any]]:
        made = [_wire_tool(function) for function in functions]
        made[-1] |= self._cached
        return made

    def _wire_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The conversation as messages of user and assistant in turns; results are the user's."""
        wire: list[dict[str, Any]] = []
        in_loop = loop_start(messages) if self._thinking_back else len(messages)
        for at, message in enumerate(messages):
            role = "assistant" if message.role == "assistant" else "user"
            thinking = own_reasoning(message, self._name) if at >= in_loop or self._all_thinking else []
            if self._all_thinking and message.tool_calls and not thinking:
                # The call was another model's, but the field is required.
                thinking = [Reasoning(model=self._name, text=" ")]
            blocks = _wire_blocks(message, thinking)
            if wire and wire[-1]["role"] == role:
                wire[-1]["content"] += blocks
            else:
                wire.append({"role": role, "content": blocks})
        if not wire or wire[-1]["role"] != "user":
            wire.append({"role": "user", "content": _wire_text(GO_ON)})
        # The last request cached up to its last message, which is two before the end now.
        for marked in wire[-1:-4:-2]:
            marked["content"][-1] |= self._cached
        return wire


def _thinks_by_itself(model: str) -> bool:
    """Whether it refuses a token budget for thinking."""
    if found := _MODEL_VERSION.search(model):
        return (int(found[1]), int(found[2] or 0)) > _BUDGET_UNTIL
    return "claude-mythos" in model


def _called(messages: Sequence[Message]) -> list[Function]:
    """Stand-in functions for those called in the conversation."""
    names = dict.fromkeys(function_name(call.name) for message in messages for call in message.tool_calls)
    return [Function(name=name, description="It cannot be called now.", parameters={}) for name in names]


def _wire_tool(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "input_schema": {**function.parameters, "type": "object"},
    }


def _wire_blocks(message: Message, reasoning: Sequence[Reasoning]) -> list[dict[str, Any]]:
    """The blocks of one message; the API refuses empty ones."""
    if message.role == "tool":
        result = {"tool_use_id": message.tool_call_id, "content": marked_result(message)}
        return [{"type": "tool_result", **result}]
    if message.role == "user":
        return _wire_text(message.content) or _wire_text(_EMPTY)
    calls = [_wire_call(call) for call in message.tool_calls]
    blocks: list[dict[str, Any]] = []
    said = called = 0
    for block in reasoning:
        # Thinking between text and calls must stay in its place.
        chars, before = place_of(block)
        blocks += [*_wire_text(message.content[said:chars]), *calls[called:before], _wire_thinking(block)]
        said, called = max(said, chars), max(called, before)
    return [*blocks, *_wire_text(message.content[said:]), *calls[called:]]


def _wire_text(said: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said}] if said.strip() else []


def _wire_call(call: ToolCall) -> dict[str, Any]:
    given = arguments_object(call.arguments)
    return {
        "type": "tool_use",
        "id": call.id,
        "name": function_name(call.name),
        "input": wrapped_arguments(call.arguments) if given is None else given,
    }


def _wire_thinking(block: Reasoning) -> dict[str, Any]:
    if block.data:
        return {"type": "redacted_thinking", "data": block.data}
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}
