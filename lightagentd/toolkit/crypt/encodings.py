"""Encodes and decodes base16, base32, base58, base64 and base64url strictly: one text for each byte string.

An error names the position of a wrong character; for a secret text it shows no characters. Specification: RFC
4648; base58 is that of Bitcoin.
"""

from __future__ import annotations

import base64
import binascii
import re

from lightagentd.errors import InvalidArgument

BASE58_LIMIT_BYTES = 16 * 1024
"""Base58 is one big number, and its time grows with the square of the length."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ALPHABETS = {
    "base16": "0123456789abcdefABCDEF",
    "base32": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "base58": _BASE58,
    "base64": _LETTERS + "+/",
    "base64url": _LETTERS + "-_",
}
_GROUPS = {"base32": 8, "base64": 4, "base64url": 4}
"""How many characters a padded text is a multiple of."""


def encoded(encoding: str, data: bytes, padding: bool) -> str:
    """Base16 in small letters; `padding` counts for base64url only."""
    match encoding:
        case "base16":
            return data.hex()
        case "base32":
            return base64.b32encode(data).decode()
        case "base58":
            return _base58_encoded(data)
        case "base64":
            return base64.b64encode(data).decode()
    text = base64.urlsafe_b64encode(data).decode()
    return text if padding else text.rstrip("=")


def decoded(encoding: str, text: str, field: str, *, secret: bool = False) -> bytes:
    """Decode strictly. An error for a secret text shows none of its characters."""
    body = text.rstrip("=") if encoding in _GROUPS else text
    alphabet = re.escape(_ALPHABETS[encoding])
    if wrong := re.search(f"[^{alphabet}]", body):
        what = "A character" if secret else f"The character {wrong[0]!r}"
        raise InvalidArgument(
            f"{what} at position {wrong.start() + 1} of {len(text)} is not in the alphabet of {encoding}.",
            field=field,
            suggestion=_hint(encoding, wrong[0]),
        )
    _check_length(encoding, body, len(text) - len(body), field)
    match encoding:
        case "base16":
            return bytes.fromhex(body)
        case "base58":
            return _base58_decoded(body, field)
        case "base32":
            data = base64.b32decode(body + "=" * (-len(body) % 8))
        case _:
            body = body.translate(str.maketrans("-_", "+/"))
            data = binascii.a2b_base64(body + "=" * (-len(body) % 4))
    again = base64.b32encode(data) if encoding == "base32" else base64.b64encode(data)
    if again.decode().rstrip("=") != body:
        raise InvalidArgument(
            f"The character at position {len(body)} has bits that belong to no byte: the text was cut or "
            "changed.",
            field=field,
        )
    return data


def _hint(encoding: str, wrong: str) -> str:
    if wrong.isspace():
        return "Remove blanks and line breaks first."
    if encoding == "base64" and wrong in "-_":
        return "This looks like base64url."
    if encoding == "base64url" and wrong in "+/":
        return "This looks like base64."
    if encoding == "base32" and wrong.upper() in _ALPHABETS["base32"]:
        return "base32 is written in capital letters."
    return "Check that the text is whole and in this encoding."


def _check_length(encoding: str, body: str, padding: int, field: str) -> None:
    fits = {"base16": (2, (0,)), "base32": (8, (0, 2, 4, 5, 7)), "base58": (1, (0,))}
    group, rests = fits.get(encoding, (4, (0, 2, 3)))
    if len(body) % group not in rests:
        raise InvalidArgument(
            f"{len(body)} characters are no whole {encoding}: the text was cut or has too many.", field=field
        )
    wanted = -len(body) % _GROUPS.get(encoding, 1)
    if padding != wanted and not (encoding == "base64url" and padding == 0):
        raise InvalidArgument(
            f"{encoding} needs {wanted} '=' from position {len(body) + 1} on, and the text has {padding}.",
            field=field,
            suggestion="Correct the padding.",
        )


def _base58_encoded(data: bytes) -> str:
    if len(data) > BASE58_LIMIT_BYTES:
        raise InvalidArgument(
            f"base58 takes up to {BASE58_LIMIT_BYTES} bytes, and these are {len(data)}.",
            suggestion="Use base64 for long data.",
        )
    number, found = int.from_bytes(data), []
    while number:
        number, digit = divmod(number, 58)
        found.append(_BASE58[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(found))


def _base58_decoded(text: str, field: str) -> bytes:
    if len(text) > BASE58_LIMIT_BYTES * 1.4:
        raise InvalidArgument(f"base58 is decoded up to {BASE58_LIMIT_BYTES} bytes.", field=field)
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8)


def hex_or_base64(text: str, field: str) -> bytes:
    """Decode hexadecimal if possible, else base64. Raises InvalidArgument for `field`."""
    if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", text):
        return bytes.fromhex(text)
    return decoded("base64", text, field)
