"""Resolves the unique beginning of a name or an id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lightagentd.errors import InvalidArgument

_WHOLE = re.compile(r"[a-z]+_[0-9a-f]{16}")


def is_whole(written: str) -> bool:
    return _WHOLE.fullmatch(written) is not None


def only_one(written: str, known: Callable[[], Iterable[str]], nouns: str) -> str:
    """The only known id that a text begins, with or without its prefix; the text itself when there is none.
    Raises InvalidArgument.
    """
    if is_whole(written):
        return written
    size = len(written)
    found = {each for each in known() if written in (each[:size], each.partition("_")[2][:size])}
    if len(found) > 1 and written not in found:
        raise InvalidArgument(
            f"{len(found)} {nouns} begin with {written!r}.",
            suggestion=f"Write more of it: {', '.join(sorted(found)[:5])}",
        )
    return found.pop() if len(found) == 1 else written
