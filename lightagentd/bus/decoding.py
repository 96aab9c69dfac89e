"""Decodes the body of a D-Bus message, counting what it costs: in steps, and no further than a limit.

dbus-next decodes a body in one go, about 3 us for each value, and any user may send one of 16 million. Here a
decoder gives way to the event loop after `STEP_VALUES`, and gives up after as many values as its caller wants
to pay for. What costs one value: a number, a string or an array of bytes of any length, each container.
A signature inside a variant that is not known yet costs its length.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol-marshaling
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Generator
from typing import Any

from dbus_next.errors import InvalidSignatureError
from dbus_next.signature import SignatureTree

from lightagentd import errors

STEP_VALUES = 1000
"""About 1 ms: for no longer is the event loop held."""
MAX_DEPTH = 64
"""That of the specification."""
_FORMATS = {"n": "h", "q": "H", "i": "i", "u": "I", "h": "I", "x": "q", "t": "Q", "d": "d", "b": "I"}
_ALIGN_8 = "xtd({"
Values = Generator[None, None, Any]
"""Yields after each step, and returns what was decoded."""


class _Signatures(dict[str, Any]):
    """The library keeps every signature that it has ever parsed, and peers choose those; this many stay."""

    LIMIT = 1000

    def __setitem__(self, signature: str, tree: Any) -> None:
        if len(self) >= self.LIMIT:
            self.clear()
        super().__setitem__(signature, tree)


signatures: Any = SignatureTree
signatures._cache = _Signatures()


async def decode(data: bytes, order: str, signature: str, limit: int) -> list[Any]:
    """The plain values of a body: no `Variant` around any part, a structure is a list, `ay` is bytes.

    Raises MessageTooLarge for more than `limit` values, MalformedMessage for a body that does not fit.
    """
    steps = decoding(data, order, signature, limit)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)
        await asyncio.sleep(0)


def decoding(data: bytes, order: str, signature: str, limit: int) -> Values:
    """`decode`, as the steps that it takes."""
    try:
        return (yield from _Body(data, order, limit).whole(signature))
    except (ValueError, TypeError, IndexError, struct.error, InvalidSignatureError) as err:
        raise errors.MalformedMessage(f"The body does not fit the signature {signature!r}: {err}") from err


class _Body:
    def __init__(self, data: bytes, order: str, limit: int) -> None:
        self._data, self._offset = data, 0
        self._limit = self._left = limit
        self._step = STEP_VALUES
        self._depth = 0
        self._numbers = {token: struct.Struct(order + one) for token, one in _FORMATS.items()}
        self._order = order

    def whole(self, signature: str) -> Values:
        found = []
        for type_ in self._tree(signature).types:
            found.append((yield from self._value(type_)))  # noqa: PERF401 - it yields
        return found

    def _spend(self, count: int) -> None:
        self._left -= count
        self._step -= count
        if self._left < 0:
            raise errors.MessageTooLarge(
                f"The message holds more than {self._limit} values.",
                suggestion="Send fewer at once; a string counts as one, however long it is.",
            )

    def _tree(self, signature: str) -> Any:
        if signature not in signatures._cache:
            self._spend(len(signature))
        return signatures._get(signature)

    def _value(self, type_: Any) -> Values:
        """One value that may be a container."""
        code = type_.token
        if code not in "av({":
            return self._single(code)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        self._spend(1)
        if self._step <= 0:
            self._step = STEP_VALUES
            yield
        if code == "a":
            found = yield from self._array(type_.children[0])
        elif code == "v":
            [inner] = self._tree(self._signature()).types
            found = yield from self._value(inner)
        else:
            self._align(8)
            found = []
            for child in type_.children:
                found.append((yield from self._value(child)))
        self._depth -= 1
        return found

    def _array(self, child: Any) -> Values:
        size_bytes, code = self._number("u"), child.token
        if code in _ALIGN_8:
            self._align(8)
        end = self._offset + size_bytes
        if end > len(self._data):
            raise ValueError("an array is longer than the body")
        if code == "y":
            self._offset = end
            return self._data[end - size_bytes : end]
        if code in _FORMATS:
            return self._row(code, size_bytes)
        items: list[Any] = []
        simple = code not in "av({"
        while self._offset < end:
            items.append(self._single(code) if simple else (yield from self._value(child)))
            if self._step <= 0:
                self._step = STEP_VALUES
                yield
        if self._offset != end:
            raise ValueError("an array is shorter than what it holds")
        return dict(items) if code == "{" else items

    def _row(self, code: str, size_bytes: int) -> list[Any]:
        """An array of numbers of one size."""
        width = self._numbers[code].size
        count, rest = divmod(size_bytes, width)
        if rest:
            raise ValueError("an array ends inside a number")
        self._spend(count)
        found = struct.unpack_from(f"{self._order}{count}{_FORMATS[code]}", self._data, self._offset)
        self._offset += size_bytes
        return [bool(one) for one in found] if code == "b" else list(found)

    def _single(self, code: str) -> Any:
        """One value that is no container."""
        self._spend(1)
        if code in "so":
            length = self._number("u")
        elif code == "g":
            return self._signature()
        elif code == "y":
            self._offset += 1
            return self._data[self._offset - 1]
        else:
            found = self._number(code)
            return bool(found) if code == "b" else found
        return self._text(length)

    def _number(self, code: str) -> Any:
        one = self._numbers[code]
        self._offset += -self._offset % one.size
        [found] = one.unpack_from(self._data, self._offset)
        self._offset += one.size
        return found

    def _signature(self) -> str:
        self._offset += 1
        return self._text(self._data[self._offset - 1])

    def _text(self, length: int) -> str:
        start = self._offset
        self._offset = start + length + 1  # a NUL ends it
        if self._offset > len(self._data):
            raise ValueError("a string is longer than the body")
        return self._data[start : start + length].decode()

    def _align(self, size: int) -> None:
        self._offset += -self._offset % size
