"""Says who is near a limit: open files, tasks, process ids, inotify, tracked connections. Only observes."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import limits
from areas.limits import Use
from causes import process
from checks import CannotSee, prompt
from clock import show
from report import Report, options, plural, refuse, run, shorten
from systemd_units import named, unit_name

_NEAR = 0.8


def gathered(report: Report) -> list[Use]:
    """Every use of a limit that can be seen, the nearest first."""
    files, hidden = limits.descriptors()
    if hidden:
        report.note(f"The open files of {plural(hidden, 'process')} cannot be seen.")
    watches, unseen = limits.inotify()
    if unseen:
        report.note(f"The inotify watches of {plural(unseen, 'process')} cannot be seen.")
    uses = [*files, *limits.machine(), *limits.user_tasks(), *watches]
    try:
        uses += limits.tasks()
    except CannotSee as err:
        report.note(f"The tasks of units cannot be seen: {err}")
    return sorted(uses, key=lambda use: -use.share)


def of_pid(pid: int, uses: list[Use], report: Report) -> list[Use]:
    if not Path(f"/proc/{pid}").exists():
        report.finding = f"There is no process {pid}."
        report.found_nothing = True
        return []
    unit = procfs.unit_of(pid)
    targets = (procfs.descriptors(pid) or {}).values()
    kinds = Counter(target.partition(":")[0] if ":[" in target else "file" for target in targets)
    report.table("What it has open", ("Kind", "Count"), kinds.most_common(10))
    return [use for use in uses if use.pid == pid or (unit and use.unit == unit and not use.pid)]


def make(report: Report) -> None:
    asked = options(str(__doc__), unit="only this unit", pid="only this process")
    if asked.pid is not None and not re.fullmatch(r"[1-9]\d{0,6}", asked.pid):
        refuse(f"--pid={asked.pid} is not the id of a process.")
    if asked.unit is not None and not re.fullmatch(r"[\w][\w:.\\@-]*", asked.unit):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    uses = gathered(report)
    about = ""
    if asked.pid:
        about = process(int(asked.pid))
        uses = of_pid(int(asked.pid), uses, report)
    elif asked.unit:
        about = unit_name(asked.unit)
        found = named(about)
        if found and found[0]["LoadState"] == "not-found":
            report.finding = f"There is no unit {about} on this machine."
            report.found_nothing = True
        uses = [use for use in uses if use.unit == about]
    if report.found_nothing:
        return
    said, problem = limits.refused("-1d")
    report.note(problem)
    if asked.unit or asked.pid:
        unit = about if asked.unit else procfs.unit_of(int(asked.pid))
        said = {name: row for name, row in said.items() if name == unit}
    near = [use for use in uses if use.share >= _NEAR]
    report.finding = headline(near, said, uses, about)
    first = next((use for use in near if use.unit), None)
    if first or said:
        report.next = prompt(f"status of {first.unit if first else next(iter(said))}")
    elif near and near[0].setting.startswith(("fs.", "kernel.", "net.")):
        report.next = f"sysctl {near[0].setting}"
    rows = [(f"{use.share:.0%}", use.used, use.limit, use.what, use.who, use.setting) for use in uses[:20]]
    report.table("Nearest to their limit", ("Share", "Used", "Limit", "Of", "Who", "Setting"), rows)
    told = [(name, count, show(when), shorten(text, 110)) for name, (count, when, text) in said.items()]
    report.table("Who logged that a limit was reached", ("Unit", "Count", "Last", "Newest message"), told)


def headline(near: list[Use], said: dict[str, tuple[int, float, str]], uses: list[Use], about: str) -> str:
    whose = f" of {about}" if about else ""
    texts = [use.told() for use in near]
    for name, (count, when, text) in said.items():
        times = plural(count, "time")
        texts.append(f'{name} reached a limit {times}, the last on {show(when)}: "{shorten(text, 100)}".')
    if len(texts) == 1:
        return texts[0]
    if texts:
        return f"{plural(len(texts), 'limit')}{whose} are near or reached; the first: {texts[0]}"
    if not uses:
        return f"Nothing is known about the limits{whose}: it runs no process, or they cannot be seen."
    top = uses[0]
    used = f"{top.used} of {top.limit} {top.what} ({top.share:.0%})"
    return f"No limit{whose} is near: the nearest is {top.who.replace('The user', 'the user')} with {used}."


run(make)
