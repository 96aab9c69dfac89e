"""A kit in the worker units: added, its tools in each effect, and what the units keep from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.kits.made import dba, tarred

from .calls import call, shell
from .machine import Machine
from .product import UNIT, lactl, lactl_json

pytestmark = pytest.mark.e2e

CHANGE = "lightagent-change@dba.socket"
KITS = "/var/lib/lightagentd/kits"


@pytest.fixture(scope="module", autouse=True)
def kit(service: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kit `dba`, added out of root's home, into which the daemon cannot look."""
    archive = tmp_path_factory.mktemp("kit") / "dba.tar.gz"
    archive.write_bytes(tarred(dba()))
    service.copy_in(Path(archive), "/root/dba.tar.gz")
    lactl(service, "kits", "add", "/root/dba.tar.gz")
    yield
    lactl(service, "kits", "remove", "dba", check=False)
    service.run(["systemctl", "disable", "--now", CHANGE], check=False)
    service.run(["rm", "-rf", "/etc/lightagentd/agent/dba"])
    service.run(["systemctl", "reload", UNIT])


def test_a_kit_is_the_daemons_and_its_tools_run_in_its_agents_unit(service: Machine) -> None:
    shown, ops = lactl_json(service, "kits", "list")
    assert (ops["name"], ops["problems"]) == ("ops", [])
    assert (shown["folder"], shown["problems"], shown["tools"]) == (f"{KITS}/dba", [], ["dbstat"])
    owners = service.run(["find", KITS, "-printf", "%u %m\n"]).stdout.split("\n")
    assert {*owners} - {""} <= {"lightagent 755", "lightagent 644"}
    assert call(service, "dbstat.show", agent="dba")["text"].startswith("all for dba in")
    refused = lactl(service, "tools", "call", "ops", "dbstat.show", check=False)
    assert (refused.status, "There is no tool" in refused.stderr) == (66, True)
    assert "The database is fine" in call(service, "skill.run", agent="dba", name="db-check")["text"]
    shell(service, "true", agent="ops")
    workers = [one for one in lactl_json(service, "status")["workers"] if one["agent"] in ("ops", "dba")]
    assert {one["agent"] for one in workers} == {"ops", "dba"}
    assert len({one["unit"] for one in workers}) == len(workers)


def test_of_the_state_a_worker_sees_the_kits_alone_and_cannot_write_them(service: Machine) -> None:
    seen = shell(service, f"ls /var/lib/lightagentd; ls {KITS}; ls /var/lib/lightagentd/history", agent="dba")
    assert seen.count("cannot open directory '/var/lib/lightagentd'") == 1
    assert "No such file" in seen
    assert "dba" in seen.splitlines()
    tried = f"touch {KITS}/dba/tools/x.py; echo x >>{KITS}/dba/tools/dbstat.py; ls {KITS}/dba/tools"
    there = shell(service, tried, agent="dba").splitlines()
    assert ("dbstat.py" in there, "x.py" in there) == (True, False)
    assert call(service, "dbstat.show", agent="dba")["text"].startswith("all for dba in")


def test_the_worker_for_change_loads_what_is_roots(service: Machine) -> None:
    service.run(["systemctl", "enable", "--now", CHANGE])
    shell(service, "true", "change", agent="dba")
    refused = call(service, "dbstat.vacuum", agent="dba")
    assert (refused["code"], "belongs to lightagent" in refused["message"]) == ("permission_denied", True)
    lactl(service, "kits", "remove", "dba")
    for name, text in dba().items():
        service.write(f"/etc/lightagentd/agent/dba/{name}", text)
    service.run(["systemctl", "reload", UNIT])
    assert call(service, "dbstat.vacuum", agent="dba")["text"] == "vacuumed"
    assert call(service, "dbstat.show", agent="dba")["text"].startswith("all for dba in")
