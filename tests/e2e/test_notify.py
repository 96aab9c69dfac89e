"""Reaching people who are away, as units: what is sent, a link that refuses a call, restarts in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.notify.receivers import Receiver

from .loopback import in_a_loop, listening
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

AWAY, GATEWAY = "lightagent-away.service", "lightagent-gateway.service"
FILE = "/etc/lightagentd/lightagentd.toml.d/notify.toml"
TOML = """\
[notify]
interval_s = 0.1
batch_s = 0
[notify.to.phone]
kind = "ntfy"
url = "{base}/topic"
user = "root"
[notify.to.desk]
kind = "command"
user = "eve"
events = ["panic"]
command = ["/usr/local/bin/told"]
[notify.to.mail]
kind = "mail"
user = "eve"
events = ["panic"]
mail_to = "eve@localhost"
[notify.answers]
on = true
[gateway]
listen = ["127.0.0.1:8330"]
public_url = "http://127.0.0.1:8330"
"""
TOLD = """\
#!/bin/sh
{ id -un; grep -E 'NoNewPrivs|CapEff' /proc/self/status; cat; } | logger --tag="told-$(basename "$0")"
"""
"""Stands for a command of the site, and for a mail server's sendmail(8)."""
DROP_IN = "/etc/systemd/system/lightagent-away.service.d/users.conf"
CALL = json.dumps({"command": "touch /root/from-away", "effect": "change"})


@dataclass
class Away:
    machine: Machine
    receiver: Receiver

    def titles(self) -> list[str]:
        return [one["title"] for one in self.receiver.messages]


@pytest.fixture(scope="module")
def away(service: Machine) -> Iterator[Away]:
    with in_a_loop(Receiver(listens=listening(service))) as receiver:
        service.write(FILE, TOML.format(base=receiver.base))
        for path in ("/usr/local/bin/told", "/usr/sbin/sendmail"):
            service.write(path, TOLD)
            service.run(["chmod", "755", path])
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", "eve"])
        service.run(["systemctl", "restart", UNIT])
        service.run(["systemctl", "enable", "--now", AWAY, GATEWAY, "lightagent-change@ops.socket"])
        yield Away(service, receiver)
        units = [AWAY, GATEWAY, "lightagent-gateway.socket", "lightagent-change@ops.socket"]
        service.run(["systemctl", "disable", "--now", *units])
        service.run(["rm", "-rf", FILE, "/var/lib/lightagent-away", DROP_IN, "/usr/sbin/sendmail"])
        service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "restart", UNIT])


def test_a_test_and_a_stop_reach_a_phone_and_nothing_is_doubled_over_restarts(away: Away) -> None:
    machine = away.machine
    assert lactl(machine, "notify", "test", "phone").stdout.split() == ["phone", "taken"]
    lactl(machine, "panic")
    machine.run(["systemctl", "restart", UNIT])
    eventually(lambda: "Emergency stop: everything is stopped" in away.titles(), "the stop is told")
    lactl(machine, "panic", "--off")
    machine.run(["systemctl", "kill", "--signal=SIGKILL", AWAY])
    eventually(lambda: "The emergency stop was taken back" in away.titles(), "its end is told")
    assert len(away.titles()) == 3, away.titles()
    assert away.receiver.faults == []
    [shown] = [one for one in lactl_json(machine, "notify", "list") if one["name"] == "phone"]
    assert (shown["name"], shown["waiting"], shown["problem"]) == ("phone", 0, "")
    pid = machine.run(["systemctl", "show", "--value", "--property=MainPID", AWAY]).stdout.strip()
    status = machine.run(["cat", f"/proc/{pid}/status"]).stdout
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_a_link_refuses_a_call_by_the_gateway_that_may_do_nothing_itself(away: Away) -> None:
    machine, before = away.machine, len(away.titles())
    asking = f"lactl tools call ops bash.exec --args '{CALL}' </dev/null >/dev/null 2>&1 &"
    machine.run(["bash", "-c", asking], user="eve")
    eventually(lambda: len(away.titles()) > before, "the approval is told")
    message = away.receiver.messages[-1]
    assert message["title"] == "Agent ops asks to run bash.exec (change)"
    [action] = message["actions"]
    assert (action["label"], action["method"]) == ("Deny", "POST")
    page = _got(machine, action["url"])
    assert "touch /root/from-away" in page
    [asked] = lactl_json(machine, "approvals", "list")
    assert asked["state"] == "waiting"
    assert "It was refused." in _got(machine, action["url"], "POST")
    assert lactl_json(machine, "approvals", "list") == []
    assert "answers nothing" in _got(machine, action["url"], "POST")
    [denied] = [one for one in lactl_json(machine, "approvals", "list", "--all") if one["id"] == asked["id"]]
    assert (denied["state"], denied["answered_by"]) == ("denied", 0)


def test_mail_and_commands_run_as_their_user_once_a_drop_in_lets_them(away: Away) -> None:
    machine = away.machine
    for name in ("desk", "mail"):
        refused = lactl(machine, "notify", "test", name, check=False)
        assert refused.status == 69, refused
        assert "eve" in refused.stdout, refused
    text = "[Service]\nCapabilityBoundingSet=CAP_SETUID CAP_SETGID\nSystemCallFilter=@setuid\n"
    machine.write(DROP_IN, text)
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "restart", AWAY])
    for name, program in (("desk", "told"), ("mail", "sendmail")):
        assert lactl(machine, "notify", "test", name).stdout.split() == [name, "taken"]
        machine.run(["journalctl", "--sync"])
        said = machine.run(["journalctl", "--output=cat", f"--identifier=told-{program}"]).stdout
        assert {"eve", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} <= set(said.splitlines()), said
        assert "A test of lightagentd" in said
        assert ("To: eve@localhost" in said) == (name == "mail")


def _got(machine: Machine, url: str, method: str = "GET") -> str:
    """The body of an answer, whatever its status."""
    code = (
        "import sys, urllib.request, urllib.error\n"
        f"asked = urllib.request.Request(sys.argv[1], method={method!r})\n"
        "try: answer = urllib.request.urlopen(asked)\n"
        "except urllib.error.HTTPError as err: answer = err\n"
        "print(answer.read().decode())\n"
    )
    return machine.run(["python3", "-I", "-c", code, url]).stdout
