"""The definition of a flow: its keys, their limits, and the inputs of a run."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd.config.flows.definition import (
    MOST_INPUT_CHARS,
    MOST_ITEMS,
    MOST_STEPS,
    Flow,
    FlowInput,
    Step,
)
from lightagentd.errors import InvalidArgument

CALL = {"name": "a", "call": "bash.exec"}
PROMPT = {"name": "a", "prompt": "x"}
ASK = {"name": "a", "ask": "x"}


def flow(*steps: dict[str, Any], **more: Any) -> Flow:
    return Flow.model_validate({"description": "d", "step": steps or (PROMPT,), **more})


def test_a_step_says_little_and_the_rest_is_careful() -> None:
    step = flow(CALL).step[0]
    assert (step.kind, step.handler, step.on_failure, step.max_retry) == ("call", "", "stop", 0)
    assert (step.requires_approval, step.at_once, step.timeout_s) == (False, 1, None)
    assert (flow().at_once, flow().timeout_s) == (4, 86_400)
    kinds = [{"prompt": "x"}, {"call": "a.b"}, {"flow": "a.b"}, {"ask": "x"}]
    assert [Step.model_validate({"name": "a", **one}).kind for one in kinds] == [
        "prompt",
        "call",
        "flow",
        "ask",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "a"}, "needs one of prompt, call, flow and ask, and has none"),
        ({**PROMPT, "ask": "y"}, "has prompt and ask"),
        ({**ASK, "agent": "ops"}, "agent does not go with ask"),
        ({**ASK, "fallback_agent": "ops"}, "fallback_agent does not go with ask"),
        ({**PROMPT, "args": {}}, "args does not go with prompt"),
        ({**CALL, "inputs": {}}, "inputs does not go with call"),
        ({**PROMPT, "choices": ["y"]}, "choices does not go with prompt"),
        ({**ASK, "schema": {}}, "schema does not go with ask"),
        ({**ASK, "check": "true"}, "check does not go with ask"),
        ({**ASK, "undo": {"call": "a.b"}}, "undo does not go with ask"),
        ({**ASK, "requires_approval": False}, "requires_approval does not go with ask"),
        ({**ASK, "for_each": [1]}, "for_each does not go with ask"),
        ({**ASK, "max_retry": 1}, "max_retry does not go with ask"),
        ({"name": "a", "flow": "b", "schema": {}}, "schema does not go with flow"),
        *(
            ({**PROMPT, "name": name}, "another meaning")
            for name in ("inputs", "item", "run", "stop", "continue")
        ),
        *(
            ({**PROMPT, "name": name}, "should match pattern")
            for name in ("A", "a.b", "1a", "a/1", "", "a" * 65, "a\n")
        ),
        ({**PROMPT, "depends_on": ["A"]}, "should match pattern"),
        ({**PROMPT, "on_failure": "B"}, "should match pattern"),
        ({**PROMPT, "agent": "a b"}, "should match pattern"),
        ({**PROMPT, "prompt": ""}, "at least 1"),
        ({**PROMPT, "prompt": "x" * 100_001}, "at most 100000"),
        ({**ASK, "ask": "x" * 4001}, "at most 4000"),
        ({**ASK, "choices": ["x"] * 21}, "at most 20"),
        ({**ASK, "choices": ["x" * 201]}, "at most 200"),
        ({**ASK, "choices": [""]}, "at least 1"),
        *(
            ({**CALL, "call": call}, "should match pattern")
            for call in ("bash", "bash.", "Bash.exec", "a.b.c")
        ),
        ({"name": "a", "flow": "a.b.c"}, "should match pattern"),
        ({**CALL, "check": "x" * 10_001}, "at most 10000"),
        ({**CALL, "undo": {"args": {}}}, "Field required"),
        ({**CALL, "at_once": 2}, "at_once goes with for_each"),
        ({**CALL, "for_each": [1], "at_once": 65}, "less than or equal to 64"),
        ({**CALL, "for_each": [1], "at_once": 0}, "greater than or equal to 1"),
        ({**CALL, "for_each": list(range(MOST_ITEMS + 1))}, "for_each has 1001 items"),
        ({**CALL, "for_each": [True]}, "for_each"),
        ({**CALL, "for_each": [[]]}, "for_each"),
        ({**CALL, "for_each": [float("inf")]}, "finite"),
        ({**CALL, "max_retry": 11}, "less than or equal to 10"),
        ({**CALL, "max_retry": -1}, "greater than or equal to 0"),
        *(
            ({**CALL, "timeout_s": one}, "timeout_s")
            for one in (0, -1, 7 * 86_400 + 1, float("nan"), float("inf"))
        ),
        ({**CALL, "when": [{"step": "b", "status": "failed"}] * 51}, "at most 50"),
        ({**CALL, "cancel_if": {"step": "b"}}, "a condition needs"),
        ({**CALL, "args": {"a": date(2026, 1, 1)}}, "a date or time has to stand in quotes"),
        ({**CALL, "args": {"a": [float("nan")]}}, "nan is not a number of JSON"),
        ({**CALL, "args": {"a": 1 << 63}}, "a number is too large"),
        ({**CALL, "undo": {"call": "a.b", "args": {"a": date(2026, 1, 1)}}}, "in quotes"),
        ({**CALL, "schema": {"const": date(2026, 1, 1)}}, "in quotes"),
        ({"name": "a", "flow": "b", "inputs": {"c": date(2026, 1, 1)}}, "in quotes"),
        ({**CALL, "retry": 1}, "not permitted"),
    ],
)
def test_a_wrong_step_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Step.model_validate(values)


def test_values_are_not_nested_without_end() -> None:
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    assert flow({**CALL, "args": {"a": deep}}).step[0].args["a"] == deep
    with pytest.raises(ValidationError, match="nested more than 32 deep"):
        flow({**CALL, "args": {"a": [deep]}})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"step": []}, "at least 1"),
        ({"step": [PROMPT] * (MOST_STEPS + 1)}, "at most 2000"),
        ({"description": "x" * 2001}, "at most 2000"),
        ({"at_once": 65}, "less than or equal to 64"),
        ({"at_once": 0}, "greater than or equal to 1"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"timeout_s": 30 * 86_400 + 1}, "less than or equal to 2592000"),
        ({"agent": "a\n"}, "should match pattern"),
        ({"inputs": {"A": {}}}, "should match pattern"),
        ({"inputs": {f"a{n}": {} for n in range(101)}}, "at most 100"),
        ({"steps": []}, "not permitted"),
    ],
)
def test_a_wrong_flow_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        flow(**values) if "step" not in values else Flow.model_validate({"description": "d", **values})


GOOD_INPUTS = [
    ("string", "x", "x"),
    ("string", "", ""),
    ("string", "5", "5"),
    ("string", "a\nb", "a\nb"),
    ("integer", "5", 5),
    ("integer", "-5", -5),
    ("integer", 5, 5),
    ("integer", 5.0, 5),
    ("integer", "9007199254740993", 9007199254740993),
    ("number", "1.5", 1.5),
    ("number", 1, 1.0),
    ("number", "1e3", 1000.0),
    ("boolean", "true", True),
    ("boolean", "No", False),
    ("boolean", False, False),
    ("list", "a,b,,c", ["a", "b", "c"]),
    ("list", "", []),
    ("list", ["a", 1, 1.5], ["a", 1, 1.5]),
    ("list", [], []),
]
BAD_INPUTS: dict[str, list[Any]] = {
    "string": [5, True, None, ["x"], {}],
    "integer": ["5.5", "1e3", "x", "", 5.5, True, None, [5], "9" * 400, 1 << 63, "inf", "nan"],
    "number": ["x", "", True, None, [1], "nan", "inf", float("inf"), float("nan")],
    "boolean": ["1", "", "on", 1, 0, None, [True]],
    "list": [{}, None, 5, [[]], [None], [True], [{}], [1 << 63], [float("nan")], ["x"] * (MOST_ITEMS + 1)],
}


@pytest.mark.parametrize(("kind", "given", "value"), GOOD_INPUTS)
def test_an_input_is_read_as_its_type(kind: str, given: Any, value: Any) -> None:
    found = FlowInput.model_validate({"type": kind}).read("x", given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_what_is_not_of_its_type_is_refused(kind: str) -> None:
    for given in BAD_INPUTS[kind]:
        with pytest.raises(InvalidArgument, match=f"The input x is not of the type {kind}") as caught:
            FlowInput.model_validate({"type": kind}).read("x", given)
        assert caught.value.field == "x"


@pytest.mark.parametrize(
    ("values", "good", "bad", "said"),
    [
        ({"choices": ["a", "b"]}, "a", "c", "is one of: a, b"),
        ({"type": "integer", "choices": [1, 2]}, "2", "3", "is one of: 1, 2"),
        ({"type": "list", "choices": ["a", "b"]}, "a,b", "a,c", "is one of: a, b"),
        ({"pattern": "[a-z]+"}, "abc", "abc\n", "does not fit its pattern"),
        ({"type": "list", "pattern": "[a-z]+"}, "a,b", "a,B", "does not fit its pattern"),
        ({"pattern": "(a+)+b?"}, "aab", "a" * 40 + "c", "takes too long"),
        ({}, "x" * MOST_INPUT_CHARS, "x" * (MOST_INPUT_CHARS + 1), "longer than 10000 characters"),
        ({"type": "list"}, ["x" * 10_000] * 10, ["x" * 10_000] * 11, "more than 100000 characters"),
    ],
)
def test_an_input_keeps_its_bounds(values: dict[str, Any], good: Any, bad: Any, said: str) -> None:
    found = FlowInput.model_validate(values)
    found.read("x", good)
    with pytest.raises(InvalidArgument, match=said):
        found.read("x", bad)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"type": "text"}, "type"),
        ({"type": "integer", "default": "x"}, "The input default is not of the type integer"),
        ({"default": "c", "choices": ["a"]}, "is one of: a"),
        ({"default": date(2026, 1, 1)}, "in quotes"),
        ({"type": "integer", "choices": ["a"]}, "choices are not of the type integer"),
        ({"type": "boolean", "choices": [1]}, "choices are not of the type boolean"),
        ({"choices": [1]}, "choices are not of the type string"),
        ({"pattern": "("}, "not a regular expression"),
        ({"type": "number", "pattern": "x"}, "pattern does not go with the type number"),
        ({"pattern": "x" * 1001}, "at most 1000"),
        ({"description": "x" * 1001}, "at most 1000"),
        ({"required": True}, "not permitted"),
    ],
)
def test_a_wrong_input_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FlowInput.model_validate(values)


def test_a_run_is_given_its_inputs() -> None:
    found = flow(inputs={"host": {"description": "The host."}, "n": {"type": "integer", "default": "3"}})
    assert found.given({"host": "web1"}) == {"host": "web1", "n": 3}
    assert found.given({"host": "web1", "n": "4"}) == {"host": "web1", "n": 4}
    for values, said in (
        ({}, r"The input host is missing\. The host\."),
        ({"host": "a", "x": 1}, "no input 'x'; there are: host, n"),
        ({"host": None}, "not of the type string"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            found.given(values)
    with pytest.raises(InvalidArgument, match="there are: none"):
        flow().given({"x": 1})


def test_the_list_of_a_default_is_nobodys() -> None:
    found = flow(inputs={"l": {"type": "list", "default": ["a"]}})
    found.given({})["l"].append("b")
    assert found.given({}) == {"l": ["a"]}


def test_a_step_waits_for_those_whose_failure_it_is_for() -> None:
    found = flow(
        {**CALL, "name": "a", "on_failure": "h"},
        {**CALL, "name": "b", "depends_on": ["a"], "on_failure": "h"},
        {**CALL, "name": "h", "depends_on": ["b"]},
    )
    assert found.before() == {"a": (), "b": ("a",), "h": ("b", "a")}


def test_a_stored_definition_is_the_same() -> None:
    found = flow(
        {**PROMPT, "when": {"step": "b", "status": "success", "not": True}, "schema": {"type": "object"}},
        {**CALL, "name": "b", "for_each": ["a", 1, 1.5], "when": {"step": "c", "equals": True}},
        {**CALL, "name": "c", "when": [{"step": "b", "equals": 1.0}]},
        inputs={"l": {"type": "list", "default": "a,b"}},
    )
    said = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert Flow.model_validate(said) == found
    assert [key for key, _ in found.step[1].templates()] == ["for_each"]
