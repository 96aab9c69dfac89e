"""How the records of the daemon's inside become the types of `api` that callers get."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

_T = TypeVar("_T")


def shown(kind: type[_T], record: object, **different: Any) -> _T:
    """An object of `api`: of a record the fields of the same names, and as given those that differ.

    Enums become their values, and tuples lists.
    """
    names = {one.name for one in fields(kind)} - different.keys()  # type: ignore[arg-type]
    return kind(**{name: _plain(getattr(record, name)) for name in names}, **different)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
