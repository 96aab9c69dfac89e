"""The answers of chat completions, byte for byte as servers send them: parts or an error out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.errors import ModelError
from lightagentd.llm.dialects.chat_decoder import ChatDecoder
from lightagentd.llm.protocol import Finish, Part, ToolCall, Usage
from tests.llm.dialects.chat_streams import BAD, GOOD, piece, text, tool, usage, used
from tests.llm.dialects.reading import joined, read, refused


def same(found: list[Part], expected: list[Part]) -> None:
    """Equal, where an id of `*` stands for any that nobody else has."""
    ids = [part.id for part in found if isinstance(part, ToolCall)]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    wanted = [part.id for part in expected if isinstance(part, ToolCall)]
    made = dict(zip(ids, wanted, strict=True))
    assert [
        ToolCall(id=made[part.id], name=part.name, arguments=part.arguments)
        if isinstance(part, ToolCall)
        else part
        for part in joined(found)
    ] == expected


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_understood(name: str) -> None:
    stream, expected = GOOD[name]
    same(read(ChatDecoder("p/m"), [stream]), expected)


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_an_error(name: str) -> None:
    stream, kind = BAD[name]
    err = refused(ChatDecoder("p/m"), [stream])
    assert type(err) is kind
    assert "p/m" in err.message
    assert err.suggestion
    assert err.reached


@pytest.mark.parametrize("name", GOOD)
def test_one_byte_at_a_time_changes_nothing(name: str) -> None:
    stream, expected = GOOD[name]
    same(read(ChatDecoder("p/m"), (bytes([byte]) for byte in stream)), expected)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_cuts_at_any_bytes_change_nothing(name: str, data: st.DataObject) -> None:
    stream, expected = GOOD[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    same(read(ChatDecoder("p/m"), pieces), expected)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DELTAS = st.one_of(
    st.builds(lambda said: {"content": said}, WORDS),
    st.builds(lambda said: {"reasoning_content": said}, WORDS),
    st.builds(
        lambda index, said: {"tool_calls": [piece(index, f"c{index}", "f_g", said)]}, st.integers(0, 3), WORDS
    ),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Any valid stream: deltas in any order, line ends of any kind, comments, escaped or not."""
    end = draw(st.sampled_from(["\n", "\r", "\r\n"]))
    lines = [draw(st.sampled_from(["", "\ufeff"]))]
    for delta in [*draw(st.lists(DELTAS, max_size=6)), None]:
        found = {"choices": [{"delta": delta, "finish_reason": None if delta else "stop"}], "usage": None}
        lines += draw(st.lists(st.sampled_from([": note", "event: x", "retry: 1"]), max_size=2))
        space = draw(st.sampled_from(["", " "]))
        lines += [f"data:{space}{json.dumps(found, ensure_ascii=draw(st.booleans()))}", ""]
    lines += ["data: [DONE]", ""]
    return lines[0].encode() + end.join([*lines[1:], ""]).encode()


@settings(max_examples=300, deadline=None)
@given(streams(), st.data())
def test_any_valid_stream_means_the_same_wherever_it_is_cut(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = joined(read(ChatDecoder("p/m"), [stream]))
    assert joined(read(ChatDecoder("p/m"), pieces)) == whole
    assert isinstance(whole[-1], Finish)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_any_damage_is_an_answer_or_a_model_error(name: str, data: st.DataObject) -> None:
    stream = bytearray(GOOD[name][0])
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        if not stream:
            return
    try:
        found = read(ChatDecoder("p/m"), [bytes(stream)])
    except ModelError:
        return
    assert isinstance(found[-1], Finish)


def test_usage_is_told_as_soon_as_it_is_there() -> None:
    told: list[Usage] = []
    decoder = ChatDecoder("p/m", told.append)
    decoder.feed(json.dumps({**text("a"), "usage": usage(9, 1)}))
    decoder.feed(json.dumps({**text("b"), "usage": usage(9, 2)}))
    assert told == [used(9, 1), used(9, 2)]


def test_arguments_in_very_many_pieces_take_no_time() -> None:
    count = 200_000
    head = json.dumps(tool(piece(0, "a", "f_g", '{"x": "')))
    more = json.dumps(tool(piece(0, None, None, "xxxx")))
    decoder = ChatDecoder("p/m")
    decoder.feed(head)
    for _ in range(count):
        decoder.feed(more)
    decoder.feed(json.dumps(tool(piece(0, None, None, '"}'), finish="tool_calls")))
    found = list(decoder.finish(""))
    assert isinstance(found[0], ToolCall)
    assert len(found[0].arguments) == 4 * count + 9
