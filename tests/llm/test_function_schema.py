"""The schemas of functions: without references, and with nothing that Google's API does not know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.llm.function_schema import function_schema
from lightagentd.tool import actions_of
from lightagentd.worker.loader import load_tool

TOOLS = Path(__file__).parents[2] / "tools"
GOOGLE = {
    *("type", "description", "default", "enum", "properties", "required", "items", "anyOf", "minimum"),
    *("maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties"),
    "maxProperties",
}
"""The fields of its `Schema` that we use."""
MODE = {
    "Mode": {"description": "See the page on modes.", "enum": ["a", "b"], "title": "Mode", "type": "string"}
}


def nested(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        yield from nested(inner)
    if "items" in schema:
        yield from nested(schema["items"])


def check(schema: dict[str, Any]) -> None:
    for each in nested(schema):
        assert each.keys() <= GOOGLE, each
        assert "anyOf" in each or each["type"] in (
            "string",
            "number",
            "integer",
            "boolean",
            "object",
            "array",
        )
        assert "anyOf" not in each or each.keys() == {"anyOf"}, each
        assert "enum" not in each or each["type"] == "string", each
        assert ("items" in each) is (each.get("type") == "array"), each
        assert set(each.get("required", ())) <= set(each.get("properties", ()))


@pytest.mark.parametrize("file", sorted(TOOLS.glob("*.py")), ids=lambda file: file.stem)
def test_all_functions_are_in_a_form_that_google_takes(file: Path) -> None:
    tool = load_tool(file).tool
    assert tool is not None
    for action in actions_of(tool):
        whole = action.args_model.model_json_schema()
        found = function_schema(whole)
        check(found)
        assert found["properties"].keys() == whole.get("properties", {}).keys()
        assert found.get("required", []) == whole.get("required", [])
        for name, said in whole.get("properties", {}).items():
            assert said.get("description", "") in str(found["properties"][name]), name


ONE: dict[str, tuple[Any, Any]] = {
    "a reference": (
        {"$ref": "#/$defs/Mode", "description": "How."},
        {"type": "string", "enum": ["a", "b"], "description": "How."},
    ),
    "an optional value": (
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "default": None, "title": "X"},
        {"type": "string", "minLength": 1},
    ),
    "an optional reference": (
        {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}], "description": "How."},
        {"type": "string", "enum": ["a", "b"], "description": "How."},
    ),
    "a list of types": ({"type": ["integer", "null"]}, {"type": "integer"}),
    "a number above": (
        {"exclusiveMinimum": 0, "type": "number", "description": "So long."},
        {"type": "number", "minimum": 0, "description": "So long. More than 0."},
    ),
    "an integer between": (
        {"exclusiveMinimum": 0, "exclusiveMaximum": 9, "type": "integer"},
        {"type": "integer", "minimum": 1, "maximum": 8},
    ),
    "one text": ({"const": "x"}, {"type": "string", "enum": ["x"]}),
    "numbers": ({"enum": [1, 2], "type": "integer"}, {"type": "integer", "description": "One of: 1, 2."}),
    "two kinds": (
        {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "Which."},
        {"anyOf": [{"type": "string", "description": "Which."}, {"type": "integer"}]},
    ),
    "free keys": ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object"}),
}


@pytest.mark.parametrize(("given", "expected"), ONE.values(), ids=ONE)
def test_what_becomes_of(given: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": {"title": given}, "$defs": MODE, "description": "Args of it."}
    assert function_schema(schema) == {"type": "object", "properties": {"title": expected}}


@pytest.mark.parametrize(
    "odd", [True, None, 7, {}, {"type": 7}, {"$ref": "#/$defs/No"}, {"$ref": "#/$defs/Self"}]
)
def test_what_cannot_be_said_is_any_value(odd: Any) -> None:
    twice = {"type": "object", "properties": {name: {"$ref": "#/$defs/Twice"} for name in "ab"}}
    definitions = {"Self": {"$ref": "#/$defs/Self"}, "Twice": twice}
    schema = {
        "properties": {"x": odd, "y": {"$ref": "#/$defs/Twice"}},
        "$defs": definitions,
        "required": ["z"],
    }
    found = function_schema(schema)
    check(found)
    assert "anyOf" in found["properties"]["x"]
