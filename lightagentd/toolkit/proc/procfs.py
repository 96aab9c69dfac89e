"""Reads the state of every process from /proc, one small file each (proc(5)).

A process that ends in between is left out. Bytes that are not UTF-8, and control characters, appear escaped.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COMM_BYTES = 15
"""The kernel cuts a process's name to this many bytes."""
NAME_CHARS = 40
_HEAD_BYTES = 1 << 20
STATES = {
    "R": "running", "S": "sleeping", "D": "disk-sleep", "Z": "zombie", "T": "stopped",
    "t": "traced", "I": "idle", "X": "dead", "P": "parked",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stat:
    """One process as /proc/PID/stat has it."""

    pid: int
    comm: str
    state: str
    ppid: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    memory_bytes: int
    uid: int


def head_of(path: Path | str) -> bytes:
    """The begin of a file of /proc. A process can have a command line as long as its memory (prctl(2),
    PR_SET_MM_MAP) and maps without end. Raises OSError.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as Path.open, in half the time
        pieces, room = [], _HEAD_BYTES
        while room > 0 and (piece := file.read(room)):
            pieces.append(piece)
            room -= len(piece)
    return b"".join(pieces)


def all_stats(only: int = 0) -> dict[int, Stat]:
    wanted = [only] if only else pids()
    return {stat.pid: stat for stat in map(read_stat, wanted) if stat is not None}


def pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def read_stat(pid: int) -> Stat | None:
    """None for a process that is gone. The name may hold anything, spaces and parentheses too."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
            uid = Path(f"/proc/{pid}").stat().st_uid  # the folder's: a file's owner is root if not dumpable
        finally:
            os.close(fd)
    except OSError:
        return None
    head, _, tail = data.rpartition(b")")
    rest = tail.split()
    return Stat(
        pid=pid,
        comm=text_of(head.partition(b"(")[2]),
        state=STATES.get(rest[0].decode(), "unknown"),
        ppid=int(rest[1]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        threads=int(rest[17]),
        start_ticks=int(rest[19]),
        memory_bytes=int(rest[21]) * PAGE_BYTES,
        uid=uid,
    )


def text_of(data: bytes) -> str:
    """As UTF-8, with other bytes and control characters escaped, so that a name cannot make up lines."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def name_of(stat: Stat) -> str:
    """The name, completed from the command line where the kernel cut it."""
    if len(stat.comm.encode()) < COMM_BYTES:
        return stat.comm
    try:
        full = head_of(f"/proc/{stat.pid}/cmdline").partition(b"\0")[0].rpartition(b"/")[2]
    except OSError:
        return stat.comm
    whole = text_of(full)
    if whole.startswith(stat.comm) and re.fullmatch(r"[\w.+@:-]+", whole):
        return whole[:NAME_CHARS]
    return stat.comm


@cache
def _boot_time() -> float:
    rows = Path("/proc/stat").read_text("ascii").splitlines()
    return next(float(row.split()[1]) for row in rows if row.startswith("btime "))


def started_s(stat: Stat) -> float:
    return _boot_time() + stat.start_ticks / TICKS


def when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(size_bytes: float) -> str:
    for unit in ("B", "K", "M"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f}{unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f}G"
