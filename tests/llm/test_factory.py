"""Which client a model string gets, with whose address and key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.configuration import Config, ModelFacts, Models, Provider
from lightagentd.errors import ConfigError
from lightagentd.llm.environment import VARIABLES, read_environment
from lightagentd.llm.factory import Recipe, client_of, recipe_of
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.in_force import in_force
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.llm.protocol import Message, ModelClient, ModelSettings, Request
from lightagentd.llm.recording import Recorder
from lightagentd.llm.replay import ReplayClient
from lightagentd.llm.runbook.client import RunbookClient
from lightagentd.redaction import Redactor
from lightagentd.skills import SkillCatalog
from tests.scripted_model import ScriptedModel, say


@pytest.fixture(autouse=True)
def no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def whole(models: Models | None = None) -> Models:
    """The models that are in force with the environment of this test."""
    return in_force(Config(models=models or Models()), {}, read_environment(os.environ)).config.models


def make(model: str, models: Models | None = None, **more: Any) -> ModelClient:
    return client_of(recipe_of(model, whole(models), **more), catalog=SkillCatalog, redactor=Redactor())


def settings_of(model: str, models: Models | None = None, **more: Any) -> ModelSettings:
    settings = recipe_of(model, whole(models), **more).settings
    assert settings is not None
    return settings


def url_of(client: ModelClient) -> str:
    """Where the requests of a client go to."""
    return str(vars(vars(client)["_endpoint"])["_url"])


async def request_of(client: ModelClient, model: ScriptedModel) -> dict[str, str]:
    """The headers that the endpoint got."""
    asked = Request(system="", messages=[Message(role="user", content="x")])
    async for _ in client.stream(asked):
        pass
    await client.close()
    return model.requests[-1].headers


def test_the_runbook_needs_nothing() -> None:
    client = make("runbook")
    assert isinstance(client, RunbookClient)
    assert client.name == "runbook"


async def test_a_configured_provider_gives_address_key_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORP_KEY", "corp-secret")
    async with ScriptedModel([say("x")]) as model:
        corp = Provider(base_url=model.base_url, api_key_env="CORP_KEY", headers={"X-Team": "ops"})
        client = make("corp/some/model", Models(providers={"corp": corp}))
        headers = await request_of(client, model)
        assert headers["authorization"] == "Bearer corp-secret"
        assert headers["x-team"] == "ops"
        assert model.requests[0].body["model"] == "some/model"
        assert client.name == "corp/some/model"


def test_everything_that_a_provider_says_reaches_its_clients(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "base_url": "https://h.example/v1",
        "headers": {"X-Team": "ops"},
        "extra_body": {"temperature": 0.5},
        "connect_timeout_s": 1.5,
        "idle_timeout_s": 2.5,
        "total_timeout_s": 3.5,
        "max_retries": 7,
        "max_retry_s": 8.5,
        "proxy": "http://proxy.example:3128",
        "ca_file": tmp_path / "ca.pem",
        "client_cert": tmp_path / "cert.pem",
        "client_key": tmp_path / "key.pem",
        "max_output_tokens": 900,
        "native_tools": False,
        "thinking_tokens": 1000,
        "context_tokens": 9000,
    }
    left = {"kind", "api_key_file", "api_key_env", "recording"}
    assert set(Provider.model_fields) - set(said) == left, "a field that this test does not know"
    settings = settings_of("x/m", Models(providers={"x": Provider(**said)}))
    assert {name: getattr(settings, name) for name in said} == said


def test_certificates_may_be_credentials_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    provider = Provider(base_url="https://h.example/v1", client_cert=Path("lightagentd.cert"))
    settings = settings_of("x/m", Models(providers={"x": provider}))
    assert settings.client_cert == Path("/run/credentials/x/lightagentd.cert")


async def test_what_belongs_to_a_provider_never_goes_to_an_agents_own_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "env-secret")
    corp = Provider(
        base_url="http://127.0.0.1:1/v1",
        api_key_env="OPENAI_API_KEY",
        headers={"X-Team": "ops"},
        extra_body={"user": "corp"},
        proxy="http://127.0.0.1:2",
        client_cert=tmp_path / "cert.pem",
        context_tokens=5000,
    )
    models = Models(providers={"corp": corp})
    async with ScriptedModel([say("x")]) as model:
        for name in ("corp/m", "openai/m", "unknown/m"):
            client = make(name, models, base_url=model.base_url)
            headers = await request_of(client, model)
            assert "authorization" not in headers
            assert "x-team" not in headers
            assert "user" not in model.requests[-1].body
    settings = settings_of("corp/m", models, base_url="http://elsewhere.example/v1")
    assert (settings.api_key, settings.proxy, settings.client_cert, settings.context_tokens) == (
        "",
        "",
        None,
        5000,
    )


async def test_an_agents_own_key_file_goes_before_the_providers(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("own-secret\n")
    async with ScriptedModel([say("x")]) as model:
        corp = Models(providers={"corp": Provider(base_url=model.base_url, api_key_env="HOME")})
        headers = await request_of(make("corp/m", corp, api_key_file=key), model)
        assert headers["authorization"] == "Bearer own-secret"
        headers = await request_of(make("x/m", base_url=model.base_url, api_key_file=key), model)
        assert headers["authorization"] == "Bearer own-secret"


async def test_openai_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedModel([say("x")]) as model:
        monkeypatch.setenv("OPENAI_API_KEY", "env-secret")
        client = make("openai/m")
        assert isinstance(client, HttpClient)
        assert url_of(client) == "https://api.openai.com/v1/chat/completions"
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        assert (await request_of(make("openai/m"), model))["authorization"] == "Bearer env-secret"


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions"])
async def test_an_address_may_name_what_is_posted_to(ending: str) -> None:
    async with ScriptedModel([say("x")]) as model:
        provider = Provider(base_url=f"{model.base_url}{ending}")
        await request_of(make("x/m", Models(providers={"x": provider})), model)
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("name", "provider", "url"),
    [
        ("x", {"base_url": "https://h.example/v1"}, "https://h.example/v1/chat/completions"),
        ("x", {"base_url": "https://h.example/v1/responses"}, "https://h.example/v1/responses"),
        (
            "x",
            {"base_url": "https://h.example/v1", "kind": "openai-responses"},
            "https://h.example/v1/responses",
        ),
        ("x", {"base_url": "https://h.example/v1/messages"}, "https://h.example/v1/messages"),
        ("x", {"base_url": "https://h.example", "kind": "anthropic"}, "https://h.example/v1/messages"),
        ("x", {"base_url": "https://api.anthropic.com"}, "https://api.anthropic.com/v1/messages"),
        ("anthropic", {"base_url": "https://gateway.example"}, "https://gateway.example/v1/messages"),
        (
            "x",
            {"base_url": "https://api.deepseek.com/anthropic"},
            "https://api.deepseek.com/anthropic/v1/messages",
        ),
        ("deepseek", {"context_tokens": 9000}, "https://api.deepseek.com/chat/completions"),
        ("qwen", {}, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1/chat/completions"),
    ],
)
def test_the_protocol_is_what_the_configuration_or_the_address_says(
    name: str, provider: dict[str, Any], url: str
) -> None:
    assert url_of(make(f"{name}/m", Models(providers={name: Provider(**provider)}))) == url


def test_a_known_provider_needs_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "deep-secret")
    settings = settings_of("deepseek/deepseek-chat")
    assert (settings.base_url, settings.api_key) == ("https://api.deepseek.com", "deep-secret")
    monkeypatch.setenv("DASHSCOPE_API_KEY", "dash-secret")
    assert settings_of("qwen/qwen-max").api_key == "dash-secret"


@pytest.mark.parametrize(("name", "port"), [("ollama", 11434), ("llamacpp", 8080), ("vllm", 8000)])
def test_a_server_on_this_machine_needs_nothing_when_a_model_string_names_it(name: str, port: int) -> None:
    settings = settings_of(f"{name}/m")
    assert (settings.base_url, settings.api_key) == (f"http://127.0.0.1:{port}/v1", "")


@pytest.mark.parametrize("model", ["openai/m", "corp/m"])
def test_a_provider_that_is_nowhere_configured_is_told_with_what_to_add(model: str) -> None:
    configured = Models(providers={"known": Provider(base_url="http://h/v1")})
    with pytest.raises(ConfigError) as caught:
        make(model, configured)
    provider = model.partition("/")[0]
    assert provider in caught.value.message
    assert f"[models.providers.{provider}]" in caught.value.suggestion
    assert "known" in caught.value.suggestion


@pytest.mark.parametrize("model", ["", "gpt", "/x", "x/"])
def test_what_is_no_model_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="is not a model"):
        make(model, base_url="http://h/v1")


def test_the_embedded_model_has_no_models_below_it() -> None:
    with pytest.raises(ConfigError, match="embedded") as refused:
        make("runbook/x")
    assert "providers" not in refused.value.suggestion, "no provider can be called that"


def test_a_replay_plays_its_folder_and_has_no_address(tmp_path: Path) -> None:
    models = Models(providers={"old": Provider(kind="replay", recording=tmp_path)})
    assert isinstance(make("old/m", models), ReplayClient)
    with pytest.raises(ConfigError, match="replay, which has no address"):
        make("old/m", models, base_url="http://h/v1")


def test_every_client_but_the_runbook_is_recorded_when_that_is_wanted(tmp_path: Path) -> None:
    models = Models(record=tmp_path, providers={"x": Provider(base_url="http://h/v1")})
    recorder = make("x/m", models)
    assert isinstance(recorder, Recorder)
    assert recorder.name == "x/m"
    assert isinstance(make("runbook", models), RunbookClient)


def test_what_is_known_of_a_model_fills_what_nobody_set(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ModelFacts(context_tokens=7000, max_output_tokens=700, tools=False)
    models = Models(
        known={"x/m": facts, "anthropic/m": facts},
        providers={
            "x": Provider(base_url="http://h/v1"),
            "anthropic": Provider(base_url="http://h/v1"),
            "mine": Provider(base_url="https://api.openai.com/v1"),
        },
    )
    metadata = Metadata(models)
    settings = settings_of("x/m", models, metadata=metadata)
    assert (settings.context_tokens, settings.native_tools, settings.max_output_tokens) == (7000, False, None)
    # The Messages API has to be told how long an answer may be.
    assert settings_of("anthropic/m", models, metadata=metadata).max_output_tokens == 700
    assert settings_of("x/other", models, metadata=metadata).context_tokens is None
    # Under another name it is the same endpoint.
    window = metadata.facts("openai/gpt-4.1")
    assert window is not None
    assert window.context_tokens
    assert settings_of("mine/gpt-4.1", models, metadata=metadata).context_tokens == window.context_tokens
    set_by_hand = Provider(base_url="http://h/v1", context_tokens=3000, native_tools=True)
    models = models.model_copy(update={"providers": {"x": set_by_hand}})
    settings = settings_of("x/m", models, metadata=Metadata(models))
    assert (settings.context_tokens, settings.native_tools) == (3000, True)


def test_two_recipes_are_equal_until_anything_of_theirs_changes(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first-key")
    provider = Provider(base_url="http://h/v1", api_key_file=key, headers={"X-Team": "ops"})

    def recipe(**more: Any) -> Recipe:
        return recipe_of("x/m", whole(Models(providers={"x": provider.model_copy(update=more)})))

    first = recipe()
    assert recipe() == first
    assert recipe(idle_timeout_s=1.0) != first
    assert recipe(headers={"X-Team": "dev"}) != first
    key.write_text("second-key")
    assert recipe() != first
    assert "first-key" not in repr(first)
    assert "second-key" not in repr(recipe())


def test_a_proxy_that_cannot_be_spoken_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    settings = ModelSettings(provider="x", model="m", base_url="https://h/v1", proxy="socks5://h:1080")
    with pytest.raises(ConfigError, match="socksio"):
        client_of(Recipe(kind="openai", settings=settings), catalog=SkillCatalog, redactor=Redactor())


def test_a_key_becomes_known_to_the_redactor(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("very-secret-key")
    redactor = Redactor()
    recipe = recipe_of("x/m", Models(), base_url="http://h/v1", api_key_file=key)
    client_of(recipe, catalog=SkillCatalog, redactor=redactor)
    assert "very-secret-key" not in str(redactor.value({"text": "it is very-secret-key, so"}))


def test_a_key_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing-key"):
        make("x/m", base_url="http://h/v1", api_key_file=tmp_path / "missing-key")


@pytest.mark.parametrize("key", ["with\nnewline", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    path = tmp_path / "key"
    path.write_text(key)
    with pytest.raises(ConfigError) as caught:
        make("x/m", base_url="http://h/v1", api_key_file=path)
    assert key not in caught.value.message
