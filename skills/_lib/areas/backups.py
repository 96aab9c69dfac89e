"""Backups: the timers, services and cron lines that look like one, when each ran last, and how it ended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import clock
from checks import PROBLEM, WARNING, Finding, check
from commands import journal, message, read, run, stamp
from report import shorten, span
from systemd_units import moment, seconds

from areas.timers import CMD, FAILED

_NAMES = re.compile(
    r"restic|borg|rsnapshot|bacula|bareos|duplicity|duply|rdiff-?backup|kopia|back-?up|pg_?dump|pg_basebackup|"
    r"pgbackrest|barman|mysqldump|mariadb-dump|snapper|tarsnap|zrepl|sanoid|syncoid|btrbk|timeshift|amanda|"
    r"rclone|vzdump|proxmox-backup|\brsync\b",
    re.I,
)
_NOT = re.compile(
    r"^dpkg-db-backup|backup-manager-daemon|^bacula-(fd|dir|sd)|^bareos-(fd|dir|sd)|^barman-cli"
)
"""Debian's copy of its package database, and daemons that wait for a server."""
_DAY_S = 86400.0
_SLACK_S = 3600.0
_CATCH_UP_S = 900.0
"""How long after a boot what was missed may take to begin."""
_TIMER = (
    "Id,Description,ActiveState,UnitFileState,Unit,LastTriggerUSec,NextElapseUSecRealtime,TimersCalendar,"
)
_TIMER += "TimersMonotonic,ActiveEnterTimestamp,LoadState"
_SERVICE = (
    "Id,Description,ActiveState,Result,ExecMainStatus,ExecStart,ExecMainStartTimestamp,ExecMainExitTimestamp,"
)
_SERVICE += "Type,LoadState,StateChangeTimestamp,InvocationID"
_CRON_FILES = ("/etc/crontab", "/etc/anacrontab", "/etc/cron.d/*", "/etc/cron.*ly/*")
_PERIODS = {
    "hourly": 3600.0,
    "daily": _DAY_S,
    "weekly": 7 * _DAY_S,
    "monthly": 31 * _DAY_S,
    "yearly": 366 * _DAY_S,
}
_CRON_LINE = re.compile(r"^\s*((?:[\d*/,A-Za-z-]+\s+){5}|@\w+\s+)(\S+)\s+(.*)$")
ASK = "when did the backups last run"


@dataclass
class Job:
    """One backup. Times are seconds since 1970; None is not known or never."""

    name: str
    source: str
    """`timer`, `service` or the cron file."""
    what: str
    period_s: float | None = None
    last: float | None = None
    next: float | None = None
    waits_since: float | None = None
    """Since when its timer or its cron runs."""
    is_running: bool = False
    is_on: bool = True
    failed: str = ""
    """How the last run failed."""

    @property
    def service(self) -> str:
        return self.name.replace(".timer", ".service") if self.source == "timer" else self.name

    @property
    def is_late(self) -> bool:
        start = self.last or self.waits_since
        waited_s = time.time() - (self.waits_since or 0)
        if self.period_s is None or start is None or self.is_running or waited_s < _CATCH_UP_S:
            return False
        return time.time() - start > 2 * self.period_s + _SLACK_S

    @property
    def result(self) -> str:
        if self.is_running:
            return "runs now"
        if self.failed:
            return self.failed
        return (
            "never ran"
            if self.last is None
            else "ended well"
            if self.source in ("timer", "service")
            else "began"
        )


def _shown(properties: str, *names: str) -> list[dict[str, str]]:
    if not names:
        return []
    answer = run("systemctl", "show", f"--property={properties}", "--", *names, timeout_s=3)
    blocks = answer.stdout.split("\n\n")
    return [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks if block
    ]


