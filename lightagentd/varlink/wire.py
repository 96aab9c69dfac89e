"""Decodes and encodes Varlink messages, checked once at the edge.

A message is one JSON object in UTF-8 and a NUL byte (https://varlink.org/Method-Call). What RFC 8259 leaves
open is refused, so that no two readers of a message can understand it differently: keys that stand twice,
NaN, numbers out of range, lone surrogates, nesting without end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from asyncvarlink import GenericVarlinkErrorReply, VarlinkMethodCall, VarlinkMethodSignature
from asyncvarlink.conversion import ConversionError
from asyncvarlink.serviceinterface import InvalidParameter

from lightagentd.errors import LightagentError, MalformedMessage, MessageTooLarge
from lightagentd.text.strict_json import MAX_VALUES, BadJson, counting, decoded
from lightagentd.varlink.interaction import PARAMETER

MAX_DEPTH = 100
"""How deep objects and arrays may be nested; what stores and shows them recurses into them."""
SMALL_BYTES = 16 << 10
"""Up to this size nothing in a message can take long, so nobody counts."""
_INT_LIMIT = 1 << 63


async def check_size(message: bytes) -> None:
    """Let the event loop run now and then. Raises MessageTooLarge for what would take long to decode."""
    try:
        for _ in counting(message):
            await asyncio.sleep(0)
    except BadJson:
        raise MessageTooLarge(
            f"A message holds more than {MAX_VALUES} values, or too much outside of its strings.",
            suggestion="Send less at once; a long text belongs into one string.",
        ) from None


def decode_message(message: bytes) -> dict[str, Any]:
    """One message without its NUL. Raises MalformedMessage for all that RFC 8259 leaves open or forbids."""
    try:
        found = decoded(message, depth=MAX_DEPTH, surrogates=False)
    except BadJson as err:
        raise _malformed(f"is not JSON: {err}") from None
    if not isinstance(found, dict):
        raise _malformed("is not a JSON object")
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


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)
_DECODER = json.JSONDecoder()
"""Made once: `json` itself makes an encoder for each message, and asks what encoding it has.
No message holds itself: to look for that takes a third of the time.
"""


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
    reply = _DECODER.decode(message.decode())
    if not isinstance(reply, dict) or not isinstance(reply.setdefault("parameters", {}), dict):
        raise ValueError("its answer is not a Varlink reply")  # noqa: TRY004 - what json.loads raises too
    return reply
