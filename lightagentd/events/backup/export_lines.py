"""Reads the lines of an export strictly: JSON as it was written, of bounded length and depth.

The file is input from outside. JSON that programs read in different ways is refused: duplicate names in an
object, NaN, numbers that are too large. The error names the first bad line and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any, BinaryIO, NoReturn

from lightagentd.errors import ImportInvalid
from lightagentd.events.model import MAX_DEPTH
from lightagentd.text.strict_json import BadJson, decoded

MAX_LINE_BYTES = 64 << 20
"""No line may be longer. An event that a tool's output makes has a few MiB at the most."""
MAX_NUMBER = (1 << 63) - 1
"""What a number of an event, a time or a uid may be at the most."""
_HASH = re.compile(r"[0-9a-f]{64}")


class ExportLines:
    """The objects in the lines of a file, one by one. The caller owns the file."""

    def __init__(self, file: BinaryIO, name: str, *, cut_allowed: bool) -> None:
        """`name` is the file's name in messages. With `cut_allowed` the last line may be incomplete."""
        self._file = file
        self._name = name
        self._cut_allowed = cut_allowed
        self._number = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Raises ImportInvalid."""
        while True:
            self._number += 1
            raw = self._file.readline(MAX_LINE_BYTES + 1)
            if not raw:
                return
            if len(raw) > MAX_LINE_BYTES:
                self.wrong(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
            if not raw.endswith(b"\n"):
                if self._cut_allowed and self._number > 1:
                    return
                self.wrong("is cut off")
            yield self._object(raw)

    def wrong(self, what: str) -> NoReturn:
        """Refuse the line that was read last. Raises ImportInvalid."""
        raise ImportInvalid(
            f"{self._name} cannot be imported: line {self._number} {what}.",
            suggestion="Nothing was changed. Take a whole export as 'lactl history export' wrote it.",
            field="file",
        )

    def check_keys(self, fields: dict[str, Any], needed: Set[str], possible: Set[str] = frozenset()) -> None:
        """Raises ImportInvalid for a missing or unknown key."""
        if missing := sorted(needed - fields.keys()):
            self.wrong(f"lacks {missing[0]!r}")
        if unknown := sorted(fields.keys() - needed - possible):
            self.wrong(f"has the unknown key {unknown[0][:60]!r}")

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            found = decoded(raw, depth=MAX_DEPTH + 1)
        except BadJson as err:
            self.wrong(f"is no JSON: {err}")
        if not isinstance(found, dict):
            self.wrong("is no JSON object")
        return found


def is_number(value: Any, *, lowest: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= MAX_NUMBER


def is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None
