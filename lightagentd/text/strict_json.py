"""Reads JSON from outside so that no two programs can understand it differently.

RFC 8259 leaves some cases open, and all of them are refused: a key that an object has twice, NaN and
Infinity, numbers that a float cannot hold, half of a surrogate pair, nesting without end. `counting` bounds
the time that decoding takes. Each caller turns `BadJson` into the error of its own edge.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from lightagentd.text.reason import reason

_FENCE = re.compile(r"\s*```\w*\n(.*)\n```\s*", re.DOTALL)
MAX_VALUES = 50_000
"""How many values `counting` lets pass: json makes that many in about 50 ms, while nothing else runs."""
_MAX_BYTES_OUTSIDE = 64 * MAX_VALUES
"""Of a message, without its strings: a number of millions of digits takes long as well."""
_SCAN_BYTES = 256 << 10


class BadJson(ValueError):
    """The text is not strict JSON, and the message says why. `line` counts from 1."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


class TooDeep(BadJson):
    """Lists and objects are nested too deeply."""


def in_fence(text: str) -> str:
    """The text in a block of code, where it is nothing else, as models write JSON."""
    found = _FENCE.fullmatch(text)
    return found[1] if found else text


def decoded(data: str | bytes, *, depth: int, surrogates: bool = True) -> Any:
    """The value of a JSON text, nested at most `depth` deep. Raises BadJson.

    Without `surrogates`, no string may hold half of a surrogate pair.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        found = _DECODER.decode(text)
        if not surrogates and ("\\ud" in text or "\\uD" in text):
            _encode_strings(found)
    except UnicodeDecodeError as err:
        raise BadJson(f"it is not UTF-8 at byte {err.start + 1}") from None
    except UnicodeEncodeError:
        raise BadJson("it holds half of a surrogate pair") from None
    except json.JSONDecodeError as err:
        raise BadJson(reason(err), err.lineno) from None
    except RecursionError:
        raise TooDeep(f"it is nested too deeply, deeper than {depth} levels") from None
    except ValueError as err:
        raise BadJson(reason(err)) from None
    if text.count("[") + text.count("{") > depth and is_deeper(found, depth):
        raise TooDeep(f"it is nested too deeply, deeper than {depth} levels")
    return found


def is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return bool(level)


def counting(data: bytes) -> Iterator[None]:
    """Go through JSON in small pieces. Raises BadJson for what would take long to decode.

    What stands inside of strings does not count, so a long text may hold any characters. What is not JSON
    may be counted wrongly, but not before the place where the decoder refuses it.
    """
    values = outside = 0
    within = False
    rest = b""
    for start in range(0, len(data), _SCAN_BYTES):
        # Without its escapes, each quote that is left begins or ends a string.
        piece = (rest + data[start : start + _SCAN_BYTES]).replace(b"\\\\", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""
        parts = piece.removesuffix(rest).replace(b'\\"', b"").split(b'"')
        text = b"".join(parts[1::2] if within else parts[::2])
        within ^= len(parts) % 2 == 0
        values += sum(text.count(mark) for mark in b",:[{")
        outside += len(text)
        if values > MAX_VALUES or outside > _MAX_BYTES_OUTSIDE:
            raise BadJson(f"it holds more than {MAX_VALUES} values, or too much outside of its strings")
        yield


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:60]} is too large: it is out of range")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
"""Made once: `json` itself makes one for each text."""


def _encode_strings(value: Any) -> None:
    """Raises UnicodeEncodeError."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, dict):
            left += one
            left += one.values()
        elif isinstance(one, list):
            left += one
