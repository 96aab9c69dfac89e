"""Values on D-Bus: every public type has a signature, and what D-Bus cannot hold has one answer each."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import typing
from typing import Any

import pytest

from lightagentd import api
from lightagentd.bus.connection import Variant, clean, plain
from lightagentd.control.dbus.types import (
    MAX_JSON_DEPTH,
    check_json,
    from_bus,
    object_name,
    object_path,
    options_of,
    signature_of,
    to_bus,
    variant,
)
from lightagentd.errors import InvalidArgument

PUBLIC = [
    cls for _, cls in inspect.getmembers(api, inspect.isclass) if cls.__module__.startswith(api.__name__)
]


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_every_field_of_every_public_type_has_a_signature(cls: type) -> None:
    for name, annotation in typing.get_type_hints(cls).items():
        assert signature_of(annotation) in {"s", "x", "d", "b", "v", "as", "av", "a{sv}", "aa{sv}"}, name


def test_a_type_without_a_place_on_the_bus_is_an_error() -> None:
    with pytest.raises(TypeError):
        signature_of(dict[str, int])


def test_a_dataclass_leaves_out_what_is_none_and_keeps_types_of_empty_lists() -> None:
    stop = api.Stopped(
        panic=api.EmergencyStop(since_us=5, by=None, reason="why"), turns=1, workers=0, problems=[]
    )
    sent = to_bus(stop, "a{sv}")
    assert plain(sent) == {
        "panic": {"since_us": 5, "reason": "why"},
        "turns": 1,
        "workers": 0,
        "problems": [],
    }
    assert sent["problems"].signature == "as"
    assert sent["panic"].signature == "a{sv}"
    explained = api.Diagnosis(ok=True, workers=[], checks=[])
    assert to_bus(explained, "a{sv}")["workers"].signature == "aa{sv}"


def test_json_becomes_variants_and_back() -> None:
    value = {"text": "ü", "yes": True, "number": -7, "half": 0.5, "list": [1, "a", []], "empty": {}}
    assert plain(to_bus(value, "v")) == value
    assert to_bus([], "v").signature == "av"


def test_null_is_left_out_of_objects_and_has_a_place_in_lists() -> None:
    sent = to_bus({"gone": None, "list": [1, None, 2]}, "v")
    assert list(sent.value) == ["list"]
    assert [one.signature for one in sent.value["list"].value] == ["x", "g", "x"]


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_its_digits(number: int) -> None:
    assert to_bus(number, "v").value == str(number)
    assert variant(number, "x").value == str(number)


@pytest.mark.parametrize("number", [(1 << 63) - 1, -(1 << 63), 0])
def test_an_integer_of_64_bits_is_one(number: int) -> None:
    assert (to_bus(number, "v").signature, to_bus(number, "v").value) == ("x", number)


def test_text_loses_what_the_bus_would_hang_up_for() -> None:
    assert to_bus("a\0b\udcffc💾", "s") == "a\ufffdb\ufffdc💾"
    assert plain(to_bus({"k\0": ["\ud800"]}, "v")) == {"k\ufffd": ["\ufffd"]}
    assert to_bus(["\0"], "as") == ["\ufffd"]
    assert clean("plain") == "plain"


def test_deep_json_becomes_text_at_the_limit() -> None:
    value: Any = "core"
    for _ in range(100):
        value = {"in": value}
    sent, depth = to_bus(value, "v"), 0
    while sent.signature == "a{sv}":
        sent, depth = sent.value["in"], depth + 1
    assert depth == MAX_JSON_DEPTH
    assert json.loads(sent.value)["in"]


def test_the_deepest_public_value_is_within_what_the_bus_lets_pass() -> None:
    deep: Any = 1
    for _ in range(MAX_JSON_DEPTH):
        deep = {"in": deep}
    action = api.Action(
        name="a", description="", effect="", taints=False, timeout_s=1.0, schema={"deeper": deep}
    )
    tool = api.Tool(name="t", description="", origin="", actions=[action], problem="")
    assert _levels(to_bus([tool], "aa{sv}")) <= 64


def _levels(value: Any) -> int:
    """Arrays, dictionary entries and variants inside each other, as libdbus counts them."""
    if isinstance(value, Variant):
        return 1 + _levels(value.value)
    if isinstance(value, dict):
        return 2 + max((_levels(one) for one in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_levels(one) for one in value), default=0)
    return 0


def test_a_turn_event_keeps_its_fields() -> None:
    event: api.TurnEvent = {"type": "done", "session": "s", "trace_id": "t", "text": "x", "steps": 1}
    assert plain(to_bus(event, "a{sv}")) == event


@pytest.mark.parametrize(
    ("signature", "wrong"),
    [
        ("s", [1, True, b"x", [], {}]),
        ("x", ["1", True, 1.0, 1 << 63, -(1 << 63) - 1]),
        ("d", ["1", True, math.nan, math.inf]),
        ("b", [0, 1, "true"]),
        ("as", ["a", [1], [b"x"], {}]),
        ("aa{sv}", ["a", ["a"], {"a": 1}, [["a"]]]),
        ("v", [b"bytes", math.nan, {1: "x"}, [[{"a": [math.inf]}]]]),
    ],
)
def test_a_wrong_value_names_its_parameter(signature: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(InvalidArgument, match="the_name") as caught:
            from_bus(value, signature, "the_name")
        assert caught.value.field == "the_name"


def test_options_are_known_and_of_their_types() -> None:
    known = {"new": "b", "limit": "x"}
    assert options_of(known, {"new": True}) == {"new": True}
    with pytest.raises(InvalidArgument, match="bogus") as caught:
        options_of(known, {"bogus": 1})
    assert caught.value.suggestion == "The options are: new, limit."
    with pytest.raises(InvalidArgument, match="limit must be an integer"):
        options_of(known, {"limit": "7"})


def test_json_that_a_caller_sends_may_be_as_deep_as_the_bus_allows() -> None:
    value: Any = "core"
    for _ in range(30):
        value = [value]
    check_json(value, "args")


@pytest.mark.parametrize("name", ["ops", "", "ses_0123", "0abc", "a b", "ü-x", "_", "x_5f", "/", "\0"])
def test_any_name_makes_a_path_and_comes_back(name: str) -> None:
    path = object_path("agents", name)
    assert object_name(path) == ("agents", name)
    assert path.isascii()


@pytest.mark.parametrize(
    "element", ["", "a/b", "_4", "_zz", "ops_", "_6f_70_73", "op_73", "_C3_BC", "_ff", "0abc", "ö"]
)
def test_a_path_that_no_name_makes_names_nothing(element: str) -> None:
    assert object_name(f"/org/lightagent1/agents/{element}") is None


def test_the_list_of_public_types_is_not_empty() -> None:
    assert len(PUBLIC) > 20
    assert any(dataclasses.is_dataclass(cls) for cls in PUBLIC)
