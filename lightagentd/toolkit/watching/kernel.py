"""One inotify instance (inotify(7)), made and filled through pyinotify, and read here.

pyinotify 0.9.6 makes the instance and adds and removes watches. Its reading is not used, since it loses:

- `Notifier.read_events` decodes names strictly: one name that is not UTF-8 raises, and everything that was
  read together with it is gone.
- `auto_add` looks into a new folder for plain files and folders only, leaves out what is in a folder that was
  moved in, and keeps the old path of a moved folder until IN_MOVE_SELF; one that was moved away stays watched
  under a path that ends in `-unknown-path`.
- `process_events` works off everything that was read, however much that is.

A folder is handed over as `/proc/self/fd/N` of an open descriptor: nobody can put a link in its place between
looking and adding, and its name need not be UTF-8 (pyinotify encodes paths strictly).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import warnings
from typing import Any, NamedTuple

from lightagentd.errors import LimitExceeded, ToolError
from lightagentd.text.reason import reason

ACCESS, MODIFY, ATTRIB, CLOSE_WRITE, CLOSE_NOWRITE, OPEN = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
UNMOUNT, Q_OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLYDIR, EXCL_UNLINK, ISDIR = 0x0100_0000, 0x0400_0000, 0x4000_0000
"""inotify.h, the same on every architecture."""

KINDS = {
    CREATE: "create",
    DELETE: "delete",
    MODIFY: "modify",
    CLOSE_WRITE: "close_write",
    ATTRIB: "attrib",
    OPEN: "open",
    ACCESS: "access",
    CLOSE_NOWRITE: "close_nowrite",
}
STRUCTURE = CREATE | DELETE | MOVED_FROM | MOVED_TO | DELETE_SELF | MOVE_SELF | ATTRIB | ONLYDIR | EXCL_UNLINK
"""What is always asked for: the tree is followed with it, and an unreadable folder that becomes readable."""
READ_BYTES = 128 << 10
"""How much of the queue is read at once: some thousand events."""
_HEAD = struct.Struct("iIII")


class RawEvent(NamedTuple):
    """One event as the kernel gives it; `wd` is -1 for an overflow. `name` may have surrogate escapes."""

    wd: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """One instance. `fd` is readable when there are events; whoever made it calls `close`."""

    def __init__(self) -> None:
        """Raises LimitExceeded, ToolError."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # it imports asyncore
                import pyinotify
        except ImportError as err:
            raise ToolError(
                f"Files cannot be watched: {err}.", suggestion="Install the Python package pyinotify."
            ) from err
        self._failed = pyinotify.WatchManagerError
        try:
            self._manager: Any = pyinotify.WatchManager()
        except OSError as err:
            if ctypes.get_errno() in (errno.EMFILE, errno.ENFILE):
                raise LimitExceeded(
                    "The kernel gives this user no further inotify instance.",
                    suggestion="Stop a watch, or have the administrator raise fs.inotify.max_user_instances.",
                ) from err
            raise ToolError(f"The kernel gives no inotify instance: {reason(err)}.") from err
        self.fd: int = self._manager.get_fd()
        os.set_inheritable(self.fd, False)
        os.set_blocking(self.fd, False)

    def add(self, folder_fd: int, mask: int) -> int:
        """Watch an open folder; gives the descriptor of the watch. Raises OSError: ENOSPC at the limit."""
        path = f"/proc/self/fd/{folder_fd}"
        try:
            added: dict[str, int] = self._manager.add_watch(path, mask, quiet=False)
        except self._failed as err:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number)) from err
        return added[path]

    def remove(self, wd: int) -> None:
        """Watch a folder no more; one that the kernel has dropped already is no error."""
        try:
            self._manager.rm_watch(wd, quiet=False)
        except self._failed:
            self.forget(wd)

    def forget(self, wd: int) -> None:
        """Take note that the kernel has dropped a watch."""
        if self._manager.get_watch(wd) is not None:
            self._manager.del_watch(wd)

    def read(self) -> list[RawEvent]:
        """What waits in the queue, up to READ_BYTES; nothing when there is nothing."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            wd, mask, cookie, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = data[at : at + length]
            at += length
            found.append(RawEvent(wd, mask, cookie, os.fsdecode(name.rstrip(b"\0"))))
        return found

    def close(self) -> None:
        self._manager.close()
