"""Loads and calls a memory store of the administrator's own (`store.Store`), and checks all that it returns.

The store has its own thread and event loop, so that a blocking method does not block the daemon. A call that
takes too long counts as failed. The thread ends with the store, or with the daemon.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from lightagentd.errors import ConfigError, Unavailable
from lightagentd.events.history import History, NewEvent
from lightagentd.memory.entries import Entry, State, entry_of
from lightagentd.memory.store import METHODS, Store
from lightagentd.memory.store_thread import StoreThread

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

CALL_TIMEOUT_S = 5.0
"""How long a store may take for one call, and to be made."""
MAX_ENTRIES = 200_000
"""A store that gives back more at once gives back garbage."""


class OwnStore:
    """Implements `store.Backing` over a class that is named `module:Class`."""

    def __init__(self, name: str, history: History) -> None:
        self.problem = ""
        self._name = name
        self._history = history
        self._thread = StoreThread(name)
        self._store: Store | None = None

    async def start(self) -> None:
        """Import the class and make the store. Raises ConfigError."""
        self._thread.start()
        try:
            self._store = await self._in_thread(lambda: _make(self._name))
        except ConfigError:
            await self.close()
            raise
        except Exception as err:
            _log.exception("the memory store %s cannot be made", self._name)
            await self.close()
            raise _wrong(self._name, f"{type(err).__name__} when it is imported and made") from err

    async def close(self) -> None:
        if not self._thread.running:
            return
        if (store := self._store) is not None:
            self._store = None
            try:
                await self._in_thread(lambda: store.close())
            except Exception:  # noqa: BLE001 - code of somebody else's; nothing depends on it any more
                _log.exception("the memory store %s does not close as it should", self._name)
        await self._thread.close()

    async def get(self, owner: int, memory_id: str) -> Entry | None:
        found = await self._call("get", lambda store: store.get(owner, memory_id))
        entry = None if found is None else self._sound([found], owner)[0]
        if entry is not None and entry.id != memory_id:
            raise self._failed("get", "another entry than the one that was asked for")
        return entry

    async def list(self, owner: int) -> Sequence[Entry]:
        return self._sound(await self._call("list", lambda store: store.list(owner)), owner)

    async def search(
        self, owner: int, query: str, *, agent: str | None, state: State, limit: int
    ) -> Sequence[Entry]:
        found = await self._call(
            "search", lambda store: store.search(owner, query, agent=agent, state=state, limit=limit)
        )
        return [
            entry
            for entry in self._sound(found, owner)
            if entry.state == state and (agent is None or entry.is_for(agent))
        ][:limit]

    async def put(self, entry: Entry, event: NewEvent, *, new: bool) -> None:
        if new:
            await self._call("add", lambda store: store.add(entry))
        else:
            await self._call("update", lambda store: store.update(entry))
        await self._history.append(event)

    async def drop(self, entry: Entry, event: NewEvent) -> None:
        await self._call("delete", lambda store: store.delete(entry.owner, entry.id))
        await self._history.append(event)

    async def _call(self, method: str, call: Callable[[Store], Coroutine[Any, Any, _T]]) -> _T:
        """Raises Unavailable, whatever the store did; the journal has the traceback."""
        if self._store is None:
            raise Unavailable("The memory store is closed.", suggestion="Try again later.")
        store = self._store
        try:
            found = await self._in_thread(lambda: call(store))
        except TimeoutError:
            raise self._failed(method, f"no answer within {CALL_TIMEOUT_S:g} seconds") from None
        except Exception as err:
            _log.exception("the memory store %s failed in %s", self._name, method)
            raise self._failed(method, type(err).__name__) from err
        self.problem = ""
        return found

    async def _in_thread(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """As `StoreThread.call`."""
        return await self._thread.call(make, CALL_TIMEOUT_S)

    def _sound(self, found: object, owner: int) -> Sequence[Entry]:
        """Check that the store returned entries of this owner. Raises Unavailable."""
        try:
            if not isinstance(found, list | tuple) or len(found) > MAX_ENTRIES:
                raise ValueError("not a list, or one that is too long")
            return [entry_of(value, owner) for value in found]
        except ValueError as err:
            _log.error("the memory store %s gave back what is no memory: %s", self._name, err)
            raise self._failed("its answer", "what it gave back is no memory") from err

    def _failed(self, what: str, why: str) -> Unavailable:
        self.problem = f"The memory store {self._name} does not work: {what}: {why}."
        return Unavailable(self.problem, suggestion="The journal says why; ask an administrator to look.")


async def _make(name: str) -> Store:
    """Import the module and make the class, in the store's thread. Raises ConfigError, and what they do."""
    module, _, cls = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), cls, None)
    except ModuleNotFoundError as err:
        raise _wrong(name, f"there is no module {err.name}") from err
    if not isinstance(found, type):
        raise _wrong(name, f"the module {module} has no class {cls}")
    lacking = [method for method in METHODS if not inspect.iscoroutinefunction(getattr(found, method, None))]
    if lacking:
        raise _wrong(name, f"it lacks the async methods {', '.join(lacking)}")
    return cast(Store, found())


def _wrong(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"memory.store: {name} cannot be used: {why}.",
        suggestion="Name a class that the daemon can import and that has all methods of"
        " lightagentd.memory.store.Store; its module must be on the daemon's PYTHONPATH.",
        field="memory.store",
    )
