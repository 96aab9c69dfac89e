"""Signs the head of the history regularly, so that a rewrite without the key is detected.

`Checkpoints` belongs to the daemon. A checkpoint is an event `daemon.checkpoint`, so it is in the journal
too; it covers all events up to the newest one at that time. One is made when `checkpoint_events` events are
not covered, `checkpoint_s` seconds after the first of them, at each start and at the stop. Its own event
alone is no reason for another one, so an idle daemon makes none. A failed store is retried later. The event
`rows` before it has the digests of the rows of state that changed (see `store.rows`). It repeats the digest
of their sum, so that the journal's copy of each checkpoint has that, too.

A start stores two events before all others: the key (`CheckpointKey`), and a checkpoint of the history it
found. So a part of the history with a start but without a checkpoint was not written by the daemon. The
signed number and hash of the newest checkpoint's own event are kept in `<state>/audit/head.json`. With them
the next start and `lactl audit verify` detect that the history's file was cut or exchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from lightagentd.errors import HistoryDamaged, LightagentError, StorageError
from lightagentd.events.audit.record_check import hash_at, record_of
from lightagentd.events.audit.signing import SigningKey, short, signed_by
from lightagentd.events.context import own_task
from lightagentd.events.history import History
from lightagentd.events.model import Event, NewEvent, decode
from lightagentd.events.store import rows
from lightagentd.events.types.history import CheckpointBroken, CheckpointKey, CheckpointSigned
from lightagentd.host.kept_file import KeptFile
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)

TOPIC = "daemon.checkpoint"
HEAD_FILE = "head.json"
EXPLAINS = {("daemon.history", "installed"), ("daemon.history", "set_aside")}
"""By topic and type: events after which the history is not the one that was signed, and says why."""
_LOOKED_BACK = 16
"""Among so many of the newest events at a start an event that explains is looked for."""
_MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class KeptHead:
    """The newest signature, as it is kept beside the history."""

    seq: int
    hash: str
    fingerprint: str
    signature: str

    @staticmethod
    def read(path: Path) -> KeptHead | None:
        """None when there is no file. Raises ValueError for invalid content, OSError."""
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            found = KeptHead(**json.loads(content))
        except (TypeError, RecursionError) as err:
            raise ValueError(f"{path} does not hold a checkpoint") from err
        texts = (found.hash, found.fingerprint, found.signature)
        if type(found.seq) is not int or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path} does not hold a checkpoint")
        return found


class Checkpoints:
    """Makes checkpoints of one history from `start` to `close`."""

    def __init__(
        self, history: History, key: SigningKey, folder: Path, *, every_events: int, every_s: float
    ) -> None:
        self.key = key
        self._history = history
        self._head_file = KeptFile(folder / HEAD_FILE, "the newest checkpoint")
        self._every_events = every_events
        self._every_s = every_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._uncovered = 0
        """How many events no checkpoint covers."""
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._rows_sha256 = ""
        """What the newest event `rows` says."""
        self._broken = ""
        self._unsigned = ""
        """Why the newest checkpoint could not be stored, as a sentence."""

    def problems(self) -> list[str]:
        """The present problems as sentences."""
        return [problem for problem in (self._broken, self._head_file.problem(), self._unsigned) if problem]

    async def start(self) -> None:
        """Store the key, then a checkpoint of the present history. Raises StorageError."""
        self._loop = asyncio.get_running_loop()
        events = [self._key_event()]
        if (broken := await asyncio.to_thread(self._compared)) is not None:
            self._broken = f"{broken.message} What to do: lactl audit verify"
            _log.error("%s", broken.message)
            events.append(broken.event())
        self._rows_sha256 = await asyncio.to_thread(self._newest_rows)
        if (signed := self._signed()) is not None:
            events.append(signed.event())
        stored = await self._history.append(*events)
        await self._keep(stored[-1])
        if await self._list_rows():  # those of a run that was killed, or all of an older version's store
            await self._sign()
        self._task = own_task(self._run(), name="checkpoints")

    async def close(self) -> None:
        """Make a last checkpoint, if any event is not covered. The history is still open."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait([task])
        if self._uncovered:
            with contextlib.suppress(LightagentError):  # the next start signs these events
                await self.sign()

    def committed(self, events: Sequence[Event]) -> None:
        """In the history's thread: events are on disk. Wakes the loop at most twice for each checkpoint."""
        count = sum(event.topic != TOPIC for event in events)
        if not count or self._loop is None:
            return
        with self._lock:
            before, self._uncovered = self._uncovered, self._uncovered + count
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next start signs these events
            if not before:
                self._loop.call_soon_threadsafe(self._wake.set)
            if before < self._every_events <= self._uncovered:
                self._loop.call_soon_threadsafe(self._full.set)

    async def sign(self) -> None:
        """Make a checkpoint now. Raises StorageError."""
        with self._lock:  # later commits count for the next checkpoint, even if this one covers them
            self._uncovered = 0
            self._wake.clear()
            self._full.clear()
        await self._list_rows()
        await self._sign()

    async def _list_rows(self) -> bool:
        """Store the digests of the rows that changed, if any did. Raises StorageError."""
        environment, shown = self._history.environment, self._history.redactor.text
        listed = await self._history.appending(partial(rows.listing, environment, shown))
        if listed:
            self._rows_sha256 = str((listed[-1].data or {})["rows_sha256"])
        return bool(listed)

    async def _sign(self) -> None:
        """Raises StorageError."""
        if (signed := self._signed()) is not None:
            [stored] = await self._history.append(signed.event())
            await self._keep(stored)

    def _newest_rows(self) -> str:
        """Reads the store: run it in a thread."""
        environment = self._history.environment
        with environment.reading() as txn:
            newest = rows.newest(environment, txn)
        return "" if newest is None else str((newest.data or {}).get("rows_sha256", ""))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._full.wait()
            try:
                await self.sign()
                self._unsigned = ""
            except StorageError as err:
                if not self._unsigned:  # said once: a disk that is full stays so for hours
                    _log.warning("no checkpoint of the history could be stored: %s", err)
                self._unsigned = f"The newest events are not signed: {err.message}"
                await asyncio.sleep(min(self._every_s, 60.0))
                self._wake.set()

    def _signed(self) -> CheckpointSigned | None:
        seq, event_hash = self._history.head
        if not seq:
            return None
        of_rows = {"rows_sha256": self._rows_sha256} if self._rows_sha256 else {}
        return CheckpointSigned(
            seq=seq,
            hash=event_hash,
            fingerprint=self.key.fingerprint,
            signature=self.key.sign(seq, event_hash),
            **of_rows,
        )

    def _key_event(self) -> NewEvent:
        return CheckpointKey(
            fingerprint=self.key.fingerprint, public_key=self.key.public_text, made=self.key.made
        ).event()

    async def _keep(self, newest: Event) -> None:
        """Sign the event of the checkpoint, which no later event covers yet, and keep the signature."""
        head = KeptHead(
            seq=newest.seq,
            hash=newest.hash,
            fingerprint=self.key.fingerprint,
            signature=self.key.sign(newest.seq, newest.hash),
        )
        await asyncio.to_thread(self._head_file.write, json.dumps(asdict(head)).encode() + b"\n")

    def _compared(self) -> CheckpointBroken | None:
        """The difference between history and kept head. Reads the store: run it in a thread."""
        try:
            kept = KeptHead.read(self._head_file.path)
        except (OSError, ValueError) as err:
            return _broken(f"What was signed last is not known: {reason(err, at=True)}.")
        if kept is None:
            return self._without_head()
        ours = kept.fingerprint == self.key.fingerprint
        if ours and not signed_by(self.key.public, kept.seq, kept.hash, kept.signature):
            return _broken(f"{self._head_file.path} was altered: its signature is wrong.", kept)
        found = hash_at(self._history.environment, kept.seq)
        removed = not found and kept.seq < self._history.environment.anchor()[0]  # by retention
        if found == kept.hash or removed or self._is_explained():
            return None
        how = f"ends at event {self._history.head_seq}" if not found else f"has another event {kept.seq}"
        return _broken(
            f"The history is not the one that was signed last, up to event {kept.seq}: it {how}.", kept
        )

    def _without_head(self) -> CheckpointBroken | None:
        """Without a kept head, the history may not have a checkpoint with this key either."""
        try:
            signed = self._history.queries.find_in_topic(
                TOPIC, lambda event: (event.data or {}).get("fingerprint") == self.key.fingerprint
            )
        except HistoryDamaged:
            return None  # the verification of the newest events says so
        if signed is None or self._is_explained():
            return None
        return _broken(
            f"{self._head_file.path}, which says what was signed last, is gone. The history has a "
            f"checkpoint with the key {short(self.key.fingerprint)} at event {signed.seq}."
        )

    def _is_explained(self) -> bool:
        head_seq = self._history.head_seq
        for seq in range(max(1, head_seq - _LOOKED_BACK + 1), head_seq + 1):
            record = record_of(self._history.environment, seq)
            with contextlib.suppress(ValueError):  # damaged, so no explanation; the start must go on
                event = decode(record or b"")
                if (event.topic, event.type) in EXPLAINS:
                    return True
        return False


def _broken(message: str, kept: KeptHead | None = None) -> CheckpointBroken:
    seq, event_hash = (kept.seq, kept.hash) if kept is not None else (0, "")
    return CheckpointBroken(message=message, signed_seq=seq, signed_hash=event_hash)
