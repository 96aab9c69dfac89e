"""A small DNS client for what the C library does not look up: MX and TXT records (RFC 1035).

It asks the nameservers of resolv.conf(5), over UDP and over TCP where an answer was cut short. A query has a
random number and comes from a port of its own, and an answer counts only when number, question and sender
fit. LIGHTAGENT_DNS=HOST:PORT names another nameserver, for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from lightagentd.errors import InvalidArgument, NotFound, TimedOut, ToolError

TYPES = {"MX": 15, "TXT": 16}
_CNAME = 5
_CODES = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_SERVERS_LIMIT = 3
"""As in resolv.conf(5)."""


def visible(data: bytes, keep: str = "") -> str:
    """As UTF-8, with other bytes, blanks and control characters escaped, but for those of `keep`."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c in keep or (c.isprintable() and c != " ") else f"\\x{ord(c):02x}" for c in text)


def _resolv_conf() -> str:
    try:
        return Path("/etc/resolv.conf").read_text("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A DNS query as bytes, and what its answer is checked against."""

    number: int
    name: str
    kind: int
    section: bytes

    @property
    def packet(self) -> bytes:
        """With recursion desired (RFC 1035, section 4.1.1)."""
        return struct.pack(">6H", self.number, 0x0100, 1, 0, 0, 0) + self.section

    def answered_by(self, packet: bytes) -> bool:
        """Whether this is an answer to this query and not somebody's guess."""
        if len(packet) < 12 or packet[:2] != self.packet[:2] or not packet[2] & 0x80:
            return False
        return packet[12 : 12 + len(self.section)].lower() == self.section.lower()


def _question(name: str, kind: str) -> Question:
    try:
        ascii_name = name.rstrip(".").encode("idna").decode().lower()
    except UnicodeError as err:
        raise InvalidArgument(f"{name!r} is not a host name: {err}", field="name") from err
    labels = ascii_name.split(".")
    if len(ascii_name) > 253 or not all(re.fullmatch(r"[a-z0-9_-]{1,63}", label) for label in labels):
        raise InvalidArgument(f"{name!r} is not a host name.", field="name")
    encoded = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    number = TYPES[kind]
    section = encoded + struct.pack(">2H", number, 1)
    return Question(number=secrets.randbits(16), name=ascii_name, kind=number, section=section)


def _nameservers() -> list[tuple[str, int]]:
    given = os.environ.get("LIGHTAGENT_DNS")
    if given:
        host, _, port = given.rpartition(":")
        return [(host, int(port))]
    rows = (line.split() for line in _resolv_conf().splitlines())
    found = [(row[1], 53) for row in rows if len(row) > 1 and row[0] == "nameserver"]
    return found[:_SERVERS_LIMIT] or [("127.0.0.1", 53)]


async def ask(name: str, kind: str, timeout_s: float) -> list[str]:
    """The records of a name, for MX as `PREFERENCE HOST`; empty when the name exists and has none.

    Each server of resolv.conf gets its share of `timeout_s`. Raises InvalidArgument, NotFound, TimedOut,
    ToolError.
    """
    question = _question(name, kind)
    servers = _nameservers()
    failed: list[str] = []
    silent = 0
    for server in servers:
        try:
            async with asyncio.timeout(timeout_s / len(servers)):
                packet = await _exchange(server, question)
        except TimeoutError:
            silent += 1
            failed.append(f"{server[0]}: no answer")
            continue
        except (OSError, EOFError) as err:
            failed.append(f"{server[0]}: {err}")
            continue
        code = packet[3] & 0x0F
        if code == 0:
            try:
                return _answers(packet, question)
            except (IndexError, struct.error) as err:
                raise ToolError(f"The nameserver {server[0]} sent a broken answer for {name}.") from err
        if code == 3:
            raise NotFound(f"The name {name} does not exist.", field="name")
        failed.append(f"{server[0]}: {_CODES.get(code, code)}")
    if silent == len(servers):
        raise TimedOut(f"No nameserver answered for {name} within {timeout_s:g} s.")
    raise ToolError(
        f"{name} cannot be resolved ({'; '.join(failed)}).",
        suggestion="Check the nameservers in /etc/resolv.conf.",
    )


async def _exchange(server: tuple[str, int], question: Question) -> bytes:
    """The answer over UDP, or over TCP where it was cut short; packets that do not fit are ignored."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        udp.connect(server)  # from now on packets of others do not arrive
        await loop.sock_sendall(udp, question.packet)
        while not question.answered_by(packet := await loop.sock_recv(udp, 65535)):
            pass
    if not packet[2] & 0x02:
        return packet
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(struct.pack(">H", len(question.packet)) + question.packet)
        [length] = struct.unpack(">H", await reader.readexactly(2))
        packet = await reader.readexactly(length)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not question.answered_by(packet):
        raise EOFError("its TCP answer is for another question")
    return packet


def _answers(packet: bytes, question: Question) -> list[str]:
    """The records of the answer section that belong to the name or to what it is an alias of."""
    [count] = struct.unpack_from(">H", packet, 6)
    at, wanted = 12 + len(question.section), question.name
    found: list[tuple[int, str]] = []
    for _ in range(count):
        name, at = _dns_name(packet, at)
        kind, cls, _, length = struct.unpack_from(">HHIH", packet, at)
        at += 10
        data = packet[at : at + length]
        if cls == 1 and name == wanted and kind == _CNAME:
            wanted = _dns_name(packet, at)[0]
        elif cls == 1 and name == wanted and kind == question.kind == TYPES["MX"]:
            [preference] = struct.unpack_from(">H", data)
            found.append((preference, f"{preference} {_dns_name(packet, at + 2)[0] or '.'}"))
        elif cls == 1 and name == wanted and kind == question.kind:
            found.append((len(found), _txt(data)))
        at += length
    return [text for _, text in sorted(found)]


def _dns_name(packet: bytes, at: int) -> tuple[str, int]:
    """A name and the offset behind it; pointers may only lead backwards, so no packet can make a loop."""
    labels: list[str] = []
    behind, limit = 0, at
    while length := packet[at]:
        if length & 0xC0 == 0xC0:
            behind = behind or at + 2
            at = (length & 0x3F) << 8 | packet[at + 1]
            if at >= limit:
                raise IndexError("a pointer that does not lead backwards")
            limit = at
            continue
        labels.append(visible(packet[at + 1 : at + 1 + length]).lower())
        at += 1 + length
    return ".".join(labels), behind or at + 1


def _txt(data: bytes) -> str:
    """A TXT record is a row of strings, which belong together (RFC 7208, section 3.3)."""
    text, at = b"", 0
    while at < len(data):
        text += data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
    return visible(text, keep=" ")
