"""What is known of a model: the order of the sources, the spellings that count, and broken tables."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.configuration import Models
from lightagentd.errors import InvalidArgument
from lightagentd.llm.metadata.facts import Facts, Metadata
from lightagentd.llm.metadata.price import Price
from lightagentd.llm.protocol import Usage

SHIPPED: dict[str, Any] = {
    "openai": {
        "models": {
            "big": {
                "name": "Big",
                "tool_call": True,
                "reasoning": False,
                "attachment": True,
                "knowledge": "2025-05",
                "limit": {"context": 100_000, "output": 5000},
                "cost": {"input": 2, "output": 8, "cache_read": 0.5},
            },
            "old-2024-05-13": {"name": "Old", "limit": {"context": 1000}},
            "old": {"name": "Old (newest)", "limit": {"context": 2000}},
        }
    },
    "google": {"models": {"gem": {"limit": {"context": 7000}}}},
    "openrouter": {"models": {"vendor/model": {"limit": {"context": 9000}}, "vendor/model:free": {}}},
}


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    return write(tmp_path / "shipped.json", SHIPPED)


def write(path: Path, table: Any) -> Path:
    path.write_text(json.dumps(table))
    return path


def models(**sections: Any) -> Models:
    return Models.model_validate(sections)


def asked(metadata: Metadata, model: str) -> Facts:
    found = metadata.facts(model)
    assert found is not None, model
    return found


def test_a_shipped_model(shipped: Path) -> None:
    big = asked(Metadata(models(), shipped=shipped), "openai/big")
    assert (big.name, big.context_tokens, big.max_output_tokens) == ("Big", 100_000, 5000)
    assert (big.tools, big.reasoning, big.attachments, big.knowledge) == (True, False, True, "2025-05")
    assert big.price == Price(prompt=2, completion=8, cached=0.5)
    assert big.origin == "shipped"
    assert big.origins["price"] == "shipped"


@pytest.mark.parametrize(
    "model", ["runbook", "openai", "openai/", "openai/bigger", "nobody/big", "", "/", "a/b/c"]
)
def test_a_model_that_is_not_known_has_no_facts(shipped: Path, model: str) -> None:
    metadata = Metadata(models(), shipped=shipped)
    assert metadata.facts(model) is None
    assert metadata.price(model) is None


def test_the_refreshed_table_goes_before_the_shipped_one(shipped: Path, tmp_path: Path) -> None:
    newer = {"openai": {"models": {"big": {"limit": {"context": 300_000}}, "fresh": {"name": "Fresh"}}}}
    metadata = Metadata(models(), write(tmp_path / "models.json", newer), shipped)
    big = asked(metadata, "openai/big")
    assert (big.context_tokens, big.origin) == (300_000, "refreshed")
    assert big.price is None  # an entry counts as a whole: an old price may not go with a new model
    assert asked(metadata, "openai/fresh").name == "Fresh"
    assert asked(metadata, "openai/old").origin == "shipped"
    assert [one.model for one in metadata.known_of("openai")] == [
        "openai/big",
        "openai/fresh",
        "openai/old",
        "openai/old-2024-05-13",
    ]


def test_the_configuration_goes_before_both_field_by_field(shipped: Path) -> None:
    own = models(
        known={"openai/big": {"context_tokens": 50_000}, "mine/own": {"tools": False}},
        prices={"openai/big": {"prompt": 1.0, "completion": 3.0}},
    )
    big = asked(Metadata(own, shipped=shipped), "openai/big")
    assert (big.context_tokens, big.origins["context_tokens"]) == (50_000, "configuration")
    assert (big.max_output_tokens, big.origins["max_output_tokens"]) == (5000, "shipped")
    assert big.price == Price(prompt=1.0, completion=3.0)
    mine = asked(Metadata(own, shipped=shipped), "mine/own")
    assert (mine.tools, mine.context_tokens, mine.origin) == (False, None, "configuration")


def test_another_configuration_counts_at_once(shipped: Path) -> None:
    metadata = Metadata(models(), shipped=shipped)
    assert asked(metadata, "openai/big").context_tokens == 100_000
    metadata.take(models(known={"openai/big": {"context_tokens": 2000}}))
    assert asked(metadata, "openai/big").context_tokens == 2000


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai/big-2026-01-31", "big"),
        ("openai/big-20260131", "big"),
        ("openai/big@20260131", "big"),
        ("openai/big:latest", "big"),
        ("openai/old-2024-05-13", "old-2024-05-13"),
        ("openai/old-2025-05-13", "old"),
        ("gemini/gem", "gem"),
        ("openrouter/vendor/model", "vendor/model"),
        ("openrouter/vendor/model:free", "vendor/model:free"),
    ],
)
def test_spellings_that_mean_the_same_model(shipped: Path, model: str, name: str) -> None:
    found = asked(Metadata(models(), shipped=shipped), model)
    windows = {
        key: value.get("limit", {}).get("context")
        for provider in SHIPPED.values()
        for key, value in provider["models"].items()
    }
    assert found.model == model
    assert found.context_tokens == windows[name]


@pytest.mark.parametrize(
    "model",
    [
        "openai/BIG",
        "openai/big-mini",
        "openai/big-2024",
        "openai/big-1106",
        "openai/big:free",
        "openai/big-20261399",
        "openrouter/big",
        "openrouter/openai/big",
        "google/vendor/model",
    ],
)
def test_what_only_looks_alike_is_not_known(shipped: Path, model: str) -> None:
    assert Metadata(models(), shipped=shipped).facts(model) is None


def test_the_window_to_keep_to_is_that_of_a_prompt_where_that_is_less() -> None:
    assert Facts(model="m", context_tokens=400_000, input_tokens=272_000).window_tokens == 272_000
    assert Facts(model="m", context_tokens=400_000).window_tokens == 400_000
    assert Facts(model="m").window_tokens is None


def test_litellm_passes_on_what_a_model_is_and_not_what_it_costs(shipped: Path) -> None:
    found = asked(Metadata(models(), shipped=shipped), "litellm/openai/big")
    assert (found.context_tokens, found.price) == (100_000, None)


def test_a_provider_of_any_name_is_known_by_its_url(shipped: Path) -> None:
    own = models(
        providers={
            "work": {"base_url": "https://api.openai.com/v1"},
            "other": {"base_url": "https://gateway.example/v1"},
        }
    )
    metadata = Metadata(own, shipped=shipped)
    assert asked(metadata, "work/big").context_tokens == 100_000
    assert metadata.facts("other/big") is None


def test_what_runs_on_this_machine_costs_nothing(shipped: Path) -> None:
    own = models(
        providers={
            "ollama": {"base_url": "http://192.0.2.7:11434/v1"},
            "vllm": {"base_url": "http://localhost:8000/v1"},
        }
    )
    assert Metadata(models(), shipped=shipped).price("ollama/qwen3") == Price(prompt=0, completion=0)
    metadata = Metadata(own, shipped=shipped)
    assert metadata.price("ollama/qwen3") is None  # somebody else's machine
    assert metadata.price("vllm/x") == Price(prompt=0, completion=0)
    assert metadata.price("litellm/x") is None
    assert asked(metadata, "vllm/x").context_tokens is None
    priced = models(prices={"ollama/qwen3": {"prompt": 1.0}})
    assert Metadata(priced, shipped=shipped).price("ollama/qwen3") == Price(prompt=1.0, completion=0.0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 7}', b"\xff", b"{}", b"[" * 50_000])
def test_a_broken_refreshed_table_is_a_problem_and_the_shipped_one_counts(
    shipped: Path, tmp_path: Path, content: bytes
) -> None:
    broken = tmp_path / "models.json"
    broken.write_bytes(content)
    metadata = Metadata(models(), broken, shipped)
    assert asked(metadata, "openai/big").origin == "shipped"
    assert str(broken) in metadata.problem
    assert metadata.problem.endswith(".")


def test_a_refreshed_table_that_cannot_be_read_is_a_problem(shipped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models.json"
    folder.mkdir()
    metadata = Metadata(models(), folder, shipped)
    assert asked(metadata, "openai/big").origin == "shipped"
    assert metadata.problem


def test_no_refreshed_table_is_no_problem(shipped: Path, tmp_path: Path) -> None:
    metadata = Metadata(models(), tmp_path / "none.json", shipped)
    assert asked(metadata, "openai/big").origin == "shipped"
    assert not metadata.problem


def test_a_stored_table_counts_and_is_the_owners_alone(shipped: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    metadata = Metadata(models(), file, shipped)
    assert asked(metadata, "openai/big").context_tokens == 100_000
    reading = metadata.store(json.dumps({"openai": {"models": {"big": {"limit": {"context": 1234}}}}}))
    metadata.taken()
    assert reading.models == 1
    assert asked(metadata, "openai/big").context_tokens == 1234
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert asked(Metadata(models(), file, shipped), "openai/big").context_tokens == 1234


def test_a_table_that_is_refused_leaves_the_one_before(shipped: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    metadata = Metadata(models(), file, shipped)
    metadata.store(json.dumps({"openai": {"models": {"big": {"limit": {"context": 1234}}}}}))
    before = file.read_bytes()
    for text in ("{}", '{"openai": {"models": {"big": {"limit": {"context": -1}}}}}', " " * (9 << 20)):
        with pytest.raises(InvalidArgument):
            metadata.store(text)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_price_counts_cached_tokens_and_long_prompts() -> None:
    price = Price(prompt=2.0, completion=10.0, cached=0.5, over_200k=Price(prompt=4.0, completion=20.0))
    assert price.cost(Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=400)) == pytest.approx(
        (600 * 2 + 400 * 0.5 + 100 * 10) / 1e6
    )
    assert price.cost(Usage(prompt_tokens=10, cached_tokens=99)) == pytest.approx(10 * 0.5 / 1e6)
    assert price.cost(Usage(prompt_tokens=200_000)) == pytest.approx(0.4)
    assert price.cost(Usage(prompt_tokens=200_001)) == pytest.approx(200_001 * 4 / 1e6)
    assert Price(prompt=2.0, completion=0.0).cost(
        Usage(prompt_tokens=100, cached_tokens=50)
    ) == pytest.approx(200 / 1e6)
