"""`lactl usage`: for a person, for a pipe, as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Lactl, on_terminal
from tests.scripted_daemon import ScriptedDaemon

SES = "ses_0123456789abcdef"


def row(**changes: Any) -> dict[str, Any]:
    return {
        "scope": "session",
        "name": SES,
        "turns": 3,
        "steps": 1234,
        "steps_without_usage": 0,
        "steps_without_price": 0,
        "calls": 7,
        "prompt_tokens": 1_234_567,
        "completion_tokens": 89_000,
        "cached_tokens": 1000,
        "total_tokens": 1_323_567,
        "cost": 12.345,
        "wall_ms": 61_400,
        **changes,
    }


def test_a_pipe_gets_plain_numbers_with_tabs(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Usage.Get", {"usage": [row()]})
    assert lactl("usage").out == (f"{SES}\t3\t1234\t7\t1323567\t12.35\t61\t1234567\t89000\t1000\n")
    assert scripted.calls[-1]["parameters"] == {"scope": "session"}


def test_a_person_gets_headings_and_separators(scripted: ScriptedDaemon) -> None:
    scripted.answer("Usage.Get", {"usage": [row()]})
    heading, line = on_terminal(["usage"], width=120).out.splitlines()
    assert "TOKENS" in heading
    assert "1,323,567" in line
    assert "12.35" in line or "12.34" in line


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"cost": 0.0, "steps_without_price": 2}, "-"),
        ({"cost": 0.0, "steps_without_usage": 2}, "-"),
        ({"cost": 0.0}, "0.00"),
        ({"cost": 0.00123}, "0.0012"),
        ({"cost": 1.5, "steps_without_price": 1}, "1.50"),
    ],
)
def test_the_cost_has_two_digits_or_is_not_known(
    scripted: ScriptedDaemon, lactl: Lactl, changes: dict[str, Any], shown: str
) -> None:
    scripted.answer("Usage.Get", {"usage": [row(**changes)]})
    assert lactl("usage").out.split("\t")[5] == shown


def test_what_is_asked_for(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Usage.Get", {"usage": [row()]})
    lactl("usage", "--by", "turn", "--session", SES)
    assert scripted.calls[-1]["parameters"] == {"scope": "turn", "name": SES}
    lactl("usage", "--session", SES)
    assert scripted.calls[-1]["parameters"] == {"scope": "session", "name": SES}
    assert json.loads(lactl("usage", "--by", "agent", "--json").out) == [row()]
    assert lactl("usage", "--by", "week").status == 2
    assert lactl("usage", "--by", "agent", "--session", SES).status == 65
    assert lactl("usage", "--by", "agent", "--budgets").status == 65


def test_budgets(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    budgets = [
        {"scope": "owner", "name": "1000", "what": "cost", "used": 1.5, "limit": 20.0},
        {"scope": "turn", "name": "trace_1", "what": "tokens", "used": 1500.0, "limit": 200_000.0},
    ]
    scripted.answer("Usage.Budgets", {"budgets": budgets})
    assert lactl("usage", "--budgets").out == (
        "owner\t1000\tcost\t1.50\t20.00\nturn\ttrace_1\ttokens\t1500\t200000\n"
    )
    assert "200,000" in on_terminal(["usage", "--budgets"]).out
    assert json.loads(lactl("usage", "--budgets", "--json", "--session", SES).out) == budgets
    assert scripted.calls[-1]["parameters"] == {"session": SES}


def test_nothing_yet(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Usage.Get", {"usage": []})
    scripted.answer("Usage.Budgets", {"budgets": []})
    assert lactl("usage").out == ""
    assert on_terminal(["usage"]).out == "Nothing was used yet.\n"
    assert "No budgets" in on_terminal(["usage", "--budgets"]).out
