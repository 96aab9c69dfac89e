"""The table that comes with the program: its shape, its size, and that it says what it is sure of."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pytest

from lightagentd.config.configuration import Models
from lightagentd.llm.metadata.facts import SHIPPED_FILE, SNAPSHOT, Metadata
from lightagentd.llm.metadata.table import count, read_table
from lightagentd.llm.providers import KNOWN

TABLE: dict[str, Any] = json.loads(SHIPPED_FILE.read_text())
LARGE = (
    "openai",
    "anthropic",
    "google",
    "xai",
    "deepseek",
    "alibaba",
    "zai",
    "moonshotai",
    "mistral",
    "groq",
)
MODEL_FIELDS = {
    "id": str,
    "name": str,
    "attachment": bool,
    "reasoning": bool,
    "tool_call": bool,
    "modalities": dict,
    "open_weights": bool,
    "limit": dict,
}
OPTIONAL = {"temperature": bool, "knowledge": str, "release_date": str, "status": str, "cost": dict}


def models() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (provider, name, model)
        for provider, value in TABLE.items()
        for name, model in value["models"].items()
    ]


def test_every_provider_has_the_shape() -> None:
    for provider, value in TABLE.items():
        assert value["id"] == provider
        assert value["name"]
        assert value["doc"].startswith("https://")
        assert all(isinstance(one, str) for one in value["env"])
        assert value.keys() <= {"id", "name", "env", "npm", "api", "doc", "models"}


def test_every_model_has_the_shape() -> None:
    for provider, name, model in models():
        where = f"{provider}/{name}"
        assert model["id"] == name, where
        for field, kind in MODEL_FIELDS.items():
            assert isinstance(model[field], kind), (where, field)
        assert model.keys() <= MODEL_FIELDS.keys() | OPTIONAL.keys(), where
        for field, kind in OPTIONAL.items():
            assert isinstance(model.get(field, kind()), kind), (where, field)
        assert model["modalities"]["output"] == ["text"], where
        assert 0 < model["limit"].get("output", 1) <= model["limit"].get("context", math.inf), where
        assert model["limit"].get("input", 0) <= model["limit"].get("context", math.inf), where
        cost = model.get("cost", {"input": 0, "output": 0})
        assert 0 <= cost.get("cache_read", 0) <= cost["input"] <= cost["output"] * 10 + 1, where


def test_nothing_of_it_is_left_out_when_it_is_read() -> None:
    read = read_table(SHIPPED_FILE.read_bytes(), strict=True)
    assert count(read.table) == len(models()) >= 80
    assert not read.left_out


@pytest.mark.parametrize("provider", LARGE)
def test_the_large_providers_are_in_it(provider: str) -> None:
    known = Metadata(Models()).known_of(provider)
    assert len(known) >= 4
    with_all = [one for one in known if one.context_tokens and one.price and one.tools]
    assert len(with_all) >= len(known) / 2


def test_most_providers_that_are_known_by_name_are_in_it() -> None:
    assert {one.name for one in KNOWN if not one.local} <= TABLE.keys()


def test_the_day_of_the_snapshot_is_a_day() -> None:
    assert datetime.date.fromisoformat(SNAPSHOT).year >= 2026
    assert SNAPSHOT in SHIPPED_FILE.with_suffix(".NOTICE").read_text()