def from_systemd() -> list[Job]:
    """Backups that systemd starts: by a timer, or as a service that ran."""
    timers = [row for row in _shown(_TIMER, "*.timer") if row.get("LoadState") == "loaded"]
    names = [row.get("Unit", "") for row in timers]
    loaded = _shown(
        _SERVICE, *names, *(f"*{word}*.service" for word in ("restic", "borg", "backup", "rsnapshot"))
    )
    services = {row["Id"]: row for row in loaded if row.get("LoadState") == "loaded"}
    jobs = []
    for row in timers:
        service = services.pop(row.get("Unit", ""), {})
        words = (
            f"{row['Id']} {row.get('Description', '')} {service.get('Id', '')} {service.get('ExecStart', '')}"
        )
        if _NAMES.search(words) and not _NOT.search(row["Id"]):
            jobs.append(_timer_job(row, service))
    for name, row in services.items():
        is_job = row.get("Type") == "oneshot" or row.get("Result") not in ("success", "")
        if _NAMES.search(name) and not _NOT.search(name) and is_job:
            ran = bool(row.get("ExecMainStartTimestamp"))
            if ran:
                jobs.append(_with_run(Job(name, "service", row.get("Description", "")), row))
    return jobs


def _timer_job(row: dict[str, str], service: dict[str, str]) -> Job:
    job = Job(
        row["Id"],
        "timer",
        row.get("Description", ""),
        period_s=timer_period(row),
        last=moment(row.get("LastTriggerUSec", "")),
        next=moment(row.get("NextElapseUSecRealtime", "")),
        waits_since=moment(row.get("ActiveEnterTimestamp", "")),
        is_on=row.get("ActiveState") == "active",
    )
    return _with_run(job, service)


def _with_run(job: Job, service: dict[str, str]) -> Job:
    job.is_running = service.get("ActiveState") in ("activating", "active", "reloading")
    job.last = moment(service.get("ExecMainStartTimestamp", "")) or job.last
    if service.get("Result", "success") not in ("success", "") and not job.is_running:
        status = service.get("ExecMainStatus", "")
        reason = last_words(service.get("Id", ""), service.get("InvocationID", ""))
        how = f"status {status}" if service["Result"] == "exit-code" else service["Result"]
        job.failed = f"failed ({how})" + (f": {reason.rstrip('.')}" if reason else "")
    return job


def timer_period(row: dict[str, str]) -> float | None:
    """Seconds between two runs of a timer, as its calendar or its interval says."""
    calendar = re.search(r"OnCalendar=(.*?) ;", row.get("TimersCalendar", ""))
    if calendar:
        answer = run("systemd-analyze", "calendar", "--iterations=3", calendar[1], timeout_s=2)
        times = [moment(text) for text in re.findall(r"(?:Next elapse|Iteration #\d+): (.*)", answer.stdout)]
        known = [one for one in times if one is not None]
        return max((known[at + 1] - known[at] for at in range(len(known) - 1)), default=None)
    interval = re.search(r"On(?:UnitActive|UnitInactive)USec=(.*?) ;", row.get("TimersMonotonic", ""))
    return seconds(interval[1]) if interval else None


def last_words(unit: str, invocation: str = "") -> str:
    """The last line that the run itself wrote, the one with an error before others."""
    match = [f"_SYSTEMD_INVOCATION_ID={invocation}"] if invocation else [f"_SYSTEMD_UNIT={unit}"]
    entries, _ = journal(*match, limit=50, timeout_s=2)
    lines = [message(one) for one in entries if str(one.get("_PID")) != "1" and message(one)]
    bad = [
        line
        for line in lines
        if re.search(r"error|fatal|fail|denied|cannot|unable|no space|refused", line, re.I)
    ]
    return shorten((bad or lines or [""])[-1])


def cron_lines() -> tuple[list[Job], list[str]]:
    """Backups in cron's tables that everybody may read, and what could not be read."""
    jobs, unread = [], []
    for glob in _CRON_FILES:
        for file in sorted(Path("/").glob(glob[1:])):
            folder = file.parent.name
            if file.name == ".placeholder" or not file.is_file():
                continue
            if folder.startswith("cron.") and folder != "cron.d":
                if _NAMES.search(file.name) and file.name != "dpkg" and "." not in file.name:
                    period = _PERIODS.get(folder.partition(".")[2])
                    jobs.append(Job(str(file), str(file), f"run-parts {folder}", period_s=period))
                continue
            text = read(str(file))
            if text is None:
                unread.append(f"{file} cannot be read.")
            jobs += cron_jobs(text or "", str(file))
    if Path("/var/spool/cron/crontabs").is_dir() or Path("/var/spool/cron").is_dir():
        unread.append("The crontabs of users, which only root may read.")
    return jobs, unread


