"""Does a TLS handshake to see the certificates of a server; no data is sent, and the connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from lightagentd.errors import InvalidArgument, NotFound, ToolError


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The result of a handshake; `chain` is PEM, as the server sent it."""

    address: str
    protocol: str
    cipher: str
    chain: bytes


async def trusted_or_not(host: str, port: int, name: str) -> tuple[Peer, str]:
    """The peer, and why it is not trusted; then a second handshake, without a check, gets its chain.

    `name` is the name that is asked for and checked. Raises NotFound, InvalidArgument or ToolError when no
    handshake can be made; the caller bounds the time.
    """
    try:
        return await _handshake(host, port, name, check=True), ""
    except ssl.SSLCertVerificationError as err:
        return await _handshake(host, port, name, check=False), err.verify_message or str(err)


async def _handshake(host: str, port: int, name: str, *, check: bool) -> Peer:
    context = ssl.create_default_context()
    if not check:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except ssl.SSLCertVerificationError:
        raise
    except (OSError, UnicodeError) as err:
        raise _not_reached(host, port, err) from err
    try:
        return _peer(writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _peer(writer: asyncio.StreamWriter) -> Peer:
    tls = writer.get_extra_info("ssl_object")
    # public from Python 3.13 on; before, only the object below has it, and gives objects of its own
    shows_chain = tls if hasattr(tls, "get_unverified_chain") else tls._sslobj
    offered = shows_chain.get_unverified_chain() or []
    ders = [each if isinstance(each, bytes) else each.public_bytes(2) for each in offered]  # 2: DER
    return Peer(
        address=str(writer.get_extra_info("peername")[0]),
        protocol=str(tls.version()),
        cipher=str(tls.cipher()[0]),
        chain="".join(ssl.DER_cert_to_PEM_cert(der) for der in ders).encode(),
    )


def _not_reached(host: str, port: int, err: Exception) -> Exception:
    where = f"{host} port {port}"
    if isinstance(err, UnicodeError):
        return InvalidArgument(f"{host} is not a host name.", field="host")
    if isinstance(err, socket.gaierror):
        return NotFound(f"{host} cannot be resolved: {err.strerror}.", field="host")
    if isinstance(err, ssl.SSLError):
        return ToolError(
            f"The TLS handshake with {where} failed: {err.reason or err}.",
            suggestion="Check that TLS is spoken on this port from the first byte on.",
        )
    return ToolError(
        f"{where} cannot be reached: {err.strerror if isinstance(err, OSError) and err.strerror else err}.",
        suggestion="Check host, port and firewall.",
    )
