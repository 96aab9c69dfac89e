"""Chat completions, as OpenAI and most other servers speak them.

The API reference is "Create chat completion" with `stream: true`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import ModelCutOff, ModelGarbled, ModelRejected
from lightagentd.events.model import dump_json, new_id
from lightagentd.llm.dialects.dialect import (
    ERROR_CHARS,
    NAME_CHARS,
    count,
    joined_url,
    marked_result,
    text,
)
from lightagentd.llm.protocol import (
    Finish,
    Function,
    Message,
    ModelSettings,
    Part,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)


class ChatCompletions:
    """The dialect for one model."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._name = f"{settings.provider}/{settings.model}"
        self._functions: tuple[Sequence[Function], bytes] = ((), b"")
        """The functions of the last call and their JSON: they are the same for all steps of a turn."""

    def url(self, base_url: str) -> str:
        return joined_url(base_url, "/chat/completions")

    def headers(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def body(self, request: Request) -> bytes:
        messages: list[dict[str, Any]] = []
        if request.system:
            messages.append({"role": "system", "content": request.system})
        messages += [_wire_message(message) for message in request.messages]
        body = dump_json(
            {
                "model": self._settings.model,
                "messages": messages,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._settings.extra_body,
            }
        )
        if not request.functions:
            return body
        known, tools = self._functions
        if known is not request.functions:
            tools = dump_json([_wire_tool(function) for function in request.functions])
            self._functions = (request.functions, tools)
        return body[:-1] + b',"tools":' + tools + b"}"

    def decoder(self, request: Request) -> ChatDecoder:
        return ChatDecoder(self._name, request.on_usage)


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
    """A call as it may be sent back: endpoints refuse a conversation with a bad name or bad JSON in it."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:NAME_CHARS] or "unnamed"
    try:
        whole = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return {
        "name": name,
        "arguments": call.arguments if whole else json.dumps({"not_a_json_object": call.arguments}),
    }


@dataclass(kw_only=True)
class _Call:
    """A tool call that is being put together."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChatDecoder:
    """Puts the chunks of one answer together."""

    def __init__(self, model: str, on_usage: Callable[[Usage], None] | None = None) -> None:
        self._on_usage = on_usage
        self._model = model
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._reason = ""
        self._usage: Usage | None = None
        self._any = False
        self._done = False

    def feed(self, data: str) -> list[Part]:
        """The parts in the data of one event. Raises ModelGarbled, ModelRejected."""
        if data.strip() == "[DONE]":
            self._done = True
            return []
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as err:
            raise ModelGarbled(
                f"The stream of {self._model} holds something that is not JSON: {data[:200]!r}."
            ) from err
        if isinstance(chunk, dict) and (error := chunk.get("error")):
            said = error.get("message") if isinstance(error, dict) else error
            raise ModelRejected(f"The model {self._model} broke off: {str(said)[:ERROR_CHARS]}")
        try:
            return self._take(chunk)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as err:
            raise ModelGarbled(
                f"The stream of {self._model} holds something that is not part of an answer: {data[:200]!r}."
            ) from err

    def _take(self, chunk: dict[str, Any]) -> list[Part]:
        if usage := chunk.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self._usage = Usage(
                prompt_tokens=count(usage.get("prompt_tokens")),
                completion_tokens=count(usage.get("completion_tokens")),
                cached_tokens=count(details.get("cached_tokens")),
            )
            if self._on_usage is not None:
                self._on_usage(self._usage)
        self._any = True
        parts: list[Part] = []
        for choice in (chunk.get("choices") or [])[:1]:
            self._reason = text(choice.get("finish_reason")) or self._reason
            delta = choice.get("delta") or {}
            if said := text(delta.get("content")):
                parts.append(TextDelta(said))
            for piece in delta.get("tool_calls") or []:
                self._add(piece)
        return parts

    def _add(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        call_id, name = text(piece.get("id")), text(function.get("name"))
        call = self._call_of(piece.get("index"), call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        call.arguments += text(function.get("arguments"))

    def _call_of(self, index: int | None, call_id: str, name: str) -> _Call:
        """The call that a piece belongs to. Some endpoints give no index, or the same one to every call."""
        if index is None:
            known = self._calls[-1] if self._calls and not name else None
        else:
            known = self._by_index.get(int(index))
        if known is not None and not (name and call_id and known.id and known.id != call_id):
            return known
        call = _Call(index=len(self._calls) if index is None else int(index))
        self._calls.append(call)
        self._by_index[call.index] = call
        return call

    def finish(self, content_type: str) -> Iterator[Part]:
        """The calls, in the order of their index, and the end. Raises ModelGarbled."""
        if not self._any:
            raise ModelGarbled(
                f"The model {self._model} answered with nothing that is a stream of chat completions "
                f"(content type {content_type[:100] or 'missing'}).",
                suggestion="Check base_url: it must name an OpenAI-compatible API.",
            )
        if not self._done and not self._reason:
            raise ModelCutOff(f"The answer of {self._model} broke off before its end.", reached=True)
        used: set[str] = set()
        for call in sorted(self._calls, key=lambda call: call.index):
            call_id = call.id
            if not call_id or call_id in used:
                call_id = new_id("call")
            used.add(call_id)
            yield ToolCall(id=call_id, name=call.name, arguments=call.arguments or "{}")
        yield Finish(reason=self._reason or ("tool_calls" if self._calls else "stop"), usage=self._usage)
