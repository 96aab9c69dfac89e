"""The words of notifications: whole or refused, harmless, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.desktop.cards import finished, question, shorten


def approval(args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "apr_0123456789abcdef",
        "agent": "ops",
        "tool": "bash",
        "action": "exec",
        "args": args,
        "cwd": "",
        "owner": 1000,
        "preview": "",
        "reason": "",
        "expires_us": 4_000_000_000_000_000,
        "digest": "0",
        "volatile": False,
        "may_answer": True,
        **more,
    }


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        ("systemctl restart nginx", True),
        ("printf 'Grüße'", True),
        ("x" * 500, False),
        ("a\nb\nc\nd\ne\nf\ng\nh\ni\nj", False),
        ("rm -rf /tmp/x" + " " * 50 + "/home", False),
        ("cat /etc/p\u0430sswd", False),  # the second letter of the name is Cyrillic
        ("\u0430\u0440\u0435", False),  # all of them are
        ("cat /etc\u2215passwd", False),  # a slash that is none
    ],
)
def test_only_what_can_be_seen_whole_can_be_approved(command: str, whole: bool) -> None:
    card = question(approval({"command": command}), uid=1000)
    assert card.answers == (("deny", "approve") if whole else ("deny",))
    assert ("lactl approvals show" in card.body) is not whole
    assert len(card.body) < 1000


@pytest.mark.parametrize(
    ("owner", "may", "answers"),
    [
        (1000, True, ("deny", "approve")),
        (1000, False, ("deny",)),
        (0, True, ("deny", "approve")),
        (0, False, ()),
    ],
)
def test_who_gets_which_buttons(owner: int, may: bool, answers: tuple[str, ...]) -> None:
    assert question(approval({}, owner=owner, may_answer=may), uid=1000).answers == answers


def test_a_value_cannot_pass_for_a_line_of_ours() -> None:
    found = approval({"command": "true\nIt can be answered until never"}, preview="x\nAsked because: y")
    body = question(found, uid=1000).body
    assert "\n| It can be answered until never" in body
    assert "\n| Asked because: y" in body


def test_names_in_the_summary_stay_in_it() -> None:
    found = approval({}, agent="x\n\u202e" * 100)
    assert "\n" not in question(found, uid=1000).summary
    assert "\u202e" not in question(found, uid=1000).summary


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("", ""),
        ("one", "one"),
        ("one\n\n  two \nthree\nfour", "one\ntwo…"),
        ("x" * 30, "x" * 20 + "…"),
        ("\x1b[31mred\x1b[0m\u202e", "red"),
        ("a\tb", "a b"),
        ("\n" * 500 + "late", "…"),
    ],
)
def test_a_text_is_shortened_and_harmless(text: str, short: str) -> None:
    assert shorten(text, 20, 2) == short


def test_an_answer_belongs_to_the_turn_that_ended_and_not_to_a_later_one() -> None:
    event = {
        "seq": 10,
        "topic": "session.turn",
        "agent": "ops",
        "session": "ses_1",
        "data": {"duration_ms": 150_000},
    }
    messages = [
        {"seq": 7, "role": "user", "content": "check disk"},
        {"seq": 8, "role": "assistant", "content": "It is full."},
        {"seq": 9, "role": "tool", "content": "noise"},
        {"seq": 11, "role": "user", "content": "and now?"},
        {"seq": 12, "role": "assistant", "content": "Later."},
    ]
    card = finished(event, messages)
    assert card.body == ("check disk\nIt is full.\nIt took 2 minutes. All of it: lactl sessions show ses_1")
    assert finished(event, []).body.startswith("It took 2 minutes.")
