"""Whatever an endpoint sends, a decoder gives parts or a ModelError, and never anything else."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.errors import ModelError
from lightagentd.llm.dialects.dialect import Decoder
from lightagentd.llm.dialects.messages_decoder import MessagesDecoder
from lightagentd.llm.dialects.responses_decoder import ResponsesDecoder
from lightagentd.llm.protocol import (
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCall,
)
from tests.model_server import messages, responses

SENT: dict[str, tuple[Callable[[], Decoder], list[bytes]]] = {
    "messages": (
        lambda: MessagesDecoder("anthropic/x"),
        [
            *messages.begin(read=3),
            *messages.thinking(0, "Hm."),
            *messages.redacted(1, "eA=="),
            *messages.text(2, "a"),
            *messages.call(3, "f", "{}"),
            messages.error_event("Overloaded", "overloaded_error"),
            *messages.end("tool_use"),
        ],
    ),
    "responses": (
        lambda: ResponsesDecoder("openai/x"),
        [
            *responses.begin(),
            *responses.reasoning(0, "Hm."),
            *responses.text(1, "a"),
            *responses.refusal(2, "a"),
            *responses.call(3, "f", "{}"),
            responses.failed("No.", "server_error"),
            responses.error_event("No.", "", "server_error"),
            *responses.cut_short("max_output_tokens"),
            responses.event(
                "response.completed",
                response=responses.response(
                    "completed",
                    output=[{"type": "message", "content": [{"text": "a"}]}],
                    usage=responses.usage(),
                ),
            ),
        ],
    ),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    """The value with another one at a path; without what is there, when that is `changed` itself."""
    if not path:
        return put
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and put is changed:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], put)
    return copy


def check(part: Part) -> None:
    """That a part can be stored and sent on, whoever wrote it."""
    match part:
        case TextDelta() | ReasoningDelta():
            assert isinstance(part.text, str)
        case ToolCall():
            assert part.id
            assert all(isinstance(value, str) for value in part.to_dict().values())
        case Reasoning():
            said = Message(role="assistant", content="", reasoning=(part,))
            assert Message.from_dict(said.to_dict()) == said
            assert all(isinstance(value, str) for value in part.to_dict().values())
        case Finish():
            assert part.reason in ("stop", "length", "tool_calls", "content_filter")


def take(parts: Callable[[], Iterable[Part]]) -> None:
    """Check parts; nothing but a ModelError may come of it."""
    with contextlib.suppress(ModelError):
        for part in parts():
            check(part)


@pytest.mark.parametrize("dialect", SENT)
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_a_stream_with_anything_anywhere_gives_parts_or_a_model_error(
    dialect: str, data: st.DataObject
) -> None:
    make, pieces = SENT[dialect]
    events = [json.loads(piece.partition(b"data: ")[2]) for piece in pieces]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(events) - 1))
        path = data.draw(st.sampled_from(places(events[at])))
        put = data.draw(VALUES | st.just(changed)) if path else data.draw(VALUES)
        events[at] = changed(events[at], path, put)
    order = data.draw(st.sampled_from(["as it is", "shuffled"]))
    if order == "shuffled":
        events = data.draw(st.permutations(events))
    decoder = make()
    for event in events:
        # A client would stop at an error; a decoder has to bear it that it does not.
        take(functools.partial(decoder.feed, json.dumps(event)))
    take(lambda: decoder.finish("text/event-stream"))


@pytest.mark.parametrize("dialect", SENT)
@given(said=st.text(max_size=200) | VALUES.map(json.dumps))
@settings(max_examples=200, deadline=None)
def test_any_text_as_an_event_gives_parts_or_a_model_error(dialect: str, said: str) -> None:
    decoder = SENT[dialect][0]()
    take(lambda: decoder.feed(said))
    take(lambda: decoder.finish("text/plain"))
