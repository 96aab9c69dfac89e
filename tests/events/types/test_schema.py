"""The schema document: complete, described, and true of what daemons store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightagentd.events.model import GENESIS, NewEvent, encode, within
from lightagentd.events.types.agent import Said, TurnFailed
from lightagentd.events.types.event_type import EventType
from lightagentd.events.types.registry import all_types
from lightagentd.events.types.schema import DIALECT, json_schema
from lightagentd.events.types.session import SessionDeleted
from lightagentd.events.types.tool import FilesChanged, emitted
from lightagentd.redaction import Redactor
from tests.events.types.validity import valid


def stored(event: NewEvent) -> dict[str, Any]:
    return encode(event, 1, GENESIS, Redactor())[1].to_dict()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json_schema()


def properties(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, schema in document["$defs"].items():
        for field, one in schema.get("properties", {}).items():
            yield name, field, one


def test_the_document_has_every_kind_once_and_describes_it(document: dict[str, Any]) -> None:
    assert document["$schema"] == DIALECT
    types = {declared.__name__ for declared in all_types().values()}
    assert [branch["title"] for branch in document["anyOf"]] == list(document["$defs"])
    assert set(document["$defs"]) == types
    assert len(types) == len(set(all_types().values())), "two types have the same name"
    for branch in document["anyOf"]:
        assert len(branch["description"]) >= 10, branch
    described = {(name, field): one.get("description", "") for name, field, one in properties(document)}
    assert described["CallEnded", "result"] == "`ok`, or the code of the error."
    assert described["SessionRenamed", "by"] == "The uid of who asked for it."
    assert described["SessionPaused", "by"] == "The uid of who asked for it."


def test_the_document_has_no_defaults_since_what_is_absent_says_nothing(document: dict[str, Any]) -> None:
    assert [found for found in properties(document) if {"default", "title"} & set(found[2])] == []


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (SessionDeleted(by=0), {"by": "0"}),
        (Said(role="user", content="x"), {"role": "system"}),
        (Said(role="user", content="x"), {"more": 1}),
        (TurnFailed(code="timeout", message="m", steps=1, duration_ms=1), {"steps": None}),
        (
            FilesChanged(watch="w", session="", owner=0, path="/", whole=True, changes=[{}]),
            {"changes": ["x"]},
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_event_is_valid_and_one_with_other_data_is_not(
    document: dict[str, Any], made: EventType, wrong: dict[str, Any]
) -> None:
    with within(agent="ops", caller=0):
        event = stored(made.event())
    assert valid(event, document, document)
    assert valid({**event, "data": None}, document, document)
    assert not valid({**event, "data": {**event["data"], **wrong}}, document, document)
    assert not valid({**event, "topic": "no.such", "type": "topic"}, document, document)
    assert not valid({name: one for name, one in event.items() if name != "caller"}, document, document)


def test_what_tools_emit_is_free_but_for_what_is_declared(document: dict[str, Any]) -> None:
    event = stored(emitted("tool.x.seen", "found", {"anything": 1}))
    assert valid(event, document, document)
    assert not valid({**event, "source": "daemon"}, document, document)
    assert not valid({**event, "topic": "tool.inotify", "type": "watch_started"}, document, document)
