"""A daemon that starts again takes the description of its tools from before, while the files are the same."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from lightagentd.agents.tool_calls.kept_description import FILE
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.conftest import write

TOOL = '''
from lightagentd.tool import Args, Context, Effect, Result, Tool, action

class Probe(Tool):
    """A probe."""

    name = "probe"

    @action(effect=Effect.OBSERVE)
    async def look(self, ctx: Context, args: Args) -> Result:
        """Look."""
        return Result("seen")
'''
KEPT = "As an earlier daemon had it described."


def tool(paths: Paths, text: str = TOOL) -> Path:
    return write(paths.config / "tools" / "probe.py", text)


async def run_once(paths: Paths) -> None:
    async with Daemon(paths):
        pass


def mark(paths: Paths) -> None:
    """Change what is kept, so that it differs from what a worker would say."""
    file = paths.state / FILE
    kept = json.loads(file.read_text())
    (probe,) = [one for one in kept["tools"] if one["name"] == "probe"]
    probe["description"] = KEPT
    file.write_text(json.dumps(kept))


def description(daemon: Daemon) -> str:
    return daemon.registry.shared.content.toolbox.tools["probe"].description


@pytest.fixture
async def marked(paths: Paths) -> Path:
    """The file of the tool that a daemon had described, and of which something else is kept."""
    path = tool(paths)
    await run_once(paths)
    mark(paths)
    return path


@pytest.mark.usefixtures("marked")
async def test_a_start_takes_what_was_kept_and_looks_later(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        assert description(daemon) == KEPT
        assert not daemon.pool.workers()
        await daemon.registry.look_at_remembered_tools()
        assert description(daemon) == "A probe."
    async with Daemon(paths) as daemon:  # which was kept
        assert description(daemon) == "A probe."


@pytest.mark.usefixtures("marked")
async def test_a_reload_does_so_too_and_looks_later(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Daemon(paths) as daemon:
        await daemon.reload()
        assert description(daemon) == KEPT
        monkeypatch.setattr("lightagentd.agents.registry.LOOK_S", 0.01)
        await daemon.reload()
        async with asyncio.timeout(30):
            while description(daemon) == KEPT:
                await asyncio.sleep(0.01)
        assert description(daemon) == "A probe."


async def test_nothing_is_kept_for_other_files(paths: Paths, marked: Path) -> None:
    os.utime(marked, ns=(1, 1))
    async with Daemon(paths) as daemon:
        assert description(daemon) == "A probe."
    mark(paths)
    write(paths.config / "tools" / "_helper.py", "")
    async with Daemon(paths) as daemon:
        assert description(daemon) == "A probe."
    mark(paths)
    tool(paths, TOOL.replace("A probe.", "Another."))
    async with Daemon(paths) as daemon:
        assert description(daemon) == "Another."
        mark(paths)
        tool(paths, TOOL.replace("A probe.", "Yet another."))
        await daemon.reload()
        assert description(daemon) == "Yet another."


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b'{"files": "x"}', b"[" * 200_000])
async def test_a_file_that_is_no_description_is_replaced(paths: Paths, content: bytes) -> None:
    (paths.state / FILE).write_bytes(content)
    async with Daemon(paths) as daemon:
        assert description(daemon) == "A probe."
        assert json.loads((paths.state / FILE).read_text())["tools"]


async def test_a_tool_that_does_not_load_is_tried_at_each_start(paths: Paths) -> None:
    tool(paths, "import no_such_module\n")
    await run_once(paths)
    assert not (paths.state / FILE).exists()
