"""What is said of models: the default, keys of the environment, the way through a proxy, local servers."""

from __future__ import annotations

import asyncio

import pytest

from lightagentd.api import Finding
from lightagentd.doctor import files, models
from lightagentd.host.paths import Paths
from lightagentd.llm.local import LocalServer
from tests.conftest import write
from tests.llm.test_local import serving

KEY = "sk-very-secret-key-0123456789"


@pytest.fixture(autouse=True)
def no_servers_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> list[LocalServer]:
    """What runs on the ports of model servers here is nothing that a test can know."""
    found: list[LocalServer] = []

    async def found_locally() -> list[LocalServer]:
        return found

    monkeypatch.setattr(models, "found_locally", found_locally)
    return found


async def told(paths: Paths, name: str, *, in_daemon: bool = True, reach: bool = False) -> Finding:
    """The finding with this name."""
    findings = await models.check(paths, in_daemon=in_daemon, reach=reach)
    return next(finding for finding in findings if finding.name == name)


async def test_a_default_from_the_environment_is_one(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MODEL", "gpt-x")
    found = await told(paths, "default")
    assert (found.status, found.detail) == ("ok", "openai/gpt-x")
    assert (await told(paths, "openai, key")).detail == "there"
    assert "runbook" in (await told(paths, "default", in_daemon=False)).detail  # this is not its environment


@pytest.mark.parametrize(
    ("default", "in_daemon", "status"),
    [
        ("ollama/llama3.2", True, "ok"),
        ("ollama/llama3.2", False, "ok"),
        ("deepseek/deepseek-chat", True, "wrong"),
        ("deepseek/deepseek-chat", False, "not_tried"),
        ("nobody/x", True, "wrong"),
    ],
)
async def test_a_default_of_a_known_provider_needs_a_key_that_only_the_daemon_can_look_for(
    paths: Paths, default: str, *, in_daemon: bool, status: str
) -> None:
    write(paths.config / "lightagentd.toml", f'[models]\ndefault = "{default}"\n')
    assert (await told(paths, "default", in_daemon=in_daemon)).status == status


async def test_variables_that_are_not_whole_are_wrong(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    found = await told(paths, "environment")
    assert found.status == "wrong"
    assert "BASE_URL" in found.detail
    assert KEY not in found.detail


async def test_an_endpoint_behind_a_proxy_is_as_near_as_the_proxy(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        provider = '[models.providers.x]\nbase_url = "https://nowhere.invalid/v1"\n'
        write(paths.config / "lightagentd.toml", f'{provider}proxy = "http://127.0.0.1:{port}"\n')
        found = await told(paths, "x, endpoint", reach=True)
        assert (found.status, found.detail) == ("ok", f"its proxy 127.0.0.1 port {port} answers")
        write(paths.config / "lightagentd.toml", provider)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        assert (await told(paths, "x, endpoint", reach=True)).status == "ok"
        write(paths.config / "lightagentd.toml", f'{provider}proxy = "none"\n')
        found = await told(paths, "x, endpoint", reach=True)
        assert (found.status, found.detail.partition(" ")[0]) == ("wrong", "nowhere.invalid")


async def test_what_has_no_address_is_not_reached_for(paths: Paths) -> None:
    write(
        paths.config / "lightagentd.toml",
        '[models.providers.own]\nkind = "a:B"\n[models.providers.old]\nkind = "replay"\nrecording = "/r"\n',
    )
    names = [finding.name for finding in await models.check(paths, in_daemon=True, reach=True)]
    assert names == ["default", "own, key", "old, key"]


async def test_a_server_on_this_machine_is_offered_and_not_used(
    paths: Paths, no_servers_of_this_machine: list[LocalServer]
) -> None:
    url = "http://127.0.0.1:11434/v1"
    no_servers_of_this_machine.append(LocalServer(name="ollama", base_url=url, models=("llama3.2",)))
    found = await told(paths, "ollama")
    assert found.status == "ok"
    assert 'default = "ollama/llama3.2"' in found.detail
    assert (await told(paths, "default")).detail.startswith("runbook")
    write(paths.config / "lightagentd.toml", '[models]\ndefault = "ollama/llama3.2"\n')
    assert "to use it" not in (await told(paths, "ollama")).detail


async def test_a_provider_that_cannot_be_one_is_told_where_the_configuration_is(paths: Paths) -> None:
    write(paths.config / "lightagentd.toml", '[models.providers.x]\nkind = "replay"\n')
    assert await models.check(paths, in_daemon=True, reach=False) == []
    found = next(one for one in files.check(paths) if one.name == "configuration")
    assert (found.status, "recording" in found.detail) == ("wrong", True)


async def test_the_file_of_variables_is_closed_to_others(paths: Paths) -> None:
    path = write(paths.config / "environment", f"API_KEY={KEY}\n")
    path.chmod(0o644)
    found = next(one for one in files.check(paths) if one.name == f"key file {path}")
    assert (found.status, found.remedy) == (
        "wrong",
        f"Close it (chmod 600 {path}), and think about a new key.",
    )


async def test_a_fallback_that_no_provider_serves_is_wrong(paths: Paths) -> None:
    write(paths.config / "lightagentd.toml", '[models]\nfallback = ["nobody/x", "openai/y", "runbook"]\n')
    found = await told(paths, "fallback")
    assert (found.status, found.remedy.split()[0]) == ("wrong", "Add")
    assert "nobody" in found.detail


async def test_an_address_where_no_model_server_answers_is_a_note(paths: Paths) -> None:
    write(paths.config / "lightagentd.toml", '[models]\nlook_at = ["http://127.0.0.1:1"]\n')
    found = await told(paths, "http://127.0.0.1:1")
    assert (found.status, found.detail) == ("note", "no model server answers")
    async with serving({"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}}) as url:
        write(paths.config / "lightagentd.toml", f'[models]\nlook_at = ["{url}"]\n')
        found = await told(paths, url)
    assert (found.status, found.detail.partition(";")[0]) == ("ok", "vllm with 1 model")
