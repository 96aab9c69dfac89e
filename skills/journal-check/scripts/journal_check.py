"""Says how the journal is: size, whether it outlives a reboot, damage, dropped messages. Only observes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import boot
from areas import journal as area
from checks import prompt
from commands import journal
from report import Report, human, options, plural, run, shorten, span


def make(report: Report) -> None:
    options(str(__doc__))
    newest, problem = journal(limit=1, timeout_s=5)
    report.note(problem)
    disk, memory = area.usage()
    kept = area.is_kept()
    dropped, unknown = area.dropped("-7d")
    report.note(unknown)
    damaged = area.unreadable_files()
    if not newest:
        report.finding = f"The journal cannot be judged: {problem or 'it has no entries.'}"
        return
    where = {
        True: "is kept on disk",
        False: "is kept in memory only, and lost at a reboot",
        None: "is there",
    }[kept]
    known = boot.boots()
    reach = f", back to {clock.show(known[0].first)[:16]}" if known else ""
    state = f"the journal takes {human(disk + memory)}, {where}{reach}"
    wrong = []
    if damaged:
        wrong.append(
            f"{plural(len(damaged), 'file')} of the journal cannot be read: {shorten(damaged[0], 110)}"
        )
    if dropped:
        first = dropped[0]
        ago = span(time.time() - first.last)
        wrong.append(
            f"the journal dropped {first.count} messages of {first.source}, the last {ago} ago (rate limit)"
        )
    report.finding = "; ".join([*wrong, state]) + "."
    report.finding = report.finding[0].upper() + report.finding[1:]
    if dropped:
        report.next = prompt(f"errors of {dropped[0].source}")
    elif kept is False:
        report.next = "mkdir -p /var/log/journal && systemctl restart systemd-journald"
    rows = [(one.source, one.count, clock.show(one.last)) for one in dropped]
    report.table("Messages dropped in 7 days", ("Unit", "Messages", "Last"), rows)
    report.lines("Files that cannot be read", damaged)
    aside = area.set_aside()
    if aside:
        newest_file = max(path.stat().st_mtime for path in aside)
        report.text(
            "Files set aside",
            f"{plural(len(aside), 'file')} were damaged or not closed at a crash, the last on "
            f"{clock.show(newest_file)}: what can be read of them still is.",
        )
    report.text("Size", f"On disk {human(disk)}, in memory {human(memory)}. {area.limits()}")
    report.text("Boots", f"It holds {plural(len(known), 'boot')}.")


run(make)
