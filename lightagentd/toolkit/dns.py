"""Looks up records that the C library does not: MX and TXT. dnspython makes and reads the messages.

The nameservers of resolv.conf(5) are asked over UDP, and over TCP where an answer was cut short. A query has
a random number and comes from a port of its own, and an answer counts only when number, question and sender
fit. LIGHTAGENT_DNS=HOST:PORT names another nameserver, for tests. dnspython is imported when it is needed:
each worker loads this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightagentd.errors import InvalidArgument, NotFound, TimedOut, ToolError
from lightagentd.text.reason import reason
from lightagentd.text.visible import visible

if TYPE_CHECKING:
    from dns.message import Message, QueryMessage

TYPES = ("MX", "TXT")
_SERVERS_LIMIT = 3
"""As in resolv.conf(5)."""


async def ask(name: str, kind: str, timeout_s: float) -> list[str]:
    """The records of a name, for MX as `PREFERENCE HOST`; empty when the name exists and has none.

    Each server of resolv.conf gets its share of `timeout_s`. Raises InvalidArgument, NotFound, TimedOut,
    ToolError.
    """
    import dns.exception
    import dns.message
    import dns.rcode

    query = dns.message.make_query(_ascii(name), kind)
    servers = _nameservers()
    failed: list[str] = []
    silent = 0
    for server in servers:
        try:
            async with asyncio.timeout(timeout_s / len(servers)):
                packet = await _exchange(server, query)
            answer = dns.message.from_wire(packet)
            code = answer.rcode()
            if code == dns.rcode.NOERROR:
                return _records(cast("QueryMessage", answer), kind)
        except TimeoutError:
            silent += 1
            failed.append(f"{server[0]}: no answer")
            continue
        except (OSError, EOFError) as err:
            failed.append(f"{server[0]}: {reason(err)}")
            continue
        except dns.exception.DNSException as err:
            raise ToolError(f"The nameserver {server[0]} sent a broken answer for {name}.") from err
        if code == dns.rcode.NXDOMAIN:
            raise NotFound(f"The name {name} does not exist.", field="name")
        failed.append(f"{server[0]}: {dns.rcode.to_text(code)}")
    if silent == len(servers):
        raise TimedOut(f"No nameserver answered for {name} within {timeout_s:g} s.")
    raise ToolError(
        f"{name} cannot be resolved ({'; '.join(failed)}).",
        suggestion="Check the nameservers in /etc/resolv.conf.",
    )


def _ascii(name: str) -> str:
    try:
        found = name.rstrip(".").encode("idna").decode().lower()
    except UnicodeError as err:
        raise InvalidArgument(f"{name!r} is not a host name: {err}", field="name") from err
    if len(found) > 253 or not all(re.fullmatch(r"[a-z0-9_-]{1,63}", label) for label in found.split(".")):
        raise InvalidArgument(f"{name!r} is not a host name.", field="name")
    return found


def _nameservers() -> list[tuple[str, int]]:
    given = os.environ.get("LIGHTAGENT_DNS")
    if given:
        host, _, port = given.rpartition(":")
        return [(host, int(port))]
    try:
        lines = Path("/etc/resolv.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    rows = [line.split() for line in lines]
    found = [(row[1], 53) for row in rows if len(row) > 1 and row[0] == "nameserver"]
    return found[:_SERVERS_LIMIT] or [("127.0.0.1", 53)]


async def _exchange(server: tuple[str, int], query: Message) -> bytes:
    """The answer over UDP, or over TCP where it was cut short; packets that do not fit are ignored."""
    import dns.flags

    loop = asyncio.get_running_loop()
    asked = query.to_wire()
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        udp.connect(server)  # from now on packets of others do not arrive
        await loop.sock_sendall(udp, asked)
        while (flags := _flags(packet := await loop.sock_recv(udp, 65535), query)) is None:
            pass
    if not flags & dns.flags.TC:
        return packet
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(asked).to_bytes(2, "big") + asked)
        packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if _flags(packet, query) is None:
        raise EOFError("its TCP answer is for another question")
    return packet


def _flags(packet: bytes, query: Message) -> int | None:
    """The flags of an answer to this query; None for a forged answer."""
    import dns.exception
    import dns.message

    try:
        found = dns.message.from_wire(packet, question_only=True)
    except dns.exception.DNSException:
        return None
    return int(found.flags) if query.is_response(found) else None


def _records(answer: QueryMessage, kind: str) -> list[str]:
    """The records that belong to the name or to what it is an alias of. Raises DNSException."""
    found: list[Any] = list(answer.resolve_chaining().answer or ())
    if kind == "MX":
        hosts = sorted((each.preference, _shown(each.exchange.labels)) for each in found)
        return [f"{preference} {host}" for preference, host in hosts]
    # A TXT record is a row of strings, which belong together (RFC 7208, section 3.3).
    return [visible(b"".join(each.strings), keep=" ") for each in found]


def _shown(labels: tuple[bytes, ...]) -> str:
    return ".".join(visible(label).lower() for label in labels if label) or "."
