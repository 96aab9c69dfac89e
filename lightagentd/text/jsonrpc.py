"""JSON-RPC 2.0 as the Model Context Protocol uses it: messages, their limits, and both ends of a connection.

One message is one JSON object; on a pipe it is one line. A message is decoded strictly (`text.strict_json`)
within bounds on its bytes, its values and its depth. Transports frame, decode and encode messages, a `Peer`
matches requests and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightagentd.text.strict_json import BadJson, counting, decoded

MAX_BYTES = 4 << 20
"""Of one message."""
MAX_DEPTH = 64
MAX_RUNNING = 32
"""How many requests of the other end run at once; more are refused."""
_SMALL_BYTES = 16 << 10
"""Up to this size nothing in a message can take long, so nobody counts."""
_ID_LIMIT = 1 << 63
_CANCEL_S = 1.0
"""How long the other end has to take in that a request is cancelled."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, BUSY = -32602, -32603, -32000

Id = int | str


class RpcError(Exception):
    """An error of JSON-RPC, to be sent or as it came. `id` is that of the request, where it is known."""

    def __init__(self, code: int, message: str, data: Any = None, id: Id | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.code, self.message, self.data, self.id = code, message, data, id


class Lost(Exception):
    """The connection has ended, and the message says why."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A request (method and id), a notification (method alone) or an answer (id, and result or error)."""

    id: Id | None = None
    method: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: RpcError | None = None

    @classmethod
    def refusal(cls, err: RpcError, id: Id | None = None) -> Message:  # noqa: A002
        """The message that tells an error; `id` is the request's, if the error does not have it."""
        return cls(id=id if err.id is None else err.id, error=err)


def decode(data: bytes) -> Any:
    """The JSON of one line or body. Raises RpcError, for its sender, for what is too long or not strict."""
    if len(data) > MAX_BYTES:
        raise RpcError(INVALID_REQUEST, f"The message is longer than {MAX_BYTES} bytes.")
    try:
        if len(data) > _SMALL_BYTES:
            for _ in counting(data):
                pass
        return decoded(data, depth=MAX_DEPTH, surrogates=False)
    except BadJson as err:
        raise RpcError(PARSE_ERROR, f"The message is not JSON: {err}.") from None


def message_of(given: Any) -> Message:
    """The message that some JSON is. Raises RpcError, for its sender, for what is none."""
    if not isinstance(given, dict) or given.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'A message is one object with "jsonrpc": "2.0".')
    number, method, params = given.get("id"), given.get("method"), given.get("params", {})
    is_id = isinstance(number, str) or (type(number) is int and abs(number) < _ID_LIMIT)
    if "id" in given and not is_id and not (number is None and "error" in given):
        raise RpcError(INVALID_REQUEST, "An id is a text or an integer.")
    if method is None and ("result" in given) != ("error" in given) and "id" in given:
        return Message(id=number, result=given.get("result"), error=_error(given, number))
    if method is None:
        raise RpcError(INVALID_REQUEST, "A message has a method, or an id and a result or an error.")
    if not isinstance(method, str) or not method or "result" in given or "error" in given:
        raise RpcError(INVALID_REQUEST, "A method is a text, and comes with no result.", id=number)
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "Parameters are an object.", id=number)
    return Message(id=number, method=method, params=params)


