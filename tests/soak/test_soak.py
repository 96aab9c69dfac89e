"""A short soak, and that it would find what it looks for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.soak.books import Books
from tests.soak.measures import Memory
from tests.soak.running import Left, left_over, soak

TURNS = 200


async def test_turns_end_once_and_nothing_is_left(open_folder: Path) -> None:
    report = await soak(open_folder, turns=TURNS, sessions=15, rate=0.1, seed="1")
    assert report.problems == []
    outcomes = report.books.outcomes()
    assert outcomes.total() == TURNS
    assert outcomes["done"] > TURNS / 2
    assert len(outcomes) > 3, "the faults are not seen"


def stored(trace: str, kind: str = "done", topic: str = "session.turn") -> dict[str, Any]:
    return {"trace_id": trace, "type": kind, "topic": topic, "session": "ses_1"}


def told(trace: str, kind: str = "done", **more: str) -> dict[str, Any]:
    return {"trace_id": trace, "type": kind, **more}


def kept() -> Books:
    """The books of one turn that is as it should be."""
    books = Books()
    books.store(stored("a", "started"))
    books.tell(told("a", "started"))
    books.tell(told("a"))
    books.store(stored("a"))
    books.watched.add("a")
    return books


def test_books_in_order_have_no_problem() -> None:
    assert kept().problems(1) == []


@pytest.mark.parametrize(
    ("prompts", "wrong", "said"),
    [
        (1, [("store", stored("a"))], "stored as ended 2 times: done, done"),
        (1, [("store", stored("a", "model_timeout", "agent.error"))], "2 times: done, model_timeout"),
        (1, [("tell", told("a"))], "1 events came behind the last one"),
        (2, [], "2 prompts were made, and 1 turns are stored"),
    ],
)
def test_books_show_what_does_not_agree(prompts: int, wrong: list[Any], said: str) -> None:
    books = kept()
    for method, event in wrong:
        getattr(books, method)(event)
    assert any(said in problem for problem in books.problems(prompts))


def test_books_show_a_watcher_who_was_told_something_else() -> None:
    books = Books()
    books.tell(told("a", "error", code="model_timeout"))
    books.store(stored("a"))
    books.watched |= {"a", "b"}
    found = books.problems(1)
    assert "a watcher of a heard model_timeout, and stored is done" in found
    assert "a watcher of b heard 0 last events: none" in found


def test_a_retry_is_no_end_of_a_turn() -> None:
    books = kept()
    books.store(stored("a", "fallback", "agent.error"))
    books.store(stored("a", "retry", "agent.retry"))
    assert books.problems(1) == []


def test_what_is_left_over_is_named() -> None:
    before = Left(tasks=Counter(serve=1), descriptors=Counter(socket=3))
    after = Left(tasks=Counter(serve=1, stray=2), descriptors=Counter(socket=4))
    assert list(left_over(before, after)) == [
        "tasks are left: {'stray': 2}",
        "descriptors are left: {'socket': 1}",
    ]
    assert list(left_over(before, before)) == []


def test_memory_is_compared_by_medians() -> None:
    turns = range(500, 10_001, 500)
    flat = Memory(samples=[(number, 1000 + (500 if number % 2000 == 0 else 0)) for number in turns])
    growing = Memory(samples=[(number, 1000 + number // 10) for number in turns])
    assert flat.growth() == 0.0
    assert growing.growth() == pytest.approx(1900 / 1300 - 1)
    assert Memory(samples=flat.samples[:8]).growth() is None
