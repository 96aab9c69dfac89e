"""The names of this machine's users."""

from __future__ import annotations

import pwd
from functools import cache


@cache
def user_name(uid: int, unknown: str = "") -> str:
    """The name of a user; for a uid without one the number, after `unknown`."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"{unknown}{uid}"


def called(uid: int) -> str:
    """A user in a sentence: their name, or `uid 1000`."""
    return user_name(uid, "uid ")
