"""MCP over HTTP with servers that break off, send without end, lead elsewhere, and forget their sessions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lightagentd.text.jsonrpc import Lost
from lightagentd.toolkit.mcp.connection import Connection
from lightagentd.toolkit.mcp.http import Http

Reply = Callable[[str, dict[str, str], dict[str, Any]], bytes]
"""What is sent for the method, the headers and the message of a request."""


def http(status: str, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + f"\r\n\r\n{body}").encode()


def events(*sent: str, **headers: str) -> bytes:
    return http("200 OK", "".join(f"{one}\n\n" for one in sent), content_type="text/event-stream", **headers)


def answer(message: dict[str, Any], result: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


@contextlib.asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[Connection]:
    """A connection that is not started, to a server that answers so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {key.lower(): value for key, _, value in (one.partition(": ") for one in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            sent = reply(head[0].split()[0], headers, json.loads(body or b"{}"))
            while True:
                writer.write(sent)
                await writer.drain()
                if not sent.endswith(b"..."):  # else it goes on without end
                    break
                sent = b"x" * (1 << 20) + b"..."
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = Connection(Http(f"http://{host}:{port}/mcp", {"authorization": "Bearer sesame"}))
    try:
        yield connection
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (http("302 Found", location="http://elsewhere.example/"), "the status 302"),
        (http("401 Unauthorized", "<html>"), "the status 401"),
        (http("200 OK", "...", content_type="application/json"), "more than 4194304 bytes"),
        (events("data: ..."), "an event of more than 4 MiB"),
        (events(": nothing", "event: x"), "its answer broke off"),
        (http("200 OK", "{", content_type="application/json"), "cannot be taken"),
        (b"\x00\x01\x02", "cannot be reached"),
        (http("200 OK", "x", content_encoding="gzip, gzip"), "which was not asked for"),
        (http("500 Oh", '{"error": {"code": 1e999}}'), "the status 500"),
        (events("id: \u20ac\ndata:"), "its answer broke off"),
    ],
)
async def test_a_server_that_sends_what_it_should_not_is_lost(sent: bytes, why: str) -> None:
    async with serving(lambda *_: sent.replace(b"\n\n", b"") if sent.endswith(b"...\n\n") else sent) as one:
        with pytest.raises(Lost, match=why):
            await one.start()


async def test_an_event_of_empty_lines_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightagentd.toolkit.mcp.http.MAX_BYTES", 5000)
    async with serving(lambda *_: events("data:\n" * 1000)) as one:
        with pytest.raises(Lost, match="an event of more than"):
            await one.start()


async def test_a_session_whose_id_no_header_can_have_is_none() -> None:
    def reply(_method: str, _headers: dict[str, str], message: dict[str, Any]) -> bytes:
        if message["method"] == "server/discover":
            return http("400 Bad Request")
        return http("200 OK", answer(message, {"protocolVersion": "2025-06-18"}), mcp_session_id="s\u00e9")

    async with serving(reply) as one:
        with pytest.raises(Lost, match="an id that no header can have"):
            await one.start()


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://127.0.0.1:1/steal", "an endpoint on another host"),
        ("http://[", "no URL"),
        ("/\x01", "InvalidURL"),
    ],
)
async def test_the_endpoint_of_the_oldest_transport_is_on_the_same_host(endpoint: str, why: str) -> None:
    def reply(method: str, _headers: dict[str, str], _message: dict[str, Any]) -> bytes:
        if method == "POST":
            return http("405 Method Not Allowed")
        return events(f"event: endpoint\ndata: {endpoint}")

    async with serving(reply) as connection:
        with pytest.raises(Lost, match=why):
            await connection.start()


async def test_the_oldest_transport_is_tried_once() -> None:
    seen: list[str] = []

    def reply(method: str, _headers: dict[str, str], _message: dict[str, Any]) -> bytes:
        seen.append(method)
        return http("404 Not Found") if method == "POST" else events("event: endpoint\ndata: /messages")

    async with serving(reply) as connection:
        with pytest.raises(Lost, match=r"the status 404|closed its stream"):
            await connection.start()
    assert seen.count("GET") == 1


async def test_a_session_is_kept_ended_and_a_broken_stream_gone_on_with() -> None:
    seen: list[tuple[str, str, str]] = []
    asked: dict[str, Any] = {}

    def reply(method: str, headers: dict[str, str], message: dict[str, Any]) -> bytes:
        said = message.get("method", "")
        seen.append((method, said, headers.get("mcp-session-id", "")))
        assert headers["authorization"] == "Bearer sesame"
        if said == "server/discover":
            return http("400 Bad Request", "no session")
        if said == "initialize":
            result = answer(message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}})
            return http("200 OK", result, content_type="application/json", mcp_session_id="s1")
        if said == "tools/list":
            asked.update(message)
            return events("id: 7\nretry: 1\ndata:")
        if method == "GET" and headers.get("last-event-id") == "7":
            return events(f"data: {answer(asked, {'tools': []})}")
        if said == "ping":
            return http("404 Not Found")
        return http("405 Method Not Allowed") if method == "GET" else http("202 Accepted")

    async with serving(reply) as connection:
        await connection.start()
        assert (await connection.offers())["version"] == "2025-06-18"
        with pytest.raises(Lost, match="its session has ended"):
            await connection.request("ping", {})
    assert ("DELETE", "", "s1") in seen
    assert {session for _, said, session in seen if said in ("notifications/initialized", "tools/list")} == {
        "s1"
    }
