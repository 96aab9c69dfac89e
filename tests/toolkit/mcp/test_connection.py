"""The client of the Model Context Protocol, with real servers: versions, bounds, and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.text.jsonrpc import Lost, RpcError
from lightagentd.toolkit.mcp.connection import Connection, Running
from lightagentd.toolkit.mcp.stdio import Program

SERVER = Path(__file__).with_name("small_server.py")


async def _decline(_params: dict[str, Any]) -> dict[str, Any]:
    return {"action": "decline"}


@contextlib.asynccontextmanager
async def connected(tmp_path: Path, *words: str) -> AsyncIterator[Connection]:
    connection = Connection(Program([sys.executable, "-I", str(SERVER), *words], {}, tmp_path))
    try:
        await connection.start()
        yield connection
    finally:
        await connection.close()
        assert not [*tmp_path.iterdir()], "its home goes with it"


async def _call(connection: Connection, name: str, **arguments: Any) -> tuple[dict[str, Any], list[str]]:
    shown: list[str] = []
    running = Running(progress=shown.append, ask=_decline)
    params = {"name": name, "arguments": arguments}
    return await connection.request("tools/call", params, running), shown


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_both_kinds_of_servers_are_spoken_with(tmp_path: Path, era: str) -> None:
    async with connected(tmp_path, era) as connection:
        offers = await connection.offers()
        assert offers["version"] == ("2026-07-28" if era == "modern" else "2025-11-25")
        assert offers["resources"]
        assert offers["prompts"]
        assert [one["name"] for one in offers["tools"]][:2] == ["echo", "count"], "from two pages"
        found = await asyncio.gather(*(_call(connection, "echo", text=str(number)) for number in range(20)))
        assert [one["content"][0]["text"] for one, _ in found] == [str(number) for number in range(20)]
        assert (await _call(connection, "progress"))[1] == ["0 of 2 step 0", "1 of 2 step 1", "2 of 2 step 2"]
        await _call(connection, "turn")
        assert connection.changed
        if era == "legacy":
            result, _ = await _call(connection, "sample")
            assert "No server gets the model of an agent" in result["content"][0]["text"]


async def test_what_a_server_sends_wrongly_does_not_matter_where_it_answers(tmp_path: Path) -> None:
    async with connected(tmp_path, "legacy") as connection:
        for name, said in (("ids", "this one"), ("noise", "in a batch, after the noise")):
            result, _ = await _call(connection, name)
            assert result["content"][0]["text"] == said
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await _call(connection, "hang")
        assert (await _call(connection, "echo", text="still here"))[0]["content"][0]["text"] == "still here"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("die", "cheese"),
        ("deep", "nested too deeply"),
        ("flood", "messages in a second"),
        ("blank", "messages in a second"),
        ("long", "longer than"),
    ],
)
async def test_a_server_that_dies_or_does_harm_is_lost(tmp_path: Path, name: str, why: str) -> None:
    async with connected(tmp_path, "legacy") as connection:
        other = asyncio.create_task(_call(connection, "hang"))
        with pytest.raises(Lost, match=why) as caught:
            await _call(connection, name)
        assert "\x1b" not in str(caught.value)
        with pytest.raises(Lost):
            await other
        assert not connection.alive


async def test_a_server_of_today_that_is_slow_to_start_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.toolkit.mcp.connection.PROBE_S", 1.0)
    async with connected(tmp_path, "modern", "slow") as connection:
        assert (await connection.offers())["version"] == "2026-07-28"


async def test_lists_have_an_end(tmp_path: Path) -> None:
    for words, why in (
        (["many"], "more than 1000 tools"),
        (["many", "rich"], "more than 50000 values"),
        (["endless"], "more than 100 pages"),
        (["large"], "more than 4194304 bytes together"),
    ):
        async with connected(tmp_path, "modern", *words) as connection:
            with pytest.raises((RpcError, Lost), match=why):
                await connection.offers()


async def test_a_server_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(RpcError, match="1999-01-01"):
        async with connected(tmp_path, "legacy", "ancient"):
            pass
    with pytest.raises(Lost, match="ended with the status 1: no such configuration"):
        async with connected(tmp_path, "broken"):
            pass
