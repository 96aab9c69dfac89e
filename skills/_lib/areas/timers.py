"""Scheduled jobs: timers of systemd, crontabs, anacron and at, with their last and next runs."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, read, stamp
from report import clean, shorten
from systemd_units import Unit, enabled, loaded, moment, named, seconds

from areas.units import bad_setting

_CRON_SAYS = re.compile(
    r"ERROR|[Ee]rror[ :(]|BAD FILE|WRONG (?:FILE|INODE)|INSECURE|ORPHAN|SYMLINK|failed with exit status|"
    r"bad (?:minute|hour|day|month|command|username|time)|[Mm]issing newline|got status 0x0*[1-9a-f]|"
    r"can't|cannot"
)
CMD = re.compile(r"^\((\S+)\) CMD \((.*)\)$")
FAILED = re.compile(r"grandchild #(?P<pid>\d+) failed with exit status (?P<status>\d+)")
_FOLDERS = ("cron.hourly", "cron.daily", "cron.weekly", "cron.monthly")
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_SPOOLS = ("/var/spool/cron/crontabs", "/var/spool/cron")
_LEFT_OVER = re.compile(r".*(?:\.dpkg-\w+|\.ucf-\w+|\.rpm(?:save|new|orig)|~|\.bak|\.disabled)")


@dataclass(frozen=True)
class Timer:
    """A timer, what it starts, and its runs in seconds since 1970."""

    unit: Unit
    job: str
    last: float | None
    next: float | None


@dataclass(frozen=True)
class Job:
    """A line of a crontab, or a script that run-parts(8) runs."""

    file: str
    when: str
    user: str
    command: str


def timer(unit: Unit) -> Timer:
    coming = [moment(unit["NextElapseUSecRealtime"])]
    monotonic = seconds(unit["NextElapseUSecMonotonic"])
    if monotonic:
        coming.append(time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + monotonic)
    times = [when for when in coming if when]
    return Timer(
        unit, unit["Triggers"].split(" ")[0], moment(unit["LastTriggerUSec"]), min(times, default=None)
    )


def timers() -> list[Timer]:
    """The loaded timers, and those that are enabled and not loaded."""
    units = {unit.name: unit for unit in (*loaded().values(), *enabled()) if unit.kind == "timer"}
    return [timer(unit) for _, unit in sorted(units.items()) if unit["LoadState"] != "not-found"]


def trouble(one: Timer, job: Unit | None) -> tuple[str, str]:
    """What keeps this timer's job from running, as (severity, sentence), or two empty strings."""
    name, unit = one.unit.name, one.unit
    if unit["LoadState"] in ("bad-setting", "error"):
        return PROBLEM, bad_setting(unit)
    if job is not None and job["LoadState"] in ("masked", "not-found", "bad-setting"):
        word = {"masked": "is masked", "not-found": "does not exist"}.get(
            job["LoadState"], "cannot be loaded"
        )
        if unit["ActiveState"] != "inactive" or unit["UnitFileState"] == "enabled":
            return PROBLEM, f"{name} cannot start its job: {one.job} {word}."
    if unit["SubState"] == "elapsed" and one.next is None and not (job and job.is_active):
        if one.last is None:
            return (
                PROBLEM,
                f"{name} has never run and has no next run: its times lie in the past, or depend on a run.",
            )
        if job and job["Type"] == "oneshot" and re.search(r"20\d\d", unit["NextElapseUSecRealtime"]):
            return WARNING, f"{name} has no next run."
    return "", ""


def crontabs() -> tuple[list[Job], list[str]]:
    """The jobs of all crontabs that can be read, and sentences about those that cannot."""
    jobs, hidden = [], []
    for path in [Path("/etc/crontab"), *_entries("/etc/cron.d")]:
        text = read(str(path))
        if text is None and path.exists():
            hidden.append(f"{path} cannot be read.")
        jobs += [job for line in (text or "").splitlines() if (job := _line(str(path), line))]
    for name in _FOLDERS:
        for path in _entries(f"/etc/{name}"):
            jobs.append(Job(str(path), name.partition(".")[2], "root", path.name))
    for folder in _SPOOLS:
        if not Path(folder).is_dir():
            continue
        try:
            for path in sorted(Path(folder).iterdir()):
                if path.is_file():
                    lines = (read(str(path)) or "").splitlines()
                    jobs += [job for line in lines if (job := _line(str(path), line, path.name))]
        except OSError:
            hidden.append(f"The users' own crontabs in {folder} cannot be read by this user.")
        break
    return jobs, hidden


