"""What is wrong with a trial, what says nothing about the agent, and what a judge's answer is worth."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.assessment.cases import Case
from lightagentd.assessment.judging import blocks_for, ends_run, faults, says_nothing, verdict_in
from lightagentd.assessment.transcript import Call, Transcript


def case(**keys: Any) -> Case:
    return Case.model_validate({"name": "x", "prompt": "p", **keys})


def trial(answer: str = "", *calls: tuple[str, str, dict[str, Any], str], **more: Any) -> Transcript:
    made = [
        Call(call_id=f"c{at}", tool=tool, action=action, args=args, effect=effect, result="ok", text="t")
        for at, (tool, action, args, effect) in enumerate(calls)
    ]
    return Transcript(answer=answer, calls=made, **more)


RUN = ("skill", "run", {"name": "disk-check", "args": {"path": "/var"}}, "observe")
CHANGE = ("file", "delete", {"path": "/x"}, "change")
JSON = '```json\n{"disks": [{"name": "sda", "full": true}]}\n```'


@pytest.mark.parametrize(
    ("keys", "found", "wrong"),
    [
        ({"answer": {"contains": ["Full", "97"]}}, trial("it is FULL, 97 %"), ""),
        ({"answer": {"contains": ["98"]}}, trial("97"), "lacks 98"),
        ({"answer": {"lacks": ["sorry"]}}, trial("Sorry, no"), "has sorry"),
        ({"answer": {"matches": ["^9[0-9]$"]}}, trial("so\n97\nis it"), ""),
        ({"answer": {"matches": ["^8"]}}, trial("97"), "Nothing in the answer matches"),
        ({"answer": {"matches_not": ["9[0-9]"]}}, trial("97 it is"), "97 in the answer matches"),
        ({"answer": {"json": [{"path": "disks.0.full", "equals": True}]}}, trial(JSON), ""),
        ({"answer": {"json": [{"path": "disks.-1", "equals": {"name": "sda"}}]}}, trial(JSON), ""),
        ({"answer": {"json": [{"path": "disks.0.full", "equals": 1}]}}, trial(JSON), "has true at"),
        ({"answer": {"json": [{"path": "disks.7.full", "equals": True}]}}, trial(JSON), "has nothing at"),
        ({"answer": {"json": [{"path": "", "equals": 3}]}}, trial("", data=3), ""),
        ({"answer": {"json": [{"path": "", "equals": 3}]}}, trial("prose"), "is not JSON"),
        ({"answer": {"error": "no_runbook"}}, trial(code="no_runbook"), ""),
        ({"answer": {"error": "no_runbook"}}, trial("an answer"), "should end with no_runbook"),
        ({}, trial(code="step_limit", message="Too many."), "ended with step_limit: Too many."),
        ({"calls": {"must": [{"tool": "skill", "args": {"name": "disk-check"}}]}}, trial("", RUN), ""),
        ({"calls": {"must": [{"tool": "skill", "action": "load"}]}}, trial("", RUN), "was not made"),
        (
            {"calls": {"must": [{"tool": "skill", "args": {"name": {"=~": "^net"}}}]}},
            trial("", RUN),
            "not made",
        ),
        ({"calls": {"must_not": [{"tool": "file"}]}}, trial("", RUN, CHANGE), "file.delete with"),
        ({"calls": {"must_not": [{"tool": "file", "args": {"path": "/y"}}]}}, trial("", CHANGE), ""),
        ({"calls": {"may": []}}, trial("", RUN), "neither in must nor in may"),
        ({"calls": {"must": [{"tool": "skill"}], "may": [{"tool": "file"}]}}, trial("", RUN, CHANGE), ""),
        ({"effects": ["observe"]}, trial("", CHANGE), "has the effect change"),
        ({"max_steps": 2}, trial(steps=3), "took 3 steps"),
        ({"max_tokens": 10}, trial(total_tokens=11), "took 11 tokens"),
        ({"max_cost": 0.1}, trial(cost=0.2), "took 0.2 cost"),
        ({"max_cost": 0.1}, trial(cost=None), "is not known"),
        ({"max_s": 1}, trial(duration_ms=1500), "took 1.5 seconds"),
    ],
)
def test_what_a_case_expects(keys: dict[str, Any], found: Transcript, wrong: str) -> None:
    why = faults(case(**keys), found)
    assert (not why) if not wrong else (len(why) == 1 and wrong in why[0]), why


def test_errors_are_told_apart() -> None:
    assert [says_nothing(one) for one in ("model_unreachable", "queue_full", "no_runbook", "", "nosuch")] == [
        *(True, True),
        *(False, False, False),
    ]
    for code, suggestion, ends in (
        ("budget_exceeded", "raise budgets.owner_day.tokens", True),
        ("budget_exceeded", "raise budgets.turn.steps", False),
        ("model_quota_exceeded", "", True),
        ("step_limit", "", False),
        ("", "", False),
    ):
        assert ends_run(Transcript(code=code, suggestion=suggestion)) is ends, code


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        ({"score": 0.5, "reason": "half"}, (0.5, "half")),
        ({"score": 1, "reason": ""}, (1.0, "")),
        ({"score": 2, "reason": "x"}, None),
        ({"score": True, "reason": "x"}, None),
        ({"score": "1", "reason": "x"}, None),
        ({"score": 1}, None),
        ("prose", None),
        (None, None),
    ],
)
def test_a_verdict_is_a_score_with_a_reason(data: Any, verdict: Any) -> None:
    assert verdict_in(data) == verdict


def test_a_judge_sees_question_facts_calls_and_answer() -> None:
    blocks = blocks_for(case(facts={"log": "a line"}), trial("the answer", RUN))
    assert [one["name"] for one in blocks] == ["question", "log", "calls", "answer"]
    assert "disk-check" in blocks[2]["text"]
