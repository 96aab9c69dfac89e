"""How many turns that are over are kept, and how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightagentd.agents import ended_turns
from lightagentd.agents.ended_turns import EndedTurns
from lightagentd.agents.turn import Turn


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def turn(trace_id: str, owner: int = 1, text: str = "x", **more: Any) -> Turn:
    session = SimpleNamespace(record=SimpleNamespace(owner=owner), deleted=False)
    latest = {"type": "done", "text": text, **more}
    return cast(
        Turn, SimpleNamespace(trace_id=trace_id, session=session, stream=SimpleNamespace(latest=latest))
    )


def test_each_is_kept_for_a_while() -> None:
    clock = Clock()
    kept = EndedTurns(clock)
    kept.add(turn("a", text="answer"))
    clock.now_s += ended_turns.KEPT_S - 1
    kept.add(turn("b", text="", code="cancelled", message="It was."))
    found = kept.find("a")
    assert found is not None
    assert (found.answer, found.error) == ("answer", "")
    assert [(one.trace_id, one.error, one.message) for one in kept.all()][1] == ("b", "cancelled", "It was.")
    clock.now_s += 1
    assert [one.trace_id for one in kept.all()] == ["b"]


def test_one_owner_takes_no_others_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_turns, "OWNER_CHARS", 100)
    monkeypatch.setattr(ended_turns, "ALL_CHARS", 150)
    kept = EndedTurns()
    kept.add(turn("other", owner=2))
    for number in range(ended_turns.PER_OWNER + 5):
        kept.add(turn(str(number)))
    found = [one.trace_id for one in kept.all()]
    assert found == ["other", *(str(number) for number in range(5, 5 + ended_turns.PER_OWNER))]
    kept.add(turn("large", text="x" * 99))
    assert [one.trace_id for one in kept.all()] == ["other", "20", "large"]
    kept.add(turn("too large", text="x" * 101))
    assert (kept.all()[-1].answer, kept.all()[-1].message[:21]) == ("", "The answer is longer ")
    kept.add(turn("third", owner=3, text="x" * 60))
    assert [one.trace_id for one in kept.all()] == ["other", "20", "too large", "third"]


def test_what_is_deleted_is_not_kept() -> None:
    kept = EndedTurns()
    gone = turn("a")
    kept.add(gone)
    gone.session.deleted = True
    assert kept.find("a") is None
    assert kept.all() == []
