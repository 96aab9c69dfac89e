"""Passes the messages of a command on to the bus filter, and keeps them from starting a stopped service.

A message to a name that nobody owns makes the bus start the service of that name, also one that only reads a
property, and also one that an administrator stopped. So each call gets the flag NO_AUTO_START, except to the
services of `STARTED`, which run only while somebody asks them, and then end by themselves; and
StartServiceByName goes to nobody.

`busdoor` makes a relay for each connection. Its two threads end with the connection, or with `close`. File
descriptors are not passed on: no call that the filter lets through has one.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
import threading
from collections.abc import Callable
from typing import BinaryIO

from lightagentd.bus.header import HEADER_LIMIT_BYTES, ORDERS, fields

STARTED = frozenset(f"org.freedesktop.{name}" for name in ("hostname1", "timedate1", "locale1"))
_LINE_BYTES = 1024
"""More than a line of the authentication needs."""
_CHUNK_BYTES = 64 << 10
_log = logging.getLogger(__name__)
_METHOD_CALL, _NO_AUTO_START = 1, 2
_NOBODY = b"org.freedesktop.DBus\0", b"org.freedesktop.None\0"
"""The filter answers ServiceUnknown, which clients take for a service that needs no start."""


class Relay:
    """Between a command's connection and one to the bus, both of which it owns from `start` on."""

    def __init__(self, command: socket.socket, bus: socket.socket) -> None:
        self._command, self._bus = command, bus

    def start(self) -> None:
        """Raises BlockingIOError where there are no more threads."""
        back = threading.Thread(target=self._run, args=(self._to_command,), name="bus-relay", daemon=True)
        try:
            back.start()
            threading.Thread(target=self._serve, args=(back,), name="bus-relay", daemon=True).start()
        except RuntimeError as err:
            self.close()
            raise BlockingIOError(errno.EAGAIN, "no more threads") from err

    def close(self) -> None:
        """End both connections; the threads close them."""
        for each in (self._command, self._bus):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _serve(self, back: threading.Thread) -> None:
        self._run(self._to_bus)
        back.join()
        self._command.close()
        self._bus.close()

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except (OSError, ValueError, IndexError, struct.error) as err:  # gone, or no D-Bus message
            _log.debug("a connection to the bus ended: %s", err)
        finally:
            self.close()

    def _to_bus(self) -> None:
        with self._command.makefile("rb") as said:
            while (line := said.readline(_LINE_BYTES)).endswith(b"\n"):
                self._bus.sendall(line)
                if line == b"BEGIN\r\n":
                    break
            while self._pass_on_message(said):
                pass

    def _pass_on_message(self, said: BinaryIO) -> bool:
        """Pass on the next message; False at the end, and for bytes that are none."""
        head = bytearray(said.read(16))
        order = ORDERS.get(head[0]) if len(head) == 16 else None
        if order is None:
            return False
        body_bytes, _, fields_bytes = struct.unpack_from(f"{order}III", head, 4)
        if fields_bytes > HEADER_LIMIT_BYTES:
            return False
        data = said.read(fields_bytes + -fields_bytes % 8)
        found = fields(data[:fields_bytes], order)
        if head[1] == _METHOD_CALL and found.get("destination") not in STARTED:
            head[2] |= _NO_AUTO_START
        if found.get("member") == "StartServiceByName":
            data = data.replace(*_NOBODY)
        self._bus.sendall(head + data)
        while body_bytes and (part := said.read(min(body_bytes, _CHUNK_BYTES))):
            self._bus.sendall(part)
            body_bytes -= len(part)
        return not body_bytes

    def _to_command(self) -> None:
        while part := self._bus.recv(_CHUNK_BYTES):
            self._command.sendall(part)
