"""The emergency stop: a mark on disk that says that nothing may run, and who looks at it.

`Panic` is one object of the daemon's. While it is on, no turn begins, no worker starts and no approval is
granted. The mark is a file in the state folder, so a stop outlasts a restart and a crash. Its name alone
counts: whatever the file holds, even nothing, the stop is on. A file of the same size lies ready beside it,
so that a full disk does not keep an administrator from stopping: beginning is a write in place and a
rename(2).
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
    """One emergency stop. `by` is the uid that asked for it, None where a signal did or nobody knows."""

    since_us: int
    by: int | None
    reason: str


class Panic:
    """Whether everything is stopped. Without a folder nothing is kept, and nothing is read."""

    def __init__(self, folder: Path | None = None) -> None:
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
        """What everything is refused with."""
        why = f": {self.stop.reason}" if self.stop is not None and self.stop.reason else "."
        return Panicked(
            f"An administrator has stopped everything{why if why.endswith(('.', '!', '?')) else why + '.'}",
            suggestion="Nothing runs until an administrator says: lactl panic --off",
        )

    def load(self) -> None:
        """Read the mark that the last run left, and lay the file for the next one ready."""
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
        """Stop, in memory: from now on `check` refuses. A stop that is on already stays as it was."""
        self.asked += 1
        if self.stop is None:
            reason = " ".join(reason.split())[:REASON_CHARS]
            self.stop = Stop(since_us=time.time_ns() // 1000, by=by, reason=reason)
        return self.stop

    async def store(self, patience_s: float) -> threading.Event:
        """Put the mark on disk; returns when it is there, or when that takes longer than `patience_s`.

        A thread of its own writes, because the disk may hang, and the workers must be killed all the same.
        The event that is returned is set when the thread is done; `marked` then says whether it worked.
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
        """Whether the stop would outlast a restart."""
        return self._mark is None or self._mark.exists()

    def end(self) -> None:
        """Take the mark away and allow everything again. Raises StorageError; then the stop goes on."""
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
        """Lay a file ready that has its place on the disk. Without it, a stop makes a new one."""
        if self._ready is None or self._ready.exists():
            return
        try:
            self._fill(self._ready, b"")
            sync_folder(self._ready.parent)
        except OSError as err:
            _log.warning("no file for an emergency stop can be laid ready: %s", err)

    def _write(self) -> None:
        """In the thread. Whatever fails, the next thing is tried: the name of the mark is what counts."""
        if self._mark is None or self._ready is None or self.stop is None or self._mark.exists():
            return
        with contextlib.suppress(OSError):
            self._fill(self._ready, json.dumps(asdict(self.stop)).encode())
        try:
            self._ready.rename(self._mark)
        except OSError:
            try:
                self._mark.touch(mode=0o600)
            except OSError as err:
                _log.critical("the emergency stop will not outlast a restart: %s", err)
                return
        with contextlib.suppress(OSError):
            sync_folder(self._mark.parent)

    def _fill(self, path: Path, data: bytes) -> None:
        """Write over a file in place, always with the same size."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
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
