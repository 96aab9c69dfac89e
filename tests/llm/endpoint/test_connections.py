"""The bounds of the connections, over real ones: what is written, and what comes outside of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from lightagentd.errors import ModelGarbled, ModelTimedOut
from lightagentd.llm.endpoint import connections
from lightagentd.llm.protocol import Message, Request, TextDelta
from tests.clock import pass_time
from tests.llm.endpoint.asking import ASK, asked, client_of, failed, said
from tests.llm.endpoint.raw_server import END, HEAD, RawServer, Reply, chunked, response
from tests.scripted_model import DONE, chunk

HELLO = chunk({"content": "hello"}) + chunk({}, "stop") + DONE
LONG = Request(system="", messages=[Message(role="user", content="x" * (32 << 20))])


@pytest.mark.parametrize(
    "piece",
    [
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000,
        b"HTTP/1.1 100 Continue\r\nx: " + b"y" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_informational_responses_without_end_are_garbled(piece: bytes) -> None:
    async with RawServer([Reply(itertools.repeat(piece))]) as server:
        assert type(await failed(base_url=server.base_url)) is ModelGarbled


async def test_a_head_without_end_is_garbled() -> None:
    fields = itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"x: y\r\n" * 1000))
    async with RawServer([Reply(fields)]) as server:
        assert type(await failed(base_url=server.base_url)) is ModelGarbled


async def test_informational_responses_come_before_the_answer() -> None:
    before = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with RawServer([Reply([before + response(HELLO)])]) as server:
        assert said(await asked(base_url=server.base_url)) == "hello"


async def test_what_comes_unasked_after_an_answer_closes_the_connection() -> None:
    flood = itertools.chain([HEAD, chunked(HELLO) + END], itertools.repeat(b"HTTP/1.1 200 OK\r\n\r\n" * 1000))
    async with RawServer([Reply(flood)]) as server:
        client = client_of(base_url=server.base_url)
        assert said([part async for part in client.stream(ASK)]) == "hello"
        while server.busy:  # without the bound it goes on until the memory is full
            await asyncio.sleep(0.005)
        await client.close()


async def test_a_long_request_arrives_whole() -> None:
    async with RawServer([Reply([response(HELLO)])]) as server:
        assert said(await asked(LONG, base_url=server.base_url)) == "hello"
        sent = server.requests[0]
    assert int(sent.headers["content-length"]) == len(sent.body) > 32 << 20


async def test_a_request_that_is_not_taken_times_out() -> None:
    async with RawServer([Reply([b""], read=False, pause_s=60)]) as server:
        client = client_of(base_url=server.base_url, idle_timeout_s=0.1)
        with pytest.raises(ModelTimedOut, match="silent"):
            await anext(client.stream(LONG))
        await client.close()


async def test_a_call_waits_for_a_connection_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 1)
    settings: dict[str, Any] = {"connect_timeout_s": 30, "idle_timeout_s": 100}
    async with RawServer([Reply([HEAD, chunked(chunk({"content": "x"}))], "hang")]) as server:
        client = client_of(base_url=server.base_url, **settings)
        async with contextlib.aclosing(client.stream(ASK)) as parts:
            assert await anext(parts) == TextDelta("x")
            second = asyncio.ensure_future(anext(client.stream(ASK)))
            await asyncio.sleep(0.05)
            pass_time(30)
            with pytest.raises(ModelTimedOut, match="in use"):
                await second
        assert await anext(client.stream(ASK)) == TextDelta("x"), "the first one's is free again"
        await client.close()


@pytest.mark.parametrize("pieces", [[], [HEAD, chunked(chunk({"content": "x"}))]])
async def test_a_cancelled_call_closes_its_connection(pieces: list[bytes]) -> None:
    async with RawServer([Reply(pieces, "hang")]) as server:
        client = client_of(base_url=server.base_url)
        call = asyncio.create_task(_read(client.stream(ASK)))
        while not server.requests:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while server.busy:
            await asyncio.sleep(0.005)
        await client.close()


async def _read(parts: Any) -> None:
    async with contextlib.aclosing(parts):
        async for _ in parts:
            pass
