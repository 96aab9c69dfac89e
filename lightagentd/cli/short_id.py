"""Resolves the unique beginning of the id of a question or a memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightagentd.cli.options import Settings
from lightagentd.errors import InvalidArgument, NotFound


@dataclass(frozen=True, kw_only=True)
class Ids:
    """One kind of id: its prefix (`apr_`), what it names, and the method and the command that list them."""

    prefix: str
    noun: str
    nouns: str
    missing: type[NotFound]
    method: str
    hint: str

    def is_short(self, written: str) -> bool:
        return len(written) < len(self.prefix) + 16

    def whole(self, written: str, found: Iterable[dict[str, Any]], which: str = "") -> str:
        """The id of the object that begins with the given text, with or without its prefix; a whole id stays
        as it is. `which` describes the objects in errors. Raises `missing`, InvalidArgument.
        """
        if not self.is_short(written):
            return written
        begin = written.removeprefix(self.prefix)
        ids = [str(each["id"]) for each in found]
        ids = [each for each in ids if begin and each.removeprefix(self.prefix).startswith(begin)]
        if not ids:
            raise self.missing(
                f"No {self.noun} {which}begins with {written!r}.",
                suggestion=f"Run: {self.hint}",
                field=self.noun,
            )
        if len(ids) > 1:
            raise InvalidArgument(
                f"{len(ids)} {self.nouns} begin with {written!r}.",
                suggestion=f"Write more of the id: {', '.join(ids[:5])}",
                field=self.noun,
            )
        return ids[0]

    def whole_question(self, settings: Settings, written: str, *, every: bool) -> str:
        """As `whole`, among the questions that wait, or `every` one."""
        found = settings.call(self.method, all=every or None) if self.is_short(written) else []
        return self.whole(written, found, "" if every else "that waits ")
