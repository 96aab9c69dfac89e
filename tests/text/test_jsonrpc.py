"""JSON-RPC 2.0: what is taken for a message, and two ends over a real pipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lightagentd.text import jsonrpc
from lightagentd.text.jsonrpc import Lost, Message, Peer, RpcError

_REFUSED: list[tuple[str, int, int | str | None]] = [
    ("{", jsonrpc.PARSE_ERROR, None),
    ('{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}', jsonrpc.PARSE_ERROR, None),
    ("[" * 1000 + "]" * 1000, jsonrpc.PARSE_ERROR, None),
    ("[" + "[]," * 60_000 + "[]]", jsonrpc.PARSE_ERROR, None),
    ("[]", jsonrpc.INVALID_REQUEST, None),
    ("17", jsonrpc.INVALID_REQUEST, None),
    ('{"id":1,"method":"a"}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":1.5,"method":"a"}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":null,"method":"a"}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":true,"method":"a"}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":7,"method":3}', jsonrpc.INVALID_REQUEST, 7),
    ('{"jsonrpc":"2.0","id":"x","method":"a","params":[1]}', jsonrpc.INVALID_PARAMS, "x"),
    ('{"jsonrpc":"2.0","id":7}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1}}', jsonrpc.INVALID_REQUEST, None),
    ('{"jsonrpc":"2.0","id":7,"error":"no"}', jsonrpc.INVALID_REQUEST, None),
]


def test_what_is_no_message_is_refused_with_a_code() -> None:
    for text, code, number in _REFUSED:
        with pytest.raises(RpcError) as caught:
            jsonrpc.message_of(jsonrpc.decode(text.encode()))
        assert (caught.value.code, caught.value.id) == (code, number), text[:60]
    with pytest.raises(RpcError, match="longer than"):
        jsonrpc.decode(b" " * (jsonrpc.MAX_BYTES + 1))


@asynccontextmanager
async def _two(serve: Callable[[Message], Awaitable[Any]]) -> AsyncIterator[tuple[Peer, Peer, list[str]]]:
    """Two ends over a socket each way; the second one serves."""
    heard: list[str] = []
    served: list[Peer] = []
    writers: list[asyncio.StreamWriter] = []

    def peer(writer: asyncio.StreamWriter, of: Callable[[Message], Awaitable[Any]]) -> Peer:
        async def send(message: Message) -> None:
            writer.write(jsonrpc.encode(message) + b"\n")
            await writer.drain()

        return Peer(send, of, lambda message: heard.append(message.method))

    async def follow(one: Peer, reader: asyncio.StreamReader) -> None:
        async for line in jsonrpc.lines(reader):
            await one.receive(jsonrpc.message_of(jsonrpc.decode(line)))
        await one.close("The other end is gone.")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        served.append(peer(writer, serve))
        await follow(served[0], reader)
        writer.close()

    async def refuse(message: Message) -> Any:
        raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"There is no {message.method}.")

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=jsonrpc.MAX_BYTES)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port, limit=jsonrpc.MAX_BYTES)
    asking = peer(writer, refuse)
    task = asyncio.create_task(follow(asking, reader))
    try:
        await asking.tell("hello")
        while not served:
            await asyncio.sleep(0)
        yield asking, served[0], heard
    finally:
        writer.close()
        await task
        server.close()
        await server.wait_closed()


async def test_both_ends_ask_answer_and_cancel() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def serve(message: Message) -> Any:
        if message.method == "slow":
            try:
                started.set()
                await asyncio.sleep(60)
            finally:
                ended.set()
        return {"said": message.params["say"]}

    async with _two(serve) as (asking, serving, heard):
        answers = await asyncio.gather(*(asking.ask("say", {"say": number}) for number in range(20)))
        assert [one["said"] for one in answers] == [*range(20)]
        with pytest.raises(RpcError, match=r"There is no roots/list\.") as caught:
            await serving.ask("roots/list")
        assert caught.value.code == jsonrpc.METHOD_NOT_FOUND
        slow = asyncio.create_task(asking.ask("slow", {"say": 1}))
        await started.wait()
        assert len(serving._running) == 1
        slow.cancel()
        await ended.wait()
        assert await asking.ask("say", {"say": "still here"}) == {"said": "still here"}
        assert heard == ["hello"]


async def test_more_requests_than_run_at_once_are_refused() -> None:
    go = asyncio.Event()

    async def serve(message: Message) -> Any:
        await go.wait()
        return 1

    async with _two(serve) as (asking, serving, _):
        many = [asyncio.create_task(asking.ask("x")) for _ in range(jsonrpc.MAX_RUNNING + 5)]
        while sum(one.done() for one in many) < 5:
            await asyncio.sleep(0.001)
        assert len(serving._running) == jsonrpc.MAX_RUNNING
        go.set()
        found = await asyncio.gather(*many, return_exceptions=True)
        assert [one.code for one in found if isinstance(one, RpcError)] == [jsonrpc.BUSY] * 5


async def test_who_still_waits_hears_that_the_other_end_is_gone() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def serve(message: Message) -> Any:
        return None

    peer = Peer(send, serve, lambda _: None)
    waiting = asyncio.create_task(peer.ask("x"))
    await asyncio.sleep(0)
    await peer.receive(Message(id=99, result=1))  # nobody asked that
    await peer.receive(Message(method="notifications/cancelled", params={"requestId": []}))
    await peer.close("It died.")
    with pytest.raises(Lost, match="It died"):
        await waiting
    with pytest.raises(Lost, match="It died"):
        await peer.ask("x")
    assert [one.method for one in sent] == ["x"]


async def test_a_line_without_end_is_told_at_once_and_skipped() -> None:
    reader = asyncio.StreamReader(limit=1000)
    reader.feed_data(b"\n\nfirst\n" + b"x" * 5000)
    lines = jsonrpc.lines(reader)
    assert [await anext(lines), await anext(lines)] == [b"first\n", b""]
    reader.feed_data(b"x" * 5000 + b"\nsecond\nhalf")
    reader.feed_eof()
    assert [line async for line in lines] == [b"second\n", b"half"]
