"""The commands that show and change things: which call each makes, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Lactl, environment, on_terminal
from tests.scripted_daemon import ScriptedDaemon, agent, event, message, session, skill, tool

SESSION = "ses_0123456789abcdef"


class TestAgents:
    def test_show_prints_every_field(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Agents.Get", {"agent": agent()})
        fields = dict(line.split("\t") for line in lactl("agents", "show", "ops").out.splitlines())
        assert fields["tools"] == "bash,systemd"
        assert fields["max_steps"] == "40"
        assert fields["fallback"] == "-"

    def test_create_sends_what_was_said_and_nothing_else(
        self, scripted: ScriptedDaemon, lactl: Lactl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        scripted.answer("Agents.Create", {"agent": agent("web")})
        options = [
            "--role",
            "admin",
            "--model",
            "m",
            "--base-url",
            "http://127.0.0.1:1/v1",
            "--prompt",
            "Be.",
        ]
        lactl("agents", "create", "web", *options, "--description", "d", "--api-key-file", "./key")
        assert scripted.parameters("Agents.Create") == {
            "name": "web",
            "role": "admin",
            "model": "m",
            "base_url": "http://127.0.0.1:1/v1",
            "prompt": "Be.",
            "description": "d",
            "api_key_file": f"{tmp_path}/key",
        }

    def test_create_leaves_the_name_of_a_credential_alone(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        scripted.answer("Agents.Create", {"agent": agent("web")})
        lactl("agents", "create", "web", "--api-key-file", "openai")
        assert scripted.parameters("Agents.Create") == {"name": "web", "api_key_file": "openai"}

    @pytest.mark.parametrize("verb", ["start", "stop", "restart"])
    def test_a_change_of_state_prints_the_state(
        self, scripted: ScriptedDaemon, lactl: Lactl, verb: str
    ) -> None:
        scripted.answer(f"Agents.{verb.capitalize()}", {"agent": agent(state="stopped")})
        assert lactl("agents", verb, "ops").out == "ops\tstopped\n"
        assert scripted.parameters(f"Agents.{verb.capitalize()}") == {"name": "ops"}
        assert json.loads(lactl("agents", verb, "ops", "--json").out)["state"] == "stopped"

    def test_delete_is_silent_in_a_pipe(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Agents.Delete", {})
        assert lactl("agents", "delete", "web").out == ""
        assert json.loads(lactl("agents", "delete", "web", "--json").out) == {"deleted": "web"}


class TestSessions:
    def test_list_passes_the_agent_on(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Sessions.List", {"sessions": [session()]})
        cells = lactl("sessions", "list", "--agent", "ops").out.strip().split("\t")
        assert [cells[i] for i in (0, 1, 2, 3, 4, 6)] == ["ses_1", "ops", "*", "idle", "1", "check disk"]
        assert scripted.parameters("Sessions.List") == {"agent": "ops"}

    def test_show_has_the_conversation(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        calls = [{"id": "c", "name": "systemd_status", "arguments": '{"unit":"a"}'}]
        messages = [
            message("user", "check disk"),
            message("assistant", "", tool_calls=calls),
            message("tool", "active", name="systemd_status"),
        ]
        scripted.answer("Sessions.Get", {"session": session()})
        scripted.answer("Sessions.Messages", {"messages": messages})
        done = lactl("sessions", "show", SESSION, "--limit", "7")
        assert "\ncheck disk\n" in done.out
        assert '→ systemd_status {"unit":"a"}' in done.out
        assert "tool systemd_status" in done.out
        assert scripted.parameters("Sessions.Messages") == {"session": SESSION, "limit": 7}
        assert json.loads(lactl("sessions", "show", SESSION, "--json").out)["messages"] == messages

    def test_cancel_says_how_many(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Sessions.Cancel", {"cancelled": 2})
        assert lactl("sessions", "cancel", SESSION).out == "2\n"


class TestHistory:
    def test_passes_each_filter_on(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("History.Query", {"events": []})
        filters = ["--agent", "ops", "--session", SESSION, "--topic", "tool", "--trace", "t", "--limit", "3"]
        lactl("history", *filters, "--since", "2026-11-21T10:00:00Z")
        assert scripted.parameters("History.Query") == {
            "agent": "ops",
            "session": SESSION,
            "topic": "tool",
            "trace": "t",
            "limit": 3,
            "since_us": 1_795_255_200_000_000,
        }

    def test_prints_an_event_as_a_line(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        data = {"tool": "bash", "duration_ms": 1500, "args": {"command": "df"}, "text": "two\nlines", "n": 0}
        events = [event(7, "tool.bash", "invocation", data=data), event(8, data=None, agent="")]
        scripted.answer("History.Query", {"events": events})
        rows = [line.split("\t") for line in lactl("history").out.splitlines()]
        assert [rows[0][i] for i in (0, 2, 3, 4, 5)] == [
            "7",
            "ops",
            "tool.bash",
            "invocation",
            'tool=bash 1.5s n=0 two lines args={"command": "df"}',
        ]
        assert [rows[1][i] for i in (0, 2, 5)] == ["8", "-", "(deleted)"]

    def test_json_is_a_line_for_each_event(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("History.Query", {"events": [event(1), event(2)]})
        out = lactl("history", "--json").out
        assert [json.loads(line) for line in out.splitlines()] == [event(1), event(2)]

    def test_a_line_fits_the_terminal(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("History.Query", {"events": [event(1, data={"content": "\x1b[31mlong " * 100})]})
        (line,) = on_terminal(["history"], env=environment(NO_COLOR="1"), width=100).out.splitlines()
        assert 80 < len(line) <= 100
        assert "\x1b" not in line


class TestAudit:
    def test_an_intact_history_is_status_zero(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("History.Verify", {"verification": verification()})
        done = lactl("audit", "verify")
        assert (done.status, done.out.splitlines()[0]) == (0, "history\tintact")

    def test_an_altered_one_names_the_event(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        found = verification(ok=False, first_bad_seq=12, reason="the data of event 12 was altered")
        scripted.answer("History.Verify", {"verification": found})
        done = lactl("audit", "verify")
        assert done.status == 74
        assert "altered at event 12: the data of event 12 was altered." in done.err
        done = lactl("audit", "verify", "--json")
        assert json.loads(done.out) == found
        assert json.loads(done.err)["error"]["code"] == "history_damaged"


def verification(**changes: Any) -> dict[str, Any]:
    return {"ok": True, "events": 20, "first_bad_seq": 0, "reason": "", "head_hash": "ab", **changes}


class TestTrace:
    def test_shows_steps_with_their_durations(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        events = [
            event(1, "agent.prompt", "prompt", data={"text": "check disk"}),
            event(2, "agent.llm_response", "response", request_id="req_1", data={"duration_ms": 800}),
            event(4, "tool.bash", "invocation", request_id="req_1", data={"tool": "bash"}),
            event(5, "agent.llm_response", "response", request_id="req_2", data={"model": "m"}),
            event(6, "session.turn", "done", data={"steps": 2}),
        ]
        scripted.answer("History.Query", {"events": events})
        lines = lactl("trace", "show", "trace_1").out.splitlines()
        assert lines[0].startswith("trace_1  ops ses_1  ")
        assert lines[0].endswith("  5.0s")
        assert lines[1:] == [
            "├─ +0ms    agent.prompt:prompt  check disk",
            "├─ step req_1  2.0s",
            "│  ├─ +1.0s   agent.llm_response:response  800ms",
            "│  └─ +3.0s   tool.bash:invocation  tool=bash",
            "├─ step req_2  0ms",
            "│  └─ +4.0s   agent.llm_response:response  model=m",
            "└─ +5.0s   session.turn:done  steps=2",
        ]
        steps = json.loads(lactl("trace", "show", "trace_1", "--json").out)["steps"]
        assert [step["request_id"] for step in steps] == ["", "req_1", "req_2", ""]

    def test_an_unknown_turn_is_not_found(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("History.Query", {"events": []})
        assert lactl("trace", "show", "trace_x").status == 66


class TestTools:
    def test_list_has_the_actions_or_what_is_wrong(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Tools.List", {"tools": [tool(), tool("bad", actions=[], problem="SyntaxError")]})
        rows = [line.split("\t") for line in lactl("tools", "list").out.splitlines()]
        assert [(row[0], row[1], row[3]) for row in rows] == [
            ("systemd", "status", "Units of systemd"),
            ("bad", "-", "SyntaxError"),
        ]

    def test_show_has_the_arguments(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Tools.Get", {"tool": tool()})
        out = lactl("tools", "show", "systemd").out
        assert "systemd.status  [observe]  Show one unit." in out
        assert "  unit: string (required)\n  lines: integer (default 50)\n  mode: string\n" in out
        assert "  since: string\n  deep: boolean (Look below.)\n" in out

    def test_call_gives_each_argument_the_type_of_the_schema(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        scripted.answer("Tools.Get", {"tool": tool()})
        scripted.turn({"type": "done", "text": "active"}, method="Tools.Call")
        words = ["unit=5", "lines=7", "mode=1", "since=null", "deep=true", "other=a=b"]
        assert lactl("tools", "call", "ops", "systemd.status", *words).out == "active\n"
        assert scripted.parameters("Tools.Call") == {
            "agent": "ops",
            "tool": "systemd",
            "action": "status",
            "args": {"unit": "5", "lines": 7, "mode": "1", "since": "null", "deep": True, "other": "a=b"},
        }

    def test_call_takes_an_object(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn({"type": "error", "code": "policy_denied", "message": "No."}, method="Tools.Call")
        done = lactl("tools", "call", "ops", "systemd.status", "--args", '{"unit": "a"}')
        assert done.status == 77
        assert scripted.parameters("Tools.Call")["args"] == {"unit": "a"}

    def test_call_of_an_action_that_does_not_exist(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Tools.Get", {"tool": tool()})
        done = lactl("tools", "call", "ops", "systemd.fly", "unit=a")
        assert done.status == 66
        assert "It has: status" in done.err


class TestSkills:
    def test_list_and_show(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Skills.List", {"skills": [skill()]})
        scripted.answer("Skills.Get", {"skill": skill(body="# Disk\n\nLook.\n")})
        assert lactl("skills", "list").out.startswith("disk\tyes\tobserve\t")
        assert lactl("skills", "show", "disk").out.endswith("\n\n# Disk\n\nLook.\n")


class TestReload:
    def test_prints_what_was_done_and_tells_problems_apart(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        found = {
            "applied": ["limits"],
            "needs_restart": ["daemon.socket_group"],
            "problems": ["x is broken."],
        }
        scripted.answer("Manager.Reload", {"reloaded": found})
        done = lactl("reload")
        assert done.out == "applied\tlimits\nneeds restart\tdaemon.socket_group\n"
        assert done.err == "lactl: x is broken.\n"
        assert json.loads(lactl("reload", "--json").out) == found


class TestConfig:
    def test_check_accepts_good_files_without_a_daemon(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "lightagentd.toml").write_text("[limits]\nmax_steps = 7\n")
        done = lactl("config", "check", "--folder", str(tmp_path))
        assert done.status == 0
        assert f"files\t{tmp_path}/lightagentd.toml" in done.out

    def test_check_names_the_key_that_is_wrong(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "lightagentd.toml").write_text("[limits]\nmax_step = 7\n")
        done = lactl("config", "check", "--folder", str(tmp_path))
        assert done.status == 78
        assert "lightagentd.toml:2" in done.err
        assert "max_steps" in done.err

    def test_show_says_where_each_value_came_from(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "lightagentd.toml").write_text("[limits]\nmax_steps = 7\n")
        lines = lactl("config", "show", "--folder", str(tmp_path)).out.splitlines()
        assert f"limits.max_steps\t7\t{tmp_path}/lightagentd.toml" in lines
        assert 'models.default\t"runbook"\tdefault' in lines
