"""The history: appends events and the state that they change, durably and in order.

`History` owns the LMDB environment and one writer thread. Appends that arrive while a commit is under
way share the next one (group commit), so that many sessions pay for one fsync(2). An append returns
when its events are on disk, or raises StorageError, and then none of it is stored. An append that cannot
be encoded fails alone; its neighbours are stored. Nothing stored is ever changed, but that `erase` takes the
data of a deleted session's events away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.errors import StorageError
from lightagentd.events.layout import EVENTS, Environment, index_keys, index_prefix, seq_key
from lightagentd.events.model import GENESIS, Event, NewEvent, decode, dump_json, encode
from lightagentd.events.queries import Queries
from lightagentd.events.redaction import Redactor

_log = logging.getLogger(__name__)

MAX_BATCH = 256
"""Appends that share one commit at the most; more wait for the next."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of state that commits together with an event: `value` None deletes the key."""

    state: str
    key: str
    value: dict[str, Any] | None

    def settled(self) -> Change:
        """What is stored of it, now that it is appended: sums must grow in the order of the appends."""
        return self


@dataclass(frozen=True)
class _Append:
    events: Sequence[NewEvent]
    changes: Sequence[Change]
    done: asyncio.Future[list[Event]]
    erased: str = ""
    """The session whose events lose their data before these are stored."""


class History(Queries):
    """Open with `start()`, end with `close()`; reads come from `Queries` and may run at any time."""

    def __init__(
        self,
        path: Path,
        *,
        redactor: Redactor | None = None,
        on_commit: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self._path = path
        self.redactor = redactor or Redactor()
        self._on_commit = on_commit
        self._queue: queue.SimpleQueue[_Append | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._head = (0, GENESIS)
        self.disk_low = False
        """True while the reserve on disk could not be allocated."""

    async def start(self) -> None:
        """Open the environment and start the writer. Raises StorageError, HistoryDamaged."""
        self._loop = asyncio.get_running_loop()
        self.environment = await asyncio.to_thread(Environment, self._path)
        try:
            last = self.last()
        except BaseException:
            self.environment.close()
            raise
        if last is not None:
            self._head = (last.seq, last.hash)
        self.disk_low = not self.environment.reserve()
        self._thread = threading.Thread(target=self._write_loop, name="history", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Store what was appended before, then close the file."""
        thread, self._thread = self._thread, None  # from here on, `append` refuses
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)
            self.environment.close()

    @property
    def head_seq(self) -> int:
        """The number of the newest durable event, 0 when there is none."""
        return self._head[0]

    def append(self, *events: NewEvent, changes: Sequence[Change] = ()) -> asyncio.Future[list[Event]]:
        """Queue events and the state that they change, as one transaction.

        The returned future has the stored events once they are durable; awaiting it is what makes a step
        fail when they cannot be stored. Must be called in the event loop's thread.
        """
        return self._put(events, changes)

    def erase(
        self, session: str, tombstone: NewEvent, *, changes: Sequence[Change] = ()
    ) -> asyncio.Future[list[Event]]:
        """Take the data of every event of a session away, and store that and some changes, in one go.

        Headers and hashes stay, so the chain still verifies. The tombstone's data gets `erased_events`, the
        number of events that had data. Pages of the file that held it are free then, and are written over as
        the history grows. As `append` in all else.
        """
        return self._put([tombstone], changes, session)

    def _put(
        self, events: Sequence[NewEvent], changes: Sequence[Change], erased: str = ""
    ) -> asyncio.Future[list[Event]]:
        if self._thread is None or self._loop is None:
            raise StorageError("The history is closed.")
        done: asyncio.Future[list[Event]] = self._loop.create_future()
        self._queue.put(_Append(events, [each.settled() for each in changes], done, erased))
        return done

    def _write_loop(self) -> None:
        stopping = False
        while not stopping:
            batch: list[_Append] = []
            item = self._queue.get()
            while item is not None and len(batch) < MAX_BATCH:
                batch.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            else:
                if item is None:
                    stopping = True
                else:
                    batch.append(item)
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Append]) -> None:
        try:
            stored = self._store(batch)
        except Exception as err:  # noqa: BLE001 - goes to whoever appended; the thread must live for the others
            on_disk = isinstance(err, lmdb.Error | OSError) and not isinstance(err, lmdb.BadValsizeError)
            if len(batch) > 1 and not on_disk:
                for one in batch:  # what cannot be encoded must not fail its neighbours
                    self._commit([one])
                return
            _log.error("history: %d appends could not be stored: %s", len(batch), err)
            self._tell(partial(_fail, batch, err, on_disk=on_disk))
            return
        committed = [event for events in stored for event in events]
        if self._on_commit is not None:
            self._on_commit(committed)
        self._tell(partial(_resolve, batch, stored))

    def _store(self, batch: list[_Append]) -> list[list[Event]]:
        while True:
            try:
                stored, head = self._transaction(batch)
            except lmdb.MapFullError:
                self.environment.grow()
                continue
            self._head = head
            self.disk_low = not self.environment.reserve()
            return stored

    def _transaction(self, batch: list[_Append]) -> tuple[list[list[Event]], tuple[int, str]]:
        seq, prev = self._head
        db = self.environment.db
        stored: list[list[Event]] = []
        with self.environment.env.begin(write=True) as txn:
            for item in batch:
                events: list[Event] = []
                wanted = item.events
                if item.erased:
                    counted = {"erased_events": self._erase(txn, item.erased)}
                    wanted = [replace(new, data={**new.data, **counted}) for new in item.events]
                for new in wanted:
                    seq += 1
                    record, event = encode(new, seq, prev, self.redactor)
                    prev = event.hash
                    txn.put(seq_key(seq), record, db=db[EVENTS], append=True)
                    topic = event.topic.encode()
                    for name, key in index_keys(event):
                        txn.put(key, topic, db=db[name])
                    events.append(event)
                for change in item.changes:
                    self._apply(txn, change)
                stored.append(events)
        return stored, (seq, prev)

    def _erase(self, txn: Any, session: str) -> int:
        """Take the second line of each of a session's records away; says of how many."""
        db, prefix = self.environment.db, index_prefix(session)
        with txn.cursor(db["by_session"]) as cursor:
            keys: list[bytes] = []
            placed = cursor.set_range(prefix)
            while placed and cursor.key().startswith(prefix):
                keys.append(cursor.key()[-8:])
                placed = cursor.next()
        count = 0
        for key in keys:
            line, _, data = txn.get(key, db=db[EVENTS]).partition(b"\n")
            if data and json.loads(line)["session"] == session:
                txn.put(key, line + b"\n", db=db[EVENTS])
                count += 1
        return count

    def _apply(self, txn: Any, change: Change) -> None:
        db = self.environment.db[change.state]
        if change.value is None:
            txn.delete(change.key.encode(), db=db)
        else:
            value = dump_json(change.value)
            if self.redactor.suspects(value):
                value = dump_json(self.redactor.value(change.value))
            txn.put(change.key.encode(), value, db=db)

    def _tell(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)


def _resolve(batch: list[_Append], stored: list[list[Event]]) -> None:
    for item, events in zip(batch, stored, strict=True):
        if not item.done.done():
            item.done.set_result(events)


def _fail(batch: list[_Append], err: Exception, *, on_disk: bool) -> None:
    advice = "Look at the disk that holds the daemon's state folder." if on_disk else ""
    for item in batch:
        if not item.done.done():
            failure = StorageError(f"The history could not store an event: {err}", suggestion=advice)
            failure.__cause__ = err
            item.done.set_exception(failure)


__all__ = ["Change", "Event", "History", "NewEvent", "decode"]
