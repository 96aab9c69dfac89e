"""Decodes answers of chat completions: chunks of a stream, or one whole completion without a stream.

Beyond the API reference, it handles what servers have been seen to send: calls without index or id, the same
index for every call, arguments as an object, content in parts, reasoning in fields of several names, an end
without a reason, and reasons with other names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lightagentd.errors import ModelCutOff, ModelGarbled, ModelOverloaded
from lightagentd.events.model import dump_json, new_id
from lightagentd.llm.dialects.dialect import count, from_json, text
from lightagentd.llm.dialects.fitting import arguments_object
from lightagentd.llm.dialects.reasoning_details import FIELD as DETAILS
from lightagentd.llm.dialects.reasoning_details import ReasoningDetails
from lightagentd.llm.dialects.think_tags import ThinkTags
from lightagentd.llm.endpoint.refusals import error_said, printable, stream_error
from lightagentd.llm.protocol import (
    Finish,
    Part,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    Usage,
)

REASONING = ("reasoning_content", "reasoning")
"""Where servers have it: DeepSeek, Qwen, GLM, llama.cpp; and OpenRouter, Ollama, vLLM, Groq."""
EXTRA = "extra_content"
"""Beside a call, what Gemini wants back with it: the signature of what it thought."""
_REASONS = {
    "stop": ("stop", "end_turn", "eos", "eos_token", "stop_sequence"),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    "tool_calls": ("tool_calls", "function_call", "tool_use"),
    "content_filter": (
        *("content_filter", "sensitive", "refusal"),
        *("safety", "recitation", "prohibited_content", "blocklist", "spii"),  # Gemini
    ),
    "error": ("error", "network_error", "insufficient_system_resource", "abort", "aborted", "cancelled"),
}
_NORMAL = {said: reason for reason, words in _REASONS.items() for said in words}
_MOST_CALLS = 1000
"""More calls in one answer than anybody means."""


@dataclass(kw_only=True)
class _Call:
    """A tool call that is being assembled."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: str = ""
    """The JSON of what is to go back with it."""

    def came_whole(self) -> bool:
        """Whether its whole arguments came in one piece."""
        return len(self.arguments) == 1 and arguments_object(self.arguments[0]) is not None


