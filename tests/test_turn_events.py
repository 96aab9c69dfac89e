"""The events of a turn: a field means the same in each, and each goes out on the wire as it is."""

from __future__ import annotations

from typing import Any

import pytest
from asyncvarlink.conversion import VarlinkType

from lightagentd.api import LAST_EVENTS, TurnEvent, turn_events
from lightagentd.errors import InvalidArgument, from_dict

HEADER = {"session": "ses_1", "trace_id": "trace_1"}
SAMPLES: dict[Any, Any] = {str: "text", int: 7, bool: True, list[str]: ["a"], Any: {"a": 1}}


def sample(event: type[turn_events.Event]) -> dict[str, Any]:
    """An event with a value in each field that has no default, as it goes out."""
    values = {name: SAMPLES.get(shape) for name, shape in event.__annotations__.items()}
    return {"type": event.type, **HEADER, **event(**values).fields()}


def test_each_type_is_there_once_and_has_a_class() -> None:
    names = [event.type for event in turn_events.EVENTS]
    assert len(set(names)) == len(names)
    assert {*turn_events.EVENTS} == {*turn_events.Event.__subclasses__()}
    assert {*LAST_EVENTS} < {*names}


def test_a_field_has_one_shape_in_all_events() -> None:
    shapes: dict[str, Any] = {}
    for event in turn_events.EVENTS:
        for name, shape in event.__annotations__.items():
            assert shapes.setdefault(name, shape) == shape, (event.type, name)


def test_each_event_goes_out_on_varlink_as_it_is() -> None:
    wire = VarlinkType.from_type_annotation(TurnEvent)
    for event in turn_events.EVENTS:
        sent = sample(event)
        assert wire.tojson(sent) == sent, event.type


def test_a_field_that_is_none_of_its_type_is_refused() -> None:
    with pytest.raises(TypeError):
        turn_events.Notice(code="x", message="y", suggestion="z")  # type: ignore[call-arg]


def test_the_end_of_a_turn_that_failed_at_an_argument_goes_out_and_comes_back() -> None:
    failure = InvalidArgument("x is missing.", suggestion="Add it.", field="x")
    sent = {"type": "error", **HEADER, **turn_events.Failed.of(failure, steps=1, duration_ms=2).fields()}
    assert VarlinkType.from_type_annotation(TurnEvent).tojson(sent) == sent
    back = from_dict(sent)
    assert type(back) is InvalidArgument
    assert (back.message, back.suggestion) == (failure.message, failure.suggestion)
