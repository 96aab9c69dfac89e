"""Keeps entries where they belong, with an event for each change, and drops those that have expired.

Memories of users lie in the store of the configuration, facts about the machine always in the history; what
is kept also goes to the further store of the agent that it is for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from lightagentd.config.configuration import Memory
from lightagentd.events.history import History
from lightagentd.events.types import memory as types
from lightagentd.memory.entries import MACHINE, Entry, State, is_id
from lightagentd.memory.history_store import HistoryStore
from lightagentd.memory.own_store import OwnStore
from lightagentd.memory.store import Backing
from lightagentd.memory.stores import Stores
from lightagentd.memory.wanted import event_of

_log = logging.getLogger(__name__)


class Keeping:
    """`Memories` owns it. All methods but `problems` raise StorageError and Unavailable."""

    def __init__(self, settings: Memory, history: History, store_of: Callable[[str], str]) -> None:
        """`store_of` gives the name of an agent's further store, empty for none."""
        self._of_machine: Backing = HistoryStore(history)
        self._of_users: Backing = OwnStore(settings.store, history) if settings.store else self._of_machine
        self.stores = Stores(settings.stores)
        self._store_of = store_of

    def problems(self) -> list[str]:
        """The problems of the stores as sentences."""
        return [*filter(None, (self._of_users.problem,)), *self.stores.problems()]

    async def start(self) -> None:
        """Raises ConfigError."""
        await self._of_users.start()
        await self.stores.start()

    async def close(self) -> None:
        await self.stores.close()
        await self._of_users.close()

    async def get(self, owner: int, memory_id: str) -> Entry | None:
        found = await self._backing(owner).get(owner, memory_id) if is_id(memory_id) else None
        return None if found is None else next(iter(await self._without_expired([found])), None)

    async def all(self, owner: int) -> Sequence[Entry]:
        return await self._without_expired(await self._backing(owner).list(owner))

    async def search(
        self, owner: int, query: str, *, agent: str, state: State, limit: int
    ) -> Sequence[Entry]:
        """As `Store.search`; an empty agent stands for all."""
        backing = self._backing(owner)
        found = await backing.search(owner, query, agent=agent or None, state=state, limit=limit)
        return await self._without_expired(found)

    async def put(self, entry: Entry, kind: type[types.MemoryChanged], before: Entry | None = None) -> None:
        """Keep an entry, in place of the one that was there before."""
        await self._backing(entry.owner).put(entry, event_of(entry, kind), new=before is None)
        if entry.state == "kept" and (before is None or before.state != "kept") and entry.owner != MACHINE:
            await self.stores.keep(entry, self._store_of(entry.agent))

    async def drop(self, entry: Entry, kind: type[types.MemoryChanged]) -> None:
        await self._backing(entry.owner).drop(entry, event_of(entry, kind))
        if entry.state == "kept" and entry.owner != MACHINE:
            await self.stores.forget(entry, self._store_of(entry.agent))

    def _backing(self, owner: int) -> Backing:
        return self._of_machine if owner == MACHINE else self._of_users

    async def _without_expired(self, found: Sequence[Entry]) -> Sequence[Entry]:
        """The entries that have not expired. Expired ones are dropped, without the owner's lock."""
        now_us = time.time_ns() // 1000
        if not any(entry.is_expired(now_us) for entry in found):
            return found
        drops = (self.drop(entry, types.MemoryExpired) for entry in found if entry.is_expired(now_us))
        for failure in await asyncio.gather(*drops, return_exceptions=True):
            if isinstance(failure, BaseException):  # it counts as gone, and is dropped another time
                _log.warning("a memory that has expired was not dropped: %s", failure)
        return [entry for entry in found if not entry.is_expired(now_us)]
