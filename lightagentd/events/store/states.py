"""Decodes stored state, and reports invalid entries as damage.

Changes by others, or by a failing disk, show when it is decoded, or compared with the checkpoints (`rows`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightagentd.errors import HistoryDamaged

_TEXTS = {
    "sessions": ("id", "agent"),
    "turns": ("session", "state"),
    "current": ("session",),
    "compactions": ("summary", "summarized_by"),
    "profiles": ("text",),
}
"""The text fields that an entry of a state must have. Its user checks the others."""
_NUMBERS = {"compactions": ("from_seq",), "prunings": ("last_seq", "by"), "usage": ("updated_us",)}


@contextmanager
def decoding(name: str, key: str) -> Iterator[None]:
    """Around the decoding of a stored entry. Raises HistoryDamaged for an invalid one."""
    try:
        yield
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as err:
        why = f"{type(err).__name__}: {str(err)[:200]}"
        raise HistoryDamaged(
            f"The stored entry {key[:100]!r} of {name} cannot be read: {why}.",
            suggestion="Restore a backup with 'lactl history restore', which keeps what is there beside it.",
        ) from err


def entry(name: str, key: bytes, value: bytes) -> tuple[str, dict[str, Any]]:
    """Key and value of a stored entry. Raises HistoryDamaged."""
    with decoding(name, repr(key)):
        found = json.loads(value)
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        for fields, wanted in ((_TEXTS, str), (_NUMBERS, int)):
            for field in fields.get(name, ()):
                if not isinstance(found[field], wanted):
                    raise TypeError(f"{field} is {type(found[field]).__name__}")
        return key.decode(), found


def checked(value: dict[str, Any], **types: type | tuple[type, ...]) -> dict[str, Any]:
    """A stored value whose fields have these types, as far as they are there. Raises TypeError."""
    for name, wanted in types.items():
        if name in value and not isinstance(value[name], wanted):
            raise TypeError(f"{name} is {type(value[name]).__name__}")
    return value
