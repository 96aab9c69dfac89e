"""The state of the machine that is compared between days: small texts by section and name.

`state()` gives `{section: {name: value}}`: packages and versions, unit files and whether they are enabled,
timers, listening ports, users, cron files, mounts, the kernel, and a digest of each file in /etc. What cannot
be read has the value `unreadable`, with its size and time of change where these can be seen.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import procfs
from commands import read, run

_MOST_FILES = 5000
_MOST_PORTS = _MOST_MOUNTS = 1000
_LARGEST_BYTES = 1 << 20
"""Of a larger file in /etc only size and time count."""
_PASSING = frozenset(("proc", "sysfs", "cgroup2", "tmpfs", "devtmpfs", "devpts", "mqueue", "nsfs", "overlay"))
_CHANGING = ("/etc/mtab", "/etc/resolv.conf", "/etc/adjtime", "/etc/.updated", "/etc/ld.so.cache")
"""What changes by itself."""

State = dict[str, dict[str, str]]


def state() -> State:
    found = {
        "package": packages(),
        "unit": unit_files(),
        "timer": timers(),
        "port": ports(),
        "user": users(),
        "sudo and cron": {},
        "mount": mounts(),
        "kernel": {"release": (read("/proc/sys/kernel/osrelease") or "").strip()},
        "file": {},
    }
    for path, value in files(Path("/etc")).items():
        kind = "sudo and cron" if path.startswith(("/etc/sudoers", "/etc/cron", "/etc/anacron")) else "file"
        found[kind][path] = value
    return found


def packages() -> dict[str, str]:
    """Installed packages and their versions, of dpkg or rpm."""
    found = {}
    for block in (read("/var/lib/dpkg/status") or "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            found[fields.get("Package", "?")] = fields.get("Version", "?")
    if not found:
        listed = run("rpm", "-qa", "--qf", "%{NAME}\t%{EVR}\n")
        found = dict(line.split("\t", 1) for line in listed.stdout.splitlines() if "\t" in line)
    return found


def unit_files() -> dict[str, str]:
    """Unit files and whether each is enabled."""
    listed = run("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--full")
    rows = (line.split() for line in listed.stdout.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1}


def timers() -> dict[str, str]:
    """Timers that are active, and what each starts."""
    listed = run("systemctl", "list-timers", "--no-legend", "--no-pager", "--full")
    rows = (line.split() for line in listed.stdout.splitlines())
    return {row[-2]: row[-1] for row in rows if len(row) > 1}


def ports() -> dict[str, str]:
    """Ports that listen, and the user of each: services first, for any user may listen on thousands."""
    listening = [
        one
        for one in procfs.sockets()
        if one.is_listening and (not one.protocol.startswith("udp") or one.port < 32768)
    ]
    listening.sort(key=lambda one: (one.uid >= 1000, one.port, one.address))
    return {
        f"{one.protocol} {one.address}:{one.port}": procfs.user(one.uid) for one in listening[:_MOST_PORTS]
    }


def users() -> dict[str, str]:
    """Accounts, and the groups that give rights."""
    found = {}
    for line in (read("/etc/passwd") or "").splitlines():
        name, _, rest = line.partition(":")
        found[name] = rest.partition(":")[2]
    for line in (read("/etc/group") or "").splitlines():
        name, _, rest = line.partition(":")
        if name in ("sudo", "wheel", "adm", "root", "docker", "lightagent"):
            found[f"group {name}"] = rest.rpartition(":")[2]
    return found


def mounts() -> dict[str, str]:
    """Mount points with device, type, and whether they can be written."""
    found: dict[str, str] = {}
    for line in (read("/proc/1/mountinfo") or read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        columns, kind = left.split(), right.split()
        if len(columns) > 5 and len(kind) > 1 and kind[0] not in _PASSING:
            if len(found) == _MOST_MOUNTS:
                break  # those that users made are the last
            found[columns[4]] = f"{kind[1]} {kind[0]} {columns[5].split(',')[0]}"
    return found


def files(top: Path) -> dict[str, str]:
    """A digest of each file below a folder, or what can be seen of one that cannot be read."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = f"{folder}/{name}"
            if path in _CHANGING or name.startswith(".#") or name.endswith("~"):
                continue
            if len(found) == _MOST_FILES:
                return found
            value = _digest(path)
            if value:
                found[path] = value
    return found


def _digest(path: str) -> str:
    try:
        info = os.lstat(path)
        mode = f"{stat.S_IMODE(info.st_mode):o} {procfs.user(info.st_uid)}"
        if stat.S_ISLNK(info.st_mode):
            return f"link to {Path(path).readlink()}"
        if not stat.S_ISREG(info.st_mode):
            return ""
        if info.st_size <= _LARGEST_BYTES and os.access(path, os.R_OK):
            return f"{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]} {mode}"
        return f"unreadable {info.st_size} B {int(info.st_mtime)} {mode}"
    except OSError:
        return ""
