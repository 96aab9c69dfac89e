"""What the daemon acknowledged, written down by those whom it told.

A call that ended well must hold for ever. One that was under way when the daemon was killed may hold or not:
then all values that are possible are kept until somebody looks (`settle`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class Value:
    """One thing that the daemon was told: the values that it may have."""

    def __init__(self, first: Any) -> None:
        self.possible: list[Any] = [first]

    @contextmanager
    def changed_to(self, value: Any) -> Iterator[None]:
        """Around the call that changes it: while nothing is acknowledged, both values are possible."""
        self.possible.append(value)
        yield
        self.possible = [value]

    def settle(self, found: Any) -> bool:
        """Whether it may be so; from now on it is."""
        fits = found in self.possible
        self.possible = [found]
        return fits


@dataclass(kw_only=True)
class Known:
    """What was acknowledged of one session. Only the thread that made it changes it."""

    id: str
    title: Value
    there: Value = field(default_factory=lambda: Value(True))
    paused: Value = field(default_factory=lambda: Value(False))
    prompts: list[str] = field(default_factory=list)
    """Those that the daemon said it had taken."""
    answered: list[str] = field(default_factory=list)
    """Those of which the answer was heard."""


@dataclass
class Ledger:
    """Of all clients together."""

    sessions: dict[str, Known] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """By id of an approval or a question: what was acknowledged, `granted`, `denied` or the text."""
    memories: dict[str, Value] = field(default_factory=dict)
    """By id, whether it is there."""
    profile: Value = field(default_factory=lambda: Value(""))
    events: dict[int, str] = field(default_factory=dict)
    """By number, the hash of each event that a subscriber was sent."""
    expired: set[str] = field(default_factory=set)
    """Sessions that retention deleted."""
    backups: list[str] = field(default_factory=list)
    """The files that were said to be whole backups."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each operation was acknowledged."""
    refused: dict[str, int] = field(default_factory=dict)
    """How often each error came."""
    problems: list[str] = field(default_factory=list)
    """What no client should have been told."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, counted: dict[str, int], what: str) -> None:
        with self.lock:
            counted[what] = counted.get(what, 0) + 1

    def living(self) -> list[Known]:
        """The sessions that must be there."""
        return [known for known in list(self.sessions.values()) if known.there.possible == [True]]
