"""Packs outgoing D-Bus messages with dbus-next and checks that a bus accepts them.

Only `bus/connection.py` and what belongs to it uses this, and gives on what others need. Nothing here does
I/O or keeps state. What comes in is read by `header` and `decoding`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dbus_next.message import Message
from dbus_next.signature import Variant

from lightagentd import errors
from lightagentd.limits import MAX_MESSAGE_BYTES

_UNFIT = re.compile("[\0\ud800-\udfff]")
make_message: Callable[..., Message] = Message


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
