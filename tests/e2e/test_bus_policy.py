"""What the bus itself refuses the workers' users, when nothing filters what they say to it.

The workers' commands reach the bus through a filter; here processes of the same users talk to it directly.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .calls import shell
from .machine import Completed, Machine
from .product import eventually

pytestmark = pytest.mark.e2e

USERS = ("lightagent-w07", "lightagent-inspect", "lightagent-keys")
APPROVER = "org.lightagent1.Approver"
CLOSED = ("org.freedesktop.resolve1", "org.lightagent1", APPROVER)
OPEN = "org.example.E2E"
NAMES = (CLOSED[0], OPEN)
"""Those that a process of the test owns; the others are the daemon's and the approver's."""
CONFIG = "/etc/dbus-1/system.d/e2e.conf"
OWN = "".join(f'<allow own="{name}"/>' for name in NAMES)
SEND = "".join(f'<allow send_destination="{name}"/>' for name in NAMES)
POLICY = f'<busconfig><policy user="root">{OWN}</policy><policy context="default">{SEND}</policy></busconfig>'
SERVICE = """
import asyncio, sys
from lightagentd.bus import connection as bus

async def main():
    async def answer(call):
        return bus.Reply(signature="s", args=["reached"])
    async with bus.connect("system") as system:
        system.serve(answer)
        for name in sys.argv[1:]:
            await system.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
                              "RequestName", "su", [name, 0])
        await system.wait_lost()

asyncio.run(main())
"""

LISTENER = """
import asyncio
from lightagentd.bus import connection as bus

async def main():
    async with bus.connect("system") as system, system.signals(interface="org.example.E2E") as heard:
        async for signal in heard:
            print(*signal.args)

asyncio.run(main())
"""


@pytest.fixture(scope="module", autouse=True)
def names(service: Machine) -> Iterator[None]:
    """Somebody who owns them, and would answer."""
    service.write(CONFIG, POLICY)
    service.run(["systemctl", "reload", "dbus.service"])
    for unit, owned in (("e2e-closed", CLOSED[:1]), ("e2e-open", (OPEN,))):
        service.run(["systemd-run", f"--unit={unit}", "--collect", "python3", "-I", "-c", SERVICE, *owned])
    eventually(lambda: all(_ask(service, "root", name).status == 0 for name in NAMES), "the names answer")
    yield
    service.run(["systemctl", "stop", "e2e-closed.service", "e2e-open.service"])
    service.run(["rm", CONFIG])
    service.run(["systemctl", "reload", "dbus.service"])


def _ask(machine: Machine, user: str, name: str) -> Completed:
    argv = ["busctl", "--no-pager", "call", name, "/", "org.example.E2E", "Ask"]
    return machine.run(argv, user=None if user == "root" else user, check=False)


@pytest.mark.parametrize("user", USERS)
def test_workers_users_reach_neither_the_resolver_nor_the_daemon(service: Machine, user: str) -> None:
    assert "reached" in _ask(service, user, OPEN).stdout
    owner = service.run(["busctl", "call", *_BUS, "GetNameOwner", "s", CLOSED[0]]).stdout.split('"')[1]
    for name in (*CLOSED, owner):  # the last: the same connection by its own name
        refused = _ask(service, user, name)
        assert refused.status != 0, refused.explain()
        assert "Access denied" in refused.stderr or "AccessDenied" in refused.stderr, refused.explain()


@pytest.mark.parametrize("user", USERS)
def test_workers_users_own_no_name(service: Machine, user: str) -> None:
    for name in (OPEN, "org.example.Other", *CLOSED):
        refused = service.run(
            ["busctl", "call", *_BUS, "RequestName", "su", name, "0"], user=user, check=False
        )
        assert refused.status != 0, refused.explain()


def test_workers_users_and_commands_send_no_signals(service: Machine) -> None:
    """Everybody can listen to one, so it would carry off what an agent reads, or make a service act."""
    listen = ["systemd-run", "--unit=e2e-heard", "--property=User=nobody", "--collect"]
    service.run([*listen, "python3", "-I", "-u", "-c", LISTENER])  # a monitor sees what is refused, too
    emit = "busctl emit / org.example.E2E Told s said-by-{who}"
    heard = ["journalctl", "--unit=e2e-heard", "--output=cat", "--no-pager"]

    def hears(who: str) -> bool:
        service.run(["bash", "-c", emit.format(who=who)])
        service.run(["journalctl", "--sync"])
        return f"said-by-{who}" in service.run(heard).stdout

    try:
        eventually(lambda: hears("root"), "somebody listens")
        for user in USERS:
            service.run(["bash", "-c", emit.format(who=user)], user=user, check=False)
        for effect in ("observe", "reach"):
            assert "tried" in shell(service, emit.format(who=effect) + "; echo tried", effect)
        eventually(lambda: hears("the-last"), "the last one is heard")
        told = service.run(heard).stdout
        assert [who for who in (*USERS, "observe", "reach") if f"said-by-{who}" in told] == []
    finally:
        service.run(["systemctl", "stop", "e2e-heard.service"])


def test_the_daemons_user_reaches_all_but_the_approver_on_the_bus(service: Machine) -> None:
    for name in NAMES:
        assert "reached" in _ask(service, "lightagent", name).stdout
    for user in ("lightagent", "lightagent-gateway"):
        assert "denied" in _ask(service, user, APPROVER).stderr


def test_nobody_but_the_approver_owns_its_name(service: Machine) -> None:
    service.run(["systemctl", "start", "lightagent-approver.service"])
    for user in (None, "lightagent", "nobody"):
        refused = service.run(
            ["busctl", "call", *_BUS, "RequestName", "su", APPROVER, "0"], user=user, check=False
        )
        assert refused.status != 0, refused.explain()
    said = service.run(["busctl", "status", APPROVER]).stdout
    assert "lightagent-approver.service" in said


_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
