"""The operations on models: what is shown of them, who may test one, and what a test and a refresh leave."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from lightagentd import api, errors
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.llm import local
from lightagentd.policy.operation import Operation
from tests.agents.scripted import ME, Scripted, scripted
from tests.conftest import write
from tests.llm.test_local import serving
from tests.scripted_model import DONE, Answer, Fault, Stream, call, chunk, say

STRANGER = Caller(uid=os.getuid() + 4711, gid=1, pid=1)
REPORT = call("report_word", {"word": "lantern", "number": 7}, text="Light is fast.")
REFRESHED = {"openai": {"name": "OpenAI", "models": {"x": {"name": "X", "limit": {"context": 64_000}}}}}
TOML = """
[models]
default = "openai/x"
[models.providers.deepseek]
base_url = "http://127.0.0.1:9/v1"
api_key_env = "LIGHTAGENT_TEST_NO_SUCH_KEY"
[models.providers.work]
base_url = "http://127.0.0.1:9/v1"
context_tokens = 32000
[models.known."work/mine"]
context_tokens = 16000
tools = false
[models.prices."openai/x"]
prompt = 100.0
completion = 1000.0
"""


class Rules:
    """Everybody may inspect and prompt, but not the agents in `hidden`."""

    def __init__(self, *hidden: str) -> None:
        self.hidden = hidden

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        del caller, ask
        return operation in (Operation.INSPECT, Operation.PROMPT) and agent not in self.hidden


@pytest.fixture
async def rig(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    """A daemon with the agent `test`, and one more, whose model has no key."""
    monkeypatch.setattr(local, "SIGNS", ())  # what runs on the machine of the test is not its business
    write(paths.config / "agent" / "deep" / "AGENT.md", "---\nmodel: deepseek/deepseek-chat\n---\nHi.\n")
    async with scripted(paths, [REPORT], toml=TOML) as running:
        running.daemon.authority._deciders = (Rules(),)
        yield running


def answers(rig: Scripted, *script: Answer) -> None:
    """Have the model answer so from now on; the last answer is repeated."""
    rig.model.script = list(script)
    rig.model.requests.clear()


def checks(report: api.ModelTest) -> dict[str, bool | None]:
    return {check.name: check.seen for check in report.checks}


async def listed(rig: Scripted, caller: Caller = ME, provider: str = "", all_: bool = False) -> list[str]:
    found = await rig.daemon.service.models.listed(caller, provider=provider, all_=all_)
    return [each.model for each in found]


# What there is


async def test_the_models_in_use_and_whether_they_can_be_used(rig: Scripted) -> None:
    found = {each.model: each for each in await rig.daemon.service.models.listed(ME, provider="", all_=False)}
    assert found["openai/x"].state == "ready"
    assert found["openai/x"].default
    assert "test" in found["openai/x"].agents
    assert found["openai/x"].price == api.ModelPrice(
        prompt=100.0, completion=1000.0, cached=None, cache_write=None, origin="configuration"
    )
    deep = found["deepseek/deepseek-chat"]
    assert (deep.state, deep.agents, deep.default) == ("unusable", ["deep"], False)
    assert "LIGHTAGENT_TEST_NO_SUCH_KEY" in deep.suggestion
    assert deep.context_tokens
    assert deep.facts_from == "shipped"
    assert found["runbook"].state == "ready"


async def test_an_agent_that_may_not_be_seen_does_not_show_its_model(rig: Scripted) -> None:
    rig.daemon.authority._deciders = (Rules("deep"),)
    assert "deepseek/deepseek-chat" not in await listed(rig, STRANGER)
    assert "deepseek/deepseek-chat" in await listed(rig)


async def test_the_known_models_of_a_provider(rig: Scripted) -> None:
    claude = await rig.daemon.service.models.listed(ME, provider="anthropic", all_=False)
    assert {each.state for each in claude} == {"known"}
    assert all(each.model.startswith("anthropic/claude-") for each in claude)
    assert await listed(rig, provider="work") == ["work/mine"]
    every = await listed(rig, all_=True)
    assert {"work/mine", "deepseek/deepseek-chat", "openai/x"} <= {*every}
    with pytest.raises(errors.NotFound, match="nobody") as failed:
        await listed(rig, provider="nobody")
    assert "anthropic" in failed.value.suggestion


async def test_the_providers_and_whether_they_have_a_key(rig: Scripted) -> None:
    found = {each.name: each for each in await rig.daemon.service.models.providers(ME)}
    assert (found["work"].state, found["work"].key) == ("ready", "not needed")
    assert (found["deepseek"].state, found["deepseek"].key) == ("unusable", "missing")
    assert found["deepseek"].known_models >= 2


async def test_one_model_with_where_its_facts_are_from(rig: Scripted) -> None:
    service = rig.daemon.service
    mine = await service.models.show(ME, "work/mine")
    assert (mine.tools, mine.context_from, mine.facts_from) == (False, "configuration", "configuration")
    shipped = await service.models.show(ME, "anthropic/claude-sonnet-4-5")
    assert (shipped.state, shipped.context_from) == ("known", "shipped")
    for model in ("openai/no-such", "nobody/x", "", "/", "anthropic"):
        with pytest.raises(errors.NotFound) as failed:
            await service.models.show(ME, model)
        assert "lactl models list" in failed.value.suggestion


async def test_no_answer_has_a_key(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTAGENT_TEST_KEY", "sk-verysecret-0123456789abcdef")
    toml = TOML.replace("LIGHTAGENT_TEST_NO_SUCH_KEY", "LIGHTAGENT_TEST_KEY")
    async with scripted(paths, [REPORT], toml=toml) as rig, AsyncClient(paths.socket) as client:
        for method, given in (
            ("Models.List", {"all": True}),
            ("Models.Providers", {}),
            ("Models.Show", {"model": "deepseek/deepseek-chat"}),
            ("Models.Test", {"agent": "test"}),
        ):
            said = json.dumps(await client.call(method, **given))
            assert "verysecret" not in said
        providers = (await client.call("Models.Providers"))["providers"]
        assert {each["name"]: each["key"] for each in providers}["deepseek"] == "present"
        assert rig.model.requests


# Tests


async def test_a_call_with_a_tool_is_made_once_and_reported(rig: Scripted) -> None:
    text = [chunk({"content": word}) for word in ("Light ", "is ", "fast.")]
    thought = chunk({"reasoning_content": "They want a sentence."})
    last = (
        b"data: "
        + json.dumps(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 100,
                    "completion_tokens": 20,
                    "prompt_tokens_details": {"cached_tokens": 64},
                },
            }
        ).encode()
    )
    function = {"name": "report_word", "arguments": '{"word": "lantern", "number": 7}'}
    called = chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
    pieces = [thought, *text, called, chunk({}, "tool_calls"), last + b"\n\n", DONE]
    answers(rig, Stream(pieces=pieces))
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    assert len(rig.model.requests) == 1
    assert rig.model.requests[0].body["tools"][0]["function"]["name"] == "report_word"
    assert checks(report) == {
        "reachable": True,
        "streaming": True,
        "tool call": True,
        "usage": True,
        "cached": True,
        "reasoning": True,
        "finish": True,
        "window": None,
        "price": True,
    }
    assert (report.model, report.agent, report.text) == ("openai/x", "test", "Light is fast.")
    assert (report.prompt_tokens, report.completion_tokens, report.cached_tokens) == (100, 20, 64)
    assert report.cost == pytest.approx((100 * 100 + 20 * 1000) / 1e6)
    assert report.endpoint.startswith("http://127.0.0.1:")


async def test_a_test_is_counted_and_stored_like_any_call(rig: Scripted) -> None:
    service = rig.daemon.service
    await service.models.test(ME, model="", agent="test")
    (owner,) = await service.usage.get(ME, "owner", str(ME.uid))
    assert (owner.steps, owner.total_tokens, owner.turns) == (1, 15, 0)
    (agent,) = await service.usage.get(ME, "agent", "test")
    assert agent.steps == 1
    (event,) = rig.daemon.history.queries.select(Filter(topic="agent.llm_response"), limit=10)
    assert (event.agent, event.owner, event.caller) == ("test", ME.uid, ME.uid)
    assert event.data is not None
    assert event.data["prompt_tokens"] == 10


async def test_a_used_up_budget_refuses_a_test_before_it_is_made(paths: Paths) -> None:
    async with scripted(paths, [REPORT], toml="[budgets.owner_day]\nsteps = 1\n") as rig:
        await rig.daemon.service.models.test(ME, model="", agent="test")
        with pytest.raises(errors.BudgetExceeded):
            await rig.daemon.service.models.test(ME, model="", agent="test")
        assert len(rig.model.requests) == 1


@pytest.mark.parametrize(
    ("script", "seen", "said"),
    [
        ([say("I ", "cannot.")], False, "called nothing"),
        ([call("rm_rf", {"word": "lantern"})], False, "'rm_rf'|rm_rf"),
        ([call("report_word", "{not json")], False, "not JSON"),
        ([call("report_word", {"word": "lamp", "number": 7})], False, "not those"),
    ],
)
async def test_what_a_model_does_not_do_is_said(
    rig: Scripted, script: Sequence[Answer], seen: bool, said: str
) -> None:
    answers(rig, *script)
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    (check,) = [check for check in report.checks if check.name == "tool call"]
    assert check.seen is seen
    assert any(part in check.detail for part in said.split("|"))
    assert len(rig.model.requests) == 1


async def test_an_endpoint_that_counts_nothing_is_told_so(rig: Scripted) -> None:
    answers(rig, Stream(pieces=[chunk({"content": "Hi."}), chunk({}, "stop"), DONE]))
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    assert checks(report)["usage"] is False
    assert report.cost is None


BAD_KEY = Fault(status=401, body=b'{"error": {"message": "Incorrect API key provided"}}')
NO_MODEL = Fault(status=404, body=b'{"error": {"message": "The model x does not exist"}}')
DOWN = Fault(status=503, body=b'{"error": {"message": "overloaded"}}')
PORTAL = Fault(status=200, body=b"<html><title>Sign in</title></html>", content_type="text/html")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (BAD_KEY, "model_key_refused"),
        (NO_MODEL, "model_not_found"),
        (DOWN, "model_overloaded"),
        (PORTAL, "model_garbled"),
    ],
)
async def test_a_broken_endpoint_is_an_error_after_one_request(
    rig: Scripted, fault: Fault, code: str
) -> None:
    answers(rig, fault)
    with pytest.raises(errors.ModelError) as failed:
        await rig.daemon.service.models.test(ME, model="", agent="test")
    assert failed.value.code == code
    assert failed.value.suggestion
    assert len(rig.model.requests) == 1
    answers(rig, REPORT)
    assert checks(await rig.daemon.service.models.test(ME, model="", agent="test"))["tool call"]


async def test_a_model_that_nothing_listens_for(rig: Scripted) -> None:
    with pytest.raises(errors.ModelUnreachable):
        await rig.daemon.service.models.test(ME, model="work/mine", agent="")


async def test_what_cannot_be_used_is_not_called(rig: Scripted) -> None:
    service = rig.daemon.service
    for given, kind in (
        ({"model": "deepseek/deepseek-chat"}, errors.ConfigError),
        ({"model": "nobody/x"}, errors.ConfigError),
        ({"model": "plain"}, errors.ConfigError),
        ({"model": "runbook"}, errors.InvalidArgument),
        ({"agent": "no-such"}, errors.AgentNotFound),
        ({"model": "openai/x", "agent": "test"}, errors.InvalidArgument),
    ):
        with pytest.raises(kind) as failed:
            await service.models.test(ME, **{"model": "", "agent": "", **given})
        assert failed.value.suggestion
    assert not rig.model.requests


async def test_a_user_tests_the_models_of_agents_that_he_may_prompt_and_no_others(rig: Scripted) -> None:
    service = rig.daemon.service
    report = await service.models.test(STRANGER, model="openai/x", agent="")
    assert report.agent in ("ops", "test")
    with pytest.raises(errors.PermissionDenied):
        await service.models.test(STRANGER, model="work/mine", agent="")
    rig.daemon.authority._deciders = (Rules("test", "ops"),)
    for given in ({"agent": "test"}, {"model": "openai/x"}):
        with pytest.raises(errors.PermissionDenied):
            await service.models.test(STRANGER, **{"model": "", "agent": "", **given})


async def test_a_test_in_an_emergency_stop_is_refused(rig: Scripted) -> None:
    await rig.daemon.service.safety.panic(ME, "test")
    with pytest.raises(errors.Panicked):
        await rig.daemon.service.models.test(ME, model="", agent="test")
    assert not rig.model.requests


async def test_an_endpoint_that_is_left_alone_is_shown_and_a_test_that_works_ends_that(rig: Scripted) -> None:
    client = rig.agent.running_parts().clients[0]
    circuit = rig.daemon.registry.shared.circuits.of(client)
    assert circuit is not None
    for number in range(6):
        circuit.failed(errors.ModelUnreachable("It is away."), client.name, f"trace_{number % 2}")
    (model,) = [
        one for one in await rig.daemon.service.models.listed(ME, provider="", all_=False) if one.default
    ]
    assert model.state == "paused"
    assert "could not be reached" in model.problem
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    assert checks(report)["reachable"]
    assert circuit.state.state == "closed"


async def test_a_model_that_takes_no_functions_is_asked_in_words(rig: Scripted) -> None:
    refused = Fault(status=400, body=b'{"error": {"message": "registry: x does not support tools"}}')
    words = say('{"tool": "report", "action": "word", "args": {"word": "lantern", "number": 7}}')
    answers(rig, refused, words)
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    assert len(rig.model.requests) == 2
    assert checks(report)["request"] is False
    assert checks(report)["tool call"] is True
    assert "in words" in {check.name: check.detail for check in report.checks}["request"]


async def test_a_call_that_is_written_as_text_counts(rig: Scripted) -> None:
    answers(rig, say('{"tool": "report", "action": "word", "args": {"word": "lantern", "number": 7}}'))
    report = await rig.daemon.service.models.test(ME, model="", agent="test")
    (check,) = [check for check in report.checks if check.name == "tool call"]
    assert check.seen
    assert "JSON in its text" in check.detail


async def test_a_model_with_a_known_price_costs_without_any_configuration(paths: Paths) -> None:
    toml = '[models]\ndefault = "openai/gpt-4o"\n'
    async with scripted(paths, [REPORT], toml=toml) as rig:
        front = f"---\nmodel: openai/gpt-4o\nbase_url: {rig.model.base_url}\n---\nBe brief.\n"
        write(paths.config / "agent" / "priced" / "AGENT.md", front)
        await rig.daemon.service.manager.reload(ME)
        report = await rig.daemon.service.models.test(ME, model="", agent="priced")
        assert report.cost == pytest.approx((10 * 2.5 + 5 * 10) / 1e6)
        (used,) = await rig.daemon.service.usage.get(ME, "agent", "priced")
        assert used.cost == pytest.approx((10 * 2.5 + 5 * 10) / 1e6)
        assert used.steps_without_price == 0
        assert {check.name: check.detail for check in report.checks}["window"].endswith("from: shipped")


# The table


async def test_a_refreshed_table_counts_at_once_and_after_a_restart(rig: Scripted, paths: Paths) -> None:
    service = rig.daemon.service
    assert (await service.models.show(ME, "openai/x")).context_tokens is None
    refreshed = await service.models.refresh(ME, json.dumps(REFRESHED))
    assert (refreshed.providers, refreshed.models) == (1, 1)
    assert refreshed.changes == ["openai/x: the window is 64,000 tokens now, and was not known."]
    shown = await service.models.show(ME, "openai/x")
    assert (shown.context_tokens, shown.context_from, shown.name) == (64_000, "refreshed", "X")
    (event,) = [
        event
        for event in rig.daemon.history.queries.select(Filter(topic="daemon.state"), limit=100)
        if event.type == "models_refreshed"
    ]
    assert event.caller == ME.uid
    assert event.data is not None
    assert (event.data["models"], event.data["providers"], event.data["by"]) == (1, 1, ME.uid)
    await rig.daemon.close()
    async with scripted(paths, [REPORT], toml=TOML) as again:
        assert (await again.daemon.service.models.show(ME, "openai/x")).context_tokens == 64_000


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{}",
        "[]",
        "<html>",
        '{"openai": {"models": {"x": {"limit": {"context": -1}}}}}',
        '{"openai": {"models": {"x": {"cost": {"input": NaN, "output": 1}}}}}',
        '{"openai": {"models": {"two words": {}}}}',
        " " * (9 << 20),
    ],
)
async def test_what_is_no_table_changes_nothing(rig: Scripted, paths: Paths, data: str) -> None:
    with pytest.raises(errors.InvalidArgument) as failed:
        await rig.daemon.service.models.refresh(ME, data)
    assert failed.value.suggestion
    assert not (paths.state / "models.json").exists()


async def test_only_administrators_refresh(rig: Scripted, paths: Paths) -> None:
    with pytest.raises(errors.PermissionDenied):
        await rig.daemon.service.models.refresh(STRANGER, json.dumps(REFRESHED))
    assert not (paths.state / "models.json").exists()


async def test_a_refreshed_table_cannot_send_a_key_anywhere(rig: Scripted, paths: Paths) -> None:
    evil: dict[str, Any] = {
        "deepseek": {
            "api": "http://192.0.2.1/v1",
            "env": ["HOME"],
            "models": {"deepseek-chat": {"provider": {"api": "http://192.0.2.1/v1"}}},
        }
    }
    await rig.daemon.service.models.refresh(ME, json.dumps(evil))
    assert "192.0.2.1" not in (paths.state / "models.json").read_text()
    found = {each.name: each for each in await rig.daemon.service.models.providers(ME)}
    assert found["deepseek"].base_url == "http://127.0.0.1:9/v1"


async def test_a_broken_stored_table_is_a_problem_and_the_daemon_runs(paths: Paths) -> None:
    paths.state.mkdir(parents=True, exist_ok=True)
    (paths.state / "models.json").write_text("{")
    async with scripted(paths, [REPORT], toml=TOML) as rig:
        status = await rig.daemon.service.manager.status(ME)
        assert any("models.json" in problem for problem in status.problems)
        shown = await rig.daemon.service.models.show(ME, "anthropic/claude-sonnet-4-5")
        assert shown.facts_from == "shipped"
        await rig.daemon.service.models.refresh(ME, json.dumps(REFRESHED))
        status = await rig.daemon.service.manager.status(ME)
        assert not any("models.json" in problem for problem in status.problems)


async def test_servers_on_this_machine_are_offered_and_not_used(
    rig: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found() -> list[local.LocalServer]:
        return [local.LocalServer(name="ollama", base_url="http://127.0.0.1:11434/v1", models=("qwen3:8b",))]

    monkeypatch.setattr("lightagentd.control.operations.models.found_locally", found)
    providers = await rig.daemon.service.models.providers(ME)
    (offered,) = [each for each in providers if each.state == "found"]
    assert (offered.name, offered.models) == ("ollama", ["qwen3:8b"])
    assert not any(model.startswith("ollama/") for model in await listed(rig))
    shown = await rig.daemon.service.models.show(ME, "ollama/qwen3:8b")
    assert shown.price is not None
    assert (shown.price.prompt, shown.price.origin) == (0.0, "local")


async def test_servers_at_named_addresses_are_offered_or_told_to_be_away(paths: Paths) -> None:
    answers = {"/api/version": {"version": "0.12.1"}, "/api/tags": {"models": [{"name": "qwen3:8b"}]}}
    async with serving(answers) as url:
        look_at = f'[models]\nlook_at = ["{url}", "http://127.0.0.1:1"]\n'
        async with scripted(paths, [REPORT], toml=look_at) as rig:
            found = {each.base_url: each for each in await rig.daemon.service.models.providers(ME)}
    offered, away = found[f"{url}/v1"], found["http://127.0.0.1:1/v1"]
    assert (offered.state, offered.models) == ("found", ["qwen3:8b"])
    assert offered.suggestion.startswith("Add [models.providers.127-0-0-1]")
    assert (away.state, "127.0.0.1:1 (models.look_at)" in away.problem) == ("unreachable", True)
