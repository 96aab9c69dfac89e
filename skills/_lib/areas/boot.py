"""Boots: when, how long, how the one before ended, and whether this one is done."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import clock
from checks import WARNING, Finding, check
from commands import journal, message, run, stamp
from report import plural, shorten, span
from systemd_units import loaded, moment, seconds

_RECENT_S = 86400.0
_LONG_S = 300.0
_SHUTDOWN = re.compile(
    r"Reached target .*(?:Shutdown|Power.?Off|Reboot|Halt)|System is (?:powering down|rebooting)|"
    r"Journal stopped|systemd-shutdown|Shutting down\.|Powering off|"
    r"The system will (?:reboot|power off|be halted)",
    re.I,
)
_PANIC = re.compile(
    r"Kernel panic|Oops:|BUG: |Out of memory|watchdog.*(?:reboot|did not stop)|thermal.*shut", re.I
)
_ASKED = re.compile(
    r"(?P<sudo>\S+) : .*COMMAND=(?P<line>\S*(?:reboot|shutdown|poweroff|halt|systemctl (?:power|kexec)).*)|"
    r"The system will (?:reboot|power off|be halted).*|Power key pressed.*|"
    r".*(?:unattended-upgrades|needrestart).*reboot.*",
    re.I,
)


@dataclass(frozen=True)
class Boot:
    """A boot in the journal: its offset (0 is this one), first and last entry in seconds since 1970."""

    index: int
    first: float
    last: float


def boots() -> list[Boot]:
    """The boots in the journal, oldest first."""
    answer = run("journalctl", "--list-boots", "-o", "json", "--no-pager", "-q")
    try:
        rows = json.loads(answer.stdout or "[]")
        return [Boot(row["index"], row["first_entry"] / 1e6, row["last_entry"] / 1e6) for row in rows]
    except (ValueError, KeyError, TypeError):
        pattern = r"^\s*(-?\d+) \w{32} \w{3} (\S+ \d\d:\d\d):\d\d \S+\s*[-—]\s*\w{3} (\S+ \d\d:\d\d):"
        found = (re.match(pattern, line) for line in answer.stdout.splitlines())
        return [Boot(int(one[1]), clock.since(one[2]), clock.since(one[3])) for one in found if one]


@dataclass(frozen=True)
class End:
    """How a boot ended: cleanly or not, perhaps with a last word; who asked for it; its last lines."""

    when: float
    clean: bool
    panic: str
    asked: str
    lines: tuple[str, ...]

    def told(self) -> str:
        when = clock.show(self.when)
        if self.clean:
            asked = f" ({self.asked})" if self.asked else ""
            return f"the shutdown before was clean, at {when}{asked}"
        if self.panic:
            return f'the boot before ended at {when} after "{shorten(self.panic, 90)}"'
        return f"the boot before ended at {when} without a clean shutdown: power loss, reset or crash"


def end_before(offset: int = -1) -> tuple[End | None, str]:
    """How a boot before this one ended, or None and why that is not known."""
    entries, problem = journal("-b", str(offset), limit=250, timeout_s=8)
    if any(said in problem for said in ("No journal boot entry", "No such boot ID", "no persistent journal")):
        problem = "the journal has no earlier boot."
    if not entries:
        return (
            None,
            f"How the boot before ended is not known: {problem or 'the journal has no earlier boot.'}",
        )
    return ended([message(entry) for entry in entries], stamp(entries[-1])), ""


def ended(texts: list[str], when: float) -> End:
    """How a boot ended, from its last messages."""
    asked = ""
    for text in reversed(texts):
        match = _ASKED.search(text)
        if match and match["sudo"]:
            asked = f"{match['sudo']} ran {shorten(match['line'], 60)}"
            break
        asked = asked or (shorten(match[0], 90) if match else "")
    clean = any(_SHUTDOWN.search(text) for text in texts[-120:])
    panic = next((text for text in reversed(texts) if _PANIC.search(text)), "")
    return End(when, clean, panic, asked, tuple(texts[-8:]))


def system_state() -> str:
    """`running`, `degraded`, `starting`, `maintenance` and so on; see systemctl(1), is-system-running."""
    return run("systemctl", "show", "--property=SystemState", "--value", timeout_s=5).stdout.strip()


def jobs() -> list[tuple[str, str, str]]:
    """What systemd has yet to do: (unit, type, state)."""
    answer = run("systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain", timeout_s=5)
    rows = [line.split() for line in answer.stdout.splitlines()]
    return [(row[1], row[2], row[3]) for row in rows if len(row) >= 4]


def duration() -> tuple[str, float | None]:
    """What `systemd-analyze time` says, and how many seconds the boot took."""
    answer = run("systemd-analyze", "time")
    if answer.problem:
        return answer.problem, None
    first = answer.stdout.splitlines()[0] if answer.stdout else ""
    text = first.replace("Startup finished in ", "").strip()
    return text, seconds_of(text.rpartition("= ")[2] if "= " in text else text)


def seconds_of(text: str) -> float | None:
    return seconds(text.split("(")[0])


def began() -> float:
    """When this system booted; in a container that is later than its kernel."""
    return _manager()[0] or clock.boot_time()


def _manager() -> tuple[float | None, float | None]:
    """When the first process began, and when the boot was done."""
    wanted = ("UserspaceTimestamp", "FinishTimestamp", "KernelTimestamp")
    text = run("systemctl", "show", f"--property={','.join(wanted)}", timeout_s=5).stdout
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    begin, done, kernel = (moment(found.get(name, "")) for name in wanted)
    return kernel or begin, done


def slow_units() -> list[tuple[str, float]]:
    """Units of the boot by how long they took to start, the slowest first, in seconds."""
    answer = run("systemd-analyze", "blame", "--no-pager")
    rows = [line.strip().rpartition(" ") for line in answer.stdout.splitlines()]
    done = _manager()[1]
    later = {
        unit.name
        for unit in loaded().values()
        if done and (moment(unit["InactiveExitTimestamp"]) or 0) > done + 1
    }
    return [(unit, seconds_of(taken) or 0.0) for taken, _, unit in rows if unit not in later]


@check("boot.done", "whether the boot is done")
def done() -> Iterator[Finding]:
    state, up = system_state(), time.time() - began()
    if state == "maintenance":
        yield Finding("The machine is in rescue or emergency mode: the boot failed.", "what failed at boot")
    elif state == "starting" and up > _LONG_S:
        running = [unit for unit, _, state in jobs() if state == "running"]
        what = f": it waits for {', '.join(running[:3])}" if running else ""
        text = f"The boot is not done after {span(up)}{what}."
        yield Finding(text, "what failed at boot", began())


@check("boot.before", "shutdowns that were not clean, and boots one after the other")
def before() -> Iterator[Finding]:
    known = boots()
    recent = [boot for boot in known if boot.first > time.time() - 3600]
    if len(recent) > 3:
        text = f"The machine booted {plural(len(recent), 'time')} in the last hour."
        yield Finding(text, "why did it reboot", recent[0].first)
    if len(known) < 2 or known[-1].first < time.time() - _RECENT_S:
        return
    end, _ = end_before()
    if end and not end.clean:
        text = f"The machine was not shut down cleanly: {end.told()}."
        yield Finding(text, "why did it reboot", end.when, WARNING)
