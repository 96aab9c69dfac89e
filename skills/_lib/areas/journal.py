"""The journal itself: its size, whether it is kept over a reboot, damaged files, messages that it dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import WARNING, CannotSee, Finding, check
from commands import journal, message, run, stamp
from report import clean, plural, shorten

_DROPPED, _MISSED = "a596d6fe7bfa4994828e72309e95d61e", "e9bf28e6e834481bb6f48f548ad13606"
_USAGE = "ec387f577b844b8fa948f33cad9a75e6"
"""Message ids of journald; see systemd-journald.service(8)."""
_OF_PEOPLE = re.compile(r"^(?:user@|session-)|ssh")
"""Desktops and strangers at the door write errors all day."""
_OFTEN = 20
"""So many errors of one unit in an hour are told of; a critical one always is."""
_FOLDERS = ("/var/log/journal", "/run/log/journal")
_ASK = "is the journal ok"
_FIELDS = "MESSAGE,PRIORITY,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER,_TRANSPORT,_PID"


@dataclass
class Dropped:
    """Messages of one unit that journald left out because there were too many: how many, and when last."""

    source: str
    count: int
    last: float


def dropped(since: str = "-1d") -> tuple[list[Dropped], str]:
    """Who wrote more than journald takes, the worst first, and why this may not be whole."""
    wanted = [f"MESSAGE_ID={one}" for one in (_DROPPED, _MISSED)]
    entries, problem = journal("--since", since, *wanted, limit=2000, timeout_s=5)
    found: dict[str, Dropped] = {}
    for entry in entries:
        match = re.match(r"(?:Suppressed|Missed) (\d+) (?:kernel )?messages(?: from (\S+))?", message(entry))
        if match:
            name = (match[2] or "the kernel").rpartition("/")[2]
            one = found.setdefault(name, Dropped(name, 0, 0.0))
            one.count += int(match[1])
            one.last = stamp(entry)
    return sorted(found.values(), key=lambda one: -one.count), problem


def unreadable_files() -> list[str]:
    """The files that journalctl cannot use, and why; reading the newest entry opens them all."""
    answer = run("journalctl", "-n", "1", "-o", "cat", "--no-pager", timeout_s=5)
    pattern = r"Journal file (\S+)(?: is)? (corrupted|truncated)|(\S*/journal/\S+): (Bad message.*|No data.*)"
    found = (re.search(pattern, line) for line in answer.stderr.splitlines())
    return [clean(f"{one[1] or one[3]} ({one[2] or one[4]})") for one in found if one]


def set_aside() -> list[Path]:
    """Files that journald set aside because they were damaged or not closed; see journald.conf(5)."""
    return [path for folder in _FOLDERS for path in sorted(Path(folder).glob("*/*.journal~"))]


def usage() -> tuple[int, int]:
    """The bytes that the journal's files take on disk and in memory, as far as they can be seen."""
    sizes = []
    for folder in _FOLDERS:
        sizes.append(0)
        for path in Path(folder).glob("*/*.journal*"):
            try:
                sizes[-1] += path.stat().st_blocks * 512
            except OSError:
                continue
    return sizes[0], sizes[1]


def is_kept() -> bool | None:
    """Whether the journal outlives a reboot; None where its folders cannot be seen."""
    try:
        if any(Path(_FOLDERS[0]).glob("*/system*.journal")):
            return True
        return False if any(Path(_FOLDERS[1]).glob("*/system*.journal")) else None
    except OSError:
        return None


def limits() -> str:
    """What journald said of its limits when it last told: `... max 4G, 3.9G free.`."""
    entries, _ = journal("-b", f"MESSAGE_ID={_USAGE}", limit=1, timeout_s=5)
    return message(entries[-1]) if entries else ""


@check("journal.access", "whether the journal can be read, and damaged files")
def access() -> Iterator[Finding]:
    entries, problem = journal(limit=1, timeout_s=5)
    if not entries:
        raise CannotSee(problem or "The journal has no entries.")
    for line in unreadable_files()[:3]:
        yield Finding(f"A file of the journal is damaged: {line}.", _ASK, severity=WARNING)
    if problem:
        raise CannotSee(problem)


@check("journal.dropped", "messages that the journal dropped")
def lost() -> Iterator[Finding]:
    found, problem = dropped()
    for one in found[:5]:
        text = (
            f"The journal dropped {one.count} messages of {one.source}: it writes more than the rate limit."
        )
        yield Finding(text, f"errors of {one.source}", one.last, WARNING)
    if problem:
        raise CannotSee(problem)


@check("journal.errors", "units that log critical messages, or errors all the time")
def errors() -> Iterator[Finding]:
    entries, problem = journal(
        "--since", "-1h", "-p", "err", "--output-fields=" + _FIELDS, limit=3000, timeout_s=5
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        name = str(entry.get("_SYSTEMD_UNIT") or entry.get("SYSLOG_IDENTIFIER") or "?")
        if name == "sudo" and " COMMAND=" in message(entry):
            continue  # access.refused tells of it
        if entry.get("_TRANSPORT") != "kernel" and entry.get("_PID") != "1" and not _OF_PEOPLE.search(name):
            found.setdefault(name, []).append(entry)
    for name, lines in sorted(found.items()):
        grave = [entry for entry in lines if entry.get("PRIORITY") in ("0", "1", "2")]
        if grave or len(lines) >= _OFTEN:
            kind = "critical message" if grave else "error"
            count, text = len(grave or lines), shorten(message((grave or lines)[-1]), 120)
            told = f'{name} logged {plural(count, kind)} in the last hour: "{text}".'
            yield Finding(told, f"errors of {name}", stamp(lines[0]), WARNING)
    if problem:
        raise CannotSee(problem)
