"""Finds errors in the journal, or in /var/log where there is none, and groups what repeats. Only observes."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from commands import journal, message, stamp
from commands import run as run_command
from report import Report, options, plural, refuse, run, shorten

_FILES = ("syslog", "messages", "kern.log", "daemon.log", "auth.log", "secure")
_FILE_BYTES = 4 << 20
"""How much of the end of a log file is read."""
_ROWS, _LIMIT = 25, 5000
_ERROR_PRIORITIES = ("0", "1", "2", "3")
"""emerg, alert, crit and err of syslog(3)."""
_BAD = re.compile(
    (
        r"\b(error|err|fail(?:ed|ure)?|fatal|crit(?:ical)?|panic|segfault|oops|denied|exception|"
        r"traceback|oom)\b"
    ),
    re.I,
)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+")
_STAMP = re.compile(
    r"^(?:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S*|"
    r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)) \S+ ([^:\[\s]+)(?:\[\d+\])?: (.*)"
)


@dataclass
class Group:
    """Lines that differ only in numbers; times are seconds since 1970."""

    source: str
    text: str
    count: int
    first: float
    last: float


def grouped(lines: list[tuple[float, str, str]]) -> list[Group]:
    """Groups of (time, source, text), those with the most lines first."""
    found: dict[tuple[str, str], Group] = {}
    for when, source, text in lines:
        key = (source, _NUMBERS.sub("#", text))
        group = found.setdefault(key, Group(source, text, 0, when, when))
        group.count += 1
        group.first, group.last = min(group.first, when), max(group.last, when)
        group.text = text
    return sorted(found.values(), key=lambda group: (-group.count, -group.last))


def from_journal(since: float, unit: str | None, report: Report) -> list[tuple[float, str, str]] | None:
    """Errors of the journal, or its warnings if it has no errors; None if nothing is readable."""
    where = ["--since", f"@{int(since)}", "-p", "warning", *(["-u", unit] if unit else [])]
    entries, problem = journal(*where, limit=_LIMIT)
    report.note(problem)
    if problem and not entries:
        return None
    if not entries and not _has_entries(since):
        return None
    if len(entries) == _LIMIT:
        report.note(f"Errors and warnings before the newest {_LIMIT} were left out.")
    errors = [entry for entry in entries if str(entry.get("PRIORITY", "")) in _ERROR_PRIORITIES]
    warnings = len(entries) - len(errors)
    if errors and warnings:
        report.note(f"{plural(warnings, 'warning')}: only the errors are in the table.")
    word = "" if errors else "warning: "
    return [(stamp(entry), _source(entry), word + message(entry)) for entry in errors or entries]


def _has_entries(since: float) -> bool:
    """Whether the journal has any entry since then: an empty one proves nothing."""
    entries, _ = journal("--since", f"@{int(since)}", limit=1)
    return bool(entries)


def _source(entry: dict[str, object]) -> str:
    return str(
        entry.get("UNIT")
        or entry.get("_SYSTEMD_UNIT")
        or entry.get("SYSLOG_IDENTIFIER")
        or entry.get("_COMM")
        or "kernel"
    )


def from_files(
    root: Path, since: float, unit: str | None, report: Report
) -> list[tuple[float, str, str]] | None:
    """Lines with words such as `error` from the files of /var/log; None where none of them can be read."""
    wanted = re.split(r"[.@]", unit)[0] if unit else ""
    found, read_any = [], False
    for name in _FILES:
        path = root / name
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _FILE_BYTES))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as err:
            report.note(f"{path} cannot be read: {err.strerror}.")
            continue
        read_any = True
        for line in text.splitlines():
            row = _parse(line)
            if row and row[0] >= since and _BAD.search(row[2]) and (not wanted or wanted in row[1]):
                found.append(row)
    if not read_any:
        report.note(f"None of the files {', '.join(_FILES)} can be read in {root}.")
        return None
    return found


def from_kernel(since: float, report: Report) -> list[tuple[float, str, str]] | None:
    answer = run_command("dmesg", "--level=emerg,alert,crit,err")
    report.note(answer.problem)
    if answer.problem:
        return None
    boot, rows = clock.boot_time(), []
    for line in answer.stdout.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\] (.*)", line)
        if match and boot + float(match[1]) >= since:
            rows.append((boot + float(match[1]), "kernel", match[2]))
    return rows


def _parse(line: str) -> tuple[float, str, str] | None:
    match = _STAMP.match(line)
    if match is None:
        return None
    try:
        if match[1]:
            when = time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
        else:
            year = time.localtime().tm_year
            when = time.mktime(time.strptime(f"{year} {match[2]}", "%Y %b %d %H:%M:%S"))
            if when > time.time() + 86400:
                when = time.mktime(time.strptime(f"{year - 1} {match[2]}", "%Y %b %d %H:%M:%S"))
    except ValueError:
        return None
    return when, match[3], match[4]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        since=(
            "from when on: boot, today, 'yesterday 14:00', -2h, '2025-01-31 14:00'; without it "
            "the last 24 hours"
        ),
        unit="only lines of this unit",
        root="read the log files of this folder instead of the journal and /var/log",
    )
    if asked.unit is not None and not re.fullmatch(r"[\w][\w:.\\@-]*", asked.unit):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    since = clock.since(asked.since or "-24h")
    lines = None if asked.root else from_journal(since, asked.unit, report)
    source = "the journal"
    if lines is None:
        source = asked.root or "/var/log"
        lines = from_files(Path(source), since, asked.unit, report)
    if lines is None and not asked.root and not asked.unit:
        source = "the kernel's messages (nothing else can be read here)"
        lines = from_kernel(since, report)
    if lines is None:
        report.finding = (
            "Whether there are errors cannot be said: neither the journal nor a log file can be read here."
        )
        return
    groups = grouped(lines)
    about = f" of {asked.unit}" if asked.unit else ""
    when = f"since {clock.show(since)}"
    if not groups:
        report.finding = f"No errors{about} in {source} {when}."
    else:
        top = groups[0]
        only_warnings = all(group.text.startswith("warning: ") for group in groups)
        noun = "warning" if only_warnings else "error"
        report.finding = ("No errors, but " if only_warnings else "") + (
            f"{plural(len(lines), noun)}{about} in {source} {when}, in {plural(len(groups), 'group')}: "
            f'the most frequent ({_times(top.count)}, {top.source}) is "{shorten(top.text, 90)}".'
        )
    header = ("Count", "First", "Last", "Source", "Message (the newest of the group)")
    report.table(
        "Errors, grouped",
        header,
        [
            (
                group.count,
                clock.show(group.first),
                clock.show(group.last),
                group.source,
                shorten(group.text, 160),
            )
            for group in groups[:_ROWS]
        ],
    )
    if len(groups) > _ROWS:
        report.note(f"{plural(len(groups) - _ROWS, 'more group')} of errors, each with fewer lines.")
    if asked.unit and source == "the journal":
        entries, _ = journal("-u", asked.unit, "--since", f"@{int(since)}", limit=15)
        report.lines(
            f"Last lines{about}",
            [f"{clock.show(stamp(entry))} {shorten(message(entry), 200)}" for entry in entries],
        )


run(make)
