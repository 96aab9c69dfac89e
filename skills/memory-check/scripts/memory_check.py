"""Says how much memory is in use, by what, and what the kernel killed for lack of it. Only observes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from clock import show
from commands import journal, message, read, stamp
from report import Report, human, options, plural, run, shorten

_TOP = 12
_LOW_PERCENT, _PRESSURE_PERCENT = 10, 10.0


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in (read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        columns = value.split()
        if columns and columns[0].isdigit():
            found[key] = int(columns[0]) * (1024 if columns[-1] == "kB" else 1)
    return found


def kills() -> tuple[list[tuple[str, str]], str]:
    """Processes that the kernel killed in the last 7 days: time and message, newest last; and why that is
    unknown.
    """
    entries, problem = journal(
        "-k", "--since=-7d", "--grep=Out of memory|oom-kill|Memory cgroup out of memory", limit=50
    )
    rows = [(show(stamp(entry)), shorten(message(entry))) for entry in entries if "ill" in message(entry)]
    return rows, problem


def kill_count() -> int:
    for line in (read("/proc/vmstat") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def processes() -> list[tuple[int, int, int]]:
    """Pid, resident bytes and swapped bytes of the largest processes."""
    found = []
    for pid in procfs.pids():
        values = procfs.status(pid)
        resident, swapped = (int((values.get(key) or "0").split()[0]) * 1024 for key in ("VmRSS", "VmSwap"))
        if resident or swapped:
            found.append((pid, resident, swapped))
    return sorted(found, key=lambda row: -(row[1] + row[2]))[:_TOP]


def shared_out(pid: int) -> str:
    """PSS, where this user may read it."""
    for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines():
        if line.startswith("Pss:"):
            return human(int(line.split()[1]) * 1024)
    return "-"


def finding(info: dict[str, int], top: list[tuple[int, int, int]], killed: int) -> str:
    total, available = info.get("MemTotal", 0), info.get("MemAvailable", info.get("MemFree", 0))
    if not total:
        return "The amount of memory cannot be read from /proc/meminfo."
    share = 100 * available // total
    waits = procfs.pressure("memory").get("some", 0.0)
    if share < _LOW_PERCENT or waits > _PRESSURE_PERCENT:
        words = f"Memory is short: {human(available)} of {human(total)} available ({share} %)"
    else:
        words = f"There is enough memory: {human(available)} of {human(total)} available ({share} %)"
    if top:
        words += (
            f"; the largest process is {procfs.name(top[0][0])} (pid {top[0][0]}) with {human(top[0][1])}"
        )
    if killed:
        words += f"; since boot the kernel killed {plural(killed, 'process')} for lack of memory"
    return words + "."


def make(report: Report) -> None:
    options(str(__doc__))
    info, top, killed = meminfo(), processes(), kill_count()
    report.finding = finding(info, top, killed)
    swap, swap_free = info.get("SwapTotal", 0), info.get("SwapFree", 0)
    rows = [
        ("Total", info.get("MemTotal", 0)),
        ("Available", info.get("MemAvailable", 0)),
        ("Free", info.get("MemFree", 0)),
        ("Caches and buffers", info.get("Cached", 0) + info.get("Buffers", 0) + info.get("SReclaimable", 0)),
        ("Shared (tmpfs)", info.get("Shmem", 0)),
        ("Kernel, not reclaimable", info.get("SUnreclaim", 0)),
        ("Swap", swap),
        ("Swap in use", swap - swap_free),
    ]
    report.table("Memory", ("What", "Size"), [(name, human(size)) for name, size in rows])
    if not swap:
        report.text("Swap", "This machine has no swap.")
    waits = procfs.pressure("memory")
    report.table(
        "Pressure over the last minute",
        ("Tasks that waited for memory", "Share of time"),
        [(kind, f"{value:.1f} %") for kind, value in waits.items()],
        "The kernel does not report pressure (no /proc/pressure/memory).",
    )
    report.table(
        "Largest processes",
        ("Pid", "User", "Resident", "PSS", "Swapped", "Command"),
        [
            (pid, procfs.user_of(pid), human(resident), shared_out(pid), human(swapped), procfs.command(pid))
            for pid, resident, swapped in top
        ],
        "No process could be read.",
    )
    entries, problem = kills()
    report.table("Killed for lack of memory in the last 7 days", ("Time", "Message"), entries[-_TOP:])
    report.note(problem)
    report.note(procfs.processes_are_whole())


run(make)
