"""The daemon is the attacker: what a program of its user gets to run as root, in its place and beside it.

The attacks are in `daemon_attacks`. Each is judged by what came of it on the booted system, and not by the
error that it got; its control is the honest way, which has that effect. The table is printed (pytest -s).
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .debian import CHECKOUT
from .dropins import edited
from .machine import Machine
from .product import UNIT, new_uid, start_service

pytestmark = pytest.mark.e2e

HERE = CHECKOUT / "tests" / "e2e" / "daemon_attacks"
CODE = "/usr/lib/lightagentd-daemon-attacks"
IN_UNIT, OUTSIDE = "/run/lightagentd/attacker.sock", "/run/lightagentd/outside.sock"
ANNA, BERT = "e2e-anna", "e2e-bert"
SOCKETS = ("lightagent-change@ops.socket", "lightagent-change@web.socket")
POLKIT = "/etc/polkit-1/rules.d/40-e2e-daemon-attacks.rules"
RULE = f"""polkit.addRule(function(action, subject) {{
    if (action.id == "org.lightagent1.approve" && subject.user == "{ANNA}") return polkit.Result.YES;
}});
"""
ATTACKER = f"""[Service]
ExecStart=
ExecStart=/usr/bin/python3 -I {CODE}/daemon_attacks/attacker.py {IN_UNIT}
ExecReload=
ExecReload=/bin/true
WatchdogSec=0
"""
LEFT = (
    "kits/ops",
    "kits/evil",
    "kits/served",
    "hooks",
    "policy.d",
    "own-approver",
    "x",
    "audit.new",
    "history.new",
)
"""What attacks leave in the daemon's state."""
AGENT = "---\ndescription: Works.\neffects: [observe, reach, change]\n---\nDo what you are asked to.\n"
GROUPS = ("signatures", "rules", "code", "later", "people", "seeing", "lying", "system", "flooding")
"""The modules of attacks, in the order in which they are carried out; the last one leaves most behind."""
MADE = re.compile(r'^@(attack|control)\($|^@(attack|control)\("|^def (\w+)\(stage', re.MULTILINE)


def _names(kind: str) -> list[str]:
    """The attacks or the controls, by their source: what they import is in the machine alone."""
    found, last = [], ""
    for group in GROUPS:
        for match in MADE.finditer((HERE / f"{group}.py").read_text(encoding="utf-8")):
            if match[3] and last == kind:
                found.append(f"{group}.{match[3]}")
            last = match[1] or match[2] or ""
    return found


Came = Callable[[str], dict[str, Any]]
ATTACKS, CONTROLS = _names("attack"), _names("control")


@pytest.fixture(scope="module")
def service(third_machine: Machine) -> Machine:
    """That of the audit, after the audit: what attacks leave is altered, as an audit tells rightly."""
    start_service(third_machine)
    return third_machine


@pytest.fixture(scope="module")
def honest(service: Machine) -> Iterator[dict[str, Any]]:
    """What the honest ways took, with the real daemon."""
    service.run(["useradd", new_uid(), "--create-home", "--groups", "lightagent", ANNA])
    service.run(["useradd", new_uid(), "--create-home", "--groups", "lightagent", BERT])
    service.write(POLKIT, RULE)
    for agent in ("ops", "web"):
        service.write(f"/etc/lightagentd/agent/{agent}/AGENT.md", AGENT)
    service.copy_in(HERE, f"{CODE}/daemon_attacks")
    service.run(["systemctl", "reload", UNIT])
    service.run(["systemctl", "enable", "--now", *SOCKETS])
    try:
        argv = ["env", f"PYTHONPATH={CODE}", "python3", "-m", "daemon_attacks.honest", ANNA]
        yield json.loads(service.run(argv, timeout_s=120).stdout)
    finally:
        service.run(["systemctl", "disable", "--now", *SOCKETS])
        service.run(["rm", "-rf", POLKIT, CODE, "/root/daemon-attacks", "/usr/local/share/kit"])
        service.run(["rm", "-rf", *(f"/etc/lightagentd/agent/{agent}" for agent in ("ops", "web"))])
        for user in (ANNA, BERT):
            service.run(["userdel", "--remove", user])


