"""Broken versions of good input, chosen by a random generator: of bytes, and of values that JSON has."""

from __future__ import annotations

import random
from typing import Any

_PIECES = (
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\xff",
        b"\xed\xa0\xbd",
        b"\xc0\x80",
        b"\xef\xbb\xbf",
        b'"',
        b"{",
        b"}",
        b"[",
    ),
    *(b"null", b"NaN", b"-Infinity", b"1e999", b"-1", b"0.5", b"9" * 400, b"true", b"[]", b"{}", b'""'),
    *(b"[" * 5000, b'{"a":' * 5000, b"\\ud83d", b"\\u0000", b"```", b"~~~", b'"seq":', b"x" * 70_000),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 0.5, 1e300, "", "x", "\0", "\n", "\ud800"),
    *("é" * 300, "x" * 5000, "../../etc", [], {}, [None], [[]], {"": ""}, {"id": 1}, [1, "a"], "2026-11-22"),
)


def mutated_bytes(data: bytes, rng: random.Random, *, most: int = 4) -> bytes:
    """Some bytes with one to `most` changes: flips, cuts, repeats, splices, and pieces that hurt."""
    found = bytearray(data)
    for _ in range(rng.randint(1, most)):
        _change(found, rng)
    return bytes(found)


def _change(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 8, 40, 300, 5000)))
    what = rng.randrange(8)
    if what == 0 and start < len(data):
        data[start] ^= 1 << rng.randrange(8)
    elif what == 1 and start < len(data):
        data[start] = rng.randrange(256)
    elif what == 2:
        del data[start:]
    elif what == 3:
        del data[start:end]
    elif what == 4:
        data[start:start] = data[start:end] * rng.choice((1, 2, 20))
    elif what == 5:
        other = rng.randrange(len(data) + 1)
        data[start:end] = data[other : other + end - start]
    elif what == 6:
        data[start:start] = rng.choice(_PIECES)
    else:
        data[start:end] = rng.choice(_PIECES)


def mutated_value(value: Any, rng: random.Random) -> Any:
    """A value of JSON with one change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        changed = dict(value)
        what = rng.randrange(8)
        if what == 0:
            del changed[key]
        elif what == 1:
            changed[rng.choice(("", "extra", "id", "\0"))] = rng.choice(_VALUES)
        else:
            changed[key] = mutated_value(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        what = rng.randrange(6)
        if what == 0:
            return [*value[:at], *value[at + 1 :]]
        if what == 1:
            return [*value, *value[at:]]
        return [*value[:at], mutated_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and value and rng.random() < 0.4:
        return mutated_bytes(value.encode("utf-8", "surrogatepass"), rng, most=1).decode(
            "utf-8", rng.choice(("replace", "surrogateescape"))
        )
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((1, -1, 2**40, -(2**62)))
    return rng.choice(_VALUES)
