"""Encodes requests for the Responses API of OpenAI and some other servers (answers: `responses_decoder`).

The API reference is "Create a model response" with `stream: true`. Nothing is stored at the endpoint: each
request has the whole conversation, and the model's reasoning is sent back encrypted and unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lightagentd.events.model import dump_json
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
    arguments_object,
    fitted,
    function_name,
    loop_start,
    own_reasoning,
    wrapped_arguments,
)
from lightagentd.llm.dialects.responses_decoder import ResponsesDecoder
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request

_DOES_NOT_THINK = re.compile(r"^(gpt-3|gpt-4|chatgpt-4|gpt-5-chat)")
"""OpenAI's models without reasoning refuse a request that wants reasoning in cipher."""
_ENCRYPTED = "reasoning.encrypted_content"
_ABOUT_CIPHER = re.compile(
    r"encrypted content is not supported|['\"`]include\b|\binclude(?:\[|\.\d)", re.IGNORECASE
)
_ABOUT_ITEMS = re.compile(
    r"encrypted_content|encrypted content|type '?reasoning'?|reasoning item|\brs_\w+", re.IGNORECASE
)


class Responses:
    """The dialect for one model."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._name = f"{settings.provider}/{settings.model}"
        self._tools = ToolsJson()
        self._sent = ListJson()
        self._encrypted = not _DOES_NOT_THINK.match(settings.model.rpartition("/")[2])
        self._reasoning_back = True
        self._form = True
        self._temperature = True

    def url(self, base_url: str) -> str:
        return joined_url(base_url, "/responses")

    def headers(self, api_key: str) -> dict[str, str]:
        return bearer(api_key, self._settings.base_url)

    def body(self, request: Request) -> bytes:
        settings = self._settings
        fields: dict[str, Any] = {
            "model": settings.model,
            "stream": True,
            "store": False,
        }
        if self._encrypted:
            fields["include"] = [_ENCRYPTED]
        if request.system:
            fields["instructions"] = request.system
        if settings.max_output_tokens is not None:
            fields["max_output_tokens"] = settings.max_output_tokens
        if self._form and request.schema is not None:
            fields["text"] = {"format": {"type": "json_schema", **named_schema(request.schema)}}
        fields |= settings.extra_body
        if not self._temperature:
            fields.pop(TEMPERATURE, None)
        body = [dump_json(fields)[:-1]]
        if "input" not in settings.extra_body:
            items = self._sent.of(self._wire_items(fitted(request.messages)), lambda item: item)
            body += b',"input":[', b",".join(items), b"]"
        if request.functions and "tools" not in settings.extra_body:
            tools = self._tools.of(request.functions, lambda found: [_wire_tool(each) for each in found])
            body += b',"tools":', tools
        return b"".join([*body, b"}"])

    def decoder(self, request: Request) -> ResponsesDecoder:
        return ResponsesDecoder(self._name, request.on_usage)

    def concedes(self, message: str) -> bool:
        """Drop what a model refuses: encrypted reasoning, reasoning that is sent back, the form of the
        answer, a temperature.
        """
        said = message.replace(self._name, "")
        if self._form and about_schema(said):
            self._form = False
            return True
        given = self._temperature and TEMPERATURE in self._settings.extra_body
        if given and TEMPERATURE in said and UNSUPPORTED.search(said):
            self._temperature = False
            return True
        if self._encrypted and _ABOUT_CIPHER.search(said):
            self._encrypted = False
            return True
        if self._reasoning_back and _ABOUT_ITEMS.search(said):
            self._reasoning_back = False
            return True
        return False

    def _wire_items(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The conversation as items; reasoning only in the current tool loop, where the API wants it."""
        items: list[dict[str, Any]] = []
        in_loop = loop_start(messages) if self._reasoning_back else len(messages)
        for at, message in enumerate(messages):
            if message.role == "tool":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": message.tool_call_id,
                        "output": marked_result(message),
                    }
                )
                continue
            if at >= in_loop:
                items += [_wire_reasoning(block) for block in own_reasoning(message, self._name)]
            if message.content or message.role == "user":
                items.append({"type": "message", "role": message.role, "content": message.content})
            items += [
                # The item's own id is left out: the endpoint has not stored that item.
                {
                    "type": "function_call",
                    "call_id": call.id,
                    "name": function_name(call.name),
                    "arguments": _wire_arguments(call.arguments),
                }
                for call in message.tool_calls
            ]
        return items


def _wire_tool(function: Function) -> dict[str, Any]:
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        # The tools' schemas need not meet the API's strict form.
        "strict": False,
    }


def _wire_arguments(arguments: str) -> str:
    if arguments_object(arguments) is None:
        return dump_json(wrapped_arguments(arguments)).decode()
    return arguments


def _wire_reasoning(block: Reasoning) -> dict[str, Any]:
    item = {"type": "reasoning", **({"id": block.id} if block.id else {})}
    if block.data:
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
        return {**item, "summary": summary, "encrypted_content": block.data}
    return {**item, "summary": [], "content": [{"type": "reasoning_text", "text": block.text}]}
