"""The history: appends events and their changes of state, durably and in order.

`History` owns the LMDB environment and one writer thread. Appends that arrive while a commit is under way
share the next one (group commit), so that many sessions pay for one fsync(2). One that `may_wait` is kept
for up to 20 ms, so that it shares the commit of its follower. An append returns when its
events are on disk, or raises StorageError, and then none of it is stored. An append that cannot be encoded
fails alone; its neighbours are stored. Stored events never change, with two exceptions: `erase` removes the
data of a deleted session's events, and `prune` removes old events.

After an error of the disk the history continues as soon as the disk works: LMDB gives up its file when it
could not write the root, so the writer opens it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from lightagentd.errors import HistoryDamaged, LightagentError, StorageError
from lightagentd.events.model import GENESIS, Event, NewEvent, decode, dump_json, encode
from lightagentd.events.queries import Queries
from lightagentd.events.store import clock, records, rows
from lightagentd.events.store.exchange import finish_exchange
from lightagentd.events.store.layout import SCHEMA_VERSION, Environment, written
from lightagentd.events.store.migrations import Progress, migrate
from lightagentd.events.store.room import disk_full
from lightagentd.events.store.states import decoding
from lightagentd.events.types.event_type import named
from lightagentd.redaction import Redactor
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)

MAX_BATCH = 256
"""Appends that share one commit at the most; more wait for the next."""
WAIT_S = 0.02
"""How long appends that may wait are kept for others to share their commit."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of state that commits together with an event: `value` None deletes the key."""

    state: str
    key: str
    value: dict[str, Any] | None

    def settled(self) -> Change:
        """The value to store, computed at the append: sums must grow in the order of the appends."""
        return self


Prepare = Callable[[Any, int], Sequence[NewEvent]]
"""What is done in the transaction before an append's events are stored: gets the transaction and the number
of the next event, and gives the events to store. It may be called again, in another transaction.
"""


class _Append(NamedTuple):
    events: Sequence[NewEvent]
    changes: Sequence[Change]
    done: asyncio.Future[list[Event]]
    prepare: Prepare | None = None
    may_wait: bool = False


@dataclass(frozen=True)
class _Work:
    """Work for the writer alone, between two transactions."""

    function: Callable[[], None]
    done: asyncio.Future[None]