@pytest.fixture(scope="module")
def came(service: Machine, honest: dict[str, Any]) -> Iterator[Came]:
    """What came of each attack; the attacker is the daemon meanwhile. A module is carried out at once."""
    outside = ["systemd-run", "--quiet", "--unit=e2e-outside", "--uid=lightagent", "--collect"]
    outcomes: dict[str, dict[str, Any]] = {}
    before_s = _cpu_s(service)

    def of(name: str) -> dict[str, Any]:
        group = name.partition(".")[0]
        if name not in outcomes:
            argv = ["env", f"PYTHONPATH={CODE}", "python3", "-m", "daemon_attacks.director", IN_UNIT, OUTSIDE]
            printed = service.run([*argv, group], timeout_s=240).stdout
            outcomes.update({f"{group}.{one['name']}": one for one in map(json.loads, printed.splitlines())})
        return outcomes[name]

    with edited(service, UNIT, ATTACKER):
        try:
            service.run(["systemctl", "restart", UNIT], timeout_s=60)
            service.run([*outside, "/usr/bin/python3", "-I", f"{CODE}/daemon_attacks/attacker.py", OUTSIDE])
            yield of
            print(table(outcomes), f"CPU: {_cpu_s(service) - before_s:.0f} s", sep="\n", file=sys.stderr)
        finally:
            service.run(["systemctl", "stop", "e2e-outside.service"], check=False)
            service.run(["systemctl", "stop", UNIT, "lightagent-approver.service"])
            left = [f"/var/lib/lightagentd/{name}" for name in LEFT]
            service.run(["rm", "-rf", *left, "/var/lib/lightagent-approver/requests"])
            service.run(["sh", "-c", "rm -rf /run/lightagentd/*"])
    service.run(["systemctl", "start", UNIT], timeout_s=60)


def _cpu_s(machine: Machine) -> float:
    """What the whole machine has used."""
    [used] = [line for line in (machine.cgroup / "cpu.stat").read_text().splitlines() if "usage_usec" in line]
    return int(used.split()[1]) / 1e6


def table(came: dict[str, dict[str, Any]]) -> str:
    """One line for each attack, and how many there are."""
    outcomes = [*came.values()]
    lines = [
        f"{'control' if one['control'] else 'attack':8}{'EFFECT' if one['effect'] else 'nothing':8}"
        f"{one['took_s']:6.2f} s  {one['name']:24}{one['told']}"
        for one in outcomes
    ]
    through = [one["name"] for one in outcomes if one["effect"] and not one["control"]]
    number = sum(not one["control"] for one in outcomes)
    return "\n".join([*lines, f"{number} attacks, {len(through)} got through: {', '.join(through) or '-'}"])


def _explained(outcome: dict[str, Any]) -> str:
    return "\n".join([outcome["told"], outcome["problem"], *outcome["said"]])


def test_there_are_enough_attacks() -> None:
    assert len({*ATTACKS}) >= 60
    assert len({*ATTACKS, *CONTROLS}) == len(ATTACKS) + len(CONTROLS)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_honest_way_has_the_effect(came: Came, name: str) -> None:
    assert came(name)["effect"], _explained(came(name))
    assert not came(name)["problem"], _explained(came(name))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_comes_to_nothing(came: Came, name: str) -> None:
    assert not came(name)["effect"], _explained(came(name))
    assert not came(name)["problem"], _explained(came(name))


def test_an_approval_is_there_and_back_at_once(honest: dict[str, Any]) -> None:
    spans_ms = honest["approvals_ms"]
    assert len(spans_ms) >= 20
    half = statistics.median(spans_ms)
    how_many = f"median of {len(spans_ms)}, with polkit"
    print(f"\nfrom the question at the approver to the command that runs: {half:.1f} ms ({how_many})")
    print(f"a call that a rule allows, there and back: {statistics.median(honest['rules_ms']):.1f} ms")
    looked = statistics.median(honest["refused_ms"])
    print(f"what the worker looks at, for a call that it refuses, and its record: {looked:.2f} ms")
    assert half < 1000


def test_the_approver_is_small_and_the_units_are_closed(service: Machine, honest: dict[str, Any]) -> None:
    print(f"\nmemory of the approver: {honest['approver_mib']:.1f} MiB")
    for unit, exposure in honest["exposures"].items():
        print(f"{exposure:5.1f}  {unit}")
    assert honest["approver_mib"] <= 25
    assert honest["exposures"]["lightagent-approver.service"] <= 1.2
