"""Records of the approver and of the workers for change, which each writes to the journal itself, signed.

They say what was approved and what ran without the daemon's help, so that an audit can compare the three. As
the daemon's entries they have no arguments: whoever reads the journal, and so every agent, would read them.
The digest says which call is meant.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lightagentd.events.journal.journal_socket import JournalSocket
from lightagentd.signed.statement import canonical

RECORD, SIGNATURE = "LIGHTAGENT_RECORD", "LIGHTAGENT_RECORD_SIGNATURE"
_DOMAIN = b"lightagentd record 1\0"
_NOTICE = "5"


def send(journal: JournalSocket, key: Ed25519PrivateKey, message: str, record: Mapping[str, Any]) -> None:
    """Write one record. Its `kind` is asked, granted, denied (the approver's), or begun, ended, refused (a
    worker's); it has `call_id`, `digest`, `agent`, and what belongs to its kind. Raises OSError.
    """
    text = canonical(record)
    signature = base64.b64encode(key.sign(_DOMAIN + text)).decode()
    fields = {"MESSAGE": message, "PRIORITY": _NOTICE, RECORD: text.decode(), SIGNATURE: signature}
    journal.send(fields)


def verified(entry: Mapping[str, Any], key: bytes) -> dict[str, Any] | None:
    """The record in an entry of the journal; None where it is not signed by the owner of this public key."""
    try:
        text, signature = str(entry[RECORD]).encode(), base64.b64decode(entry[SIGNATURE], validate=True)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _DOMAIN + text)
        found = json.loads(text)
    except (InvalidSignature, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) else None
