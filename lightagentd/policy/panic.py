"""The emergency stop: a mark on disk while which nothing may run, and the check for it.

The daemon has one `Panic`. While the stop is on, no turn begins, no worker starts and no approval is granted.
The mark is a file in the state folder, so the stop survives a restart and a crash. Only the file's name
counts, not its content. A spare file of the same size is kept ready, so that a stop works on a full disk: it
is a write in place and a rename(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lightagentd.errors import Panicked, StorageError
from lightagentd.host.renaming import sync_folder

_log = logging.getLogger(__name__)

MARK_BYTES = 4096
REASON_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One emergency stop. `by` is the uid that asked for it, None for a signal or if unknown."""

    since_us: int
    by: int | None
    reason: str


class Panic:
    """The state of the stop. Without a folder nothing is stored or read."""

    def __init__(self, folder: Path | None = None, *, mode: int = 0o600) -> None:
        """`mode` is that of the mark."""
        self._mode = mode
        self._mark = folder / "panic" if folder else None
        self._ready = folder / "panic.ready" if folder else None
        self.stop: Stop | None = None
        self.asked = 0
        """How often a stop was asked for; whoever ends one sees by it that another came meanwhile."""

    @property
    def on(self) -> bool:
        return self.stop is not None

    def check(self) -> None:
        """Raises Panicked while everything is stopped."""
        if self.stop is not None:
            raise self.error()

    def error(self) -> Panicked:
        """The error for every refused request."""
        why = f": {self.stop.reason}" if self.stop is not None and self.stop.reason else "."
        return Panicked(
            f"An administrator has stopped everything{why if why.endswith(('.', '!', '?')) else why + '.'}",
            suggestion="Nothing runs until an administrator says: lactl panic --off",
        )

    def load(self) -> None:
        """Read the mark of the last run, and prepare the spare file."""
        if self._mark is None or self._ready is None:
            return
        try:
            text = self._mark.read_text(errors="replace")
        except FileNotFoundError:
            self._prepare()
            return
        except OSError as err:
            _log.error("the mark of the emergency stop cannot be read: %s", err)
            text = ""
        self.stop = _decoded(text, self._mark)

    def begin(self, by: int | None, reason: str) -> Stop:
        """Stop, in memory: from now on `check` refuses. An active stop stays unchanged."""
        self.asked += 1
        if self.stop is None:
            reason = " ".join(reason.split())[:REASON_CHARS]
            self.stop = Stop(since_us=time.time_ns() // 1000, by=by, reason=reason)
        return self.stop

    async def store(self, patience_s: float) -> threading.Event:
        """Write the mark to disk; returns when it is there, or after `patience_s`.

        A separate thread writes, because the disk may hang and the workers must be killed all the same. The
        returned event is set when the thread is done; `marked` then tells whether it succeeded.
        """
        written = threading.Event()
        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def write() -> None:
            try:
                self._write()
            finally:
                written.set()
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(told.set)

        try:
            threading.Thread(target=write, name="panic", daemon=True).start()
        except RuntimeError:  # no thread can be had, as when something used up all processes
            write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await told.wait()
        return written

    @property
    def marked(self) -> bool:
        """Whether the stop would survive a restart."""
        return self._mark is None or self._mark.exists()

    def end(self) -> None:
        """Remove the mark and allow everything again. Raises StorageError; then the stop stays on."""
        if self._mark is not None:
            try:
                self._mark.unlink(missing_ok=True)
                sync_folder(self._mark.parent)
            except OSError as err:
                raise StorageError(
                    f"The mark {self._mark} cannot be removed: {err.strerror}.",
                    suggestion="The emergency stop goes on. Look at the disk that holds it.",
                ) from err
        self.stop = None
        self._prepare()

    def _prepare(self) -> None:
        """Prepare the spare file with allocated space. Without it, a stop makes a new file."""
        if self._ready is None or self._ready.exists():
            return
        try:
            self._fill(self._ready, b"")
            sync_folder(self._ready.parent)
        except OSError as err:
            _log.warning("no file for an emergency stop can be laid ready: %s", err)

    def _write(self) -> None:
        """Write the mark, in the thread. If one way fails, the next is tried: only the file's name counts."""
        if self._mark is None or self._ready is None or self.stop is None or self._mark.exists():
            return
        with contextlib.suppress(OSError):
            self._fill(self._ready, json.dumps(asdict(self.stop)).encode())
        try:
            self._ready.rename(self._mark)
        except OSError:
            try:
                self._mark.touch(mode=self._mode)
            except OSError as err:
                _log.critical("the emergency stop will not outlast a restart: %s", err)
                return
        with contextlib.suppress(OSError):
            sync_folder(self._mark.parent)

    def _fill(self, path: Path, data: bytes) -> None:
        """Write over a file in place, always with the same size."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, self._mode)
            os.pwrite(fd, data[:MARK_BYTES].ljust(MARK_BYTES), 0)
            os.fsync(fd)
        finally:
            os.close(fd)


def _decoded(text: str, path: Path) -> Stop:
    try:
        found = json.loads(text)
        by = found["by"]
        return Stop(
            since_us=int(found["since_us"]), by=None if by is None else int(by), reason=str(found["reason"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        try:
            since_us = path.stat().st_mtime_ns // 1000
        except OSError:
            since_us = 0
        return Stop(since_us=since_us, by=None, reason="")
