"""Says how the last boot went, what failed, and whether the shutdown before was clean. Only observes."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from commands import journal, message, read, stamp, systemd_problem
from commands import run as run_command
from report import Report, options, plural, run, shorten, span

_ROWS = 15
_SHUTDOWN = re.compile(
    r"Reached target .*(?:Shutdown|Power.?Off|Reboot|Halt)|System is (?:powering down|rebooting)|"
    r"Journal stopped|"
    r"systemd-shutdown|Shutting down\.|Powering off|The system will (?:reboot|power off)",
    re.I,
)
_PANIC = re.compile(r"Kernel panic|Oops:|BUG: |Out of memory", re.I)


def failed_units() -> list[str]:
    answer = run_command("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")
    return [line.split()[0] for line in answer.stdout.splitlines() if line.split()]


def duration(report: Report) -> str:
    """What systemd-analyze says in its first line, such as `7.1s (kernel) + ...`."""
    answer = run_command("systemd-analyze", "time")
    if answer.problem:
        report.note(answer.problem)
        return ""
    first = answer.stdout.splitlines()[0] if answer.stdout else ""
    return first.replace("Startup finished in ", "").strip()


def slow_units() -> list[tuple[str, str]]:
    answer = run_command("systemd-analyze", "blame", "--no-pager")
    rows = [line.strip().rpartition(" ") for line in answer.stdout.splitlines()[:_ROWS]]
    return [(taken, unit) for taken, _, unit in rows]


def boots() -> list[dict[str, int]]:
    """The boots in the journal, oldest first, with the first and last entry in microseconds since 1970."""
    answer = run_command("journalctl", "--list-boots", "-o", "json", "--no-pager")
    try:
        found = json.loads(answer.stdout or "[]")
    except ValueError:
        return []
    return [boot for boot in found if isinstance(boot, dict)]


def shutdown_before(report: Report) -> str:
    """A sentence on how the boot before ended, or an empty string where nothing is known."""
    entries, problem = journal("-b", "-1", limit=60, timeout_s=15)
    if problem or not entries:
        report.note("How the boot before ended: the journal has no earlier boot, or it cannot be read.")
        return ""
    ended = clock.show(stamp(entries[-1]))
    texts = [message(entry) for entry in entries]
    panic = next((text for text in texts if _PANIC.search(text)), "")
    if any(_SHUTDOWN.search(text) for text in texts):
        return f"the boot before ended with a clean shutdown at {ended}"
    report.lines("The last lines before the machine went down", [shorten(text, 200) for text in texts[-8:]])
    if panic:
        return f'the boot before ended at {ended} after "{shorten(panic, 80)}"'
    return f"the boot before ended at {ended} without a clean shutdown: power loss, reset or crash"


def errors(report: Report) -> list[tuple[str, str, str]]:
    """Errors of this boot, each text once."""
    entries, problem = journal("-b", "-p", "err", limit=500)
    report.note(problem)
    found: dict[str, tuple[str, str, str]] = {}
    for entry in entries:
        source = str(entry.get("_SYSTEMD_UNIT") or entry.get("SYSLOG_IDENTIFIER") or "kernel")
        found.setdefault(
            re.sub(r"\d+", "#", message(entry)),
            (clock.show(stamp(entry)), source, shorten(message(entry), 160)),
        )
    return list(found.values())


def make(report: Report) -> None:
    options(str(__doc__))
    booted = clock.boot_time()
    words = f"The machine booted {clock.show(booted)}, {span(time.time() - booted)} ago"
    problem = systemd_problem()
    failed: list[str] = []
    if problem:
        report.note(f"{problem} Failed and slow units are not known.")
    else:
        failed, taken = failed_units(), duration(report)
        words += f"; it took {taken.rpartition('= ')[2].split(' ')[0]}" if "= " in taken else ""
        words += (
            f"; {plural(len(failed), 'unit')} failed: {', '.join(failed[:5])}"
            if failed
            else "; no unit failed"
        )
        report.table("Failed units", ("Unit",), [(unit,) for unit in failed])
        report.table("Slowest units", ("Time", "Unit"), slow_units())
        report.text("Duration", taken or "systemd-analyze does not know it yet.")
    before = shutdown_before(report)
    report.finding = words + (f"; {before}." if before else ".")
    report.table("Errors since boot", ("Time", "Source", "Message"), errors(report)[:_ROWS])
    rows = [
        (
            boot.get("index", "?"),
            clock.show(int(boot.get("first_entry", 0)) / 1e6),
            clock.show(int(boot.get("last_entry", 0)) / 1e6),
        )
        for boot in boots()[-10:]
    ]
    report.table("Boots in the journal", ("Boot", "First entry", "Last entry"), rows)
    report.text("Kernel", (read("/proc/version") or "unknown").strip())


run(make)
