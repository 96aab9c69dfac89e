"""Checks the machine: programs and libraries, the kernel, disk, memory and clock."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lightagentd.api import Finding
from lightagentd.doctor.finding import not_tried, note, ok, wrong
from lightagentd.host import libc
from lightagentd.host.paths import Paths
from lightagentd.text.reason import reason
from lightagentd.worker import landlock

# The name of a library for `import`, or of a program, and the Debian package that has it.
PACKAGES = {
    "aiohttp": "python3-aiohttp",
    "asyncvarlink": "lightagentd",
    "click": "python3-click",
    "cryptography": "python3-cryptography",
    "dbus_next": "python3-dbus-next",
    "httpx": "python3-httpx",
    "lmdb": "python3-lmdb",
    "psutil": "python3-psutil",
    "pydantic": "python3-pydantic",
    "pyinotify": "python3-pyinotify",
    "pyudev": "python3-pyudev",
    "systemd": "python3-systemd",
    "yaml": "python3-yaml",
}
COMMANDS = {
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
    "choom": "util-linux",
    "xdg-dbus-proxy": "xdg-dbus-proxy",
    "busctl": "systemd",
}
REPORT_COMMANDS = {
    "df": "coreutils",
    "ip": "iproute2",
    "ss": "iproute2",
    "ps": "procps",
    "journalctl": "systemd",
    "systemctl": "systemd",
    "last": "wtmpdb",
    "ping": "iputils-ping",
    "openssl": "openssl",
}
"""Commands that the shipped skills use; one that is missing makes a report say less."""
_OLDEST_S = 1_735_689_600
"""2025-01-01: before this program was made."""
_FUTURE_S = 300
_LITTLE_BYTES, _LITTLE_INODES, _LITTLE_SHARE = 32 << 20, 200, 0.05
_LITTLE_MEMORY_BYTES = 64 << 20
_UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_STATUS_OFFSET = 5 * ctypes.sizeof(ctypes.c_long)
"""Of the field `status` in struct timex: behind modes (padded), offset, freq, maxerror and esterror."""


def check(paths: Paths) -> list[Finding]:
    return [
        *_disk(paths),
        _clock(),
        _set_back(paths),
        _synchronised(),
        _packages(),
        _commands("programs", COMMANDS, "the sandbox needs them"),
        _commands("programs of reports", REPORT_COMMANDS, "reports say less without them"),
        *_kernel(),
        _memory(),
    ]


def _packages() -> Finding:
    missing = {name: package for name, package in PACKAGES.items() if importlib.util.find_spec(name) is None}
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return wrong("programs", "Python packages", detail, _install(missing))
    return ok("programs", "Python packages", f"{len(PACKAGES)} are there")


def _commands(name: str, wanted: Mapping[str, str], why: str) -> Finding:
    missing = {command: package for command, package in wanted.items() if shutil.which(command) is None}
    if missing:
        detail = f"not installed: {', '.join(missing)}; {why}"
        return note("programs", name, detail, _install(missing))
    return ok("programs", name, "all are there")


def _install(missing: Mapping[str, str]) -> str:
    return f"Install them: apt install {' '.join(dict.fromkeys(missing.values()))}"


def _kernel() -> list[Finding]:
    level = landlock.abi()
    release = os.uname().release
    if level >= landlock.SCOPED_ABI:
        kernel = ok("machine", "kernel", f"Linux {release}, Landlock ABI {level}")
    else:
        detail = f"Linux {release}, Landlock ABI {level}"
        remedy = f"A kernel with ABI {landlock.SCOPED_ABI} (Linux 6.12) holds signals between workers better."
        kernel = note("machine", "kernel", detail, remedy)
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        cgroups = ok("machine", "cgroups", "version 2")
    else:
        remedy = "Boot with systemd.unified_cgroup_hierarchy=1, so that all processes of a call can be ended."
        cgroups = note("machine", "cgroups", "version 2 is not mounted here", remedy)
    return [kernel, cgroups, _namespaces()]


def _namespaces() -> Finding:
    for path, closed in (
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == closed:
                detail = f"{path} is {closed}, so bwrap works for root alone"
                remedy = "The worker units need none; without systemd, run the daemon as root."
                return note("machine", "user namespaces", detail, remedy)
    return ok("machine", "user namespaces", "allowed")


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {
            name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)
        }
        free, total = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError) as err:
        return not_tried("machine", "memory", f"/proc/meminfo: {reason(err)}")
    detail = f"{free >> 20} MiB of {total >> 20} MiB are available"
    if free < _LITTLE_MEMORY_BYTES:
        remedy = 'See what takes it: lactl prompt ops "what uses the memory"'
        return wrong("machine", "memory", detail, remedy)
    return ok("machine", "memory", detail)


def _disk(paths: Paths) -> list[Finding]:
    """Room and inodes where the history is; the daemon keeps a reserve there and says when it cannot."""
    place = next((path for path in (paths.state, *paths.state.parents) if _exists(path)), Path("/"))
    try:
        found = os.statvfs(place)
    except OSError as err:
        return [not_tried("disk", "room", f"{place}: {err.strerror}")]
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    detail = f"{free >> 20} MiB of {total >> 20} MiB are free at {place}"
    remedy = f"Make room on the file system of {place}; what cannot be stored fails the step that needed it."
    if free < _LITTLE_BYTES:
        room = wrong("disk", "room", detail, remedy)
    elif free < total * _LITTLE_SHARE:
        room = note("disk", "room", detail, remedy)
    else:
        room = ok("disk", "room", detail)
    detail = f"{found.f_favail} of {found.f_files} inodes are free at {place}"
    if found.f_files and found.f_favail < _LITTLE_INODES:
        return [room, wrong("disk", "inodes", detail, "Remove files: many small ones use inodes up.")]
    return [room, ok("disk", "inodes", detail if found.f_files else "this file system has no limit")]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _clock() -> Finding:
    now = time.time()
    if now < _OLDEST_S:
        detail = f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}, which is in the past"
        return wrong("clock", "clock", detail, "Set it: timedatectl set-time, or let NTP do it.")
    return ok("clock", "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def _set_back(paths: Paths) -> Finding:
    """Whether the history was written later than it is now."""
    path = paths.history / "data.mdb"
    try:
        written_s = path.stat().st_mtime
    except FileNotFoundError:
        return ok("clock", "set back", "there is no history yet")
    except OSError as err:
        return not_tried("clock", "set back", f"{path}: {err.strerror}")
    if written_s > time.time() + _FUTURE_S:
        detail = f"{path} was written in the future: the clock was set back"
        return wrong("clock", "set back", detail, "Set the clock right; times of events before are wrong.")
    return ok("clock", "set back", "no")


def _synchronised() -> Finding:
    """Whether something keeps the clock right, as the kernel has it (adjtimex(2)). Nothing is set."""
    try:
        status = int.from_bytes(libc.timex()[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    except OSError as err:
        why = errno.errorcode.get(err.errno or 0, "?")
        return not_tried("clock", "synchronised", f"the kernel may not be asked here: {why}")
    if status & _UNSYNCHRONISED:
        remedy = "Let NTP set it: timedatectl set-ntp true (package systemd-timesyncd)."
        return note("clock", "synchronised", "nothing keeps the clock right", remedy)
    return ok("clock", "synchronised", "yes")
