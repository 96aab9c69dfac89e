"""Finds or makes the key that encrypts the files of the key store.

Where systemd gives the credential `lightagent-keys.wrap` (systemd-creds(1); it may be sealed with the TPM),
the files can be read only with that. Otherwise a random secret in the file `master.key` beside them is used,
mode 0600. It reveals changed or exchanged files, but does not protect against root or a copy of the whole
folder. Files of both kinds can be in one folder; each names its key by an id.

AES-256-GCM with a random nonce for each file (NIST SP 800-38D); the key and its id are derived from the
secret with HMAC-SHA256. The library cryptography is imported when first used.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from enum import StrEnum

from lightagentd.errors import ToolError

CREDENTIAL = "lightagent-keys.wrap"
SECRET_BYTES = 32
"""The least that a secret must have."""
SECRET_LIMIT_BYTES = 64 * 1024
_NONCE_BYTES = 12


class Source(StrEnum):
    """Where the secret comes from."""

    CREDENTIAL = "credential"
    FILE = "file"


@dataclass(frozen=True, kw_only=True)
class WrappingKey:
    """One key that encrypts others. `id` tells it from others and says nothing about it."""

    source: Source
    id: str
    secret: bytes = field(repr=False)

    def seal(self, plain: bytes, bound: bytes) -> bytes:
        """Encrypt; what comes out opens only with the same `bound` bytes."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, plain, bound)

    def unseal(self, sealed: bytes, bound: bytes) -> bytes | None:
        """The sealed content, or None when any bit of it or of `bound` has changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(sealed) < _NONCE_BYTES + 16:  # with the tag of the mode
            return None
        try:
            return AESGCM(self.secret).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except InvalidTag:
            return None


def wrapping_key(source: Source, secret: bytes) -> WrappingKey:
    """The key that a secret gives. Raises ToolError when the secret is too short."""
    if len(secret) < SECRET_BYTES:
        raise ToolError(
            f"The secret of the key store ({source}) has {len(secret)} bytes, and needs {SECRET_BYTES}.",
            suggestion="An administrator must restore it.",
        )

    def derived(purpose: bytes) -> bytes:
        return hmac.digest(secret, b"lightagent-keys 1 " + purpose, "sha256")

    return WrappingKey(source=source, id=derived(b"id")[:8].hex(), secret=derived(b"wrap"))
