"""A few of the stores of the loop `python -m tests.faults.damaged`, small ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.damaged import KINDS, make, records_of, try_store

SEED, EVENTS = 20, 1500


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sound")
    asyncio.run(make(base, EVENTS))
    return base


def test_a_damaged_store_ends_a_run_once_at_most_and_is_salvaged(sound: Path, tmp_path: Path) -> None:
    records = records_of(sound)
    done = [
        try_store(sound, records, kind, SEED + number, tmp_path / str(number))
        for number, kind in enumerate(KINDS)
    ]
    assert [one.wrong for one in done] == [[]] * len(KINDS)
    assert sum(one.set_aside for one in done) >= 3, "the damage hits what is used"
