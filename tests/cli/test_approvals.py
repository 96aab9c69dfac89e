"""`lactl approvals`, `approve` and `deny`, and the question on the terminal of whoever prompted."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lightagentd.cli.question import question_lines, visible, warnings
from tests.cli.conftest import Lactl, environment, finish, on_terminal, start
from tests.scripted_daemon import Connection, ScriptedDaemon, approval, turn_event

ID = "apr_0123456789abcdef"
EVIL = "ls\x1b]0;\x1b[8m; rm -rf /\x07\x1b[0m\u202ekcab\u2066\u200b\r\x00\x9b2J\nsecond: line\n\ud800"
QUESTION = turn_event(
    "approval_requested",
    **{
        name: value
        for name, value in approval(id=ID).items()
        if name in ("call_id", "tool", "action", "effect", "args", "cwd", "preview", "rule", "reason")
        or name in ("expires_us", "volatile", "may_answer", "digest")
    },
    approval=ID,
)


# Listing


def test_it_lists_what_waits(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Approvals.List", {"approvals": [approval(), approval("apr_2", volatile=True)]})
    for arguments in (["approvals"], ["approvals", "list"]):
        out = lactl(*arguments).out.splitlines()
        assert len(out) == 2
        cells = out[0].split("\t")
        assert cells[:5] == [ID, "waiting", "ops", "file.write", "change"]
        assert json.loads(cells[6]) == {"path": "/etc/motd", "content": "hello"}
        assert "in memory" in out[1]
    assert "all" not in scripted.calls[-1]["parameters"]
    lactl("approvals", "list", "--all")
    assert scripted.calls[-1]["parameters"] == {"all": True}


def test_json_before_or_after_the_command_prints_what_the_daemon_says(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    scripted.answer("Approvals.List", {"approvals": [approval()]})
    for arguments in (["approvals", "--json"], ["approvals", "list", "--json"]):
        assert json.loads(lactl(*arguments).out) == [approval()]


def test_nothing_to_list(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Approvals.List", {"approvals": []})
    assert lactl("approvals").out == ""
    assert on_terminal(["approvals"]).out == "Nothing waits for an answer.\n"


# Showing


def test_it_shows_everything_that_would_run(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Approvals.Get", {"approval": approval(cwd="/srv", reason="because")})
    out = lactl("approvals", "show", ID).out
    for part in (ID, "file.write", "[change]", "/srv", "/etc/motd", "hello", "-hi", "+hello", "because"):
        assert part in out
    assert "memory" not in out
    scripted.answer("Approvals.Get", {"approval": approval(volatile=True)})
    assert "ends with the daemon" in lactl("approvals", "show", ID).out


def test_a_diff_has_colours_where_the_terminal_has(scripted: ScriptedDaemon) -> None:
    scripted.answer("Approvals.Get", {"approval": approval()})
    coloured = on_terminal(["approvals", "show", ID]).out
    assert "\x1b[32m+hello\x1b[0m" in coloured
    assert "\x1b[31m-hi\x1b[0m" in coloured
    plain = on_terminal(["approvals", "show", ID], env=environment(NO_COLOR="1")).out
    assert "\x1b" not in plain
    assert f"lactl approve {ID}" in plain


@pytest.mark.parametrize("field", ["args", "preview", "cwd", "note", "rule", "tool", "agent"])
def test_nothing_that_a_model_wrote_acts_on_the_terminal_or_hides(
    scripted: ScriptedDaemon, field: str
) -> None:
    found: dict[str, Any] = approval() | {field: {"command": EVIL} if field == "args" else EVIL}
    scripted.answer("Approvals.Get", {"approval": found})
    done = on_terminal(["approvals", "show", ID], env=environment(NO_COLOR="1"))
    assert done.status == 0
    assert "\\x1b]0;\\x1b[8m; rm -rf /\\x07" in done.out, "what a terminal would swallow is shown"
    for char in "\x1b\x07\u202e\u2066\u200b\x00\x9b":
        assert char not in done.out
    scripted.answer("Approvals.List", {"approvals": [found]})
    for arguments in (["approvals"], ["approvals", "--json"]):
        shown = on_terminal(arguments, width=500, env=environment(NO_COLOR="1")).out
        assert not [char for char in "\x1b\x07\u202e\u2066\u200b\x00\x9b" if char in shown]


def test_a_value_of_many_lines_cannot_look_like_our_own(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer(
        "Approvals.Get", {"approval": approval(args={"command": "true\n  effect: observe\nfile.read"})}
    )
    out = lactl("approvals", "show", ID).out.splitlines()
    assert "    |   effect: observe" in out
    assert "    | file.read" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\r\x7f\x85", "\\x0d\\x7f\\x85"),
        ("\u200b\u200e\u202e\u2069\ufeff", "\\u200b\\u200e\\u202e\\u2069\\ufeff"),
        ("\u2028\u00a0\u3000", "\\u2028\\xa0\\u3000"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
        ("a\u3164b\u115f\u2800\ufe0f\u034f", "a\\u3164b\\u115f\\u2800\\ufe0f\\u034f"),
        ("rm \u05d0 /1", "rm \\u05d0 /1"),
        ("\u0627\u0661", "\\u0627\\u0661"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("char", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_a_line_feed_ends_a_line_of_a_preview(char: str) -> None:
    """Else a line that is written could look like one that is there already, or is removed."""
    question = {
        "tool": "file", "action": "write", "effect": "change", "args": {}, "rule": "", "reason": "",
        "preview": f"+safe{char}-gone\n", "expires_us": 1, "volatile": False,
    }  # fmt: skip
    lines = "\n".join(question_lines(question)).splitlines()
    assert [line for line in lines if "gone" in line] == [f"  +safe{visible(char)}-gone"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ls\n" * 30, "31 lines"),
        ("x" * 2000, "2000 characters"),
        ("ls" + " " * 60 + "; rm -rf /", "many blanks"),
        ("ls" + "\n" * 12 + "rm", "many blanks"),
        ("/etc/p\u0430sswd", "CYRILLIC SMALL LETTER A"),
        ("curl https://\u0430\u0440\u0440\u04cf\u0435.com", "CYRILLIC SMALL LETTER ER"),
        ("\uff52\uff4d -rf x", "FULLWIDTH LATIN SMALL LETTER R"),
    ],
)
def test_what_could_be_overlooked_is_said_next_to_the_question(value: str, words: str) -> None:
    (found,) = warnings({"command": value})
    assert words in found
    assert "command" in found


def test_ordinary_arguments_need_no_warning() -> None:
    assert warnings({"command": "systemctl restart nginx", "text": "Müller \u6f22", "n": [1]}) == []
    assert warnings({"text": "\u043f\u0440\u0438\u0432\u0435\u0442, \u03bb\u03cc\u03b3\u03bf\u03c2"}) == []


# Answering


@pytest.mark.parametrize(
    ("verb", "method", "state"), [("approve", "Approve", "granted"), ("deny", "Deny", "denied")]
)
def test_it_answers(scripted: ScriptedDaemon, lactl: Lactl, verb: str, method: str, state: str) -> None:
    scripted.answer("Approvals.Get", {"approval": approval()})
    scripted.answer(f"Approvals.{method}", {"approval": approval(state=state)})
    assert lactl(verb, ID, "--note", "so be it").out == f"{ID}\t{state}\n"
    assert scripted.parameters(f"Approvals.{method}") == {"approval": ID, "note": "so be it"}
    assert json.loads(lactl(verb, ID, "--json").out)["state"] == state
    assert "file.write" in on_terminal([verb, ID]).out


def test_an_id_may_be_cut_short_if_only_one_begins_so(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    found = [approval("apr_01aa000000000000"), approval("apr_01bb000000000000")]
    scripted.answer("Approvals.List", {"approvals": found})
    scripted.answer("Approvals.Get", {"approval": found[0]})
    scripted.answer("Approvals.Deny", {"approval": approval(state="denied")})
    for short in ("apr_01a", "01aa"):
        assert lactl("deny", short).status == 0
        assert scripted.calls[-1]["parameters"] == {"approval": "apr_01aa000000000000"}
    for short, status in (("apr_01", 65), ("apr_7", 66), ("apr_", 66), ("", 66)):
        before = len(scripted.calls)
        done = lactl("deny", short)
        assert (done.status, done.out) == (status, "")
        assert [call["method"] for call in scripted.calls[before:]] == ["Approvals.List"]


@pytest.mark.parametrize(("typed", "allows"), [(b"y\n", True), (b"n\n", False), (b"\x04", False)])
def test_a_cut_id_allows_only_what_was_shown(scripted: ScriptedDaemon, typed: bytes, allows: bool) -> None:
    """Another question, whose id begins alike, may have taken the place of the one that was read before."""
    found = approval()
    scripted.answer("Approvals.List", {"approvals": [found]})
    scripted.answer("Approvals.Get", {"approval": found})
    scripted.answer("Approvals.Approve", {"approval": approval(state="granted")})
    status, out = at_terminal(["approve", "0123", "--note", "so"], ("[y/N] ", typed))
    assert status == 0
    assert out.index("+hello") < out.index("[y/N] ")
    sent = [call["parameters"] for call in scripted.calls if call["method"] == "Approvals.Approve"]
    assert sent == ([{"approval": ID, "note": "so", "digest": found["digest"]}] if allows else [])
    assert ("Allowed, once" if allows else f"lactl approve {ID}") in out


def test_a_cut_id_allows_nothing_without_a_terminal(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Approvals.List", {"approvals": [approval()]})
    scripted.answer("Approvals.Approve", {"approval": approval(state="granted")})
    done = lactl("approve", "0123", stdin=b"y\n")
    assert (done.status, done.out) == (73, "")
    assert f"lactl approve {ID}" in done.err
    assert [call["method"] for call in scripted.calls] == ["Approvals.List"]


def test_a_refusal_has_its_status_and_says_why(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    name = "org.lightagent1.ApprovalClosed"
    scripted.answer("Approvals.Get", {"approval": approval()})
    scripted.fail("Approvals.Approve", name, message="It was used.", suggestion="Run: lactl approvals")
    done = lactl("approve", ID)
    assert (done.status, done.err) == (73, "lactl: It was used.\nRun: lactl approvals\n")


# The question of a turn


def waits(scripted: ScriptedDaemon, **changes: Any) -> threading.Event:
    """Have a prompt wait for an answer, which comes from lactl itself or when the event is set."""
    answered = threading.Event()
    states: list[str] = []

    def prompt(connection: Connection, call: dict[str, Any]) -> None:
        connection.reply({"event": QUESTION | changes}, continues=True)
        assert answered.wait(30)
        state = states[-1] if states else "expired"
        by = 0 if states else None
        told = turn_event("approval_answered", approval=ID, state=state, answered_by=by, note="")
        connection.reply({"event": told}, continues=True)
        connection.reply({"event": turn_event("done", text=f"it is {state}", steps=1, duration_ms=1)})

    def answer(state: str) -> Callable[[Connection, dict[str, Any]], None]:
        def handler(connection: Connection, call: dict[str, Any]) -> None:
            states.append(state)
            connection.reply({"approval": approval(state=state)})
            answered.set()

        return handler

    scripted.handle("Sessions.Prompt", prompt)
    scripted.handle("Approvals.Approve", answer("granted"))
    scripted.handle("Approvals.Deny", answer("denied"))
    return answered


def at_terminal(
    arguments: Sequence[str], *steps: tuple[str, bytes | Callable[[], None]], **env: str
) -> tuple[int, str]:
    """Run lactl with a terminal on both sides; when it has printed a text, type, or do something else."""
    ours, theirs = pty.openpty()
    with start(
        arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env=environment(NO_COLOR="1", PAGER="cat", **env),
    ) as process:
        os.close(theirs)
        out = b""
        left = list(steps)
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while chunk := os.read(ours, 65536):
                out += chunk
                while left and left[0][0].encode() in out:
                    typed = left.pop(0)[1]
                    if callable(typed):
                        typed()
                    else:
                        os.write(ours, typed)
        os.close(ours)
        process.wait(30)
    return process.returncode, out.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("typed", "method", "state"),
    [
        (b"y\n", "Approvals.Approve", "granted"),
        (b"YES\n", "Approvals.Approve", "granted"),
        (b"n\n", "Approvals.Deny", "denied"),
        (b"\n", "Approvals.Deny", "denied"),
        (b"yy\ny\n", "Approvals.Approve", "granted"),
        (b"no, use /tmp\n", "Approvals.Deny", "denied"),
    ],
)
def test_a_terminal_asks_and_sends_the_answer(
    scripted: ScriptedDaemon, typed: bytes, method: str, state: str
) -> None:
    waits(scripted)
    status, out = at_terminal(["prompt", "ops", "x"], ("[y/N] ", typed))
    assert status == 0
    shown = {"digest": "0" * 64} if state == "granted" else {"note": "use /tmp"} if b"use" in typed else {}
    assert scripted.calls[-1] == {"method": method, "parameters": {"approval": ID, **shown}}
    assert out.index("+hello") < out.index("[y/N]") < out.index(f"it is {state}")


def test_a_leave_that_cannot_be_given_is_asked_about_again(scripted: ScriptedDaemon) -> None:
    waits(scripted)
    allow = scripted.handler("Approvals.Approve")

    def approve(connection: Connection, call: dict[str, Any]) -> None:
        if call["parameters"].get("for_session"):
            connection.error("org.lightagent1.Conflict", message="Text from outside is in this session.")
        else:
            allow(connection, call)

    scripted.handle("Approvals.Approve", approve)
    twice = ("[y/N] ", b"s\n"), ("in this session.\r\nAllow it, once? [y/N] ", b"y\n")
    status, out = at_terminal(["prompt", "ops", "x"], *twice)
    assert (status, out.count("[y/N]")) == (0, 2), out
    assert "it is granted" in out


def test_what_is_long_is_folded_and_shown_whole_in_a_pager(scripted: ScriptedDaemon) -> None:
    content = "\n".join(f"line {number}" for number in range(400))
    preview = "@@ -0,0 +1,400 @@\n" + "".join(f"+line {number}\n" for number in range(400))
    waits(scripted, args={"path": "/x", "content": content, "mark": "m" * 9000}, preview=preview)
    status, out = at_terminal(["prompt", "ops", "x"], ("[y/N] ", b"v\n"), ("characters.\r\nAllow it", b"n\n"))
    assert status == 0
    folded, _, whole = out.partition("[y/N] ")
    assert len(folded.splitlines()) < 60
    for text in ("line 0\n", "line 399\n", "+line 399", "lines are folded", "characters are folded"):
        assert text in folded
    assert "line 200" not in folded
    assert "content has 400 lines" in folded, "what must be read is said next to the question"
    assert all(f"| line {number}\n" in whole and f"+line {number}\n" in whole for number in range(400))


def test_an_answer_from_elsewhere_ends_the_asking(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted)
    status, out = at_terminal(["prompt", "ops", "x"], ("[y/N] ", answered.set))
    assert status == 0
    assert "it is expired" in out
    assert [call["method"] for call in scripted.calls] == ["Sessions.Prompt"]


def test_the_end_of_input_answers_nothing(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted)
    status, out = at_terminal(["prompt", "ops", "x"], ("[y/N] ", b"\x04"), ("goes on waiting", answered.set))
    assert status == 0
    assert f"lactl approve {ID}" in out
    assert [call["method"] for call in scripted.calls] == ["Sessions.Prompt"]


def test_who_may_not_answer_is_told_the_command(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted, may_answer=False)
    status, out = at_terminal(["prompt", "ops", "x"], ("lactl approve", answered.set))
    assert status == 0
    assert "[y/N]" not in out
    assert "/etc/motd" in out


def test_without_a_terminal_it_waits_and_says_so_on_standard_error(scripted: ScriptedDaemon) -> None:
    waits(scripted).set()
    for extra in ([], ["--quiet"]):
        done = finish(["prompt", *extra, "ops", "x"])
        assert done.out == "it is expired\n"
        assert f"lactl approve {ID}" in done.err
        assert "file.write" in done.err
    done = finish(["prompt", "--json", "ops", "x"])
    assert done.err == ""
    assert json.loads(done.out.splitlines()[0])["approval"] == ID


def test_a_question_with_escapes_is_harmless_in_a_prompt(scripted: ScriptedDaemon) -> None:
    waits(scripted, args={"command": EVIL}, preview=EVIL, tool=EVIL).set()
    done = on_terminal(["prompt", "ops", "x"], env=environment(NO_COLOR="1"))
    assert "\\x1b[8m; rm -rf /" in done.out
    assert not [char for char in "\x1b\x07\u202e\x9b" if char in done.out + done.err]
    done = finish(["prompt", "ops", "x"])
    assert "\x1b" not in done.err


def test_unattended_is_passed_on(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Sessions.Prompt", {"event": turn_event("done", text="x", steps=1, duration_ms=1)})
    lactl("prompt", "--unattended", "ops", "x")
    assert scripted.calls[-1]["parameters"]["unattended"] is True
    lactl("prompt", "ops", "x")
    assert "unattended" not in scripted.calls[-1]["parameters"]
