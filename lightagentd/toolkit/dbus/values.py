"""Values of D-Bus and JSON, each way: arguments typed by a signature, and answers cut to a bounded size.

A wrong signature or value is refused before anything is sent, with the place where it stands. Specification:
https://dbus.freedesktop.org/doc/dbus-specification.html#type-system
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.text.visible import visible

NODES_LIMIT = 2000
STRING_LIMIT_CHARS = 8000
VALUE_LIMIT_CHARS = 64 * 1024
DEPTH_LIMIT = 32
"""How deep arrays, and structs, may be nested in a signature, and variants in values."""
RANGES = {
    "y": (0, 2**8 - 1),
    "n": (-(2**15), 2**15 - 1),
    "q": (0, 2**16 - 1),
    "i": (-(2**31), 2**31 - 1),
    "u": (0, 2**32 - 1),
    "x": (-(2**63), 2**63 - 1),
    "t": (0, 2**64 - 1),
}
OBJECT_PATH = re.compile(r"/|(/[A-Za-z0-9_]+)+")


# -- arguments: from JSON to the types of a signature --


@dataclass(frozen=True)
class Type:
    """One complete type: its code, of a container the first character, and the types inside."""

    code: str
    inside: tuple[Type, ...] = ()


def types_of(signature: str) -> list[Type]:
    """The complete types of a signature. Raises InvalidArgument that names the position."""
    found, at = [], 0
    while at < len(signature):
        one, at = _type_at(signature, at, 0)
        found.append(one)
    return found


def _type_at(signature: str, at: int, depth: int, *, in_array: bool = False) -> tuple[Type, int]:
    code = signature[at : at + 1]
    if depth > DEPTH_LIMIT:
        raise _bad_signature(signature, at, "nested too deep")
    if code == "h":
        raise _bad_signature(signature, at, "file descriptors cannot be passed")
    if code and (code in RANGES or code in "bdsogv"):
        return Type(code), at + 1
    if code == "a":
        one, at = _type_at(signature, at + 1, depth + 1, in_array=True)
        return Type("a", (one,)), at
    if code not in ("(", "{") or (code == "{" and not in_array):
        raise _bad_signature(signature, at, "no type" if code else "a type is missing")
    close, inside, at = {"(": ")", "{": "}"}[code], [], at + 1
    while signature[at : at + 1] != close:
        one, at = _type_at(signature, at, depth + 1)
        inside.append(one)
    if not inside:
        raise _bad_signature(signature, at, "an empty struct")
    if code == "{" and (len(inside) != 2 or inside[0].code in "av(" or inside[0].inside):
        raise _bad_signature(signature, at, "a dictionary entry has a basic key and one value")
    return Type(code, tuple(inside)), at + 1


def _bad_signature(signature: str, at: int, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"The signature {signature!r} is wrong at position {at + 1}: {why}.",
        field="signature",
        suggestion="Introspect the object to see the method's signature.",
    )


def typed_arguments(signature: str, args: list[Any]) -> list[Any]:
    """The JSON values as the bus takes them. Raises InvalidArgument that names the value at fault."""
    types = types_of(signature)
    if len(types) != len(args):
        raise InvalidArgument(
            f"The signature {signature!r} has {len(types)} arguments, and {len(args)} are given.",
            field="args",
        )
    return [
        _typed(kind, value, f"args[{at}]", 0)
        for at, (kind, value) in enumerate(zip(types, args, strict=True))
    ]


def _misfit(where: str, value: Any, wanted: str) -> InvalidArgument:
    text = json.dumps(value)
    shown = text if len(text) <= 60 else text[:60] + "..."
    return InvalidArgument(f"{where}: {shown} is not {wanted}.", field="args")


def _typed(kind: Type, value: Any, where: str, depth: int) -> Any:
    match kind.code:
        case "b":
            if not isinstance(value, bool):
                raise _misfit(where, value, "true or false (b)")
            return value
        case "d":
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not abs(value) <= sys.float_info.max
            ):
                raise _misfit(where, value, "a number (d)")
            return float(value)
        case "s" | "o" | "g":
            return _typed_text(kind.code, value, where)
        case "v":
            return _typed_variant(value, where, depth)
        case "(":
            if not isinstance(value, list) or len(value) != len(kind.inside):
                raise _misfit(where, value, f"a list of the {len(kind.inside)} values of a struct")
            pairs = enumerate(zip(kind.inside, value, strict=True))
            return [_typed(one, item, f"{where}[{at}]", depth) for at, (one, item) in pairs]
        case "a":
            return _typed_array(kind.inside[0], value, where, depth)
    low, high = RANGES[kind.code]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _misfit(where, value, f"a whole number from {low} to {high} ({kind.code})")
    return value


def _typed_text(code: str, value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise _misfit(where, value, f"a text without a NUL character ({code})")
    if code == "o" and not OBJECT_PATH.fullmatch(value):
        raise _misfit(where, value, "an object path (o)")
    if code == "g":
        if len(value) > 255:
            raise _misfit(where, value, "a signature (g)")
        types_of(value)
    return value


def _typed_variant(value: Any, where: str, depth: int) -> Any:
    from lightagentd.bus.connection import Variant

    if depth >= DEPTH_LIMIT:
        raise InvalidArgument(f"{where}: variants are nested deeper than {DEPTH_LIMIT}.", field="args")
    if not isinstance(value, dict) or set(value) != {"signature", "value"}:
        raise _misfit(where, value, 'a variant such as {"signature": "s", "value": "text"}')
    signature = value["signature"]
    types = types_of(signature) if isinstance(signature, str) and len(signature) <= 255 else []
    if len(types) != 1:
        raise _misfit(f"{where}.signature", signature, "the signature of one complete type")
    made: Any = Variant
    return made(signature, _typed(types[0], value["value"], f"{where}.value", depth + 1))


def _typed_array(kind: Type, value: Any, where: str, depth: int) -> Any:
    if kind.code == "{":
        if not isinstance(value, dict):
            raise _misfit(where, value, "an object for a dictionary (a{})")
        key, one = kind.inside
        return {
            _typed(key, _key(key.code, name), f"{where} key {name!r}", depth): _typed(
                one, item, f"{where}.{name}", depth
            )
            for name, item in value.items()
        }
    if kind.code == "y" and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as err:
            raise _misfit(where, value, f"bytes in base64 (ay): {err}") from err
    if not isinstance(value, list):
        raise _misfit(where, value, "a list" if kind.code != "y" else "bytes in base64 (ay)")
    items = [_typed(kind, item, f"{where}[{at}]", depth) for at, item in enumerate(value)]
    return bytes(items) if kind.code == "y" else items


def _key(code: str, name: str) -> Any:
    """A key of a JSON object is always text; one of another type stands in it as JSON."""
    if code in "sog":
        return name
    with contextlib.suppress(ValueError):
        return json.loads(name)
    return name


# -- values: from the bus to JSON --


def printable(text: str) -> str:
    return visible(text.encode("utf-8", "backslashreplace"), keep=" ")


def value_text(value: Any) -> tuple[str, Any, int]:
    """The value as text, as JSON, and how many parts of it were left out."""
    made, left_out = limited(value)
    text = json.dumps(made, ensure_ascii=False, indent=None if _is_flat(made) else 2)
    text = "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)
    return text + (f" ({left_out} parts are left out)" if left_out else ""), made, left_out


def _is_flat(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(not isinstance(part, dict | list) for part in parts) and len(str(value)) < 100


def limited(value: Any) -> tuple[Any, int]:
    """JSON of at most NODES_LIMIT values and VALUE_LIMIT_CHARS characters; and how many were left out."""
    left = {"nodes": NODES_LIMIT, "chars": VALUE_LIMIT_CHARS, "out": 0}

    def take(items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            if left["nodes"] <= 0 or left["chars"] <= 0:
                left["out"] += 1
            else:
                left["nodes"] -= 1
                yield item

    def made(one: Any) -> Any:
        if isinstance(one, bytes):
            text = base64.b64encode(one[:STRING_LIMIT_CHARS]).decode()
            left["chars"] -= len(text)
            left["out"] += len(one) > STRING_LIMIT_CHARS
            return {"base64": text}
        if isinstance(one, str):
            left["chars"] -= min(len(one), STRING_LIMIT_CHARS)
            left["out"] += len(one) > STRING_LIMIT_CHARS
            return one[:STRING_LIMIT_CHARS]
        if isinstance(one, dict):
            return {str(key)[:STRING_LIMIT_CHARS]: made(item) for key, item in take(iter(one.items()))}
        if isinstance(one, list):
            return [made(item) for item in take(iter(one))]
        if isinstance(one, float) and not math.isfinite(one):
            return str(one)  # JSON has no such numbers
        return one

    return made(value), left["out"]
