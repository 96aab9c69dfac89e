"""The journald sink: sends each stored event, in a thread of its own, so that a stuck journal delays nobody.

Events that journald does not take are counted; the history has them. When journald takes entries again, an
extra entry gives the numbers of the missing events, for auditors. If that entry cannot be sent before the
daemon ends, a file keeps it for the next start. Events that wait when the daemon is killed are such a gap
too: a mark stores the last event that was sent (`mark`), so the event being sent at that time may be in the
journal and still count as missing. Missing events are not kept for a second attempt: a slow journal must not
use up memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from lightagentd.events.journal.entry import gap_fields, journal_fields
from lightagentd.events.journal.journal_socket import SOCKET, JournalSocket
from lightagentd.events.journal.mark import JournalMark
from lightagentd.events.model import Event
from lightagentd.host.atomic_file import write_whole
from lightagentd.host.systemd import BOOTED
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)

QUEUE_LIMIT = 20_000
"""Events that may wait; beyond it the newest are dropped here and counted (the history has them)."""
RETRY_S = 5.0
"""How often a journal that did not take an event is asked again while nothing happens."""
_SLOW = QUEUE_LIMIT // 4
"""So many waiting events are worth a word."""


@dataclass(frozen=True)
class _Gap:
    """A gap: the events that the journal lacks are all between these numbers."""

    first_seq: int
    last_seq: int
    count: int

    def joined(self, other: _Gap | None) -> _Gap:
        if other is None:
            return self
        first, last = min(self.first_seq, other.first_seq), max(self.last_seq, other.last_seq)
        return _Gap(first, last, self.count + other.count)


class JournaldSink:
    """Owns the sending thread and its socket. `send` never blocks; `dropped` counts the lost events.

    With `content`, the entries hold the events' data: prompts, output, messages. `gap_file` keeps a gap that
    was not reported before the end, `mark_file` the number of the last sent event.
    """

    def __init__(
        self,
        path: Path = SOCKET,
        *,
        content: bool = False,
        gap_file: Path | None = None,
        mark_file: Path | None = None,
    ) -> None:
        self._path = path
        self._content = content
        self._gap_file = gap_file
        self._mark = JournalMark(mark_file)
        self._last_seq = 0
        """The last event that was given to `send`."""
        self._lock = threading.Lock()
        self._dropped = 0
        self._gap: _Gap | None = None
        self._refused = ""
        """Why journald takes nothing now."""
        self._sending: Event | None = None
        self._telling: _Gap | None = None
        """What the thread has in hand, and may be stuck with."""
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """How many events were lost."""
        return self._dropped

    @staticmethod
    def available() -> bool:
        """Whether journald runs here, or systemd would start it."""
        return SOCKET.exists() or BOOTED.is_dir()

    def problem(self) -> str:
        """The present problem as a sentence; empty when there is none."""
        if self._refused:
            return (
                f"journald takes no events ({self._refused}); {self._dropped} are in the history alone. "
                "Look at: systemctl status systemd-journald.socket systemd-journald"
            )
        waiting = self._queue.qsize()
        if waiting >= _SLOW:
            return (
                f"journald does not keep up: {waiting} events wait for it. "
                "Look at: systemctl status systemd-journald"
            )
        if self._dropped:
            return f"journald did not take {self._dropped} events; the history has them."
        return ""

    def start(self) -> None:
        """Start the thread."""
        if (kept := self._kept_gap()) is not None:
            self._gap = kept.joined(self._gap)
        self._mark.open()
        self._thread = threading.Thread(target=self._run, name="journald", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        """Queue an event. Only the history's thread may call this."""
        if not self._last_seq:
            self._note_unsent(event.seq)
        self._last_seq = event.seq
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._miss(event)

    def _note_unsent(self, first_seq: int) -> None:
        """Report the events that an earlier run stored but did not send."""
        sent = self._mark.seq
        if sent is None:
            self._mark.seq = first_seq - 1
        elif sent < first_seq - 1:
            with self._lock:
                self._gap = _Gap(sent + 1, first_seq - 1, first_seq - 1 - sent).joined(self._gap)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send the waiting events, for a limited time."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                # The journal is stuck, and the thread with it, holding one event; the rest ends here.
                left = self._drain()
                for event in left:
                    self._miss(event)
                _log.warning("journald is stuck: %d events are in the history alone", len(left))
                self._queue.put(None)
            stuck, self._thread = self._thread.is_alive(), None
            if self._keep_gap() and self._last_seq:
                self._mark.seq = self._last_seq
            if not stuck:
                self._mark.close()

    def _drain(self) -> list[Event]:
        """Count the event that the stuck thread holds, and the waiting ones."""
        left = [self._sending] if self._sending is not None else []
        while True:
            try:
                event = self._queue.get_nowait()
            except queue.Empty:
                return left
            if event is not None:
                left.append(event)

    def _kept_gap(self) -> _Gap | None:
        """The gap that the last run did not report."""
        if self._gap_file is None:
            return None
        try:
            found = json.loads(self._gap_file.read_text())
            return _Gap(*(int(found[name]) for name in ("first_seq", "last_seq", "count")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as err:
            _log.warning("what the journal lacks since the last run is not known: %s", err)
            return None

    def _keep_gap(self) -> bool:
        """Keep the unreported gap for the next start, or remove the file; False when that failed."""
        if self._gap_file is None:
            return True
        try:
            gap = self._telling.joined(self._gap) if self._telling else self._gap
            if gap is None:
                self._gap_file.unlink(missing_ok=True)
            else:
                content = json.dumps(asdict(gap)).encode()
                write_whole(self._gap_file, content, draft=self._gap_file.with_suffix(".new"))
        except OSError as err:
            _log.warning("what the journal lacks cannot be kept for the next start: %s", err)
            return False
        return True

    def _run(self) -> None:
        journal = JournalSocket(self._path)
        try:
            while True:
                try:
                    # While a gap is to be told, not only the next event tells it.
                    event = self._queue.get(timeout=RETRY_S if self._gap else None)
                except queue.Empty:
                    self._tell_gap(journal)
                    continue
                if event is None:
                    self._tell_gap(journal)
                    return
                self._sending = event
                self._pass_on(journal, event)
                self._sending = None
        finally:
            journal.close()

    def _pass_on(self, journal: JournalSocket, event: Event) -> None:
        # A gap that is still growing beyond this event is told later, so that one entry tells all of it.
        gap = self._gap
        if gap is not None and gap.last_seq < event.seq and not self._tell_gap(journal):
            self._miss(event)
            return
        try:
            journal.send(journal_fields(event, content=self._content))
        except (OSError, ValueError) as err:
            self._miss(event)
            self._note(reason(err))
        else:
            self._refused = ""
            if self._gap is None and self._thread is not None:
                self._mark.seq = event.seq

    def _tell_gap(self, journal: JournalSocket) -> bool:
        """Whether journald took the entry about the missing events."""
        with self._lock:
            gap, self._gap = self._gap, None
            self._telling = gap
        if gap is None:
            return True
        try:
            journal.send(gap_fields(gap.first_seq, gap.last_seq, gap.count))
        except OSError as err:
            with self._lock:
                self._gap, self._telling = gap.joined(self._gap), None
            self._note(reason(err))
            return False
        self._telling = None
        self._refused = ""
        self._keep_gap()
        return True

    def _miss(self, event: Event) -> None:
        with self._lock:
            self._dropped += 1
            self._gap = _Gap(event.seq, event.seq, 1).joined(self._gap)

    def _note(self, why: str) -> None:
        """Remember why journald takes nothing, and log it once each time that begins."""
        if not self._refused:
            _log.warning("journald does not take events: %s", why)
        self._refused = why
