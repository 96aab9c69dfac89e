"""What the configuration and the environment make together, and where each value is said to be from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.config.configuration import Config, api_key, load
from lightagentd.errors import ConfigError
from lightagentd.llm.environment import Environment, read_environment
from lightagentd.llm.in_force import InForce, in_force
from tests.conftest import write

KEY = "sk-very-secret-key-0123456789"
OTHER = "sk-another-secret-key-987654321"


def together(tmp_path: Path, toml: str = "", **variables: str) -> InForce:
    write(tmp_path / "lightagentd.toml", toml)
    return in_force(*load(tmp_path), read_environment(variables))


def test_without_anything_nothing_is_added(tmp_path: Path) -> None:
    found = in_force(Config(), {}, Environment())
    assert (found.config, found.origins, found.problems) == (Config(), {}, ())


@pytest.mark.parametrize(
    ("variables", "name", "kind", "base_url"),
    [
        ({"OPENAI_API_KEY": KEY}, "openai", "openai", "https://api.openai.com/v1"),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://h:1/v1"}, "openai", "openai", "http://h:1/v1"),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://h:1/v1/responses"},
            "openai",
            "openai-responses",
            "http://h:1/v1/responses",
        ),
        ({"ANTHROPIC_API_KEY": KEY}, "anthropic", "anthropic", "https://api.anthropic.com/v1"),
        (
            {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://openrouter.ai/api"},
            "anthropic",
            "anthropic",
            "https://openrouter.ai/api",
        ),
        ({"DEEPSEEK_API_KEY": KEY}, "deepseek", "openai", "https://api.deepseek.com"),
        (
            {"GOOGLE_API_KEY": KEY},
            "google",
            "openai",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        ({"API_KEY": KEY, "BASE_URL": "http://h:1/v1", "MODEL": "m"}, "env", "openai", "http://h:1/v1"),
        (
            {"API_KEY": KEY, "BASE_URL": "http://h:1/v1/chat/completions", "MODEL": "m"},
            "env",
            "openai",
            "http://h:1/v1/chat/completions",
        ),
        (
            {"API_KEY": KEY, "BASE_URL": "https://api.anthropic.com", "MODEL": "m"},
            "env",
            "anthropic",
            "https://api.anthropic.com",
        ),
        (
            {"API_KEY": KEY, "BASE_URL": "http://h:1/v1/messages", "MODEL": "m"},
            "env",
            "anthropic",
            "http://h:1/v1/messages",
        ),
    ],
)
def test_variables_make_a_provider(
    tmp_path: Path, variables: dict[str, str], name: str, kind: str, base_url: str
) -> None:
    found = together(tmp_path, **variables)
    [(made, provider)] = found.config.models.providers.items()
    assert (made, provider.kind, provider.base_url, api_key(provider)) == (name, kind, base_url, KEY)
    assert found.problems == ()
    assert found.secrets == (KEY,)
    shown = repr(found) + found.config.model_dump_json() + str(found.config)
    assert KEY not in shown


@pytest.mark.parametrize(
    ("variables", "default"),
    [
        ({"API_KEY": KEY, "BASE_URL": "http://h/v1", "MODEL": "m"}, "env/m"),
        ({"BASE_URL": "http://h/v1", "MODEL": "qwen/m"}, "env/qwen/m"),
        (
            {"API_KEY": KEY, "BASE_URL": "http://h/v1", "MODEL": "openai/m", "OPENAI_API_KEY": KEY},
            "env/openai/m",
        ),
        ({"OPENAI_API_KEY": KEY, "MODEL": "m"}, "openai/m"),
        ({"OPENAI_API_KEY": KEY, "MODEL": "openai/m"}, "openai/m"),
        ({"ANTHROPIC_API_KEY": KEY, "MODEL": "m"}, "anthropic/m"),
        ({"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "MODEL": "anthropic/m"}, "anthropic/m"),
        ({"OPENAI_API_KEY": KEY}, "runbook"),
    ],
)
def test_the_model_of_the_environment_is_the_default(
    tmp_path: Path, variables: dict[str, str], default: str
) -> None:
    found = together(tmp_path, **variables)
    assert found.config.models.default == default
    assert found.problems == ()
    assert found.origins.get("models.default", "") == (
        "MODEL in the environment" if "MODEL" in variables else ""
    )


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"API_KEY": KEY}, "API_KEY is set without BASE_URL"),
        ({"API_KEY": KEY, "MODEL": "m"}, "API_KEY is set without BASE_URL"),
        ({"API_KEY": KEY, "BASE_URL": "http://h/v1"}, "BASE_URL is set without MODEL"),
        (
            {"API_KEY": KEY, "BASE_URL": "h.example/v1", "MODEL": "m"},
            "BASE_URL is not used: it has no scheme",
        ),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "h/v1"}, "OPENAI_BASE_URL is not used"),
        ({"MODEL": "m"}, "MODEL is set, but"),
        ({"MODEL": "m", "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}, "MODEL is set, but"),
    ],
)
def test_variables_that_are_not_whole_are_a_problem_and_no_more(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    found = together(tmp_path, **variables)
    assert found.problems[0].startswith(said)
    assert found.config.models.default == "runbook"
    assert KEY not in "".join(found.problems)
    if "BASE_URL" in variables:
        assert len(found.problems) == 1, "what follows from it is not said again"


def test_no_key_goes_to_an_address_that_cannot_be_used(tmp_path: Path) -> None:
    found = together(tmp_path, OPENAI_API_KEY=KEY, OPENAI_BASE_URL="not a url")
    assert "openai" not in found.config.models.providers


def test_the_configuration_wins(tmp_path: Path) -> None:
    toml = """
