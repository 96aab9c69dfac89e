"""What the decoder of the Responses API makes of streams, from the bytes on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.llm.dialects.responses_decoder import ResponsesDecoder
from lightagentd.llm.protocol import (
    ToolCall,
    Usage,
)
from tests.llm.dialects.reading import joined, read, refused, with_new_ids
from tests.llm.dialects.responses_streams import BROKEN, ME, STREAMS
from tests.model_server.responses import (
    begin,
    call,
    end,
    event,
    reasoning,
    response,
    text,
    usage,
)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_means(name: str) -> None:
    pieces, wanted = STREAMS[name]
    found = read(ResponsesDecoder(ME), pieces)
    assert with_new_ids(found, wanted) == wanted
    ids = [part.id for part in found if isinstance(part, ToolCall)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_ends_with(name: str) -> None:
    pieces, kind = BROKEN[name]
    assert type(refused(ResponsesDecoder(ME), pieces)) is kind


def test_usage_is_told_also_of_an_answer_that_failed() -> None:
    told: list[Usage] = []
    broken = response("failed", error={"code": "server_error", "message": "Sorry."}, usage=usage(7, 1))
    refused(ResponsesDecoder(ME, told.append), [*begin(), event("response.failed", response=broken)])
    assert told == [Usage(prompt_tokens=7, completion_tokens=1)]


WHOLE = b"".join(
    [
        *begin(),
        *reasoning(0, "Grüße — ", "🦊?"),
        *text(1, "Ein Füchs", "lein 🦊 läuft."),
        *call(2, "file_stat", '{"path": "/tmp/ü', '🦊"}'),
        *call(3, "proc_list", call_id="call_2"),
        *end(cached=3),
    ]
)
EXPECTED = joined(read(ResponsesDecoder(ME), [WHOLE]))


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_stream_means_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[a:b] for a, b in itertools.pairwise(places)]
    assert joined(read(ResponsesDecoder(ME), pieces)) == EXPECTED


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_a_stream_means_the_same_with_other_line_ends_and_byte_by_byte(newline: bytes) -> None:
    other = b"\xef\xbb\xbf" + WHOLE.replace(b"\n", newline)
    pieces = [other[at : at + 1] for at in range(len(other))]
    assert joined(read(ResponsesDecoder(ME), pieces)) == EXPECTED
