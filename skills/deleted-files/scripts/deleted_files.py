"""Says which deleted files are still open and keep their space, and by whom. Only observes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import mounts, space
from checks import prompt
from report import Report, human, options, plural, refuse, run

_ROWS = 30


def make(report: Report) -> None:
    path = (
        options(str(__doc__), path="only deleted files of this file system, or below this folder").path or "/"
    )
    if not path.startswith("/"):
        refuse(f"--path={path} is not an absolute path.")
    held, hidden = space.deleted_files()
    held = [each for each in held if mounts.within(each.path, path)]
    where = "" if path == "/" else f" below {path}"
    total = sum(each.size for each in held)
    if held:
        size, group = space.by_holder(held)[0]
        files = f"{plural(len(held), 'deleted file')}{where} {'is' if len(held) == 1 else 'are'} still open"
        report.finding = f"{files} and {'keeps' if len(held) == 1 else 'keep'} {human(total)}"
        if len(held) > 1:
            report.finding += f", most of it ({human(size)}) held by {group[0].holder}"
        else:
            report.finding += f", held by {group[0].holder}: {group[0].path}"
        report.finding += "." if total >= space.MUCH_BYTES else ": too little to matter."
        if unit := procfs.unit_of(group[0].pid):
            report.next = prompt(f"status of {unit}")
            report.text(
                "To free the space", f"Restart {unit}, or have it open its files anew (often: reload)."
            )
    elif hidden:
        report.finding = (
            f"No deleted file{where} is open in the processes that can be seen from here, which are not all."
        )
    else:
        report.finding = f"No deleted file{where} is still open: nothing keeps space in this way."
        report.found_nothing = path != "/"
    report.table(
        "Deleted files that are still open",
        ("Size", "Pid", "Process", "Unit", "File"),
        [
            (human(each.size), each.pid, procfs.name(each.pid), procfs.unit_of(each.pid), each.path)
            for each in held[:_ROWS]
        ],
    )
    report.note(procfs.hidden_processes())


run(make)
