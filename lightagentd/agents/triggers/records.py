"""What is stored of triggers: how each stands, and its firings that are not done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from lightagentd.events.history import Change
from lightagentd.events.store.states import checked, decoding

STATE = "triggers"
COUNTED = ("fired", "coalesced", "limited", "refused", "missed")
KEPT = 20
"""Of so many things that happened a firing keeps the data; the others it counts."""
MOST_BYTES = 32 << 10
_MOST_CHARS = 2000
_MOST_NAMES = 60


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One thing that happened, at `at_us`. `missed`: nobody followed it then."""

    data: dict[str, Any]
    at_us: int
    missed: bool = False


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The firing whose turn may have made something happen. `sure`: its own events say so."""

    trigger: str
    firing: str
    trace_id: str
    round: int
    sure: bool


@dataclass(frozen=True, kw_only=True)
class Firing:
    """One question to an agent, from the first thing that it is about to the delivery of its answer."""

    id: str
    trigger: str
    data: tuple[dict[str, Any], ...]
    count: int = 1
    missed: int = 0
    """How many of them were missed."""
    at_us: int
    due_us: int
    state: Literal["waiting", "asked", "answered"] = "waiting"
    cause: Cause | None = None
    round: int = 1
    agent: str = ""
    session: str = ""
    owner: int | None = None
    """The uid of its owner, once it is asked."""
    trace_id: str = ""
    text: str = ""
    code: str = ""
    """That of the error that ended its turn, if one did; `text` is its sentence then."""
    refused: tuple[str, ...] = ()
    """The calls that policy refused."""
    duration_ms: int = 0

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Firing:
        """Raises HistoryDamaged."""
        with decoding(STATE, str(value.get("id"))):
            texts = ("id", "trigger", "state", "agent", "session", "trace_id", "text", "code")
            checked(value, **dict.fromkeys(texts, str), data=list, refused=list)
            checked(value, **dict.fromkeys(("count", "missed", "at_us", "due_us", "round"), int))
            checked(value, owner=(int, type(None)))
            cause = value.get("cause")
            return cls(
                **{
                    **value,
                    "data": tuple(map(dict, value["data"])),
                    "refused": tuple(map(str, value["refused"])),
                    "cause": None if cause is None else Cause(**cause),
                }
            )

    @property
    def key(self) -> str:
        return f"{self.trigger}/{self.id}"

    def change(self, *, there: bool = True) -> Change:
        """The change of state that keeps it, or forgets it."""
        return Change(state=STATE, key=self.key, value=asdict(self) if there else None)

    def with_more(self, one: Happening) -> Firing:
        """With one more thing put into its question."""
        data = (*self.data, one.data) if len(self.data) < KEPT else self.data
        return replace(self, data=data, count=self.count + 1, missed=self.missed + one.missed)


@dataclass(kw_only=True)
class Standing:
    """How a trigger stands. Every thing that happened counts once, in one of COUNTED."""

    name: str
    paused: bool = False
    stopped: str = ""
    """Why its own effects stopped it."""
    position: str = ""
    """How far its source was followed, in the source's own words."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    answered: int = 0
    failed: int = 0
    recent_us: list[int] = field(default_factory=list)
    """When the agent was asked, as far as the rate limit looks back."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Standing:
        """Raises HistoryDamaged."""
        with decoding(STATE, str(value.get("name"))):
            known = {one.name for one in fields(cls)}
            checked(value, name=str, paused=bool, stopped=str, position=str, counts=dict, recent_us=list)
            found = cls(**{name: one for name, one in value.items() if name in known})
            found.counts = {name: int(found.counts.get(name, 0)) for name in COUNTED}
            found.recent_us = [int(one) for one in found.recent_us]
            return found

    def change(self) -> Change:
        return Change(state=STATE, key=self.name, value=asdict(self))

    def copy(self) -> Standing:
        return replace(self, counts={**self.counts}, recent_us=[*self.recent_us])


def stored(key: str, value: dict[str, Any]) -> Standing | Firing:
    """A row of the state. Raises HistoryDamaged, ValueError."""
    found = Firing.from_dict(value) if "/" in key else Standing.from_dict(value)
    own = found.key if isinstance(found, Firing) else found.name
    if own != key:
        raise ValueError(f"it is about {own[:100]!r}")
    return found


def small(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with long values and many names cut, so that they fit into a question."""
    names = list(data)[:_MOST_NAMES]
    found = {str(name)[:200]: _cut(data[name]) for name in names}
    if len(data) > len(names):
        found["(left out)"] = f"{len(data) - len(names)} more names"
    while len(json.dumps(found)) > MOST_BYTES:
        del found[max(found, key=lambda name: len(json.dumps(found[name])))]
        found["(left out)"] = "what was too long"
    return found


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= _MOST_CHARS:
        return value
    return f"{text[:_MOST_CHARS]}… ({len(text) - _MOST_CHARS} more characters)"
