"""Says which backups this machine makes, when each ran last, and how it ended. Only observes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import backups
from areas.backups import Job
from headline import tell
from report import Report, options, plural, refuse, run, shorten, span


def state(jobs: list[Job]) -> str:
    """The sentence where no backup has a fault."""
    ran = sorted((job for job in jobs if job.last), key=lambda job: job.last or 0)
    if not ran:
        waits = [job for job in jobs if job.next]
        when = f"; {waits[0].name} runs first {clock.show(waits[0].next or 0)}" if waits else ""
        return (
            f"{plural(len(jobs), 'backup')} {'is' if len(jobs) == 1 else 'are'} set up, none ran yet{when}."
        )
    last = ran[-1]
    ago = span(time.time() - (last.last or 0))
    began = f"{last.service} began {ago} ago ({clock.show(last.last or 0)}) and {last.result}"
    if last.result == "began":
        began = f"{last.name} began {ago} ago ({clock.show(last.last or 0)}); how it ended is not recorded"
    return f"{began}." if len(jobs) == 1 else f"No fault in {len(jobs)} backups; the last: {began}."


def make(report: Report) -> None:
    asked = options(str(__doc__), unit="only this unit")
    if asked.unit is not None and (asked.unit.startswith("-") or not asked.unit.isprintable()):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    jobs, unread = backups.all_jobs()
    for sentence in unread:
        report.note(sentence)
    if asked.unit:
        stem = asked.unit.rpartition(".")[0] or asked.unit
        jobs = [job for job in jobs if job.name.rpartition(".")[0] == stem or stem in job.name]
    if not jobs:
        where = f"{asked.unit} is not" if asked.unit else "No timer, service or cron table here is"
        report.finding = (
            f"{where} a backup by its name (restic, borg, rsnapshot, pg_dump, backup and others)."
        )
        report.found_nothing = bool(asked.unit)
        return
    bad = next((job for job in jobs if job.failed), None)
    look = (
        f"journalctl -u {bad.service}"
        if bad and bad.source in ("timer", "service")
        else "systemctl list-timers"
    )
    tell(report, backups.faults(jobs), state(jobs), look=look, own=backups.ASK)
    report.table(
        "Backups",
        ("Backup", "Started by", "Last run", "Result", "Next", "Every"),
        [
            (
                shorten(job.name, 60),
                job.source if job.is_on else f"{job.source} (off)",
                clock.show(job.last) if job.last else "-",
                shorten(job.result, 60),
                clock.show(job.next) if job.next else "-",
                span(job.period_s) if job.period_s else "-",
            )
            for job in jobs
        ],
    )


run(make)
