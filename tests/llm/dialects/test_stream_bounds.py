"""Answers that are short on the wire and would be huge in memory, or take long: each ends as ModelGarbled."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from lightagentd.errors import ModelGarbled
from lightagentd.llm.answer_bound import MOST_CHARS, AnswerBound
from lightagentd.llm.dialects import fitting
from lightagentd.llm.dialects.chat_decoder import ChatDecoder
from lightagentd.llm.dialects.dialect import MOST_VALUES, Decoder
from lightagentd.llm.dialects.messages_decoder import MessagesDecoder
from lightagentd.llm.dialects.responses_decoder import ResponsesDecoder
from lightagentd.llm.dialects.think_tags import ThinkTags
from lightagentd.llm.dialects.typed_events import MOST_BLOCKS
from lightagentd.llm.protocol import Message, Reasoning, TextDelta, ToolCall

DECODERS = [ChatDecoder, MessagesDecoder, ResponsesDecoder]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("value", ["[]", "{}", "1"])
def test_an_event_of_very_many_values_is_garbled(decoder: type[Any], value: str) -> None:
    values = ",".join([value] * (MOST_VALUES + 1))
    with pytest.raises(ModelGarbled):
        decoder("p/m").feed(f'{{"type": "ping", "choices": [], "more": [{values}]}}')


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_long_text_is_none(decoder: type[Any]) -> None:
    words = json.dumps("one, two and {three}\\n" * 20_000)
    decoder("p/m").feed(f'{{"type": "ping", "choices": [], "more": {words}}}')


def feed_numbered(decoder: Decoder, name: str, event: dict[str, Any]) -> None:
    """Feed one event more than is allowed, each with another number in the field of that name."""
    for number in range(MOST_BLOCKS + 1):
        decoder.feed(json.dumps({**event, name: number}))


def test_very_many_blocks_are_garbled() -> None:
    with pytest.raises(ModelGarbled):
        feed_numbered(MessagesDecoder("p/m"), "index", {"type": "content_block_start", "content_block": {}})


def test_very_many_items_are_garbled() -> None:
    with pytest.raises(ModelGarbled):
        feed_numbered(
            ResponsesDecoder("p/m"), "output_index", {"type": "response.output_item.added", "item": {}}
        )


def test_very_many_parts_of_an_item_are_garbled() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "x"}
    with pytest.raises(ModelGarbled):
        feed_numbered(ResponsesDecoder("p/m"), "content_index", delta)


def test_an_endpoint_may_have_a_new_id_in_each_event() -> None:
    decoder = ResponsesDecoder("p/m")
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "x"}
    said = [
        part
        for number in range(3 * MOST_BLOCKS)
        for part in decoder.feed(json.dumps({**delta, "item_id": f"{number}"}))
    ]
    assert said == [TextDelta("x")] * 3 * MOST_BLOCKS


def test_blanks_without_end_are_text_and_are_not_kept() -> None:
    think = ThinkTags()
    said = [part for _ in range(3000) for part in think.feed(" ")]
    assert think.settled
    assert "".join(part.text for part in said if isinstance(part, TextDelta)) == " " * 3000


def test_the_same_id_for_every_call_costs_one_digest_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def counted(seed: bytes) -> Any:
        made.append(seed)
        return hashlib.new("sha256", seed)

    monkeypatch.setattr(hashlib, "sha256", counted)
    conversation: list[Message] = []
    for _ in range(200):
        call = ToolCall(id="call_0", name="a_b", arguments="{}")
        conversation.append(Message(role="assistant", content="", tool_calls=(call,)))
        conversation.append(Message(role="tool", content="ok", tool_call_id="call_0", name="a_b"))
    ids = [call.id for message in fitting.fitted(conversation) for call in message.tool_calls]
    assert len(set(ids)) == 200
    assert len(made) == 199


def test_reasoning_that_nobody_can_read_counts_as_what_a_model_says() -> None:
    blocks = [Reasoning(model="p/m", data="x" * (MOST_CHARS // 8)) for _ in range(9)]
    bound = AnswerBound("p/m")
    assert list(bound.parts(blocks[:8])) == blocks[:8]
    with pytest.raises(ModelGarbled):
        list(bound.parts(blocks[8:]))
