"""Says how much memory is left, which units have it, and what was killed for lack of it. Only observes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import memory, units
from checks import prompt
from clock import show
from report import Report, human, options, plural, run, shorten
from systemd_units import named

_TOP = 10
_GROWTH_S = 0.5


def overview(kills: list[memory.Kill], grown: list[tuple[int, procfs.Stat]], report: Report) -> None:
    info = memory.meminfo()
    total = info.get("MemTotal", 0)
    if not total:
        report.finding = "The amount of memory cannot be read from /proc/meminfo."
        return
    share, top = memory.available_percent(info), memory.by_unit()
    waits = procfs.pressure("memory").get("some", 0.0)
    have = f"{human(info.get('MemAvailable', 0))} of {human(total)} available ({share} %)"
    if swap := info.get("SwapTotal", 0):
        have += f", {human(swap - info.get('SwapFree', 0))} of {human(swap)} swap used"
    near = [each for each in memory.groups() if each.is_near_limit]
    if kills:
        report.finding = memory.kill_sentence(kills[-1])
        if len(kills) > 1:
            report.finding = f"{report.finding[:-1]}; {plural(len(kills), 'process')} in a day."
        report.finding += f" Now {have}."
        report.next = prompt(f"why is {kills[-1].unit} down") if kills[-1].unit.endswith(".service") else ""
    elif share < memory.LOW_PERCENT or waits > memory.PRESSURE_PERCENT:
        report.finding = f"Memory is short: {have}, and tasks waited for it {waits:.0f} % of the last minute."
    elif near:
        report.finding = f"{memory.limit_sentence(near[0])[:-1]}; the machine has enough: {have}."
    else:
        report.finding = f"There is enough memory: {have}."
    if top and (top[0][0] > total // 20 or share < memory.LOW_PERCENT):
        size, name, count = top[0]
        report.finding = (
            f"{report.finding[:-1]}; {name} has the most, {human(size)} in {plural(count, 'process')}."
        )
    if grown:
        size, each = grown[0]
        report.finding = (
            f"{report.finding[:-1]}; {procfs.who(each.pid)} grows by {human(size)} a second right now."
        )


def about(unit: str, kills: list[memory.Kill], report: Report) -> None:
    stem = unit.rpartition(".")[0] or unit
    kill = next((each for each in reversed(kills) if each.unit == unit or each.name == stem), None)
    group = next((each for each in memory.groups() if each.unit == unit), None)
    rows = [row for row in memory.by_unit() if row[1] == unit]
    pids = [pid for pid in procfs.pids() if procfs.unit_of(pid) == unit]
    if rows:
        size, _, count = rows[0]
        report.finding = f"{unit} has {human(size)} of memory in {plural(count, 'process')}"
        if group is not None and group.limit:
            report.finding += f"; it may have {human(group.limit)} (MemoryMax=)"
        report.finding += (
            f", {100 * size / max(1, memory.meminfo().get('MemTotal', 1)):.0f} % of the machine's."
        )
    else:
        report.finding = f"{unit} has no process now, so it has no memory."
        one = next(iter(named(unit)), None)
        if kill is None and one is not None and units.is_failed(one):
            report.finding, report.next = units.failure(one), prompt(f"why is {unit} down")
        report.found_nothing = not report.next and kill is None
    if grown := [row for row in memory.growth(_GROWTH_S) if procfs.unit_of(row[1].pid) == unit]:
        rate = human(sum(size for size, _ in grown))
        report.finding = f"{report.finding[:-1]}; it grows by {rate} a second right now."
    if kill is not None:
        report.finding = f"{memory.kill_sentence(kill)} {report.finding}"
        report.next = prompt(f"why is {unit} down")
    elif group is not None and group.kills:
        report.finding += (
            f" {plural(group.kills, 'process')} of it were killed for lack of memory since it started."
        )
    table(f"Processes of {unit}", pids, report)


def table(title: str, pids: list[int], report: Report) -> None:
    rows = sorted(
        ((each.resident_bytes, each.pid) for pid in pids if (each := procfs.stat(pid)) is not None),
        reverse=True,
    )
    report.table(
        title,
        ("Resident", "Swapped", "Pid", "User", "Unit", "Command"),
        [
            (
                human(size),
                procfs.status(pid).get("VmSwap", "-"),
                pid,
                procfs.user_of(pid),
                procfs.unit_of(pid),
                procfs.command(pid, 50),
            )
            for size, pid in rows[:_TOP]
            if size
        ],
    )


def make(report: Report) -> None:
    unit = options(str(__doc__), unit="one unit").unit
    kills, problem = memory.kills("-7d" if unit else "-1d")
    if unit:
        about(unit, kills, report)
    else:
        overview(kills, memory.growth(_GROWTH_S), report)
    report.table(
        "Killed for lack of memory",
        ("When", "What"),
        [(show(kill.when), shorten(memory.kill_sentence(kill), 150)) for kill in kills[-_TOP:]],
    )
    if not unit:
        report.table(
            "By unit",
            ("Resident", "Unit", "Processes"),
            [(human(size), name, count) for size, name, count in memory.by_unit()[:6]],
        )
        table("Largest processes", [pid for pid in procfs.pids() if not procfs.is_own(pid)], report)
        info = memory.meminfo()
        swap, swap_free = info.get("SwapTotal", 0), info.get("SwapFree", 0)
        rows = [
            ("Total", info.get("MemTotal", 0)),
            ("Available", info.get("MemAvailable", 0)),
            ("Caches and buffers", sum(info.get(key, 0) for key in ("Cached", "Buffers", "SReclaimable"))),
            ("Shared (tmpfs)", info.get("Shmem", 0)),
            ("Kernel, not reclaimable", info.get("SUnreclaim", 0)),
            ("Swap in use", swap - swap_free),
            ("Swap", swap),
        ]
        report.table("Memory", ("What", "Size"), [(name, human(size)) for name, size in rows])
        report.table(
            "Pressure over the last minute",
            ("Tasks that waited for memory", "Share of time"),
            [(kind, f"{value:.1f} %") for kind, value in procfs.pressure("memory").items()],
        )
    report.note(problem)
    report.note(procfs.processes_are_whole())


run(make)
