"""One request of a client, as endpoints see it, and what an endpoint is.

`Asked` reads the body within its limits, and gives connections to the daemon that act for the client. An
`Endpoint` is one line of the table in `routes`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lightagentd.config.gateway import Gateway
from lightagentd.errors import LightagentError, MalformedMessage, MessageTooLarge
from lightagentd.gateway.callers import Caller, Callers, Who, who_is
from lightagentd.gateway.conversations import Conversations
from lightagentd.gateway.http import Connection, Connections
from lightagentd.gateway.limits import Limits
from lightagentd.gateway.live import Lives
from lightagentd.gateway.mcp.sessions import Sessions
from lightagentd.gateway.metrics import Metrics
from lightagentd.gateway.refusals import ClientGone, TooSlow, WrongType, error_object
from lightagentd.text.strict_json import BadJson, counting, decoded

MAX_DEPTH = 64
"""How deep the JSON of a request may be nested."""
_DELIVERIES = 4
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all requests share; it lives as long as the service."""

    gateway: Gateway
    callers: Callers
    limits: Limits
    metrics: Metrics
    conversations: Conversations
    responses: Lives
    chats: Lives
    mcp: Sessions
    connections: Callable[[], Connections]
    deliveries: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_DELIVERIES))
    """Bounds what webhooks cost the daemon, which looks at each signature itself."""


class Asked:
    """A request. It belongs to the task that answers it."""

    def __init__(
        self, shared: Shared, request: Request, parameters: Mapping[str, str], endpoint: Endpoint
    ) -> None:
        self.shared, self.request, self.parameters = shared, request, parameters
        self.endpoint = endpoint
        self.connection: Connection = request.scope["state"]["connection"]
        self._counted = False
        self._held_bytes = 0

    def header(self, name: str) -> str:
        """A header's value, empty when there is none."""
        return self.request.headers.get(name, "")

    # The body

    async def body(self, most_bytes: int = 0) -> bytes:
        """The whole body, whoever sends it. Raises MessageTooLarge, TooSlow, TooMany, ClientGone."""
        most = most_bytes or self.endpoint.max_body_bytes or self.shared.gateway.request_bytes
        length = self.header("content-length")
        if length.isdecimal() and int(length) > most:
            raise _too_large(most)
        found = bytearray()
        try:
            async with asyncio.timeout(self.shared.gateway.body_timeout_s):
                while True:
                    message = await self.request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    piece = message.get("body", b"")
                    if len(found) + len(piece) > most:
                        raise _too_large(most)
                    self.shared.limits.hold(len(piece), proved=self._counted)
                    self._held_bytes += len(piece)
                    found += piece
                    if not message.get("more_body", False):
                        return bytes(found)
        except TimeoutError as err:
            raise TooSlow("The body of the request took too long.") from err

    def release(self) -> None:
        """The request is answered: what it has sent is held no more."""
        self.shared.limits.release(self._held_bytes, proved=self._counted)
        self._held_bytes = 0

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object, of a client that has proved who it is. Raises WrongType,
        MalformedMessage and what `caller` and `body` do.
        """
        async with self.caller() as caller:
            pass  # nobody else's body is read
        kind = self.header("content-type").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise WrongType(
                "The body must be of the type application/json.",
                suggestion="Send the header Content-Type: application/json.",
            )
        if self.header("content-encoding").lower() not in ("", "identity"):
            raise WrongType("The body must not be compressed.")
        most = caller.allowed.request_bytes
        body = await self.body(min(most, self.endpoint.max_body_bytes or most))
        self.shared.limits.sent(caller.key, len(body))
        try:
            # Beside the loop: a body of megabytes takes longer than others should wait.
            found = await asyncio.to_thread(_decoded, body) if len(body) > 1 << 16 else _decoded(body)
        except BadJson as err:
            raise MalformedMessage(f"The gateway cannot read the body as JSON: {err}.") from None
        if not isinstance(found, dict):
            raise MalformedMessage("The body must be a JSON object.")
        return found

    # The client

    def who(self) -> Who:
        """What the client proves who it is by. Raises NoToken for nothing."""
        return who_is(_token(self.header("authorization")), self.connection)

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[Caller]:
        """A connection to the daemon that acts for the client. The first one counts the request. Raises
        NoToken, TooMany, Unavailable.
        """
        async with self.shared.callers.connected(self.who()) as caller:
            if not self._counted:
                self._counted = True
                self.shared.limits.request(caller.key, caller.allowed)
            yield caller

    @contextlib.contextmanager
    def turn(self, caller: Caller) -> Iterator[None]:
        """While a turn runs for the client. Raises TooMany."""
        with (
            self.shared.limits.turn(caller.key, caller.allowed),
            self.shared.metrics.turns.track_inprogress(),
        ):
            yield

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of some work, which is cancelled when the client hangs up. Raises ClientGone then. Call
        it once the body is read.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(disconnected(self.request.receive))
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One path. `methods` has who answers each method; GET answers HEAD, too."""

    path: str
    """As Starlette writes it: `/v1/models/{model}`."""
    methods: Mapping[str, Callable[[Asked], Awaitable[Response]]]
    refusal: Callable[[LightagentError], dict[str, Any]] = error_object
    """The body of an answer that is an error."""
    max_body_bytes: int = 0
    """0 for that of the configuration."""


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _token(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _decoded(body: bytes) -> Any:
    for _ in counting(body):
        pass
    return decoded(body, depth=MAX_DEPTH, surrogates=False)


def _too_large(most: int) -> MessageTooLarge:
    return MessageTooLarge(f"The body is larger than {most} bytes.", suggestion="Send less at once.")
