"""Grants: the approver's signature under a person's yes to one statement.

A grant is signed with Ed25519 (RFC 8032). Each has a number that no other one has, and an end; its worker
runs it once (`numbers`).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lightagentd.errors import ApprovalMismatch
from lightagentd.signed.statement import canonical

_DOMAIN = b"lightagentd grant 1\0"
MOST_CHARS = 2000
FRESH_S = 600.0
"""For so long after the answer the call may begin."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What is signed. `number` counts up within one `series`, which a new key or a lost state begins anew.
    `by` is the uid of the person who said yes, `expires_us` in microseconds since 1970.
    """

    digest: str
    agent: str
    effect: str
    owner: int
    by: int
    series: str
    number: int
    expires_us: int

    def signed(self, key: Ed25519PrivateKey) -> dict[str, str]:
        """As it is sent: {grant, signature}, of JSON and of base64."""
        text = canonical(asdict(self))
        signature = base64.b64encode(key.sign(_DOMAIN + text)).decode()
        return {"grant": text.decode(), "signature": signature}

    @classmethod
    def verified(cls, found: Any, keys: list[bytes]) -> Self:
        """From what `signed` gave, by the owner of one of the public keys. Raises ApprovalMismatch."""
        try:
            text, signature = str(found["grant"]), base64.b64decode(found["signature"], validate=True)
            if len(text) > MOST_CHARS or not any(_is_by(one, signature, text.encode()) for one in keys):
                raise ApprovalMismatch("The signature of an approval is not the approver's.")
            return cls(**_typed(json.loads(text)))
        except (KeyError, TypeError, ValueError, binascii.Error) as err:
            raise ApprovalMismatch("An approval is not signed as approvals are.") from err


def _typed(found: dict[str, Any]) -> dict[str, Any]:
    """Raises TypeError."""
    for one in fields(Grant):
        if type(found[one.name]) is not (int if one.type == "int" else str):
            raise TypeError(one.name)
    return found


def _is_by(key: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _DOMAIN + text)
    except InvalidSignature:
        return False
    return True
