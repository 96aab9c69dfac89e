"""`lactl config` and what the environment says of models: shown with its place, and never with a key."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Lactl
from tests.conftest import write

KEY = "sk-very-secret-key-0123456789"


def test_show_has_the_providers_of_variables_without_their_keys(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MODEL", "gpt-x")
    done = lactl("config", "show", "--folder", str(tmp_path))
    assert 'models.default\t"openai/gpt-x"\tMODEL in the environment' in done.out
    key = "models.providers.openai.api_key_env"
    assert f'{key}\t"OPENAI_API_KEY"\tOPENAI_API_KEY in the environment' in done.out
    shown = lactl("config", "show", "--json", "--folder", str(tmp_path))
    assert json.loads(shown.out)[key] == {
        "value": "OPENAI_API_KEY",
        "origin": "OPENAI_API_KEY in the environment",
    }
    assert KEY not in done.out + done.err + shown.out + shown.err


@pytest.mark.skipif(os.geteuid() != 0, reason="the file is that of a unit, which root looks at")
def test_root_sees_what_the_unit_takes_from_its_file(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of-this-shell")
    path = write(tmp_path / "environment", f'DEEPSEEK_API_KEY="{KEY}"\n')
    path.chmod(0o600)
    done = lactl("config", "show", "--folder", str(tmp_path))
    assert f"DEEPSEEK_API_KEY in {path}" in done.out
    assert "anthropic" not in done.out
    assert KEY not in done.out


def test_variables_that_are_not_whole_are_told(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    for command in ("show", "check"):
        done = lactl("config", command, "--folder", str(tmp_path))
        assert done.status == 0
        assert "API_KEY is set without BASE_URL" in done.out + done.err
        assert KEY not in done.out + done.err


def test_check_names_a_provider_that_cannot_be_one(lactl: Lactl, tmp_path: Path) -> None:
    write(tmp_path / "lightagentd.toml", '[models.providers.x]\nkind = "replay"\n')
    done = lactl("config", "check", "--folder", str(tmp_path))
    assert done.status == 78
    assert "lightagentd.toml:1: models.providers.x.recording" in done.err


def test_check_names_the_models_that_no_provider_has(lactl: Lactl, tmp_path: Path) -> None:
    text = '[models]\ndefault = "nobody/a"\nfallback = ["openai/x", "nowhere/b", "runbook"]\n'
    write(tmp_path / "lightagentd.toml", text)
    done = lactl("config", "check", "--folder", str(tmp_path))
    assert done.status == 0
    assert "nobody/a\tThe provider 'nobody' is not configured" in done.out
    assert "nowhere/b\tThe provider 'nowhere' is not configured" in done.out
    assert "openai" not in done.out  # only the daemon knows its keys
    problems = json.loads(lactl("config", "check", "--json", "--folder", str(tmp_path)).out)["problems"]
    assert len(problems) == 2
    assert "Add [models.providers.nowhere]" in problems[1]
