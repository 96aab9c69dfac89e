"""Servers made with the official Python SDK, over each way that there is."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.text.jsonrpc import Lost
from lightagentd.text.mcp import LEGACY, MODERN
from lightagentd.toolkit.mcp.connection import Connection, Running, Transport
from lightagentd.toolkit.mcp.http import Http
from lightagentd.toolkit.mcp.results import call_result, prompt_text, resource_text
from lightagentd.toolkit.mcp.stdio import Program
from tests.ports import free_port

SERVER = Path(__file__).with_name("sdk_server.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server, without the path of its endpoint."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


async def _use(transport: Transport, version: str) -> None:
    shown: list[str] = []

    async def decline(_params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "decline"}

    connection = Connection(transport)
    try:
        await connection.start()
        offers = await connection.offers()
        assert (offers["version"], [one["name"] for one in offers["tools"]]) == (version, ["add"])
        running = Running(progress=shown.append, ask=decline)
        calls = (
            connection.request("tools/call", {"name": "add", "arguments": {"a": number, "b": 1}}, running)
            for number in range(5)
        )
        results = [call_result(one) for one in await asyncio.gather(*calls)]
        assert [one.output for one in results] == ["1", "2", "3", "4", "5"]
        assert results[0].metadata == {"structured": {"result": 1}}
        assert shown == ["1 of 2 adding"] * 5
        assert [one["uri"] for one in await connection.listed("resources/list", "resources")] == [
            "note://one"
        ]
        read = await connection.request("resources/read", {"uri": "note://one"})
        assert resource_text(read) == "note://one:\nthe note"
        said = await connection.request("prompts/get", {"name": "greet", "arguments": {"who": "me"}})
        assert prompt_text(said) == "user: Greet me"
    finally:
        await connection.close()


async def test_over_standard_streams(tmp_path: Path) -> None:
    await _use(Program([sys.executable, str(SERVER)], {}, tmp_path), MODERN)


async def test_over_http(url: str) -> None:
    await _use(Http(f"{url}/mcp", {}), MODERN)


async def test_over_http_of_the_older_versions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_self: Connection) -> None:
        return None

    monkeypatch.setattr(Connection, "_discovered", none)  # as if the server did not know of it
    transport = Http(f"{url}/mcp", {})
    await _use(transport, LEGACY[0])
    assert transport._session


async def test_over_http_of_the_oldest_version(url: str) -> None:
    await _use(Http(f"{url}/sse", {}), LEGACY[0])


async def test_where_no_server_is(url: str) -> None:
    for wrong, why in ((f"{url}/nowhere", "status 404"), ("http://127.0.0.1:1/", "cannot be reached")):
        connection = Connection(Http(wrong, {}))
        with pytest.raises(Lost, match=why):
            await connection.start()
        await connection.close()
