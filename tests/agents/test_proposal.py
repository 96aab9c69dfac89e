"""What is a plan and what is not, and which field is at fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightagentd.agents.planning.plan import Task
from lightagentd.agents.planning.proposal import proposal, proposal_in_text
from lightagentd.errors import PlanInvalid


def test_a_plan_is_taken_as_it_is() -> None:
    title, tasks = proposal(
        {"title": " Move  the\nlogs ", "tasks": [{"id": "a", "text": " stop ", "check": " true "}]}
    )
    assert title == "Move the logs"
    assert tasks == (Task(id="a", text="stop", check="true"),)


def test_tasks_without_an_id_get_the_next_free_number() -> None:
    tasks = [{"text": "a"}, {"id": "2", "text": "b"}, {"id": "", "text": "c"}, {"id": None, "text": "d"}]
    assert [task.id for task in proposal({"tasks": tasks})[1]] == ["1", "2", "3", "4"]
    tasks = [{"text": "a"}, {"id": "1", "text": "b"}]
    assert [task.id for task in proposal({"tasks": tasks})[1]] == ["2", "1"]


def test_without_a_title_the_first_task_gives_it() -> None:
    assert proposal({"title": " ", "tasks": [{"text": "one\ntwo"}]})[0] == "one two"
    assert proposal({"tasks": [{"text": "x" * 4000}]})[0] == "x" * 59 + "…"


WRONG: list[tuple[Any, str]] = [
    (None, "plan"),
    ([], "plan"),
    ("do it", "plan"),
    ({}, "tasks"),
    ({"tasks": []}, "tasks"),
    ({"tasks": None}, "tasks"),
    ({"tasks": {"id": "1"}}, "tasks"),
    ({"tasks": [{"text": "a"}], "phase": "applying"}, "phase"),
    ({"tasks": [{"text": "a"}] * 101}, "tasks"),
    ({"tasks": ["a"]}, "tasks[0]"),
    ({"tasks": [{"text": "a"}, None]}, "tasks[1]"),
    ({"tasks": [{"text": "a", "state": "done"}]}, "tasks[0].state"),
    ({"tasks": [{"id": "x", "text": "a"}, {"id": "x", "text": "b"}]}, "tasks[1].id"),
    ({"tasks": [{"id": "a b", "text": "a"}]}, "tasks[0].id"),
    ({"tasks": [{"id": "a\n", "text": "a"}]}, "tasks[0].id"),
    ({"tasks": [{"id": "ä", "text": "a"}]}, "tasks[0].id"),
    ({"tasks": [{"id": "a" * 41, "text": "a"}]}, "tasks[0].id"),
    ({"tasks": [{"id": 1, "text": "a"}]}, "tasks[0].id"),
    ({"tasks": [{}]}, "tasks[0].text"),
    ({"tasks": [{"text": " \n"}]}, "tasks[0].text"),
    ({"tasks": [{"text": ["a"]}]}, "tasks[0].text"),
    ({"tasks": [{"text": "a" * 4001}]}, "tasks[0].text"),
    ({"tasks": [{"text": "a\0b"}]}, "tasks[0].text"),
    ({"tasks": [{"text": "a\ud800"}]}, "tasks[0].text"),
    ({"tasks": [{"text": "a", "check": "x" * 2001}]}, "tasks[0].check"),
    ({"tasks": [{"text": "a", "check": "x\0"}]}, "tasks[0].check"),
    ({"tasks": [{"text": "a", "check": True}]}, "tasks[0].check"),
    ({"title": "t" * 201, "tasks": [{"text": "a"}]}, "title"),
    ({"title": "t\0", "tasks": [{"text": "a"}]}, "title"),
    ({"title": 7, "tasks": [{"text": "a"}]}, "title"),
    ({"title": "t\u202e", "tasks": [{"text": "a"}]}, "title"),
    ({"tasks": [{"text": "a\u2028b"}]}, "tasks[0].text"),
    ({"tasks": [{"text": "look" + "".join(chr(0xE0000 + ord(char)) for char in "rm")}]}, "tasks[0].text"),
    ({"tasks": [{"text": "a", "check": "true\x1b[2K"}]}, "tasks[0].check"),
    ({"tasks": [{"text": "a"}], "x\n# All calls\u202e": 1}, "'x\\n# All calls\\u202e'"),
]


@pytest.mark.parametrize(("value", "field"), WRONG, ids=lambda value: str(value)[:40].replace("\0", "NUL"))
def test_what_is_no_plan_is_refused_by_the_name_of_the_field(value: Any, field: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        proposal(value)
    assert caught.value.field == field
    assert caught.value.message.endswith(".")
    assert caught.value.suggestion
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable(), "it is told in the daemon's name"


def test_what_people_write_may_be_in_a_plan() -> None:
    text = "Größe prüfen\n\t\u05e9\u05dc\u05d5\u05dd \u0645\u06cc\u200c\u062e ✔\ufe0f 👩\u200d💻\r\nend"
    [task] = proposal({"tasks": [{"text": text}]})[1]
    assert task.text == text


def test_the_largest_plan_is_one() -> None:
    tasks = [{"id": f"{n}".rjust(40, "x"), "text": "t" * 4000, "check": "c" * 2000} for n in range(100)]
    assert len(proposal({"title": "t" * 200, "tasks": tasks})[1]) == 100


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["title", "tasks", "id", "text", "check", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_whatever_comes_is_a_plan_or_refused(value: Any) -> None:
    try:
        title, tasks = proposal(value)
    except PlanInvalid:
        return
    assert title
    assert tasks
    assert len({task.id for task in tasks}) == len(tasks)


PLAN = json.dumps({"tasks": [{"text": "a"}]})


@pytest.mark.parametrize("text", [PLAN, f" {PLAN}\n", f"```json\n{PLAN}\n```", f"```\n{PLAN}\n```"])
def test_an_answer_that_is_nothing_but_the_object_is_a_plan(text: str) -> None:
    assert proposal_in_text(text) == {"tasks": [{"text": "a"}]}


@pytest.mark.parametrize(
    "text",
    [
        f"Here it is: {PLAN}",
        f"{PLAN}\nShall I begin?",
        f"```json\n{PLAN}\n```\nShall I begin?",
        f"```json\n{PLAN}\n```\n```json\n{PLAN}\n```",
        f"{PLAN}{PLAN}",
        f"[{PLAN}]",
        '{"title": "no tasks"}',
        "{}",
        "",
        "{" * 100_000 + "}" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_any_other_answer_is_none(text: str) -> None:
    assert proposal_in_text(text) is None
