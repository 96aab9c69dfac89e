"""Server-sent events, however the network cuts them."""

from __future__ import annotations

import pytest

from lightagentd.llm.endpoint.sse import SSEDecoder


def decode(*chunks: bytes) -> list[str]:
    decoder = SSEDecoder()
    return [data for chunk in chunks for data in decoder.feed(chunk)] + decoder.finish()


STREAM = (
    "\ufeff: a comment\n"
    "event: delta\n"
    "id: 7\n"
    "data: grüße 👋\n"
    "\n"
    "data:two\r\n"
    "data: lines\r\n"
    "\r\n"
    "retry: 3\n"
    "data\n"
    "data:  kept space\n"
    "\n"
    ":\n"
    "\n"
    "data: [DONE]\n"
    "\n"
).encode()
EVENTS = ["grüße 👋", "two\nlines", "\n kept space", "[DONE]"]


def test_events_are_decoded_as_the_standard_says() -> None:
    assert decode(STREAM) == EVENTS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for cut in range(len(STREAM) + 1):
        assert decode(STREAM[:cut], STREAM[cut:]) == EVENTS, cut


def test_one_byte_at_a_time_changes_nothing() -> None:
    assert decode(*(bytes([byte]) for byte in STREAM)) == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_ending_ends_a_line(end: bytes) -> None:
    stream = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    assert decode(stream) == ["a\nb", "c"]
    assert decode(*(bytes([byte]) for byte in stream)) == ["a\nb", "c"]


def test_an_event_is_given_out_as_soon_as_its_empty_line_is_there() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\n") == ["a"]
    assert decoder.finish() == []


def test_the_end_of_the_stream_ends_its_last_event() -> None:
    assert decode(b"data: a") == ["a"]
    assert decode(b"data: a\n") == ["a"]
    assert decode(b"data: a\r") == ["a"]


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert decode(b"data: a\xff\n\n") == ["a\ufffd"]
    assert decode(b"data: a\xe2\x82") == ["a\ufffd"]


def test_only_a_byte_order_mark_at_the_start_is_left_out() -> None:
    assert decode("\ufeffdata: a\n\ndata: \ufeffb\n\n".encode()) == ["a", "\ufeffb"]


def test_fields_that_only_begin_like_data_are_left_out() -> None:
    assert decode(b"dataset: x\ndata : y\n\ndata: z\n\n") == ["z"]
