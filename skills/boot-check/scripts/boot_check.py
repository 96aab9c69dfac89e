"""Says how the boot went, what failed and what was slow, and how the one before ended. Only observes."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import boot, units
from checks import CannotSee, prompt
from commands import read, systemd_problem
from commands import run as run_command
from report import Report, options, plural, run, shorten, span
from systemd_units import Unit, loaded

_ROWS, _ENDS = 10, 5
_IN_BOOT_S = 180.0


def failed_in_boot(booted: float) -> list[Unit]:
    """The units that have failed since about then, and not long after the boot."""
    failed = [unit for unit in loaded().values() if units.is_failed(unit) or unit.restarts_itself]
    return [unit for unit in failed if not unit.changed or unit.changed < booted + _IN_BOOT_S]


def state_words(report: Report) -> str:
    """What is not done in this boot, as a clause; empty where it is."""
    state = boot.system_state()
    if state == "maintenance":
        return "it is in rescue or emergency mode"
    waiting = boot.jobs()
    if state != "starting":
        return ""
    report.table("What systemd has yet to do", ("Unit", "Job", "State"), waiting[:_ROWS])
    running = [unit for unit, _, job in waiting if job == "running"]
    return f"it is not done: it waits for {', '.join(running[:3]) or 'its jobs'}"


def _end(index: int) -> str:
    """How a boot ended, in a few words."""
    if index == 0:
        return "runs"
    end, _ = boot.end_before(index)
    if end is None:
        return "?"
    return (end.asked or "cleanly") if end.clean else shorten(end.panic, 50) or "not cleanly"


def make(report: Report) -> None:
    options(str(__doc__))
    booted = boot.began()
    words = [f"The machine booted {clock.show(booted)}, {span(time.time() - booted)} ago"]
    if problem := systemd_problem():
        report.note(f"{problem} Failed and slow units are not known.")
    else:
        words += _with_systemd(report, booted)
    end, unknown = boot.end_before()
    if end is None:
        words.append(unknown[0].lower() + unknown[1:].rstrip("."))
    else:
        words.append(end.told())
        if not end.clean:
            report.lines(
                "The last lines before the machine went down", [shorten(one, 150) for one in end.lines]
            )
    report.finding = "; ".join(words) + "."
    known = boot.boots()[::-1]
    rows = [
        (clock.show(one.first)[:16], span(one.last - one.first), _end(one.index) if number < _ENDS else "")
        for number, one in enumerate(known[:10])
    ]
    report.table("Boots in the journal, this one first", ("Began", "Lasted", "How it ended"), rows)
    report.text("Kernel", shorten(read("/proc/version") or "unknown", 100))


def _with_systemd(report: Report, booted: float) -> list[str]:
    words = []
    text, taken = boot.duration()
    slow = [(unit, took) for unit, took in boot.slow_units() if took >= 0.1][:_ROWS]
    if taken is not None:
        words.append(
            f"it took {taken:.1f} s"
            + (f", most of it {slow[0][0]} ({slow[0][1]:.1f} s)" if slow and slow[0][1] > 1 else "")
        )
    else:
        report.note(text)
    if state := state_words(report):
        words.append(state)
    try:
        failed = failed_in_boot(booted)
    except CannotSee as err:
        report.note(str(err))
        failed = []
    if failed:
        names = ", ".join(unit.name for unit in failed[:5])
        words.append(f"{plural(len(failed), 'unit')} failed in it: {names}")
        report.next = prompt(f"why is {failed[0].name} down")
        report.text("Failed in this boot", *(f"- {units.failure(unit)}" for unit in failed[:8]))
    else:
        words.append("no unit failed in it")
    report.table("Slowest units", ("Unit", "Seconds"), [(unit, f"{took:.1f}") for unit, took in slow])
    chain = run_command("systemd-analyze", "critical-chain", "--no-pager", timeout_s=5)
    lines = [one for one in chain.stdout.splitlines() if re.match(r"\W*[\w.@\\-]+ [+@]", one)]
    report.lines("What the boot waited for (systemd-analyze critical-chain)", lines[:8])
    return words


run(make)
