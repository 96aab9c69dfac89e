"""Listeners that write down who came: TCP and UDP on loopback and on another address, and Unix sockets.

`Listeners` owns its sockets. What came is compared by count; `settle` makes sure that everything that an
attack sent before is counted, by coming itself and waiting until it was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

BOMB_BYTES = 512 << 20
"""What the compressed answer of the web server becomes when it is unpacked."""
OTHER_NETWORK = "192.0.2.1"
"""An address for the network's own use (RFC 5737): connecting a UDP socket to it sends nothing."""


@dataclass(eq=False)
class Recorder(asyncio.DatagramProtocol):
    """Counts visitors and what they sent."""

    name: str
    address: tuple[str, int] | str
    family: int
    kind: int
    came: int = 0
    received: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.count(data)

    def count(self, data: bytes = b"") -> None:
        self.came += 1
        if data:
            self.received.append(data[:200])
        self.arrived.set()

    async def visitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count()
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                self.received.append(data[:200])
        writer.close()

    async def settle(self) -> None:
        """Come oneself: what came before in the same queue is counted then."""
        before = self.came
        with socket.socket(self.family, self.kind) as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, self.address)
            if self.kind == socket.SOCK_DGRAM:
                sock.send(b"settle")
            while self.came == before:
                self.arrived.clear()
                await asyncio.wait_for(self.arrived.wait(), 20)
        self.came -= 1


class Listeners:
    """All of them; `names` has their ports and paths for the arguments of attacks."""

    def __init__(self, folder: Path, run_folder: Path, mark: str, web_port: int = 0) -> None:
        self.folder, self.run_folder, self.mark = folder, run_folder, mark
        self._web_port = web_port
        self.recorders: list[Recorder] = []
        self.names: dict[str, str] = {}
        self._servers: list[asyncio.Server] = []
        self._transports: list[asyncio.DatagramTransport] = []

    async def start(self) -> None:
        other = _own_address() or "127.0.0.2"
        self.names |= {"other_ip": other, "abstract": f"la-{self.mark}"}
        await self._tcp("tcp4", socket.AF_INET, "127.0.0.1")
        await self._tcp("tcp_other", socket.AF_INET, other)
        with contextlib.suppress(OSError):  # a machine without IPv6
            await self._tcp("tcp6", socket.AF_INET6, "::1")
        self.names.setdefault("tcp6", "1")
        await self._udp("udp", "127.0.0.1")
        await self._udp("udp_other", other)
        for name, folder in (("unix", self.folder), ("unix_run", self.run_folder)):
            await self._unix(name, str(folder / f"{name}.sock"))
        await self._unix("unix_abstract", f"\0{self.names['abstract']}")
        await self._unix_datagrams(str(self.folder / "datagram.sock"))
        await self._web()

    async def close(self) -> None:
        for transport in self._transports:
            transport.close()
        for server in self._servers:
            server.close()
            await server.wait_closed()

    async def counts(self) -> dict[str, int]:
        """How many came to each, everything that was sent before included."""
        for recorder in self.recorders:
            await recorder.settle()
        return {recorder.name: recorder.came for recorder in self.recorders}

    async def _tcp(self, name: str, family: int, host: str) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.bind((host, 0))
        recorder = self._recorder(name, sock)
        self._servers.append(await asyncio.start_server(recorder.visitor, sock=sock, backlog=1000))

    async def _udp(self, name: str, host: str) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((host, 0))
        sock.setblocking(False)
        recorder = self._recorder(name, sock)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: recorder, sock=sock)
        self._transports.append(transport)

    async def _unix(self, name: str, path: str) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        recorder = self._recorder(name, sock)
        self._servers.append(await asyncio.start_unix_server(recorder.visitor, sock=sock, backlog=1000))
        if not path.startswith("\0"):
            Path(path).chmod(0o777)

    async def _unix_datagrams(self, path: str) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(path)
        sock.setblocking(False)
        Path(path).chmod(0o777)
        recorder = self._recorder("unix_datagram", sock)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: recorder, sock=sock)
        self._transports.append(transport)

    def _recorder(self, name: str, sock: socket.socket) -> Recorder:
        address = sock.getsockname()
        if isinstance(address, bytes):
            address = os.fsdecode(address)
        if sock.family != socket.AF_UNIX:
            address = address[:2]
        recorder = Recorder(name, address, sock.family, sock.type)
        self.recorders.append(recorder)
        self.names[name] = str(address[1]) if isinstance(address, tuple) else address
        return recorder

    async def _web(self) -> None:
        """A web server that the configuration allows; it answers with what harms who trusts it."""
        server = await asyncio.start_server(self._page, "127.0.0.1", self._web_port)
        self._servers.append(server)
        self.names["web"] = str(server.sockets[0].getsockname()[1])

    async def _page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            if path.startswith("/to/"):
                location = f"http://{path.removeprefix('/to/')}/"
                writer.write(f"HTTP/1.1 302 Found\r\nlocation: {location}\r\n\r\n".encode())
            elif path == "/bomb":
                body = await asyncio.to_thread(_bomb)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\n"
                    b"content-length: %d\r\n\r\n" % len(body)
                )
                writer.write(body)
            elif path == "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
            elif path == "/headers":
                writer.write(b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"b" * (64 << 20) + b"\r\n\r\n")
            await writer.drain()
        writer.close()


def _bomb() -> bytes:
    """A little that becomes `BOMB_BYTES`: one compressed member, many times."""
    member = gzip.compress(bytes(16 << 20), 9)
    return member * (BOMB_BYTES >> 24)


def _own_address() -> str:
    """An address of this machine that is not loopback; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((OTHER_NETWORK, 9))
        except OSError:
            return ""
        found: str = sock.getsockname()[0]
    return found
