"""The table of models: what is kept of it, what is left out, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightagentd.errors import InvalidArgument
from lightagentd.llm.metadata.table import Table, count, read_table, table_text

WHOLE: dict[str, Any] = {
    "id": "m",
    "name": "Model M",
    "attachment": False,
    "reasoning": True,
    "tool_call": True,
    "knowledge": "2025-01",
    "release_date": "2025-02-03",
    "status": "beta",
    "modalities": {"input": ["text"], "output": ["text"]},
    "cost": {
        "input": 1.5,
        "output": 6,
        "cache_read": 0.1,
        "context_over_200k": {"input": 3, "output": 12, "cache_read": 0.2},
    },
    "limit": {"context": 200_000, "output": 8000},
    "open_weights": False,
}


def of(model: object, name: str = "m") -> str:
    return json.dumps({"acme": {"id": "acme", "name": "Acme", "models": {name: model}}})


def only(text: str | bytes) -> dict[str, Any]:
    """The one model of a table."""
    table = read_table(text, strict=True).table
    assert count(table) == 1
    found: dict[str, Any] = next(iter(next(iter(table.values()))["models"].values()))
    return found


def test_what_is_needed_is_kept_and_nothing_that_says_where_a_key_goes() -> None:
    text = json.dumps(
        {
            "acme": {
                "id": "acme",
                "name": "Acme",
                "api": "https://acme.example/v1",
                "env": ["ACME_API_KEY"],
                "npm": "@acme/sdk",
                "models": {"m": WHOLE | {"provider": {"api": "https://evil.example"}}},
            }
        }
    )
    found = read_table(text, strict=True).table
    assert found == {
        "acme": {
            "name": "Acme",
            "models": {
                "m": {
                    "name": "Model M",
                    "attachment": False,
                    "reasoning": True,
                    "tool_call": True,
                    "knowledge": "2025-01",
                    "release_date": "2025-02-03",
                    "status": "beta",
                    "cost": {
                        "input": 1.5,
                        "output": 6,
                        "cache_read": 0.1,
                        "context_over_200k": {"input": 3, "output": 12, "cache_read": 0.2},
                    },
                    "limit": {"context": 200_000, "output": 8000},
                }
            },
        }
    }
    assert read_table(table_text(found), strict=True).table == found
    assert "example" not in table_text(found)


def test_what_is_not_known_stays_unknown() -> None:
    assert only(of({"id": "m"})) == {"name": "m"}
    assert only(of({"name": "M", "limit": {"context": 0, "output": 0}})) == {"name": "M"}
    assert only(of({"name": "M", "cost": {"input": 1}})) == {"name": "M"}
    assert only(of({"name": "M", "knowledge": "soon", "status": "x"})) == {"name": "M"}


@pytest.mark.parametrize("name", ["two\nlines", "", " ", "\x1b[31mred", 7, None])
def test_a_name_that_cannot_be_shown_is_the_id(name: object) -> None:
    assert only(of({"name": name})) == {"name": "m"}


def test_models_that_do_not_answer_with_text_are_left_out() -> None:
    both = {
        "talks": WHOLE,
        "paints": WHOLE | {"modalities": {"output": ["image"]}},
        "both": WHOLE | {"modalities": {"output": ["text", "image"]}},
    }
    found = read_table(json.dumps({"acme": {"models": both}}), strict=True)
    assert [*found.table["acme"]["models"]] == ["talks", "both"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cost": {"input": -1, "output": 1}}, "cost.input is not from 0"),
        ({"cost": {"input": 1e9, "output": 1}}, "cost.input is not from 0"),
        ({"cost": {"input": "1", "output": 1}}, "cost.input is not a number"),
        ({"cost": {"input": True, "output": 1}}, "cost.input is not a number"),
        ({"cost": {"input": 1, "output": None}}, "cost.output is not a number"),
        ({"cost": {"input": 1, "output": 1, "context_over_200k": 7}}, "context_over_200k is not an object"),
        ({"cost": []}, "cost is not an object"),
        ({"limit": {"context": -5}}, "limit.context is not from 0"),
        ({"limit": {"context": 10**12}}, "limit.context is not from 0"),
        ({"limit": {"context": "big"}}, "limit.context is not a number"),
        ({"limit": 7}, "limit is not an object"),
        ({"tool_call": "yes"}, "tool_call is neither true nor false"),
        ({"modalities": 7}, "modalities is not an object"),
    ],
)
def test_a_model_with_a_wrong_field_is_named(change: dict[str, Any], said: str) -> None:
    text = json.dumps({"acme": {"models": {"bad": WHOLE | change, "good": WHOLE}}})
    with pytest.raises(InvalidArgument, match="cannot be used") as failed:
        read_table(text, strict=True)
    assert said in failed.value.message
    assert "acme/bad" in failed.value.message
    loose = read_table(text, strict=False)
    assert [*loose.table["acme"]["models"]] == ["good"]
    assert len(loose.left_out) == 1
    assert said in loose.left_out[0]


@pytest.mark.parametrize("name", ["", "two words", "ü", "a\nb", "x" * 201])
def test_a_model_needs_an_id_that_can_be_written(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not the id of a model"):
        read_table(of(WHOLE, name), strict=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "{}",
        '{"acme": {}}',
        '{"acme": {"models": []}}',
        '{"acme": {"models": {}}}',
        '{"acme": 7}',
        '{"a/b": {"models": {"m": {}}}}',
        '{"acme": {"models": {"m": {"cost": {"input": NaN, "output": 1}}}}}',
        '{"acme": {"models": {"m": {"cost": {"input": 1e999, "output": 1}}}}}',
        '{"acme": {"models": {"m": {"limit": {"context": ' + "9" * 5000 + "}}}}}",
        "[" * 100_000,
        "<!DOCTYPE html><html><title>Sign in</title></html>",
        b"\xff\xfe\x00",
        b"\x1f\x8b\x08\x00garbage",
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_table_is_refused_in_one_sentence(text: str | bytes, strict: bool) -> None:
    with pytest.raises(InvalidArgument, match="table of models cannot be used") as failed:
        read_table(text, strict=strict)
    assert failed.value.suggestion
    assert "\n" not in failed.value.message
    assert len(failed.value.message) < 400


def test_too_many_providers_are_refused() -> None:
    many: dict[str, Any] = {f"p{number}": {"models": {"m": {}}} for number in range(2001)}
    with pytest.raises(InvalidArgument, match="more than 2000 providers"):
        read_table(json.dumps(many), strict=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from([*WHOLE, "extra"]), JSON | st.sampled_from([*map(json.dumps, WHOLE.values())]), max_size=6
)


@given(st.dictionaries(st.text(max_size=5), FIELDS, max_size=3))
def test_whatever_is_kept_is_kept_again(models: dict[str, Any]) -> None:
    text = json.dumps({"acme": {"models": models}})
    try:
        kept: Table = read_table(text, strict=False).table
    except InvalidArgument:
        return
    assert read_table(table_text(kept), strict=True).table == kept
