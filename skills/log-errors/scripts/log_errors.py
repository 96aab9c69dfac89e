"""Finds errors in the journal, or in /var/log where there is none, and groups what repeats. Only observes."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas.units import FAILURE_RESULT
from checks import prompt
from commands import journal, message, stamp
from commands import run as run_command
from report import Report, options, plural, refuse, run, shorten
from systemd_units import named, unit_name

_FILES = ("syslog", "messages", "kern.log", "daemon.log", "auth.log", "secure")
_FILE_BYTES = 4 << 20
"""How much of the end of a log file is read."""
_LIMIT = 5000
_PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Those of syslog(3), from 0 on."""
_NO_ERROR = re.compile(r"\b(?:no|0|without|zero) (?:\w+ )?(?:errors?|failures?)\b|errors?[:=] ?0\b", re.I)
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


Line = tuple[float, str, str, str]
"""When, in seconds since 1970; the unit or program; the priority; the text."""


@dataclass
class Group:
    """Lines that differ only in numbers; times are seconds since 1970."""

    source: str
    text: str
    priority: str
    count: int
    first: float
    last: float


def grouped(lines: list[Line]) -> list[Group]:
    """Groups of lines, those with the most lines first."""
    found: dict[tuple[str, str], Group] = {}
    for when, source, priority, text in lines:
        key = (source, _NUMBERS.sub("#", text))
        group = found.setdefault(key, Group(source, text, priority, 0, when, when))
        group.count += 1
        group.first, group.last = min(group.first, when), max(group.last, when)
        group.text = text
    return sorted(found.values(), key=lambda group: (-group.count, -group.last))


def from_journal(since: float, unit: str | None, priority: str | None, report: Report) -> list[Line] | None:
    """Lines of this priority or worse; without one errors, or warnings where there are none, and lines of
    programs that speak of errors at a lower one. None if nothing is readable.
    """
    where = ["--since", f"@{int(since)}", *(["-u", unit] if unit else [])]
    entries, problem = journal(*where, "-p", priority or "warning", limit=_LIMIT)
    report.note(problem)
    if not entries and (problem or not _has_entries(since)):
        return None
    if len(entries) == _LIMIT:
        report.note(f"Messages before the newest {_LIMIT} were left out.")
    if priority:
        return [_line(entry) for entry in entries]
    errors = [e for e in entries if _level(e) <= 3 or e.get("MESSAGE_ID") == FAILURE_RESULT]
    spoken = _spoken(where)
    if errors or spoken:
        told = {_source(entry) for entry in spoken}  # better than that systemd saw it fail
        errors = [e for e in errors if e.get("MESSAGE_ID") != FAILURE_RESULT or _source(e) not in told]
        return sorted(_line(entry) for entry in (*errors, *spoken))
    return [_line(entry) for entry in entries]


def _spoken(where: list[str]) -> list[dict[str, Any]]:
    """What programs write to their output has the priority info, errors too: those that say that they are."""
    words = r"error|fatal|critical|panic|exception|failed|cannot|denied|refused|unable|no such|not found"
    limited = [*where, "-p", "notice..info", "--case-sensitive=no", f"--grep={words}"]
    entries, _ = journal(*limited, limit=300, timeout_s=6)
    return [
        entry
        for entry in entries
        if not _NO_ERROR.search(message(entry))
        and entry.get("SYSLOG_IDENTIFIER") not in ("systemd", "sudo")
        and (entry.get("_TRANSPORT") == "stdout" or "-u" in where)
    ]


def _level(entry: dict[str, Any]) -> int:
    value = str(entry.get("PRIORITY", "6"))
    return int(value) if value.isdigit() else 6


def _line(entry: dict[str, Any]) -> Line:
    return stamp(entry), _source(entry), _PRIORITIES[min(7, _level(entry))], message(entry)


def _has_entries(since: float) -> bool:
    """Whether the journal has any entry since then: an empty one proves nothing."""
    entries, _ = journal("--since", f"@{int(since)}", limit=1)
    return bool(entries)


def _source(entry: dict[str, Any]) -> str:
    """The unit, or the program where it belongs to none; the kernel's messages are the kernel's."""
    if entry.get("_TRANSPORT") == "kernel":
        return "kernel"
    for key in ("UNIT", "USER_UNIT", "_SYSTEMD_USER_UNIT", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "_COMM"):
        if value := entry.get(key):
            return str(value[0] if isinstance(value, list) else value)  # a message may be about several units
    return "?"


