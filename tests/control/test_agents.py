"""`Agents.Create`: each option, and the combinations that the help and the manual promise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.conftest import write
from tests.raw_varlink import Raw, code
from tests.scripted_model import ScriptedModel, say

KEY = "key-in-a-file-4711"


@pytest.fixture
async def made(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Raw, ScriptedModel]]:
    """A daemon whose default model is the runbook, with a key in a file and as a credential."""
    write(tmp_path / "key", KEY)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    async with ScriptedModel([say("hi")]) as model, Daemon(paths), Raw(paths.socket) as raw:
        yield raw, model


async def test_a_model_at_an_endpoint_of_its_own_answers(
    made: tuple[Raw, ScriptedModel], tmp_path: Path
) -> None:
    raw, server = made
    definition = {"description": "what for", "role": "sysadmin", "prompt": "Be brief."}
    for number, (model, shown, sent, key) in enumerate(
        (
            ("qwen3", "endpoint/qwen3", "qwen3", ""),
            ("qwen3:8b-q4", "endpoint/qwen3:8b-q4", "qwen3:8b-q4", "key"),
            ("openai/qwen3", "openai/qwen3", "qwen3", f"{tmp_path}/key"),
            ("work/org/qwen3", "work/org/qwen3", "org/qwen3", ""),
        )
    ):
        name = f"new-{number}"
        options = {"model": model, "base_url": server.base_url, "api_key_file": key}
        created = await raw.call("Agents.Create", name=name, **definition, **options)
        agent = created["parameters"]["agent"]
        assert (agent["model"], agent["state"], agent["problem"]) == (shown, "running", "")
        assert (agent["description"], agent["role"]) == ("what for", "sysadmin")
        assert code(await raw.call("Manager.Ask", agent=name, text="hello")) == "ok"
        asked = server.requests[-1]
        assert (len(server.requests), asked.body["model"]) == (number + 1, sent)
        assert asked.headers.get("authorization") == (f"Bearer {KEY}" if key else None)
        assert "Be brief." in asked.body["messages"][0]["content"]


WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"model": "qwen3"}, "model", "with a base_url its name alone"),
    ({"base_url": "http://localhost:1/v1"}, "base_url", "the agent's model is the runbook"),
    ({"model": "runbook", "base_url": "http://localhost:1/v1"}, "base_url", "is the runbook"),
    ({"api_key_file": "key"}, "api_key_file", "is the runbook"),
    ({"model": "qwen3", "base_url": "localhost:1"}, "base_url", "scheme"),
    ({"model": "/qwen3", "base_url": "http://localhost:1/v1"}, "model", "PROVIDER/MODEL"),
    ({"model": "nowhere/qwen3"}, "", "nowhere"),
    ({"role": "nobody"}, "role", "there is no role"),
)


async def test_what_could_not_work_is_refused_and_the_runbook_needs_nothing(
    made: tuple[Raw, ScriptedModel],
) -> None:
    raw, _ = made
    for options, field, said in WRONG:
        refused = await raw.call("Agents.Create", name="new", **options)
        assert said in refused["parameters"]["message"], options
        assert refused["parameters"]["field"] == field
        assert code(await raw.call("Agents.Get", name="new")) == "agent_not_found"
    right: tuple[dict[str, Any], ...] = ({}, {"model": "runbook"}, {"role": "default"})
    for number, options in enumerate(right):
        agent = (await raw.call("Agents.Create", name=f"a{number}", **options))["parameters"]["agent"]
        assert (agent["model"], agent["state"]) == ("runbook", "running")
