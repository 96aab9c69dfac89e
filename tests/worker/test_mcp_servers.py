"""MCP servers in the sandboxes of workers: what they can do there, and how long they live."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from lightagentd.config import configuration
from lightagentd.errors import ConfigError, OutcomeUnknown, PermissionDenied, ToolError, ToolNotFound
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect, Place
from lightagentd.worker.pool import Pool
from tests.toolkit.mcp.servers import approve, install
from tests.worker.running import a_call, folders, marked, marker, shell, until


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    with folders() as paths:
        made = Pool(configuration.Worker(change_agents=["ops"]), paths)
        await made.start()
        try:
            yield made
        finally:
            await made.close()


def _paths(pool: Pool) -> Paths:
    return pool._paths


async def _call(
    pool: Pool,
    action: str,
    *,
    tool: str = "small",
    effect: Effect = Effect.OBSERVE,
    agent: str = "ops",
    timeout_s: float = 20.0,
    expected: dict[str, Any] | None = None,
    resumed: dict[str, Any] | None = None,
    **args: Any,
) -> list[dict[str, Any]]:
    call = a_call(tool, action, effect=effect, agent=agent, timeout_s=timeout_s, **args)
    call = replace(call, place=Place.SERVER, expected=expected or {}, resumed=resumed)
    return [event async for event in pool.call(call)]


async def _said(pool: Pool, action: str, **more: Any) -> str:
    return str((await _call(pool, action, **more))[-1]["output"])


async def test_a_server_is_kept_between_calls_apart_from_all_else(pool: Pool) -> None:
    path = install(_paths(pool), "legacy", more='credentials = ["TOKEN"]\nenvironment = {LEVEL = "2"}\n')
    with pytest.raises(ToolNotFound, match="nobody has looked at its tools"):
        await _said(pool, "count")
    await approve(pool, path, TOKEN="sesame")
    given = {"credentials": {"TOKEN": "sesame"}}
    found = json.loads(await _said(pool, "where", expected=given))
    assert found["token"] == "sesame"
    assert {"LEVEL", "TOKEN", "HOME", "PATH"} <= {*found["env"]}
    assert "CREDENTIALS_DIRECTORY" not in found["env"]
    assert found["home"] == found["cwd"] != "/"
    server = _process(pool, "small_server.py")
    assert "sesame" not in " ".join(server.cmdline())
    left = marker()
    assert await shell(pool, f"setsid sleep {left} & echo left") == "left\n"
    assert not marked(left), "what a command leaves is ended all the same"
    assert "2 bash" in f"2 {await shell(pool, 'echo bash; kill -9 -1')}"  # a command of the same agent
    assert [await _said(pool, "count", expected=given) for _ in range(3)] == ["2", "3", "4"]
    assert _process(pool, "small_server.py") == server
    found = json.loads(await _said(pool, "where", expected=given, agent="dev"))
    assert await _said(pool, "count", expected=given, agent="dev") == "2", "each agent has its own"
    with pytest.raises(ConfigError, match=r"tool\.small\.TOKEN"):
        await _said(pool, "count")
    await pool.close()
    assert not server.is_running()


def _process(pool: Pool, word: str) -> psutil.Process:
    """The one process of the pool that has a word in its command line."""
    found = {
        one
        for worker in pool.workers()
        for one in psutil.Process(worker.pid).children(recursive=True)
        if any(word in part for part in one.cmdline()) and worker.agent == "ops"
    }
    (process,) = found
    return process


async def test_what_a_server_does_stays_in_its_sandbox_and_its_call(pool: Pool, sandboxed: None) -> None:
    await approve(pool, install(_paths(pool), "legacy"))
    await _attack(pool)
    await _results(pool)
    await _answered(pool)
    assert await _said(pool, "count") == "7"
    with pytest.raises(ToolError, match="cheese"):
        await _said(pool, "die")
    assert await _said(pool, "count") == "1", "it was started again"
    with pytest.raises(ToolError, match="longer than"):
        await _said(pool, "long")
    with pytest.raises(ToolError, match="messages in a second"):
        await _said(pool, "flood", effect=Effect.REACH)
    hanging = asyncio.create_task(_call(pool, "hang"))
    await until(lambda: any(one.busy for one in pool.workers()), "it hangs")
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert await _said(pool, "count") == "1", "it lives on after a cancel"
    with pytest.raises(OutcomeUnknown, match="cheese"):
        await _said(pool, "die", effect=Effect.CHANGE)


async def _attack(pool: Pool) -> None:
    """It can neither write outside of its home nor reach anything."""
    out = _paths(pool).config.parent / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        found = (await _said(pool, "outside", path=str(out / "x"), port=port)).splitlines()
    assert [one.partition(": ")[0] for one in found] == ["write", "home", "others", "unix", "connect"]
    assert found[1] == "home: done"
    assert "done" not in found[0] + found[2] + found[4], "the bus has a filter of its own"
    assert not [*out.iterdir()]


async def _results(pool: Pool) -> None:
    """They are shown without what drives a terminal."""
    *outputs, result = await _call(pool, "progress")
    assert "".join(one["text"] for one in outputs) == "0 of 2 step 0\n1 of 2 step 1\n2 of 2 step 2\n"
    assert result["output"] == "done"
    assert await _said(pool, "escapes") == "\\x1b[2Jred \\x202e\\x07 text"
    with pytest.raises(ToolError, match="it did not work"):
        await _said(pool, "fail")
    odd = {"arg_copy": "p", "a_b": 7}
    assert json.loads(await _said(pool, "odd_name_2", **odd)) == {"copy": "p", "a-b": 7}
    assert await _said(pool, "resources") == "note://1  A note."
    assert await _said(pool, "read_resource", uri="note://1") == (
        "note://1:\nthe \\x1bnote\n[b of 3 bytes, of an unknown type, not shown]"
    )
    assert await _said(pool, "prompts") == "greet (who)"
    assert await _said(pool, "get_prompt", name="greet", arguments={"who": "me"}) == "user: Greet me"


async def _answered(pool: Pool) -> None:
    """An older server waits in its call, while a person is asked for each value."""
    (first,) = await _call(pool, "ask")
    assert (first["kind"], first["choices"]) == ("asked", [])
    (second,) = await _call(pool, "ask", resumed={"state": first["state"], "answer": "7"})
    assert (second["kind"], second["choices"]) == ("asked", ["red", "blue", "decline"])
    (last,) = await _call(pool, "ask", resumed={"state": second["state"], "answer": "blue"})
    assert json.loads(last["output"]) == {"action": "accept", "content": {"size": 7, "colour": "blue"}}
    with pytest.raises(ToolError, match="has ended since it asked"):
        await _call(pool, "ask", resumed={"state": second["state"], "answer": "blue"})


async def test_a_tool_that_changes_after_its_approval_is_held_back(pool: Pool) -> None:
    path = install(_paths(pool), "modern")
    await approve(pool, path)
    assert await _said(pool, "echo", text="one") == "one"
    assert await _said(pool, "turn") == "turned"
    for _ in range(2):  # by a notification, and by what a new process lists
        with pytest.raises(PermissionDenied, match="something else of echo than what was approved"):
            await _said(pool, "echo", text="two")
        assert "small are held back: echo: changed after they were approved." in pool.servers.problems()[0]
        pool.servers.forget()
        assert await _said(pool, "where") != "", "the others work"
        install(_paths(pool), "modern", "changed")
        await pool.end_idle_now()
    await approve(pool, path)
    assert await _said(pool, "echo", text="two") == "two"
