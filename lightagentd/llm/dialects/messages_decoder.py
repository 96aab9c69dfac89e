"""Decodes answers of the Messages API.

The references are the guide "Streaming messages" and those about tool use and extended thinking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lightagentd.events.model import dump_json
from lightagentd.llm.dialects.dialect import count, text
from lightagentd.llm.dialects.typed_events import MOST_BLOCKS, TypedDecoder
from lightagentd.llm.endpoint.refusals import stream_error
from lightagentd.llm.protocol import Part, Reasoning, ReasoningDelta, TextDelta, ToolCall, Usage

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def place_of(block: Reasoning) -> tuple[int, int]:
    """The number of characters of text and of calls before a block (see `MessagesDecoder`)."""
    if not re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", block.id):
        return 0, 0
    chars, _, calls = block.id.partition("/")
    return int(chars), int(calls)


@dataclass(kw_only=True)
class _Block:
    """A block of the answer that is being assembled."""

    index: int
    kind: str
    id: str = ""
    name: str = ""
    given: str = ""
    """The JSON of the input of a call that came whole."""
    pieces: list[str] = field(default_factory=list)
    """Text, thinking, or the JSON of a call's input."""
    signature: list[str] = field(default_factory=list)
    data: str = ""


class MessagesDecoder(TypedDecoder):
    """Assembles the events of one answer.

    A block of thinking has no id of its own. The id of its `Reasoning` gives its place as CHARACTERS/CALLS
    before it, if it was not at the beginning.
    """

    PROTOCOL = "Messages API"

    def __init__(self, model: str, on_usage: Callable[[Usage], None] | None = None) -> None:
        super().__init__(model, on_usage)
        self._all: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._tokens = {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }

    def _take(self, event: dict[str, Any]) -> list[Part] | None:
        match event.get("type"):
            case "content_block_delta":
                return self._delta(event)
            case "content_block_start":
                return self._start(event)
            case "content_block_stop" | "ping":
                return []
            case "message_start":
                self._take_usage((event.get("message") or {}).get("usage"))
                return []
            case "message_delta":
                if reason := text((event.get("delta") or {}).get("stop_reason")):
                    self.over, self._reason = True, _REASONS.get(reason, "")
                self._take_usage(event.get("usage"))
                return []
            case "message_stop":
                self.over = True
                return []
            case "message":
                return self._whole(event)
            case "error":
                raise stream_error(self._model, event)
        return None

    def _whole(self, message: dict[str, Any]) -> list[Part]:
        """An answer in one piece, from servers that do not stream."""
        found: list[Part] = []
        for index, block in enumerate(message.get("content") or []):
            found += self._start({"index": index, "content_block": block})
        self.over, self._reason = True, _REASONS.get(text(message.get("stop_reason")), "")
        self._take_usage(message.get("usage"))
        return found

    def _start(self, event: dict[str, Any]) -> list[Part]:
        given = event["content_block"]
        if len(self._all) >= MOST_BLOCKS:
            raise ValueError("too many blocks")
        index = event.get("index")
        block = _Block(index=len(self._all) if index is None else int(index), kind=text(given.get("type")))
        self._all.append(block)
        self._by_index[block.index] = block
        if block.kind == "text":
            return self._text(block, text(given.get("text")))
        if block.kind == "thinking":
            block.signature.append(text(given.get("signature")))
            return self._thinking(block, text(given.get("thinking")))
        if block.kind == "redacted_thinking":
            block.data = text(given.get("data"))
        elif block.kind == "tool_use":
            block.id, block.name = text(given.get("id")), text(given.get("name"))
            block.given = dump_json(given["input"]).decode() if given.get("input") else ""
        return []

    def _delta(self, event: dict[str, Any]) -> list[Part]:
        delta, index = event["delta"], event.get("index")
        block = self._all[-1] if index is None else self._by_index[int(index)]
        match delta.get("type"):
            case "text_delta" if block.kind == "text":
                return self._text(block, text(delta["text"]))
            case "thinking_delta" if block.kind == "thinking":
                return self._thinking(block, text(delta["thinking"]))
            case "signature_delta" if block.kind == "thinking":
                block.signature.append(text(delta["signature"]))
            case "input_json_delta" if block.kind == "tool_use":
                block.pieces.append(text(delta["partial_json"]))
        return []

    def _text(self, block: _Block, said: str) -> list[Part]:
        block.pieces.append(said)
        self._said = self._said or bool(said)
        return [TextDelta(said)] if said else []

    def _thinking(self, block: _Block, said: str) -> list[Part]:
        block.pieces.append(said)
        return [ReasoningDelta(said)] if said else []

    def _take_usage(self, usage: Any) -> None:
        """Store the endpoint's counts. Each is for the whole answer so far, not for the part since the last
        count.
        """
        if usage is None:
            return
        for name in self._tokens:
            if usage.get(name) is not None:
                # Some servers report zero at the end for the prompt that they counted at the beginning.
                least = 0 if name == "output_tokens" else self._tokens[name]
                self._tokens[name] = max(least, count(usage[name]))
        new, made, read, said = self._tokens.values()
        self._count(prompt=new + made + read, completion=said, cached=read)

    def _blocks(self) -> Iterator[Reasoning | ToolCall]:
        chars = calls = 0
        for block in sorted(self._all, key=lambda block: block.index):
            place = f"{chars}/{calls}" if chars or calls else ""
            if block.kind == "text":
                chars += sum(map(len, block.pieces))
            elif block.kind == "redacted_thinking" and block.data:
                yield Reasoning(model=self._model, data=block.data, id=place)
            elif block.kind == "thinking" and not (self._reason == "length" and block is self._all[-1]):
                yield Reasoning(
                    model=self._model,
                    text="".join(block.pieces),
                    signature="".join(block.signature),
                    id=place,
                )
            elif block.kind == "tool_use":
                calls += 1
                yield ToolCall(id=block.id, name=block.name, arguments=self._arguments(block))

    def _arguments(self, block: _Block) -> str:
        """The arguments as the model wrote them."""
        written = "".join(block.pieces)
        if written.strip():
            return written
        # A call that was cut off before its arguments must not run as one without arguments.
        return block.given or ("{" if self._reason == "length" and block is self._all[-1] else "{}")
