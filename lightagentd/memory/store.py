"""The interface of a store of memories.

`Store` is for authors: a class of an administrator's own, named in the configuration as `module:Class`

    [memory]
    store = "our_memories:Shared"

and importable by the daemon. It is made without arguments, in a thread and an event loop of its own, and all
its methods are called there, so that nothing it does can hold up the daemon; a call that takes longer than
`own_store.CALL_TIMEOUT_S` seconds counts as failed. Its answers are checked; if a store raises, hangs or
gives an invalid answer, only that call fails, and `lactl status` shows it. The daemon applies the rules (who
may keep what, limits, expiry, secrets, events); a store only keeps and finds. It has all rights of the
daemon, so it needs the same trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lightagentd.events.history import NewEvent
from lightagentd.memory.entries import Entry, State

METHODS = ("add", "get", "list", "search", "update", "delete", "close")


class Store(Protocol):
    """The interface of an administrator's own class. `owner` is a uid; an entry is found by owner and id, and
    one owner's entries must never be given out for another. An id is used once.
    """

    async def add(self, entry: Entry) -> None:
        """Keep a new entry; it must be durable when this returns."""

    async def get(self, owner: int, memory_id: str) -> Entry | None:
        """One entry in whatever state, None when there is none."""

    async def list(self, owner: int) -> Sequence[Entry]:
        """All entries of one owner, in any order and state."""

    async def search(
        self, owner: int, query: str, *, agent: str | None, state: State, limit: int
    ) -> Sequence[Entry]:
        """The entries that fit a query best, the best first: those in this state, and when an agent is named
        only those with `Entry.is_for(agent)`.
        """

    async def update(self, entry: Entry) -> None:
        """Replace the entry with the same owner and id."""

    async def delete(self, owner: int, memory_id: str) -> None:
        """Forget an entry; nothing happens when there is none."""

    async def close(self) -> None:
        """The daemon stops."""


class Backing(Protocol):
    """The interface that `Memories` uses: a store, and the history with an event for each change."""

    problem: str
    """Its problem as a sentence; empty when it works."""

    async def start(self) -> None:
        """Raises ConfigError."""

    async def get(self, owner: int, memory_id: str) -> Entry | None:
        """As `Store.get`. This and all that follow raise StorageError and Unavailable."""

    async def list(self, owner: int) -> Sequence[Entry]:
        """As `Store.list`."""

    async def search(
        self, owner: int, query: str, *, agent: str | None, state: State, limit: int
    ) -> Sequence[Entry]:
        """As `Store.search`."""

    async def put(self, entry: Entry, event: NewEvent, *, new: bool) -> None:
        """Keep a new entry, or replace one, and store the event."""

    async def drop(self, entry: Entry, event: NewEvent) -> None:
        """Forget an entry, and store the event."""

    async def close(self) -> None:
        """Let go of everything; never raises."""
