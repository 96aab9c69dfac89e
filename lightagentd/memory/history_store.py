"""The default store: keeps memories in the history, beside their events.

The stored state `memories` has them under `UID/ID`. Each change commits in one transaction with its event. An
owner's entries are read once and kept in memory, since nobody else writes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.history import Change, Event, History, NewEvent
from lightagentd.host.users import called
from lightagentd.memory.entries import Entry, State, entry_of
from lightagentd.memory.ranking import scores

_STATE = "memories"
_RANKED_ON_LOOP = 100
"""More entries than this are ranked in a thread."""


class HistoryStore:
    """Implements `store.Backing`; needs an open history when it is used, and nothing to begin or end."""

    problem = ""

    def __init__(self, history: History) -> None:
        self._history = history
        self._owners: dict[int, dict[str, Entry]] = {}
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        """There is nothing to do."""

    async def close(self) -> None:
        """There is nothing to do."""

    async def get(self, owner: int, memory_id: str) -> Entry | None:
        return (await self._of(owner)).get(memory_id)

    async def list(self, owner: int) -> Sequence[Entry]:
        return list((await self._of(owner)).values())

    async def search(
        self, owner: int, query: str, *, agent: str | None, state: State, limit: int
    ) -> Sequence[Entry]:
        """Search; of equally good matches the more confident, then the newer comes first."""
        among = [
            entry
            for entry in await self.list(owner)
            if entry.state == state and (agent is None or entry.is_for(agent))
        ]
        if len(among) > _RANKED_ON_LOOP:
            return await asyncio.to_thread(_best, among, query, limit)
        return _best(among, query, limit)

    async def put(self, entry: Entry, event: NewEvent, *, new: bool) -> None:  # noqa: ARG002 - the key says it
        await self._commit(entry, event, gone=False)

    async def drop(self, entry: Entry, event: NewEvent) -> None:
        await self._commit(entry, event, gone=True)

    async def _commit(self, entry: Entry, event: NewEvent, *, gone: bool) -> None:
        entries = await self._of(entry.owner)
        value = None if gone else entry.to_dict()
        change = Change(state=_STATE, key=f"{entry.owner}/{entry.id}", value=value)

        def take(done: asyncio.Future[list[Event]]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            if gone:
                entries.pop(entry.id, None)
            else:
                entries[entry.id] = entry

        stored = self._history.append(event, changes=(change,))
        stored.add_done_callback(take)  # also when the caller goes away meanwhile: it is stored all the same
        await asyncio.shield(stored)

    async def _of(self, owner: int) -> dict[str, Entry]:
        """An owner's entries. Whoever writes has been here before, so what is read cannot miss it."""
        if owner not in self._owners:
            async with self._reading:
                if owner not in self._owners:
                    stored = await asyncio.to_thread(self._history.queries.state, _STATE, f"{owner}/")
                    self._owners[owner] = _entries(stored, owner)
        return self._owners[owner]


def _entries(stored: dict[str, dict[str, Any]], owner: int) -> dict[str, Entry]:
    try:
        found = [entry_of(value, owner) for value in stored.values()]
    except ValueError as err:
        raise HistoryDamaged(
            f"A memory of {called(owner)} cannot be read: {err}.",
            suggestion="Run: lactl audit verify",
        ) from err
    return {entry.id: entry for entry in found}


def _best(among: Sequence[Entry], query: str, limit: int) -> list[Entry]:
    found = zip(scores(query, [entry.words for entry in among]), among, strict=True)
    fitting = [(score, entry) for score, entry in found if score > 0]
    fitting.sort(key=lambda one: (-round(one[0], 3), -one[1].confidence, -one[1].updated_us))
    return [entry for _, entry in fitting[:limit]]
