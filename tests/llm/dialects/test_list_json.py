"""The JSON of a conversation, of which only what is new is encoded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.llm.dialects import dialect
from lightagentd.llm.dialects.dialect import ListJson


def test_only_what_is_new_or_changed_is_made_and_encoded() -> None:
    made: list[Any] = []

    def wire(item: Any) -> Any:
        made.append(item)
        return item

    sent = ListJson()
    a, b, c, other = ({"content": word} for word in ("a", "b", "c", "other"))
    for items, new in (
        ([a, b], [a, b]),
        ([dict(a), dict(b), c], [c]),
        ([a, other, c], [other]),
        ([b], [b]),
        ([], []),
        ([a], [a]),
    ):
        made.clear()
        assert [json.loads(each) for each in sent.of(items, wire)] == items
        assert made == new


def test_a_long_conversation_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "_KEPT_BYTES", 10)
    sent = ListJson()
    items = [{"content": "more than ten"}]
    for _ in range(2):
        assert [json.loads(each) for each in sent.of(items, dict)] == items
    assert not sent._known
