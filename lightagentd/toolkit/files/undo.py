"""Keeps the previous content of changed files, so that a change can be undone.

For each call a folder, which the worker's unit owns, has `<call_id>.json` (see `Record`) and, when there
was something before, `<call_id>.sealed` with its bytes. Both are written and synced before the change. The
total size is bounded: the oldest records go first, but none of a change that may have to take itself back.
The folder's mode is 0700, since the content may be secret.

Undo needs the complete bytes, secrets included. So they are sealed (AES-256-GCM) with the key in `undo.key`
beside them: a search of the folder, or of a partial copy, finds no passwords of the files. This does not
protect against root. Earlier versions kept unsealed bytes in `<call_id>.data`. A record belongs to the user
for whom its call ran; only they and root learn whether it exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from lightagentd.errors import InvalidArgument, NotFound, StorageError
from lightagentd.host.atomic_file import write_whole
from lightagentd.text.reason import reason
from lightagentd.toolkit.crypt.wrapping import SECRET_BYTES, Source, WrappingKey, wrapping_key

KEY_FILE = "undo.key"
STORE_LIMIT_BYTES = 64 * 1024 * 1024
ROOT = 0
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Record(BaseModel):
    """What one call changed. `sha256` is that of the content, or of a link's target; empty for no file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    existed: bool
    kind: str = "file"
    mode: int = 0
    uid: int = 0
    gid: int = 0
    sha256_before: str = ""
    sha256_after: str = ""
    folders: list[str] = []
    """The folders that the call made for the file, or removed with it."""
    owner: int | None = None
    """The uid on whose behalf the call ran. None in a record of an earlier version, which is root's alone."""
    session: str = ""
    action: str = ""
    """The action of the tool file; empty in a record of an earlier version."""

    def may_be_used_by(self, owner: int) -> bool:
        return owner in (ROOT, self.owner)


def digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


class UndoStore:
    """The records of one folder."""

    def __init__(self, folder: Path, limit_bytes: int = STORE_LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def keep(self, call_id: str, record: Record, data: bytes | None, *, for_s: int = 0) -> bool:
        """Store a record, which others cannot push out for `for_s` seconds; False when there is no room
        for it. Raises StorageError.
        """
        if len(data or b"") > self._limit_bytes:
            return False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if data is not None:
                sealed = self._key(make=True).seal(data, call_id.encode())
                write_whole(self._path(call_id, "sealed"), sealed)
            write_whole(self._path(call_id, "json"), record.model_dump_json().encode())
            if for_s:
                at_s = time.time() + for_s
                os.utime(self._path(call_id, "json"), (at_s, at_s))
            if not self._trim(call_id) and for_s:
                self.drop(call_id)
                return False
        except OSError as err:
            self.drop(call_id)
            raise StorageError(
                f"The previous content of {record.path} cannot be kept in {self._folder}: {err.strerror}.",
                suggestion="Nothing was changed; make room there first.",
            ) from err
        return True

    def drop(self, call_id: str) -> None:
        """Forget a record, because the change that it was for did not happen."""
        for ending in ("json", "sealed", "data"):
            with contextlib.suppress(OSError):
                self._path(call_id, ending).unlink()

    def find(self, call_id: str, owner: int) -> tuple[Record, bytes]:
        """The record of a call and the bytes that were there, for the uid `owner`.

        Raises StorageError, and NotFound, in the same words, for no record and for one of somebody else.
        """
        try:
            record = Record.model_validate_json(self._path(call_id, "json").read_bytes())
            if not record.may_be_used_by(owner):
                raise nothing_kept(call_id)
            data = self._content(call_id) if record.existed else b""
        except FileNotFoundError:
            raise nothing_kept(call_id) from None
        except (OSError, ValidationError) as err:
            if owner != ROOT and isinstance(err, ValidationError):  # it does not say whose it is
                raise nothing_kept(call_id) from None
            why = reason(err) if isinstance(err, OSError) else "it was altered"
            raise StorageError(f"What is kept for the call {call_id} cannot be read: {why}.") from err
        if data is None or (record.existed and digest(data) != record.sha256_before):
            raise StorageError(f"What is kept for the call {call_id} is damaged.")
        return record, data

    def _content(self, call_id: str) -> bytes | None:
        """The bytes that are kept; None when they are not what was sealed. Raises OSError."""
        try:
            sealed = self._path(call_id, "sealed").read_bytes()
        except FileNotFoundError:
            return self._path(call_id, "data").read_bytes()
        return self._key(make=False).unseal(sealed, call_id.encode())

    def _key(self, *, make: bool) -> WrappingKey:
        """What seals the contents. Raises OSError."""
        path = self._folder / KEY_FILE
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            if not make:
                raise
            secret = b""
        if len(secret) != SECRET_BYTES:
            if not make:
                raise OSError(f"the key {path} is damaged")
            secret = secrets.token_bytes(SECRET_BYTES)
            write_whole(path, secret, draft=path.with_suffix(".new"))
        return wrapping_key(Source.FILE, secret)

    def _path(self, call_id: str, ending: str) -> Path:
        if not _CALL_ID.fullmatch(call_id):
            raise InvalidArgument(f"{call_id!r} is not the id of a call.", field="call_id")
        return self._folder / f"{call_id}.{ending}"

    def _trim(self, newest: str) -> bool:
        """Remove the oldest records until the rest fits; never the one that was just written, nor one whose
        time lies ahead. Says whether it fits.
        """
        sizes: dict[str, int] = {}
        times: dict[str, int] = {}
        for path in self._folder.iterdir():
            if path.suffix in (".json", ".sealed", ".data"):
                info = path.stat()
                sizes[path.stem] = sizes.get(path.stem, 0) + info.st_size
                times[path.stem] = max(times.get(path.stem, 0), info.st_mtime_ns)
        total, now_ns = sum(sizes.values()), time.time_ns()
        for call_id in sorted(times, key=times.__getitem__):
            if total <= self._limit_bytes:
                break
            if call_id != newest and times[call_id] <= now_ns:
                self.drop(call_id)
                total -= sizes[call_id]
        return total <= self._limit_bytes


def nothing_kept(call_id: str) -> NotFound:
    return NotFound(
        f"Nothing is kept for the call {call_id}.",
        field="call_id",
        suggestion="The oldest contents are removed when the store is full.",
    )
