"""The events of a turn as lines, and as `lactl prompt` shows them."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.cli.chatting.catching_up import short_lines
from lightagentd.cli.chatting.progress import Progress
from lightagentd.cli.turn_lines import (
    answer_line,
    call_line,
    compacted_line,
    plan_event_line,
    plan_lines,
    result_line,
)
from lightagentd.host.users import called
from tests.cli.conftest import Lactl, environment, on_terminal
from tests.scripted_daemon import ScriptedDaemon

EVIL = "a\x1b]0;t\x07\x1b[2Jb\nc\u202e"
PLAN: dict[str, Any] = {
    "session": "ses_1",
    "phase": "applying",
    "title": "Move the logs",
    "tasks": [
        {"id": "one", "text": "stop it", "check": "", "state": "done", "note": "", "trace_id": "trace_1"},
        {
            "id": "two",
            "text": "move",
            "check": "test -e /x",
            "state": "failed",
            "note": "no /x",
            "trace_id": "",
        },
    ],
    "stopped_at": "two",
    "note": "It waits.",
}
COMPACTED = {"kept": 3, "removed": 40, "tokens_before": 9000, "tokens_after": 800, "summarized_by": "model"}


def test_a_call_leaves_out_what_says_nothing() -> None:
    event = {
        "tool": "bash",
        "action": "exec",
        "effect": "observe",
        "args": {"command": "ls", "effect": "observe", "timeout_s": None, "script": "", "words": []},
        "decision": "allow",
    }
    assert call_line(event) == "→ bash.exec command=ls [observe]"
    assert call_line(event | {"decision": ""}) == "→ bash.exec command=ls [observe]", "refused before"
    event |= {"effect": "change", "decision": "ask"}
    assert call_line(event) == "→ bash.exec command=ls effect=observe [change] ask"


def test_arguments_in_arguments_are_json() -> None:
    args = {"name": "disk-check", "args": {"path": "/srv"}}
    event = {"tool": "skill", "action": "run", "effect": "observe", "args": args, "decision": "allow"}
    assert call_line(event) == '→ skill.run name=disk-check args={"path": "/srv"} [observe]'


def test_a_call_that_was_refused_may_have_no_action() -> None:
    event = {"tool": "no_such", "action": "", "result": "tool_not_found", "text": "no", "duration_ms": 0}
    assert result_line(event) == "← no_such tool_not_found 0ms no"


@pytest.mark.parametrize(("length", "end"), [(900, "enable nginx"), (1100, "…")])
def test_why_a_call_failed_is_shown_to_its_end_or_marked_as_cut(length: int, end: str) -> None:
    text = "x" * length + " Root can enable it: systemctl enable nginx"
    line = result_line({"tool": "systemd", "action": "start", "result": "tool_failed", "text": text})
    assert line.endswith(end)


def test_what_runs_is_said_now_and_then_where_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    progress, told = Progress(), []
    progress.begin("trace_1")
    for second in range(60):
        now_s = 100.0 + second
        if second == 20:
            progress.call({"call_id": "call_1", "trace_id": "trace_1", "tool": "bash", "action": "exec"})
        told.append(progress.sign())
    assert [line for line in told if line] == [
        "· working 5s, Ctrl-C cancels",
        "· working 10s, Ctrl-C cancels",
        "· bash.exec 0s",
        "· bash.exec 20s",
    ]
    progress.waiting, now_s = True, 1000.0
    assert progress.sign() == "", "a person is asked"


def test_an_answer_that_is_shown_again_is_laid_out() -> None:
    answer = {"role": "assistant", "content": "**yes**:\n\n- one\n- two\n- three"}
    assert short_lines(answer, 4, 80) == ["  yes:", "  ", "   • one", "   • two", "  … more lines: 1"]
    assert short_lines({**answer, "role": "user"}, 9, 80)[0] == "> **yes**:"


def test_a_plan() -> None:
    assert plan_event_line({"plan": PLAN, "task": "two"}) == "plan, task 2 of 2 failed: no /x  move"
    assert plan_event_line({"plan": PLAN, "task": ""}) == "plan applying: Move the logs, 2 tasks. It waits."
    assert plan_lines(PLAN) == [
        "applying: Move the logs",
        "[x] one  stop it",
        "[!] two  move",
        "      check: test -e /x",
        "      failed: no /x",
        "Stopped at the task two: retry, skip or abort.",
        "It waits.",
    ]


def test_each_line_is_one_line_and_safe() -> None:
    task = PLAN["tasks"][1] | {"id": EVIL, "text": EVIL, "check": EVIL, "note": EVIL, "state": EVIL}
    plan = PLAN | {"title": EVIL, "tasks": [task], "note": EVIL, "stopped_at": EVIL, "phase": EVIL}
    event = {
        "tool": EVIL, "action": EVIL, "effect": EVIL, "args": {EVIL: EVIL}, "decision": EVIL, "result": EVIL,
        "text": EVIL, "approval": EVIL, "input": EVIL, "state": EVIL, "note": EVIL, "answer": EVIL,
        "summarized_by": EVIL, "plan": plan, "task": EVIL,
    }  # fmt: skip
    lines = [
        *(function(event) for function in (call_line, result_line, answer_line)),
        answer_line(event | {"approval": None}),
        compacted_line(event),
        plan_event_line(event),
        plan_event_line(event | {"task": ""}),
        *plan_lines(plan),
    ]
    for line in lines:
        assert not [char for char in line if char in "\x1b\x07\n\u202e"], line


def test_a_prompt_on_a_terminal_shows_what_else_happens(scripted: ScriptedDaemon) -> None:
    question = {"input": "inp_1", "call_id": "call_1", "question": "Which?\x1b[2J", "choices": ["a", "b"]}
    scripted.turn(
        {"type": "compacted", **COMPACTED},
        {"type": "plan", "plan": PLAN, "task": "two"},
        {"type": "input_requested", "expires_us": 1, **question},
        {"type": "input_answered", "input": "inp_1", "state": "answered", "answer": "a", "answered_by": 7},
        {"type": "done", "text": "ok", "steps": 1, "duration_ms": 1},
    )
    done = on_terminal(["prompt", "ops", "x"], env=environment(NO_COLOR="1", TERM="dumb"))
    out = done.out
    assert "40 messages summarized, 3 kept, 9000 → 800 tokens (by model)." in out
    assert "plan, task 2 of 2 failed" in out
    assert "? Which?\\x1b[2J\n  1) a\n  2) b\n" in out
    assert "lactl answer inp_1 TEXT" in done.err, "standard input is no terminal"
    assert f"inp_1 answered by {called(7)}: a\n" in out


def test_in_a_pipe_a_question_is_told_on_standard_error(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.turn(
        {"type": "input_requested", "input": "inp_1", "question": "Which?", "choices": [], "expires_us": 1},
        {"type": "done", "text": "ok", "steps": 1, "duration_ms": 1},
    )
    done = lactl("prompt", "ops", "x", "--quiet")
    assert done.out == "ok\n"
    assert "The turn waits for an answer: Which?" in done.err
    assert "lactl answer inp_1 TEXT" in done.err
