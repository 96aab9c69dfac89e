"""Makes keys, signs and verifies; input and output are bytes, and nothing is stored.

Ed25519 signs the message itself (RFC 8032); ECDSA on P-256 its SHA-256, as DER (FIPS 186-5, SEC 1); a
symmetric key makes an HMAC with SHA-256 (RFC 2104). The library cryptography is imported when first used.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.toolkit.crypt.keystore import Key, Kind
from lightagentd.toolkit.crypt.signatures import is_valid

DIGEST_BYTES = 32


def generated(kind: Kind, size_bytes: int = 0) -> tuple[bytes, str]:
    """A new key: its private part as `Key.private` has it, and its public part as PEM, if it has one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if kind == "hmac-sha256":
        return os.urandom(size_bytes), ""
    key: Any
    key = (
        ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    )
    private = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public.decode()


def fingerprint(public_key: str) -> str:
    """SHA-256 of the public key as DER (SubjectPublicKeyInfo), in hexadecimal; empty for none."""
    from cryptography.hazmat.primitives import serialization

    if not public_key:
        return ""
    der = serialization.load_pem_public_key(public_key.encode()).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def signature_of(key: Key, message: bytes, *, is_digest: bool) -> bytes:
    """Sign a message, or for ECDSA its SHA-256. Raises InvalidArgument for a digest with another key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

    _check_digest(key, message, is_digest)
    if key.facts.kind == "hmac-sha256":
        return hmac.digest(key.private, message, "sha256")
    private = serialization.load_der_private_key(key.private, password=None)
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(message)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    digest = message if is_digest else hashlib.sha256(message).digest()
    return private.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))


def fits(key: Key, given: bytes, message: bytes, *, is_digest: bool) -> bool:
    """Whether `given` is the key's signature or HMAC of the message. Raises as `signature_of` does."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    _check_digest(key, message, is_digest)
    kind = key.facts.kind
    if kind == "hmac-sha256":
        return hmac.compare_digest(given, hmac.digest(key.private, message, "sha256"))
    if kind == "ecdsa-p256" and not is_digest:
        message = hashlib.sha256(message).digest()
    return is_valid(load_pem_public_key(key.facts.public_key.encode()), kind, "sha256", given, message)


def _check_digest(key: Key, message: bytes, is_digest: bool) -> None:
    if not is_digest:
        return
    if key.facts.kind != "ecdsa-p256":
        raise InvalidArgument(
            f"A key of the kind {key.facts.kind} works on the data, not on a digest of it.",
            field="digest",
            suggestion="Give the data; or give the digest itself as data, and say to whoever verifies it.",
        )
    if len(message) != DIGEST_BYTES:
        raise InvalidArgument(
            f"The digest has {len(message)} bytes, and SHA-256 makes {DIGEST_BYTES}.", field="digest"
        )
