"""The names of this machine's users."""

from __future__ import annotations

import pwd
from functools import cache

_numbers = False


def tell_numbers(on: bool) -> None:
    """Whether users are told by their numbers from now on: those of another machine have other names."""
    global _numbers
    _numbers = on


def user_name(uid: int, unknown: str = "") -> str:
    """The name of a user; for a uid without one the number, after `unknown`."""
    return f"{unknown}{uid}" if _numbers else _named(uid, unknown)


@cache
def _named(uid: int, unknown: str) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"{unknown}{uid}"


def called(uid: int) -> str:
    """A user in a sentence: their name, or `uid 1000`."""
    return user_name(uid, "uid ")
