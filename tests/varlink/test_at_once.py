"""An interface that answers a message as it comes, and the calling end that waits for it."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.errors import MessageTooLarge, Unavailable
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.varlink.connection import READ_BYTES, AtOnce
from lightagentd.varlink.server import VarlinkConnection, VarlinkServer
from tests.raw_varlink import Raw, code, message

ECHO = "org.lightagent1.Echo."


class EchoInterface(AtOnce, VarlinkInterface, name="org.lightagent1.Echo"):
    def __init__(self, answered: list[str]) -> None:
        self._answered = answered

    def at_once(self, message: bytes) -> dict[str, Any] | None:
        text = json.loads(message)["parameters"]["text"]
        if text == "later":
            return None
        self._answered.append(text)
        return {"text": text * 2 if len(text) > MAX_MESSAGE_BYTES // 2 else text}

    @varlinkmethod(return_parameter="text")
    async def Say(self, *, text: str) -> str:
        return f"{text}, by a task"


@pytest.fixture
def answered() -> list[str]:
    """What was answered at once."""
    return []


@pytest.fixture
async def path(answered: list[str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The socket of a server of the interface."""
    path = tmp_path_factory.mktemp("v") / "s"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    server = VarlinkServer([sock], lambda _peer: [EchoInterface(answered)], product="echo")
    server.start()
    yield path
    await server.close()
    assert server.waiting_bytes == 0


async def test_one_whole_message_is_answered_at_once_however_it_comes(
    path: Path, answered: list[str]
) -> None:
    large = "x" * (5 * READ_BYTES)
    async with Raw(path) as raw:
        assert await raw.call("Echo.Say", text="a") == {"parameters": {"text": "a"}}
        assert (await raw.call("Echo.Say", text="later"))["parameters"]["text"] == "later, by a task"
        for byte in message("Echo.Say", text="b") + b"\0":
            raw.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await raw.reply())["parameters"]["text"] == "b"
        assert (await raw.call("Echo.Say", text=large))["parameters"]["text"] == large
        assert code(await raw.call("Echo.Say", text="x" * (MAX_MESSAGE_BYTES - 100))) == "message_too_large"
        assert (await raw.call("Echo.Say", text="c"))["parameters"]["text"] == "c"
    assert [len(one) for one in answered] == [1, 1, len(large), MAX_MESSAGE_BYTES - 100, 1]


async def test_several_messages_at_once_are_answered_in_order_by_a_task(
    path: Path, answered: list[str]
) -> None:
    texts = ["a", "later", "b"]
    async with Raw(path) as raw:
        await raw.send(*(message("Echo.Say", text=text) for text in texts))
        found = [(await raw.reply())["parameters"]["text"] for _ in texts]
    assert found == [f"{text}, by a task" for text in texts]
    assert answered == []


async def test_the_client_reads_answers_of_any_size_and_none_over_the_limit(path: Path) -> None:
    connection = await VarlinkConnection.connect(path)
    for size in (1, READ_BYTES, MAX_MESSAGE_BYTES // 2):
        assert await connection.call(ECHO + "Say", text="x" * size) == {"text": "x" * size}
    with pytest.raises(MessageTooLarge):
        await connection.call(ECHO + "Say", text="x" * (MAX_MESSAGE_BYTES - 100))
    assert not connection.closed
    connection.close()
    with pytest.raises(Unavailable):
        await connection.call(ECHO + "Say", text="a")


@pytest.mark.parametrize("end", [b"", b"\0"])
async def test_the_client_takes_no_answer_over_the_limit(path: Path, end: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(b" " * (MAX_MESSAGE_BYTES + 8 * READ_BYTES) + end)
        await reader.read()
        writer.transport.abort()

    path = path.with_name("endless")
    async with await asyncio.start_unix_server(endless, path):
        connection = await VarlinkConnection.connect(path)
        with pytest.raises(Unavailable, match="larger than 16 MiB"):
            await connection.call(ECHO + "Say", text="a")
        connection.close()


async def test_the_client_notices_that_its_peer_hung_up(path: Path) -> None:
    async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(b'{"parameters":{"number":1},"continues":true}\0{"parameters":{"number":2}}\0')
        writer.close()

    path = path.with_name("gone")
    async with await asyncio.start_unix_server(gone, path):
        connection = await VarlinkConnection.connect(path)
        assert [one["number"] async for one in connection.stream(ECHO + "Count")] == [1, 2]
        with pytest.raises(Unavailable):
            await connection.call(ECHO + "Say", text="a")
        assert connection.closed
        connection.close()
