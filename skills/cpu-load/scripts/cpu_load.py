"""Says how busy the processors are, with what, and what the machine waits for. Only observes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from commands import read
from report import Report, options, plural, run

_INTERVAL_S = 1.0
_TOP = 12
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_HIGH_PERCENT, _IOWAIT_PERCENT, _STEAL_PERCENT = 85.0, 20.0, 10.0


def processors() -> dict[str, list[int]]:
    """Ticks by state for each processor and for `cpu`, all together (proc(5), /proc/stat)."""
    found = {}
    for line in (read("/proc/stat") or "").splitlines():
        if line.startswith("cpu"):
            name, *ticks = line.split()
            found[name] = [int(tick) for tick in ticks[: len(_STATES)]]
    return found


def process_ticks() -> dict[int, int]:
    """User and system ticks of each process so far."""
    found = {}
    for pid in procfs.pids():
        text = read(f"/proc/{pid}/stat")
        if text:
            columns = text[text.rindex(")") + 2 :].split()
            found[pid] = int(columns[11]) + int(columns[12])
    return found


def shares(before: list[int], after: list[int]) -> dict[str, float]:
    """Percent of the time in each state between two readings."""
    spent = [late - before[at] for at, late in enumerate(after)]
    total = sum(spent) or 1
    return {_STATES[at]: 100.0 * ticks / total for at, ticks in enumerate(spent)}


def finding(
    load: tuple[float, float, float], count: int, mean: dict[str, float], top: list[tuple[float, int]]
) -> str:
    busy = 100.0 - mean.get("idle", 0) - mean.get("iowait", 0)
    head = f"load {load[0]:.2f} on {plural(count, 'processor')}, {busy:.0f} % busy"
    if mean.get("steal", 0) > _STEAL_PERCENT:
        words = f"The hypervisor takes {mean['steal']:.0f} % of the processor time away: {head}"
    elif mean.get("iowait", 0) > _IOWAIT_PERCENT:
        words = f"The machine waits for its disks {mean['iowait']:.0f} % of the time: {head}"
    elif busy > _HIGH_PERCENT:
        words = f"The processors are busy: {head}"
    elif load[0] > count:
        words = f"More tasks want to run or wait for disks than there are processors: {head}"
    else:
        words = f"The processors are not the bottleneck: {head}"
    if top and top[0][0] >= 5:
        words += (
            f"; most is used by {procfs.name(top[0][1])} (pid {top[0][1]}) with "
            f"{top[0][0]:.0f} % of one processor"
        )
    return words + "."


def make(report: Report) -> None:
    options(str(__doc__))
    before, ticks_before, started = processors(), process_ticks(), time.monotonic()
    time.sleep(_INTERVAL_S)
    after, ticks_after, passed = processors(), process_ticks(), time.monotonic() - started
    per_second = os.sysconf("SC_CLK_TCK")
    used = sorted(
        (
            (100.0 * (ticks - ticks_before.get(pid, ticks)) / per_second / passed, pid)
            for pid, ticks in ticks_after.items()
        ),
        reverse=True,
    )
    top = [(share, pid) for share, pid in used[:_TOP] if share > 0 and pid != os.getpid()]
    each = {name: shares(before[name], ticks) for name, ticks in after.items() if name in before}
    mean = each.get("cpu", {})
    count = max(1, len(each) - 1)
    load = os.getloadavg()
    report.finding = finding(load, count, mean, top)
    report.table(
        "Load",
        ("Last minute", "5 minutes", "15 minutes", "Processors"),
        [(*(f"{value:.2f}" for value in load), count)],
    )
    report.table(
        f"Time of the processors over {passed:.1f} s",
        ("Processor", "User", "System", "Idle", "Waiting for disks", "Stolen"),
        [
            (
                name if name != "cpu" else "all",
                *(
                    f"{values.get(state, 0) + extra:.0f} %"
                    for state, extra in (
                        ("user", values.get("nice", 0)),
                        ("system", values.get("irq", 0) + values.get("softirq", 0)),
                        ("idle", 0),
                        ("iowait", 0),
                        ("steal", 0),
                    )
                ),
            )
            for name, values in list(each.items())[:33]
        ],
        "The time of the processors cannot be read from /proc/stat.",
    )
    report.table(
        f"Processes that used the most over {passed:.1f} s",
        ("Of one processor", "Pid", "User", "Command"),
        [(f"{share:.0f} %", pid, procfs.user_of(pid), procfs.command(pid)) for share, pid in top],
        "No process used a processor noticeably.",
    )
    rows = [
        (resource, kind, f"{value:.1f} %")
        for resource in ("cpu", "io", "memory")
        for kind, value in procfs.pressure(resource).items()
    ]
    report.table(
        "Pressure over the last minute",
        ("Waiting for", "Tasks", "Share of time"),
        rows,
        "The kernel does not report pressure (no /proc/pressure).",
    )
    waiting = [pid for pid in procfs.pids() if procfs.status(pid).get("State", "").startswith("D")]
    report.table(
        "Processes that wait for a disk now",
        ("Pid", "Command"),
        [(pid, procfs.command(pid)) for pid in waiting[:_TOP]],
    )
    report.note(procfs.processes_are_whole())


run(make)
