"""What a person may write for a session: an id, the beginning of one, or an agent's name; never a guess."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import Lactl
from tests.scripted_daemon import ScriptedDaemon, session

ME = os.geteuid()
FIRST = "ses_deadbeef00000001"
SECOND = "ses_deadbeef00000002"
OTHERS = "ses_deadbeef00000003"
WEB = "ses_0123456789abcdef"


@pytest.fixture(autouse=True)
def sessions(scripted: ScriptedDaemon) -> None:
    found = [
        session(FIRST, owner=ME, current=False),
        session(SECOND, owner=ME, current=True),
        session(OTHERS, owner=ME + 1, current=True, updated_us=1_763_768_470_000_000),
        session(WEB, owner=ME, agent="web", current=True),
    ]
    scripted.answer("Sessions.List", {"sessions": found})
    scripted.answer("Sessions.Cancel", {"cancelled": 0})


def meant(scripted: ScriptedDaemon) -> str:
    return str(scripted.parameters("Sessions.Cancel")["session"])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (FIRST, FIRST),
        ("ses_deadbeef00000002", SECOND),
        ("deadbeef00000001", FIRST),
        ("ses_01", WEB),
        ("012345", WEB),
        ("ops", SECOND),
        ("web", WEB),
    ],
)
def test_one_session_is_meant(scripted: ScriptedDaemon, lactl: Lactl, written: str, expected: str) -> None:
    assert lactl("cancel", written).status == 0
    assert meant(scripted) == expected


def test_a_whole_id_is_not_looked_up(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    lactl("cancel", "ses_ffffffffffffffff")
    assert [call["method"] for call in scripted.calls] == ["Sessions.Cancel"]


@pytest.mark.parametrize("written", ["ses_de", "deadbeef", "ses_deadbeef0000000"])
def test_what_may_mean_two_is_refused(scripted: ScriptedDaemon, lactl: Lactl, written: str) -> None:
    done = lactl("cancel", written)
    assert done.status == 65
    assert "may mean 3 sessions" in done.err
    assert f"{FIRST} (ops)" in done.err
    assert all(call["method"] == "Sessions.List" for call in scripted.calls)


def test_an_agent_whose_name_begins_an_id_is_refused(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    mine = session(SECOND, owner=ME, agent="facade", current=True)
    scripted.answer("Sessions.List", {"sessions": [mine, session("ses_facade0000000000", owner=ME)]})
    assert "may mean 2 sessions" in lactl("cancel", "facade").err


@pytest.mark.parametrize(
    ("written", "hint"), [("01234", "at least 6"), ("nobody", "sessions list"), ("", "")]
)
def test_what_means_none_is_not_found(lactl: Lactl, written: str, hint: str) -> None:
    done = lactl("cancel", written)
    assert done.status == 66
    assert hint in done.err


def test_an_agent_with_whom_one_has_no_session_is_not_found(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Sessions.List", {"sessions": [session(OTHERS, owner=ME + 1, current=True)]})
    assert lactl("cancel", "ops").status == 66


def test_without_a_current_session_the_latest_is_meant_as_prompts_go_there(
    scripted: ScriptedDaemon, lactl: Lactl
) -> None:
    older = session(FIRST, owner=ME, current=False, updated_us=1)
    newer = session(SECOND, owner=ME, current=False, updated_us=2)
    theirs = session(OTHERS, owner=ME + 1, current=False, updated_us=3)
    scripted.answer("Sessions.List", {"sessions": [older, newer, theirs]})
    lactl("cancel", "ops")
    assert meant(scripted) == SECOND
    marks = [line.split("\t")[2] for line in lactl("sessions", "list").out.splitlines()]
    assert marks == ["-", "*", "*"]


def test_prompt_takes_the_beginning_of_an_id_too(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.turn({"type": "done", "text": "ok"})
    lactl("prompt", "web", "hello", "--session", "012345")
    assert scripted.parameters("Sessions.Prompt")["session"] == WEB
