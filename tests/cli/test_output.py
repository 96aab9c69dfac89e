"""What lactl prints in a pipe and on a terminal, by the example of `status` and `agents list`."""

from __future__ import annotations

import json

from tests.cli.conftest import Lactl, environment, on_terminal
from tests.scripted_daemon import ScriptedDaemon, agent, status


def test_a_pipe_gets_rows_with_tabs_and_no_heading(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer(
        "Agents.List", {"agents": [agent(), agent("web", description="", problem="two\tlines\n")]}
    )
    done = lactl("agents", "list")
    assert done.status == 0
    assert [line.split("\t") for line in done.out.splitlines()] == [
        ["ops", "running", "runbook", "2", "/usr/share/lightagentd/agent/ops", "Looks after this machine"],
        ["web", "running", "runbook", "2", "/usr/share/lightagentd/agent/ops", "two lines"],
    ]


def test_an_empty_cell_is_a_dash_and_an_empty_table_is_nothing(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    scripted.answer("Agents.List", {"agents": [agent(description="")]})
    assert lactl("agents", "list").out.endswith("\t-\n")
    scripted.answer("Agents.List", {"agents": []})
    assert lactl("agents", "list").out == ""


def test_json_is_the_value_itself_before_or_after_the_command(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Agents.List", {"agents": [agent()]})
    for arguments in (
        ["--json", "agents", "list"],
        ["agents", "--json", "list"],
        ["agents", "list", "--json"],
    ):
        assert json.loads(lactl(*arguments).out) == [agent()]


def test_json_escapes_what_could_reach_a_terminal(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    name = "\x1b[31m\x9b\x7f\u202e\udcffü"
    scripted.answer("Agents.List", {"agents": [agent(name)]})
    out = lactl("agents", "list", "--json").out
    assert json.loads(out)[0]["name"] == name
    assert not {*"\x1b\x9b\x7f\u202e\udcff"} & {*out}
    assert "ü" in out


def test_a_terminal_gets_headings_and_aligned_columns(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.List", {"agents": [agent(), agent("日本", origin="/x")]})
    lines = on_terminal(["agents", "list"], env=environment(NO_COLOR="1"), width=200).out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "MODEL", "SESSIONS", "ORIGIN", "DESCRIPTION"]
    assert lines[0].index("STATE") == lines[1].index("running") == lines[2].index("running") + 2


def test_lines_fit_the_terminal(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.List", {"agents": [agent(description="日本 word " * 50)]})
    lines = on_terminal(["agents", "list"], env=environment(NO_COLOR="1"), width=70).out.splitlines()
    assert lines[1].endswith("…")
    assert 60 < len(lines[1]) <= 70


def test_colours_only_on_a_terminal_that_wants_them(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Agents.List", {"agents": [agent()]})
    assert "\x1b[" in on_terminal(["agents", "list"]).out
    assert "\x1b[" not in on_terminal(["agents", "list"], env=environment(NO_COLOR="1")).out
    assert "\x1b[" not in on_terminal(["agents", "list"], env=environment(TERM="dumb")).out
    assert "\x1b[" not in lactl("agents", "list").out


def test_escapes_from_outside_never_reach_the_terminal(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.Get", {"agent": agent(description="\x1b]0;owned\x07kind\x1b[2J")})
    out = on_terminal(["agents", "show", "ops"], env=environment(NO_COLOR="1")).out
    assert "kind" in out
    assert "\x1b" not in out
    assert "owned" not in out


def test_escapes_in_an_error_never_reach_the_terminal(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.fail("Agents.Get", "org.lightagent1.AgentNotFound", message="no \x1b[31m", suggestion="try\x1bc")
    assert "\x1b" not in lactl("agents", "show", "x").err


def test_status_names_what_is_wrong(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.GetStatus", {"status": status(problems=["The agent web cannot be read."])})
    fields = dict(line.split("\t") for line in lactl("status").out.splitlines())
    assert fields["daemon"] == "lightagentd 0.1.0, running, pid 4711"
    assert fields["agents"] == "1 of 2 running"
    assert fields["history"] == "1234 events, 3.0MiB, /var/lib/lightagentd/history"
    assert fields["worker"] == "ops/observe for root: bwrap, pid 99, idle"
    assert fields["problem"] == "The agent web cannot be read."


def test_status_as_json_is_what_the_daemon_said(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.GetStatus", {"status": status()})
    assert json.loads(lactl("status", "--json").out) == status()


def test_status_on_a_terminal_is_aligned(scripted: ScriptedDaemon) -> None:
    scripted.answer("Manager.GetStatus", {"status": status()})
    lines = on_terminal(["status"], env=environment(NO_COLOR="1")).out.splitlines()
    assert "  daemon  lightagentd 0.1.0, running, pid 4711" in lines
    scripted.answer("Manager.GetStatus", {"status": status(model="runbook")})
    assert "for a language model: lactl setup" in on_terminal(["status"]).out