def cron_jobs(text: str, file: str) -> Iterator[Job]:
    """The backups of one table with a column for the user."""
    for line in text.splitlines():
        match = _CRON_LINE.match(line)
        if match and _NAMES.search(match[3]) and "run-parts" not in match[3]:
            yield Job(shorten(match[3], 80), file, f"as {match[2]}", period_s=cron_period(match[1].split()))


def cron_period(fields: list[str]) -> float | None:
    """About how many seconds lie between two runs."""
    if fields[0].startswith("@"):
        return _PERIODS.get({"midnight": "daily", "annually": "yearly"}.get(fields[0][1:], fields[0][1:]))
    minute, hour, day, month, weekday = fields
    if month != "*":
        return 366 * _DAY_S
    if day not in ("*", "*/1"):
        return 31 * _DAY_S
    if weekday not in ("*", "0-6", "1-7"):
        return (7 if "," not in weekday and "-" not in weekday else 4) * _DAY_S
    if hour.isdigit():
        return _DAY_S
    return _DAY_S if not hour.startswith("*") else 3600.0 if not minute.startswith("*/") else 1800.0


def with_cron_runs(jobs: list[Job]) -> tuple[list[Job], str]:
    """Add when cron began each, by the journal, and how far back that goes."""
    if not jobs:
        return jobs, ""
    entries, problem = journal(
        "--since=-70d", "SYSLOG_IDENTIFIER=CRON", "+", "SYSLOG_IDENTIFIER=cron", limit=5000
    )
    rows = [(stamp(one), str(one.get("_PID", "")), message(one)) for one in entries]
    failed = dict(FAILED.findall("\n".join(row[2] for row in rows)))
    for when_, pid, text in rows:
        match = CMD.match(text)
        for job in jobs if match else ():
            job.waits_since = job.waits_since or rows[0][0]
            is_part = job.what.startswith("run-parts") and f"/etc/{job.what.split()[1]}" in (
                match[2] if match else ""
            )
            if match and (is_part or match[2].startswith(job.name.removesuffix("..."))):
                job.last = when_
                job.failed = f"failed (status {failed[pid]})" if pid in failed and not is_part else ""
    return jobs, problem


def all_jobs() -> tuple[list[Job], list[str]]:
    """Every backup that can be seen, and what could not."""
    in_cron, unread = cron_lines()
    in_cron, problem = with_cron_runs(in_cron)
    return [*from_systemd(), *in_cron], [*unread, *([problem] if problem else [])]


def faults(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Backups that failed, never ran, are late, or that nothing starts."""
    for job in jobs:
        due = f", though it is due every {span(job.period_s)}" if job.period_s else ""
        ago = f" {span(time.time() - job.last)} ago" if job.last else ""
        if job.failed:
            how = job.failed.replace("failed", f"failed{ago}", 1)
            yield Finding(f"The backup {job.service} {how}.", ASK, job.last, PROBLEM)
        elif job.is_late and job.is_on:
            said = f"ran last{ago} ({clock.show(job.last)})" if job.last else "never ran"
            yield Finding(f"The backup {job.name} {said}{due}.", ASK, job.last, WARNING)
        elif not job.is_on and job.last:
            yield Finding(
                f"The backup {job.name} ran last{ago} and will not run again: its timer is off.",
                ASK,
                job.last,
                WARNING,
            )


@check("backups.jobs", "backups that failed, are late or never ran")
def backups() -> Iterator[Finding]:
    """Without units that failed: of these `units.failed` tells."""
    yield from faults(
        job for job in all_jobs()[0] if not job.failed or job.source not in ("timer", "service")
    )
