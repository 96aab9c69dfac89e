"""Some of the faults that are staged for real: what the agent without a model answers, and what health says.

.venv/bin/python -m tests.e2e.staged     stages all 72 (three minutes) and prints what is answered
"""

from __future__ import annotations

import pytest

from .machine import Machine
from .staged import Run, faults, stage, table

pytestmark = pytest.mark.e2e


SAMPLE = {
    "certificate-expired",
    "crash-loop",
    "deleted-but-open",
    "failed-logins",
    "failed-start-pre",
    "half-configured",
    "loopback-only",
    "masked-requirement",
    "no-default-route",
    "port-conflict",
    "stopped-service",
    "timer-without-next-run",
    "tmpfs-full",
}


@pytest.fixture(scope="module")
def run(third_machine: Machine) -> Run:
    """They are staged once, in a machine with nothing before: others leave traces, and so do these."""
    return stage(third_machine, [fault for fault in faults() if fault.name in SAMPLE])


def test_every_fault_is_there_and_gone_again(run: Run) -> None:
    assert {one.fault.name for one in run.outcomes} == SAMPLE
    assert [one.fault.name for one in run.outcomes if not (one.staged and one.undone)] == [], table(run)


def test_answers_name_the_cause_in_the_first_sentence(run: Run) -> None:
    assert [one.fault.name for one in run.outcomes if not all((*one.right, *one.first))] == [], table(run)


def test_health_names_each_fault_and_invents_none(run: Run) -> None:
    assert run.healthy == ()
    assert [one.fault.name for one in run.outcomes if one.named is False] == [], table(run)
