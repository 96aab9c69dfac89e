"""Whether a value is valid against a JSON Schema, for the keywords that the schema of events uses."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": int | float,
    "integer": int,
}
_KNOWN = {
    *("$ref", "const", "enum", "pattern", "type", "properties", "required", "additionalProperties", "anyOf"),
    *("items", "prefixItems", "minItems", "maxItems", "minimum", "description", "title"),
    *("$schema", "$id", "$defs"),
}


def valid(value: Any, schema: Any, whole: dict[str, Any]) -> bool:
    """As JSON Schema says, for the keywords that the document uses; another one is an error."""
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema:
        return valid(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole)
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_is(value, name) for name in names):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return False
    if "minimum" in schema and value < schema["minimum"]:
        return False
    if "anyOf" in schema and not any(valid(value, one, whole) for one in schema["anyOf"]):
        return False
    if isinstance(value, dict):
        return _valid_object(value, schema, whole)
    return not isinstance(value, list) or _valid_list(value, schema, whole)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean")


def _valid_object(value: dict[str, Any], schema: Any, whole: dict[str, Any]) -> bool:
    declared = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    return set(schema.get("required", ())) <= set(value) and all(
        valid(item, declared.get(name, more), whole) for name, item in value.items()
    )


def _valid_list(value: list[Any], schema: Any, whole: dict[str, Any]) -> bool:
    first = schema.get("prefixItems", [])
    return (
        schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        and all(valid(item, one, whole) for item, one in zip(value, first, strict=False))
        and all(valid(item, schema.get("items", True), whole) for item in value[len(first) :])
    )
