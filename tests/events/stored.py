"""What the tests of the history share: opening one, and changing its stored bytes behind its back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.events.history import History, NewEvent
from lightagentd.events.store.layout import seq_key


def note(number: int = 0, topic: str = "agent.message", **data: Any) -> NewEvent:
    """An event that says its number."""
    return NewEvent(topic=topic, type="message", data={"n": number, **data})


@contextlib.asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[History]:
    """A started history, closed at the end."""
    history = History(folder, **options)
    await history.start()
    try:
        yield history
    finally:
        await history.close()


@contextlib.contextmanager
def raw_events(folder: Path) -> Iterator[Any]:
    """A write transaction on the stored events, past the daemon: record by 8-byte key."""
    environment = lmdb.open(str(folder), max_dbs=16, sync=False)
    try:
        database = environment.open_db(b"events")
        with environment.begin(write=True, db=database) as txn:
            yield txn
    finally:
        environment.close()


def alter(folder: Path, seq: int, change: Callable[[bytes, bytes], bytes]) -> None:
    """Replace a stored record; `change` gets its header line and its data."""
    with raw_events(folder) as txn:
        line, _, data = txn.get(seq_key(seq)).partition(b"\n")
        txn.put(seq_key(seq), change(line, data))


@contextlib.contextmanager
def raw_meta(folder: Path) -> Iterator[Any]:
    """A write transaction on what is stored of the store itself, past the daemon."""
    environment = lmdb.open(str(folder), max_dbs=32, sync=False)
    try:
        database = environment.open_db(b"meta")
        with environment.begin(write=True, db=database) as txn:
            yield txn
    finally:
        environment.close()
