"""The kernel: oopses, hung tasks, lockups, hardware errors, heat, taint, and programs that crashed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import kernel_log
from checks import PROBLEM, WARNING, Finding, check
from commands import read
from report import plural, shorten, span

DAY_S = 86400.0
_ASK = "is the kernel ok"


@dataclass(frozen=True)
class Kind:
    """A kind of message: how it is told, and how bad it is; group 1 of the pattern names who or what."""

    about: str
    pattern: re.Pattern[str]
    severity: str = PROBLEM


KINDS = (
    Kind(
        "The kernel had an oops",
        re.compile(
            r"(?:kernel )?BUG(?:: | at )(?!workqueue)(?!soft)|Oops[: ]|general protection fault, |"
            r"Kernel panic|[Uu]nable to handle (?:kernel |page )"
        ),
    ),
    Kind("A processor hung", re.compile(r"soft lockup|[Hh]ard LOCKUP|detected stalls|self-detected stall")),
    Kind("Tasks hung without answer from the kernel", re.compile(r"task (\S+?):\d+ blocked for more than")),
    Kind(
        "The hardware reported errors",
        re.compile(r"Hardware Error\]|[Mm]achine [Cc]heck (?!.*(?:polling|enabled))|EDAC (MC\d+): \d+ [CU]E"),
    ),
    Kind(
        "The processor is throttled, because it is too hot",
        re.compile(r"(?i)temperature above threshold|clock throttled|critical temperature"),
        WARNING,
    ),
    Kind(
        "Programs crashed",
        re.compile(r"^(?:traps: )?(\S+?)\[\d+\]:? (?:segfault at|general protection|trap |bad frame)"),
        WARNING,
    ),
)
TAINTS = {
    0: "a proprietary module",
    1: "a module was forced in",
    4: "a machine check (hardware error)",
    5: "a bad memory page",
    7: "an oops",
    9: "a kernel warning",
    12: "a module from outside the kernel",
    13: "an unsigned module",
    14: "a lockup",
    15: "a live patch",
}
"""What the bits of /proc/sys/kernel/tainted say; see the kernel's admin-guide/tainted-kernels."""
_GRAVE = (4, 5, 7, 14)


@dataclass
class Group:
    """Messages of one kind; `who` counts by program or device."""

    kind: Kind
    count: int
    who: dict[str, int]
    last: float
    text: str

    def told(self) -> str:
        who = ", ".join(f"{name} {plural(count, 'time')}" for name, count in self.who.items())
        when = f"{span(time.time() - self.last)} ago"
        if who:
            return f"{self.kind.about}: {who}, the last {when}."
        count = plural(self.count, "message")
        return f'{self.kind.about} ({count}, the last {when}): "{shorten(self.text, 120)}".'


def groups(lines: Iterable[kernel_log.Line]) -> list[Group]:
    """What the kernel's messages report, by kind."""
    found: dict[str, Group] = {}
    for when, text in lines:
        kind = next((kind for kind in KINDS if kind.pattern.search(text)), None)
        if kind is None:
            continue
        group = found.setdefault(kind.about, Group(kind, 0, {}, when, text))
        match = kind.pattern.search(text)
        if match and match.groups() and match[1]:
            group.who[match[1]] = group.who.get(match[1], 0) + 1
        group.count += 1
        group.last = max(when, group.last)
    return [found[kind.about] for kind in KINDS if kind.about in found]


def taints() -> list[int]:
    value = (read("/proc/sys/kernel/tainted") or "0").strip()
    return [bit for bit in range(20) if int(value) >> bit & 1] if value.isdigit() else []


def memory_errors() -> list[tuple[str, int, int]]:
    """Errors that the memory controllers counted: (name, corrected, uncorrected)."""
    found = []
    for folder in sorted(Path("/sys/devices/system/edac/mc").glob("mc[0-9]*")):
        counts = [(read(str(folder / name)) or "0").strip() for name in ("ce_count", "ue_count")]
        if all(count.isdigit() for count in counts):
            found.append((folder.name, int(counts[0]), int(counts[1])))
    return found


def temperatures() -> list[tuple[str, float, float | None]]:
    """Thermal zones: (type, degrees Celsius now, the critical trip point or None)."""
    found = []
    for zone in sorted(Path("/sys/class/thermal").glob("thermal_zone*")):
        now = (read(str(zone / "temp")) or "").strip()
        if not now.lstrip("-").isdigit():
            continue
        limit = None
        for kind in zone.glob("trip_point_*_type"):
            if (read(str(kind)) or "").strip() == "critical":
                value = (read(str(kind).replace("_type", "_temp")) or "").strip()
                limit = int(value) / 1000 if value.isdigit() and int(value) > 0 else None
        found.append(((read(str(zone / "type")) or zone.name).strip(), int(now) / 1000, limit))
    return found


@check("kernel.state", "taint, memory errors and temperature")
def state() -> Iterator[Finding]:
    if kernel_log.is_container():
        return
    for name, corrected, uncorrected in memory_errors():
        if uncorrected or corrected > 100:
            text = (
                f"The memory controller {name} counted {corrected} corrected and {uncorrected} other errors."
            )
            yield Finding(text, _ASK, severity=PROBLEM if uncorrected else WARNING)
    for name, now, limit in temperatures():
        if limit and now > limit - 5:
            text = f"The sensor {name} is at {now:.0f} °C; the machine turns off at {limit:.0f} °C."
            yield Finding(text, _ASK)
    grave = [TAINTS[bit] for bit in taints() if bit in _GRAVE]
    if grave:
        yield Finding(f"The kernel has run since boot after {', '.join(grave)}: restart the machine.", _ASK)


@check("kernel.log", "oopses, hung tasks, hardware errors, throttling and segfaults")
def log() -> Iterator[Finding]:
    for group in groups(kernel_log.lines(time.time() - DAY_S)):
        yield Finding(group.told(), _ASK, group.last, group.kind.severity)
