"""`lactl sessions`: what it asks the daemon for, and what it prints."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import Any

import pytest

from tests.cli.conftest import Finished, Lactl, environment, on_terminal, start
from tests.scripted_daemon import Connection, ScriptedDaemon, message, session

SESSION = "ses_0123456789abcdef"


def plain() -> dict[str, str]:
    return environment(NO_COLOR="1")


class TestList:
    def test_a_line_fits_into_eighty_columns(self, scripted: ScriptedDaemon) -> None:
        found = [
            session(SESSION, title="Why is the disk full", owner=os.geteuid()),
            session(
                "ses_1", owner=os.geteuid(), state="waiting", paused=True, mode="drafting", current=False
            ),
        ]
        scripted.answer("Sessions.List", {"sessions": found})
        done = on_terminal(["sessions", "list"], width=80, env=plain())
        heading, first, second = done.out.splitlines()
        assert heading.split() == ["ID", "AGENT", "CUR", "STATE", "TITLE"]
        assert all(len(line) <= 80 for line in done.out.splitlines())
        assert first.split()[:4] == [SESSION[:12], "ops", "*", "idle"]
        assert second.split()[2:4] == ["-", "waiting,paused,drafting"]

    def test_those_of_others_are_told_apart_on_a_terminal(self, scripted: ScriptedDaemon) -> None:
        found = [session(SESSION, owner=os.geteuid()), session("ses_1", owner=os.geteuid() + 4711)]
        scripted.answer("Sessions.List", {"sessions": found})
        heading, first, second = on_terminal(["sessions", "list"], env=plain()).out.splitlines()
        assert heading.split()[2:4] == ["UID", "CUR"]
        assert [line.split()[2] for line in (first, second)] == [str(each["owner"]) for each in found]

    def test_the_children_of_a_session_are_listed_apart_and_none_is_current(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        scripted.answer("Sessions.List", {"sessions": [session("ses_1", parent=SESSION, current=False)]})
        cells = lactl("sessions", "list", "--children", SESSION).out.rstrip("\n").split("\t")
        assert scripted.parameters("Sessions.List")["parent"] == SESSION
        assert cells[:3] == ["ses_1", "ops", "-"]

    def test_a_pipe_gets_the_time_whole(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.answer("Sessions.List", {"sessions": [session(SESSION)]})
        cells = lactl("sessions", "list").out.rstrip("\n").split("\t")
        assert len(cells) == 7
        assert cells[5].startswith("2025-11-2")


@pytest.mark.parametrize(
    ("arguments", "method", "parameters"),
    [
        (["new", "ops"], "Create", {"agent": "ops"}),
        (["new", "ops", "--title", "disks"], "Create", {"agent": "ops", "title": "disks"}),
        (["switch", SESSION], "Switch", {"session": SESSION}),
        (["rename", SESSION, "my", "disks"], "Rename", {"session": SESSION, "title": "my disks"}),
        (["pause", SESSION], "Pause", {"session": SESSION}),
        (["resume", SESSION], "Resume", {"session": SESSION}),
        (["fork", SESSION], "Fork", {"session": SESSION}),
        (
            ["fork", SESSION, "--title", "b", "--up-to", "7"],
            "Fork",
            {"session": SESSION, "title": "b", "up_to_seq": 7},
        ),
    ],
)
def test_what_changes_a_session_prints_its_id(
    scripted: ScriptedDaemon, lactl: Lactl, arguments: list[str], method: str, parameters: dict[str, Any]
) -> None:
    made = session("ses_fedcba9876543210", title="disks")
    scripted.answer(f"Sessions.{method}", {"session": made})
    assert lactl("sessions", *arguments) == Finished(status=0, out="ses_fedcba9876543210\n", err="")
    assert scripted.parameters(f"Sessions.{method}") == parameters
    assert json.loads(lactl("sessions", *arguments, "--json").out) == made
    assert "ses_fedcba9876543210 with ops: disks\n" in on_terminal(["sessions", *arguments], env=plain()).out


def test_show_tells_what_was_used_and_leaves_out_what_is_empty(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    scripted.answer("Sessions.Get", {"session": session(SESSION, interrupted="It stopped in a call.")})
    scripted.answer("Sessions.Messages", {"messages": []})
    scripted.answer("Usage.Get", {"usage": [{"total_tokens": 1234, "cost": 0.5}]})
    shown = lactl("sessions", "show", SESSION).out
    assert "interrupted\tIt stopped in a call.\n" in shown
    assert "tokens\t1234\ncost\t0.5000\n" in shown
    assert "forked_from\t-\n" in shown
    assert "forked_from" not in on_terminal(["sessions", "show", SESSION], env=plain()).out
    scripted.fail("Usage.Get", "org.lightagent1.Internal", message="No.")
    assert "tokens\t-\n" in lactl("sessions", "show", SESSION).out


@pytest.mark.parametrize("command", ["wait", "sessions show"])
def test_an_answer_is_markdown_on_a_terminal_and_its_source_in_a_pipe(
    scripted: ScriptedDaemon, lactl: Lactl, command: str
) -> None:
    source = "**full**\n\n```\n" + "x" * 200 + "\n```"
    found = session(SESSION)
    scripted.answer("Sessions.Get", {"session": found})
    scripted.answer("Sessions.Wait", {"session_info": found})
    scripted.answer("History.Query", {"events": []})
    scripted.answer("Usage.Get", {"usage": []})
    messages = [message("user", "**why**?"), message("assistant", source)]
    scripted.answer("Sessions.Messages", {"messages": messages})
    assert f"{source}\n" in lactl(*command.split(), SESSION).out
    out = on_terminal([*command.split(), SESSION], width=80, env=plain()).out
    assert f"full\n\n{'x' * 80}\n{'x' * 80}\n{'x' * 40}\n" in out
    assert ("**why**?\n" in out) == (command != "wait"), "what a person wrote stays as it is"


class TestDelete:
    """The daemon says whether there is something to lose."""

    @pytest.fixture(autouse=True)
    def script(self, scripted: ScriptedDaemon) -> None:
        def delete(connection: Connection, call: dict[str, Any]) -> None:
            if call["parameters"].get("confirmed"):
                connection.reply({})
            else:
                connection.error("org.lightagent1.ConfirmationRequired", message="It has 3 turns.")

        scripted.handle("Sessions.Delete", delete)

    def test_a_script_has_to_say_yes(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        done = lactl("sessions", "delete", SESSION)
        assert done.status == 73
        assert done.err == (
            f"lactl: It has 3 turns.\nTo delete it all the same: lactl sessions delete --yes {SESSION}\n"
        )
        assert lactl("sessions", "delete", "--yes", SESSION) == Finished(status=0, out="", err="")
        assert json.loads(lactl("sessions", "delete", "-y", SESSION, "--json").out) == {"deleted": SESSION}

    @pytest.mark.parametrize(
        ("typed", "words", "asked_twice"),
        [(b"y\n", f"Deleted {SESSION}.", True), (b"\n", "It stays.", False), (b"\x04", "It stays.", False)],
    )
    def test_a_person_is_asked(
        self, scripted: ScriptedDaemon, typed: bytes, words: str, asked_twice: bool
    ) -> None:
        ours, theirs = pty.openpty()
        process = start(
            ["sessions", "delete", SESSION], env=plain(), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
        )
        with process:
            os.close(theirs)
            seen = b""
            while b"[y/N] " not in seen:
                seen += os.read(ours, 1000)
            assert b"It has 3 turns. Delete it?" in seen
            os.write(ours, typed)
            while words.encode() not in seen:
                seen += os.read(ours, 1000)
            assert process.wait(60) == 0
        os.close(ours)
        assert len(scripted.calls) == 1 + asked_twice


def test_help_has_a_topic_on_sessions(lactl: Lactl) -> None:
    assert "current" in lactl("help", "sessions").out
