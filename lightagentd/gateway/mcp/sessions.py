"""The MCP servers of the gateway's clients.

A client that begins with `initialize` has a session, and a server of its own; requests that bring their
version share one for each token and agent, which only keeps the calls that wait for a person. A server asks
the daemon with the token of the request that it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Self
from uuid import uuid4

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import NotFound
from lightagentd.gateway.callers import TIMEOUT_S, Callers, Who
from lightagentd.gateway.refusals import TooMany
from lightagentd.mcp_server.server import Server
from lightagentd.text.jsonrpc import INTERNAL_ERROR, Id, Lost, Message, RpcError, encode

IDLE_S = 1800.0
"""A session with no request for so long ends, and what waits in it for a person."""
OF_ONE, MOST = 16, 256
"""How many sessions one token has, and all together; one more ends the one that was idle longest."""
_WAITING = 1000
"""So many messages wait for a client; then it is told no more of what happens until it reads."""


class Reply:
    """What is sent for one request: the answer alone, unless the client reads streams. `number` is its id
    inside the server, one of a kind, or `given`, that of the client.
    """

    def __init__(self, who: Who, number: Id, given: Id, *, streams: bool) -> None:
        self.who, self.number, self._given, self._streams = who, number, given, streams
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self.answered = self.closed = False

    async def put(self, message: Message) -> None:
        """Raises Lost for a question that nobody would read."""
        if message.method and message.id is not None and not self._streams:
            raise Lost("The client reads no questions.")
        if self.closed or self.answered:
            return
        self.answered = not message.method
        if self.answered or (self._streams and self._queue.qsize() < _WAITING):
            self._queue.put_nowait(message)

    async def take(self) -> Message:
        """The next message; the last one is the answer, and has no method."""
        return await self._queue.get()

    def encoded(self, message: Message) -> bytes:
        """As the client knows it."""
        inner, outer = (json.dumps(one).encode() for one in (self.number, self._given))
        return encode(message).replace(inner, outer)


REPLY: ContextVar[Reply] = ContextVar("REPLY")
"""That of the request whose task this is."""


class Acting(AsyncClient):
    """A connection to the daemon that acts for the client of the running request."""

    def __init__(self, callers: Callers) -> None:
        super().__init__(callers.control, timeout_s=TIMEOUT_S)
        self._callers, self._who = callers, REPLY.get().who

    async def __aenter__(self) -> Self:
        """Raises PermissionDenied, too. One that was kept acts for a local client that has hung up by now."""
        if (kept := self._callers.take(self._who.kept_as)) is not None:
            self._streams, self._wire = kept.client._streams, kept.client._wire
            return self
        await super().__aenter__()
        try:
            await self._callers.authenticate(self, self._who)
        except BaseException:
            await self.close()
            raise
        return self


class Session:
    """A server, and the requests that it serves now."""

    def __init__(self, sessions: Sessions, id: str, key: str, agent: str) -> None:  # noqa: A002
        self.id, self.key = id, key
        self._sessions = sessions
        self.replies: set[Reply] = set()
        self.server = Server(
            sessions.connection, agent, lambda message: REPLY.get().put(message), pushes=False
        )
        self._timer: asyncio.TimerHandle | None = None
        self.rest()

    def rest(self) -> None:
        """From now on it is idle, if it serves nothing."""
        self.stop_timer()
        if not self.replies:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._sessions.forget, self)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextlib.asynccontextmanager
    async def replying(self, reply: Reply, *, cancel: bool) -> AsyncIterator[None]:
        """While somebody waits for the answer; `cancel` ends a request whose answer nobody waits for."""
        self.replies.add(reply)
        self.stop_timer()
        try:
            yield
        finally:
            reply.closed = True
            self.replies.discard(reply)
            self.rest()
            if cancel and not reply.answered:
                about = {"requestId": reply.number}
                await self.server.receive(Message(method="notifications/cancelled", params=about))

    async def close(self) -> None:
        self.stop_timer()
        why = RpcError(INTERNAL_ERROR, "The session has ended.")
        for reply in list(self.replies):
            await reply.put(Message.refusal(why, reply.number))
        await self.server.close()


class Sessions:
    """All of them; `close` ends them."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._all: OrderedDict[str, Session] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()

    def connection(self) -> Acting:
        return Acting(self._callers)

    def begin(self, key: str, agent: str) -> Session:
        """A new session of a token. Raises TooMany."""
        return self._made(uuid4().hex, key, agent)

    def shared(self, key: str, agent: str) -> Session:
        """Serves a token's requests that belong to no session. Raises TooMany."""
        name = f"{key} {agent}"
        if name in self._all:
            self._all.move_to_end(name)
            return self._all[name]
        return self._made(name, key, agent)

    def find(self, key: str, name: str) -> Session:
        """Raises NotFound, for another token's session, too."""
        found = self._all.get(name)
        if found is None or found.key != key or " " in name:
            raise NotFound("There is no such session.", suggestion="Begin with initialize.")
        self._all.move_to_end(name)
        return found

    def forget(self, session: Session) -> None:
        """End a session."""
        if self._all.get(session.id) is session:
            del self._all[session.id]
            task = asyncio.create_task(session.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for session in list(self._all.values()):
            self.forget(session)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _made(self, name: str, key: str, agent: str) -> Session:
        own = [one for one in self._all.values() if one.key == key]
        if len(own) >= OF_ONE or len(self._all) >= MOST:
            among = own if len(own) >= OF_ONE else self._all.values()
            oldest = next((one for one in among if not one.replies), None)
            if oldest is None:
                raise TooMany("There are too many sessions of MCP.", retry_after_s=1)
            self.forget(oldest)
        made = self._all[name] = Session(self, name, key, agent)
        return made
