"""Processors: how busy they are, with which unit and process, and what the machine waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import procfs
from checks import PROBLEM, WARNING, Finding, check
from commands import read
from report import plural, span

_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSY_PERCENT, IOWAIT_PERCENT, STEAL_PERCENT = 85.0, 25.0, 10.0
_HOG_PERCENT, _SHARED_PERCENT = 80.0, 20.0
"""Of one processor: where there is time left, and where there is none."""
_HOG_CPU_S = 8.0


@dataclass(frozen=True)
class Sample:
    """What was measured over a moment; shares are percents, of processes in those of one processor."""

    passed_s: float
    each: dict[str, dict[str, float]]
    """The share of each state, by processor; `cpu` is all of them."""
    used: list[tuple[float, int]]
    """The share and pid of each process, the most first, without the agent's own."""

    @property
    def mean(self) -> dict[str, float]:
        return self.each.get("cpu", {})

    @property
    def count(self) -> int:
        return max(1, len(self.each) - 1)

    @property
    def busy(self) -> float:
        return 100.0 - self.mean.get("idle", 100.0) - self.mean.get("iowait", 0.0)

    def by_unit(self) -> list[tuple[float, str, list[int]]]:
        """The share, name and processes of each unit; processes of none go by their user."""
        found: dict[str, tuple[float, list[int]]] = {}
        for share, pid in self.used:
            name = procfs.unit_of(pid) or f"user {procfs.user_of(pid)}"
            before, pids = found.get(name, (0.0, []))
            found[name] = (before + share, [*pids, pid])
        return sorted(((share, name, pids) for name, (share, pids) in found.items()), reverse=True)


def sample(seconds: float) -> Sample:
    """Measure for so long."""
    before, spent, started = _processors(), _spent(), time.monotonic()
    time.sleep(seconds)
    after, spent_after, passed = _processors(), _spent(), time.monotonic() - started
    used = sorted(
        ((100.0 * (later - spent.get(pid, later)) / passed, pid) for pid, later in spent_after.items()),
        reverse=True,
    )
    each = {name: _shares(before[name], ticks) for name, ticks in after.items() if name in before}
    return Sample(passed, each, [(share, pid) for share, pid in used if share > 0 and not procfs.is_own(pid)])


def hogs(measured: Sample) -> list[tuple[float, procfs.Stat]]:
    """Processes that use a processor now and have done so since they began; less will do where they are so
    many that each gets a part.
    """
    least = _HOG_PERCENT if measured.busy < BUSY_PERCENT else _SHARED_PERCENT
    found = []
    for share, pid in measured.used[:10]:
        each = procfs.stat(pid)
        if each is None or each.nice > 0 or share < least or each.cpu_s < _HOG_CPU_S:
            continue  # who is nice takes what nobody else wants
        if 100.0 * each.cpu_s / max(each.age_s, 1.0) >= share * 0.6:
            found.append((share, each))
    return found


def hog_sentence(share: float, each: procfs.Stat) -> str:
    return f"{procfs.who(each.pid)} uses {share:.0f} % of one processor, for {span(each.age_s)} now."


@check("load.processors", "processes that burn a processor, and processors with no time left")
def processors() -> Iterator[Finding]:
    measured = sample(1.0)
    for share, each in hogs(measured)[:3]:
        yield Finding(
            hog_sentence(share, each),
            "what uses the CPU",
            since=time.time() - each.age_s,
            severity=WARNING,
        )
    if procfs.is_container():
        return  # the rest would be about the machine that it runs on
    steal, iowait = measured.mean.get("steal", 0.0), measured.mean.get("iowait", 0.0)
    if steal > STEAL_PERCENT:
        yield Finding(
            f"The hypervisor takes {steal:.0f} % of the processor time away (steal).",
            "why is this machine slow",
            severity=WARNING,
        )
    if iowait > IOWAIT_PERCENT and procfs.pressure("io").get("some", 100.0) > IOWAIT_PERCENT:
        yield Finding(
            f"The processors wait for disks {iowait:.0f} % of the time (iowait).", "which disk has errors"
        )
    loads = os.getloadavg()
    if loads[1] > 4 * measured.count and loads[0] > 4 * measured.count:
        yield Finding(
            f"The load of 5 minutes is {loads[1]:.1f} on {plural(measured.count, 'processor')}.",
            "why is this machine slow",
            severity=PROBLEM if loads[1] > 10 * measured.count else WARNING,
        )


def _processors() -> dict[str, list[int]]:
    """Ticks by state for each processor and for `cpu`, all together (proc(5), /proc/stat)."""
    found = {}
    for line in (read("/proc/stat") or "").splitlines():
        if line.startswith("cpu"):
            name, *ticks = line.split()
            found[name] = [int(tick) for tick in ticks[: len(_STATES)]]
    return found


def _spent() -> dict[int, float]:
    """Seconds of processor time of each process so far."""
    return {each.pid: each.cpu_s for each in procfs.stats()}


def _shares(before: list[int], after: list[int]) -> dict[str, float]:
    spent = [late - before[at] for at, late in enumerate(after)]
    total = sum(spent) or 1
    return {_STATES[at]: 100.0 * ticks / total for at, ticks in enumerate(spent)}