class ChatDecoder:
    """Assembles the chunks of one answer."""

    def __init__(self, model: str, on_usage: Callable[[Usage], None] | None = None) -> None:
        self._on_usage = on_usage
        self._model = model
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._reason = ""
        self._usage: Usage | None = None
        self._any = False
        self.over = False
        self._think = ThinkTags()
        self._reasoning: list[str] = []
        self._reasoning_field = ""
        self._details = ReasoningDetails()

    def feed(self, data: str) -> list[Part]:
        """The parts in the data of one event. Raises ModelError."""
        if self.over:
            return []
        try:
            chunk = from_json(data)
        except (ValueError, RecursionError) as err:
            if data.strip() == "[DONE]":
                self.over = True
                return []
            if not data.strip():  # keeps the connection alive
                return []
            raise self._garbled("something that is not JSON", data) from err
        try:
            return self._take(chunk)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as err:
            raise self._garbled("something that is not part of an answer", data) from err

    def _garbled(self, what: str, data: str) -> ModelGarbled:
        return ModelGarbled(
            f"The stream of {self._model} holds {what}: {data[:200]!r}.",
            suggestion="Check base_url and kind of the provider, or choose another model.",
            reached=True,
        )

    def _take(self, chunk: dict[str, Any]) -> list[Part]:
        if error := chunk.get("error"):
            raise stream_error(self._model, error)
        choices = chunk.get("choices")
        if choices is None and "choices" not in chunk and error_said(chunk) is not None:
            raise stream_error(self._model, chunk)
        self._count(chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage"))
        self._any = self._any or "choices" in chunk
        parts: list[Part] = []
        for choice in (choices or [])[:1]:
            if error := choice.get("error"):
                raise stream_error(self._model, error)
            self._count(choice.get("usage"))  # Moonshot has it there
            self._reason = text(choice.get("finish_reason")) or self._reason
            self._delta(choice.get("delta") or choice.get("message") or {}, parts)
        return parts

    def _count(self, usage: dict[str, Any] | None) -> None:
        if not usage:
            return
        cached = (
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            or usage.get("prompt_cache_hit_tokens")  # DeepSeek
            or usage.get("cached_tokens")  # Moonshot
        )
        prompt = count(usage.get("prompt_tokens"))
        # Gemini and xAI count the reasoning tokens only in the sum.
        beyond = count(usage.get("total_tokens")) - prompt
        completion = max(count(usage.get("completion_tokens")), beyond)
        if not (prompt or completion):
            return  # the server does not count
        self._usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=count(cached))
        if self._on_usage is not None:
            self._on_usage(self._usage)

    def _delta(self, delta: dict[str, Any], parts: list[Part]) -> None:
        self._details.take(delta.get(DETAILS))
        for name in REASONING:
            if thought := text(delta.get(name)):
                self._reasoning_field = self._reasoning_field or name
                self._reasoned(thought, parts)
                break  # some servers have the same in both
        content = delta.get("content")
        if isinstance(content, list):
            for part in content:
                self._content_part(part, parts)
        elif said := text(content):
            parts += [TextDelta(said)] if self._think.settled else self._think.feed(said)
        if refused := text(delta.get("refusal")):
            parts.append(TextDelta(refused))
        for piece in delta.get("tool_calls") or ():
            self._add(piece)
        if legacy := delta.get("function_call"):
            self._add({"index": 0, "function": legacy})

    def _reasoned(self, thought: str, parts: list[Part]) -> None:
        self._reasoning.append(thought)
        parts.append(ReasoningDelta(thought))

    def _content_part(self, part: dict[str, Any], parts: list[Part]) -> None:
        """A part of content that is a list, as Mistral's reasoning models send it."""
        if (kind := part.get("type")) == "thinking":
            inner = part.get("thinking")
            for piece in inner if isinstance(inner, list) else [{"text": inner}]:
                if thought := text(piece.get("text")):
                    self._reasoned(thought, parts)
        elif kind in ("text", "output_text", "refusal") and (
            said := text(part.get("text") or part.get(kind))
        ):
            parts += self._think.feed(said)

    def _add(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        call_id, name = text(piece.get("id")), text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # Ollama, in one piece
            arguments = json.dumps(arguments)
        arguments = text(arguments)
        call = self._call_of(piece.get("index"), call_id, name, arguments)
        if name and call.name == name and call.arguments == [arguments] and call.came_whole():
            return  # said again
        call.id = call.id or call_id
        call.name = call.name or name
        if (extra := piece.get(EXTRA)) and isinstance(extra, dict):
            call.extra = dump_json(extra).decode()
        if arguments:
            call.arguments.append(arguments)

    def _call_of(self, index: int | None, call_id: str, name: str, arguments: str) -> _Call:
        """The call that a piece belongs to. Some endpoints give no index, or the same one for every call."""
        if index is None:
            last = self._calls[-1] if self._calls else None
            known = last if last and (not name or (call_id and last.id == call_id)) else None
        else:
            known = self._by_index.get(int(index))
        if known is not None:
            other_id = bool(name and call_id and known.id and known.id != call_id)
            may_begin = bool(name and arguments.startswith("{")) and (index is None or not call_id)
            begins = may_begin and known.arguments != [arguments] and known.came_whole()
            if not (other_id or begins):
                return known
        if len(self._calls) >= _MOST_CALLS:
            raise ValueError("too many calls")
        call = _Call(index=len(self._calls) if index is None else int(index))
        self._calls.append(call)
        self._by_index[call.index] = call
        return call

    def finish(self, content_type: str) -> Iterator[Part]:
        """Reasoning, calls in the order of their index, and the end. Raises ModelError."""
        if not self._any:
            raise ModelGarbled(
                f"The model {self._model} answered with nothing that is a stream of chat completions "
                f"(content type {printable(content_type[:100]) or 'missing'}).",
                suggestion="Check base_url: it must name an OpenAI-compatible API.",
                reached=True,
            )
        if not self.over and not self._reason:
            raise ModelCutOff(
                f"The answer of {self._model} broke off before its end.",
                suggestion="Try again, or choose another model.",
                reached=True,
            )
        # Gemini writes "content_filter: SAFETY".
        reason = _NORMAL.get(self._reason.lower().rpartition(": ")[2], "stop")
        if reason == "error":
            raise ModelOverloaded(
                f"The model {self._model} broke off its answer: {self._reason}.",
                suggestion="Try again later, or choose another model.",
                reached=True,
            )
        yield from self._think.finish()
        if self._reasoning:
            own = self._reasoning_field if self._reasoning_field != REASONING[0] else ""
            yield Reasoning(model=self._model, text="".join(self._reasoning), id=own)
        if self._details.blocks:
            yield Reasoning(model=self._model, data=dump_json(self._details.blocks).decode(), id=DETAILS)
        calls = sorted(self._calls, key=lambda call: call.index)
        for at, call in enumerate(calls):
            if call.extra:
                yield Reasoning(model=self._model, data=call.extra, id=f"{EXTRA}/{at}")
        yield from self._whole_calls(calls, cut=reason == "length")
        if reason in ("stop", "tool_calls"):  # servers mix them up
            reason = "tool_calls" if self._calls else "stop"
        yield Finish(reason=reason, usage=self._usage)

    def _whole_calls(self, calls: list[_Call], *, cut: bool) -> Iterator[ToolCall]:
        used: set[str] = set()
        for call in calls:
            call_id = call.id
            if not call_id or call_id in used:
                call_id = new_id("call")
            used.add(call_id)
            # A call that was cut off before its arguments must not run as one without arguments.
            nothing = "{" if cut and call is self._calls[-1] else "{}"
            yield ToolCall(id=call_id, name=call.name, arguments="".join(call.arguments) or nothing)
