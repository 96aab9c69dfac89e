"""`lactl undo`: what it asks the daemon for, and how the list looks."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Lactl
from tests.scripted_daemon import ScriptedDaemon

CHANGE = {
    "call_id": "call_1",
    "agent": "ops",
    "owner": 0,
    "action": "write",
    "path": "/etc/motd\x1b[2J\tx",
    "time_us": 1_763_768_400_000_000,
    "undone_by": "",
}


def test_without_a_call_the_daemon_chooses(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.turn({"type": "done", "text": "-two\n+one\n"}, method="Undo.Run")
    done = lactl("undo", "-a", "ops")
    assert (done.status, done.out) == (0, "-two\n+one\n")
    assert scripted.parameters("Undo.Run") == {"agent": "ops"}


def test_a_call_is_named(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.turn({"type": "done", "text": "x"}, method="Undo.Run")
    assert lactl("undo", "call_0123456789abcdef").status == 0
    assert scripted.parameters("Undo.Run") == {"call_id": "call_0123456789abcdef"}


@pytest.mark.parametrize(
    ("cut", "sent"), [("call_01", "call_01aa"), ("01a", "call_01aa"), ("7", "7"), ("call_0", None)]
)
def test_a_call_may_be_cut_short(scripted: ScriptedDaemon, lactl: Lactl, cut: str, sent: str | None) -> None:
    scripted.answer("Undo.List", {"changes": [{"call_id": "call_01aa"}, {"call_id": "call_02"}]})
    scripted.turn({"type": "done", "text": "x"}, method="Undo.Run")
    done = lactl("undo", cut)
    assert done.status == (0 if sent else 65)
    assert [call["parameters"] for call in scripted.calls if call["method"] == "Undo.Run"] == (
        [{"call_id": sent}] if sent else []
    )


def test_a_refusal_is_told_with_its_status(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    failed = {"type": "error", "code": "conflict", "message": "It changed since.", "suggestion": "Read it."}
    scripted.turn(failed, method="Undo.Run")
    done = lactl("undo", "call_0123456789abcdef")
    assert (done.status, done.err) == (73, "lactl: It changed since.\nRead it.\n")


def test_the_list_shows_what_stands_and_what_was_taken_back(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    undone = {**CHANGE, "call_id": "call_0", "undone_by": "call_9"}
    scripted.answer("Undo.List", {"changes": [CHANGE, undone]})
    lines = [line.split("\t") for line in lactl("undo", "--list").out.splitlines()]
    assert [(line[0], line[4]) for line in lines] == [("call_1", "stands"), ("call_0", "undone by call_9")]
    assert lines[0][5] == "/etc/motd x"
    assert json.loads(lactl("undo", "--list", "--json").out) == [CHANGE, undone]
    assert lactl("undo", "--list", "call_1").status == 2