def from_files(root: Path, since: float, unit: str | None, report: Report) -> list[Line] | None:
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
            if row and row[0] >= since and _BAD.search(row[3]) and (not wanted or wanted in row[1]):
                found.append(row)
    if not read_any:
        report.note(f"None of the files {', '.join(_FILES)} can be read in {root}.")
        return None
    return found


def from_kernel(since: float, report: Report) -> list[Line] | None:
    answer = run_command("dmesg", "--level=emerg,alert,crit,err")
    report.note(answer.problem)
    if answer.problem:
        return None
    boot, rows = clock.boot_time(), []
    for line in answer.stdout.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\] (.*)", line)
        if match and boot + float(match[1]) >= since:
            rows.append((boot + float(match[1]), "kernel", "err", match[2]))
    return rows


def _parse(line: str) -> Line | None:
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
    return when, match[3], "-", match[4]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        since="from when on: boot, today, 'yesterday 14:00', -2h; without it the last 24 hours",
        unit="only lines of this unit",
        priority="this priority and worse: emerg, alert, crit, err, warning, notice, info or debug",
        root="read the log files of this folder instead of the journal and /var/log",
    )
    if asked.unit is not None and not re.fullmatch(r"[\w][\w:.\\@-]*", asked.unit):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    if asked.priority is not None and asked.priority not in _PRIORITIES:
        refuse(f"--priority={asked.priority} is none of {', '.join(_PRIORITIES)}.")
    since = clock.since(asked.since or "-24h")
    unit = unit_name(asked.unit) if asked.unit else None
    word = missing(unit) if unit and not asked.root else ""
    lines = None if asked.root else from_journal(since, None if word else unit, asked.priority, report)
    source = "the journal"
    if lines is None:
        source = asked.root or "/var/log"
        lines = from_files(Path(source), since, unit, report)
    if lines is None and not asked.root and not unit:
        source = "the kernel's messages (nothing else can be read here)"
        lines = from_kernel(since, report)
    if lines is None:
        report.finding = (
            "Whether there are errors cannot be said: neither the journal nor a log file can be read here."
        )
        return
    if word:
        lines = [line for line in lines if re.search(rf"\b{re.escape(word)}", f"{line[1]} {line[3]}")]
        report.found_nothing = not lines
    about = f" of {unit}" if unit and not word else f" naming {word}" if word else ""
    where = f"{about} in {source} since {clock.show(since)[:16]}"
    groups = grouped(lines)
    report.finding = (f"There is no unit {unit}. " if word else "") + headline(
        groups, where, asked.priority, report
    )
    if groups and groups[0].source.endswith((".service", ".mount", ".socket", ".timer")) and not unit:
        report.next = prompt(f"why is {groups[0].source} down")
    elif unit and not word:
        report.next = prompt(f"status of {unit}")
    rows = [
        (
            one.count,
            clock.show(one.first)[5:16],
            clock.show(one.last)[5:16],
            one.priority,
            one.source,
            shorten(one.text, 140),
        )
        for one in groups
    ]
    header = ("Count", "First", "Last", "Priority", "Unit", "Message (the newest of the group)")
    report.table("Grouped", header, rows)
    if unit and not word and source == "the journal":
        entries, _ = journal("-u", unit, "--since", f"@{int(since)}", limit=10)
        shown = [f"{clock.show(stamp(entry))} {shorten(message(entry), 180)}" for entry in entries]
        report.lines(f"Last lines of {unit}", shown)


def missing(unit: str) -> str:
    """The word to look for where there is no such unit, such as the name of a disk; else an empty string."""
    found = named(unit)
    if found and found[0]["LoadState"] == "not-found":
        entries, _ = journal("-u", unit, limit=1, timeout_s=5)
        return "" if entries else unit.rpartition(".")[0]
    return ""


def headline(groups: list[Group], where: str, priority: str | None, report: Report) -> str:
    """How many there are, and the most frequent."""
    count = sum(group.count for group in groups)
    only_warnings = not priority and groups and all(group.priority == "warning" for group in groups)
    kind = f"messages of the priority {priority} or worse" if priority else "errors"
    hidden = f"Whether there are {kind} cannot be said, as not everything could be read; " * report.has_notes
    if not groups:
        return f"{hidden}none are visible{where}." if hidden else f"No {kind}{where}."
    noun = "message" if priority else "warning" if only_warnings else "error"
    top = groups[0]
    first = (hidden or "No errors, but ") if only_warnings else ""
    kinds = "" if len(groups) == 1 else f", in {plural(len(groups), 'group')}"
    often = "" if len(groups) == 1 else "the most frequent is "
    what = f'{often}"{shorten(top.text, 110)}" ({_times(top.count)}, {top.source})'
    return f"{first}{plural(count, noun)}{where}{kinds}: {what}."


run(make)
