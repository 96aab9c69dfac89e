"""Values of the public types on D-Bus, in both directions, and object paths.

The annotations of `api` and of the interfaces map as follows: str `s`, int `x`, float `d`, bool `b`,
list[str] `as`, a dataclass or TypedDict `a{sv}` (None is left out), a list of those `aa{sv}`, `Any` (JSON)
`v`.

Values that D-Bus cannot hold are converted. Text: NUL and lone surrogates become U+FFFD. JSON: an object
becomes `a{sv}` without its null members; an array becomes `av`, with null in it as the empty signature (`g`);
an integer beyond 64 bits becomes a string of its digits; a value deeper than `MAX_JSON_DEPTH` becomes a
string of JSON.

The module's only state is its tables of the types. Specification:
https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from lightagentd.bus.connection import Variant, clean
from lightagentd.errors import InvalidArgument

ROOT = "/org/lightagent1"
"""The object of the daemon as a whole; all others are below it."""
MAX_JSON_DEPTH = 16
"""A level of JSON takes three of D-Bus (array, dict entry, variant), and the bus lets 64 of those pass."""
_INT_LIMIT = 1 << 63
_PLAIN: dict[Any, str] = {
    str: "s",
    int: "x",
    float: "d",
    bool: "b",
    Any: "v",
    list[str]: "as",
    list[Any]: "av",
}
_NAMES = {
    "s": "a string",
    "x": "an integer of 64 bits",
    "d": "a number",
    "b": "a boolean",
    "v": "a value",
    "as": "a list of strings",
    "aa{sv}": "a list of dictionaries",
}


# Types


def without_none(annotation: Any) -> Any:
    """`X` for `X | None`; any other annotation unchanged."""
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation
    rest = [one for one in typing.get_args(annotation) if one is not type(None)]
    return rest[0] if len(rest) == 1 else annotation


def signature_of(annotation: Any) -> str:
    """The D-Bus signature of an annotation; empty for None. Raises TypeError for an annotation that is not
    public.
    """
    annotation = without_none(annotation)
    if annotation in (None, type(None)):
        return ""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
        return "a{sv}"
    if typing.get_origin(annotation) is list and signature_of(typing.get_args(annotation)[0]) == "a{sv}":
        return "aa{sv}"
    raise TypeError(f"{annotation!r} has no place on D-Bus")


@functools.cache
def _fields(cls: Any) -> dict[str, str]:
    """Name and signature of each field of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {field.name: signature_of(hints[field.name]) for field in dataclasses.fields(cls)}


# To the bus


def to_bus(value: Any, signature: str) -> Any:
    """A value in the form that a body with this signature takes (`Variant` for `v`)."""
    if signature == "s":
        return clean(value)
    if signature == "a{sv}":
        return _mapping(value)
    if signature == "aa{sv}":
        return [_mapping(one) for one in value]
    if signature == "as":
        return [clean(one) for one in value]
    if signature == "av":
        return [_json(one, 0) for one in value]
    if signature == "v":
        return _json(value, 0)
    return value


def variant(value: Any, signature: str) -> Variant:
    """`to_bus`, in a `Variant`: a property's value, or a member of an `a{sv}`."""
    if signature == "x" and not -_INT_LIMIT <= value < _INT_LIMIT:
        return Variant("s", str(value))
    return _json(value, 0) if signature == "v" else Variant(signature, to_bus(value, signature))


def _mapping(value: Any) -> dict[str, Variant]:
    if isinstance(value, Mapping):
        return {clean(name): _json(one, 0) for name, one in value.items() if one is not None}
    cls: Any = type(value)
    return {
        name: variant(one, signature)
        for name, signature in _fields(cls).items()
        if (one := getattr(value, name)) is not None
    }


def _json(value: Any, depth: int) -> Variant:
    match value:
        case str():
            return Variant("s", clean(value))
        case bool():
            return Variant("b", value)
        case int():
            return Variant("x", value) if -_INT_LIMIT <= value < _INT_LIMIT else Variant("s", str(value))
        case float():
            return Variant("d", value)
        case None:
            return Variant("g", "")
        case Mapping() | list() | tuple() if depth >= MAX_JSON_DEPTH:
            return Variant("s", clean(json.dumps(value, ensure_ascii=False)))
        case Mapping():
            members = {
                clean(str(name)): _json(one, depth + 1) for name, one in value.items() if one is not None
            }
            return Variant("a{sv}", members)
        case list() | tuple():
            return Variant("av", [_json(one, depth + 1) for one in value])
    raise TypeError(f"{type(value)!r} has no place on D-Bus")


