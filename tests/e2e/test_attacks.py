"""The attacks of `tests/attacks`, each of them, against the worker units of a booted system."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.attacks.controls import CONTROLS
from tests.attacks.counted import BY_MODEL
from tests.attacks.playing import (
    AGENTS,
    ALL,
    RULE,
    Came,
    Playing,
    agent_file,
    explain,
    played,
    plays,
    settings,
)

from .debian import CHECKOUT
from .machine import SYSTEM_PATH, Machine
from .product import UNIT, lactl_json, show

pytestmark = pytest.mark.e2e

CONFIG = "/etc/lightagentd"
STATE = "/var/lib/lightagentd"
CODE = "/usr/lib/lightagentd-attacks"
ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
UNITS = ("systemd-journald.service", "dbus.service", UNIT, "lightagent-change@mallory.socket")
FACTS = [
    ["systemctl", "show", "--property=Environment,LogLevel"],
    ["systemctl", "show", "--property=Id,ActiveState,UnitFileState,MainPID,NRestarts,CPUWeight", *UNITS],
    ["ip", "-o", "addr"],
    ["find", "/var/lib/systemd/linger", "/run/systemd/transient"],
]
"""Commands whose output is the same before and after each attack."""


@pytest.fixture(scope="module")
def playing(service: Machine) -> Iterator[Playing]:
    """A stage in the machine, and the machine's daemon with agents whose model is the stage's."""
    service.run(["mkdir", "-p", f"{CODE}/tests/attacks", f"{CONFIG}/policy.d"])
    for name in ("__init__.py", "http_serving.py", "scripted_model.py"):
        service.copy_in(CHECKOUT / "tests" / name, f"{CODE}/tests/{name}")
    service.copy_in(CHECKOUT / "tests" / "attacks", f"{CODE}/tests/attacks")
    hidden = {name: f"s3cr3t-{name}-{secrets.token_hex(8)}" for name in ("key", "state")}
    service.write(f"{CONFIG}/key", hidden["key"], 0o640)
    service.run(["chgrp", "lightagent", f"{CONFIG}/key"])
    service.write(f"{STATE}/secret", hidden["state"], 0o600)
    service.run(["chown", "lightagent", f"{STATE}/secret"])
    enter = ["nsenter", f"--target={service.leader}", *ENTER, "--"]
    env = {"PATH": SYSTEM_PATH, "PYTHONPATH": CODE, "LANG": "C.UTF-8", "HOME": "/root"}
    users = ["lightagent-w02", "lightagent-w03"]
    with Playing(users, [CONFIG], enter=enter, python="/usr/bin/python3", env=env) as stage:
        for name, effects in AGENTS.items():
            service.run(["mkdir", "-p", f"{CONFIG}/agent/{name}"])
            text = agent_file(stage.base_url, effects, f"{CONFIG}/key")
            service.write(f"{CONFIG}/agent/{name}/AGENT.md", text)
        service.write(f"{CONFIG}/lightagentd.toml", settings(stage.names))
        service.write(f"{CONFIG}/policy.d/attackers.toml", RULE)
        service.run(["systemctl", "restart", UNIT], timeout_s=60)
        names = {"config": CONFIG, "state": STATE, "runtime": "/run/lightagentd"}
        names |= {
            "socket": "/run/lightagentd/control.sock",
            "daemon_pid": show(service, "MainPID")["MainPID"],
        }
        names |= {"unit": "systemd-journald.service"}
        stage.set_up(socket=names["socket"], secrets=hidden, names=names, facts=FACTS)
        yield stage
        assert lactl_json(service, "status")["sandbox"] == "systemd"
    journal = service.run(["journalctl", "--no-pager", "--output=cat", "--all"]).stdout
    for name, value in {**hidden, **stage.secrets}.items():
        assert value not in journal, f"the secret of the {name} is in the journal"
    agents = [f"{CONFIG}/agent/{name}" for name in AGENTS]
    service.run(["rm", "-rf", *agents, f"{CONFIG}/lightagentd.toml", f"{CONFIG}/key", f"{STATE}/secret"])
    service.run(["rm", "-rf", f"{CONFIG}/policy.d/attackers.toml", CODE])
    service.run(["systemctl", "restart", UNIT], timeout_s=60)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_stage_sees_harm_that_is_done(playing: Playing, name: str) -> None:
    assert playing.control(name)["findings"]


@pytest.fixture(scope="module")
def came(playing: Playing, request: pytest.FixtureRequest) -> Came:
    return played(playing, request)


@pytest.mark.parametrize(("name", "effect", "speaker"), plays(ALL, BY_MODEL, ""))
def test_an_attack_comes_to_nothing(came: Came, name: str, effect: str, speaker: str) -> None:
    outcome = came(name, effect, speaker)
    assert outcome["findings"] == [], explain(outcome)
