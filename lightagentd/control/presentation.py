"""Converts the daemon's internal records to the types of `api` that callers get."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

_T = TypeVar("_T")


def shown(kind: type[_T], record: object, **different: Any) -> _T:
    """An object of `api`, from the fields of a record with the same names, and the differing fields as given.

    Enums become their values, and tuples lists.
    """
    names = {one.name for one in fields(kind)} - different.keys()  # type: ignore[arg-type]
    return kind(**{name: _plain(getattr(record, name)) for name in names}, **different)


def as_json(value: Any) -> Any:
    """An operation's result as JSON."""
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
