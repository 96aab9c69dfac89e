"""Says which processes are zombies, stopped or hang, or what a user or a pid runs. Only observes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import processes
from checks import prompt
from procfs import Stat
from report import Report, human, options, plural, refuse, run

_ROWS = 40


def states(report: Report) -> None:
    zombies, waiting, stopped = processes.lasting("Z"), processes.lasting("D", 0.3), processes.stopped()
    groups = processes.by_parent(zombies)
    found = [processes.waiting_sentence(each) for each in waiting]
    found += [processes.zombie_sentence(parent, group) for parent, group in groups]
    found += [processes.stopped_sentence(each) for each in stopped]
    rows = procfs.stats()
    if found:
        others = "" if len(found) == 1 else f" {len(found) - 1} more below."
        report.finding = found[0] + others
        report.table("All that is odd", ("Process",), [(each,) for each in found[1:_ROWS]])
        first = groups[0][0] if groups and not waiting else (waiting or stopped)[0].pid
        report.next = prompt(f"what does pid {first} do")
    else:
        report.finding = (
            f"No process is a zombie, stopped or hangs in the kernel: {plural(len(rows), 'process')} in all."
        )
    kernel = sum(each.is_kernel for each in rows)
    counts: dict[str, int] = {}
    for each in rows:
        if not each.is_kernel:
            counts[procfs.user_of(each.pid)] = counts.get(procfs.user_of(each.pid), 0) + 1
    report.table(
        "Processes of each user",
        ("User", "Processes"),
        [
            *sorted(counts.items(), key=lambda row: -row[1])[:10],
            *([("threads of the kernel", kernel)] if kernel else []),
        ],
    )


def table(title: str, rows: list[Stat], report: Report) -> None:
    report.table(
        title,
        ("Pid", "State", "Memory", "Runs for", "Unit", "Command"),
        [
            (
                each.pid,
                each.state,
                human(each.resident_bytes),
                processes.age(each),
                procfs.unit_of(each.pid),
                procfs.command(each.pid, 60),
            )
            for each in sorted(rows, key=lambda each: -each.resident_bytes)[:_ROWS]
        ],
    )


def of_user(user: str, report: Report) -> None:
    """Processes of a user, or of a name: people say `postgres` and mean either."""
    rows = [each for each in procfs.stats() if procfs.user_of(each.pid) == user]
    named = [each for each in procfs.stats() if user.lower() in each.name.lower()]
    if rows:
        names = sorted({each.name for each in rows})
        memory = human(sum(each.resident_bytes for each in rows))
        report.finding = (
            f"{user} runs {plural(len(rows), 'process')} with {memory} in all: {', '.join(names[:6])}."
        )
        table(f"Processes of {user}", rows, report)
    elif named:
        report.finding = (
            f"{plural(len(named), 'process')} {'is' if len(named) == 1 else 'are'} named like {user}: "
            f"{', '.join(procfs.who(each.pid) for each in named[:3])}."
        )
        table(f"Processes named like {user}", named, report)
    else:
        report.finding = f"No process of a user {user} runs, and none of that name."
        report.found_nothing = True


def one(pid: int, report: Report) -> None:
    each = procfs.stat(pid)
    if each is None:
        report.finding = f"There is no process {pid}."
        report.found_nothing = True
        return
    kind = {
        "Z": "is a zombie",
        "T": "is stopped",
        "t": "is traced",
        "D": "hangs in the kernel",
        "R": "runs now",
    }
    words = kind.get(each.state, "waits for something to do")
    children = [other for other in procfs.stats() if other.ppid == pid]
    report.finding = (
        f"{procfs.who(pid)} of the user {procfs.user_of(pid)} {words}, since {processes.age(each)}."
    )
    if each.state == "Z":
        report.finding = processes.zombie_sentence(each.ppid, [each])
    elif each.state == "D":
        report.finding = processes.waiting_sentence(each)
    elif each.state in "Tt":
        report.finding = processes.stopped_sentence(each)
    table(
        "The process, its parent and its children",
        [each, *filter(None, [procfs.stat(each.ppid)]), *children],
        report,
    )


def make(report: Report) -> None:
    asked = options(str(__doc__), pid="one process", user="processes of this user or name")
    if asked.pid is not None:
        if not (asked.pid.isdigit() and 0 < int(asked.pid) < 1 << 22):
            refuse(f"--pid={asked.pid} is not a pid.")
        one(int(asked.pid), report)
    elif asked.user is not None:
        of_user(asked.user, report)
    else:
        states(report)
    report.note(procfs.processes_are_whole())


run(make)
