"""The commands that show and change things: which call each makes, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Lactl, environment, on_terminal
from tests.conftest import write
from tests.scripted_daemon import Connection, ScriptedDaemon, agent, event, message, session, skill, tool

SESSION = "ses_0123456789abcdef"
TRACE = "trace_0123456789abcdef"


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

    def test_set_prints_the_model_in_force(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Agents.Set", {"agent": agent(model="ollama/q", model_from="set")})
        assert lactl("agents", "set", "ops", "--model", "ollama/q").out == "ops\tollama/q\n"
        assert scripted.parameters("Agents.Set") == {"name": "ops", "model": "ollama/q"}
        assert "--model is missing" in lactl("agents", "set", "ops").err

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
        scripted.answer("History.Page", page())
        filters = [
            "--agent",
            "ops",
            "--session",
            SESSION,
            "--topic",
            "tool",
            "--trace",
            TRACE,
            "--limit",
            "3",
        ]
        filters += ["--type", "invocation", "--tool", "bash", "--effect", "change", "--decision", "ask"]
        filters += ["--caller", "root", "--request", f"req_{1:016x}", "--text", "nginx"]
        lactl("history", *filters, "--since", "2026-11-21T10:00:00Z", "--until", "2026-11-21T10:00:01Z")
        assert scripted.parameters("History.Page") == {
            "agent": "ops",
            "session": SESSION,
            "topic": "tool",
            "type": "invocation",
            "tool": "bash",
            "effect": "change",
            "decision": "ask",
            "caller": 0,
            "trace": TRACE,
            "request": f"req_{1:016x}",
            "text": "nginx",
            "limit": 3,
            "since_us": 1_795_255_200_000_000,
            "until_us": 1_795_255_201_000_000,
        }

    def test_reads_pages_until_there_are_enough(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        pages = [page(event(8), event(9), next_seq=7), page(next_seq=5), page(event(5), event(3))]
        asked: list[dict[str, Any]] = []

        def answer(connection: Connection, call: dict[str, Any]) -> None:
            asked.append(call["parameters"])
            connection.reply(pages[len(asked) - 1])

        scripted.handle("History.Page", answer)
        lines = lactl("history", "--limit", "4").out.splitlines()
        assert [line.split("\t")[0] for line in lines] == ["5", "3", "8", "9"]
        assert asked == [{"limit": 4}, {"limit": 2, "to_seq": 7}, {"limit": 2, "to_seq": 5}]

    def test_an_unknown_user_is_a_wrong_command_line(self, lactl: Lactl) -> None:
        done = lactl("history", "--caller", "no-such-user")
        assert (done.status, "there is no user 'no-such-user'" in done.err) == (2, True)

    def test_an_option_of_the_list_before_a_command_is_refused(self, lactl: Lactl) -> None:
        done = lactl("events", "--agent", "ops", "schema")
        assert (done.status, done.out) == (2, "")
        assert "--agent goes with the list, not before 'schema'." in done.err

    def test_prints_an_event_as_a_line(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        data = {"tool": "bash", "duration_ms": 1500, "args": {"command": "df"}, "text": "two\nlines", "n": 0}
        events = [event(7, "tool.bash", "invocation", data=data), event(8, data=None, agent="")]
        scripted.answer("History.Page", page(*events))
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
        scripted.answer("History.Page", page(event(1), event(2)))
        out = lactl("history", "--json").out
        assert [json.loads(line) for line in out.splitlines()] == [event(1), event(2)]

    def test_a_line_fits_the_terminal(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("History.Page", page(event(1, data={"content": "\x1b[31mlong " * 100})))
        (line,) = on_terminal(["history"], env=environment(NO_COLOR="1"), width=100).out.splitlines()
        assert 80 < len(line) <= 100
        assert "\x1b" not in line


def page(*events: dict[str, Any], next_seq: int = 0) -> dict[str, Any]:
    """What `History.Page` answers."""
    return {"page": {"events": list(events), "next_seq": next_seq}}


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
            "problems": ["x is broken.", "The rules are the old ones."],
            "refused": [],
        }
        scripted.answer("Manager.Reload", {"reloaded": found | {"problems": found["problems"][:1]}})
        done = lactl("reload")
        assert done.out == "applied\tlimits\nneeds restart\tdaemon.socket_group\n"
        assert done.err == "lactl: x is broken.\n"
        scripted.answer("Manager.Reload", {"reloaded": found | {"refused": found["problems"][1:]}})
        done = lactl("reload")
        assert (done.status, done.err.splitlines()[:2]) == (
            78,
            ["lactl: x is broken.", "lactl: The rules are the old ones."],
        )
        done = lactl("reload", "--json")
        assert (done.status, json.loads(done.out)["applied"]) == (78, ["limits"])


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

    def test_check_names_what_agents_name_and_do_not_have(self, lactl: Lactl, tmp_path: Path) -> None:
        front = "tools: [bash, bash.exec, human, memory, plan, nosuch]\nskills: [disk-check, nosuch-either]"
        write(tmp_path / "agent" / "one" / "AGENT.md", f"---\n{front}\n---\n")
        write(tmp_path / "agent" / "two" / "AGENT.md", "---\nnonsense: 1\n---\n")
        done = lactl("config", "check", "--folder", str(tmp_path))
        assert done.status == 0
        assert [line for line in done.out.splitlines() if line.startswith("agents\t")] == [
            f"agents\tThe agent two is disabled: {tmp_path}/agent/two/AGENT.md, line 2: the key nonsense is"
            " not known.",
            "agents\tThe agent one names tools that do not exist: nosuch.",
            "agents\tThe agent one names skills that do not exist: nosuch-either.",
            "agents\tThe agent one has skills, but not the tool skill that reads and runs them.",
        ]

    def test_check_names_all_that_is_wrong_in_every_file(self, lactl: Lactl, tmp_path: Path) -> None:
        rule = '[[rule]]\nname = "one"\ndecision = "allow"\ntool = "df"\n'
        texts = {
            "lightagentd.toml": "[limits]\nmax_step = 7\nmax_steps = 0\n",
            "lightagentd.toml.d/a.toml": "[daemon\n",
            "policy.d/a.toml": rule,
            "policy.d/b.toml": rule,
            "policy.d/c.toml": '[[rule]]\ndecision = "allow"\n',
            "prompts/daily.toml": 'agent = "ops"\nprompt = "check disk"\n',
            "prompts/weekly.toml": "agent = 7\n",
        }
        for name, text in texts.items():
            write(tmp_path / name, text)
        done = lactl("config", "check", "--folder", str(tmp_path), "--json")
        found = json.loads(done.out)
        assert (done.status, found["ok"], len(found["files"])) == (78, False, len(texts))
        said = [one["message"].removeprefix(f"{tmp_path}/") for one in found["errors"]]
        for beginning in (
            "lightagentd.toml:2: the key 'limits.max_step' is not known.",
            "lightagentd.toml:3: limits.max_steps: ",
            "lightagentd.toml.d/a.toml is not TOML",
            "policy.d/b.toml:1: a rule one is in ",
            "policy.d/c.toml:1: the rule without a name: the key 'name' is missing.",
            "prompts/daily.toml: the key 'owner' is missing.",
            "prompts/weekly.toml:1: agent: ",
        ):
            assert sum(one.startswith(beginning) for one in said) == 1, (beginning, said)
        assert len(said) == 7
        hints = {one["suggestion"] for one in found["errors"]}
        assert 'Add it, for example: owner = "carol"' in hints
        assert "result\t7 errors\n" in lactl("config", "check", "--folder", str(tmp_path)).out
        assert lactl("config", "check", "--folder", str(tmp_path / "none")).status == 66

    def test_show_says_where_each_value_came_from(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "lightagentd.toml").write_text("[limits]\nmax_steps = 7\n")
        lines = lactl("config", "show", "--folder", str(tmp_path)).out.splitlines()
        assert f"limits.max_steps\t7\t{tmp_path}/lightagentd.toml" in lines
        assert 'models.default\t"runbook"\tdefault' in lines
