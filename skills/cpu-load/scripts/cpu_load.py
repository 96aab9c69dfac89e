"""Says how busy the processors are, with what, and what the machine waits for. Only observes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import load, processes
from checks import prompt
from report import Report, options, plural, run, span

_INTERVAL_S = 0.6
_TOP = 10
_GROUPS = (("user", "nice"), ("system", "irq", "softirq"), ("idle",), ("iowait",), ("steal",))
"""The columns of the processors' time, by the kernel's names."""


def busiest(measured: load.Sample) -> str:
    """Who uses the most, with since when, or an empty string."""
    if not measured.used or measured.used[0][0] < 5:
        return ""
    share, pid = measured.used[0]
    each = procfs.stat(pid)
    since = ""
    if each is not None and each.cpu_s > 0.5 * each.age_s:
        since = f", for {span(each.age_s)} now"
    text = f"most is used by {procfs.who(pid)} with {share:.0f} % of one processor{since}"
    unit_share, unit, pids = measured.by_unit()[0]
    if len(pids) > 1 and unit_share > 1.5 * share:
        who = f"{plural(len(pids), 'process')} of {unit}"
        text = f"most is used by {who} with {unit_share:.0f} % of one processor"
    return text


def finding(loads: tuple[float, float, float], measured: load.Sample) -> str:
    mean, count = measured.mean, measured.count
    head = f"load {loads[0]:.2f} on {plural(count, 'processor')}, {measured.busy:.0f} % busy"
    hogs = load.hogs(measured)
    if mean.get("steal", 0) > load.STEAL_PERCENT:
        words = f"The hypervisor takes {mean['steal']:.0f} % of the processor time away (steal): {head}"
    elif mean.get("iowait", 0) > load.IOWAIT_PERCENT:
        words = f"The machine waits for its disks {mean['iowait']:.0f} % of the time (iowait): {head}"
    elif measured.busy > load.BUSY_PERCENT:
        words = f"The processors are busy: {head}"
    elif hogs:
        share, each = hogs[0]
        return f"{load.hog_sentence(share, each)[:-1]}; all in all {head}."
    elif loads[0] > 1.5 * count:
        waiting = processes.lasting("D", 0.2)
        words = f"More tasks want to run or wait for disks than there are processors: {head}"
        if waiting:
            who = procfs.who(waiting[0].pid)
            words += f"; {plural(len(waiting), 'process')} hang in the kernel, such as {who}"
    else:
        words = f"The processors are not the bottleneck: {head}"
    if loads[2] > count and loads[0] < loads[2] / 2:
        words += f", less than 15 minutes ago ({loads[2]:.1f})"
    most = busiest(measured)
    return words + (f"; {most}." if most else ".")


def make(report: Report) -> None:
    options(str(__doc__))
    measured, loads = load.sample(_INTERVAL_S), os.getloadavg()
    report.finding = finding(loads, measured)
    if measured.used and measured.used[0][0] > 50:
        report.next = prompt(f"what does pid {measured.used[0][1]} do")
    elif procfs.pressure("memory").get("some", 0) > 10:
        report.next = prompt("what uses the memory")
    report.table(
        f"Processes that used the most over {measured.passed_s:.1f} s",
        ("Of one processor", "Pid", "User", "Unit", "Command"),
        [
            (f"{share:.0f} %", pid, procfs.user_of(pid), procfs.unit_of(pid), procfs.command(pid, 60))
            for share, pid in measured.used[:_TOP]
        ],
        "No process used a processor noticeably.",
    )
    report.table(
        "By unit",
        ("Of one processor", "Unit", "Processes"),
        [(f"{share:.0f} %", name, len(pids)) for share, name, pids in measured.by_unit()[:6] if share >= 1],
    )
    report.table(
        "Load and time of the processors",
        ("1, 5, 15 minutes", "User", "System", "Idle", "Iowait", "Steal"),
        [
            (
                ", ".join(f"{value:.2f}" for value in loads),
                *(
                    f"{sum(measured.mean.get(state, 0) for state in group):.0f} %"
                    for group in (
                        ("user", "nice"),
                        ("system", "irq", "softirq"),
                        ("idle",),
                        ("iowait",),
                        ("steal",),
                    )
                ),
            )
        ],
    )
    report.table(
        "Pressure over the last minute",
        ("Waiting for", "Tasks", "Share of time"),
        [
            (resource, kind, f"{value:.1f} %")
            for resource in ("cpu", "io", "memory")
            for kind, value in procfs.pressure(resource).items()
        ],
        "The kernel does not report pressure (no /proc/pressure).",
    )
    report.note(procfs.processes_are_whole())


run(make)
