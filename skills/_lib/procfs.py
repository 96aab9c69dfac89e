"""Reads processes and sockets from /proc, the source of the system's own commands too (proc(5)).

What only root may see of others comes from the file that LIGHTAGENT_SURVEY names, where a worker gave one.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import read
from report import clean, plural, shorten

_STATES = {"01": "established", "0A": "listen"}
_LETTERS = {"stopped": "T", "traced": "t", "dead": "X"}
"""Of the survey's words for states, those that do not begin with their letter."""


@dataclass(frozen=True)
class Socket:
    """One row of /proc/net/tcp, tcp6, udp or udp6."""

    protocol: str
    address: str
    port: int
    peer: str
    peer_port: int
    state: str
    uid: int
    inode: int

    @property
    def is_listening(self) -> bool:
        return self.state == "listen" or (self.protocol.startswith("udp") and self.peer_port == 0)

    @property
    def is_local(self) -> bool:
        return self.address.startswith("127.") or self.address in ("::1", "::ffff:127.0.0.1")


@functools.lru_cache(maxsize=1)
def survey() -> dict[str, Any]:
    """What the worker found out for this script (`lightagentd/toolkit/proc/survey.py`); empty without one."""
    try:
        found = json.loads(read(os.environ.get("LIGHTAGENT_SURVEY", "")) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=1)
def surveyed() -> dict[int, dict[str, Any]]:
    """The survey's processes by pid."""
    return {row["pid"]: row for row in survey().get("processes", [])}


@functools.lru_cache(maxsize=1)
def _is_elsewhere() -> bool:
    """Whether /proc shows other pids than the survey: those of a sandbox."""
    there = survey().get("pid_namespace", "")
    return bool(there) and there != str(Path("/proc/self/ns/pid").readlink())


def proc(pid: int, what: str) -> str:
    """The text of /proc/PID/what, empty where there is none, or it may not be read. A process can have a
    command line as long as its memory (prctl(2), PR_SET_MM_MAP), so the rest is left out.
    """
    return "" if _is_elsewhere() else read(f"/proc/{pid}/{what}", 1 << 20) or ""


def pids() -> list[int]:
    if _is_elsewhere():
        return sorted(surveyed())
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def name(pid: int) -> str:
    return clean(proc(pid, "comm") or str(surveyed().get(pid, {}).get("name", ""))) or "?"


def command(pid: int, limit: int = 80) -> str:
    """The command line, or the name in brackets for a kernel thread."""
    line = proc(pid, "cmdline").replace("\0", " ").strip() or surveyed().get(pid, {}).get("command", "")
    return shorten(line, limit) if line else f"[{name(pid)}]"


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status by key; empty when the process is gone."""
    pairs = (line.partition(":") for line in proc(pid, "status").splitlines())
    found = {key: value.strip() for key, _, value in pairs}
    row = surveyed().get(pid)
    if not found and row:
        found = {"Name": row["name"], "State": row["state"], "PPid": str(row["ppid"])}
        found |= {"Uid": f"{row['uid']} {row['uid']}", "VmRSS": f"{row['memory_bytes'] >> 10} kB"}
    return found


@dataclass(frozen=True)
class Stat:
    """One process as /proc/PID/stat has it; `state` is its letter, `start_s` counts from boot."""

    pid: int
    name: str
    state: str
    ppid: int
    tty: int
    cpu_s: float
    start_s: float
    resident_bytes: int
    nice: int = 0

    @property
    def is_kernel(self) -> bool:
        return self.ppid == 2 or self.pid == 2

    @property
    def age_s(self) -> float:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_s)


def stat(pid: int) -> Stat | None:
    """None when the process is gone, or not visible."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    head, _, tail = proc(pid, "stat").rpartition(")")
    rest = tail.split()
    if len(rest) > 21:
        spent = (int(rest[11]) + int(rest[12])) / ticks
        at = (int(rest[1]), int(rest[4]), spent, int(rest[19]) / ticks, int(rest[21]) * page)
        return Stat(pid, clean(head.partition("(")[2]), rest[0], *at, nice=int(rest[16]))
    if _is_elsewhere() and (row := surveyed().get(pid)):
        letter = _LETTERS.get(row["state"], str(row["state"])[:1].upper())
        at = (int(row["ppid"]), 0, 0.0, int(row.get("start_ticks", 0)) / ticks, int(row["memory_bytes"]))
        return Stat(pid, str(row["name"]), letter, *at)
    return None


