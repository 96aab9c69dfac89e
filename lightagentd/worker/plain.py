"""Arguments that the daemon checks itself, exactly as a worker does.

The arguments of most actions are texts and numbers with bounds, which no code of the tool changes. A worker
describes such fields in the terms of pydantic-core's schemas, and the daemon makes a validator of them, so
that a call needs no worker for its check. Neither end takes any term but those below: no other action gets a
description, and no worker can have the daemon run code. The worker checks again what it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaError, SchemaValidator

Check = Callable[[dict[str, Any]], dict[str, Any]]
"""The checked arguments, with what was left out. Raises pydantic's ValidationError."""

_BOUNDS = {"ge", "gt", "le", "lt"}
_LENGTHS = {"min_length", "max_length"}
_TERMS = {"bool": set[str](), "int": _BOUNDS, "float": _BOUNDS | {"allow_inf_nan"}, "literal": {"expected"}}
_TERMS |= {"str": _LENGTHS | {"pattern"}, "list": _LENGTHS | {"items_schema"}}
_TERMS |= {"nullable": {"schema"}, "default": {"schema", "default"}}
"""The types, and what may be said of each."""
_MODEL = {"type", "cls", "schema", "custom_init", "root_model", "config", "ref", "metadata"}
_CONFIG = {"extra_fields_behavior": "forbid", "title": ""}
_METHODS = {"model_validate", "model_dump"}
_SCALARS = (str, int, float, bool, type(None))


def plain_fields(model: type[BaseModel]) -> dict[str, Any] | None:
    """The fields of a model without code of its own; None for any other."""
    model.model_rebuild()
    whole: Any = model.__pydantic_core_schema__
    own = {name for each in model.mro() if each is not BaseModel for name in vars(each)}
    try:
        fields, config = whole["schema"], {**whole["config"], "title": ""}
        has_code = whole["custom_init"] or whole["root_model"] or fields["computed_fields"]
        odd = [field for field in fields["fields"].values() if field.keys() - {"type", "schema", "metadata"}]
        if has_code or odd or own & _METHODS or whole.keys() - _MODEL or config != _CONFIG:
            return None
        return {name: _plain(field["schema"]) for name, field in fields["fields"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def check_of(described: Any) -> Check | None:
    """The check of the fields that a worker described; None for what is no such description."""
    try:
        made = {
            key: {"type": "typed-dict-field", "schema": _plain(one), "required": one["type"] != "default"}
            for key, one in described.items()
        }
        schema: Any = {"type": "typed-dict", "fields": made, "extra_behavior": "forbid"}
        return SchemaValidator(schema).validate_python
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, SchemaError):
        return None


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of known terms only. Raises ValueError, KeyError and TypeError for others."""
    said = {name: value for name, value in schema.items() if name not in ("type", "metadata")}
    if said.keys() - _TERMS[schema["type"]]:
        raise ValueError("it says what is not known here")
    made: dict[str, Any] = {"type": schema["type"]}
    for name, value in said.items():
        if name in ("schema", "items_schema"):
            made[name] = _plain(value)
        elif all(type(each) in _SCALARS for each in (value if name == "expected" else [value])):
            made[name] = value
        else:
            raise ValueError("it has a value that is no text or number")
    return made
