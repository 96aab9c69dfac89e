"""Encodes requests for chat completions, the protocol of OpenAI and most servers (answers: `chat_decoder`).

The API reference is "Create chat completion" with `stream: true`. Servers differ: a request first uses what
most of them accept, and drops what this one refuses, see `ChatCompletions.concedes`.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

from lightagentd.events.model import dump_json
from lightagentd.llm.dialects.chat_decoder import EXTRA, REASONING, ChatDecoder
from lightagentd.llm.dialects.dialect import (
    TEMPERATURE,
    UNSUPPORTED,
    ListJson,
    ToolsJson,
    about_schema,
    bearer,
    joined_url,
    marked_result,
    named_schema,
)
from lightagentd.llm.dialects.fitting import (
    PLAIN_IDS,
    SHORT_IDS,
    arguments_object,
    fitted,
    function_name,
    loop_start,
    own_reasoning,
    wrapped_arguments,
)
from lightagentd.llm.dialects.reasoning_details import FIELD as DETAILS
from lightagentd.llm.dialects.reasoning_details import kept
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall

_NEW_LIMIT = "max_completion_tokens"
_OLD_LIMIT = "max_tokens"
"""Deprecated by OpenAI, whose newer models refuse it; the only one that many other servers know."""
_OPENAI_HOSTS = re.compile(r"(?:api\.openai\.com|.+\.openai\.azure\.com)", re.IGNORECASE)
_ABOUT_IDS = re.compile(r"tool call id.*length of 9", re.IGNORECASE)
_WANTS_REASONING = re.compile(
    r"reasoning_content.{0,40}(?:must be passed back|is missing)|missing .?reasoning_content", re.IGNORECASE
)
"""What DeepSeek and Moonshot say where an earlier call of the conversation is without it."""
_NO_REASONING = " "
_NO_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Gemini takes, by its guide "Thought signatures", beside calls that it did not make itself."""


