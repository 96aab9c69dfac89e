"""The terms of a change that takes itself back: how they are read, and how people are shown them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightagentd.cli.question import question_lines
from lightagentd.config.terms import span_s, span_text, terms_of, words
from lightagentd.desktop.cards import question
from lightagentd.gateway.ai_sdk.parts import Parts
from lightagentd.gateway.turns import waiting_text
from lightagentd.mcp_server.asking import _call_text
from tests.scripted_daemon import approval


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [
        ("90s", 90, "90s"),
        ("5m", 300, "5m"),
        ("5min", 300, "5m"),
        ("120m", 7200, "2h"),
        ("24h", 86_400, "1d"),
        ("30", 30, "30s"),
    ],
)
def test_spans(text: str, seconds: int, shortest: str) -> None:
    assert (span_s(text), span_text(seconds), span_s(shortest)) == (seconds, shortest, seconds)


def test_an_inverse_is_a_command_or_a_call() -> None:
    assert terms_of("") is None
    found = terms_of("5m", inverse='systemd.start {"unit": "ssh.service"}')
    assert found is not None
    assert found.inverse_call() == ("systemd", "start", {"unit": "ssh.service"})
    assert replace(found, inverse="rm x").inverse_call()[2] == {"command": "rm x", "effect": "change"}


def test_the_terms_are_shown_wherever_the_call_is() -> None:
    asked = approval(confirm_within_s=300, check="true", inverse="ip link set e\u202e up", preview="")
    said = words(asked)
    assert said.startswith("It is taken back 5m after it is done with: ip link set e\\u202e up, unless")
    event = asked | {"approval": asked["id"], "must_authenticate": False, "type": "approval_requested"}
    card = question(asked, uid=0)
    assert said in card.body
    assert card.answers == ("deny",), "something in the inverse could be overlooked"
    assert said in "\n".join(question_lines(asked))
    assert said in waiting_text(event)
    assert said in _call_text(event)
    described = [chunk["data"] for chunk in Parts().of(event) if chunk["type"] == "data-approval"]
    assert [(one["confirm_within_s"], one["inverse"]) for one in described] == [(300, asked["inverse"])]
    assert words(approval()) == ""
