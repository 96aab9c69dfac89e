"""`lightagent-notify` as a service of a user: its unit holds it, and lets it work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .machine import Machine
from .product import eventually, lactl, new_uid

pytestmark = pytest.mark.e2e

UNIT_FILE = "/usr/lib/systemd/user/lightagent-notify.service"
USER = "carol"
BUS = "/tmp/carols-bus"
SERVER = """
import asyncio, json, sys
from dbus_next.aio import MessageBus
from dbus_next.service import ServiceInterface, method

class Notifications(ServiceInterface):
    @method()
    def GetCapabilities(self) -> "as":
        return ["body", "actions"]

    @method()
    def Notify(self, app: "s", replaces: "u", icon: "s", summary: "s", body: "s", actions: "as",
               hints: "a{sv}", expires: "i") -> "u":
        print(summary, flush=True)
        return 1

async def main():
    bus = await MessageBus(bus_address=sys.argv[1]).connect()
    bus.export("/org/freedesktop/Notifications", Notifications("org.freedesktop.Notifications"))
    await bus.request_name("org.freedesktop.Notifications")
    await bus.wait_for_disconnect()

asyncio.run(main())
"""


@pytest.fixture
def carol(service: Machine) -> Iterator[Machine]:
    """The machine with a user, her session bus and a notification server.

    There is no login in the container, so all of it are units of the system's manager.
    """
    service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", USER])
    service.write("/tmp/server.py", SERVER)
    bus = ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={BUS}"]
    server = ["python3", "-I", "/tmp/server.py", f"unix:path={BUS}"]
    unit = service.run(["cat", UNIT_FILE]).stdout
    lines = [line for line in unit.splitlines() if not line.startswith(("Slice=", "PartOf=", "After="))]
    as_carol = [f"User={USER}", f"Environment=DBUS_SESSION_BUS_ADDRESS=unix:path={BUS}"]
    at = lines.index("[Service]") + 1
    text = "\n".join([*lines[:at], *as_carol, *lines[at:]])
    service.write("/run/systemd/system/carol-notify.service", text)
    service.run(["systemctl", "daemon-reload"])
    run = ["systemd-run", "--quiet", f"--uid={USER}"]
    service.run([*run, "--unit=carol-bus", *bus])
    eventually(lambda: service.run(["test", "-S", BUS], check=False).status == 0, "the session bus")
    service.run([*run, "--unit=carol-server", *server])
    yield service
    service.run(["systemctl", "stop", "carol-notify", "carol-server", "carol-bus"], check=False)
    service.run(["rm", "/run/systemd/system/carol-notify.service"])
    service.run(["systemctl", "daemon-reload"])
    service.run(["userdel", "--remove", "--force", USER])


def test_systemd_finds_nothing_wrong_with_its_unit(service: Machine) -> None:
    env = {"XDG_RUNTIME_DIR": "/run"}
    verified = service.run(["systemd-analyze", "--user", "verify", UNIT_FILE], env=env, check=False)
    assert (verified.stdout, verified.stderr) == ("", "")


def test_it_is_ready_inside_its_sandbox_and_tells_of_an_unattended_prompt(carol: Machine) -> None:
    carol.run(["systemctl", "start", "carol-notify"])  # Type=notify: it is ready when this returns
    lactl(carol, "prompt", "--unattended", "--new", "ops", "check memory", user=USER)

    def told() -> bool:
        entries = carol.journal("--unit=carol-server")
        return any(entry["MESSAGE"] == "Agent ops has answered" for entry in entries)

    eventually(told, "the notification")
    carol.run(["systemctl", "stop", "carol-notify"])
    result = carol.run(["systemctl", "show", "--property=Result", "carol-notify"]).stdout
    assert result == "Result=success\n"
