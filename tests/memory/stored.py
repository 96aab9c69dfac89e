"""Entries and histories for the tests of memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from lightagentd.config import configuration
from lightagentd.events.history import History
from lightagentd.events.model import Event, new_id
from lightagentd.events.queries import Filter
from lightagentd.memory.entries import Entry
from lightagentd.memory.memories import Memories, Wanted


def entry(**fields: Any) -> Entry:
    """A kept entry of uid 1 for the agent ops, but for the fields that are given."""
    now = time.time_ns() // 1000
    found: dict[str, Any] = {
        "id": new_id("mem"),
        "owner": 1,
        "agent": "ops",
        "text": "something",
        "tags": (),
        "source": "agent",
        "state": "kept",
        "session": "",
        "trace_id": "",
        "created_us": now,
        "updated_us": now,
        "expires_us": 0,
        "confidence": 0.8,
        "scope": "agent",
    }
    return Entry(**{**found, **fields})


def by_agent(text: str, **fields: Any) -> Wanted:
    return Wanted(**{"owner": 1, "agent": "ops", "text": text, "by_agent": True, **fields})


def by_person(text: str, **fields: Any) -> Wanted:
    return Wanted(**{"owner": 1, "agent": "", "text": text, **fields})


@contextlib.asynccontextmanager
async def memories(
    path: Path, agents: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> AsyncIterator[Memories]:
    """Memories on a history of their own; `agents` are what definitions say of their memory."""
    history = History(path)
    await history.start()
    said = {name: configuration.MemoryPolicy(**keys) for name, keys in (agents or {}).items()}
    found = Memories(configuration.Memory(**settings), history, said.get)
    try:
        await found.start()
        yield found
    finally:
        await found.close()
        await history.close()


def events(found: Memories, topic: str = "memory") -> list[Event]:
    return found._history.queries.select(Filter(topic=topic), limit=10_000)


def kinds(found: Memories) -> list[str]:
    return [event.type for event in events(found)]
