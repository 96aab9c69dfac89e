"""D-Bus messages: what dbus-next packs and unpacks, held to what a bus takes and to what our memory takes.

Only `lightagentd/bus.py` uses this, and gives on what others need. Nothing here does I/O but `read_message`,
and nothing keeps state but the library's table of signatures.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import struct
from collections.abc import Callable
from typing import Any

from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.message import Message
from dbus_next.signature import SignatureTree, Variant

from lightagentd import errors
from lightagentd.limits import MAX_MESSAGE_BYTES

_MESSAGE_LIMIT_BYTES = 128 * 1024 * 1024
"""The largest message that the specification allows."""

log = logging.getLogger(__name__)
_UNFIT = re.compile("[\0\ud800-\udfff]")
_unmarshaller: Any = Unmarshaller  # the library has no annotations, or wrong ones
make_message: Callable[..., Message] = Message


class _Signatures(dict[str, Any]):
    """The library keeps every signature that it has ever parsed, and peers choose those; this many stay."""

    LIMIT = 1000

    def __setitem__(self, signature: str, tree: Any) -> None:
        if len(self) >= self.LIMIT:
            self.clear()
        super().__setitem__(signature, tree)


signatures: Any = SignatureTree
signatures._cache = _Signatures()


def clean(text: str) -> str:
    """A string as D-Bus takes it: NUL and lone surrogates become U+FFFD.

    A bus ends the connection of whoever sends it others.
    """
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return _UNFIT.sub("\ufffd", text)


def holds_nul(value: Any) -> bool:
    """Whether there is a NUL character anywhere in the arguments of a message."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Variant):
        return holds_nul(value.value)
    if isinstance(value, dict):
        return any(holds_nul(part) for item in value.items() for part in item)
    return isinstance(value, list | tuple) and any(holds_nul(item) for item in value)


def plain(value: Any) -> Any:
    """A decoded value without `Variant` around any part of it; `ay` stays bytes."""
    if isinstance(value, Variant):
        return plain(value.value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def encode(message: Message) -> bytes:
    """The bytes of a message. Raises InvalidArgument for a body that does not fit, MessageTooLarge."""
    try:
        marshall: Any = message._marshall
        data = bytes(marshall(negotiate_unix_fd=True))
    except (ValueError, TypeError) as err:
        what = message.member or "the reply"
        raise errors.InvalidArgument(
            f"The arguments of {what} do not fit the signature {message.signature!r}: {err}"
        ) from err
    if len(data) > MAX_MESSAGE_BYTES:  # the bus would end the connection
        raise errors.MessageTooLarge(
            f"{message.member or 'The answer'} is larger than {MAX_MESSAGE_BYTES >> 20} MiB.",
            suggestion="Ask for less at once, for example with a smaller limit.",
        )
    return data


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None for one that dbus-next cannot decode; that one is skipped whole."""
    head = await reader.readexactly(16)
    order = {ord("l"): "<", ord("B"): ">"}.get(head[0])
    if order is None:
        raise errors.MalformedMessage("the bus sent bytes that are no D-Bus message")
    body_bytes, _, fields_bytes = struct.unpack_from(order + "III", head, 4)
    rest_bytes = fields_bytes + -fields_bytes % 8 + body_bytes
    if rest_bytes > _MESSAGE_LIMIT_BYTES:
        raise errors.MalformedMessage(f"the bus announced a message of {rest_bytes} bytes")
    data = head + await reader.readexactly(rest_bytes)
    try:
        message: Message | None = _unmarshaller(io.BytesIO(data)).unmarshall()
    except Exception:
        log.warning("A D-Bus message could not be decoded and is skipped", exc_info=True)
        return None
    return message