def _entries(folder: str) -> list[Path]:
    try:
        return sorted(path for path in Path(folder).iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _line(file: str, line: str, owner: str = "") -> Job | None:
    """One job of a crontab; `owner` is the user where the file names none. See crontab(5)."""
    pattern = r"\s*(@\w+|(?:[\w*,/~-]+\s+){4}[\w*,/~-]+)\s+" + ("()" if owner else r"(\S+)\s+") + r"(\S.*)"
    match = re.fullmatch(pattern, line)
    if match is None or line.lstrip().startswith("#") or re.match(r"\s*\w+\s*=", line):
        return None
    return Job(file, match[1], owner or match[2], match[3])


def cron_faults(root: str = "/etc") -> Iterator[str]:
    """What cron and run-parts ignore without a word, as sentences."""
    debian = Path(root, "debian_version").exists()
    for folder in ("cron.d", *_FOLDERS):
        for path in _entries(f"{root}/{folder}"):
            if _LEFT_OVER.fullmatch(path.name) or not path.is_file():
                continue
            if debian and not re.fullmatch(r"[A-Za-z0-9_-]+", path.name):
                yield f"{path} never runs: cron takes only names of letters, digits, - and _."
            elif folder != "cron.d" and not path.stat().st_mode & 0o111:
                yield f"{path} never runs: it is not executable."
            elif folder == "cron.d" and path.stat().st_mode & 0o022:
                yield f"{path} never runs: others than its owner may write to it."
    for path in [Path(root, "crontab"), *_entries(f"{root}/cron.d")]:
        text = read(str(path)) or ""
        if text and not text.endswith("\n"):
            yield f"The last line of {path} never runs: it does not end with a newline."
        for number, line in enumerate(text.splitlines(), start=1):
            wrong = _mistake(line)
            if wrong:
                ignored = "never runs, because cron ignores a file with a mistake"
                yield f"{path} {ignored}: line {number}, {wrong}."


def _mistake(line: str) -> str:
    """What is wrong with a line of a crontab of the system, or an empty string."""
    job = _line("", line)
    if job is None:
        return f"{shorten(line, 60)} is no valid job" if re.match(r"\s*[\d*@]", line) else ""
    if not _exists(job.user):
        return f"there is no user {clean(job.user)}"
    wrong = _out_of_range(job.when)
    return f"{wrong} is out of range" if wrong else ""


def _out_of_range(times: str) -> str:
    """The field of a crontab's line that no time can match, or an empty string."""
    for field, (least, most) in zip(times.split(), _RANGES):  # noqa: B905 - Python 3.9 has no strict=
        values = [int(value) for value in re.findall(r"\d+", re.sub(r"/\d+", "", field))]
        if times[0] != "@" and any(not least <= value <= most for value in values):
            return field
    return ""


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def cron_says(since: str = "-1d") -> tuple[list[tuple[float, str]], str]:
    """What cron, anacron and atd logged about errors: (when, sentence), each once, the newest; and why this
    may not be all.
    """
    names = ("cron", "CRON", "crond", "CROND", "anacron", "atd", "cronie", "fcron")
    wanted = [f"SYSLOG_IDENTIFIER={name}" for name in names]
    entries, problem = journal("-b", "--since", since, *wanted, limit=3000, timeout_s=5)
    return errors_of_cron(entries), problem


def errors_of_cron(entries: Iterable[dict[str, Any]]) -> list[tuple[float, str]]:
    """The errors among lines of cron; of a failed job its command, which an earlier line of its pid has."""
    told, began = {}, {}
    for entry in entries:
        text = message(entry)
        if command := CMD.search(text):
            began[str(entry.get("SYSLOG_PID") or entry.get("_PID"))] = command
        elif _CRON_SAYS.search(text):
            failed = FAILED.search(text)
            ran = began.get(failed["pid"]) if failed else None
            if failed and ran:
                said = (
                    f"The cron job {shorten(ran[2], 100)} of {ran[1]} failed with status {failed['status']}."
                )
            else:
                said = f"cron: {shorten(text, 150)}."
            told[re.sub(r"\d+", "#", said)] = (stamp(entry), said)
    return sorted(told.values())


@check("timers.idle", "timers that cannot run their job")
def idle() -> Iterator[Finding]:
    found = timers()
    known = loaded()
    unknown = {one.job for one in found if one.job and one.job not in known}
    jobs = known | {unit.name: unit for unit in named(*unknown)}
    for one in found:
        severity, text = trouble(one, jobs.get(one.job))
        if text:
            yield Finding(text, f"when does {one.unit.name} run", one.last, severity)


@check("timers.cron", "crontabs and scripts that cron ignores or complains of")
def cron() -> Iterator[Finding]:
    known = loaded()
    if not any(
        name in known and known[name].is_active
        for name in ("cron.service", "crond.service", "cronie.service")
    ):
        return
    for text in cron_faults():
        yield Finding(text, "did the cron jobs run", severity=WARNING)
    said, problem = cron_says()
    for when, text in said[-5:]:
        yield Finding(text, "did the cron jobs run", when, WARNING)
    if problem:
        raise CannotSee(problem)
