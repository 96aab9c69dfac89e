"""Reads subject, names and validity out of X.509 certificates (RFC 5280), without a library or a key.

Only the few DER fields that a report about expiry needs; nothing is verified here.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

_PEM = re.compile(
    rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----(.*?)-----END (?:TRUSTED )?CERTIFICATE-----", re.S
)
_COMMON_NAME, _ORGANIZATION, _ALTERNATIVE_NAMES = b"\x55\x04\x03", b"\x55\x04\x0a", b"\x55\x1d\x11"
_UTC_TIME = 0x17


@dataclass(frozen=True)
class Certificate:
    """The facts of one certificate for a report; times are seconds since 1970."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: float
    not_after: float

    @property
    def days_left(self) -> int:
        return int((self.not_after - time.time()) // 86400)


def certificates(data: bytes) -> list[Certificate]:
    """All certificates of a file in PEM, or the one in DER; undecodable ones are skipped."""
    blocks = []
    for block in _PEM.findall(data):
        try:
            blocks.append(base64.b64decode(block))
        except binascii.Error:
            continue
    found = []
    for der in blocks or ([data] if data[:1] == b"\x30" else []):
        try:
            found.append(decode(der))
        except (ValueError, IndexError):
            continue
    return found


def decode(der: bytes) -> Certificate:
    """One certificate. Raises ValueError or IndexError when the bytes are not a certificate."""
    (_, outer), *_ = _items(der)
    (_, body), *_ = _items(outer)
    fields = list(_items(body))
    if fields[0][0] == 0xA0:  # the explicit version
        fields = fields[1:]
    issuer, validity, subject = fields[2][1], fields[3][1], fields[4][1]
    start, end = (_time(tag, value) for tag, value in _items(validity))
    names: tuple[str, ...] = ()
    for tag, value in fields[5:]:
        if tag == 0xA3:
            names = tuple(_alternative_names(value))
    return Certificate(_name(subject), _name(issuer), names, start, end)


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            raise ValueError("the DER is cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return float(calendar.timegm(time.strptime(text[:14], "%Y%m%d%H%M%S")))


def _name(data: bytes) -> str:
    found: dict[bytes, str] = {}
    for _, group in _items(data):
        for _, pair in _items(group):
            (_, oid), (_, value) = list(_items(pair))[:2]
            found.setdefault(oid, value.decode("utf-8", "replace"))
    return found.get(_COMMON_NAME) or found.get(_ORGANIZATION) or "(no name)"


def _alternative_names(data: bytes) -> Iterator[str]:
    (_, extensions), *_ = _items(data)
    for _, extension in _items(extensions):
        parts = list(_items(extension))
        if parts[0][1] == _ALTERNATIVE_NAMES:
            (_, names), *_ = _items(parts[-1][1])
            for tag, value in _items(names):
                if tag == 0x82:
                    yield value.decode("ascii", "replace")
                elif tag == 0x87 and len(value) == 4:
                    yield ".".join(str(byte) for byte in value)
