"""The terms of a change that takes itself back, which network gear calls commit confirmed.

A person who approves a call, a rule of policy.d or a step of a flow sets them, and never a model: how long
the change stands without a confirmation, the command that confirms it when it ends with 0, and the call that
takes it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.text.readable import visible
from lightagentd.text.strict_json import BadJson, decoded

SHORTEST_S, LONGEST_S = 1, 86_400
COMMAND_CHARS = 4000
TERMS = ("confirm_within_s", "check", "inverse")
"""As approvals and events name them."""
_SPAN = re.compile(r"([0-9]{1,6})(s|m|min|h|d)?")
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_CALL = re.compile(r"([a-z][a-z0-9_]*)\.([a-z][a-z0-9_]*)\s+(\{.*)", re.DOTALL)
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """`inverse` is a shell command, or `TOOL.ACTION {ARGUMENTS}`; empty where what was changed says how."""

    within_s: int
    check: str = ""
    inverse: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Terms | None:
        """From `fields`; None where there are none."""
        within_s, check, inverse = (found.get(name) for name in TERMS)
        return cls(within_s=within_s, check=check or "", inverse=inverse or "") if within_s else None

    def fields(self) -> dict[str, Any]:
        """By the names in `TERMS`."""
        return dict(zip(TERMS, (self.within_s, self.check, self.inverse), strict=True))

    def inverse_call(self) -> tuple[str, str, dict[str, Any]]:
        """Tool, action and arguments of the call that takes the change back. Raises ValueError."""
        if found := _CALL.fullmatch(self.inverse.strip()):
            try:
                args = decoded(found[3], depth=20)
            except BadJson as err:
                raise ValueError(f"the arguments of the inverse call are not JSON: {err}") from None
            return found[1], found[2], args
        return "bash", "exec", {"command": self.inverse, "effect": "change"}


def span_s(text: str) -> int:
    """The seconds in a span such as 90s, 5m, 2h, 1d. Raises ValueError, also for one out of bounds."""
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise ValueError(f"{text[:40]!r} is not a time from 1s to 1d, such as 90s, 5m or 2h")
    return seconds


def span_text(seconds: int) -> str:
    """The shortest text that `span_s` reads as these seconds."""
    unit = next(one for one in ("d", "h", "m", "s") if seconds % _UNITS[one] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def words(found: Mapping[str, Any], within: str = "") -> str:
    """How the change of an `api.Approval`, or of the turn event that asks for it, takes itself back, with all
    characters visible; empty for one that does not. `within` stands in place of its time.
    """
    if not (within or found.get("confirm_within_s")):
        return ""
    after = within or span_text(found["confirm_within_s"])
    by = f" with: {visible(found['inverse'])}" if found.get("inverse") else ""
    check = f", or this command ends with 0: {visible(found['check'])}" if found.get("check") else ""
    return f"It is taken back {after} after it is done{by}, unless somebody confirms it{check}."


def terms_of(within: str, check: str = "", inverse: str = "") -> Terms | None:
    """The terms in these words; None for none. Raises ValueError."""
    if not within:
        if check or inverse:
            raise ValueError("check and inverse go with confirm_within")
        return None
    for name, text in (("check", check), ("inverse", inverse)):
        if len(text) > COMMAND_CHARS or _UNSEEN.search(text):
            raise ValueError(
                f"{name} is longer than {COMMAND_CHARS} characters, or holds some that nobody sees"
            )
        if text and not text.strip():
            raise ValueError(f"{name} is blank")
    found = Terms(within_s=span_s(within), check=check, inverse=inverse)
    if inverse:
        found.inverse_call()
    return found
