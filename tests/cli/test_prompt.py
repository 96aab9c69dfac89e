from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.client.blocking import MAX_MESSAGE_BYTES
from tests.cli.conftest import Finished, Lactl, environment, finish, on_terminal, start
from tests.cli.terminal import Screen, Terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, turn_event

SESSION = "ses_0123456789abcdef"
CALL = {
    "call_id": "call_1",
    "tool": "systemd",
    "action": "status",
}
TURN: list[dict[str, Any]] = [
    {"type": "queued", "position": 2},
    {"type": "started", "model": "m"},
    {"type": "text_delta", "text": "Let me "},
    {"type": "text_delta", "text": "look."},
    {"type": "tool_call", **CALL, "effect": "observe", "decision": "allow", "args": {"unit": "a.service"}},
    {"type": "tool_output", "call_id": "call_1", "stream": "stdout", "text": "active"},
    {"type": "tool_result", **CALL, "result": "ok", "text": "active", "metadata": {}, "duration_ms": 310},
    {"type": "text_delta", "text": "It \x1b[31mru"},
    {"type": "text_delta", "text": "ns.\x1b"},
    {"type": "text_delta", "text": "[0m"},
    {"type": "usage", "prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0},
    {"type": "notice", "code": "model_unreachable", "message": "The turn goes on with runbook."},
    {"type": "done", "text": "It \x1b[31mruns.\x1b[0m", "steps": 2, "duration_ms": 900},
]


def seen(out: str) -> str:
    """What stands on a terminal at the end."""
    screen = Screen(100, 24)
    screen.feed(out.replace("\n", "\r\n"))
    return screen.text


THOUGHTS: list[dict[str, Any]] = [
    {"type": "reasoning_delta", "text": "First \x1b[31mthis,\n"},
    {"type": "reasoning_delta", "text": "then that."},
    {"type": "text_delta", "text": "Yes."},
    {"type": "done", "text": "Yes.", "steps": 1, "duration_ms": 9},
]


def sent(scripted: ScriptedDaemon) -> Any:
    return scripted.parameters("Sessions.Prompt")["text"]


class TestThePromptItself:
    @pytest.fixture(autouse=True)
    def script(self, scripted: ScriptedDaemon) -> None:
        scripted.turn({"type": "done", "text": "ok"})

    def test_is_the_words_of_the_command_line(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        assert lactl("prompt", "ops", "check", "disk", "--new") == Finished(status=0, out="ok\n", err="")
        assert scripted.parameters("Sessions.Prompt") == {"agent": "ops", "text": "check disk", "new": True}

    def test_goes_to_the_session_that_is_named(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        lactl("prompt", "ops", "check", "--session", SESSION)
        assert scripted.parameters("Sessions.Prompt") == {"agent": "ops", "text": "check", "session": SESSION}

    def test_is_standard_input_when_there_are_no_words(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        lactl("prompt", "ops", stdin=b"check disk\n\n")
        assert sent(scripted) == "check disk"

    def test_has_standard_input_after_the_words(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        lactl("prompt", "ops", "explain", stdin=b"  one\ntwo\n")
        assert sent(scripted) == "explain\n\n```standard input\n  one\ntwo\n```"

    def test_has_a_fence_that_the_input_cannot_close(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        lactl("prompt", "ops", "explain", stdin=b"a\n````\nb")
        assert sent(scripted) == "explain\n\n`````standard input\na\n````\nb\n`````"

    def test_marks_bytes_that_are_no_text(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        done = lactl("prompt", "ops", stdin=b"caf\xe9 \x00 \xc3\xa9")
        assert sent(scripted) == "caf\ufffd \ufffd é"
        assert done.err == (
            "lactl: Standard input is not UTF-8 at byte 4; invalid bytes are sent as U+FFFD.\n"
            "lactl: Standard input has NUL bytes; each is sent as U+FFFD.\n"
        )
        assert done.status == 0

    def test_marks_bytes_of_the_command_line_too(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        done = lactl("prompt", "ops", os.fsdecode(b"caf\xe9"))
        assert sent(scripted) == "caf\ufffd"
        assert "The text is not UTF-8" in done.err

    def test_of_ten_mebibytes_arrives(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        assert lactl("prompt", "ops", stdin=b"x" * (10 << 20)).status == 0
        assert len(sent(scripted)) == 10 << 20

    @pytest.mark.parametrize("stdin", [b"x" * MAX_MESSAGE_BYTES, b"x" * (MAX_MESSAGE_BYTES + 1)])
    def test_beyond_the_limit_is_not_sent(self, scripted: ScriptedDaemon, lactl: Lactl, stdin: bytes) -> None:
        done = lactl(
            "prompt",
            "ops",
            stdin=stdin,
        )
        assert done.status == errors.MessageTooLarge.exit_status
        assert "larger than" in done.err or "takes at most" in done.err
        assert scripted.calls == []

    @pytest.mark.parametrize("words", [[], [""], ["  ", "\n"]])
    def test_that_is_empty_is_refused(self, scripted: ScriptedDaemon, lactl: Lactl, words: list[str]) -> None:
        done = lactl("prompt", "ops", *words, stdin=b" \n")
        assert done.status == 65
        assert done.err.startswith("lactl: The prompt is empty.\n")
        assert scripted.calls == []

    def test_does_not_wait_for_a_terminal(self, scripted: ScriptedDaemon) -> None:
        ours, theirs = os.openpty()
        with start(["prompt", "ops", "check"], stdin=theirs, stdout=subprocess.PIPE) as process:
            out, _ = process.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert (process.returncode, out) == (0, b"ok\n")


class TestOutput:
    def test_a_pipe_gets_the_answer_as_it_is_and_notices_go_to_standard_error(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        scripted.turn(*TURN)
        done = lactl("prompt", "ops", "x")
        assert done.out == "It \x1b[31mruns.\x1b[0m\n"
        assert done.err == "lactl: The turn goes on with runbook.\n"

    def test_quiet_prints_the_answer_and_nothing_else(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn(*TURN)
        assert lactl("prompt", "-q", "ops", "x").err == ""
        done = on_terminal(["prompt", "--quiet", "ops", "x"])
        assert (done.out, done.err) == ("It runs.\n", "")

    def test_json_has_each_event_as_a_line(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn(*TURN)
        out = lactl("prompt", "--json", "ops", "x").out
        assert [json.loads(line) for line in out.splitlines()] == [turn_event(**each) for each in TURN]
        assert "\x1b" not in out

    def test_a_terminal_sees_text_and_dim_tool_calls_without_foreign_escapes(
        self, scripted: ScriptedDaemon
    ) -> None:
        scripted.turn(*TURN)
        done = on_terminal(["prompt", "ops", "x"], env=environment(NO_COLOR="1"))
        assert seen(done.out) == (
            "Waiting for 2 earlier prompts.\n"
            "Let me look.\n"
            "→ systemd.status unit=a.service [observe]\n"
            "← systemd.status ok 310ms  1 line\n"
            "It runs.\n"
            "The turn goes on with runbook.\n"
            "· 2 steps, 900ms"
        )
        coloured = on_terminal(["prompt", "ops", "x"]).out
        assert "\x1b[2m→ systemd.status unit=a.service [observe]\x1b[0m" in coloured
        assert "\x1b[31mruns" not in coloured

    def test_what_the_model_thinks_is_folded_or_shown(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn(*THOUGHTS)
        plain, whole = environment(NO_COLOR="1"), ["prompt", "--show-reasoning", "ops", "x"]
        end = "\nYes.\n· 1 step, 9ms"
        assert seen(on_terminal(["prompt", "ops", "x"], env=plain).out) == (
            f"· thought: First this, (2 lines){end}"
        )
        assert seen(on_terminal(whole, env=plain).out) == f"First this,\nthen that.{end}"
        assert lactl(*whole) == Finished(status=0, out="Yes.\n", err="First this,\nthen that.\n\n")
        assert lactl("prompt", "ops", "x") == Finished(status=0, out="Yes.\n", err="")

    def test_a_terminal_shows_markdown_as_it_streams_and_what_runs(self, scripted: ScriptedDaemon) -> None:
        """Each event comes when the one before it is on the screen."""
        steps: list[tuple[str, dict[str, Any]]] = [
            ("s, Ctrl-C cancels", {"type": "text_delta", "text": "# Head\n\nfirst **bo"}),
            ("first **bo", {"type": "text_delta", "text": "ld** words"}),
            ("first bold words", {"type": "tool_call", **CALL, "effect": "observe", "decision": "allow"}),
            (
                "· systemd.status ",
                {"type": "tool_output", "call_id": "call_1", "text": "line\n" * 9 + "end"},
            ),
            ("  end", {"type": "tool_result", **CALL, "result": "ok", "text": "active", "duration_ms": 310}),
            ("310ms  1 line", {"type": "done", "text": "- one\n- two", "steps": 2, "duration_ms": 900}),
        ]
        shown = threading.Semaphore(0)

        def handler(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": turn_event("started", model="m")}, continues=True)
            for _, event in steps:
                assert shown.acquire(timeout=60)
                connection.reply({"event": turn_event(**event)}, continues=event["type"] != "done")

        scripted.handle("Sessions.Prompt", handler)
        with Terminal(["prompt", "ops", "x"], env=environment()) as terminal:
            for words, _ in steps:
                terminal.until(words)
                shown.release()
            assert terminal.finished() == 0
        assert terminal.screen.text == (
            "Head\n\nfirst bold words\n→ systemd.status [observe]\n← systemd.status ok 310ms  1 line\n"
            " • one\n • two\n· 2 steps, 900ms"
        )

    def test_an_answer_that_was_not_streamed_is_shown(self, scripted: ScriptedDaemon) -> None:
        scripted.turn({"type": "text_delta", "text": "Thinking"}, {"type": "done", "text": "Answer"})
        assert seen(on_terminal(["prompt", "ops", "x"]).out) == "Thinking\n\nAnswer"

    def test_a_dumb_terminal_gets_lines(self, scripted: ScriptedDaemon) -> None:
        scripted.turn(*TURN)
        out = on_terminal(["prompt", "ops", "x"], env=environment(TERM="dumb")).out
        assert "It runs.\n" in out
        assert not [char for char in out if char < " " and char != "\n"]

    def test_a_call_that_failed_says_why(self, scripted: ScriptedDaemon) -> None:
        result = {"result": "tool_failed", "text": "Error (tool_failed): no\nsuch unit", "duration_ms": 5}
        scripted.turn({"type": "tool_result", **CALL, **result}, {"type": "done", "text": "Sorry."})
        done = on_terminal(["prompt", "ops", "x"], env=environment(NO_COLOR="1"))
        assert seen(done.out).startswith(
            "← systemd.status tool_failed 5ms Error (tool_failed): no such unit\n"
        )


class TestErrors:
    @pytest.mark.parametrize("row", errors.table(), ids=lambda row: row.code)
    def test_the_last_event_decides_the_status(
        self, scripted: ScriptedDaemon, lactl: Lactl, row: errors.ErrorRow
    ) -> None:
        scripted.turn({"type": "error", "code": row.code, "message": "It failed.", "suggestion": "Do this."})
        assert lactl("prompt", "ops", "x") == Finished(
            status=row.exit_status, out="", err="lactl: It failed.\nDo this.\n"
        )

    def test_an_unknown_code_is_status_one(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn({"type": "error", "code": "from_the_future", "message": "m"})
        assert lactl("prompt", "ops", "x").status == 1

    def test_a_stream_that_breaks_off_says_where_to_look(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        event = json.dumps({"parameters": {"event": turn_event("started")}, "continues": True})
        scripted.raw("Sessions.Prompt", event.encode() + b"\0")
        done = lactl("prompt", "ops", "x")
        assert done.status == 69
        assert "lactl sessions show ses_1" in done.err


class TestInterrupt:
    """Ctrl-C, sent as the terminal would: SIGINT."""

    @staticmethod
    def hold_until_cancelled(scripted: ScriptedDaemon) -> threading.Event:
        cancelled = threading.Event()

        def prompt(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": turn_event("started", model="m")}, continues=True)
            assert cancelled.wait(60)
            connection.reply({"event": turn_event("error", code="cancelled", message="It was cancelled.")})

        def cancel(connection: Connection, call: dict[str, Any]) -> None:
            cancelled.set()
            connection.reply({"cancelled": 1})

        scripted.handle("Sessions.Prompt", prompt)
        scripted.handle("Sessions.Cancel", cancel)
        return cancelled

    @staticmethod
    def run_until_started(scripted: ScriptedDaemon, *, presses: int = 1) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = start(["prompt", "--json", "ops", "x"], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        assert b"started" in process.stdout.readline()
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
        return process

    def test_cancels_the_turn_and_shows_its_end(self, scripted: ScriptedDaemon) -> None:
        self.hold_until_cancelled(scripted)
        with self.run_until_started(scripted) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert json.loads(out)["code"] == "cancelled"
        assert json.loads(err)["error"]["code"] == "cancelled"
        assert scripted.parameters("Sessions.Cancel") == {"session": "ses_1"}

    def test_a_daemon_that_does_not_cancel_is_left(self, scripted: ScriptedDaemon) -> None:
        cancelled = self.hold_until_cancelled(scripted)
        scripted.fail("Sessions.Cancel", "org.lightagent1.Internal", message="It failed.")
        with self.run_until_started(scripted) as process:
            _, err = process.communicate(timeout=60)
        cancelled.set()
        assert process.returncode == 130
        assert "The turn could not be cancelled: It failed." in err.decode()
        assert "Traceback" not in err.decode()

    def test_a_second_one_leaves_at_once(self, scripted: ScriptedDaemon) -> None:
        cancelled = self.hold_until_cancelled(scripted)
        asked = threading.Event()

        def cancel(connection: Connection, call: dict[str, Any]) -> None:
            asked.set()

        scripted.handle("Sessions.Cancel", cancel)
        with self.run_until_started(scripted) as process:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        cancelled.set()
        assert process.returncode == 130
        assert "Traceback" not in err.decode()
        assert scripted.parameters("Sessions.Cancel") == {"session": "ses_1"}

    def test_in_the_background_of_a_script_it_is_ignored(
        self, scripted: ScriptedDaemon, tmp_path: Path
    ) -> None:
        cancelled = self.hold_until_cancelled(scripted)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = self.run_until_started(scripted)
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            cancelled.set()
            process.communicate(timeout=60)
        assert [call["method"] for call in scripted.calls] == ["Sessions.Prompt"]


def test_other_commands_end_quietly_at_ctrl_c(scripted: ScriptedDaemon) -> None:
    asked = threading.Event()
    scripted.handle("Agents.List", lambda connection, call: asked.set())
    with start(["agents", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_a_real_pipe_is_read(scripted: ScriptedDaemon) -> None:
    scripted.turn({"type": "done", "text": "ok"})
    assert finish(["prompt", "ops", "explain"], stdin=b"a log\n").out == "ok\n"
    assert sent(scripted) == "explain\n\n```standard input\na log\n```"
