"""Names that are cut short: the one that begins so is meant, and an ambiguous one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Lactl
from tests.scripted_daemon import Connection, ScriptedDaemon, agent, flow, flow_run, session, trigger

AGENTS = [agent("ops"), agent("web"), agent("web.part", kit="web"), agent("web-2"), agent("dev")]


@pytest.fixture
def listed(scripted: ScriptedDaemon) -> ScriptedDaemon:
    """A daemon with some agents, a flow with two runs, a trigger and a session."""

    def get(connection: Connection, call: dict[str, Any]) -> None:
        known = ("ops", "web", "web.part", "dev", "run_0a1b", "disk")
        if (name := next(iter(call["parameters"].values()))) not in known:
            connection.error("org.lightagent1.AgentNotFound", message=f"There is no agent {name!r}.")
        else:
            connection.error("org.lightagent1.Conflict", message=f"{name} is meant.")

    scripted.answer("Agents.List", {"agents": AGENTS})
    scripted.answer("Flows.List", {"flows": [flow(name="nightly"), flow(name="update")]})
    scripted.answer("Flows.Runs", {"runs": [flow_run(id="run_0a1b"), flow_run(id="run_0a2c")]})
    scripted.answer("Triggers.List", {"triggers": [trigger(name="disk"), trigger(name="dns")]})
    scripted.answer("Sessions.List", {"sessions": [session("ses_0123456789abcdef", owner=0)]})
    for method in ("Agents.Get", "Flows.Cancel", "Triggers.Pause", "Sessions.Prompt", "Agents.Delete"):
        scripted.handle(method, get)
    return scripted


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("agents show o", "ops is meant."),
        ("agents show web", "web is meant."),
        ("agents show web.", "web.part is meant."),
        ("agents show nosuch", "There is no agent 'nosuch'."),
        ("agents delete o", "There is no agent 'o'."),
        ("chat d", "dev is meant."),
        ("prompt d", "dev is meant."),
        ("flows cancel 0a1", "run_0a1b is meant."),
        ("triggers pause di", "disk is meant."),
    ],
)
def test_the_only_one_that_begins_so_is_meant(
    listed: ScriptedDaemon, lactl: Lactl, line: str, told: str
) -> None:
    assert lactl(*line.split(), stdin=b"what came in a pipe").err == f"lactl: {told}\n"
    if line == "prompt d":
        said = [call["parameters"]["text"] for call in listed.calls if call["method"] == "Sessions.Prompt"]
        assert said == ["what came in a pipe"] * 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("agents show we", "2 agents begin with 'we'.\nWrite more of it: web, web-2\n"),
        ("flows cancel run_0a", "2 runs begin with 'run_0a'.\nWrite more of it: run_0a1b, run_0a2c\n"),
        ("triggers pause d", "2 triggers begin with 'd'.\nWrite more of it: disk, dns\n"),
        ("sessions delete o", "You have no session 'o', and no current one with an agent of that name.\n"),
    ],
)
def test_an_ambiguous_one_lists_what_it_may_be(
    listed: ScriptedDaemon, lactl: Lactl, line: str, told: str
) -> None:
    done = lactl(*line.split())
    assert done.err.startswith(f"lactl: {told}")
    assert done.status != 0


def test_the_socket_behind_the_name_is_the_one_that_is_asked(
    listed: ScriptedDaemon, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_SOCKET", "/nowhere")
    assert "ops is meant" in lactl("agents", "show", "o", "--socket", str(listed.path)).err
