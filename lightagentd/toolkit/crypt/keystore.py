"""Stores private keys: one encrypted file for each key, by the uid and the agent that it belongs to.

    STORE/master.key               the wrapping key, where no credential gives one (see `wrapping`)
    STORE/wrapped-by-credential    a credential was in use: without it, no key is made with less
    STORE/lock                     held while a file is made
    STORE/keys/UID/AGENT/HANDLE    a key: JSON with its facts, and with the private part sealed

Only the worker of the place KEYS has access to the folder. A key is found only by the agent and the owner
that it was made for; for everybody else there is no such key. The facts of a key are bound into the sealed
part, so that no file can be edited or exchanged. A damaged file is reported by its name, and never repaired
or overwritten. A file is written under a temporary name, synced and renamed: after a crash it is complete or
missing. The methods block; call them in a thread.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from lightagentd.errors import InvalidArgument, LimitExceeded, NotFound, ToolError
from lightagentd.host.atomic_file import write_whole
from lightagentd.host.renaming import sync_folder
from lightagentd.host.users import user_name
from lightagentd.toolkit.crypt.wrapping import (
    CREDENTIAL,
    SECRET_BYTES,
    SECRET_LIMIT_BYTES,
    Source,
    WrappingKey,
    wrapping_key,
)

KEYS_LIMIT = 1000
"""How many keys one owner may have, over all agents."""
FILE_LIMIT_BYTES = 64 * 1024
HANDLE = r"key_[0-9a-f]{16}"
LABEL = r"[A-Za-z0-9._-]{0,40}"
_AGENT = r"[a-z][a-z0-9-]{0,30}(?:\.[a-z][a-z0-9-]{0,30})?"
_MASTER, _MARKER, _LOCK, _KEYS = "master.key", "wrapped-by-credential", "lock", "keys"
_TEMPORARY = ".new-"

Kind = Literal["hmac-sha256", "ed25519", "ecdsa-p256"]


class KeyFacts(BaseModel):
    """The public facts of a key. All of them are bound into the sealed part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    handle: str
    kind: Kind
    agent: str
    owner: int
    label: str = ""
    created: str
    """ISO 8601, UTC."""
    public_key: str = ""
    """As PEM; empty for a symmetric key, which has no public part."""
    wrapped: Source
    wrapping_id: str

    def bound(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


class _KeyFile(KeyFacts):
    sealed: str
    """In base64."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key with its private part: DER (PKCS #8) of a pair, the bytes of a symmetric key."""

    facts: KeyFacts
    private: bytes = field(repr=False)


class KeyStore:
    """One folder of keys. `credential` is the file with the secret that systemd gave, if it gave one."""

    def __init__(self, folder: Path, credential: Path | None = None) -> None:
        self._folder = folder
        self._credential = credential

    def add(
        self, agent: str, owner: int, kind: Kind, private: bytes, public_key: str, label: str
    ) -> KeyFacts:
        """Store a new key under a new handle. Raises LimitExceeded, and ToolError if it cannot be stored."""
        folder = self._folder_of(agent, owner)
        with self._locked():
            if sum(1 for _ in folder.parent.glob("*/key_*")) >= KEYS_LIMIT:
                raise LimitExceeded(
                    f"This owner has {KEYS_LIMIT} keys already.",
                    suggestion="An administrator can move files away that are not needed.",
                )
            wrapping = self._wrapping_for_new()
            facts = KeyFacts(
                handle=f"key_{secrets.token_hex(8)}",
                kind=kind,
                agent=agent,
                owner=owner,
                label=label,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                public_key=public_key,
                wrapped=wrapping.source,
                wrapping_id=wrapping.id,
            )
            sealed = base64.b64encode(wrapping.seal(private, facts.bound())).decode()
            content = _KeyFile(**facts.model_dump(), sealed=sealed).model_dump_json(indent=1)
            self._make_folder(folder)
            self._write_new(folder / facts.handle, content.encode())
        return facts

    def get(self, agent: str, owner: int, handle: str) -> Key:
        """The key behind a handle. Raises NotFound, and ToolError that names a damaged file."""
        path = self._folder_of(agent, owner) / handle
        self._check_folder()
        if not re.fullmatch(HANDLE, handle) or not self._is_there(path):
            raise NotFound(f"There is no key {handle[:40]!r}.", field="handle", suggestion="List the keys.")
        facts, sealed = self._read(path)
        if (facts.handle, facts.agent, facts.owner) != (handle, agent, owner):
            raise self._damaged(path, "it belongs to another handle, agent or owner")
        private = self._wrapping_of(path, facts).unseal(sealed, facts.bound())
        if private is None:
            raise self._damaged(path, "it was changed")
        return Key(facts=facts, private=private)

    def facts(self, agent: str, owner: int) -> tuple[list[KeyFacts], list[str]]:
        """The keys of an agent and owner, the oldest first; and what is wrong with the damaged ones."""
        folder = self._folder_of(agent, owner)
        found, problems = [], []
        self._check_folder()
        for path in sorted(folder.glob("key_*")):
            try:
                found.append(self.get(agent, owner, path.name).facts)
            except ToolError as err:
                problems.append(err.message)
        return sorted(found, key=lambda one: (one.created, one.handle)), problems

    def _folder_of(self, agent: str, owner: int) -> Path:
        if not re.fullmatch(_AGENT, agent) or owner < 0:
            raise InvalidArgument("Keys belong to an agent and to a uid, and this call has none.")
        return self._folder / _KEYS / str(owner) / agent

    # -- wrapping keys --

    def _wrapping_for_new(self) -> WrappingKey:
        """With the lock held. Raises ToolError rather than going back from a credential to a file."""
        if key := self._from_credential():
            if not self._is_there(self._folder / _MARKER):
                self._write_new(self._folder / _MARKER, b"")
            return key
        if self._is_there(self._folder / _MARKER):
            raise _no_credential("No key is made")
        path = self._folder / _MASTER
        if not self._is_there(path):
            if any((self._folder / _KEYS).glob("*/*/key_*")):
                raise self._damaged(path, "it is gone, and there are keys that were encrypted with it")
            self._write_new(path, os.urandom(SECRET_BYTES))
        return wrapping_key(Source.FILE, self._bytes(path))

    def _wrapping_of(self, path: Path, facts: KeyFacts) -> WrappingKey:
        if facts.wrapped is Source.FILE:
            master = self._folder / _MASTER
            if not self._is_there(master):
                raise self._damaged(master, "it is gone, and there are keys that were encrypted with it")
            key = wrapping_key(Source.FILE, self._bytes(master))
        elif (given := self._from_credential()) is not None:
            key = given
        else:
            raise _no_credential(f"The key {facts.handle} cannot be used")
        if key.id != facts.wrapping_id:
            raise self._damaged(path, f"the {facts.wrapped} that it was encrypted with is another one now")
        return key

    def _from_credential(self) -> WrappingKey | None:
        if self._credential is None:
            return None
        return wrapping_key(Source.CREDENTIAL, _read_file(self._credential, SECRET_LIMIT_BYTES))

    # -- files --

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A block with exclusive access to the store, so that concurrent writes do not mix."""
        self._check_folder()
        try:
            fd = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise _not_stored(err) from err
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _check_folder(self) -> None:
        """Raises ToolError where others could read or replace the files."""
        try:
            info = self._folder.stat()
        except OSError as err:
            raise ToolError(f"The key store {self._folder} cannot be used: {err.strerror}.") from err
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise ToolError(
                f"The key store {self._folder} is not closed to others (user {user_name(info.st_uid)}, mode"
                f" {stat.S_IMODE(info.st_mode):04o}).",
                suggestion="An administrator must give it to the key store's user, with mode 0700.",
            )

    def _make_folder(self, folder: Path) -> None:
        for each in (folder.parent.parent, folder.parent, folder):
            try:
                each.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as err:
                raise _not_stored(err) from err
            sync_folder(each.parent)

    def _write_new(self, path: Path, content: bytes) -> None:
        """Write a file that is not there yet, with the lock held. Raises ToolError."""
        try:
            for stale in path.parent.glob(f"{_TEMPORARY}*"):
                stale.unlink()  # of a process that was killed: the lock is ours
            if self._is_there(path):
                raise FileExistsError(0, "it is there already")
            write_whole(path, content, draft=path.with_name(_TEMPORARY + path.name))
        except OSError as err:
            raise _not_stored(err) from err

    def _is_there(self, path: Path) -> bool:
        try:
            path.lstat()
        except FileNotFoundError:
            return False
        except OSError as err:
            raise ToolError(f"The key store {self._folder} cannot be used: {err.strerror}.") from err
        return True

    def _read(self, path: Path) -> tuple[KeyFacts, bytes]:
        try:
            fields: dict[str, Any] = _KeyFile.model_validate_json(self._bytes(path)).model_dump()
            sealed = base64.b64decode(fields.pop("sealed"), validate=True)
            return KeyFacts(**fields), sealed
        except (ValidationError, ValueError) as err:
            raise self._damaged(path, "it is no key file of this version, or was cut") from err

    def _bytes(self, path: Path) -> bytes:
        data = _read_file(path, FILE_LIMIT_BYTES)
        if len(data) > FILE_LIMIT_BYTES:
            raise self._damaged(path, "it is too long")
        return data

    def _damaged(self, path: Path, why: str) -> ToolError:
        return ToolError(
            f"The file {path.relative_to(self._folder)} of the key store cannot be used: {why}.",
            suggestion="It is left as it is; an administrator can restore it from a backup.",
        )


def _read_file(path: Path, limit_bytes: int) -> bytes:
    """Read at most one byte more than the limit. Raises ToolError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(limit_bytes + 1)
    except OSError as err:
        raise ToolError(f"The file {path.name} of the key store cannot be read: {err.strerror}.") from err


def _not_stored(err: OSError) -> ToolError:
    return ToolError(
        f"The key store cannot be written: {err.strerror}.", suggestion="No key was made; look at the disk."
    )


def _no_credential(what: str) -> ToolError:
    return ToolError(
        f"{what}: the credential {CREDENTIAL} is missing, which encrypts the key store.",
        suggestion="An administrator must give it to lightagent-keys.service again.",
    )


def store_of_environment() -> KeyStore:
    """The store that this worker was started for. Raises ToolError elsewhere.

    `LIGHTAGENT_KEYS` names the folder where the daemon started the worker, `STATE_DIRECTORY` in the unit; the
    credential lies in `CREDENTIALS_DIRECTORY` (systemd.exec(5)).
    """
    folder = os.environ.get("LIGHTAGENT_KEYS") or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not folder:
        raise ToolError("There is no key store in this worker.", suggestion="lactl status says more.")
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(given, CREDENTIAL) if given else None
    present = credential is not None and credential.exists()
    return KeyStore(Path(folder), credential if present else None)
