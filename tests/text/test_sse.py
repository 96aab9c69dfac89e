"""Server-sent events, however the network cuts them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.text.sse import MOST_EVENT_BYTES, EventTooLong, SSEDecoder


def fed(decoder: SSEDecoder, *chunks: bytes) -> list[str]:
    return [event.data for chunk in chunks for event in decoder.feed(chunk)]


def decode(*chunks: bytes) -> list[str]:
    decoder = SSEDecoder()
    return fed(decoder, *chunks) + [event.data for event in decoder.finish()]


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
    assert fed(decoder, b"data: a\n") == []
    assert fed(decoder, b"\n") == ["a"]
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


def test_an_event_after_another_may_have_any_line_ends() -> None:
    for stream in (b"data: a\rdata: b\n\n", b"data: a\r\n\n", b"data: a\n\r", b"data: a\r\n\r\n"):
        assert decode(b"data: x\n\n", stream) == ["x", *by_the_standard(stream)]


def test_the_other_fields_are_known_too() -> None:
    decoder = SSEDecoder()
    found = decoder.feed(
        b"event: endpoint\nid: 7\nretry: 1500\ndata: a\n\ndata: b\n\nevent: x\n\ndata: c\n\n"
    )
    assert [(event.data, event.kind) for event in found] == [
        ("a", "endpoint"),
        ("b", "message"),
        ("c", "message"),
    ]
    assert (decoder.last_id, decoder.retry_s) == ("7", 1.5)
    assert decoder.feed(b"id: 8\nevent: y\n\n") == []
    assert decoder.feed(b"id\nid: \0\nretry: x\nevent: z\ndata: d\n") == []
    assert decoder.feed(b"data: e\n\n") == [("d\ne", "z")]
    assert (decoder.last_id, decoder.retry_s) == ("", 1.5)


def test_fields_that_only_begin_like_data_are_left_out() -> None:
    assert decode(b"dataset: x\ndata : y\n\ndata: z\n\n") == ["z"]


def by_the_standard(stream: bytes) -> list[str]:
    """Section 9.2.6 word for word, of a whole stream; the end ends an event, too."""
    found, data = list[str](), list[str]()
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    for line in [*re.split("\r\n|\n|\r", text), ""]:
        if not line:
            if data:
                found.append("\n".join(data))
            data = []
            continue
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
    return found


PIECES = st.lists(
    st.sampled_from(
        [
            *(b"data:", b"data: ", b"data", b"id: 7", b"event", b":", b" ", b"x", b"\0"),
            *(b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xff", b"\xe2\x82"),
            "\u20ac\u2028\u0085".encode(),
        ]
    ),
    max_size=30,
).map(b"".join)


@settings(max_examples=1000, deadline=None)
@given(PIECES, st.data())
def test_any_bytes_cut_anywhere_mean_what_the_standard_says(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(*pieces) == by_the_standard(stream)


@pytest.mark.parametrize("separator", [b"\n\n", b"\r\r", b"\r\n\r\n"])
def test_an_event_is_there_with_the_last_byte_of_its_empty_line(separator: bytes) -> None:
    decoder = SSEDecoder()
    for _ in range(3):
        found = [data for byte in b"data: a" + separator[:-1] for data in fed(decoder, bytes([byte]))]
        found += fed(decoder, separator[-1:])
        assert found == ["a"]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"x\ndata: " * 8192, b"\ndata" * 16384])
@pytest.mark.parametrize("begin", [b"data: ", b": "])
def test_an_event_or_line_without_an_end_is_given_up(begin: bytes, piece: bytes) -> None:
    decoder = SSEDecoder()
    decoder.feed(begin)
    with pytest.raises(EventTooLong, match="8 MiB"):  # noqa: PT012 - it may be any of the pieces
        for _ in range(2 * MOST_EVENT_BYTES // len(piece)):
            decoder.feed(piece)


def test_a_long_event_may_come_a_byte_at_a_time() -> None:
    count = 1_000_000  # with a copy of what came before for each byte this would take an hour
    decoder = SSEDecoder()
    decoder.feed(b"data: ")
    for _ in range(count):
        decoder.feed(b"x")
    assert fed(decoder, b"\n\n") == ["x" * count]


def test_an_event_of_many_lines_may_come_a_line_at_a_time() -> None:
    count = 100_000
    decoder = SSEDecoder()
    for _ in range(count):
        decoder.feed(b"data:x\n")
    assert fed(decoder, b"\n") == ["\n".join("x" * count)]


def test_many_events_may_come_in_one_chunk() -> None:
    assert decode(b"data: x\n\n" * 500_000) == ["x"] * 500_000
