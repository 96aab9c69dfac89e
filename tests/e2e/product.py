"""Puts this checkout into a machine, for as long as there is no Debian package to install, and drives it.

The layout is that of a checkout, so `lightagentd.__file__` is `/usr/lib/lightagentd/lightagentd/__init__.py`
and the content folders lie beside the package. A .pth file makes it importable for `python3 -I` as well, so
the programs that the daemon starts find it. Debian 13 has all dependencies but asyncvarlink, which is copied
from the Python that runs the tests.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .debian import CHECKOUT
from .machine import Completed, Machine, MachineError

PREFIX = "/usr/lib/lightagentd"
VENDOR = f"{PREFIX}/vendor"
FOLDERS = ("lightagentd", "tools", "skills", "agent", "units")
LAUNCHERS = {"lightagentd": "lightagentd.daemon", "lactl": "lightagentd.cli.main"}
"""Program in /usr/bin, and the module with its `main`, as in pyproject.toml."""
UNIT = "lightagentd.service"
UNIT_KINDS = (".service", ".socket", ".timer", ".target", ".path", ".slice")
SETTINGS = ("sysusers.d", "tmpfiles.d", "sysctl.d")
POLKIT_RULES = "/usr/share/polkit-1/rules.d/50-lightagentd.rules"
BUS_POLICY = "/usr/share/dbus-1/system.d/org.lightagent1.conf"
DEADLINE_S = 20.0
"""How long `eventually` waits."""

_LAUNCHER = """\
#!/usr/bin/python3 -I
import sys

from {module} import main

sys.exit(main())
"""


def install_product(machine: Machine) -> None:
    """Copy the package, its content, asyncvarlink and the launchers."""
    machine.run(["mkdir", "-p", VENDOR, *(f"{PREFIX}/{name}" for name in FOLDERS)])
    for name in FOLDERS:
        if (CHECKOUT / name).is_dir():
            machine.copy_in(CHECKOUT / name, f"{PREFIX}/{name}")
    machine.copy_in(_package_folder("asyncvarlink"), f"{VENDOR}/asyncvarlink")
    machine.write("/usr/lib/python3/dist-packages/lightagentd.pth", f"{PREFIX}\n{VENDOR}\n")
    machine.run(["python3", "-m", "compileall", "-q", PREFIX])  # as a package does: no unit may write there
    for program, module in LAUNCHERS.items():
        machine.write(f"/usr/bin/{program}", _LAUNCHER.format(module=module), 0o755)


def install_units(machine: Machine) -> None:
    """Install the checkout's units, users, folders and policies, in the order of a package's postinst."""
    units = CHECKOUT / "units"
    for file in sorted(units.iterdir()):
        if file.suffix in UNIT_KINDS:
            machine.copy_in(file, f"/usr/lib/systemd/system/{file.name}")
    for kind in SETTINGS:
        for file in sorted((units / kind).glob("*.conf")):
            machine.copy_in(file, f"/usr/lib/{kind}/{file.name}")
    machine.copy_in(CHECKOUT / "packaging/polkit/lightagentd.rules", POLKIT_RULES)
    machine.copy_in(CHECKOUT / "packaging/dbus/org.lightagent1.conf", BUS_POLICY)
    machine.run(["systemd-sysusers"])
    machine.run(["systemd-tmpfiles", "--create"])
    machine.run(["/usr/lib/systemd/systemd-sysctl", "--prefix=/net/ipv4/ping_group_range"])
    machine.run(["systemctl", "reload", "dbus.service"])  # it ignores rules for users that were not there
    machine.run(["systemctl", "daemon-reload"])


def start_service(machine: Machine) -> None:
    """Start the daemon's unit and return when it is active; raises MachineError with its journal."""
    # Type=notify: systemctl returns when the daemon has said READY=1, or with an error.
    if machine.run(["systemctl", "start", UNIT], check=False, timeout_s=60).status != 0:
        status = machine.run(["systemctl", "status", "--full", "--lines=0", UNIT], check=False).stdout
        log = "\n".join(str(entry.get("MESSAGE")) for entry in machine.journal("--unit", UNIT, "--lines=40"))
        raise MachineError(f"{UNIT} did not start:\n{status}\n{log}")


def lactl(machine: Machine, *args: str, user: str | None = None, check: bool = True) -> Completed:
    """Run lactl in the machine, as root or as `user`."""
    return machine.run(["lactl", *args], user=user, check=check)


def lactl_json(machine: Machine, *args: str, user: str | None = None) -> Any:
    """What `lactl --json` prints, decoded."""
    return json.loads(lactl(machine, "--json", *args, user=user).stdout)


def lactl_json_lines(machine: Machine, *args: str) -> list[dict[str, Any]]:
    """What `lactl --json` prints line by line: events, or what happens in a turn."""
    return [json.loads(line) for line in lactl(machine, "--json", *args).stdout.split("\n") if line]


def show(machine: Machine, *names: str) -> dict[str, str]:
    """Properties of the unit, as systemctl(1) shows them."""
    out = machine.run(["systemctl", "show", UNIT, *(f"--property={name}" for name in names)]).stdout
    return {key: value for key, _, value in (line.partition("=") for line in out.splitlines())}


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds, at most `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"after {DEADLINE_S:g} s still not: {what}"
        time.sleep(0.05)


def _package_folder(name: str) -> Path:
    """Where this Python has the package `name`."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise MachineError(
            f"the Python that runs the tests has no {name}: install the project's dependencies"
        )
    return Path(spec.origin).parent
