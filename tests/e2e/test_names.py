"""Units that exist on the machine are recognised in a prompt, also one that was made a moment ago."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

from .machine import Machine

pytestmark = pytest.mark.e2e

PHRASINGS = [
    line
    for line in (REPOSITORY / "tests/data/unit_phrasings.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
ASK = """
import json, sys
from lightagentd.client import Client
for prompt in json.load(sys.stdin):
    with Client() as client:
        events = [reply["event"] for reply in client.sessions_prompt(agent="ops", text=prompt, new=True)]
    calls = [event["args"]["args"] for event in events if event["type"] == "tool_call"]
    print(json.dumps([prompt, calls]))
"""


@pytest.fixture(scope="module")
def running(service: Machine) -> Iterator[Machine]:
    """A machine with two units of the administrator's, and a daemon that has answered already."""
    for name in ("geoindex", "dashboard"):
        service.write(f"/etc/systemd/system/{name}.service", "[Service]\nExecStart=/usr/bin/sleep infinity\n")
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "start", "geoindex"])
    service.run(["lactl", "prompt", "ops", "check disk"])
    yield service
    service.run(["systemctl", "stop", "geoindex", "parcelhub"], check=False)
    service.run(["rm", "/etc/systemd/system/geoindex.service", "/etc/systemd/system/dashboard.service"])
    service.run(["systemctl", "daemon-reload"])


@pytest.mark.parametrize(
    ("turn", "unit", "slip"),
    [(0, "geoindex", "geoindx"), (1, "dashboard", "dashbaord"), (2, "parcelhub", "parcelhup")],
)
def test_a_unit_is_recognised_in_every_phrasing(running: Machine, turn: int, unit: str, slip: str) -> None:
    """The phrasings take turns: tests/llm/runbook/test_names.py has all of them for each kind of name."""
    if unit == "parcelhub":  # it has no file: only systemd knows it
        running.run(["systemd-run", f"--unit={unit}", "sleep", "infinity"])
    chosen = {*PHRASINGS[turn::3], *(phrasing for phrasing in PHRASINGS if "{slip}" in phrasing)}
    prompts = [phrasing.format(unit=unit, slip=slip) for phrasing in sorted(chosen)]

    said = running.run(["python3", "-c", ASK], input=json.dumps(prompts), timeout_s=180).stdout

    missed = [line for line in said.splitlines() if f'{{"unit": "{unit}.service"}}' not in line]
    assert len(said.splitlines()) == len(prompts)
    assert not missed
