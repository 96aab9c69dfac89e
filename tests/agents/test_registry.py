"""All agents at once: made, changed, stopped and deleted at runtime, and what is wrong with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd.agents.definition import AgentFrontMatter
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    AgentBroken,
    AgentExists,
    AgentNotFound,
    ConfigError,
    Conflict,
    InvalidArgument,
    SessionNotFound,
    ToolNotFound,
)
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, scripted
from tests.conftest import write
from tests.scripted_model import say


def define(paths: Paths, name: str, front: str = "", body: str = "B") -> Path:
    return write(paths.config / "agent" / name / "AGENT.md", f"---\n{front}\n---\n{body}\n")


async def test_an_agent_that_is_broken_stops_no_other(paths: Paths) -> None:
    define(paths, "broken", "colour: red")
    define(paths, "lost", "model: nowhere/x")
    async with Daemon(paths) as daemon:
        registry = daemon.registry
        assert registry.get("ops").state == "running"
        assert registry.get("lost").state == "stopped"
        with pytest.raises(AgentBroken, match="colour"):
            registry.get("broken")
        with pytest.raises(AgentNotFound) as caught:
            registry.get("nobody")
        assert "lost, ops" in caught.value.suggestion
        with pytest.raises(SessionNotFound):
            registry.session("ses_0")
        told = "\n".join(registry.problems())
        assert "broken" in told
        assert "nowhere" in told

        define(paths, "broken")
        define(paths, "lost", "model: runbook")
        await registry.read_content()
        assert sorted(await registry.sync()) == ["started agent broken", "started agent lost"]
        assert registry.problems() == []


async def test_agents_come_go_and_change_with_their_files(paths: Paths) -> None:
    path = define(paths, "one", "description: first")
    async with Daemon(paths) as daemon:
        registry = daemon.registry
        await registry.read_content()
        assert await registry.sync() == []
        define(paths, "one", "description: second")
        define(paths, "two")
        await registry.read_content()
        assert sorted(await registry.sync()) == ["restarted agent one", "started agent two"]
        parts = registry.get("one").running_parts()
        assert parts.definition.front.description == "second"
        await registry.get("two").stop()
        assert await registry.sync() == []
        assert registry.get("two").state == "stopped"
        path.unlink()
        await registry.read_content()
        assert await registry.sync() == ["stopped agent one"]


@pytest.mark.parametrize("link", [True, False])
async def test_a_mask_keeps_a_shipped_agent_off(paths: Paths, link: bool) -> None:
    async with Daemon(paths) as daemon:
        registry, mask = daemon.registry, paths.config / "agent" / "ops"
        with pytest.raises(Conflict) as refused:
            await registry.delete("ops")
        assert f"ln -s /dev/null {mask}" in refused.value.suggestion
        mask.parent.mkdir(exist_ok=True)
        if link:
            mask.symlink_to("/dev/null")
        else:
            mask.touch()
        await registry.read_content()
        assert await registry.sync() == ["stopped agent ops"]
        assert registry.problems() == []
        with pytest.raises(AgentNotFound, match=f"masked: {mask} keeps it off"):
            registry.get("ops")
        with pytest.raises(AgentNotFound, match="masked"):
            await registry.create("ops", AgentFrontMatter(), "")
        mask.unlink()
        await registry.read_content()
        assert await registry.sync() == ["started agent ops"]


async def test_an_agent_is_made_kept_and_deleted_at_runtime(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        agent = await daemon.registry.create("made", AgentFrontMatter(description="d"), "Prompt.")
        assert agent.state == "running"
        with pytest.raises(AgentExists):
            await daemon.registry.create("made", AgentFrontMatter(), "")
    async with Daemon(paths) as daemon:
        registry = daemon.registry
        assert registry.get("made").running_parts().definition.prompt == "Prompt."
        with pytest.raises(Conflict):
            await registry.delete("ops")
        await registry.delete("made")
        with pytest.raises(AgentNotFound):
            registry.get("made")
        assert not list(paths.own_agents.iterdir())


async def test_an_agent_that_could_not_work_is_not_made(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        registry = daemon.registry
        with pytest.raises(InvalidArgument):
            await registry.create("../x", AgentFrontMatter(), "")
        with pytest.raises(ConfigError, match="nowhere"):
            await registry.create("made", AgentFrontMatter(model="nowhere/x"), "")
        with pytest.raises(ConfigError, match="role"):
            await registry.create("made", AgentFrontMatter(role="none"), "")
        assert "made" not in registry.shared.content.definitions.paths
        assert not paths.own_agents.exists() or not list(paths.own_agents.iterdir())


async def test_two_who_make_the_same_agent_at_once_get_one(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        made = await asyncio.gather(
            *(daemon.registry.create("made", AgentFrontMatter(), f"{number}") for number in range(3)),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in made) == ["Agent", "AgentExists", "AgentExists"]


async def test_an_agents_own_address_is_not_that_of_other_providers_fallbacks(paths: Paths) -> None:
    toml = '[models.providers.other]\nbase_url = "http://127.0.0.1:1/v1"\n'
    async with scripted(paths, [say("x")], front="fallback: [openai/small, other/y]", toml=toml) as test:
        clients = test.agent.running_parts().clients
        assert [client.name for client in clients] == ["openai/x", "openai/small", "other/y"]
        urls = [vars(vars(client)["_endpoint"])["_url"] for client in clients]
        assert urls[0] == urls[1] == f"{test.model.base_url}/chat/completions"
        assert urls[2] == "http://127.0.0.1:1/v1/chat/completions"


async def test_a_persons_call_goes_the_way_of_every_call(daemon: Daemon) -> None:
    agent = daemon.registry.get("ops")
    events = [event async for event in call_as_person(agent, ME.uid, "proc", "info", {"pid": 1})]
    assert [event["type"] for event in events] == ["tool_call", "tool_result", "done"]
    refused = [event async for event in call_as_person(agent, ME.uid, "file", "read", {"colour": 1})]
    assert refused[-1]["type"] == "error"
    assert refused[-1]["code"] == "invalid_argument"
    with pytest.raises(ToolNotFound):
        await anext(call_as_person(agent, ME.uid, "proc", "inof", {}))


async def test_a_persons_call_ends_although_nothing_can_be_stored(daemon: Daemon) -> None:
    agent = daemon.registry.get("ops")
    await daemon.history.close()
    events = [event async for event in call_as_person(agent, ME.uid, "proc", "info", {"pid": 1})]
    assert [(event["type"], event["code"]) for event in events] == [("error", "storage_failed")]
