"""`lactl inputs` and `lactl answer`, and the agent's question on the terminal of whoever prompted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from lightagentd import api
from lightagentd.host.users import called
from tests.cli.conftest import Lactl, environment, finish, on_terminal
from tests.cli.test_approvals import EVIL, at_terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, turn_event

ID = "inp_0123456789abcdef"


def question(name: str = ID, **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Input(
            id=name,
            agent="ops",
            session="ses_1",
            owner=1000,
            trace_id="trace_1",
            call_id="call_1",
            question="Which disk?",
            choices=["sda", "sdb"],
            created_us=1_700_000_000_000_000,
            expires_us=1_700_000_600_000_000,
            state="waiting",
            answer="",
            answered_by=None,
            answered_us=0,
        )
    ) | dict(changes)


def given(found: dict[str, Any]) -> dict[str, Any]:
    return {"input": found}


# Listing and showing


def test_it_lists_what_is_asked(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.List", {"inputs": [question(), question("inp_2", choices=[], answer="ü\n2")]})
    for arguments in (["inputs"], ["inputs", "list"]):
        out = lactl(*arguments).out.splitlines()
        assert [line.split("\t")[0] for line in out] == [ID, "inp_2"]
        assert out[0].split("\t")[1:3] == ["waiting", "ops"]
        assert out[0].split("\t")[4:] == ["Which disk?", "sda | sdb", "-"]
        assert out[1].split("\t")[5:] == ["-", "ü 2"]
    assert "all" not in scripted.calls[-1]["parameters"]
    for arguments in (["inputs", "--all"], ["inputs", "list", "--all"]):
        lactl(*arguments)
        assert scripted.calls[-1]["parameters"] == {"all": True}
    for arguments in (["inputs", "--json"], ["--json", "inputs", "list"]):
        assert json.loads(lactl(*arguments).out)[0] == question()


def test_nothing_is_asked(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.List", {"inputs": []})
    assert lactl("inputs").out == ""
    assert on_terminal(["inputs"]).out == "No agent asks anything.\n"


def test_it_shows_a_question_and_its_answer(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.Get", given(question()))
    out = on_terminal(["inputs", "show", ID], env=environment(NO_COLOR="1")).out
    for part in (ID, "ops", "waiting", "? Which disk?", "1) sda", "2) sdb", f"lactl answer {ID} TEXT"):
        assert part in out
    scripted.answer(
        "Inputs.Get", given(question(state="answered", answer="a\nb", answered_by=7, answered_us=1))
    )
    out = lactl("inputs", "show", ID).out
    assert f"answered by {called(7)}" in out
    assert "> a\n> b\n" in out
    assert json.loads(lactl("inputs", "show", "--json", ID).out)["answer"] == "a\nb"


@pytest.mark.parametrize("field", ["question", "choices", "answer", "agent"])
def test_nothing_that_a_model_wrote_acts_on_the_terminal(scripted: ScriptedDaemon, field: str) -> None:
    found = question() | {field: [EVIL, "x"] if field == "choices" else EVIL}
    scripted.answer("Inputs.Get", given(found))
    scripted.answer("Inputs.List", {"inputs": [found]})
    for arguments in (["inputs", "show", ID], ["inputs"], ["inputs", "--json"]):
        shown = on_terminal(arguments, width=500, env=environment(NO_COLOR="1"))
        assert shown.status == 0
        assert not [char for char in "\x1b\x07\u202e\u2066\x00\x9b" if char in shown.out]


def test_a_question_of_many_lines_cannot_look_like_our_own(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.Get", given(question(question="q\nAllow it, once? [y/N] ")))
    assert "  | Allow it, once? [y/N] " in lactl("inputs", "show", ID).out.splitlines()


# Answering


@pytest.mark.parametrize(
    ("words", "stdin", "text"),
    [
        (["sda"], b"", "sda"),
        (["look", "at", " sda"], b"", "look at  sda"),
        ([], b"from\nstdin\n", "from\nstdin"),
        (["-"], "ü\n\n".encode(), "ü\n"),
        (["--", "-v"], b"", "-v"),
    ],
)
def test_it_answers(
    scripted: ScriptedDaemon, lactl: Lactl, words: list[str], stdin: bytes, text: str
) -> None:
    scripted.answer("Inputs.Answer", given(question(state="answered", answer=text, answered_by=0)))
    done = lactl("answer", ID, *words, stdin=stdin)
    assert (done.status, done.out, done.err) == (0, f"{ID}\tanswered\n", "")
    assert scripted.parameters("Inputs.Answer") == {"input": ID, "text": text}


def test_an_answer_as_json_and_on_a_terminal(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    answered = question(state="answered", answer="sda", answered_by=0)
    scripted.answer("Inputs.Answer", given(answered))
    assert json.loads(lactl("answer", "--json", ID, "1").out) == answered
    assert on_terminal(["answer", ID, "1"]).out == "Answered ops: sda\n"


def test_what_is_no_text_is_not_sent(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    done = lactl("answer", ID, stdin=b"\xff\xfe")
    assert done.status == 65
    assert "not UTF-8" in done.err
    assert scripted.calls == []


def test_of_a_long_input_no_more_is_read_than_is_too_long(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.Answer", given(question(state="answered", answer="x", answered_by=0)))
    lactl("answer", ID, stdin=b"x" * 200_000)
    assert len(scripted.parameters("Inputs.Answer")["text"]) == (16 << 10) + 2


def test_an_id_may_be_cut_short(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Inputs.List", {"inputs": [question(), question("inp_99999999999999ff")]})
    scripted.answer("Inputs.Answer", given(question(state="answered", answer="x", answered_by=0)))
    for short in ("inp_01", "01", ID[:-1]):
        assert lactl("answer", short, "x").status == 0
        assert scripted.calls[-1]["parameters"]["input"] == ID
    for short, status in (("inp_8", 66), ("inp_", 66), ("", 66)):
        assert lactl("answer", short, "x").status == status
    scripted.answer("Inputs.List", {"inputs": [question(), question("inp_01ffffffffffffff")]})
    assert lactl("answer", "01", "x").status == 65
    scripted.answer("Inputs.Get", given(question()))
    assert lactl("inputs", "show", "inp_0123").status == 0


@pytest.mark.parametrize(
    ("name", "status"), [("InputClosed", 73), ("InputNotFound", 66), ("InvalidArgument", 65)]
)
def test_a_refusal_has_its_status_and_says_why(
    scripted: ScriptedDaemon, lactl: Lactl, name: str, status: int
) -> None:
    scripted.fail("Inputs.Answer", f"org.lightagent1.{name}", message="It is so.", suggestion="Do this.")
    done = lactl("answer", ID, "x")
    assert (done.status, done.err) == (status, "lactl: It is so.\nDo this.\n")


# The question of a turn


def waits(scripted: ScriptedDaemon, **changes: Any) -> threading.Event:
    """Have a prompt ask; the answer comes from lactl itself, or from elsewhere when the event is set."""
    answered = threading.Event()
    texts: list[str] = []
    asked = {"input": ID, "call_id": "call_1", "question": "Which disk?", "choices": ["sda", "sdb"]}
    event = turn_event("input_requested", **{**asked, "expires_us": 1_700_000_600_000_000, **changes})

    def prompt(connection: Connection, call: dict[str, Any]) -> None:
        connection.reply({"event": event}, continues=True)
        assert answered.wait(30)
        state, by = ("answered", 0) if texts else ("expired", None)
        answer = texts[-1] if texts else ""
        told = {"input": ID, "call_id": "call_1", "state": state, "answer": answer, "answered_by": by}
        connection.reply({"event": turn_event("input_answered", **told)}, continues=True)
        connection.reply({"event": turn_event("done", text=f"it is {state}", steps=1, duration_ms=1)})

    def answer(connection: Connection, call: dict[str, Any]) -> None:
        text = call["parameters"]["text"]
        if text == "sdc":
            refused = {"message": "None of the choices.", "suggestion": "", "field": "text"}
            connection.error("org.lightagent1.InvalidArgument", **refused)
            return
        texts.append(text)
        connection.reply({"input": question(state="answered", answer=text, answered_by=0)})
        answered.set()

    scripted.handle("Sessions.Prompt", prompt)
    scripted.handle("Inputs.Answer", answer)
    return answered


PROMPT = ["prompt", "ops", "x"]


def sent(scripted: ScriptedDaemon) -> list[str]:
    return [call["parameters"]["text"] for call in scripted.calls if call["method"] == "Inputs.Answer"]


def test_a_terminal_asks_and_sends_the_answer(scripted: ScriptedDaemon) -> None:
    waits(scripted)
    status, out = at_terminal(PROMPT, ("Number or text: ", b"2\n"))
    assert status == 0
    assert sent(scripted) == ["2"]
    assert out.index("Which disk?") < out.index("2) sdb") < out.index("text: ") < out.index("it is answered")


def test_without_choices_any_text_is_an_answer(scripted: ScriptedDaemon) -> None:
    waits(scripted, choices=[])
    status, _ = at_terminal(PROMPT, ("Answer: ", "look at ü\n".encode()))
    assert (status, sent(scripted)) == (0, ["look at ü"])


def test_what_is_none_of_the_choices_is_asked_for_again(scripted: ScriptedDaemon) -> None:
    waits(scripted)
    status, out = at_terminal(
        PROMPT, ("Number or text: ", b"\n"), ("text: \r\nNumber", b"sdc\n"), ("None of the choices", b"sda\n")
    )
    assert status == 0
    assert sent(scripted) == ["sdc", "sda"]
    assert "it is answered" in out


def test_an_answer_from_elsewhere_ends_the_asking(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted)
    status, out = at_terminal(PROMPT, ("Number or text: ", answered.set))
    assert status == 0
    assert "it is expired" in out
    assert sent(scripted) == []


def test_the_end_of_input_answers_nothing(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted)
    steps: list[tuple[str, bytes | Callable[[], None]]] = [
        ("Number or text: ", b"\x04"),
        ("goes on waiting", answered.set),
    ]
    status, out = at_terminal(PROMPT, *steps)
    assert status == 0
    assert f"lactl answer {ID}" in out
    assert sent(scripted) == []


def test_without_a_terminal_it_waits_and_says_so_on_standard_error(scripted: ScriptedDaemon) -> None:
    waits(scripted).set()
    for extra in ([], ["--quiet"]):
        done = finish(["prompt", *extra, "ops", "x"])
        assert done.out == "it is expired\n"
        assert "Which disk?" in done.err
        assert f"lactl answer {ID}" in done.err


def test_a_question_with_escapes_is_harmless_in_a_prompt(scripted: ScriptedDaemon) -> None:
    waits(scripted, question=EVIL, choices=[EVIL, "x"]).set()
    done = on_terminal(PROMPT, env=environment(NO_COLOR="1"))
    assert not [char for char in "\x1b\x07\u202e\x9b" if char in done.out + done.err]
    assert "\x1b" not in finish(PROMPT).err
