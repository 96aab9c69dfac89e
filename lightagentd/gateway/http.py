"""HTTP/1.1 connections with the limits that uvicorn leaves out.

A `Connection` is uvicorn's own protocol, with a time for the head of each request and for the end of an
answer whose request never ends, and `Connections` bounds their number: a new one takes the place of the one
that has been idle longest. What a connection sends after a request that was refused is thrown away for a
moment, so that the client gets to read why (a close with unread bytes makes the kernel send RST).
RFC 9112 is the protocol; bytes that two programs could cut differently are refused here or in `door`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lightagentd.config.gateway import Gateway
from lightagentd.errors import LightagentError, LimitExceeded, MalformedMessage, TimedOut
from lightagentd.gateway.refusals import error_object
from lightagentd.host.peer import Peer

LINGER_S = 1.0
"""How long what a refused client still sends is thrown away."""
CLOSE_S = 8.0
"""How long the turns of clients may take to be cancelled when the gateway stops."""
HEAD_BYTES = 32 << 10
"""The longest head of a request."""
_numbers = itertools.count()
_WRITE_HIGH_BYTES = 256 << 10
"""So much of an answer may wait for its reader."""
_AHEAD_BYTES = 64 << 10
"""So much may a client send behind a request that is answered; with more the connection ends after it."""


class Connections:
    """The open connections. `serve` has each listening socket make its connections here."""

    def __init__(self, gateway: Gateway, app: Any) -> None:
        self.gateway = gateway
        self._config = Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, int(gateway.idle_timeout_s)),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """Those that wait for a request, the one that has waited longest first."""
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self._open)

    def make(self) -> Connection:
        """The protocol of one connection."""
        return Connection(self, self._config, self._state)

    def opened(self, one: Connection) -> bool:
        """Count a connection; False when there is no room for it."""
        if len(self._open) >= self.gateway.max_connections:
            self.turned_away += 1
            if not self._idle:
                return False
            longest = next(iter(self._idle))
            self.closed(longest)
            longest.hang_up()
        self._open.add(one)
        self._idle[one] = None
        return True

    def closed(self, one: Connection) -> None:
        self._open.discard(one)
        self._idle.pop(one, None)

    def waits(self, one: Connection, *, idle: bool) -> None:
        """Whether a connection waits for a request."""
        if not idle:
            self._idle.pop(one, None)
        elif one in self._open:
            self._idle.setdefault(one)

    async def close(self) -> None:
        """Hang up; what is being answered ends as when its client does that."""
        for one in list(self._open):
            one.hang_up()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()


class Connection(H11Protocol):
    """One connection of a client."""

    def __init__(self, connections: Connections, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None
        self._lingering = False
        self.number = next(_numbers)
        """Unlike that of any other connection."""
        self.last = False
        """Whether the connection ends with the running answer."""
        self.address = ""
        """Where the client is, for counts: an IP address, or the user on the Unix socket."""

    @property
    def socket(self) -> Any:
        """The accepted socket."""
        return self.transport.get_extra_info("socket")

    @property
    def is_local(self) -> bool:
        """Whether the client is a process of this machine on the Unix socket."""
        return bool(self.socket.family == socket.AF_UNIX)

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else f"user {Peer.of(self.socket).uid}"
        self.app_state = {"connection": self}
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        if not self._all.opened(self):
            self._refuse(
                LimitExceeded("The gateway has too many connections.", suggestion="Try again later.")
            )
            return
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._all.closed(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._lingering or self.last:
            return
        super().data_received(data)
        self._read_on()
        self._look()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY or self.last:
            self._linger()
            return
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's word for every fault
        self._refuse(MalformedMessage("The request is no HTTP/1.1."))

    # The limits

    def _look(self) -> None:
        """After anything happened: what is waited for now, and for how long."""
        begun = self.conn.trailing_data[0] != b"" or self.cycle is None
        if self.transport.is_closing() or self._lingering:
            self._disarm()
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self._all.waits(self, idle=True)
            if begun and self._timer is None:
                self._arm()
        else:
            self._all.waits(self, idle=False)
            self._disarm()

    def _read_on(self) -> None:
        """uvicorn reads nothing while a request waits behind the one that is answered; but who does not read
        does not learn that the client hangs up.
        """
        if self.conn.their_state is h11.DONE and self.flow.read_paused:
            self.last = len(self.conn.trailing_data[0]) > _AHEAD_BYTES
            self.flow.resume_reading()

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self._all.gateway.header_timeout_s, self._head_too_late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_too_late(self) -> None:
        self._timer = None
        if self.conn.trailing_data[0]:
            self._refuse(TimedOut("The head of the request took too long."), status=408)
        else:
            self.hang_up()

    def _refuse(self, why: LightagentError, status: int = 0) -> None:
        """Answer for the protocol, if no answer has begun, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = json.dumps(error_object(why)).encode()
            head = f"HTTP/1.1 {status or why.http_status} Refused\r\nContent-Type: application/json\r\n"
            self.transport.write(
                f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            )
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._linger()
        else:
            self.hang_up()

    def _linger(self) -> None:
        self._disarm()
        self._unset_keepalive_if_required()
        self._all.waits(self, idle=False)
        if self._lingering or self.transport.is_closing():
            return
        self._lingering = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        self._timer = self.loop.call_later(LINGER_S, self.hang_up)

    def hang_up(self) -> None:
        """End the connection now."""
        self._disarm()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.transport.abort()