def stats() -> list[Stat]:
    return [found for pid in pids() if (found := stat(pid)) is not None]


def is_own(pid: int) -> bool:
    """Whether it is a part of the agent daemon, its workers included, or this very script."""
    return (
        pid == os.getpid()
        or unit_of(pid).startswith(("lightagentd.", "lightagent-"))
        or (daemon() != 0 and daemon() in (pid, *ancestors(pid)))
    )


def ancestors(pid: int) -> list[int]:
    """The processes above one, the nearest first."""
    found: list[int] = []
    while (above := stat(pid)) is not None and above.ppid and above.ppid not in found:
        found.append(pid := above.ppid)
    return found


@functools.lru_cache(maxsize=1)
def daemon() -> int:
    """The agent daemon that runs this script, where it has no unit of its own; 0 where it cannot be seen."""
    above = [] if _is_elsewhere() else ancestors(os.getpid())
    return next((pid for pid in reversed(above) if is_daemon(proc(pid, "cmdline").split("\0"))), 0)


def is_daemon(argv: list[str]) -> bool:
    """Whether a command line starts lightagentd, as a program or as a module of Python."""
    words = [word for word in argv if not word.startswith("-")][:2]
    return any(word == "lightagentd" or word.endswith("/lightagentd") for word in words)


def user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_of(pid: int) -> str:
    uids = status(pid).get("Uid", "").split()
    return user(int(uids[0])) if uids else "?"


def unit_of(pid: int) -> str:
    """The system's unit of the process, the outermost of its cgroup's path, or an empty string."""
    own = own_groups(proc(1, "cgroup"))
    for line in proc(pid, "cgroup").splitlines():
        for part in below(line, own).split("/"):
            if part.endswith((".service", ".scope", ".socket")):
                return clean(part)
    return str(surveyed().get(pid, {}).get("unit", ""))


def own_groups(of_first: str) -> list[str]:
    """How lines of /proc/PID/cgroup begin in this container: with its own cgroup, a unit of its host's.

    `of_first` is that file of process 1: systemd is in `init.scope` below it (systemd.special(7)).
    """
    suffix = "/init.scope"
    return [line[: -len(suffix)] for line in of_first.splitlines() if line.endswith(suffix)]


def below(line: str, groups: list[str]) -> str:
    """A line of /proc/PID/cgroup without how it begins in this container."""
    return next((line[len(group) :] for group in groups if line.startswith(f"{group}/")), line)


def sockets() -> list[Socket]:
    """All TCP and UDP sockets of this network namespace."""
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in (read(f"/proc/net/{protocol}") or "").splitlines()[1:]:
            row = _socket(protocol, line.split())
            if row is not None:
                found.append(row)
    return found


def processes_are_whole() -> str:
    """Empty, or a sentence when only the processes of a sandbox or container, or only one's own, are visible.

    If all processes are visible, pid 2 is the parent of the kernel's threads.
    """
    if left_out := survey().get("left_out", 0):
        return f"The survey of all processes was cut: {plural(left_out, 'process')} could not be looked at."
    if surveyed() or name(2) == "kthreadd" or name(1) in ("systemd", "init"):
        return ""
    return (
        "Only some processes are visible: this runs in a sandbox or a container, or may not "
        "see those of other users."
    )


def hidden_processes() -> str:
    """Empty, or a sentence on the number of processes whose open files and sockets may not be seen."""
    hidden = sum(descriptors(pid) is None for pid in pids())
    return f"What {plural(hidden, 'process')} of other users hold open could not be seen." if hidden else ""


def is_container() -> bool:
    """Whether the first processes are not the kernel's own: /proc tells of another machine's processors."""
    return name(2) != "kthreadd"


