"""Says when scheduled jobs last ran and run next, and which failed: timers and cron. Only observes."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import timers, units
from areas.timers import Timer
from checks import CannotSee, prompt
from clock import show
from commands import journal, message, stamp
from report import Report, options, plural, refuse, run, shorten, span
from systemd_units import Unit, loaded, named


def when(value: float | None, never: str) -> str:
    """`2026-01-31 14:00 (3 h ago)`."""
    if value is None:
        return never
    away = value - time.time()
    return f"{show(value)[:16]} ({f'in {span(away)}' if away > 0 else f'{span(-away)} ago'})"


def result(job: Unit | None) -> str:
    """How the job of a timer last ended, in a word or two."""
    if job is None:
        return "?"
    if job["LoadState"] in ("masked", "not-found"):
        return job["LoadState"]
    if units.is_failed(job):
        return f"failed ({job['Result']})"
    if job["ActiveState"] in ("active", "activating"):
        return "runs now"
    return "well" if job["InactiveEnterTimestamp"] else "not in this boot"


def told(one: Timer, job: Unit | None) -> str:
    """What is to be said of one timer in a sentence."""
    _, text = timers.trouble(one, job)
    runs = f"last run {when(one.last, 'never')}, next run {when(one.next, 'none')}"
    if text:
        return f"{text.rstrip('.')} ({runs})."
    if job is not None and units.is_failed(job):
        return f"The job of {one.unit.name} failed: {units.failure(job).rstrip('.')} ({runs})."
    if one.unit["ActiveState"] == "failed":
        return f"{units.failure(one.unit).rstrip('.')} ({runs})."
    if not one.unit.is_active:
        word = (
            "it is masked"
            if one.unit["LoadState"] == "masked"
            else f"it is {one.unit['UnitFileState'] or 'inactive'}"
        )
        return f"{one.unit.name} is not active, so its job does not run: {word} ({runs})."
    last, coming = when(one.last, "never"), when(one.next, "none")
    return f"{one.unit.name} last ran {last}; its job {one.job} ended: {result(job)}; next run {coming}."


def matching(name: str, found: list[Timer], jobs: list[timers.Job]) -> tuple[list[Timer], list[timers.Job]]:
    """The timers and lines of crontabs that a name means: of the timer, of its job, or a part of either."""
    stem = re.sub(r"\.(service|timer)$", "", name)
    exact = [one for one in found if stem in (one.unit.name[: -len(".timer")], one.job.rpartition(".")[0])]
    near = [one for one in found if stem.lower() in f"{one.unit.name} {one.job}".lower()]
    return exact or near, [job for job in jobs if stem.lower() in f"{job.file} {job.command}".lower()]


def cron_runs(job: timers.Job) -> str:
    """When cron last started this command, as its journal has it."""
    entries, _ = journal(
        "--since", "-40d", "SYSLOG_IDENTIFIER=CRON", "+", "SYSLOG_IDENTIFIER=CROND", limit=3000
    )
    runs = [stamp(entry) for entry in entries if job.command[:60] in message(entry)]
    return when(runs[-1], "") if runs else "no run in the journal"


def cron_faults(report: Report) -> list[str]:
    """What is wrong with crontabs, and what cron said of errors in a week."""
    said, unread = timers.cron_says("-7d")
    report.note(unread)
    return [*timers.cron_faults(), *(text for _, text in said[-3:])]


def cron_tables(report: Report, jobs: list[timers.Job], hidden: list[str]) -> None:
    for sentence in hidden:
        report.note(sentence)
    rows = [(job.when, job.user, shorten(job.command, 60), job.file) for job in jobs]
    report.table("Jobs of cron", ("When", "User", "Command", "File"), rows)
    for path in sorted(Path("/var/spool/anacron").glob("cron.*")):
        report.text(f"anacron, {path.name}", f"It last ran {when(path.stat().st_mtime, '?')}.")
    if Path("/var/spool/cron/atjobs").is_dir():
        report.note("The jobs of at(1) cannot be read by this user (atq as root lists them).")


def has_cron() -> bool:
    names = ("cron.service", "crond.service", "cronie.service")
    return any(unit["LoadState"] == "loaded" for unit in named(*names))


def of_one(name: str, found: list[Timer], jobs: list[timers.Job], report: Report) -> None:
    hits, lines = matching(name, found, jobs)
    known = {unit.name: unit for unit in named(*{one.job for one in hits if one.job})}
    if hits:
        report.finding = told(hits[0], known.get(hits[0].job))
        job = known.get(hits[0].job)
        broken = job is not None and units.is_failed(job)
        report.next = (
            prompt(f"why is {hits[0].job} down")
            if broken
            else shlex.join(["systemctl", "status", hits[0].unit.name])
        )
        table(report, hits, known)
        entries, problem = journal("-u", hits[0].job, limit=12, timeout_s=5)
        report.note(problem)
        report.lines(
            f"Log of {hits[0].job}", [f"{show(stamp(e))} {shorten(message(e), 150)}" for e in entries]
        )
    elif lines:
        job_line = lines[0]
        report.finding = (
            f"{job_line.command} runs by cron ({job_line.when}, {job_line.file}): {cron_runs(job_line)}."
        )
    else:
        report.finding = f"No timer and no crontab that can be read has a job called {name}."
        report.found_nothing = True
        report.table("Timers", ("Timer", "Starts"), [(one.unit.name, one.job) for one in found])


def table(report: Report, found: list[Timer], known: dict[str, Unit]) -> None:
    rows = [
        (one.unit.name, when(one.last, "never"), when(one.next, "none"), result(known.get(one.job)))
        for one in found
    ]
    report.table("Timers", ("Timer", "Last run", "Next run", "Its job"), rows)


def of_all(found: list[Timer], jobs: list[timers.Job], hidden: list[str], report: Report) -> None:
    known = {unit.name: unit for unit in named(*{one.job for one in found if one.job})}
    bad, asks = [], []
    for one in found:
        job = known.get(one.job)
        if timers.trouble(one, job)[1] or (job and units.is_failed(job)) or units.is_failed(one.unit):
            bad.append(told(one, job))
            asks.append(
                f"why is {one.job} down"
                if job and units.is_failed(job)
                else f"why is {one.unit.name} down"
                if one.unit["LoadState"] == "bad-setting"
                else f"when does {one.unit.name} run"
            )
    if cron := has_cron():
        bad += cron_faults(report)
    else:
        report.note("cron is not installed, so no crontab runs.")
    if len(bad) > 1:
        report.text("Problems", *(f"- {text}" for text in bad))
    table(report, sorted(found, key=lambda one: one.next or float("inf")), known)
    if cron:
        cron_tables(report, jobs, hidden)
    if bad:
        file = re.match(r"(?:The last line of )?(/etc/\S+)", bad[0])
        look = f"ls -l {file[1]}" if file else "journalctl -t CRON -t cron --since yesterday"
        report.next = prompt(asks[0]) if asks else look
        count = f"{plural(len(bad), 'problem')} with scheduled jobs; the first: "
        report.finding = bad[0] if len(bad) == 1 else count + bad[0]
        return
    waiting = [one for one in found if one.next]
    soon = min(waiting, key=lambda one: one.next or 0, default=None)
    first = f"; next is {soon.unit.name} {when(soon.next, '')}" if soon else ""
    report.finding = f"No scheduled job failed: {plural(len(waiting), 'timer')} wait{first}."


def make(report: Report) -> None:
    name = options(str(__doc__), unit="the timer, or the job that it starts; without it all").unit
    if name is not None and not re.fullmatch(r"[\w][\w:.\\@-]*", name):
        refuse(f"--unit={name} is not the name of a unit.")
    jobs, hidden = timers.crontabs()
    try:
        loaded()
        found = timers.timers()
    except CannotSee as err:
        report.note(str(err))
        report.finding = (
            f"Timers cannot be seen, because systemd does not answer; {plural(len(jobs), 'job')} of cron can."
        )
        cron_tables(report, jobs, hidden)
        return
    if name:
        of_one(name, found, jobs, report)
    else:
        of_all(found, jobs, hidden, report)


run(make)