class ChatCompletions:
    """The dialect for one model."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._name = f"{settings.provider}/{settings.model}"
        self._tools = ToolsJson()
        self._sent = ListJson()
        self._usage_option = True
        self._response_format = True
        self._temperature = True
        self._reasoning_back = True
        self._all_reasoning = False
        """Whether the endpoint wants reasoning with each call of the conversation."""
        self._ids = PLAIN_IDS
        self._no_signature: dict[str, Any] = {}
        host = urllib.parse.urlsplit(settings.base_url).hostname or ""
        self._is_openai = _OPENAI_HOSTS.fullmatch(host) is not None
        self._limit_name = _NEW_LIMIT if self._is_openai else _OLD_LIMIT
        self._limit_changed = False

    def url(self, base_url: str) -> str:
        return joined_url(base_url, "/chat/completions")

    def headers(self, api_key: str) -> dict[str, str]:
        return bearer(api_key, self._settings.base_url)

    def body(self, request: Request) -> bytes:
        settings = self._settings
        fields: dict[str, Any] = {"model": settings.model, "stream": True}
        if self._usage_option:
            fields["stream_options"] = {"include_usage": True}
        if settings.max_output_tokens is not None:
            fields[self._limit_name] = settings.max_output_tokens
        if self._response_format and request.schema is not None and self._may_form(request):
            fields["response_format"] = {"type": "json_schema", "json_schema": named_schema(request.schema)}
        fields |= settings.extra_body
        if not self._temperature:
            fields.pop(TEMPERATURE, None)
        body = [dump_json(fields)[:-1]]
        if "messages" not in settings.extra_body:
            body += b',"messages":[', b",".join(self._sent.of(self._messages(request), self._wire)), b"]"
        if request.functions and "tools" not in settings.extra_body:
            tools = self._tools.of(request.functions, lambda found: [_wire_tool(each) for each in found])
            body += b',"tools":', tools
        return b"".join([*body, b"}"])

    def decoder(self, request: Request) -> ChatDecoder:
        return ChatDecoder(self._name, request.on_usage)

    def concedes(self, message: str) -> bool:
        """Drop or change what the server refuses: the option for the usage, the form of the answer, the
        temperature, the name of the limit, sending reasoning back or not, long ids, missing signatures.
        """
        self._sent.forget()
        if self._response_format and about_schema(message):
            self._response_format = False
            return True
        if self._usage_option and ("stream_options" in message or "include_usage" in message):
            self._usage_option = False
            return True
        if self._demands(message):
            return True
        if self._reasoning_back and "remove the reasoning_content" in message:
            self._reasoning_back = False
            return True
        if not UNSUPPORTED.search(message):
            return False
        if self._temperature and TEMPERATURE in message and TEMPERATURE in self._settings.extra_body:
            self._temperature = False
            return True
        if self._settings.max_output_tokens is not None and self._limit_name in message:
            other = _OLD_LIMIT if self._limit_name == _NEW_LIMIT else _NEW_LIMIT
            changed, self._limit_changed = self._limit_changed, True
            self._limit_name = other if not changed else self._limit_name
            return not changed
        if self._reasoning_back and any(field in message for field in REASONING):
            self._reasoning_back = False
            return True
        return False

    def _may_form(self, request: Request) -> bool:
        """Whether the server is to see to the form of the answer: many would then let pass no call."""
        return self._is_openai or not request.functions or request.must_answer

    def _demands(self, message: str) -> bool:
        """Whether later requests meet a demand on the conversation in these words."""
        if _ABOUT_IDS.search(message) and self._ids is PLAIN_IDS:
            self._ids = SHORT_IDS
        elif _WANTS_REASONING.search(message) and not self._all_reasoning:
            self._all_reasoning = self._reasoning_back = True
        elif "missing a thought_signature" in message.replace("`", "").replace("'", "") and (
            not self._no_signature
        ):
            self._no_signature = _NO_SIGNATURE
        else:
            return False
        return True

    def _messages(self, request: Request) -> list[tuple[Message | str, bool]]:
        """The system prompt and the messages, each with whether it is of the present tool loop."""
        messages = fitted(request.messages, self._ids)
        in_loop = loop_start(messages)
        system: list[tuple[Message | str, bool]] = [(request.system, False)] if request.system else []
        return system + [(message, at >= in_loop) for at, message in enumerate(messages)]

    def _wire(self, item: tuple[Message | str, bool]) -> dict[str, Any]:
        message, in_loop = item
        if isinstance(message, str):
            return {"role": "system", "content": message}
        wire = _wire_message(message)
        wanted = self._all_reasoning or bool(self._no_signature)
        if message.role == "assistant" and (message.reasoning or wanted):
            own = own_reasoning(message, self._name)
            self._sign(wire.get("tool_calls", []), own)
            if self._all_reasoning or (self._reasoning_back and in_loop):
                self._reason(wire, own)
        return wire

    def _reason(self, wire: dict[str, Any], own: Sequence[Reasoning]) -> None:
        """Add the preceding reasoning to a message."""
        if details := kept(own):
            wire[DETAILS] = details
        for block in own:
            if not block.data and not details:
                field = block.id if block.id in REASONING else REASONING[0]
                wire[field] = wire.get(field, "") + block.text
        if self._all_reasoning and not any(wire.get(field) for field in (*REASONING, DETAILS)):
            wire[REASONING[0]] = _NO_REASONING

    def _sign(self, calls: Sequence[dict[str, Any]], own: Sequence[Reasoning]) -> None:
        """Add the signatures that came with the calls."""
        extras = {block.id: arguments_object(block.data) for block in own if block.id.startswith(f"{EXTRA}/")}
        for at, call in enumerate(calls if extras or self._no_signature else ()):
            if extra := extras.get(f"{EXTRA}/{at}") or self._no_signature:
                call[EXTRA] = extra


def _wire_tool(function: Function) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
        },
    }


def _wire_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": marked_result(message)}
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _wire_function(call)}
            for call in message.tool_calls
        ]
    return wire


def _wire_function(call: ToolCall) -> dict[str, str]:
    """A call in a form that may be sent back: endpoints refuse a conversation with a bad name or bad JSON in
    it.
    """
    whole = arguments_object(call.arguments) is not None
    arguments = call.arguments if whole else json.dumps(wrapped_arguments(call.arguments))
    return {"name": function_name(call.name), "arguments": arguments}
