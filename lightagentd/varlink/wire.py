"""Varlink messages: bytes to calls and back, checked once at the edge.

A message is one JSON object in UTF-8 and a NUL byte (https://varlink.org/Method-Call). What RFC 8259 leaves
open is refused, so that no two readers of a message can understand it differently: keys that stand twice,
NaN, numbers out of range, lone surrogates, nesting without end.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from asyncvarlink import GenericVarlinkErrorReply, VarlinkMethodCall, VarlinkMethodSignature
from asyncvarlink.conversion import ConversionError
from asyncvarlink.serviceinterface import InvalidParameter

from lightagentd.errors import LightagentError, MalformedMessage, MessageTooLarge
from lightagentd.varlink.interaction import PARAMETER

MAX_DEPTH = 100
"""How deep objects and arrays may be nested; what stores and shows them recurses into them."""
MAX_VALUES = 50_000
"""How many values a message may hold: json makes that many in about 50 ms, while nothing else runs."""
SMALL_BYTES = 16 << 10
"""Up to this size nothing in a message can take long, so nobody counts."""
_MAX_BYTES_OUTSIDE = 64 * MAX_VALUES
"""Of a message, without its strings: a number of millions of digits takes long as well."""
_SCAN_BYTES = 256 << 10
_INT_LIMIT = 1 << 63


async def check_size(message: bytes) -> None:
    """Let the event loop run now and then. Raises MessageTooLarge for what would take long to decode."""
    for _ in counting(message):
        await asyncio.sleep(0)


def counting(message: bytes) -> Iterator[None]:
    """Goes through JSON in small pieces. Raises MessageTooLarge for what would take long to decode.

    What stands inside of strings does not count, so a long text may hold any characters. A message that is
    not JSON may be counted wrongly, but not before the place where the decoder refuses it.
    """
    values = outside = 0
    within = False
    rest = b""
    for start in range(0, len(message), _SCAN_BYTES):
        # Without its escapes, each quote that is left begins or ends a string.
        piece = (rest + message[start : start + _SCAN_BYTES]).replace(b"\\\\", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""
        parts = piece.removesuffix(rest).replace(b'\\"', b"").split(b'"')
        text = b"".join(parts[1::2] if within else parts[::2])
        within ^= len(parts) % 2 == 0
        values += sum(text.count(mark) for mark in b",:[{")
        outside += len(text)
        if values > MAX_VALUES or outside > _MAX_BYTES_OUTSIDE:
            raise MessageTooLarge(
                f"A message holds more than {MAX_VALUES} values, or too much outside of its strings.",
                suggestion="Send less at once; a long text belongs into one string.",
            )
        yield


def decode_message(message: bytes) -> dict[str, Any]:
    """One message without its NUL. Raises MalformedMessage for all that RFC 8259 leaves open or forbids."""
    try:
        found = _DECODER.decode(message.decode())
        if b"\\ud" in message or b"\\uD" in message:
            _encode_strings(found)
    except UnicodeDecodeError:
        raise _malformed("is not UTF-8") from None
    except UnicodeEncodeError:
        raise _malformed("holds half of a surrogate pair") from None
    except RecursionError:
        raise _malformed("is nested too deeply") from None
    except ValueError as err:
        raise _malformed(f"is not JSON: {err}") from None
    if not isinstance(found, dict):
        raise _malformed("is not a JSON object")
    if message.count(b"[") + message.count(b"{") > MAX_DEPTH and _is_deep(found):
        raise _malformed("is nested too deeply")
    return found


def encode_message(message: Mapping[str, Any]) -> bytes:
    """A message with its NUL. Lone surrogates, from bytes that were not UTF-8, become U+FFFD."""
    text = _ENCODER.encode(message)
    try:
        return text.encode() + b"\0"
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode() + b"\0"


def _malformed(why: str) -> MalformedMessage:
    return MalformedMessage(
        f"The message {why}.", suggestion="Send one JSON object in UTF-8, ended by a NUL byte."
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is out of range")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""Made once: `json` itself makes one for each message."""


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


def _is_deep(value: Any) -> bool:
    """Whether objects and arrays are nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def call_of(message: dict[str, Any]) -> VarlinkMethodCall:
    try:
        return VarlinkMethodCall.fromjson(message)
    except (TypeError, ValueError) as err:
        raise MalformedMessage(
            f"The message is not a Varlink call: {err}.",
            suggestion="Send an object with the keys method and parameters.",
        ) from None


def split_interaction(given: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """A method's own parameters, and whether a person may be asked. Raises InvalidParameter."""
    own = dict(given)
    allowed = own.pop(PARAMETER, None)
    if not isinstance(allowed, bool | None):
        raise InvalidParameter(parameter=PARAMETER)
    return own, bool(allowed)


def parameters_of(signature: VarlinkMethodSignature, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the method. Raises InvalidParameter.

    The library takes true for an int, and integers of any size; Varlink's have 64 bits.
    """
    wanted = signature.parameter_type.as_type.__annotations__
    for name, value in given.items():
        is_number = wanted.get(name) in (int, float, int | None, float | None)
        if is_number and (
            isinstance(value, bool) or (isinstance(value, int) and not -_INT_LIMIT < value < _INT_LIMIT)
        ):
            raise InvalidParameter(parameter=name)
    try:
        found: dict[str, Any] = signature.parameter_type.fromjson(given)
    except ConversionError as err:
        raise InvalidParameter(parameter=str(err.location[0])) from err
    return found


def error_reply(err: LightagentError) -> GenericVarlinkErrorReply:
    """The one place where an error becomes a Varlink error."""
    return GenericVarlinkErrorReply(
        err.varlink_name(),
        {"code": err.code, "message": err.message, "field": err.field, "suggestion": err.suggestion},
    )


def reply_of(message: bytes) -> dict[str, Any]:
    """A reply, `parameters` filled in. Raises ValueError, RecursionError."""
    reply = json.loads(message)
    if not isinstance(reply, dict) or not isinstance(reply.setdefault("parameters", {}), dict):
        raise ValueError("its answer is not a Varlink reply")  # noqa: TRY004 - what json.loads raises too
    return reply
