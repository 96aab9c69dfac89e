"""Reduces the JSON Schema of a function's arguments to what all model servers take.

Google's API refuses a whole request for one keyword outside its subset of OpenAPI 3.0 (reference: `Schema` of
the Gemini API), and some local servers do for a reference. So references are replaced by their definitions,
an optional value is one that is not required, and bounds that have no keyword are said in the description.
The worker checks the arguments of a call against the whole schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_KEPT = (
    *("type", "description", "default", "minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "required"),
)
_TYPES = ("string", "number", "boolean", "object", "array")
_MOST_DEPTH = 20
_MOST_VALUES = 5000
"""A schema can double with each reference in it."""
_SEVERAL = ("anyOf", "oneOf", "allOf", "type")
_BOUNDS = (("exclusiveMinimum", "minimum", 1, "More"), ("exclusiveMaximum", "maximum", -1, "Less"))


def function_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object of arguments, without references. It does not change its argument."""
    found = _Reduction(schema.get("$defs")).of(schema)
    found = {name: found[name] for name in ("properties", "required") if name in found}
    return {"type": "object", "properties": {}} | found  # the function has a description


class _Reduction:
    """One schema with its definitions."""

    def __init__(self, definitions: Any) -> None:
        self._definitions = definitions if isinstance(definitions, dict) else {}
        self._left = _MOST_VALUES

    def of(self, schema: Any, depth: int = 0) -> dict[str, Any]:
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MOST_DEPTH or self._left < 0:
            return _anything()
        schema = self._followed(schema)
        several = [each for each in _alternatives(schema) if each != {"type": "null"}]
        if len(several) == 1:
            several[0] = self._followed(several[0])
            outer = {name: value for name, value in schema.items() if name not in _SEVERAL}
            return self.of({**several[0], **outer}, depth + 1)
        if several:
            found = {"anyOf": [self.of(each, depth + 1) for each in several]}
            if isinstance(said := schema.get("description"), str):
                found["anyOf"][0].setdefault("description", said)
            return found
        return self._plain(schema, depth)

    def _followed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema with the definition that it refers to; its own words go before those there."""
        seen: set[str] = set()
        while isinstance(reference := schema.get("$ref"), str):
            rest = {name: value for name, value in schema.items() if name != "$ref"}
            if reference in seen:
                return rest
            seen.add(reference)
            target = self._definitions.get(reference.rpartition("/")[2])
            schema = {**target, **rest} if isinstance(target, dict) else rest
        return schema

    def _plain(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        found = {name: schema[name] for name in _KEPT if schema.get(name) is not None}
        remarks: list[str] = []
        for name, bound, step, word in _BOUNDS:
            limit = schema.get(name)
            if isinstance(limit, int | float) and not isinstance(limit, bool):
                whole = found.get("type") == "integer"
                found[bound] = limit + step if whole else limit
                remarks += [] if whole else [f"{word} than {limit:g}."]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and (values := [each for each in values if each is not None]):
            if all(isinstance(each, str) for each in values):
                found |= {"type": "string", "enum": values}
            else:
                remarks.append(f"One of: {', '.join(map(str, values))}.")
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found["type"] = "object"
            if required := [name for name in found.pop("required", ()) if name in properties]:
                found["required"] = required
            found["properties"] = {name: self.of(each, depth + 1) for name, each in properties.items()}
        if found.get("type") == "array":
            found["items"] = self.of(schema.get("items"), depth + 1)
        if remarks:
            found["description"] = " ".join([str(found.get("description", "")), *remarks]).lstrip()
        return found if found.get("type") in (*_TYPES, "integer") else _anything(found.get("description"))


def _alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of which a value meets one; a list of types is such a list, too."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        plain = {name: value for name, value in schema.items() if name != "description"}
        yield from ({**plain, "type": kind} if kind != "null" else {"type": kind} for kind in kinds)
        return
    for name in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(name)
        if isinstance(listed, list) and (name != "allOf" or len(listed) == 1):
            yield from (each for each in listed if isinstance(each, dict))
            return


def _anything(said: object = None) -> dict[str, Any]:
    """A schema for each value, with its description in the first: nothing may stand beside `anyOf`."""
    kinds: list[dict[str, Any]] = [{"type": kind} for kind in _TYPES]
    kinds[-1]["items"] = {"type": "string"}
    if isinstance(said, str):
        kinds[0]["description"] = said
    return {"anyOf": kinds}
