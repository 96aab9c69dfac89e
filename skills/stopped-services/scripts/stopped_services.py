"""Says which enabled services do not run, and who or what stopped one. Only observes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import units
from checks import CannotSee, prompt
from clock import show
from commands import journal, message, stamp
from report import Report, options, plural, refuse, run, shorten
from systemd_units import Unit, enabled, loaded, named, unit_name


def one(name: str, report: Report) -> None:
    found = named(name)
    if not found or found[0]["LoadState"] == "not-found":
        report.finding = f"There is no unit {name} on this machine."
        report.found_nothing = True
        return
    unit = found[0]
    report.finding = told(unit)
    report.next = (
        prompt(f"why is {unit.name} down")
        if units.is_failed(unit)
        else shlex.join(["systemctl", "status", unit.name])
    )
    entries, problem = journal("-b", "-u", unit.name, "JOB_TYPE=stop", limit=20, timeout_s=5)
    rows = [(show(stamp(entry)), shorten(message(entry), 90)) for entry in entries]
    report.table("Stops in this boot", ("When", "What systemd logged"), rows)
    report.note(problem)
    around(unit, report)


def told(unit: Unit) -> str:
    """Whether it runs, and how it came to its end if not."""
    if units.is_failed(unit) or unit.restarts_itself:
        return f"{unit.name} was not stopped: it failed. {units.failure(unit)}"
    if unit["ActiveState"] == "inactive":
        how, when = units.stopper(unit)
        word = {"disabled": " (it is not set to start at boot)", "masked": " (it is masked)"}
        return f"{unit.name} {how}{units.ago(when)}{word.get(unit['UnitFileState'], '')}."
    since = f" since {show(unit.changed)}" if unit.changed else ""
    end = units.last_stop(unit.name)
    before = f"; before that it was stopped{end}" if end else ""
    return f"{unit.name} runs{since}{before}."


def around(unit: Unit, report: Report) -> None:
    """What else was logged around its stop: commands with sudo, logins, packages."""
    when = unit.changed
    if unit.is_active or not when:
        return
    lines, _ = journal(
        "--since", f"@{int(when) - 90}", "--until", f"@{int(when) + 2}", limit=300, timeout_s=5
    )
    word = re.compile(r"sudo|polkit|session|systemctl|apt|dpkg|Stopp|shutdown|isolate", re.I)
    found = [
        f"{show(stamp(entry))[11:]} {shorten(message(entry), 150)}"
        for entry in lines
        if word.search(message(entry))
    ]
    report.lines("What was logged around then", found[-15:])


def make(report: Report) -> None:
    name = options(str(__doc__), unit="the unit that was stopped; without it all that do not run").unit
    if name is not None and not re.fullmatch(r"[\w][\w:.\\@-]*", name):
        refuse(f"--unit={name} is not the name of a unit.")
    try:
        known = loaded()
        if name:
            one(unit_name(name), report)
            return
        should = enabled()
    except CannotSee as err:
        report.finding = f"Which services do not run cannot be said: {err}"
        return
    stopped = units.not_running(known, should)
    failed = [unit for unit in should if units.is_failed(unit) or unit.restarts_itself]
    rows = [(unit.name, *_how(unit)) for unit in stopped]
    names = [unit.name for unit in (*failed, *stopped)]
    if not names:
        running = sum(1 for unit in should if unit.is_active)
        report.finding = f"Every enabled unit that should run does: {plural(running, 'unit')}."
        return
    if len(names) == 1 and stopped:
        how, when = units.stopper(stopped[0])
        report.finding = f"1 enabled unit does not run: {names[0]} {how}{units.ago(when)}."
    elif len(names) == 1:
        report.finding = f"1 enabled unit does not run: {units.failure(failed[0])}"
    else:
        some = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        report.finding = (
            f"{plural(len(names), 'enabled unit')} {'do' if len(names) > 1 else 'does'} not run: {some}."
        )
    report.next = prompt(f"why is {failed[0].name} down" if failed else f"who stopped {stopped[0].name}")
    report.table("Enabled and stopped", ("Unit", "How it ended", "When"), rows)
    report.table("Enabled and failed", ("Unit", "Result"), [(unit.name, unit["Result"]) for unit in failed])


def _how(unit: Unit) -> tuple[str, str]:
    how, when = units.stopper(unit)
    return how, show(when) if when else "-"


run(make)
