"""Memory: how much is left, which units have it, who waits for it, and what was killed for lack of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, read, stamp
from report import human, plural, span

_CGROUPS = Path("/sys/fs/cgroup")
LOW_PERCENT, OUT_PERCENT, PRESSURE_PERCENT = 10, 5, 10.0
_LIMIT_PERCENT = 90
_GROWTH_BYTES, _GROWN_S = 1 << 20, 15.0
"""A second; and how old a process must be: each grows while it starts."""
_WORDS = "Out of memory|oom-kill|Memory cgroup out of memory|killed by the OOM killer|due to memory"
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w+).*?task_memcg=([^,]*),task=([^,]*),pid=(\d+)")
_OOM_MEMCG = re.compile(r"oom_memcg=([^,]*)")
_KILLED = re.compile(
    r"(Memory cgroup out of memory|Out of memory)[^:]*: Killed process (\d+) \(([^)]*)\)(.*)"
)
_RESIDENT = re.compile(r"anon-rss:(\d+)kB")
_BY_UNIT = re.compile(r"(\S+\.\w+): A process of this unit has been killed by the OOM killer")
_BY_OOMD = re.compile(r"Killed (\S+) due to (memory (?:pressure|used).*)")


@dataclass
class Kill:
    """One process that was killed for lack of memory."""

    when: float
    pid: int = 0
    name: str = "a process"
    unit: str = ""
    limited: str = ""
    """The control group whose limit was reached; empty where the whole machine had none left."""
    known: bool = True
    """Whether it is known which of both."""
    resident_bytes: int = 0


@dataclass(frozen=True)
class Group:
    """The memory of a unit's control group (cgroup-v2, Memory Interface Files)."""

    unit: str
    anonymous: int
    current: int
    limit: int
    """0 for none."""
    kills: int

    @property
    def is_near_limit(self) -> bool:
        return bool(self.limit) and 100 * self.anonymous >= _LIMIT_PERCENT * self.limit


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in (read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        columns = value.split()
        if columns and columns[0].isdigit():
            found[key] = int(columns[0]) * (1024 if columns[-1] == "kB" else 1)
    return found


def available_percent(info: dict[str, int]) -> int:
    total = info.get("MemTotal", 0)
    return 100 * info.get("MemAvailable", info.get("MemFree", 0)) // total if total else 100


def groups() -> list[Group]:
    """The services and scopes, those with the most memory first; none where they are not counted."""
    found = []
    for folder, names, files in os.walk(_CGROUPS):
        unit = Path(folder).name
        if unit.endswith((".service", ".scope")):
            names[:] = [name for name in names if unit.startswith("user@")]
            if "memory.current" in files and not unit.startswith("user@"):
                found.append(_group(folder, unit))
        if folder.count("/") > 9:
            names.clear()
    return sorted(found, key=lambda each: -each.anonymous)


def by_unit() -> list[tuple[int, str, int]]:
    """Resident bytes, name and number of processes of each unit, without the agent's own."""
    found: dict[str, tuple[int, int]] = {}
    for each in procfs.stats():
        if each.resident_bytes and not procfs.is_own(each.pid):
            name = procfs.unit_of(each.pid) or f"user {procfs.user_of(each.pid)}"
            before, count = found.get(name, (0, 0))
            found[name] = (before + each.resident_bytes, count + 1)
    return sorted(((size, name, count) for name, (size, count) in found.items()), reverse=True)


def kills(since: str = "-1d") -> tuple[list[Kill], str]:
    """What was killed, oldest first, and why that cannot be known."""
    entries, problem = journal(f"--since={since}", f"--grep={_WORDS}", limit=300, timeout_s=4)
    return parsed([entry for entry in entries if _is_trusted(entry)]), problem


def parsed(entries: list[dict[str, Any]]) -> list[Kill]:
    """The kills that entries of the journal tell of: several lines are about one."""
    by_pid: dict[int, Kill] = {}
    others: list[Kill] = []
    for entry in entries:
        text, when = message(entry), stamp(entry)
        if found := _CONSTRAINT.search(text):
            kill = by_pid.setdefault(int(found[4]), Kill(when, int(found[4])))
            kill.name, kill.unit = found[3], _unit_in(found[2])
            group = _OOM_MEMCG.search(text)
            kill.limited = group[1] if group and found[1] == "CONSTRAINT_MEMCG" else ""
        elif found := _KILLED.search(text):
            kill = by_pid.setdefault(int(found[2]), Kill(when, int(found[2])))
            kill.name = found[3]
            if found[1].startswith("Memory cgroup"):
                kill.limited = kill.limited or "its control group"
            if resident := _RESIDENT.search(found[4]):
                kill.resident_bytes = int(resident[1]) * 1024
        elif found := _BY_UNIT.search(text):
            others.append(Kill(when, unit=found[1], known=False))
        elif found := _BY_OOMD.search(text):
            others.append(Kill(when, unit=_unit_in(found[1]) or found[1], limited=found[2]))
    told = {kill.unit for kill in by_pid.values()}
    all_kills = [*by_pid.values(), *(kill for kill in others if kill.unit not in told)]
    return sorted(all_kills, key=lambda kill: kill.when)


def kill_sentence(kill: Kill) -> str:
    who = f"{kill.name} (pid {kill.pid})" if kill.pid else kill.name
    unit = f" of {kill.unit}" if kill.unit else ""
    text = f"{who}{unit} was killed for lack of memory {span(time.time() - kill.when)} ago"
    if kill.limited:
        limit = _limit(kill)
        text += (
            f": the limit of {_unit_in(kill.limited) or kill.limited}{limit} was reached, not the machine's"
        )
    elif kill.known:
        text += ": the whole machine had none left"
    elif limit := _limit(kill):
        text += f": its control group has a limit{limit}"
    if kill.resident_bytes:
        text += f"; it had {human(kill.resident_bytes)}"
    return ("A" + text[1:] if not kill.pid else text) + "."


@check("memory.room", "memory that is short, tasks that wait for it, and swap that is full")
def room() -> Iterator[Finding]:
    info = meminfo()
    share = available_percent(info)
    if share < LOW_PERCENT:
        top = by_unit()
        most = f"; {top[0][1]} has the most ({human(top[0][0])})" if top else ""
        yield Finding(
            f"Memory is short: {human(info.get('MemAvailable', 0))} of {human(info['MemTotal'])} ({share} %)"
            f" available{most}.",
            "what uses the memory",
            severity=PROBLEM if share < OUT_PERCENT else WARNING,
        )
    waits = procfs.pressure("memory").get("some", 0.0)
    if waits > PRESSURE_PERCENT:
        yield Finding(
            f"Tasks waited for memory {waits:.0f} % of the last minute (memory pressure).",
            "what uses the memory",
        )
    swap, free = info.get("SwapTotal", 0), info.get("SwapFree", 0)
    if swap and free < swap // 10 and share < 2 * LOW_PERCENT:
        yield Finding(
            f"Swap is nearly full: {human(free)} of {human(swap)} free.",
            "what uses the swap",
            severity=WARNING,
        )


@check("memory.kills", "processes killed for lack of memory within a day")
def killed() -> Iterator[Finding]:
    found, problem = kills()
    newest = {kill.unit or kill.name: kill for kill in found}
    for each in groups():
        if each.kills and each.unit not in newest and not each.unit.startswith("lightagent"):
            limit = f" (it may have {human(each.limit)})" if each.limit else ""
            text = f"{plural(each.kills, 'process')} of {each.unit} killed for lack of memory"
            yield Finding(f"{text} since it began{limit}.", f"why was {each.unit} killed")
    for name, kill in newest.items():
        times = sum((one.unit or one.name) == name for one in found)
        text = kill_sentence(kill)
        text = text if times == 1 else f"{text[:-1]}; that was the last of {plural(times, 'time')}."
        yield Finding(text, f"why was {name} killed", since=kill.when)
    if problem:
        raise CannotSee(problem)


def growth(seconds: float) -> list[tuple[int, procfs.Stat]]:
    """Bytes a second of processes that have grown since they began and go on, and each, the most first."""
    before, began = procfs.stats(), time.monotonic()
    time.sleep(seconds)
    after, took_s = procfs.stats(), time.monotonic() - began
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return [row for row in growing(before, after, took_s, now_s) if not procfs.is_own(row[1].pid)]


def growing(
    before: Iterable[procfs.Stat], after: Iterable[procfs.Stat], took_s: float, now_s: float
) -> list[tuple[int, procfs.Stat]]:
    """Bytes a second of the processes that seem to leak, from two looks at all; `now_s` counts from boot.

    A process that began a short time ago grows because it starts. One that has less memory than a third of
    what such growth makes since it began has begun to grow just now, and may end that at once.
    """
    sizes = {(each.pid, each.start_s): each.resident_bytes for each in before}
    found = []
    for each in after:
        age_s = now_s - each.start_s
        first = sizes.get((each.pid, each.start_s))
        if first is None or age_s < _GROWN_S:
            continue
        rate = int((each.resident_bytes - first) / took_s)
        if rate >= _GROWTH_BYTES and each.resident_bytes > rate * age_s / 3:
            found.append((rate, each))
    return sorted(found, key=lambda row: -row[0])


@check("memory.growth", "processes that have grown since they began and go on")
def grows() -> Iterator[Finding]:
    for rate, each in growth(1.0)[:5]:
        size = human(each.resident_bytes)
        yield Finding(
            f"{procfs.who(each.pid)} has {size} of memory and grows by {human(rate)} a second.",
            "what uses the memory",
            since=time.time() - each.age_s,
            severity=WARNING,
        )


@check("memory.limits", "units near the memory limit that they have")
def limits() -> Iterator[Finding]:
    for each in groups():
        if each.is_near_limit and not each.unit.startswith("lightagent"):
            yield Finding(limit_sentence(each), f"memory of {each.unit}", severity=WARNING)


def limit_sentence(each: Group) -> str:
    return f"{each.unit} has {human(each.anonymous)} of the {human(each.limit)} that its MemoryMax= allows."


def _group(folder: str, unit: str) -> Group:
    stats = dict(line.split() for line in (read(f"{folder}/memory.stat") or "").splitlines() if " " in line)
    events = dict(
        line.split() for line in (read(f"{folder}/memory.events") or "").splitlines() if " " in line
    )
    limit = (read(f"{folder}/memory.max") or "max").strip()
    return Group(
        unit,
        int(stats.get("anon", 0)),
        int((read(f"{folder}/memory.current") or "0").strip() or 0),
        int(limit) if limit.isdigit() else 0,
        int(events.get("oom_kill", 0)),
    )


def _limit(kill: Kill) -> str:
    """` of 64 MiB`: the limit that the unit has now."""
    for each in groups():
        if each.limit and each.unit == (_unit_in(kill.limited) or kill.unit):
            return f" of {human(each.limit)}"
    return ""


def _unit_in(cgroup: str) -> str:
    parts = [part for part in cgroup.split("/") if part.endswith((".service", ".scope", ".slice"))]
    return parts[-1] if parts else ""


def _is_trusted(entry: dict[str, Any]) -> bool:
    """Whether the kernel, systemd or root wrote it: anybody may write such words to the journal."""
    if entry.get("_TRANSPORT") == "kernel" or entry.get("_PID") == "1":
        return True
    names = ("kernel", "systemd-oomd", "earlyoom", "systemd")
    return entry.get("SYSLOG_IDENTIFIER") in names and entry.get("_UID", "0") == "0"
