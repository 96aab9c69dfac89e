"""What the decoder of the Messages API makes of streams, from the bytes on."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.llm.dialects.messages_decoder import MessagesDecoder
from lightagentd.llm.protocol import (
    TextDelta,
    ToolCall,
    Usage,
)
from tests.llm.dialects.messages_streams import BROKEN, ME, STREAMS, tool
from tests.llm.dialects.reading import joined, read, refused, with_new_ids
from tests.model_server.messages import (
    PING,
    begin,
    call,
    end,
    text,
    thinking,
)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_means(name: str) -> None:
    pieces, wanted = STREAMS[name]
    found = read(MessagesDecoder(ME), pieces)
    assert with_new_ids(found, wanted) == wanted
    ids = [part.id for part in found if isinstance(part, ToolCall)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_ends_with(name: str) -> None:
    pieces, kind = BROKEN[name]
    assert type(refused(MessagesDecoder(ME), pieces)) is kind


def test_an_endpoint_that_began_to_answer_had_the_request() -> None:
    assert refused(MessagesDecoder(ME), [*begin(), b"data: x\n\n"]).reached
    assert refused(MessagesDecoder(ME), begin()).reached
    assert not refused(MessagesDecoder(ME), [b"data: x\n\n"]).reached


def test_usage_is_told_as_soon_as_the_endpoint_says_it() -> None:
    told: list[Usage] = []
    decoder = MessagesDecoder(ME, told.append)
    decoder.feed(json.dumps({"type": "message_start", "message": {"usage": {"input_tokens": 9}}}))
    assert told == [Usage(prompt_tokens=9)]
    decoder.feed(json.dumps({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 4}}))
    assert told[1:] == [Usage(prompt_tokens=9, completion_tokens=4)]


def test_text_is_delivered_before_the_answer_ends() -> None:
    decoder = MessagesDecoder(ME)
    decoder.feed(json.dumps({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}))
    data = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    assert list(decoder.feed(json.dumps(data))) == [TextDelta("a")]


WHOLE = b"".join(
    [
        *begin(12, read=5),
        PING,
        *thinking(0, "Grüße — ", "🦊?"),
        *text(1, "Ein Füchs", "lein 🦊 läuft."),
        *call(2, "file_stat", '{"path": "/tmp/ü', '🦊"}'),
        *call(3, "proc_list", call_id="toolu_2"),
        *end("tool_use"),
    ]
)
EXPECTED = joined(read(MessagesDecoder(ME), [WHOLE]))


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_stream_means_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[a:b] for a, b in itertools.pairwise(places)]
    assert joined(read(MessagesDecoder(ME), pieces)) == EXPECTED


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_a_stream_means_the_same_with_other_line_ends_and_byte_by_byte(newline: bytes) -> None:
    other = b"\xef\xbb\xbf" + WHOLE.replace(b"\n", newline)
    pieces = [other[at : at + 1] for at in range(len(other))]
    assert joined(read(MessagesDecoder(ME), pieces)) == EXPECTED


def test_arguments_in_very_many_pieces_are_whole() -> None:
    pieces = ['{"a": "', *(["x" * 100] * 20_000), '"}']
    found = read(MessagesDecoder(ME), [*begin(), *call(0, "f", *pieces), *end("tool_use")])
    assert found[0] == tool("".join(pieces))
