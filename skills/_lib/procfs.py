"""Reads processes and sockets from /proc, the source of the system's own commands too (proc(5))."""

from __future__ import annotations

import pwd
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from commands import read
from report import shorten

_STATES = {"01": "established", "0A": "listen"}


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


def pids() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def name(pid: int) -> str:
    return (read(f"/proc/{pid}/comm") or "?").strip()


def command(pid: int, limit: int = 80) -> str:
    """The command line, or the name in brackets for a kernel thread."""
    line = (read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return shorten(line, limit) if line else f"[{name(pid)}]"


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status by key; empty when the process is gone."""
    pairs = (line.partition(":") for line in (read(f"/proc/{pid}/status") or "").splitlines())
    return {key: value.strip() for key, _, value in pairs}


def user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_of(pid: int) -> str:
    uids = status(pid).get("Uid", "").split()
    return user(int(uids[0])) if uids else "?"


def unit_of(pid: int) -> str:
    """The systemd unit from the process's cgroup, or an empty string."""
    for line in (read(f"/proc/{pid}/cgroup") or "").splitlines():
        for part in reversed(line.split("/")):
            if part.endswith((".service", ".scope", ".socket")):
                return part
    return ""


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
    if name(2) == "kthreadd":
        return ""
    return (
        "Only some processes are visible: this runs in a sandbox or a container, or may not "
        "see those of other users."
    )


def sockets_are_whole() -> str:
    """Empty, or a sentence when only a network namespace of this script's own may be visible."""
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
    """The target of each open descriptor of a process, or None if they are not visible."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return None
    except OSError:
        return {}
    found = {}
    for number in links:
        try:
            found[int(number.name)] = str(number.readlink())
        except OSError:
            continue
    return found


def link(pid: int, what: str) -> str:
    """The target of /proc/PID/{exe,cwd,root}, or an empty string."""
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
