"""A log of small records on the disk: each is there before `add` returns, and a part of one never counts.

The approver and the workers for change keep what they must not forget in one, each line with its own
checksum. A line that a power cut left half written is dropped, since nobody was told of it; a damaged line
before others makes the log unreadable, because what it said cannot be told.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightagentd.errors import StorageError
from lightagentd.host.atomic_file import write_whole
from lightagentd.signed.statement import canonical
from lightagentd.text.reason import reason

_SUM_CHARS = 16


class Log:
    """An open log. Its owner calls `close`."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError."""
        self.path = path
        self._fd = -1
        self.size_bytes = 0
        try:
            self.records = self._read()
            self._open()
        except OSError as err:
            raise _failed(path, err) from err
        except ValueError as err:
            raise StorageError(
                f"{path} is damaged: {err}.",
                suggestion="What was used cannot be told any more, so nothing runs. Look at the disk.",
            ) from err

    def add(self, record: dict[str, Any]) -> None:
        """Append a record; it is on the disk when this returns. Raises StorageError: it may be there or not,
        and the log takes no more.
        """
        line = _line(record)
        try:
            if self._fd < 0:
                raise OSError(5, os.strerror(5))
            if os.write(self._fd, line) != len(line):
                raise OSError(28, os.strerror(28))
            os.fdatasync(self._fd)
        except OSError as err:
            self.close()
            raise _failed(self.path, err) from err
        self.size_bytes += len(line)

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace all records, whole or not at all. Raises StorageError."""
        try:
            draft = self.path.with_name(f"{self.path.name}.new")
            write_whole(self.path, b"".join(_line(one) for one in records), draft=draft)
            self.close()
            self._open()
        except OSError as err:
            self.close()
            raise _failed(self.path, err) from err

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self.size_bytes = os.fstat(self._fd).st_size

    def _read(self) -> list[dict[str, Any]]:
        """Raises OSError, ValueError. Cuts off a half line at the end."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            write_whole(self.path, b"")
            return []
        whole, _, rest = data.rpartition(b"\n")
        if rest:
            os.truncate(self.path, len(data) - len(rest))
        return [_record(line, number) for number, line in enumerate(whole.splitlines(), 1)]


def _line(record: dict[str, Any]) -> bytes:
    text = canonical(record)
    return hashlib.sha256(text).hexdigest()[:_SUM_CHARS].encode() + b" " + text + b"\n"


def _record(line: bytes, number: int) -> dict[str, Any]:
    """Raises ValueError."""
    total, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest()[:_SUM_CHARS].encode() != total:
        raise ValueError(f"line {number} is not what was written")
    found: dict[str, Any] = json.loads(text)
    return found


def _failed(path: Path, err: OSError) -> StorageError:
    return StorageError(f"{path} cannot be used: {reason(err)}.", suggestion="Look at the disk and its room.")
