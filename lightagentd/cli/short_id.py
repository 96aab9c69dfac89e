"""Ids that a person cuts short, as long as only one begins so."""

from __future__ import annotations

from collections.abc import Iterable

from lightagentd.errors import InvalidArgument, NotFound


def only_id(ids: Iterable[str], begin: str, *, prefix: str, noun: str, missing: NotFound) -> str:
    """The one id that begins as was written, with or without its prefix (`apr_`).

    Raises `missing` where there is none, and InvalidArgument where there are several.
    """
    short = begin.removeprefix(prefix)
    found = [each for each in ids if short and each.removeprefix(prefix).startswith(short)]
    if not found:
        raise missing
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} {noun}s begin with {begin!r}.",
            suggestion=f"Write more of the id: {', '.join(found[:5])}",
            field=noun,
        )
    return found[0]
