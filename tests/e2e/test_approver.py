"""The approver as a unit: who is answered, what a kill and a damaged disk leave, and what it costs."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Completed, Machine
from .product import eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

UNIT, STATE = "lightagent-approver.service", "/var/lib/lightagent-approver"
SOCKETS = "/run/lightagent-approver"
RULES = "/etc/polkit-1/rules.d/10-approver.rules"
RULE = """polkit.addRule(function (action, subject) {
    var approves = action.id === "org.lightagent1.approve" && subject.user === "nell";
    return approves ? polkit.Result.YES : polkit.Result.NOT_HANDLED;
});
"""
BUS = ("org.lightagent1.Approver", "/org/lightagent1/Approver", "org.lightagent1.Approver")
MEMORY_KB = 25 << 10
numbers = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def nell(service: Machine) -> Iterator[str]:
    """Somebody whom polkit lets approve, and nothing else."""
    service.run(["useradd", new_uid(), "--create-home", "nell"])
    service.write(RULES, RULE)
    yield service.run(["id", "-u", "nell"]).stdout.strip()
    service.run(["rm", RULES])
    service.run(["userdel", "--remove", "nell"])


def ask(machine: Machine, socket: str, method: str, parameters: Any, user: str | None = None) -> Completed:
    argv = ["varlinkctl", "--json=short", "call", f"{SOCKETS}/{socket}.sock", f"org.lightagent1.{method}"]
    return machine.run([*argv, json.dumps(parameters)], user=user, check=False)


def registered(machine: Machine) -> tuple[str, str]:
    """The id and the digest of a new request, as the daemon makes one."""
    number = next(numbers)
    statement: dict[str, Any] = {
        "agent": "ops",
        "tool": "bash",
        "action": "exec",
        "effect": "change",
        "args": {"n": number},
    }
    statement |= {"tool_sha256": "00", "call_id": f"call_{number}", "owner": 0}
    given: dict[str, Any] = {"approval": f"apr_e2e{number}", "statement": statement, "said": {}}
    given["expires_us"] = time.time_ns() // 1000 + 3_600_000_000
    said = ask(machine, "daemon", "ApproverRequests.Register", given, "lightagent")
    return str(given["approval"]), str(json.loads(said.stdout)["digest"])


def over_bus(machine: Machine, method: str, *args: str, user: str | None = "nell") -> Completed:
    return machine.run(["busctl", "--json=short", "call", *BUS, method, *args], user=user, check=False)


def test_a_person_answers_over_the_bus_and_no_user_of_ours_does(service: Machine, nell: str) -> None:
    name, digest = registered(service)
    for user in ("lightagent", "lightagent-w07", "lightagent-gateway"):
        for method in ("List", "Get", "Approve"):
            given = {"Get": {"approval": name}, "Approve": {"approval": name, "digest": digest}}.get(
                method, {}
            )
            refused = ask(service, "approve", f"Approver.{method}", given, user)
            assert "PermissionDenied" in refused.stderr, refused.explain()
    assert (
        "Access denied"
        in over_bus(service, "Approve", "ssa{sv}", name, digest, "0", user="lightagent").stderr
    )
    refused = over_bus(service, "Approve", "ssa{sv}", name, digest, "0", user="nobody")
    assert refused.status != 0
    [found] = json.loads(over_bus(service, "Get", "s", name).stdout)["data"]
    assert found["digest"]["data"] == digest
    wrong = over_bus(service, "Approve", "ssa{sv}", name, "0" * 64, "0")
    assert "Nothing was allowed" in wrong.stderr
    assert over_bus(service, "Approve", "ssa{sv}", name, digest, "0").status == 0
    answer = json.loads(ask(service, "daemon", "ApproverRequests.Wait", {"approval": name}).stdout)["answer"]
    assert (answer["state"], str(answer["by"]), answer["digest"]) == ("granted", nell, digest)


def test_a_kill_forgets_nothing(service: Machine) -> None:
    waits, (name, digest) = registered(service), registered(service)
    allowed = ask(service, "approve", "Approver.Approve", {"approval": name, "digest": digest})
    assert allowed.status == 0, allowed.explain()

    def answer() -> Any:
        return json.loads(ask(service, "daemon", "ApproverRequests.Wait", {"approval": name}).stdout)

    before = answer()
    service.run(["systemctl", "kill", "--signal=KILL", UNIT])
    eventually(lambda: service.run(["systemctl", "is-active", UNIT], check=False).status == 0, "it is back")
    assert answer() == before
    assert waits[1] in ask(service, "approve", "Approver.Get", {"approval": waits[0]}).stdout


def test_a_damaged_log_is_told_and_the_way_out_works(service: Machine) -> None:
    registered(service)
    service.run(["sh", "-c", f"sed -i '1s/series/serves/' {STATE}/requests"])
    assert service.run(["systemctl", "restart", UNIT], check=False).status != 0
    status = service.run(
        ["systemctl", "status", "--no-pager", "--full", "--lines=50", UNIT], check=False
    ).stdout
    command = re.search(rf"mv {STATE}/requests \S+; systemctl restart {UNIT}", status)
    assert command is not None, status
    service.run(["sh", "-c", command[0]])
    registered(service)
    service.run(["rm", f"{STATE}/requests.damaged"])


def test_a_new_key_leaves_what_was_recorded_before_as_it_was(service: Machine) -> None:
    registered(service)
    kept = service.run(["sha256sum", f"{STATE}/public"]).stdout
    service.run(["sh", "-c", f"systemctl stop {UNIT}; rm {STATE}/key; systemctl start {UNIT}"])
    registered(service)
    assert service.run(["sha256sum", f"{STATE}/public"]).stdout != kept
    found = lactl_json(service, "audit", "verify")["journal"]
    assert found["records"] > 0
    assert [one for one in found["disagreements"] if one["kind"] == "unsigned"] == []
    service.run(["mv", f"{STATE}/public.former", f"{STATE}/public.hidden"])
    told = lactl(service, "audit", "verify").stderr
    assert "records are older than the keys that are known" in told
    service.run(["mv", f"{STATE}/public.hidden", f"{STATE}/public.former"])


def test_it_needs_little_memory(service: Machine) -> None:
    for _ in range(20):
        name, digest = registered(service)
        ask(service, "approve", "Approver.Approve", {"approval": name, "digest": digest})
    pid = service.run(["systemctl", "show", "--property=MainPID", "--value", UNIT]).stdout.strip()
    status = service.run(["cat", f"/proc/{pid}/status"]).stdout
    found = {key: int(size) for key, size in re.findall(r"(VmRSS|RssAnon|VmHWM):\s+(\d+) kB", status)}
    print(f"{UNIT}: {found['RssAnon'] / 1024:.1f} MiB of its own, {found['VmRSS'] / 1024:.1f} MiB in all")
    assert found["RssAnon"] <= MEMORY_KB
