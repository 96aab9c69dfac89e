"""`lactl models` against a real daemon: a model is tested and counted, and a large table taken."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests.agents.scripted import define
from tests.conftest import DaemonProcess
from tests.scripted_model import Fault, ScriptedModel, call

REPORT = call("report_word", {"word": "lantern", "number": 7}, text="Light is fast.")
BAD_KEY = Fault(
    status=401,
    body=b'{"error": {"message": "Incorrect API key provided: sk-proj-Zx81kQm2Pp0vNn47RtUuWq39LlBbCc55"}}',
)


@dataclass(frozen=True)
class Running:
    daemon: DaemonProcess
    model: ScriptedModel

    async def lactl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.daemon.lactl, *arguments)

    async def json(self, *arguments: str) -> Any:
        done = await self.lactl(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
async def running(paths: Paths) -> AsyncIterator[Running]:
    async with ScriptedModel([REPORT, REPORT, BAD_KEY]) as model:
        define(paths, model)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            yield Running(daemon, model)
        finally:
            await asyncio.to_thread(daemon.close)


async def test_a_model_is_tested_and_the_call_is_counted(running: Running) -> None:
    done = await running.lactl("models", "test", "--agent", "test")
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {name: seen for name, seen, _ in lines}["tool call"] == "yes"
    await running.json("models", "test", "openai/x")
    (used,) = [row for row in await running.json("usage", "--by", "agent") if row["name"] == "test"]
    assert (used["steps"], used["total_tokens"], used["turns"]) == (2, 30, 0)
    failed = await running.lactl("models", "test", "--agent", "test")
    assert failed.returncode == 70
    assert "sk-proj-Zx81kQm2Pp0vNn47RtUuWq39LlBbCc55" not in failed.stderr
    assert len(failed.stderr.splitlines()) == 2
    assert len(running.model.requests) == 3
    (used,) = [row for row in await running.json("usage", "--by", "agent") if row["name"] == "test"]
    assert used["steps"] == 3  # the endpoint had it
    events = (await running.lactl("history", "--topic", "agent.llm_response", "--json")).stdout.splitlines()
    assert [json.loads(event)["type"] for event in events] == ["response", "response", "failed"]


async def test_a_table_of_twenty_thousand_models_is_taken_whole(running: Running, tmp_path: Path) -> None:
    models = {
        f"model-{number}": {"name": f"Model {number}", "limit": {"context": 1000 + number}}
        for number in range(20_000)
    }
    models["x"] = {"name": "X", "limit": {"context": 64_000}}
    file = tmp_path / "api.json"
    file.write_text(json.dumps({"openai": {"id": "openai", "name": "OpenAI", "models": models}}))
    told = await running.json("models", "refresh", str(file))
    assert (told["models"], told["providers"], told["left_out"]) == (20_001, 1, [])
    assert told["changes"] == ["openai/x: the window is 64,000 tokens now, and was not known."]
    shown = await running.json("models", "show", "openai/model-19999")
    assert (shown["context_tokens"], shown["facts_from"]) == (20_999, "refreshed")
    listed = await running.lactl("models", "list")
    assert any(line.startswith("openai/x\tready\t64000\t") for line in listed.stdout.splitlines())
