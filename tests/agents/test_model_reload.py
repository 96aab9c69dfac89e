"""Model settings that change while the daemon runs: a reload has agents take them, when no turn runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from lightagentd.agents.agent import Agent
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import ConfigError
from lightagentd.host.paths import Paths
from lightagentd.llm.recording import Recorder
from tests.agents.scripted import ME, until, watch
from tests.conftest import write
from tests.scripted_model import ScriptedModel, Stream, say


def configure(paths: Paths, base_url: str, more: str = "") -> None:
    text = f'[models.providers.local]\nbase_url = "{base_url}"\n{more}'
    write(paths.config / "lightagentd.toml", text)


@contextlib.asynccontextmanager
async def running(paths: Paths, base_url: str, more: str = "") -> AsyncIterator[tuple[Daemon, Agent]]:
    """A daemon whose agent `test` asks the provider `local`."""
    write(paths.config / "agent" / "test" / "AGENT.md", "---\nmodel: local/m\n---\nBe brief.\n")
    configure(paths, base_url, more)
    async with Daemon(paths) as daemon:
        yield daemon, daemon.registry.get("test")


async def ask(daemon: Daemon, agent: Agent) -> str:
    """How a turn in a new session ends."""
    made = await daemon.service.sessions.create(ME, agent.name, "")
    events = await watch(await agent.prompt(agent.sessions[made.id], "say it"))
    return str(events[-1].get("text") or events[-1].get("code"))


async def test_another_address_is_taken_at_a_reload_and_the_old_connections_go(paths: Paths) -> None:
    async with (
        ScriptedModel([say("one")]) as first,
        ScriptedModel([say("two")]) as second,
        running(paths, first.base_url) as (daemon, agent),
    ):
        assert await ask(daemon, agent) == "one"
        [client] = agent.running_parts().clients
        configure(paths, second.base_url)
        assert await ask(daemon, agent) == "one"
        done = await daemon.reload()
        assert "restarted agent test" in done.applied
        assert done.needs_restart == []
        assert vars(vars(client)["_endpoint"])["_http"] is None
        assert await ask(daemon, agent) == "two"
        assert (await daemon.reload()).applied == [done.applied[0]]


async def test_a_key_that_was_exchanged_is_taken_at_a_reload(paths: Paths) -> None:
    key = write(paths.config / "key", "first-secret-key")
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url, f'api_key_file = "{key}"\n') as (daemon, agent),
    ):
        await ask(daemon, agent)
        key.write_text("second-secret-key")
        assert "restarted agent test" in (await daemon.reload()).applied
        await ask(daemon, agent)
        sent = [request.headers["authorization"] for request in model.requests]
        assert sent == ["Bearer first-secret-key", "Bearer second-secret-key"]
        told = daemon.history.redactor.text("first-secret-key second-secret-key")
        assert "secret-key" not in told


async def test_a_turn_that_runs_keeps_its_model_and_the_reload_says_so(paths: Paths) -> None:
    async with (
        ScriptedModel([Stream(pieces=[], hang=True)]) as first,
        ScriptedModel([say("two")]) as second,
        running(paths, first.base_url) as (daemon, agent),
    ):
        asking = asyncio.create_task(ask(daemon, agent))
        await until(lambda: first.requests)
        configure(paths, second.base_url)
        done = await daemon.reload()
        assert "agent test takes its new model settings when it is restarted (a turn runs)" in done.applied
        assert not asking.done()
        for session in agent.sessions.values():
            agent.cancel(session)
        assert await asking == "cancelled"
        assert "restarted agent test" in (await daemon.reload()).applied
        assert await ask(daemon, agent) == "two"


async def test_models_that_cannot_be_made_any_more_change_nothing_and_are_told(paths: Paths) -> None:
    key = write(paths.config / "key", "first-secret-key")
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url, f'api_key_file = "{key}"\n') as (daemon, agent),
    ):
        key.unlink()
        done = await daemon.reload()
        assert done.applied[1:] == []
        [problem] = [one for one in done.problems if "keeps the models that it has" in one]
        assert str(key) in problem
        assert await ask(daemon, agent) == "x"
        key.write_text("first-secret-key")
        assert "keeps the models" not in "".join((await daemon.reload()).problems)


async def test_a_provider_that_cannot_be_one_changes_nothing(paths: Paths) -> None:
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url) as (daemon, agent),
    ):
        write(paths.config / "lightagentd.toml", '[models.providers.local]\nkind = "openai"\n')
        with pytest.raises(ConfigError, match="base_url: it is missing"):
            await daemon.reload()
        assert await ask(daemon, agent) == "x"


async def test_another_default_is_for_the_agents_that_name_no_model(paths: Paths) -> None:
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url) as (daemon, agent),
    ):
        own = agent.running_parts().clients
        write(paths.config / "agent" / "plain" / "AGENT.md", "---\n---\nBe brief.\n")
        configure(paths, model.base_url, '[models]\ndefault = "local/other"\n')
        done = await daemon.reload()
        assert "restarted agent ops" in done.applied
        assert "restarted agent test" not in done.applied
        assert agent.running_parts().clients is own
        plain = daemon.registry.get("plain")
        assert [client.name for client in plain.running_parts().clients] == ["local/other"]
        assert await ask(daemon, plain) == "x"


async def test_what_stands_behind_every_agents_own_models_is_configured(paths: Paths) -> None:
    toml = '[models]\nfallback = ["local/spare", "local/m", "runbook"]\n'
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url, toml) as (daemon, agent),
    ):
        parts = agent.running_parts()
        assert [client.name for client in parts.clients] == ["local/m"]
        assert [client.name for client in parts.last_resort] == ["local/spare", "runbook"]
        runbook = daemon.registry.get("ops").running_parts()
        assert [client.name for client in runbook.last_resort] == ["local/spare", "local/m"]


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        ("", "is not configured"),
        (
            '[models.providers.gone]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_file = "/no/key"\n',
            "/no/key",
        ),
        ('[models.providers.gone]\nkind = "no_such_module:Client"\n', "no_such_module"),
    ],
)
async def test_what_cannot_stand_behind_keeps_no_agent_from_its_work(
    paths: Paths, provider: str, why: str
) -> None:
    toml = f'[models]\nfallback = ["gone/x", "runbook"]\n{provider}'
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url, toml) as (daemon, agent),
    ):
        assert [client.name for client in agent.running_parts().last_resort] == ["runbook"]
        assert await ask(daemon, agent) == "x"
        told = [problem for problem in daemon.problems() if "falls back to gone/x" in problem]
        assert len(told) == 1
        assert why in told[0]
        configure(paths, model.base_url, '[models]\nfallback = ["runbook"]\n')
        await daemon.reload()
        assert not any("gone" in problem for problem in daemon.problems())


async def test_a_recording_that_cannot_be_written_is_in_the_status(paths: Paths) -> None:
    write(paths.config / "no-folder", "")
    toml = f'[models]\nrecord = "{paths.config}/no-folder"\n'
    async with (
        ScriptedModel([say("x")]) as model,
        running(paths, model.base_url, toml) as (daemon, agent),
    ):
        assert await ask(daemon, agent) == "x"  # it is no reason to fail
        recorder = agent.running_parts().clients[0]
        assert isinstance(recorder, Recorder)
        await recorder.settle()
        assert len([problem for problem in daemon.problems() if "are not recorded in" in problem]) == 1