# From the bus


def from_bus(value: Any, signature: str, name: str) -> Any:
    """Convert a plain value, as `lightagentd.bus.connection` decodes it, to a parameter of this signature.
    Raises InvalidArgument with the name of the parameter.
    """
    fits = False
    match signature:
        case "s":
            fits = isinstance(value, str)
        case "b":
            fits = isinstance(value, bool)
        case "x":
            fits = (
                isinstance(value, int) and not isinstance(value, bool) and -_INT_LIMIT <= value < _INT_LIMIT
            )
        case "d":
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "v":
            check_json(value, name)
            fits = True
        case "as":
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "aa{sv}":
            fits = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    if not fits:
        raise InvalidArgument(
            f"{name} must be {_NAMES[signature]} (D-Bus type {signature}).",
            suggestion="Introspect the object to see what its methods take.",
            field=name,
        )
    return value


def members_of(annotation: Any) -> dict[str, str]:
    """Name and signature of the members of each object, if the annotation is a list of a TypedDict."""
    items = typing.get_args(without_none(annotation))
    if len(items) != 1 or not typing.is_typeddict(items[0]):
        return {}
    return {name: signature_of(hint) for name, hint in typing.get_type_hints(items[0]).items()}


def check_members(value: list[dict[str, Any]], members: Mapping[str, str], name: str) -> None:
    """Raises InvalidArgument when an object in the list has other members, or other types."""
    for one in value:
        if set(one) != set(members):
            raise InvalidArgument(
                f"An object in {name} has the members {', '.join(map(str, sorted(one)))[:60] or 'none'}.",
                suggestion=f"Each has just these: {', '.join(members)}.",
                field=name,
            )
        for member, signature in members.items():
            from_bus(one[member], signature, f"{name}.{member}")


def check_json(value: Any, name: str) -> None:
    """Raises InvalidArgument for a value that JSON does not have: bytes, NaN, keys that are not strings."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict) and all(isinstance(key, str) for key in one):
            waiting += one.values()
        elif not isinstance(one, str | int | float) or (isinstance(one, float) and not math.isfinite(one)):
            raise InvalidArgument(
                f"{name} holds what JSON has no value for: {str(one)[:60]!r}.",
                suggestion="Use strings, numbers, booleans, arrays and dictionaries with strings as keys.",
                field=name,
            )


def options_of(signatures: Mapping[str, str], given: Mapping[Any, Any]) -> dict[str, Any]:
    """The optional parameters in an `a{sv}`. Raises InvalidArgument with the name of the option."""
    unknown = sorted(str(name) for name in given if name not in signatures)
    if unknown:
        known = ", ".join(signatures) or "none"
        raise InvalidArgument(
            f"There is no option {unknown[0][:60]!r}.",
            suggestion=f"The options are: {known}.",
            field=unknown[0][:60],
        )
    return {name: from_bus(value, signatures[name], name) for name, value in given.items()}


# Object paths


def object_path(kind: str, name: str) -> str:
    """The path of an object, such as the agent `ops`; the name is escaped as sd_bus_path_encode(3) does."""
    return f"{ROOT}/{kind}/{_escaped(name)}"


def object_name(path: str) -> tuple[str, str] | None:
    """Kind and name from an object's path; None for a path that `object_path` does not make."""
    kind, slash, element = path.removeprefix(ROOT + "/").partition("/")
    if not path.startswith(ROOT + "/") or not slash or "/" in element:
        return None
    try:
        name = re.sub("((?:_[0-9a-f]{2})+)", _unescaped, "" if element == "_" else element)
    except UnicodeDecodeError:
        return None
    return (kind, name) if _escaped(name) == element else None


def handle_path(kind: str, sender: str, token: str) -> str:
    """The path that a caller chose by its handle_token, as the desktop portals make theirs: from its unique
    name and the token.
    """
    return f"{ROOT}/{kind}/{sender.removeprefix(':').replace('.', '_')}/{token}"


def _escaped(name: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        return "".join(f"_{byte:02x}" for byte in found[0].encode("utf-8", "replace"))

    return re.sub(r"^[0-9]|[^A-Za-z0-9]", replaced, name) or "_"


def _unescaped(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("_", "")).decode()
