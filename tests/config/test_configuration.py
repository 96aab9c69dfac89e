"""The configuration: merging, and errors that name the file, the line and the nearest key."""

from __future__ import annotations

import logging
import os
import re
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError

from lightagentd.config.configuration import Config, Provider, api_key, files, load, read_key
from lightagentd.errors import ConfigError
from tests.conftest import write

KEY = "sk-very-secret-key-0123456789"


def refused(folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder)
    return caught.value


def test_without_files_the_defaults_are_in_force(tmp_path: Path) -> None:
    assert load(tmp_path / "nothing") == (Config(), {})
    assert files(tmp_path / "nothing") == []


def test_later_files_override_key_by_key_in_the_order_of_their_names(tmp_path: Path) -> None:
    main = write(
        tmp_path / "lightagentd.toml", "[limits]\nmax_steps = 5\nmax_queue = 5\n[worker]\nsandbox = 'none'\n"
    )
    second = write(tmp_path / "lightagentd.toml.d/20-b.toml", "limits.max_steps = 20\n")
    first = write(
        tmp_path / "lightagentd.toml.d/10-a.toml", "[limits]\nmax_steps = 10\nresult_bytes = 1000\n"
    )
    write(tmp_path / "lightagentd.toml.d/30-c.conf", "this is not read")
    config, origins = load(tmp_path)
    assert files(tmp_path) == [main, first, second]
    assert (config.limits.max_steps, config.limits.max_queue, config.limits.result_bytes) == (20, 5, 1000)
    assert config.worker.sandbox == "none"
    assert config.daemon == Config().daemon
    assert origins["limits.max_steps"] == second
    assert origins["limits.max_queue"] == main
    assert origins["limits.result_bytes"] == first


def test_providers_of_several_files_are_merged(tmp_path: Path) -> None:
    write(
        tmp_path / "lightagentd.toml.d/1.toml", "[models.providers.a]\nbase_url = 'http://localhost:1/v1'\n"
    )
    write(
        tmp_path / "lightagentd.toml.d/2.toml",
        "[models.providers.b]\nbase_url = 'https://b.example'\n[models.providers.a]\nconnect_timeout_s = 3\n",
    )
    config, _ = load(tmp_path)
    assert set(config.models.providers) == {"a", "b"}
    assert config.models.providers["a"].base_url == "http://localhost:1/v1"
    assert config.models.providers["a"].connect_timeout_s == 3


