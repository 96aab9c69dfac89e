"""Cases of an assessment without stubs: evals/machine.sh stages what they ask about for real, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.assessment.cases import read_cases

from .machine import Machine

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).with_name("evals")
CASES = read_cases(FOLDER)
IN_MACHINE = "/var/tmp/e2e-evals"
STATE = """
find /etc /srv /usr/local -printf '%p %m %U %s %C@\\n'
findmnt --list --output TARGET,SOURCE,OPTIONS
dpkg-query --show
systemctl list-units --all --plain --no-legend 'srv-*' '*dash*' 'stock*' 'tariffd*' 'meterd*' 'reaper*'
"""
"""What of the machine no case may change."""


@pytest.fixture(scope="module")
def run(service: Machine) -> dict[str, Any]:
    """The trials by the names of their cases, and the state of the machine before and after them."""
    service.copy_in(FOLDER, IN_MACHINE)
    argv = ["eval", "run", IN_MACHINE, "--agent", "ops", "--model", "runbook", "-n", "1", "--json"]
    try:
        service.run([f"{IN_MACHINE}/machine.sh", "up"], timeout_s=120)
        before = service.run(["sh", "-c", STATE]).stdout
        done = service.run(["lactl", *argv], check=False, timeout_s=120)
        assert done.status in (0, 82), done.explain()
        after = service.run(["sh", "-c", STATE]).stdout
    finally:
        service.run([f"{IN_MACHINE}/machine.sh", "down"], timeout_s=120)
        service.run(["rm", "-r", IN_MACHINE])
    trials = {one["case"]: one for one in json.loads(done.stdout)["trials"]}
    return {"trials": trials, "before": before, "after": after}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_built_in_model_answers(run: dict[str, Any], name: str) -> None:
    trial = run["trials"][name]
    assert (trial["state"], trial["why"]) == ("passed", []), trial["answer"]


def test_they_are_twenty_without_stubs_and_change_nothing(run: dict[str, Any]) -> None:
    assert len(CASES) >= 20
    assert [case.name for case in CASES if case.stub] == []
    assert {effect for case in CASES for effect in case.effects or ("any",)} == {"observe"}
    assert run["after"].splitlines() == run["before"].splitlines()
