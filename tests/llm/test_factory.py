"""Which client a model string gets, with whose address and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.config import Models, Provider
from lightagentd.errors import ConfigError
from lightagentd.events.redaction import Redactor
from lightagentd.llm.factory import OPENAI_URL, make_client
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.protocol import Message, ModelClient, Request
from lightagentd.llm.runbook.client import RunbookClient
from lightagentd.skills import SkillCatalog
from tests.scripted_model import ScriptedModel, say


@pytest.fixture(autouse=True)
def no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def make(model: str, models: Models | None = None, **more: Any) -> ModelClient:
    return make_client(model, models or Models(), catalog=SkillCatalog, redactor=Redactor(), **more)


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


async def test_a_providers_key_and_headers_never_go_to_an_agents_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "env-secret")
    corp = Provider(base_url="http://127.0.0.1:1/v1", api_key_env="OPENAI_API_KEY", headers={"X-Team": "ops"})
    async with ScriptedModel([say("x")]) as model:
        for name in ("corp/m", "openai/m", "unknown/m"):
            client = make(name, Models(providers={"corp": corp}), base_url=model.base_url)
            headers = await request_of(client, model)
            assert "authorization" not in headers
            assert "x-team" not in headers


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
        assert client._url == f"{OPENAI_URL}/chat/completions"
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        assert (await request_of(make("openai/m"), model))["authorization"] == "Bearer env-secret"


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


def test_a_key_becomes_known_to_the_redactor(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("very-secret-key")
    redactor = Redactor()
    make_client(
        "x/m", Models(), catalog=SkillCatalog, redactor=redactor, base_url="http://h/v1", api_key_file=key
    )
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