[models]
default = "openai/mine"
[models.providers.openai]
base_url = "http://mine.example/v1"
[models.providers.env]
base_url = "http://mine.example/v1"
"""
    found = together(
        tmp_path,
        toml,
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL="http://h/v1",
        API_KEY=KEY,
        BASE_URL="http://h/v1",
        MODEL="m",
    )
    models = found.config.models
    assert models.default == "openai/mine"
    for name in ("openai", "env"):
        assert models.providers[name].base_url == "http://mine.example/v1"
        assert api_key(models.providers[name]) == ""
    assert "has a provider env of its own" in found.problems[0]


def test_a_key_of_the_configuration_does_not_go_to_an_address_of_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path / "key", OTHER)
    found = together(
        tmp_path,
        f'[models.providers.openai]\napi_key_file = "{file}"\n',
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL="http://elsewhere.example/v1",
    )
    provider = found.config.models.providers["openai"]
    assert (provider.base_url, api_key(provider)) == ("https://api.openai.com/v1", OTHER)


def test_what_the_configuration_leaves_out_of_a_known_provider_is_filled(tmp_path: Path) -> None:
    found = together(
        tmp_path,
        "[models.providers.deepseek]\nidle_timeout_s = 5\n[models.providers.ollama]\n",
        DEEPSEEK_API_KEY=KEY,
    )
    deepseek = found.config.models.providers["deepseek"]
    assert (deepseek.base_url, deepseek.idle_timeout_s, api_key(deepseek)) == (
        "https://api.deepseek.com",
        5,
        KEY,
    )
    assert found.config.models.providers["ollama"].base_url == "http://127.0.0.1:11434/v1"


def test_it_is_said_where_each_value_is_from(tmp_path: Path) -> None:
    path = write(tmp_path / ".env", f"API_KEY={KEY}\nBASE_URL=http://h/v1\nMODEL=m\n")
    path.chmod(0o600)
    found = in_force(Config(), {}, read_environment({"OPENAI_API_KEY": OTHER}, path))
    assert found.origins == {
        "models.default": f"MODEL in {path}",
        "models.providers.env.api_key_env": f"API_KEY in {path}",
        "models.providers.env.base_url": f"BASE_URL in {path}",
        "models.providers.openai.api_key_env": "OPENAI_API_KEY in the environment",
        "models.providers.openai.base_url": "known by its name",
    }


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[models]\n[models.providers.x]\nidle_timeout_s = 1\n", 2, "base_url: it is missing"),
        ("[models.providers.x]\nkind = 'replay'\n", 1, "recording: a replay needs a recording"),
        (
            "[models.providers.x]\nkind = 'a:B'\nbase_url = 'http://h'\n",
            3,
            "base_url: the kind a:B has no address",
        ),
        (
            "[models.providers.x]\nbase_url = 'http://h/v1'\nrecording = '/r'\n",
            3,
            "recording: only the kind replay",
        ),
        (
            "[models.providers.x]\nkind = 'openai'\nbase_url = 'http://h/v1/messages'\n",
            3,
            "base_url: it ends as those of the kind anthropic do",
        ),
    ],
)
def test_a_provider_that_cannot_be_one_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        together(tmp_path, text)
    place = f"{tmp_path / 'lightagentd.toml'}:{line}: models.providers.x."
    assert caught.value.message.startswith(f"{place}{said}")
    assert caught.value.suggestion


def test_clients_of_your_own_need_nothing(tmp_path: Path) -> None:
    assert together(tmp_path, "[models.providers.x]\nkind = 'a.b:C'\n").config.models.providers["x"]


def test_the_file_that_set_the_last_value_is_named_not_another_that_begins_alike(tmp_path: Path) -> None:
    write(tmp_path / "lightagentd.toml", "[models.providers.a]\nbase_url = 'http://a'\n")
    path = write(tmp_path / "lightagentd.toml.d/1.toml", "[models.providers.ab]\nkind = 'openai'\n")
    write(tmp_path / "lightagentd.toml.d/2.toml", "[models]\ndefault = 'runbook'\n")
    with pytest.raises(ConfigError) as caught:
        in_force(*load(tmp_path), Environment())
    assert caught.value.message.startswith(f"{path}:1: models.providers.ab.base_url")
