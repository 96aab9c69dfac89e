"""The model of an agent that is set at run time: what it asks, and what outlives a restart."""

from __future__ import annotations

import asyncio

import pytest

from lightagentd import api, errors
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, until, watch
from tests.conftest import write
from tests.scripted_model import ScriptedModel, Stream, say

KEY = "key-of-the-definition-4711"


async def ask(daemon: Daemon, name: str = "test") -> str:
    """How a turn in a new session ends."""
    agent = daemon.registry.get(name)
    made = await daemon.service.sessions.create(ME, name, "")
    events = await watch(await agent.prompt(agent.sessions[made.id], "say it"))
    return str(events[-1].get("text") or events[-1].get("code"))


async def set_model(daemon: Daemon, model: str, name: str = "test") -> api.Agent:
    return await daemon.service.agents.set(ME, name, model=model)


def define(paths: Paths, front: str) -> None:
    write(paths.config / "agent" / "test" / "AGENT.md", f"---\n{front}---\nBe brief.\n")


async def test_it_goes_before_the_definition_and_outlives_restarts(paths: Paths) -> None:
    define(paths, "model: local/own\n")
    definition = (paths.config / "agent" / "test" / "AGENT.md").read_bytes()
    async with ScriptedModel([say("hi")]) as model:
        write(paths.config / "lightagentd.toml", f'[models.providers.local]\nbase_url = "{model.base_url}"\n')
        async with Daemon(paths) as daemon:
            found = await set_model(daemon, "local/set")
            assert (found.model, found.model_from, found.state) == ("local/set", "set", "running")
            assert (await set_model(daemon, "local/set", "ops")).model_from == "set"  # it is shipped
            assert await ask(daemon) == "hi"
            assert (await daemon.reload()).applied[1:] == []
        async with Daemon(paths) as daemon:
            assert await ask(daemon) == "hi"
            assert [one.body["model"] for one in model.requests] == ["set", "set"]
            found = await set_model(daemon, "default")
            assert (found.model, found.model_from) == ("local/own", "definition")
            await ask(daemon)
            assert model.requests[-1].body["model"] == "own"
            found = await set_model(daemon, "", "ops")
            assert (found.model, found.model_from) == ("runbook", "configuration")
            assert daemon.history.queries.state("agents") == {}
    assert (paths.config / "agent" / "test" / "AGENT.md").read_bytes() == definition


async def test_a_turn_that_runs_keeps_its_model_and_the_next_has_the_new_one(paths: Paths) -> None:
    define(paths, "model: local/own\n")
    async with ScriptedModel([Stream(pieces=[], hang=True), say("two")]) as model:
        write(paths.config / "lightagentd.toml", f'[models.providers.local]\nbase_url = "{model.base_url}"\n')
        async with Daemon(paths) as daemon:
            asking = asyncio.create_task(ask(daemon))
            await until(lambda: model.requests)
            await set_model(daemon, "local/set")
            assert await ask(daemon) == "two"
            assert not asking.done()
            agent = daemon.registry.get("test")
            for session in agent.sessions.values():
                agent.cancel(session)
            assert await asking == "cancelled"
            assert [one.body["model"] for one in model.requests] == ["own", "set"]


async def test_the_endpoint_of_a_definition_is_for_its_own_provider_alone(paths: Paths) -> None:
    key = write(paths.config / "key", KEY)
    async with ScriptedModel([say("a")]) as own, ScriptedModel([say("b")]) as other:
        define(paths, f"model: qwen\nbase_url: {own.base_url}\napi_key_file: {key}\n")
        write(paths.config / "lightagentd.toml", f'[models.providers.local]\nbase_url = "{other.base_url}"\n')
        async with Daemon(paths) as daemon:
            assert (await set_model(daemon, "local/m")).model == "local/m"
            assert await ask(daemon) == "b"
            assert KEY not in str([dict(one.headers) for one in other.requests])
            assert (await set_model(daemon, "other")).model == "endpoint/other"
            assert await ask(daemon) == "a"
            assert own.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_what_cannot_be_set_changes_nothing(paths: Paths) -> None:
    define(paths, "model: runbook\n")
    write(paths.config / "agent" / "crooked" / "AGENT.md", "---\nmodle: x\n---\n")
    async with Daemon(paths) as daemon:
        for name, model, error, why in (
            ("test", "gpt", errors.InvalidArgument, "'gpt' is not a model: write runbook, or PROVIDER/MODEL"),
            ("test", "ollama/b\x1b", errors.InvalidArgument, "not a model"),
            ("test", "ollama/" + "b" * 200, errors.InvalidArgument, "not a model"),
            ("test", "nobody/x", errors.ConfigError, "is not configured"),
            ("nobody", "runbook", errors.AgentNotFound, "no agent 'nobody'"),
            ("crooked", "runbook", errors.AgentBroken, "modle"),
        ):
            with pytest.raises(error, match=why):
                await set_model(daemon, model, name)
        assert (await daemon.service.agents.get(ME, "test")).model_from == "definition"
        assert daemon.history.queries.state("agents") == {}


async def test_a_stopped_agent_stays_stopped_and_one_that_is_deleted_is_forgotten(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        agents = daemon.service.agents
        await agents.create(ME, name="made", model="runbook")
        await agents.stop(ME, "made")
        found = await set_model(daemon, "ollama/x", "made")
        assert (found.model, found.state) == ("ollama/x", "stopped")
        await agents.delete(ME, "made")
        assert (await agents.create(ME, name="made")).model_from == "configuration"
    async with Daemon(paths) as daemon:
        assert (await daemon.service.agents.get(ME, "made")).model == "runbook"


async def test_a_model_that_cannot_be_used_any_more_is_told_with_the_way_back(paths: Paths) -> None:
    config = write(
        paths.config / "lightagentd.toml", '[models.providers.local]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    async with Daemon(paths) as daemon:
        await set_model(daemon, "local/m", "ops")
    config.unlink()
    async with Daemon(paths) as daemon:
        found = await daemon.service.agents.get(ME, "ops")
        assert found.state == "stopped"
        assert "lactl agents set ops --model default" in found.problem
        assert (await set_model(daemon, "default", "ops")).state == "running"
