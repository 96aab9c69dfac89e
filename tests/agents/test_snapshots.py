"""The time that a snapshot is looked for."""

from __future__ import annotations

import time

import pytest

from lightagentd.agents.snapshots import _seconds


@pytest.mark.parametrize(
    "since",
    ["", "\0", "-0d", f"-{'9' * 5000}d", f"-{'9' * 400}d", "0001-01-01", "2025-13-45", "today 99:99", "soon"],
)
def test_what_a_model_made_up_for_a_time_is_now(since: str) -> None:
    assert abs(_seconds(since) - time.time()) < 60
