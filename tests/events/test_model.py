"""The event model: what is stored of an event, and what a reader gets of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.events.model import (
    GENESIS,
    HEADER,
    MAX_DEPTH,
    EventContext,
    NewEvent,
    current_context,
    decode,
    dump_json,
    encode,
    new_id,
    within,
)
from lightagentd.redaction import Redactor


def event(data: dict[str, Any], **fields: Any) -> NewEvent:
    return NewEvent(topic="agent.message", type="message", data=data, **fields)


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return {"value": value}


def test_a_record_is_a_header_line_and_a_data_line_whose_hashes_it_names() -> None:
    record, stored = encode(event({"a": 1}), 7, "f" * 64, Redactor())
    line, data = record.split(b"\n")
    header = json.loads(line)
    assert list(header) == [
        "seq",
        "time",
        "topic",
        "type",
        "source",
        "agent",
        "session",
        "owner",
        "caller",
        "request_id",
        "trace_id",
        "correlation_id",
        "data_sha256",
        "prev",
    ]
    assert header["seq"] == 7
    assert header["prev"] == "f" * 64
    assert header["data_sha256"] == hashlib.sha256(b'{"a":1}').hexdigest()
    assert data == b'{"a":1}'
    assert stored.hash == hashlib.sha256(line).hexdigest()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"text": "näive 漢字 \U0001f600 \u2028 \x00 \x7f"},
        {"text": "two\nlines\r\n"},
        {"list": [1, 2.5, None, True, {"deep": [[]]}]},
        {"big": "x" * 3_000_000, "int": 2**80},
        nested(MAX_DEPTH),
    ],
    ids=["empty", "unicode", "lines", "types", "huge", "nested"],
)
def test_an_event_comes_back_as_it_was_stored(data: dict[str, Any]) -> None:
    with within(agent="ops", session="ses_1", owner=1000, trace_id="trace_1"):
        record, stored = encode(event(data), 1, GENESIS, Redactor())
    assert decode(record) == stored
    assert stored.data == data
    assert (stored.agent, stored.session, stored.owner) == ("ops", "ses_1", 1000)
    assert record.count(b"\n") == 1


@pytest.mark.parametrize("text", ["\udcff", "a\ud800", "\udc80\ud800b", "ok \udfff ok"])
def test_lone_surrogates_become_replacement_characters_for_readers_and_in_memory(text: str) -> None:
    with within(correlation_id=text):
        record, stored = encode(event({"text": text, text: [text]}), 1, GENESIS, Redactor())
    assert decode(record) == stored
    assert stored.data is not None
    assert "\ufffd" in stored.data["text"]
    assert "\ufffd" in stored.correlation_id
    dump_json(stored.to_dict()).decode()


def test_numbers_that_json_does_not_have_become_null() -> None:
    data = {"a": float("nan"), "b": [float("inf")], "c": {"d": -float("inf")}, "e": 1.5}
    assert dump_json(data) == b'{"a":null,"b":[null],"c":{"d":null},"e":1.5}'


def test_a_record_without_data_is_an_event_whose_data_was_deleted() -> None:
    record, stored = encode(event({"a": 1}), 1, GENESIS, Redactor())
    line = record.partition(b"\n")[0]
    for left in (line, line + b"\n"):
        assert decode(left) == replace(stored, data=None)


@pytest.mark.parametrize(
    "data",
    [nested(MAX_DEPTH + 1), {"a": object()}, {"a": {1, 2}}, {"a": 10**5000}],
    ids=["deep", "object", "set", "number"],
)
def test_data_that_no_reader_could_read_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(event(data), 1, GENESIS, Redactor())


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\n",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}\n{}",
        b"\xff\xfe\n{}",
        b'{"seq":1,"time":1}\n{}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_not_an_event_are_a_value_error(record: bytes) -> None:
    with pytest.raises(ValueError):
        decode(record)


def test_a_header_with_a_key_that_is_not_known_is_a_value_error() -> None:
    record, _ = encode(event({}), 1, GENESIS, Redactor())
    with pytest.raises(ValueError, match="more"):
        decode(record.replace(b'{"seq"', b'{"more":1,"seq"', 1))


@pytest.mark.parametrize(
    "topic", ["", "agent", "agent.", ".agent", "Agent.x", "a..b", "a.b\n", "a." + "b" * 200]
)
def test_a_topic_that_is_none_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="not a topic"):
        NewEvent(topic=topic, type="message", data={})


async def test_a_task_inherits_the_context_and_a_thread_starts_with_none() -> None:
    seen: list[EventContext] = []

    async def child() -> None:
        seen.append(current_context())

    with within(agent="ops", trace_id="trace_1"):
        await asyncio.create_task(child())
        with within(request_id="req_1"):
            await asyncio.create_task(child())
        thread = threading.Thread(target=lambda: seen.append(current_context()))
        thread.start()
        thread.join()
    assert seen == [
        EventContext(agent="ops", trace_id="trace_1"),
        EventContext(agent="ops", trace_id="trace_1", request_id="req_1"),
        EventContext(),
    ]
    assert current_context() == EventContext()


def test_ids_have_their_prefix_and_differ() -> None:
    ids = {new_id("req") for _ in range(100)}
    assert len(ids) == 100
    assert all(len(found) == 20 and found.startswith("req_") for found in ids)


def test_a_header_is_written_as_the_encoder_of_json_would() -> None:
    odd = 'a"b\\c\n\x01\x7f é\u2028'
    for who in (EventContext(), EventContext(agent=odd, session=odd, owner=0, caller=1, correlation_id=odd)):
        new = NewEvent(topic="a.b", type=odd, data={}, source=odd, context=replace(who, trace_id=odd))
        record, stored = encode(new, 7, "f" * 64, Redactor())
        header = {name: value for name, value in stored.to_dict().items() if name not in ("data", "hash")}
        assert record.partition(b"\n")[0] == dump_json(header)
        assert tuple(header) == HEADER
