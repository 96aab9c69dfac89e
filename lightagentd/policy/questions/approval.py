"""An approval: one stored question about one call, and the digest that binds it to that call.

The digest is an HMAC-SHA-256, not a plain SHA-256, over the canonical JSON of everything that decides what
runs. It stands in events that others can read, and a plain one would let them try guesses at what was left
out of the stored arguments. The key also keeps whoever can write the stored record, and nothing else, from
making a digest that fits. It lies in the state folder; that of a volatile approval is never stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from lightagentd.events.store.states import checked

_DOMAIN = b"lightagentd approval 1\0"
CLOSED_CHARS = 32 << 10
"""Arguments and previews that are longer do not stay with an approval that is over."""
LEFT_OUT = "(The arguments are too long to be kept here; the event that asked for the approval has them.)"
HIDDEN = "[removed: write-only]"
"""Stands in place of an argument that is for the tool alone."""


class State(StrEnum):
    """Where an approval stands. Only the first two can still become something else."""

    WAITING = "waiting"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"
    USED = "used"
    LAPSED = "lapsed"


OPEN = frozenset({State.WAITING, State.GRANTED})


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a person approves: this call of this agent in this session, and in the working directory `cwd`."""

    agent: str
    session: str
    tool: str
    action: str
    effect: str
    args: dict[str, Any]
    cwd: str

    def digest(self, key: bytes) -> str:
        """Raises ValueError for arguments that JSON does not have."""
        text = json.dumps(
            asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
        )
        return hmac.new(key, _DOMAIN + text.encode(), hashlib.sha256).hexdigest()


def working_directory(args: dict[str, Any]) -> str:
    """The working directory that a call's arguments name; empty when they name none."""
    found = args.get("cwd", "")
    return found if isinstance(found, str) else ""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """One approval. Times are UTC in microseconds; `answered_by` is a uid.

    Of a volatile one the arguments, the preview and what it expects are whole in memory alone: what is stored
    has the secrets taken out. Who decides gets to see the whole ones, because what looks like a secret and is
    taken out could be the part of a command that he would not allow.
    """

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    tool: str
    action: str
    effect: str
    args: dict[str, Any]
    cwd: str
    digest: str
    preview: str
    expected: dict[str, Any]
    rule: str
    reason: str
    created_us: int
    expires_us: int
    state: State = State.WAITING
    volatile: bool = False
    hidden: tuple[str, ...] = ()
    """The names of the arguments that nobody gets to see, such as keys."""
    answered_by: int | None = None
    answered_us: int = 0
    note: str = ""
    """What the person who answered said, or why it lapsed."""

    @property
    def bound(self) -> Bound:
        return Bound(
            agent=self.agent,
            session=self.session,
            tool=self.tool,
            action=self.action,
            effect=self.effect,
            args=self.args,
            cwd=self.cwd,
        )

    @property
    def name(self) -> str:
        return f"{self.tool}.{self.action}"

    @property
    def open(self) -> bool:
        return self.state in OPEN

    def overdue(self) -> bool:
        return now_us() >= self.expires_us

    def now(self) -> Approval:
        """As it is to be shown: one whose time is over has expired, also where that is not stored yet."""
        return replace(self, state=State.EXPIRED) if self.open and self.overdue() else self

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments without those that are hidden."""
        return hide(self.args, self.hidden)

    def to_dict(self) -> dict[str, Any]:
        """As it is stored: without the hidden arguments, and without what a tool may have made of them. The
        history takes out other secrets.
        """
        stored = asdict(self) | {"state": self.state.value, "hidden": list(self.hidden), "args": self.shown}
        if not self.open and len(self.preview) + len(str(self.args)) > CLOSED_CHARS:
            stored |= {"args": {}, "preview": LEFT_OUT, "expected": {}}
        return stored | ({"preview": "", "expected": {}} if self.volatile else {})

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Approval:
        """The approval that was stored. Raises TypeError, KeyError or ValueError for what is none."""
        texts = (
            *("id", "agent", "session", "trace_id", "call_id", "tool", "action", "effect", "cwd", "digest"),
            *("preview", "rule", "reason", "note"),
        )
        numbers = ("owner", "created_us", "expires_us", "answered_us")
        checked(value, args=dict, expected=dict, volatile=bool, hidden=list, answered_by=(int, type(None)))
        checked(value, **dict.fromkeys(texts, str), **dict.fromkeys(numbers, int))
        return cls(**{**value, "state": State(value["state"]), "hidden": tuple(map(str, value["hidden"]))})


def hide(args: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """Arguments without the values of those that nobody gets to see."""
    return {name: HIDDEN if name in hidden else value for name, value in args.items()}


def now_us() -> int:
    return time.time_ns() // 1000
