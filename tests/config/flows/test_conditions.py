"""Conditions: what they may say, when they hold, and what a slow pattern gets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd.config.flows.conditions import MOST_CHARS, Condition, Outcome, State, check_pattern
from lightagentd.errors import LimitExceeded

SLOW = "(a+)+$"


def outcome(state: State = "success", output: str = "", **data: Any) -> dict[str, Outcome]:
    return {"a": Outcome(state=state, output=output, **data)}


@pytest.mark.parametrize(
    ("test", "output", "holds"),
    [
        ({"contains": "b"}, "abc", True),
        ({"contains": "B"}, "abc", False),
        ({"contains": ""}, "", True),
        ({"matches": "^b"}, "a\nb", False),
        ({"matches": "(?m)^b"}, "a\nb", True),
        ({"matches": "x"}, "y" * MOST_CHARS + "x", False),
        ({"equals": "b"}, " b\n", True),
        ({"equals": "b"}, "bb", False),
        ({"equals": 5}, "5", True),
        ({"equals": 5}, "5.0\n", True),
        ({"equals": 1e30}, "1e30", True),
        ({"equals": 1e-7}, "0.0000001", True),
        ({"equals": 5}, "five", False),
        ({"equals": True}, "True", True),
        ({"equals": True}, "1", False),
        ({"equals": 1}, "true", False),
        ({"compare": "> 4.5"}, "5", True),
        ({"compare": ">5"}, "5", False),
        ({"compare": ">=5"}, "5", True),
        ({"compare": " <= 5 "}, "5", True),
        ({"compare": "< -1"}, "-2\n", True),
        ({"compare": "== 5"}, "5.0", True),
        ({"compare": "!= 5"}, "4", True),
        ({"compare": "!= 5"}, "many", False),
        ({"compare": "!= 5"}, "nan", False),
        ({"compare": "> 5"}, "inf", False),
        ({"compare": "> 5"}, "9" * 1000, False),
        ({"contains": "5", "compare": "> 9"}, "5", False),
        ({"contains": "5", "compare": "> 4"}, "5", True),
    ],
)
def test_a_condition_is_about_the_output(test: dict[str, Any], output: str, holds: bool) -> None:
    found = outcome(output=output)
    assert Condition(step="a", **test).holds(found, {}) is holds
    assert Condition.model_validate({"step": "a", "not": True, **test}).holds(found, {}) is not holds


@pytest.mark.parametrize(
    ("test", "data", "holds"),
    [
        ({"path": "b.1", "equals": 5}, {"b": [0, 5]}, True),
        ({"path": "b.1", "equals": "5"}, {"b": [0, 5]}, True),
        ({"path": "b.1", "compare": "> 1"}, {"b": [0, "5"]}, True),
        ({"path": "b.2", "compare": "> 1"}, {"b": [0, 5]}, False),
        ({"path": "b", "contains": '"c"'}, {"b": ["c"]}, True),
        ({"path": "b", "equals": False}, {"b": False}, True),
        ({"path": "b", "equals": 0}, {"b": False}, False),
        ({"path": "b", "equals": "null"}, {"b": None}, True),
        ({"path": "b", "compare": "== 0"}, {"b": None}, False),
        ({"path": "b", "compare": "> 0"}, {"b": 10**400}, False),
        ({"path": "b", "compare": "> 0"}, {"b": [1]}, False),
    ],
)
def test_a_path_leads_into_the_output_as_json(test: dict[str, Any], data: Any, holds: bool) -> None:
    assert Condition(step="a", **test).holds(outcome(data=data), {}) is holds


def test_a_condition_is_about_the_status() -> None:
    both = Condition.model_validate({"step": "a", "status": ["failed", "skipped"]})
    one = Condition.model_validate({"step": "a", "status": "success", "contains": "x"})
    assert [both.holds(outcome(state), {}) for state in ("success", "failed", "skipped")] == [
        False,
        True,
        True,
    ]
    assert not both.holds({}, {})
    assert one.holds(outcome(output="x"), {})
    assert not one.holds(outcome("failed", output="x"), {})
    assert (one.needs_success, both.needs_success) == (True, False)


def test_what_does_not_exist_passes_no_test() -> None:
    for state in ("failed", "skipped", "pending"):
        assert not Condition(step="a", contains="").holds(outcome(state), {})
        assert Condition.model_validate({"step": "a", "contains": "", "not": True}).holds({}, {})
    assert not Condition(step="a", path="b", contains="").holds(outcome(output="b"), {})


def test_a_condition_is_about_an_input() -> None:
    assert Condition(input="n", compare="> 1").holds({}, {"n": 2})
    assert not Condition(input="n", compare="> 1").holds({}, {"n": True})
    assert Condition(input="l", contains='"b"').holds({}, {"l": ["b"]})
    assert not Condition(input="o", contains="").holds({}, {})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "name one of them"),
        ({"step": "a", "input": "b", "contains": "x"}, "name one of them"),
        ({"input": "b", "status": "success"}, "do not go with an input"),
        ({"input": "b", "path": "c", "equals": 1}, "do not go with an input"),
        ({"step": "a"}, "a condition needs"),
        ({"step": "a", "status": []}, "a condition needs"),
        ({"step": "a", "status": "running"}, "'success', 'failed' or 'skipped'"),
        ({"step": "a", "status": "failed", "contains": "x"}, "only a step with the status success"),
        ({"step": "a", "status": "success", "path": "b"}, "path goes with"),
        ({"step": "a", "path": "b..c", "equals": 1}, "one dot between"),
        ({"step": "a", "path": "b" * 1001, "equals": 1}, "at most 1000"),
        ({"step": "a", "compare": "= 5"}, "an operator and a number"),
        ({"step": "a", "compare": "> a"}, "an operator and a number"),
        ({"step": "a", "compare": ">" + "5" * 100}, "at most 100"),
        ({"step": "a", "matches": "("}, "not a regular expression"),
        ({"step": "a", "matches": "a{99999999999999}"}, "not a regular expression"),
        ({"step": "a", "matches": "a" * 1001}, "at most 1000"),
        ({"step": "a", "contains": "a" * 10_001}, "at most 10000"),
        ({"step": "a", "equals": float("nan")}, "finite number"),
        ({"step": "a", "equals": []}, "valid string"),
        ({"step": "a", "equal": "x"}, "not permitted"),
        ({"step": "a", "negated": True, "contains": "x"}, "not permitted"),
    ],
)
def test_a_wrong_condition_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Condition.model_validate(values)


def test_a_slow_pattern_is_stopped_and_decides_nothing() -> None:
    for text in ("a" * 40 + "b", "a" * (MOST_CHARS - 1) + "b"):
        for negated in (False, True):
            condition = Condition.model_validate({"step": "a", "matches": SLOW, "not": negated})
            with pytest.raises(LimitExceeded, match=r"takes too long on a text of \d+ characters"):
                condition.holds(outcome(output=text), {})
    check_pattern("matches", SLOW)
