"""States of processes: zombies and who does not collect them, stopped ones, those that hang in the kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator

import procfs
from checks import PROBLEM, WARNING, Finding, check
from procfs import Stat
from report import plural, span

_AGAIN_S = 0.5
"""A zombie or a wait for a disk is a fault only when it is still there a moment later."""


def lasting(state: str, pause_s: float = _AGAIN_S) -> list[Stat]:
    """The processes that are in a state now and a moment later, without the kernel's own threads."""
    first = {each.pid for each in procfs.stats() if each.state == state and not each.is_kernel}
    if not first:
        return []
    time.sleep(pause_s)
    return [each for pid in sorted(first) if (each := procfs.stat(pid)) is not None and each.state == state]


def stopped() -> list[Stat]:
    """Those that a signal or a debugger stopped, without jobs that somebody put aside on a terminal."""
    traced = lasting("t")  # who is watched with strace stops for moments all the time
    return [*(each for each in procfs.stats() if each.state == "T" and not each.tty), *traced]


def by_parent(zombies: list[Stat]) -> list[tuple[int, list[Stat]]]:
    groups: dict[int, list[Stat]] = {}
    for each in zombies:
        groups.setdefault(each.ppid, []).append(each)
    return sorted(groups.items(), key=lambda row: -len(row[1]))


def wchan(pid: int) -> str:
    """Where in the kernel it waits, where that may be known."""
    found = procfs.proc(pid, "wchan").strip("0") or str(procfs.surveyed().get(pid, {}).get("wchan", ""))
    return found.strip("0\n")


def zombie_sentence(parent: int, group: list[Stat]) -> str:
    names = sorted({each.name for each in group})
    said = "is a zombie" if len(group) == 1 else "are zombies"
    which = f"pid {group[0].pid}, {names[0]}" if len(group) == 1 else ", ".join(names[:3])
    what = f"{plural(len(group), 'process')} ({which}) {said}"
    return f"{what}: {procfs.who(parent)} does not collect its children."


def stopped_sentence(each: Stat) -> str:
    if each.state == "t":
        return f"{procfs.who(each.pid)} is stopped by a debugger that traces it."
    return f"{procfs.who(each.pid)} is stopped (state T): it does nothing until it gets SIGCONT."


def waiting_sentence(each: Stat) -> str:
    where = wchan(each.pid)
    return (
        f"{procfs.who(each.pid)} hangs in the kernel (state D"
        + (f", at {where}" if where else "")
        + "): it waits for a disk or a network file system and cannot be killed."
    )


@check("processes.zombies", "zombies that their parent does not collect")
def zombies() -> Iterator[Finding]:
    for parent, group in by_parent(lasting("Z")):
        if not procfs.is_own(parent):
            yield Finding(zombie_sentence(parent, group), "zombie processes", severity=WARNING)


@check("processes.stopped", "processes that were stopped")
def stopped_processes() -> Iterator[Finding]:
    for each in stopped():
        if not procfs.is_own(each.pid):
            yield Finding(stopped_sentence(each), f"what does process {each.pid} do", severity=WARNING)


@check("processes.waiting", "processes that hang in the kernel")
def waiting() -> Iterator[Finding]:
    for each in lasting("D", 1.0):
        yield Finding(waiting_sentence(each), "processes in D state", severity=PROBLEM)


def age(each: Stat) -> str:
    return span(each.age_s)
