"""The further stores that find memories (`[memory.stores.NAME]`), such as mem0, chosen per agent.

The daemon keeps every memory itself, with all that is known of it. A further store gets the texts of what is
kept for agents that name it, and is asked when such an agent recalls something. What it gives back is only a
hint: an answer counts where the daemon keeps that memory for that user, and then it is the daemon's entry
that is used. So a store that lies, is slow or is gone can neither show one user what is another's nor make
something up; it costs its time limit, is a problem in `status`, and the daemon's own search answers alone.

A class has `store(data, user_id)` and `retrieve(query, user_id)`, plain or async. `data` is the text, and
`user_id` the uid as text. `retrieve` gives a list, or a dict with it under `results`; each is a text that was
stored, its id, or a dict with one of them. Where `store` takes a `memory_id` it gets that, too, and a method
`forget(memory_id, user_id)` is called for what is dropped. The classes run as those of `own_store` do.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lightagentd.config.memory import MemoryStore
from lightagentd.memory.entries import Entry, is_id, one_line
from lightagentd.memory.store_thread import StoreThread

_log = logging.getLogger(__name__)

MAKE_TIMEOUT_S = 30.0
"""How long a store may take to be imported and made."""
_MEM0 = "lightagentd.memory.mem0_store:Mem0"
_MOST = 1000
"""More answers than these are not looked at."""
_MOST_CHARS = 20_000
_ID_KEYS = ("memory_id", "id")
_TEXT_KEYS = ("text", "memory", "data", "content")


class Stores:
    """All of them, by name. One that cannot be made is a problem, and the daemon serves without it."""

    def __init__(self, settings: Mapping[str, MemoryStore]) -> None:
        self._stores = {name: _Store(name, one) for name, one in settings.items()}
        self._unknown: set[str] = set()

    async def start(self) -> None:
        await asyncio.gather(*(store.start() for store in self._stores.values()))

    async def close(self) -> None:
        await asyncio.gather(*(store.thread.close() for store in self._stores.values()))

    def problems(self) -> list[str]:
        """As sentences; empty for none."""
        unknown = (f"An agent names a memory store that is not configured: {name}." for name in self._unknown)
        return [*(store.problem for store in self._stores.values() if store.problem), *unknown]

    async def keep(self, entry: Entry, name: str) -> None:
        """Give a kept text to a store; an empty name is no store."""
        if (store := self._named(name)) is not None:
            await store.keep(entry)

    async def forget(self, entry: Entry, name: str) -> None:
        """Have a store forget, if it can."""
        if (store := self._named(name)) is not None and entry.text:
            await store.forget(entry)

    async def find(self, name: str, owner: int, query: str, have: Sequence[Entry]) -> list[Entry]:
        """What a store finds of an owner's kept entries, each once, the best first; `have` are all."""
        store = self._named(name)
        return [] if store is None else await store.find(owner, query, have)

    def _named(self, name: str) -> _Store | None:
        found = self._stores.get(name)
        if name and found is None:
            self._unknown.add(name)
        return found


class _Store:
    def __init__(self, name: str, settings: MemoryStore) -> None:
        self.problem = ""
        self.thread = StoreThread(name)
        self._name, self._settings = name, settings
        self._made: Any = None
        self._takes_id = False

    async def start(self) -> None:
        self.thread.start()
        await self._make()

    async def _make(self) -> bool:
        """Whether the store is there; it is tried again whenever it is needed."""
        if self._made is None and self.thread.running:
            made = await self._call("the import", self._imported, MAKE_TIMEOUT_S)
            if made is not None:
                self._made, self._takes_id = made
        return self._made is not None

    async def _imported(self) -> tuple[Any, bool]:
        kind = _MEM0 if self._settings.kind == "mem0" else self._settings.kind
        module, _, name = kind.partition(":")
        found = getattr(importlib.import_module(module), name)
        lacking = [method for method in ("store", "retrieve") if not callable(getattr(found, method, None))]
        if lacking:
            raise TypeError(f"it has no method {' and no method '.join(lacking)}")
        return found(**self._settings.settings), "memory_id" in inspect.signature(found.store).parameters

    async def keep(self, entry: Entry) -> None:
        if await self._make():
            more = {"memory_id": entry.id} if self._takes_id else {}
            await self._ask("store", entry.text, user_id=str(entry.owner), **more)

    async def forget(self, entry: Entry) -> None:
        if await self._make() and hasattr(self._made, "forget"):
            await self._ask("forget", entry.id, user_id=str(entry.owner))

    async def find(self, owner: int, query: str, have: Sequence[Entry]) -> list[Entry]:
        if not await self._make():
            return []
        answer = await self._ask("retrieve", query, user_id=str(owner))
        if isinstance(answer, dict):
            answer = answer.get("results")
        if not isinstance(answer, list | tuple):
            if answer is not None or not self.problem:
                self._failed("retrieve", "what it gave back is no list")
            return []
        kept = [entry for entry in have if entry.state == "kept"]
        by_id = {entry.id: [entry] for entry in kept}
        by_text: dict[str, list[Entry]] = {}
        for entry in kept:
            by_text.setdefault(entry.text, []).append(entry)
        found: dict[str, Entry] = {}
        strange = 0
        for one in answer[:_MOST]:
            entries = _meant(one, by_id, by_text)
            strange += not entries
            found.update({entry.id: entry for entry in entries if entry.id not in found})
        if strange:
            self._failed("retrieve", f"{strange} of its answers are nothing that is kept for that user")
        return list(found.values())

    async def _ask(self, method: str, *args: str, **named: str) -> Any:
        """None when it fails."""

        async def ask() -> Any:
            answer = getattr(self._made, method)(*args, **named)
            return await answer if inspect.isawaitable(answer) else answer

        return await self._call(method, ask, self._settings.timeout_s)

    async def _call(self, what: str, make: Any, timeout_s: float) -> Any:
        """None for a store that raises or is too slow, which is its problem from here on."""
        try:
            found = await self.thread.call(make, timeout_s)
        except TimeoutError:
            self._failed(what, f"no answer within {timeout_s:g} seconds")
        except Exception as err:  # noqa: BLE001 - code of somebody else's; `status` says it
            _log.exception("the memory store %s failed in %s", self._name, what)
            self._failed(what, f"{type(err).__name__}{f': {err}' if what == 'the import' else ''}")
        else:
            self.problem = ""
            return found
        return None

    def _failed(self, what: str, why: str) -> None:
        self.problem = f"The memory store {self._name} does not work as it should: {what}: {why.rstrip('.')}."


def _meant(
    answer: object, by_id: Mapping[str, list[Entry]], by_text: Mapping[str, list[Entry]]
) -> Sequence[Entry]:
    """The entries that one answer stands for; none for what is not kept."""
    if isinstance(answer, str):
        return by_id.get(answer) or by_text.get(one_line(answer[:_MOST_CHARS])) or ()
    if not isinstance(answer, dict):
        return ()
    more = answer.get("metadata")
    places = [answer, more] if isinstance(more, dict) else [answer]
    values = [place.get(key) for place in places for key in (*_ID_KEYS, *_TEXT_KEYS)]
    texts = [value for value in values if isinstance(value, str)]
    ids = [text for text in texts if is_id(text)]
    if ids:  # a text beside an id that is not kept here does not count
        return by_id.get(ids[0], ())
    return next(
        (by_text[one_line(text[:20_000])] for text in texts if one_line(text[:20_000]) in by_text), ()
    )
