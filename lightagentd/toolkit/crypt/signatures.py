"""Verifies signatures with public keys: Ed25519, ECDSA on P-256, RSA with PSS or PKCS #1 v1.5.

Nothing here takes a private key. The library cryptography is imported when first used, since every worker
loads every tool. Specifications: RFC 8017 (RSA), FIPS 186-5 (ECDSA, Ed25519).
"""

from __future__ import annotations

import hashlib
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.toolkit.crypt.certificates import CERTIFICATE, certificates, key_text

MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
"""The longest message that Ed25519 verifies: it needs all of it in memory."""


def public_key(pem: bytes) -> tuple[Any, bool]:
    """The key, and whether it came out of a certificate."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        if CERTIFICATE.search(pem):
            return certificates(pem)[0].public_key(), True
        return load_pem_public_key(pem), False
    except (ValueError, UnsupportedAlgorithm) as err:
        raise InvalidArgument(
            "The public key cannot be read.",
            field="public_key",
            suggestion="It must be PEM: BEGIN PUBLIC KEY or BEGIN CERTIFICATE.",
        ) from err


def scheme_of(key: Any, asked: str) -> str:
    """The way to verify with this key. Raises InvalidArgument when the key does not fit what is asked."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    fitting: tuple[str, ...] = ()
    if isinstance(key, ed25519.Ed25519PublicKey):
        fitting = ("ed25519",)
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        fitting = ("ecdsa-p256",)
    elif isinstance(key, rsa.RSAPublicKey):
        fitting = ("rsa-pss", "rsa-pkcs1")
    if not fitting:
        raise InvalidArgument(
            f"A key of the kind {key_text(key)} is not supported.",
            field="public_key",
            suggestion="Ed25519, EC P-256 (secp256r1) and RSA are.",
        )
    if asked in fitting or (not asked and len(fitting) == 1):
        return asked or fitting[0]
    raise InvalidArgument(
        f"The key is {key_text(key)}: it "
        + (f"cannot verify {asked}." if asked else "does not say which algorithm made the signature."),
        field="algorithm",
        suggestion=f"Use {' or '.join(fitting)}.",
    )


class Message:
    """Takes what was signed: Ed25519 needs all of it at once, the others only its digest."""

    def __init__(self, scheme: str, algorithm: str) -> None:
        self._whole = bytearray() if scheme == "ed25519" else None
        self._digest = hashlib.new(algorithm)

    def update(self, piece: bytes) -> None:
        if self._whole is None:
            self._digest.update(piece)
            return
        self._whole += piece
        if len(self._whole) > MESSAGE_LIMIT_BYTES:
            raise InvalidArgument(
                f"Ed25519 needs the whole message in memory: up to {MESSAGE_LIMIT_BYTES} bytes.", field="path"
            )

    def result(self) -> bytes:
        return self._digest.digest() if self._whole is None else bytes(self._whole)


def is_valid(key: Any, scheme: str, algorithm: str, signature: bytes, message: bytes) -> bool:
    """Whether the key made the signature; `message` is what `Message.result` gives for the same scheme."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature

    digest = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}[algorithm]
    if scheme == "ecdsa-p256" and len(signature) == 64:  # r and s side by side, as JWS has it (RFC 7515)
        signature = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    try:
        match scheme:
            case "ed25519":
                key.verify(signature, message)
            case "ecdsa-p256":
                key.verify(signature, message, ec.ECDSA(Prehashed(digest)))
            case "rsa-pss":
                pss = padding.PSS(mgf=padding.MGF1(digest), salt_length=padding.PSS.AUTO)
                key.verify(signature, message, pss, Prehashed(digest))
            case _:
                key.verify(signature, message, padding.PKCS1v15(), Prehashed(digest))
    except InvalidSignature:
        return False
    return True
