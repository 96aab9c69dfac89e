"""Installs this checkout's Debian package in a machine, and drives it.

`packaging/checkout/deb.sh` builds the package from the work tree, or takes it from its cache when nothing
that goes into it has changed since. The machine has no network: its root has all that the package depends on.
"""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .debian import CHECKOUT, cache_folder
from .machine import Completed, Machine, MachineError

PREFIX = "/usr/lib/python3/dist-packages"
"""Where the package `lightagentd` is."""
VENDOR = f"{PREFIX}/lightagentd/_vendor"
SHARE = "/usr/share/lightagentd"
LAUNCHERS = ("lactl", "lightagentd", "lightagent-notify")
"""Programs in /usr/bin, as in pyproject.toml."""
UNIT = "lightagentd.service"
POLKIT_RULES = "/usr/share/polkit-1/rules.d/50-lightagentd.rules"
BUS_POLICY = "/usr/share/dbus-1/system.d/org.lightagent1.conf"
PACKAGE = "/var/tmp/lightagentd.deb"
"""Where the package lies in the machine once it is installed."""
DEADLINE_S = 20.0
"""How long `eventually` waits."""
_uids = itertools.count(2000)
BUILD_TIMEOUT_S = 1200.0


@functools.cache
def built_packages() -> Path:
    """The folder with the .deb and the .changes of this checkout, built once for this process.

    Raises MachineError with the output of the build.
    """
    folder = cache_folder() / "packages"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    build = [str(CHECKOUT / "packaging/checkout/deb.sh"), "--cached"]
    done = subprocess.run(
        build, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise MachineError(f"{build[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return Path(done.stdout.strip())


def built_package() -> Path:
    """The .deb of this checkout."""
    [package] = built_packages().glob("lightagentd_*.deb")
    return package


def apt(machine: Machine, *args: str) -> Completed:
    """Run apt-get in the machine without questions; raises MachineError when it fails."""
    argv = ["apt-get", "--yes", "--quiet", "--no-install-recommends", *args]
    return machine.run(argv, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout_s=180)


def install_product(machine: Machine, package: Path | None = None) -> Completed:
    """Install the package, or another version of it, with apt. Nothing is started by that."""
    machine.copy_in(package or built_package(), PACKAGE)
    return apt(machine, "install", PACKAGE)


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


def new_uid() -> str:
    """The option of useradd(8) for a uid that no user of this run had: sessions belong to uids for ever."""
    return f"--uid={next(_uids)}"


def show(machine: Machine, *names: str) -> dict[str, str]:
    """Properties of the unit, as systemctl(1) shows them."""
    out = machine.run(["systemctl", "show", UNIT, *(f"--property={name}" for name in names)]).stdout
    return {key: value for key, _, value in (line.partition("=") for line in out.splitlines())}


def is_up_again(machine: Machine, before: int) -> bool:
    """Whether the daemon runs in another process than the one with the PID `before`."""
    now = show(machine, "MainPID", "ActiveState")
    return now["ActiveState"] == "active" and now["MainPID"] not in ("0", str(before))


def eventually(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"after {deadline_s:g} s still not: {what}"
        time.sleep(0.05)
