"""Reads streams as a client does: bytes, events, parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from lightagentd.errors import ModelError
from lightagentd.llm.dialects.dialect import Decoder
from lightagentd.llm.protocol import Part, ReasoningDelta, TextDelta, ToolCall
from lightagentd.text.sse import SSEDecoder

STREAM = "text/event-stream"


def read(decoder: Decoder, pieces: Iterable[bytes]) -> list[Part]:
    """All parts of an answer. Raises ModelError."""
    events, found = SSEDecoder(), list[Part]()
    for piece in pieces:
        for event in events.feed(piece):
            found += decoder.feed(event.data)
    for event in events.finish():
        found += decoder.feed(event.data)
    return [*found, *decoder.finish(STREAM)]


def refused(decoder: Decoder, pieces: Iterable[bytes]) -> ModelError:
    """The error that an answer ends with."""
    with pytest.raises(ModelError) as caught:
        read(decoder, pieces)
    return caught.value


def joined(parts: Sequence[Part]) -> list[Part]:
    """The parts with neighbouring deltas put together: how they were cut does not matter."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, TextDelta) and isinstance(last, TextDelta):
            found[-1] = TextDelta(last.text + part.text)
        elif isinstance(part, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + part.text)
        else:
            found.append(part)
    return found


def with_new_ids(parts: Sequence[Part], wanted: Sequence[Part]) -> list[Part]:
    """The parts, with `*` for an id that was made up where one is wanted."""
    return [
        replace(part, id="*")
        if isinstance(part, ToolCall) and isinstance(wish, ToolCall) and wish.id == "*" and part.id
        else part
        for part, wish in zip(parts, [*wanted, *parts[len(wanted) :]], strict=True)
    ]
