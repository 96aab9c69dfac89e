"""A private bus, and on it a service that answers as systemd does: a real dbus-daemon, fake units.

`private_bus()` runs a `dbus-daemon` of its own for one test. `FakeSystemd` owns `org.freedesktop.systemd1`
there and has the parts of the Manager, the units and the jobs that the tool `systemd` uses, with the
signatures of systemd 257 (org.freedesktop.systemd1(5)).
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Call, Reply, Variant, connect

SYSTEMD = "org.freedesktop.systemd1"
MANAGER = f"{SYSTEMD}.Manager"
ROOT = "/org/freedesktop/systemd1"
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <servicedir>services</servicedir>
  <policy context="default">
    <allow user="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <deny own="org.example.Forbidden"/>
  </policy>
  <limit name="max_replies_per_connection">1024</limit>
</busconfig>
"""


@contextlib.contextmanager
def private_bus(*startable: str) -> Iterator[str]:
    """The address of a dbus-daemon that lives as long as the block; skips the test where there is none.

    Beside its socket it makes a file of the name of each `startable` service that somebody has it start.
    """
    program = shutil.which("dbus-daemon")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("dbus-daemon is not installed, and CI must not skip the tests that need it")
        pytest.skip("dbus-daemon is not installed")
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:  # short: a socket's path has 107 bytes at most
        config = Path(folder, "bus.conf")
        config.write_text(CONFIG.format(socket=Path(folder, "socket")), encoding="ascii")
        services = Path(folder, "services")
        services.mkdir()
        for name in startable:
            service = f"[D-BUS Service]\nName={name}\nExec=/usr/bin/touch {folder}/{name}\n"
            (services / f"{name}.service").write_text(service)
        argv = [program, f"--config-file={config}", "--nofork", "--nopidfile", "--print-address=1"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as daemon:
            try:
                assert daemon.stdout is not None
                address = daemon.stdout.readline().strip()
                assert address, f"dbus-daemon ended with status {daemon.wait()}"
                yield address
            finally:
                daemon.terminate()
                daemon.wait()


@dataclass
class FakeUnit:
    """One unit; a start that fails has another `start_result`, one that never ends an empty one."""

    name: str
    description: str = "A fake unit"
    active: str = "inactive"
    sub: str = "dead"
    load: str = "loaded"
    start_result: str = "done"
    state_after_start: tuple[str, str] = ("active", "running")
    installs: bool = True
    can_reload: bool = True
    unit: dict[str, Variant] = field(default_factory=dict)
    """More properties of the interface Unit."""
    typed: dict[str, Variant] = field(default_factory=dict)
    """Properties of the interface of its type."""

    @property
    def path(self) -> str:
        escaped = "".join(char if char.isalnum() else f"_{ord(char):02x}" for char in self.name)
        return f"{ROOT}/unit/{escaped}"

    def row(self) -> list[Any]:
        """As in ListUnits: a(ssssssouso)."""
        return [self.name, self.description, self.load, self.active, self.sub, "", self.path, 0, "", "/"]

    def properties(self, interface: str) -> dict[str, Variant]:
        if interface != f"{SYSTEMD}.Unit":
            return self.typed
        strings = {
            "Id": self.name,
            "Description": self.description,
            "LoadState": self.load,
            "ActiveState": self.active,
            "SubState": self.sub,
        }
        return {**{key: Variant("s", value) for key, value in strings.items()}, **self.unit}


class FakeSystemd:
    """Answers calls to the Manager and the units, and remembers which methods were called."""

    def __init__(self, bus: Bus, units: list[FakeUnit]) -> None:
        self.units = {unit.name: unit for unit in units}
        self.called: list[str] = []
        self.enabled: set[str] = set()
        self.refuses: set[str] = set()
        """Methods that answer as polkit does when it says no."""
        self.bus_folder = Path()
        """That of the bus' socket."""
        self._bus = bus
        self._jobs = 0
        self._subscribed = False

    async def load(self, unit: FakeUnit) -> None:
        """Load another unit, and say so to whoever subscribed."""
        self.units[unit.name] = unit
        if self._subscribed:
            await self._bus.emit(ROOT, MANAGER, "UnitNew", "so", [unit.name, unit.path])

    async def answer(self, call: Call) -> Reply:
        self.called.append(call.member)
        if call.member in self.refuses:
            text = "Interactive authentication required."
            return Reply(error="org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", args=[text])
        if call.member == "GetAll":
            unit = next((unit for unit in self.units.values() if unit.path == call.path), None)
            if unit is None:
                return Reply(error="org.freedesktop.DBus.Error.UnknownObject", args=["Unknown object."])
            return Reply(signature="a{sv}", args=[unit.properties(call.args[0])])
        match call.member:
            case "ListUnits":
                return self._rows(list(self.units.values()))
            case "ListUnitsByPatterns":
                return self._rows([unit for unit in self.units.values() if _matches(unit, *call.args)])
            case "LoadUnit":
                unit = self.units.setdefault(call.args[0], FakeUnit(call.args[0], load="not-found"))
                return Reply(signature="o", args=[unit.path])
            case "StartUnit" | "StopUnit" | "RestartUnit" | "ReloadUnit":
                return await self._job(call.member, self.units[call.args[0]])
            case "EnableUnitFiles":
                return self._enable(call.args[0])
            case "DisableUnitFiles":
                was = self.enabled & set(call.args[0])
                self.enabled -= was
                return Reply(signature="a(sss)", args=[[["unlink", _link(name), ""] for name in sorted(was)]])
            case "Subscribe":
                self._subscribed = True
                return Reply()
            case "Reload":
                return Reply()
        return Reply(
            error="org.freedesktop.DBus.Error.UnknownMethod", args=[f"Unknown method {call.member}."]
        )

    def _rows(self, units: list[FakeUnit]) -> Reply:
        return Reply(
            signature="a(ssssssouso)", args=[[unit.row() for unit in units if unit.load != "not-found"]]
        )

    def _enable(self, names: list[str]) -> Reply:
        installs = all(self.units[name].installs for name in names)
        new = [name for name in names if installs and name not in self.enabled]
        self.enabled |= set(new)
        changes = [["symlink", _link(name), f"/usr/lib/systemd/system/{name}"] for name in new]
        return Reply(signature="ba(sss)", args=[installs, changes])

    async def _job(self, method: str, unit: FakeUnit) -> Reply:
        if unit.load == "masked":
            return Reply(error=f"{SYSTEMD}.UnitMasked", args=[f"Unit {unit.name} is masked."])
        if method == "ReloadUnit" and not unit.can_reload:
            text = f"Job type reload is not applicable for unit {unit.name}."
            return Reply(error=f"{SYSTEMD}.JobTypeNotApplicable", args=[text])
        self._jobs += 1
        job, result = f"{ROOT}/job/{self._jobs}", "done"
        other = [999, f"{ROOT}/job/999", "other.service", "failed"]
        if method in ("StartUnit", "RestartUnit"):
            result = unit.start_result
            if result:
                unit.active, unit.sub = unit.state_after_start if result == "done" else ("failed", "failed")
        elif method == "StopUnit":
            unit.active, unit.sub = "inactive", "dead"
        if self._subscribed:  # before the reply, as fast jobs are, and beside somebody else's job
            await self._bus.emit(ROOT, MANAGER, "JobRemoved", "uoss", other)
            if result:
                await self._bus.emit(
                    ROOT, MANAGER, "JobRemoved", "uoss", [self._jobs, job, unit.name, result]
                )
        return Reply(signature="o", args=[job])


def _link(name: str) -> str:
    return f"/etc/systemd/system/multi-user.target.wants/{name}"


def _matches(unit: FakeUnit, states: list[str], patterns: list[str]) -> bool:
    has = {unit.load, unit.active, unit.sub}
    return (not states or bool(has & set(states))) and (
        not patterns or any(fnmatch.fnmatchcase(unit.name, pattern) for pattern in patterns)
    )


@contextlib.asynccontextmanager
async def fake_systemd(address: str, *units: FakeUnit) -> AsyncIterator[FakeSystemd]:
    """A fake systemd with these units on the bus at `address`, for the length of the block."""
    async with connect(address) as bus:
        fake = FakeSystemd(bus, list(units))
        fake.bus_folder = Path(address.removeprefix("unix:path=").partition(",")[0]).parent
        bus.serve(fake.answer)
        await bus.request_name(SYSTEMD)
        yield fake
        await asyncio.sleep(0)
