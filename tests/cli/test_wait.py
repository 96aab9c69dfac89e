"""`lactl prompt --no-wait` and `--timeout`, and `lactl wait`."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.cli.conftest import Finished, Lactl, environment, on_terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, event, message, session, turn_event

SESSION = "ses_0123456789abcdef"


def started(scripted: ScriptedDaemon) -> threading.Event:
    """Have a turn begin and go on until the event that is returned is set."""
    over = threading.Event()

    def prompt(connection: Connection, call: dict[str, Any]) -> None:
        connection.reply({"event": turn_event("started", model="m")}, continues=True)
        over.wait(60)

    scripted.handle("Sessions.Prompt", prompt)
    return over


class TestNoWait:
    def test_prints_where_the_turn_is_once_the_prompt_is_stored(
        self, scripted: ScriptedDaemon, lactl: Lactl
    ) -> None:
        over = started(scripted)
        assert lactl("prompt", "ops", "x", "--no-wait") == Finished(status=0, out="ses_1\ttrace_1\n", err="")
        done = lactl("prompt", "ops", "x", "--no-wait", "--json")
        assert json.loads(done.out) == {"session": "ses_1", "trace_id": "trace_1"}
        assert lactl("prompt", "ops", "x", "--no-wait", "-q").out == ""
        assert "lactl wait ses_1" in on_terminal(["prompt", "ops", "x", "--no-wait"]).out
        over.set()
        assert {call["method"] for call in scripted.calls} == {"Sessions.Prompt"}

    def test_a_prompt_that_is_not_stored_is_an_error(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.fail("Sessions.Prompt", "org.lightagent1.SessionPaused", message="It is paused.")
        done = lactl("prompt", "ops", "x", "--no-wait")
        assert (done.status, done.out) == (73, "")

    def test_does_not_go_with_a_timeout(self, lactl: Lactl) -> None:
        assert lactl("prompt", "ops", "x", "--no-wait", "--timeout", "1").status == 2


class TestTimeout:
    def test_ends_with_124_and_the_turn_goes_on(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        over = started(scripted)
        done = lactl("prompt", "ops", "x", "--timeout", "0.05")
        over.set()
        assert done == Finished(
            status=124,
            out="",
            err="lactl: The turn did not end within 0.05 seconds; it goes on in ses_1.\n"
            "Wait for it with 'lactl wait ses_1', or end it with 'lactl cancel ses_1'.\n",
        )
        assert [call["method"] for call in scripted.calls] == ["Sessions.Prompt"]

    def test_is_over_in_the_middle_of_a_line_too(self, scripted: ScriptedDaemon) -> None:
        over = threading.Event()

        def prompt(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": turn_event("text_delta", text="half a")}, continues=True)
            over.wait(60)

        scripted.handle("Sessions.Prompt", prompt)
        done = on_terminal(["prompt", "ops", "x", "--timeout", "0.05"], env=environment(TERM="dumb"))
        over.set()
        assert (done.status, done.out) == (124, "half a\n")

    def test_does_not_matter_to_a_turn_that_ends(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.turn(
            {"type": "started"}, {"type": "text_delta", "text": "o"}, {"type": "done", "text": "ok"}
        )
        assert lactl("prompt", "ops", "x", "--timeout", "60") == Finished(status=0, out="ok\n", err="")

    @pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "86401"])
    def test_is_a_number_of_seconds(self, lactl: Lactl, seconds: str) -> None:
        assert lactl("prompt", "ops", "x", "--timeout", seconds).status == 2


class TestWait:
    def script(self, scripted: ScriptedDaemon, *ends: dict[str, Any], **changes: Any) -> None:
        scripted.answer("Sessions.Wait", {"session_info": session(SESSION, **changes)})
        messages = [message("user", "x"), message("assistant", "It runs.\n")]
        scripted.answer("Sessions.Messages", {"messages": messages})

        def query(connection: Connection, call: dict[str, Any]) -> None:
            topic = call["parameters"]["topic"]
            connection.reply({"events": [each for each in ends if each["topic"] == topic]})

        scripted.handle("History.Query", query)

    def test_an_idle_session_gives_its_last_answer(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        failed = event(5, "agent.error", "model_failed", data={"message": "before"})
        self.script(scripted, failed, event(6, "session.turn", "started"), event(9, "session.turn", "done"))
        assert lactl("wait", SESSION) == Finished(status=0, out="It runs.\n", err="")
        assert scripted.parameters("Sessions.Wait") == {"session": SESSION}
        assert lactl("wait", SESSION, "--quiet") == Finished(status=0, out="", err="")
        assert json.loads(lactl("wait", SESSION, "--json").out) == {
            "session": SESSION,
            "state": "idle",
            "ended": "done",
            "answer": "It runs.\n",
        }

    @pytest.mark.parametrize(
        ("code", "status"),
        [("cancelled", 130), ("budget_exceeded", 79), ("interrupted", 1), ("model_failed", 70)],
    )
    def test_a_turn_that_failed_gives_its_error(
        self, scripted: ScriptedDaemon, lactl: Lactl, code: str, status: int
    ) -> None:
        data = {"code": code, "message": "It failed.", "suggestion": "Do this."}
        self.script(scripted, event(5, "session.turn", "done"), event(9, "agent.error", code, data=data))
        assert lactl("wait", SESSION) == Finished(status=status, out="", err="lactl: It failed.\nDo this.\n")

    def test_a_model_that_failed_in_between_is_no_end(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        self.script(scripted, event(5, "session.turn", "done"), event(9, "agent.error", "fallback"))
        assert lactl("wait", SESSION).status == 0

    def test_a_session_without_a_turn_gives_nothing(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        self.script(scripted, turns=0)
        scripted.answer("Sessions.Messages", {"messages": []})
        assert lactl("wait", SESSION) == Finished(status=0, out="", err="")

    def test_a_paused_session_says_what_waits(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        self.script(scripted, paused=True, queued=2)
        done = lactl("wait", SESSION)
        assert done.status == 0
        assert done.err == (
            f"lactl: {SESSION} is paused; prompts that wait: 2.\nGo on: lactl sessions resume {SESSION}\n"
        )

    def test_a_plan_that_stopped_says_so(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        self.script(scripted, mode="applying")
        assert f"lactl plan show {SESSION}" in lactl("wait", SESSION).err

    def test_the_time_is_the_daemons_to_measure(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        scripted.fail("Sessions.Wait", "org.lightagent1.TimedOut", message="Not yet.")
        done = lactl("wait", SESSION, "--timeout", "3")
        assert done.status == 124
        assert "within 3 seconds; it goes on" in done.err
        assert scripted.parameters("Sessions.Wait") == {"session": SESSION, "timeout_s": 3.0}
