"""The JSON of a conversation, of which only what is new is encoded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.llm.dialects import dialect
from lightagentd.llm.dialects.dialect import ListJson


def test_only_what_is_new_or_changed_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def dump(value: Any) -> bytes:
        encoded.append(value)
        return json.dumps(value).encode()

    monkeypatch.setattr(dialect, "dump_json", dump)
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
        encoded.clear()
        assert json.loads(sent.of(items)) == items
        assert encoded == new


def test_a_long_conversation_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "_KEPT_BYTES", 10)
    sent = ListJson()
    items = [{"content": "more than ten"}]
    assert json.loads(sent.of(items)) == json.loads(sent.of(items)) == items
    assert not sent._known
