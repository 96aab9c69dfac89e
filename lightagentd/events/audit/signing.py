"""The key that signs checkpoints of the history: Ed25519 (RFC 8032), one of each daemon.

It is the credential `lightagentd.audit-key` or `audit-key` (systemd.exec(5), CREDENTIALS), 32 raw bytes or
PKCS#8 as PEM; without one it is made at the first start and lies in `<state>/audit/key.pem`, for the
daemon's user alone. The public key lies beside it in `public.pem`, and in an event of each start. An attacker
who takes over the daemon's user can sign, but cannot change older signatures in the journal or in copies.

What is signed is a text of three lines, so that anyone can check it with openssl(1):

    lightagentd checkpoint 1
    512
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

number and hash of the last event that it covers; through `prev` the hash stands for all before it. The
library cryptography is imported when first used: it costs the daemon 3 MiB of its own memory and 20 ms of
its start.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.errors import ConfigError, InvalidArgument, StorageError
from lightagentd.host.atomic_file import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CREDENTIALS = ("lightagentd.audit-key", "audit-key")
KEY_FILE = "key.pem"
PUBLIC_FILE = "public.pem"
SHOWN_DIGITS = 16
"""How much of a fingerprint stands in a sentence."""
_RAW_BYTES = 32
_PUBLIC_HEAD = bytes.fromhex("302a300506032b6570032100")
"""What stands before them in a SubjectPublicKeyInfo."""
_MOST_BYTES = 16 << 10
"""No key is larger."""
_HOW = (
    "It is 32 raw bytes or PEM, as of: openssl genpkey -algorithm ed25519. To have the daemon make a new "
    "key, move it away; the history then says that the key has changed."
)


def checkpoint_text(seq: int, event_hash: str) -> bytes:
    """The signed text, which covers all events up to this one through its hash."""
    return f"lightagentd checkpoint 1\n{seq}\n{event_hash}\n".encode()


def fingerprint(public: bytes) -> str:
    """SHA-256 of the 32 bytes of a public key, in hexadecimal."""
    return hashlib.sha256(public).hexdigest()


def short(key: str) -> str:
    """A fingerprint, shortened for sentences."""
    return key[:SHOWN_DIGITS]


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A loaded private key. `made` when this start made it; `source` is its place."""

    public: bytes
    source: str
    made: bool
    _private: Ed25519PrivateKey

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    @property
    def public_text(self) -> str:
        """The public key in Base64."""
        return base64.b64encode(self.public).decode()

    def sign(self, seq: int, event_hash: str) -> str:
        """The signature of a checkpoint, in Base64."""
        return base64.b64encode(self._private.sign(checkpoint_text(seq, event_hash))).decode()


def signed_by(public: bytes, seq: int, event_hash: str, signature: str) -> bool:
    """Whether this key signed that checkpoint."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            base64.b64decode(signature, validate=True), checkpoint_text(seq, event_hash)
        )
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def signing_key(folder: Path) -> SigningKey:
    """The daemon's key: from the credential, else from a folder, where it is made if it is missing.

    Writes the public key to the folder. Raises ConfigError for an unusable key, StorageError.
    """
    given = _credential()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        key = _in_folder(folder) if given is None else _loaded(given.read_bytes(), str(given))
        _keep_public(folder / PUBLIC_FILE, key.public)
    except OSError as err:
        raise StorageError(
            f"The key that signs the history cannot be read or made in {folder}: {err.strerror or err}.",
            suggestion=f"Look at the folder: ls -la {folder}",
        ) from err
    return key


def public_keys(files: Iterable[Path]) -> dict[str, bytes]:
    """Public keys by fingerprint, from PEM, Base64 or 32 raw bytes. Raises InvalidArgument, OSError."""
    found = {}
    for path in files:
        with path.open("rb") as file:
            key = parsed_public(file.read(_MOST_BYTES), str(path))
        found[fingerprint(key)] = key
    return found


def parsed_public(content: bytes, name: str) -> bytes:
    """The 32 bytes of a public key. Raises InvalidArgument."""
    if len(content) == _RAW_BYTES:
        return content
    with contextlib.suppress(ValueError, binascii.Error):
        if (
            b"-----BEGIN" not in content
            and len(raw := base64.b64decode(content.strip(), validate=True)) == 32
        ):
            return raw
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgument(
            f"{name} is no public key for Ed25519.", suggestion="Print the daemon's: lactl audit key"
        )
    return key.public_bytes_raw()


def public_pem(public: bytes) -> str:
    """A public key as openssl(1) reads it (RFC 8410)."""
    text = base64.b64encode(_PUBLIC_HEAD + public).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n"


def _credential() -> Path | None:
    """The file of the credential, if there is one. Raises ConfigError when there are two."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    found = [path for name in CREDENTIALS if folder and os.path.lexists(path := Path(folder, name))]
    if len(found) > 1:
        raise ConfigError(
            f"There are two credentials with a key to sign the history with: {' and '.join(CREDENTIALS)}.",
            suggestion="Keep one of them.",
        )
    return found[0] if found else None


def _loaded(content: bytes, source: str, *, made: bool = False) -> SigningKey:
    """Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        if len(content) == _RAW_BYTES:
            private: object = Ed25519PrivateKey.from_private_bytes(content)
        else:
            private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None  # the library's message may quote the file
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(f"{source} holds no Ed25519 key to sign the history with.", suggestion=_HOW)
    return SigningKey(
        public=private.public_key().public_bytes_raw(), source=source, made=made, _private=private
    )


def _in_folder(folder: Path) -> SigningKey:
    path = folder / KEY_FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return _made(path)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise ConfigError(
                f"{path}, the key that signs the history, is not the daemon's own file with mode 0600.",
                suggestion="Somebody else may know it: move it away, and the daemon makes a new one.",
            )
        return _loaded(file.read(_MOST_BYTES), str(path))


def _made(path: Path) -> SigningKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_whole(path, pem)
    return _loaded(pem, str(path), made=True)


def _keep_public(path: Path, public: bytes) -> None:
    pem = public_pem(public).encode()
    try:
        if path.read_bytes() == pem:
            return
    except OSError:
        pass  # it is written anew
    write_whole(path, pem)