def _error(given: dict[str, Any], number: Id | None) -> RpcError | None:
    if "error" not in given:
        return None
    error = given["error"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:
        raise RpcError(INVALID_REQUEST, "An error has a code.")
    said = error.get("message")
    return RpcError(error["code"], said if isinstance(said, str) else "", error.get("data"), number)


def encode(given: Message) -> bytes:
    """One message without the end of its line. Lone surrogates become U+FFFD."""
    whole: dict[str, Any] = {"jsonrpc": "2.0"}
    if given.id is not None or not given.method:
        whole["id"] = given.id
    if given.method:
        whole |= {"method": given.method, "params": given.params}
    elif (err := given.error) is not None:
        whole["error"] = {"code": err.code, "message": err.message}
        whole["error"] |= {} if err.data is None else {"data": err.data}
    else:
        whole["result"] = given.result
    text = _ENCODER.encode(whole)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


async def lines(reader: asyncio.StreamReader, *, blank: bool = False) -> AsyncIterator[bytes]:
    """The lines, without the `blank` ones unless these are wanted, too. No bytes at all stand for a line that
    is too long, and come as soon as it is: whoever reads on skips the rest. The limit is the reader's.
    """
    skips = False
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as err:
            if err.partial.strip() and not skips:
                yield err.partial
            return
        except asyncio.LimitOverrunError as err:
            await reader.readexactly(err.consumed)
            if not skips:
                yield b""
            skips = True
            continue
        if (blank or line.strip()) and not skips:
            yield line
        skips = False


Send = Callable[[Message], Awaitable[None]]
"""Sends one message. Raises OSError, or Lost."""
Serve = Callable[[Message], Awaitable[Any]]
"""Gives the result of a request. Raises RpcError; it is cancelled where the other end cancels it."""


class Peer:
    """One end of a connection: asks the other end, and serves its requests, several at once.

    Whoever has the transport makes one, gives it what comes (`receive`), and closes it in the end.
    """

    def __init__(self, send: Send, serve: Serve, notice: Callable[[Message], None] = lambda _: None) -> None:
        """`serve` answers requests; `notice` gets notifications, except that of a cancelled request."""
        self._send, self._serve, self._notice = send, serve, notice
        self._last = 0
        self._asked: dict[Id, asyncio.Future[Any]] = {}
        self._running: dict[Id, asyncio.Task[None]] = {}
        self._lost: Lost | None = None

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of a request. One that is cancelled here is cancelled at the other end.

        Raises RpcError, Lost, OSError. The caller bounds the time.
        """
        if self._lost is not None:
            raise self._lost
        self._last += 1
        number = self._last
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(Message(id=number, method=method, params=dict(params or {})))
            return await waiting
        except asyncio.CancelledError:
            if self._lost is None:
                with contextlib.suppress(OSError, Lost, RpcError):  # TimeoutError is an OSError
                    async with asyncio.timeout(_CANCEL_S):
                        await self.tell("notifications/cancelled", {"requestId": number})
            raise
        finally:
            del self._asked[number]

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. Raises OSError, Lost."""
        await self._send(Message(method=method, params=dict(params or {})))

    async def receive(self, given: Message) -> None:
        """Take a message. An answer to what nobody asked, or asks no more, is dropped."""
        if given.method and given.id is not None:
            await self._start(given, given.id)
        elif given.method == "notifications/cancelled":
            number = given.params.get("requestId")
            if isinstance(number, int | str) and (task := self._running.get(number)) is not None:
                task.cancel()
        elif given.method:
            self._notice(given)
        elif given.id is None or (waiting := self._asked.get(given.id)) is None or waiting.done():
            return
        elif given.error is not None:
            waiting.set_exception(given.error)
        else:
            waiting.set_result(given.result)

    async def close(self, why: str) -> None:
        """What still waits gets Lost, what runs is cancelled and awaited."""
        self._lost = Lost(why)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(self._lost)
        tasks = [*self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, given: Message, number: Id) -> None:
        if number in self._running or len(self._running) >= MAX_RUNNING:
            why = f"The id runs already, or {MAX_RUNNING} requests do."
            await self._send(Message.refusal(RpcError(BUSY, why), number))
            return
        task = self._running[number] = asyncio.create_task(self._run(given, number))
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _run(self, given: Message, number: Id) -> None:
        """Nothing is answered to a request that was cancelled."""
        try:
            answer = Message(id=number, result=await self._serve(given))
        except RpcError as err:
            answer = Message.refusal(err, number)
        with contextlib.suppress(OSError, Lost):  # nobody may be there to hear it
            await self._send(answer)