def sockets_are_whole() -> str:
    """Empty, or a sentence when only a network namespace of this script's own may be visible."""
    if there := survey().get("net_namespace", ""):
        own = str(Path("/proc/self/ns/net").readlink())
        return "" if own == there else "This sees a network namespace of its own, not the machine's."
    lines = (read("/proc/net/dev") or "").splitlines()[2:]
    if [line.split(":")[0].strip() for line in lines] in ([], ["lo"]):
        return (
            "Only the loopback interface is visible: this may be a network namespace of its "
            "own, not the machine's."
        )
    return ""


def socket_owners() -> tuple[dict[int, list[int]], int]:
    """The pids that hold each socket by inode, and the number of unreadable processes."""
    owners: dict[int, list[int]] = {}
    hidden = 0
    for pid in pids():
        targets = descriptors(pid)
        if targets is None:
            hidden += 1
            continue
        for target in targets.values():
            if target.startswith("socket:["):
                owners.setdefault(int(target[8:-1]), []).append(pid)
    return owners, hidden


def descriptors(pid: int) -> dict[int, str] | None:
    """The target of each open descriptor of a process, or None if they are not visible.

    From the survey of `sees: processes` these are sockets and deleted files, of `sees: files` all.
    """
    if row := surveyed().get(pid):
        found = row.get("descriptors")
        return None if found is None else {int(key): to for key, to in found.items() if key.isdigit()}
    if _is_elsewhere():
        return {}
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return {} if surveyed() and not survey().get("left_out") else None  # it began after the survey
    except OSError:
        return {}
    found = {}
    for number in links:
        try:
            found[int(number.name)] = str(number.readlink())
        except OSError:
            continue
    return found


def mapped(pid: int) -> set[str]:
    """The files that a process has mapped into its memory, such as its libraries."""
    if row := surveyed().get(pid):
        return {key[7:] for key in row.get("descriptors") or {} if key.startswith("mapped ")}
    columns = (line.split(None, 5) for line in proc(pid, "maps").splitlines())
    return {each[5] for each in columns if len(each) == 6}


def deleted_sizes(pid: int) -> dict[int, tuple[int, str]]:
    """The bytes on disk of deleted files that a process holds open, and which file each is, by descriptor."""
    if row := surveyed().get(pid):
        return {int(key): (size, str(which)) for key, (size, which) in row.get("deleted", {}).items()}
    found = {}
    for number, target in (descriptors(pid) or {}).items():
        if target.endswith(" (deleted)") and target.startswith("/"):
            try:
                info = Path(f"/proc/{pid}/fd/{number}").stat()
            except OSError:
                continue
            if info.st_nlink == 0 and not target.startswith(("/memfd:", "/dev/", "/SYSV", "/[aio]")):
                found[number] = (info.st_blocks * 512, f"{info.st_dev}:{info.st_ino}")
    return found


def who(pid: int) -> str:
    """`nginx (pid 812) of nginx.service`."""
    unit = unit_of(pid)
    return f"{name(pid)} (pid {pid})" + (f" of {unit}" if unit else "")


def link(pid: int, what: str) -> str:
    """The target of /proc/PID/{exe,cwd,root}, or an empty string."""
    if row := surveyed().get(pid):
        return str(row.get(what, ""))
    try:
        return str(Path("/proc", str(pid), what).readlink())
    except OSError:
        return ""


def pressure(resource: str) -> dict[str, float]:
    """`{"some": 1.2, "full": 0.0}`: the share of time in percent over a minute that tasks waited (PSI)."""
    found = {}
    for line in (read(f"/proc/pressure/{resource}") or "").splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        found[kind] = float(values.get("avg60", 0))
    return found


def _socket(protocol: str, columns: list[str]) -> Socket | None:
    if len(columns) < 10:
        return None
    address, port = _endpoint(columns[1])
    peer, peer_port = _endpoint(columns[2])
    state = _STATES.get(columns[3], "other") if protocol.startswith("tcp") else "other"
    return Socket(protocol, address, port, peer, peer_port, state, int(columns[7]), int(columns[9]))


def _endpoint(text: str) -> tuple[str, int]:
    """The kernel writes addresses as 32-bit words in the order of the machine."""
    digits, port = text.split(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed), int(port, 16)
