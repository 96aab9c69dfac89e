"""`lightagent-gateway.service`: serves HTTP, and talks to the daemon as whoever its clients prove to be.

It is an ordinary client of the control socket and has no rights of its own. A gateway that was taken over can
do what the tokens that pass through it can. It keeps no state over a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from lightagentd.config.configuration import load
from lightagentd.config.gateway import Gateway, addresses
from lightagentd.config.models import credential
from lightagentd.errors import ConfigError, LightagentError
from lightagentd.gateway.asked import Shared
from lightagentd.gateway.callers import Callers
from lightagentd.gateway.conversations import Conversations
from lightagentd.gateway.door import Door
from lightagentd.gateway.http import Connections
from lightagentd.gateway.limits import Limits
from lightagentd.gateway.live import Lives
from lightagentd.gateway.mcp.sessions import Sessions
from lightagentd.gateway.metrics import Metrics
from lightagentd.gateway.routes import ENDPOINTS
from lightagentd.host.paths import default_paths
from lightagentd.host.systemd import listening_socket, notify
from lightagentd.text.reason import reason
from lightagentd.unattended.asking import run_until_told

_log = logging.getLogger("lightagentd.gateway")
_HANDSHAKE_S = 10.0
_BACKLOG = 1024
_CHATS, _RESPONSES = 1024, 256
"""How many of them are kept."""


class Service:
    """`await run()` serves until it is cancelled. `sockets` are those that systemd passed, or a test made."""

    def __init__(self, gateway: Gateway, control: Path | None, sockets: Sequence[socket.socket]) -> None:
        self._gateway, self._given = gateway, list(sockets)
        self._tls = _tls(gateway)
        self._addresses = addresses(gateway)
        self._callers = Callers(gateway, control)
        self._chats, self._responses = Lives(_CHATS), Lives(_RESPONSES)
        self._mcp = Sessions(self._callers)
        shared = Shared(
            gateway=gateway,
            callers=self._callers,
            limits=Limits(gateway),
            metrics=Metrics(),
            conversations=Conversations(),
            responses=self._responses,
            chats=self._chats,
            mcp=self._mcp,
            connections=lambda: self._connections,
        )
        self._connections = Connections(gateway, Door(shared, ENDPOINTS))

    async def run(self) -> None:
        """Never returns. Raises ConfigError for an address that cannot be listened on."""
        servers: list[asyncio.Server] = []
        try:
            listening = [(sock, None) for sock in self._given]
            for sock, tls in [*listening, *((_bound(*one), self._tls) for one in self._addresses)]:
                servers.append(await self._serve(sock, tls))
            notify(f"READY=1\nSTATUS=serving on {len(servers)} addresses")
            await asyncio.Event().wait()
        finally:
            notify("STOPPING=1")
            for server in servers:
                server.close()
            await self._connections.close()
            await self._chats.close()
            await self._responses.close()
            await self._mcp.close()
            await self._callers.close()

    async def _serve(self, sock: socket.socket, tls: ssl.SSLContext | None) -> asyncio.Server:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        handshake_s = _HANDSHAKE_S if tls is not None else None
        return await loop.create_server(
            self._connections.make, sock=sock, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=handshake_s
        )


def _bound(host: str, port: int) -> socket.socket:
    """A socket for an address. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as err:
        sock.close()
        raise ConfigError(f"[gateway] listen: {host}:{port} cannot be listened on: {reason(err)}.") from err
    return sock


def _tls(gateway: Gateway) -> ssl.SSLContext | None:
    """Raises ConfigError."""
    if gateway.tls_certificate is None or gateway.tls_key is None:
        return None
    certificate, key = credential(gateway.tls_certificate), credential(gateway.tls_key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as err:
        raise ConfigError(
            f"[gateway] the certificate {certificate} or its key {key} cannot be used: {reason(err)}.",
            suggestion="Name PEM files that root can read as credentials: systemctl edit lightagent-gateway, "
            "LoadCredential=NAME:/a/file.",
        ) from err
    return context


def _unix(path: Path) -> socket.socket:
    """A socket of one's own, where systemd passes none: everybody may connect, and the daemon decides."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.bind(os.fspath(path))
    sock.listen(_BACKLOG)  # whoever finds it may connect
    return sock


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-gateway",
        description="Serve agents over HTTP. It is what lightagent-gateway.service starts.",
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="the daemon's (default: as lactl finds it)"
    )
    parser.add_argument(
        "--http", type=Path, metavar="PATH", help="a Unix socket to serve, instead of systemd's"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients send wrong is no news
    try:
        config, _ = load(options.folder or default_paths().config)
        passed = _unix(options.http) if options.http is not None else listening_socket()
        sockets = [passed] if passed is not None else []
        if not sockets and not config.gateway.listen:
            raise ConfigError("There is nothing to listen on.", suggestion="Start lightagent-gateway.socket.")
        service = Service(config.gateway, options.socket, sockets)
        with contextlib.suppress(asyncio.CancelledError):
            run_until_told(service.run)
    except LightagentError as err:
        if err.code == "cancelled":
            return
        notify(f"STATUS={err.message}")
        parser.exit(err.exit_status, f"<3>{err.message} {err.suggestion}\n")


if __name__ == "__main__":
    main()
