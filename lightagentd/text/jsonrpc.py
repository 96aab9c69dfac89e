"""JSON-RPC 2.0 as the Model Context Protocol uses it: messages, their limits, and both ends of a connection.

One message is one JSON object; on a pipe it is one line. A message is decoded strictly (`text.strict_json`)
within bounds on its bytes, its values and its depth. Batches are read, which one version of the protocol
(2025-03-26) lets others send, and never sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightagentd.text.strict_json import BadJson, counting, decoded

MAX_BYTES = 4 << 20
"""Of one message."""
MAX_DEPTH = 64
MAX_BATCH = 100
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


def decode(data: bytes) -> list[Message]:
    """The messages of one line or body. Raises RpcError, for its sender, for what is no such message."""
    if len(data) > MAX_BYTES:
        raise RpcError(INVALID_REQUEST, f"The message is longer than {MAX_BYTES} bytes.")
    try:
        if len(data) > _SMALL_BYTES:
            for _ in counting(data):
                pass
        found = decoded(data, depth=MAX_DEPTH, surrogates=False)
    except BadJson as err:
        raise RpcError(PARSE_ERROR, f"The message is not JSON: {err}.") from None
    if not isinstance(found, list):
        return [_message(found)]
    if not 0 < len(found) <= MAX_BATCH:
        raise RpcError(INVALID_REQUEST, f"A batch has 1 to {MAX_BATCH} messages.")
    return [_message(one) for one in found]


def _message(given: Any) -> Message:
    if not isinstance(given, dict) or given.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'A message is an object with "jsonrpc": "2.0".')
    number, method, params = given.get("id"), given.get("method"), given.get("params", {})
    is_id = isinstance(number, str) or (type(number) is int and abs(number) < _ID_LIMIT)
    if "id" in given and not is_id and not (number is None and "error" in given):
        raise RpcError(INVALID_REQUEST, "An id is a text or an integer.")
    if method is None:
        return _answer(given, number)
    if not isinstance(method, str) or not method or "result" in given or "error" in given:
        raise RpcError(INVALID_REQUEST, "A method is a text, and comes with no result.", id=number)
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "Parameters are an object.", id=number)
    return Message(id=number, method=method, params=params)


def _answer(given: dict[str, Any], number: Id | None) -> Message:
    if ("result" in given) == ("error" in given) or "id" not in given:
        raise RpcError(INVALID_REQUEST, "A message has a method, or an id and a result or an error.")
    if "result" in given:
        return Message(id=number, result=given["result"])
    error = given["error"]
    if not isinstance(error, dict) or type(error.get("code")) is not int:
        raise RpcError(INVALID_REQUEST, "An error has a code.")
    said = error.get("message")
    message = said if isinstance(said, str) else ""
    return Message(id=number, error=RpcError(error["code"], message, error.get("data"), number))


def encode(message: Mapping[str, Any]) -> bytes:
    """One message without the end of its line; `jsonrpc` is added. Lone surrogates become U+FFFD."""
    text = _ENCODER.encode({"jsonrpc": "2.0", **message})
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def error_of(err: RpcError, number: Id | None = None) -> dict[str, Any]:
    """The message that tells an error; `number` is the request's id, if the error does not have it."""
    said: dict[str, Any] = {"code": err.code, "message": err.message}
    if err.data is not None:
        said["data"] = err.data
    return {"id": err.id if err.id is not None else number, "error": said}


async def read_line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line that is not empty; None at the end. Half a line at the end is no message.

    The reader is made with the limit MAX_BYTES. Raises RpcError for a longer line: what follows it cannot be
    understood.
    """
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            raise RpcError(INVALID_REQUEST, f"A line is longer than {MAX_BYTES} bytes.") from None
        if line.strip():
            return line


Send = Callable[[bytes], Awaitable[None]]
"""Sends one message. Raises OSError, or Lost."""
Serve = Callable[[Message], Awaitable[Any]]
"""Gives the result of a request. Raises RpcError; it is cancelled where the other end cancels it."""
Notice = Callable[[Message], None]


class Peer:
    """One end of a connection: asks the other end, and serves its requests, several at once.

    Whoever has the transport makes one, gives it what comes (`receive`), and closes it in the end.
    """

    def __init__(self, send: Send, serve: Serve, notice: Notice, *, tells_wrong: bool = True) -> None:
        """`serve` answers requests; `notice` gets notifications, except that of a cancelled request.
        `tells_wrong`: the other end hears of what it sent wrongly.
        """
        self._send, self._serve, self._notice, self._tells_wrong = send, serve, notice, tells_wrong
        self._last = 0
        self._asked: dict[Id, asyncio.Future[Any]] = {}
        self._running: dict[Id, asyncio.Task[None]] = {}
        self._lost: Lost | None = None

    @property
    def running(self) -> int:
        """How many requests of the other end are being served."""
        return len(self._running)

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
            await self._send(encode({"id": number, "method": method, "params": dict(params or {})}))
            return await waiting
        except asyncio.CancelledError:
            if self._lost is None:
                await self._tell_cancelled(number)
            raise
        finally:
            del self._asked[number]

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. Raises OSError, Lost."""
        await self._send(encode({"method": method, **({"params": dict(params)} if params else {})}))

    async def receive(self, data: bytes) -> RpcError | None:
        """Take what came: one line or body. Gives what is wrong with it, if anything is."""
        try:
            found = decode(data)
        except RpcError as err:
            if self._tells_wrong:
                await self._send(encode(error_of(err)))
            return err
        for message in found:
            if message.method and message.id is not None:
                await self._start(message)
            elif message.method == "notifications/cancelled":
                number = message.params.get("requestId")
                if isinstance(number, int | str) and (task := self._running.get(number)) is not None:
                    task.cancel()
            elif message.method:
                self._notice(message)
            else:
                self._settle(message)
        return None

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

    def _settle(self, message: Message) -> None:
        """An answer to what nobody asked, or asks no more, is dropped."""
        waiting = self._asked.get(message.id) if message.id is not None else None
        if waiting is None or waiting.done():
            return
        if message.error is not None:
            waiting.set_exception(message.error)
        else:
            waiting.set_result(message.result)

    async def _start(self, message: Message) -> None:
        number = message.id
        if number is None or number in self._running or len(self._running) >= MAX_RUNNING:
            why = f"The id runs already, or {MAX_RUNNING} requests do."
            await self._send(encode(error_of(RpcError(BUSY, why, id=number))))
            return
        task = self._running[number] = asyncio.create_task(self._run(message, number))
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _run(self, message: Message, number: Id) -> None:
        """Nothing is answered to a request that was cancelled."""
        answer: dict[str, Any]
        try:
            answer = {"id": number, "result": await self._serve(message)}
        except RpcError as err:
            answer = error_of(err, number)
        try:
            await self._send(encode(answer))
        except (OSError, Lost):
            return  # nobody is there to hear it

    async def _tell_cancelled(self, number: Id) -> None:
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self.tell("notifications/cancelled", {"requestId": number})
        except (OSError, Lost, RpcError):  # TimeoutError is an OSError
            return  # it hears no more
