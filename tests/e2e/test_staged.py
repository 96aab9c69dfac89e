"""Faults that are staged for real: what the agent without a model answers, and what health says of them.

.venv/bin/python -m tests.e2e.staged     prints what is answered and what is not
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .staged import Run, faults, stage_all, table

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run(debian_root: Path) -> Run:
    """All faults are staged once, in a machine of their own: others leave traces, and so do these."""
    return stage_all(debian_root, faults())


def test_every_fault_is_there_and_gone_again(run: Run) -> None:
    assert len(run.outcomes) >= 40
    assert [one.fault.name for one in run.outcomes if not (one.staged and one.undone)] == [], table(run)


def test_answers_name_the_cause(run: Run) -> None:
    right = [is_right for one in run.outcomes for is_right in one.right]
    first = [is_right for one in run.outcomes for is_right in one.first]
    assert sum(right) >= 0.95 * len(right), table(run)
    assert sum(first) >= 0.90 * len(first), table(run)


def test_health_names_each_fault_and_invents_none(run: Run) -> None:
    assert run.healthy == ()
    assert [one.fault.name for one in run.outcomes if one.named is False] == [], table(run)
