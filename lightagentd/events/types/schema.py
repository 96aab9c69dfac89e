"""The JSON Schema (2020-12) of every event, as `lactl events schema` prints it.

It describes an event as JSON for people and programs (`Event.to_dict`): the header, and by topic and type the
data. What a docstring says of a kind or of a field is its description; it is read from the source, because
nothing else needs it at run time.
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

from lightagentd.events.types.event_type import ANY, KINDS, Kind
from lightagentd.events.types.registry import MODULES
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
"""An event without what its kind says of its data."""


def json_schema() -> dict[str, Any]:
    """One document that each stored event is valid against."""
    branches, definitions = [], {}
    for kind, types in _declared().items():
        definitions[kind.__name__] = data_schema(kind)
        branches.append(
            {
                "title": kind.__name__,
                "description": _first_paragraph(kind),
                "properties": {
                    "topic": _topic(kind),
                    "type": _type(kind, types),
                    **({} if kind.made_by != "tool" else {"source": {"const": "tool"}}),
                    "data": {"anyOf": [{"$ref": f"#/$defs/{kind.__name__}"}, {"type": "null"}]},
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


def data_schema(kind: type[Kind]) -> dict[str, Any]:
    """What the data of a kind are. A key that is not required is there when it says something."""
    made = kind.model_json_schema(ref_template=DEFAULT_REF_TEMPLATE, schema_generator=_Plain)
    made.pop("description", None)
    told = _descriptions(kind)
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


def _declared() -> dict[type[Kind], list[str]]:
    """Every kind with its types, in the order of the modules."""
    order = [module.__name__ for module in MODULES]
    found: dict[type[Kind], list[str]] = {}
    for (_, event_type), kind in sorted(KINDS.items(), key=lambda item: order.index(item[1].__module__)):
        found.setdefault(kind, []).append(event_type)
    return found


def _topic(kind: type[Kind]) -> dict[str, Any]:
    if kind is Emitted:
        return {"pattern": f"^{EMITTED_TOPIC.pattern}$"}
    if ANY in kind.topic:
        return {"pattern": f"^{re.escape(kind.topic).replace(re.escape(ANY), '[a-z0-9_]+')}$"}
    return {"const": kind.topic}


def _type(kind: type[Kind], types: list[str]) -> dict[str, Any]:
    if kind is Emitted:
        return {"type": "string"}
    return {"const": types[0]} if len(types) == 1 else {"enum": types}


def _first_paragraph(kind: type[Kind]) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())


def _descriptions(kind: type[Kind]) -> dict[str, str]:
    """By field, the docstring below its declaration."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
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
