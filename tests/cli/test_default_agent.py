"""Words that are no command ask the default agent, and a mistyped command never reaches a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Lactl
from tests.conftest import write
from tests.scripted_daemon import ScriptedDaemon, agent

ANSWER = (
    {"type": "accepted", "session": "ses_1", "trace_id": "trace_1"},
    {"type": "done", "session": "ses_1", "trace_id": "trace_1", "text": "Fine."},
)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's own configuration, which is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LIGHTAGENT_AGENT", raising=False)
    return tmp_path / "lightagent" / "lactl.toml"


def asked(scripted: ScriptedDaemon) -> tuple[str, str]:
    said = [call["parameters"] for call in scripted.calls if call["method"] == "Sessions.Prompt"][-1]
    return said["agent"], said["text"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check disk"], "check disk"),
        (["what", "is", "wrong?", "--quiet"], "what is wrong?"),
        (["--no-ask-password", "stats\nof disks", "-q"], "stats\nof disks"),
        (["-rf is no option", "here"], ""),
    ],
)
def test_words_ask_the_only_agent(
    scripted: ScriptedDaemon, lactl: Lactl, arguments: list[str], text: str
) -> None:
    scripted.answer("Agents.List", {"agents": [agent("web"), agent("web.part", kit="web")]})
    scripted.turn(*ANSWER)
    done = lactl(*arguments)
    if not text:
        assert (done.status, done.out) == (2, "")
        return
    assert (done.status, done.out) == (0, "Fine.\n")
    assert asked(scripted) == ("web", text)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["statsu"], "Did you mean: lactl status"),
        (["statsu", "--json"], "Did you mean: lactl status"),
        (["agnets", "list"], 'Did you mean: lactl agents\nTo ask your agent: lactl "agnets list"\n'),
        (["zzz"], "Try: lactl --help"),
        ([" zzz "], "Try: lactl --help"),
        ([""], "Try: lactl --help"),
        (["zzz", "--limit", "3"], "There is no option --limit."),
    ],
)
def test_a_mistyped_command_never_reaches_a_model(
    scripted: ScriptedDaemon, lactl: Lactl, arguments: list[str], hint: str
) -> None:
    done = lactl(*arguments)
    assert done.status == 2
    assert hint in done.err.encode().decode("unicode_escape")
    assert not scripted.calls


def test_the_environment_goes_before_the_file_and_that_before_ops(
    scripted: ScriptedDaemon, lactl: Lactl, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.turn(*ANSWER)
    scripted.answer("Agents.List", {"agents": [agent("dev"), agent("ops")]})
    lactl("check disk")
    assert asked(scripted)[0] == "ops"
    write(own, 'default_agent = "dev"\n')
    lactl("check disk")
    assert asked(scripted)[0] == "dev"
    monkeypatch.setenv("LIGHTAGENT_AGENT", "web")
    lactl("check disk")
    assert asked(scripted)[0] == "web"
    monkeypatch.delenv("LIGHTAGENT_AGENT")
    write(own, "default_agent = 3\n")
    assert "default_agent" in lactl("check disk").err


def test_without_a_default_agent_a_sentence_lists_them(
    scripted: ScriptedDaemon, lactl: Lactl, own: Path
) -> None:
    scripted.answer("Agents.List", {"agents": [agent("dev"), agent("web")]})
    done = lactl("check disk")
    assert done.err.startswith("lactl: No agent is the default one, and there are 2: dev, web.\n")
    assert f'default_agent = "dev" into {own}' in done.err
    assert "No agent is the default one" in lactl("chat").err
    scripted.answer("Agents.List", {"agents": []})
    assert "There is no agent." in lactl("check disk").err
    assert "With --hosts name the agent" in lactl("--hosts", "a,b", "check disk").err
