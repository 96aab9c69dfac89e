"""Lists the forms of a known value in a text: as it is, quoted by JSON, Base64, percent-encoded,
hex.

Base64 has three forms of the inside of a longer text, by where in a group of three bytes the value begins:
each without the characters that depend on what stands around it.
"""

from __future__ import annotations

import base64
import json
import urllib.parse

MIN_SECRET = 8
"""Shorter values are not searched for: they would blot out ordinary words."""
_MIN_LINE = 12


def parts_of(content: str) -> list[str]:
    """The values to search for in a credential: it alone, or of one with several lines those that say much.

    The lines, since a text that comes in pieces is looked at line by line; of short ones the whole has to do.
    """
    text = content.strip()
    if "\n" not in text and "\r" not in text:
        return [text] if len(text) >= MIN_SECRET else []
    found: list[str] = []
    for line in text.split():
        one = line.strip(",;\"'")
        name, sep, value = one.partition("=")
        if sep and name.replace("_", "").isalnum() and value.strip("="):
            one = value.strip("\"'")
        if len(one) >= _MIN_LINE and not one.startswith("-----"):
            found.append(one)
    return found or ([text] if len(text) >= MIN_SECRET else [])


def forms_of(value: str) -> list[str]:
    """All forms of a value that are long enough to be searched for, the value first."""
    raw = value.encode("utf-8", "surrogatepass")
    found = [value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]]
    found += [
        urllib.parse.quote(value, safe="", errors="replace"),
        urllib.parse.quote_plus(value, errors="replace"),
    ]
    found += [_lower_escapes(one) for one in found[3:5]]
    found += [raw.hex(), raw.hex().upper()]
    for shift in range(3):
        found += _base64_inside(raw, shift)
    return [one for one in dict.fromkeys(found) if len(one) >= MIN_SECRET]


def _lower_escapes(text: str) -> str:
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def _base64_inside(raw: bytes, shift: int) -> list[str]:
    """Base64 and Base64url of bytes that begin `shift` bytes into a group, as far as only they decide it."""
    whole = base64.b64encode(bytes(shift) + raw).decode()
    first = -(-shift * 8 // 6)
    last = (shift + len(raw)) * 8 // 6
    core = whole[first:last]
    return [core, core.replace("+", "-").replace("/", "_")]
