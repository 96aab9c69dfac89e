"""Makes the pydantic model of an action's arguments from JSON Schema, for tools that come as descriptions.

The model shows the schema as it was given, and checks what decides how a value is sent: its type, an enum of
scalars, and what is required. The schema itself says the rest to whoever calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, create_model

from lightagentd.tool import Args

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
    "null": None,
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_SCALARS = (str, int, bool)


def args_model(title: str, properties: Mapping[str, Any], required: Collection[str]) -> type[Args]:
    """The model of these arguments. Raises TypeError that names the argument at fault."""
    fields: dict[str, Any] = {}
    for name, schema in properties.items():
        if not _NAME.fullmatch(name) or name.startswith("model_") or hasattr(Args, name):
            raise TypeError(f"the parameter {name[:60]!r} has a name that no argument can have")
        if not isinstance(schema, dict):
            raise TypeError(f"the parameter {name} must be a JSON Schema object")
        kind, default = _type_of(name, schema), schema.get("default")
        if name in required:
            fields[name] = (Annotated[kind, WithJsonSchema(schema)], Field())
        elif default is not None:
            fields[name] = (Annotated[kind, WithJsonSchema(schema)], Field(default=default))
        else:
            fields[name] = (Annotated[kind | None, WithJsonSchema(schema)], Field(default=None))
    if unknown := [name for name in required if name not in properties]:
        raise TypeError(f"{unknown[0]!r} is required, and no parameter")
    model: type[Args] = create_model(title, __base__=Args, **fields)
    return model


def _type_of(name: str, schema: Mapping[str, Any]) -> Any:
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(one, _SCALARS) for one in values):
        return Literal[tuple(values)]
    kinds = schema.get("type", [])
    found: Any = None
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _TYPES:
            raise TypeError(f"the parameter {name} has the unknown type {str(kind)[:60]!r}")
        found = _TYPES[kind] if found is None else found | _TYPES[kind]
    return Any if found is None else found
