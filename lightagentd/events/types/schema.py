"""The JSON Schema (2020-12) of every event, as `lactl events schema` prints it.

It describes an event as JSON for people and programs (`Event.to_dict`): the header, and by topic and type the
data. The docstring of a type or of a field is its description; it is read from the source, because nothing
else needs it at run time.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema

from lightagentd.events.types.event_type import ANY, EventType
from lightagentd.events.types.registry import MODULES, all_types
from lightagentd.events.types.tool import EMITTED_TOPIC, Emitted

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID = "https://lightagentd.example.org/schema/event"
_UID = {"type": ["integer", "null"]}
_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
HEADER: Mapping[str, Mapping[str, Any]] = {
    "seq": {"type": "integer", "minimum": 1, "description": "Its number; they have no gaps."},
    "time": {"type": "integer", "description": "Microseconds since 1970, UTC."},
    "topic": {"type": "string"},
    "type": {"type": "string"},
    "source": {
        "enum": ["daemon", "agent", "worker", "tool"],
        "description": "The part of the program that made it. What a `tool` says is not to be trusted.",
    },
    "agent": {"type": "string", "description": "Empty when it is about no agent."},
    "session": {"type": "string", "description": "Empty when it is about no session."},
    "owner": {**_UID, "description": "The uid that owns the session."},
    "caller": {
        **_UID,
        "description": "The uid on whose word it happened; null for the daemon's own doings, and in events of"
        " versions that did not store it.",
    },
    "request_id": {"type": "string", "description": "The step of a turn."},
    "trace_id": {"type": "string", "description": "The turn, or the call of a person."},
    "correlation_id": {"type": "string", "description": "What the caller named it."},
    "data_sha256": {**_HASH, "description": "Over the stored bytes of the data."},
    "prev": {**_HASH, "description": "The hash of the event before."},
    "data": {"type": ["object", "null"], "description": "Null when it was deleted."},
    "hash": {**_HASH, "description": "SHA-256 over the stored bytes of the header."},
}
"""The header; what is in the data is declared by the types."""


def json_schema() -> dict[str, Any]:
    """One document that each stored event is valid against."""
    branches, definitions = [], {}
    for declared, types in _declared().items():
        definitions[declared.__name__] = data_schema(declared)
        branches.append(
            {
                "title": declared.__name__,
                "description": _first_paragraph(declared),
                "properties": {
                    "topic": _topic(declared),
                    "type": _type(declared, types),
                    **({} if declared.made_by != "tool" else {"source": {"const": "tool"}}),
                    "data": {"anyOf": [{"$ref": f"#/$defs/{declared.__name__}"}, {"type": "null"}]},
                },
            }
        )
    return {
        "$schema": DIALECT,
        "$id": ID,
        "title": "An event of lightagentd",
        "type": "object",
        "properties": {name: dict(value) for name, value in HEADER.items()},
        "required": [*HEADER],
        "additionalProperties": False,
        "anyOf": branches,
        "$defs": definitions,
    }


def data_schema(declared: type[EventType]) -> dict[str, Any]:
    """The schema of a type's data. A key that is not required is absent when it says nothing."""
    made = declared.model_json_schema(ref_template=DEFAULT_REF_TEMPLATE, schema_generator=_Plain)
    made.pop("description", None)
    told = _descriptions(declared)
    for name, schema in made.get("properties", {}).items():
        if name in told:
            schema["description"] = told[name]
    return made


class _Plain(GenerateJsonSchema):
    """Without titles that repeat the names, and without defaults: a key that is absent says nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's call
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return dict(self.generate_inner(schema["schema"]))


def _declared() -> dict[type[EventType], list[str]]:
    """Each class with its types, in the order of the modules."""
    found: dict[type[EventType], list[str]] = {}
    for (_, event_type), declared in all_types().items():
        found.setdefault(declared, []).append(event_type)
    return found


def _topic(declared: type[EventType]) -> dict[str, Any]:
    if declared is Emitted:
        return {"pattern": f"^{EMITTED_TOPIC.pattern}$"}
    if ANY in declared.topic:
        return {"pattern": f"^{re.escape(declared.topic).replace(re.escape(ANY), '[a-z0-9_]+')}$"}
    return {"const": declared.topic}


def _type(declared: type[EventType], types: list[str]) -> dict[str, Any]:
    if declared is Emitted:
        return {"type": "string"}
    return {"const": types[0]} if len(types) == 1 else {"enum": types}


def _first_paragraph(declared: type[EventType]) -> str:
    return " ".join(inspect.cleandoc(declared.__doc__ or "").split())


def _descriptions(declared: type[EventType]) -> dict[str, str]:
    """By field, the docstring below its declaration."""
    found: dict[str, str] = {}
    for cls in reversed(declared.__mro__):
        module = inspect.getmodule(cls)
        if module in MODULES:
            found |= _of_module(module).get(cls.__name__, {})
    return found


@functools.cache
def _of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    """By class and field, the docstrings of a module; none where its source is not there."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, SyntaxError):
        return {}
    return {node.name: _of_fields(node.body) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_fields(body: Iterable[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    last = ""
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            last = statement.target.id
        elif last and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[last] = " ".join(str(statement.value.value).split())
            last = ""
        else:
            last = ""
    return found
