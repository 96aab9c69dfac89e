"""A bare, blocking D-Bus client for tests and measurements, which shares no code with `bus/connection.py`.

Messages are packed by dbus-next and cut out of the stream by their headers. It reads only when it is asked
to, so that it can also be the client that does not. `tests/dbus_client.py` is one with another uid.
`python -m tests.raw_dbus` is such a client as a process: see `main`.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.constants import MessageType
from dbus_next.message import Message

NAME = "org.lightagent1"
_message: Any = Message
_unmarshaller: Any = Unmarshaller


class RawBus:
    """One connection, as a context manager."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout_s)
        self.sock.connect(address.removeprefix("unix:path=").partition(",")[0])
        self.sock.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        assert self.sock.recv(4096).startswith(b"OK")
        self.sock.sendall(b"BEGIN\r\n")
        self._received = b""
        self._serial = 0
        bus = "org.freedesktop.DBus"
        self.unique_name = str(self.ask("/org/freedesktop/DBus", bus, "Hello", destination=bus)[0])

    def __enter__(self) -> RawBus:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def packed(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        args: Sequence[Any] = (),
        destination: str = NAME,
        **more: Any,
    ) -> bytes:
        """A call as bytes; its serial is that of the last one made."""
        self._serial += 1
        made = _message(
            destination=destination,
            path=path,
            interface=interface or None,
            member=member,
            signature=signature,
            body=list(args),
            serial=self._serial,
            **more,
        )
        return bytes(made._marshall())

    def raw_message(self) -> bytes:
        """The next message, as it came."""
        while True:
            if len(self._received) >= 16:
                body, _, fields = struct.unpack_from("<III", self._received, 4)
                size = 16 + fields + -fields % 8 + body
                if len(self._received) >= size:
                    found, self._received = self._received[:size], self._received[size:]
                    return found
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the bus hung up")
            self._received += data

    def message(self) -> Any:
        """The next message, decoded; calls of Ping are answered meanwhile, as every D-Bus library does."""
        while True:
            found = _unmarshaller(io.BytesIO(self.raw_message())).unmarshall()
            if found.message_type is not MessageType.METHOD_CALL:
                return found
            self._serial += 1
            reply = _message.new_method_return(found)
            reply.serial = self._serial
            self.sock.sendall(reply._marshall())

    def call(self, *call: Any, **more: Any) -> Any:
        """Call a method and give its reply, result or error; signals that come meanwhile are thrown away."""
        self.sock.sendall(self.packed(*call, **more))
        serial = self._serial
        while True:
            found = self.message()
            if found.reply_serial == serial:
                return found

    def ask(self, *call: Any, **more: Any) -> list[Any]:
        """What a call gives; an error is a failure."""
        found = self.call(*call, **more)
        assert found.message_type is MessageType.METHOD_RETURN, found.body
        return list(found.body)

    def signal(self) -> Any:
        """The next signal that is not the bus's own."""
        while True:
            found = self.message()
            if found.message_type is MessageType.SIGNAL and found.sender != "org.freedesktop.DBus":
                return found


def main(mode: str, address: str, peer: str, count: int) -> None:
    """Read `count` signals that hold 0, 1, 2, … or make so many calls of `Big` at once and read the replies.

    It prints its unique name, reads only after it got a line on standard input, and ends by `whole`.
    """
    path, interface = "/org/example/Peer", "org.example.Peer"
    with RawBus(address) as bus:
        first = bus._serial + 1
        if mode == "replies":
            calls = (bus.packed(path, interface, "Big", "u", [n], destination=peer) for n in range(count))
            bus.sock.sendall(b"".join(calls))
        print(bus.unique_name, flush=True)
        sys.stdin.readline()
        if mode == "signals":
            assert [bus.signal().body for _ in range(count)] == [[n] for n in range(count)]
        else:
            found = (bus.message() for _ in range(count + 1))
            replies = {one.reply_serial - first: one.body for one in found if one.reply_serial}
            assert replies == {n: [str(n % 10) * 100_000] for n in range(count)}
    print("whole", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