class History:
    """Open with `start()`, end with `close()`. From the start on, `queries` reads `environment`."""

    environment: Environment
    queries: Queries

    def __init__(
        self,
        path: Path,
        *,
        redactor: Redactor | None = None,
        on_commit: Callable[[list[Event]], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`progress` receives sentences about slow work during the start, in any thread."""
        self._path = path
        self._progress = progress
        self.redactor = redactor or Redactor()
        self._on_commit = on_commit
        self._queue: queue.SimpleQueue[_Append | _Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._head = (0, GENESIS)
        self._erased: set[str] = set()
        """Sessions whose data were erased since `watch_erasures`."""
        self.disk_low = False
        """True while the reserve on disk could not be allocated."""
        self.problem = ""
        """Why the last events could not be stored, as a sentence; empty again once some are."""

    async def start(self) -> None:
        """Open the environment and start the writer. Where the disk takes no writes, the store is opened for
        reading, and each append fails. Raises StorageError, HistoryDamaged.
        """
        self._loop = asyncio.get_running_loop()
        self.environment = await asyncio.to_thread(self._open)
        self.disk_low = not self.environment.reserve()
        self._thread = threading.Thread(target=self._write_loop, name="history", daemon=True)
        self._thread.start()
        try:
            with decoding("meta", "owed"):
                owed = [_owed_event(*each) for each in self.environment.owed()]
            if owed and not self.environment.read_only:
                await self._put((), (), partial(self._settled, owed))
        except BaseException as err:
            if self.problem and type(err) is StorageError:  # the disk does not take them: they are owed on
                return
            await self.close()
            raise

    def _open(self) -> Environment:
        finish_exchange(self._path)
        try:
            environment = Environment(self._path)
        except HistoryDamaged:
            raise
        except StorageError as err:  # a file system that is read-only, or has no room for the lock file
            environment = Environment(self._path, read_only=True)
            if environment.version < SCHEMA_VERSION:
                environment.close()
                raise
            _log.error("%s It can only be read.", err.message)
        self.environment, self.queries = environment, Queries(environment)
        try:
            if not environment.read_only:
                migrate(environment, self._progress)
            self._head = self.queries.stored_head()
        except BaseException:
            environment.close()
            raise
        return environment

    def _settled(self, owed: list[NewEvent], txn: Any, _: int) -> list[NewEvent]:
        self.environment.settle(txn)
        return owed

    async def close(self) -> None:
        """Store all earlier appends, then close the file."""
        thread, self._thread = self._thread, None  # from here on, `append` refuses
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)
            self.environment.close()

    @property
    def head_seq(self) -> int:
        """The number of the newest durable event, 0 when there is none."""
        return self._head[0]

    @property
    def head(self) -> tuple[int, str]:
        """Number and hash of the newest durable event, or of the anchor when the chain is empty."""
        return self._head

    def append(
        self, *events: NewEvent, changes: Sequence[Change] = (), may_wait: bool = False
    ) -> asyncio.Future[list[Event]]:
        """Queue events and their changes of state, as one transaction.

        The returned future has the stored events once they are durable; awaiting it makes a step fail when
        they cannot be stored. Must be called in the event loop's thread. What `may_wait` is kept for WAIT_S.
        """
        return self._put(events, changes, may_wait=may_wait)

    def hurry(self) -> None:
        """Commit at once what may wait: somebody waits for it."""
        if self._thread is not None:
            self.exclusively(lambda: None)

    def erase(
        self, session: str, tombstone: NewEvent, *, changes: Sequence[Change] = ()
    ) -> asyncio.Future[list[Event]]:
        """Remove the data of every event of a session, and store that and some changes, in one transaction.

        Headers and hashes stay, so the chain still verifies. The tombstone's data gets `erased_events`, the
        number of events that had data, and `erased_rows`, that of the removed rows by state. The file's pages
        with that data become free, and are overwritten as the history grows. Otherwise like `append`.
        """

        def prepare(txn: Any, _: int) -> list[NewEvent]:
            gone = [(change.state, change.key) for change in changes if change.value is None]
            counted = {
                "erased_rows": rows.removed(self.environment, txn, gone),
                "erased_events": records.erase(self.environment, txn, session),
            }
            self._erased.add(session)
            return [replace(tombstone, data={**tombstone.data, **counted})]

        return self._put((), changes, prepare)

    def appending(self, prepare: Prepare) -> asyncio.Future[list[Event]]:
        """Like `append`, with events that `prepare` makes in the transaction itself. They may use the last
        part of the reserve, see `Environment.full`.
        """
        return self._put((), (), prepare)

    def exclusively(self, function: Callable[[], None]) -> asyncio.Future[None]:
        """Run something in the writer's thread while it writes nothing else, such as exchanging the file."""
        if self._thread is None or self._loop is None:
            raise StorageError("The history is closed.")
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Work(function, done))
        return done

    def watch_erasures(self) -> set[str]:
        """The sessions whose data are erased from now on; the list grows until the next call."""
        self._erased = set()
        return self._erased

    def _put(
        self,
        events: Sequence[NewEvent],
        changes: Sequence[Change],
        prepare: Prepare | None = None,
        *,
        may_wait: bool = False,
    ) -> asyncio.Future[list[Event]]:
        if self._thread is None or self._loop is None:
            raise StorageError("The history is closed.")
        done: asyncio.Future[list[Event]] = self._loop.create_future()
        self._queue.put(_Append(events, [each.settled() for each in changes], done, prepare, may_wait))
        return done

    def _write_loop(self) -> None:
        while (item := self._queue.get()) is not None:
            batch: list[_Append] = []
            until = time.monotonic() + WAIT_S
            while isinstance(item, _Append):
                batch.append(item)
                if len(batch) == MAX_BATCH:
                    break
                if not item.may_wait:
                    until = 0.0
                try:
                    item = self._queue.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
            if batch:
                self._commit(batch)
            if isinstance(item, _Work):
                self._do(item)
            elif item is None:
                return

    def _do(self, work: _Work) -> None:
        try:
            work.function()
        except Exception as err:  # noqa: BLE001 - goes to whoever asked; the thread must live for the others
            self._tell(partial(_settle, work.done, None, err))
        else:
            self._tell(partial(_settle, work.done, None))

    def _commit(self, batch: list[_Append]) -> None:
        if self.environment.read_only:  # after the last error it could not be opened for writing
            self._mend()
        if self.environment.full and not self.environment.reserve() and self.environment.full:
            refused = [item for item in batch if item.prepare is None]
            self._tell(partial(_fail, refused, disk_full(self._path), on_disk=True))
            batch = [item for item in batch if item.prepare is not None]
        try:
            stored = self._store(batch)
        except Exception as err:  # noqa: BLE001 - goes to whoever appended; the thread must live for the others
            on_disk = isinstance(err, lmdb.Error | OSError) and not isinstance(err, lmdb.BadValsizeError)
            if len(batch) > 1 and not on_disk:
                for one in batch:  # an append that cannot be encoded must not fail its neighbours
                    self._commit([one])
                return
            _log.error("history: %d appends could not be stored: %s", len(batch), err)
            if on_disk:
                self.problem = f"The history in {self._path} could not be written: {reason(err)}."
                self._mend()
            self._tell(partial(_fail, batch, err, on_disk=on_disk))
            return
        self.problem = ""
        committed = [event for events in stored for event in events]
        if self._on_commit is not None:
            self._on_commit(committed)
        self._tell(partial(_resolve, batch, stored))

    def _store(self, batch: list[_Append]) -> list[list[Event]]:
        stored, self._head = written(self.environment, partial(self._transaction, batch))
        self.disk_low = not self.environment.reserve()
        return stored

    def _mend(self) -> None:
        """After an error of the disk: make the next append possible, if the disk allows it."""
        try:
            try:
                with self.environment.env.begin(write=True) as txn:
                    txn.abort()
            except lmdb.Error:  # LMDB gave the file up, or it is not open for writing
                self.environment.reopen()
            self._head = self.queries.stored_head()
            self.disk_low = not self.environment.reserve()
        except (LightagentError, lmdb.Error, OSError) as err:
            _log.error("history: the file cannot be opened again: %s", err)

    def _transaction(self, batch: list[_Append], txn: Any) -> tuple[list[list[Event]], tuple[int, str]]:
        seq, prev = self._head
        environment = self.environment
        stored: list[list[Event]] = []
        times = clock.load(environment, txn)
        puts = records.Puts(environment, txn)
        for item in batch:
            events: list[Event] = []
            wanted = item.events
            if item.prepare is not None:
                puts.flush()
                wanted = item.prepare(txn, seq + 1)
            for new in wanted:
                seq += 1
                record, event = encode(new, seq, prev, self.redactor)
                prev = event.hash
                puts.add(record, event)
                events.append(event)
            for change in item.changes:
                self._apply(txn, change)
            stored.append(events)
        puts.flush()
        clock.note(environment, txn, times, (event.time_us for events in stored for event in events))
        return stored, (seq, prev)

    def _apply(self, txn: Any, change: Change) -> None:
        if change.value is None:
            rows.delete(self.environment, txn, change.state, change.key.encode())
        else:
            value = dump_json(change.value)
            if self.redactor.suspects(value):
                value = dump_json(self.redactor.value(change.value))
            rows.put(self.environment, txn, change.state, change.key.encode(), value)

    def _tell(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)


def _settle(done: asyncio.Future[Any], result: object, err: Exception | None = None) -> None:
    if done.done():
        return  # the waiting task was cancelled
    if err is None:
        done.set_result(result)
    else:
        done.set_exception(err)


def _resolve(batch: list[_Append], stored: list[list[Event]]) -> None:
    for item, events in zip(batch, stored, strict=True):
        _settle(item.done, events)


def _owed_event(topic: str, event_type: str, data: dict[str, Any]) -> NewEvent:
    """Raises ValueError for a type that nobody owes: the note is not signed, and its event will be."""
    if topic != "daemon.history" or event_type not in ("compacted", "migrated", "installed"):
        raise ValueError(f"no {topic} {event_type} is owed by anything that is done to a store")
    return named(topic, event_type, data)


def _fail(batch: list[_Append], err: Exception, *, on_disk: bool) -> None:
    advice = "Look at the disk that holds the daemon's state folder." if on_disk else ""
    for item in batch:
        failure = err
        if not isinstance(err, StorageError):
            failure = StorageError(f"The history could not store an event: {err}", suggestion=advice)
            failure.__cause__ = err
        _settle(item.done, None, failure)


__all__ = ["Change", "Event", "History", "NewEvent", "decode"]