@pytest.mark.parametrize(
    ("text", "line", "key", "near"),
    [
        ("[limits]\n# a comment\nmax_stepz = 3\n", 3, "limits.max_stepz", "max_steps"),
        ("[limits]\nmax_steps = 3\n[worker]\nmax_steps = 3\n", 4, "worker.max_steps", ""),
        ("[limits]\nmax_steps = 3\n\n[workers]\nsandbox = 'none'\n", 4, "workers", "worker"),
        ("limits.max_queu = 3\n", 1, "limits.max_queu", "max_queue"),
        ("\nlimits = { max_steps = 3, max_queu = 3 }\n", 2, "limits.max_queu", "max_queue"),
        ("\n'limits'.\"max queue\" = 3\n", 2, "limits.max queue", "max_queue"),
        (
            "[models.providers.'my own']\nbase_url = 'http://x'\nbase_ur = 'http://x'\n",
            3,
            "models.providers.my own.base_ur",
            "base_url",
        ),
        (
            "[models]\n[models.providers.x]\nbase_url='http://x'\n[models.provider]\n",
            4,
            "models.provider",
            "providers",
        ),
        ("verbose = true\n", 1, "verbose", ""),
        ("[models.prices.'w/x']\npromt = 1\n", 2, "models.prices.w/x.promt", "prompt"),
        (
            "[models.known.'w/x']\ncontext_tokns = 9000\n",
            2,
            "models.known.w/x.context_tokns",
            "context_tokens",
        ),
    ],
)
def test_an_unknown_key_names_file_line_and_nearest_key(
    tmp_path: Path, text: str, line: int, key: str, near: str
) -> None:
    path = write(tmp_path / "lightagentd.toml.d/50-own.toml", text)
    write(tmp_path / "lightagentd.toml", "[limits]\nmax_steps = 1\nmax_queue = 1\n")
    error = refused(tmp_path)
    assert error.message == f"{path}:{line}: the key {key!r} is not known."
    assert error.field == key
    assert error.suggestion == (f"Did you mean {near!r}?" if near else error.suggestion)
    assert error.suggestion
    assert error.code == "config_invalid"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[limits]\nmax_steps = 0\n", 2, "limits.max_steps: Input should be greater than or equal to 1"),
        ("[limits]\n\nmax_steps = 'many'\n", 3, "limits.max_steps: Input should be a valid integer"),
        (
            "[worker]\nsandbox = 'chroot'\n",
            2,
            "worker.sandbox: Input should be 'auto', 'systemd', 'bwrap' or 'none'",
        ),
        ("daemon = 5\n", 1, "daemon: Input should be a valid dictionary"),
        ("[worker]\nidle_timeout_s = nan\n", 2, "worker.idle_timeout_s: "),
        ("[models]\nlook_at = ['gpu1:11434']\n", 2, "models.look_at: it has no scheme: write https://"),
        (
            "[models]\nlook_at = ['http://gpu1/v1']\n",
            2,
            "models.look_at: it is the address of a server alone",
        ),
        ("[models]\nlook_at = ['http://u:p@gpu1']\n", 2, "models.look_at: a user and a password do not"),
        (
            "[models.providers.x]\nbase_url = 'ftp://x'\n",
            2,
            "models.providers.x.base_url: write http:// or https://, and no other scheme.",
        ),
        (
            "[models.providers.x]\nbase_url = 'api.example.org/v1'\n",
            2,
            "models.providers.x.base_url: it has no scheme: write https:// before it.",
        ),
        (
            "[models.providers.x]\nbase_url = 'http://x'\nproxy = 'proxy:3128'\n",
            3,
            "models.providers.x.proxy: it has no scheme: write http:// before it.",
        ),
        (
            "[models.providers.x]\nclient_key = '/k'\n",
            1,
            "models.providers.x: client_key is of no use without client_cert.",
        ),
        ("[models]\ndefault = 'gpt-5'\n", 2, "models.default: 'gpt-5' is not a model: write runbook, or"),
        ("[models]\nfallback = ['x']\n", 2, "models.fallback: 'x' is not a model"),
        ("[models.prices.x]\nprompt = 1\n", 1, "models.prices: 'x' is not a model"),
        (
            "[models.providers.x]\nkind = 'opanai'\n",
            2,
            "models.providers.x.kind: write one of openai, openai-responses, anthropic, replay, or",
        ),
        ("[models]\nrecord = 'here'\n", 2, "models.record: write the whole path"),
        ("[models.providers.x]\nca_file = 'a/b'\n", 2, "models.providers.x.ca_file: write the whole path"),
        ("[models.providers.'a/b']\n", 1, "models.providers: no provider can be called 'a/b'"),
        ("[models.providers.runbook]\n", 1, "models.providers: no provider can be called 'runbook'"),
        (
            "[models.providers.x]\nextra_body = { messages = [] }\n",
            2,
            "models.providers.x.extra_body: the field 'messages' is the daemon's own.",
        ),
        (
            "[models.providers.x]\nheaders = { 'X Team' = 'a' }\n",
            2,
            "models.providers.x.headers: the header 'X Team' has characters",
        ),
    ],
)
def test_a_wrong_value_names_file_line_and_what_it_should_be(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = write(tmp_path / "lightagentd.toml", text)
    assert refused(tmp_path).message.startswith(f"{path}:{line}: {said}")


@pytest.mark.parametrize("content", [b"[limits\n", b"a = 1\na = 2\n", b"\xff\xfe", b"x = 'unterminated\n"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lightagentd.toml"
    path.write_bytes(content)
    error = refused(tmp_path)
    assert str(path) in error.message
    assert error.suggestion


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "lightagentd.toml").mkdir()
    assert str(tmp_path / "lightagentd.toml") in refused(tmp_path).message


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lightagentd.toml")
    assert refused(tmp_path).message == f"{tmp_path / 'lightagentd.toml'} cannot be read: it is a pipe."


@pytest.mark.parametrize(
    "line",
    [
        f"api_key = '{KEY}'",
        f"api_key_env = ['{KEY}']",
        f"api_key_env = '{KEY}'",
        f"headers = {{ Authorization = 'Bearer {KEY}' }}",
        f"headers = {{ x-api-key = '{KEY}' }}",
        f"base_url = 'https://user:{KEY}@host/v1'",
        f"base_url = 'https://host/v1?key={KEY}'",
        f"proxy = 'http://user:{KEY}@host:3128'",
        f"extra_body = {{ api_key = '{KEY}' }}",
        f"connect_timeout_s = '{KEY}'",
    ],
)
def test_a_key_in_the_file_is_refused_and_never_shown(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = "" if line.startswith("base_url") else "base_url = 'http://x'\n"
    write(tmp_path / "lightagentd.toml", f"[models.providers.x]\n{base}{line}\n")
    error = refused(tmp_path)
    logging.getLogger("test").error("refused", exc_info=error)
    assert KEY not in "".join(traceback.format_exception(error))
    assert KEY not in repr(error) + error.suggestion
    assert KEY not in caplog.text


def test_a_key_comes_from_its_file_or_variable_and_is_in_no_repr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "key", f"  {KEY}\n")
    monkeypatch.setenv("LIGHTAGENT_TEST_KEY", KEY)
    from_file = Provider(base_url="http://x", api_key_file=path)
    from_env = Provider(base_url="http://x", api_key_env="LIGHTAGENT_TEST_KEY")
    assert api_key(from_file) == api_key(from_env) == KEY
    assert api_key(Provider(base_url="http://x")) == ""
    for provider in (from_file, from_env):
        config = Config.model_validate({"models": {"providers": {"x": provider.model_dump()}}})
        assert KEY not in repr(config) + str(config) + config.model_dump_json()


def test_an_environment_variable_that_is_not_set_gives_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_TEST_KEY", raising=False)
    assert api_key(Provider(base_url="http://x", api_key_env="LIGHTAGENT_TEST_KEY")) == ""


def test_a_bare_name_is_a_credential_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    write(tmp_path / "openai", KEY)
    assert read_key(Path("openai")) == KEY


@pytest.mark.parametrize("content", [b"", b" \n", b"two words\n", b"\xff\xfe\n", None])
def test_a_key_file_without_one_key_is_refused_and_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        read_key(path)
    assert caught.value.suggestion
    assert "two words" not in str(caught.value)


def test_a_configuration_cannot_be_changed_once_it_is_read() -> None:
    with pytest.raises(ValidationError):
        Config().limits.max_steps = 3


def test_who_writes_a_key_into_the_file_is_told_where_it_belongs(tmp_path: Path) -> None:
    write(tmp_path / "lightagentd.toml", f"[models.providers.x]\nbase_url = 'http://x'\napi_key = '{KEY}'\n")
    assert "api_key_file" in refused(tmp_path).suggestion
