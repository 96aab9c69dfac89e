"""Says what changed on this machine since a time, next to the first error after it. Only observes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import checks
from clock import show, since
from commands import journal, message, read, stamp
from machine_state import State, state
from report import Report, option_parser, plural, run, shorten

_SNAPSHOT = "LIGHTAGENT_SNAPSHOT"
"""Names the file of the last snapshot before the time: `{"time": seconds, "state": ...}`."""
_PACKAGE_LOGS = ("/var/log/dpkg.log", "/var/log/dpkg.log.1", "/var/log/dnf.rpm.log")
_PACKAGE_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)\S* (install|upgrade|remove|purge) (\S+) (.*)"
)
_MOST_BY_TIME = 200
_MOST_AS_JSON = 200
"""The result of a call is bounded; `count` says how many there are."""


@dataclass(frozen=True)
class Change:
    section: str
    name: str
    what: str
    """`new`, `gone`, or `old -> new`."""

    @property
    def words(self) -> str:
        return f"{self.section} {self.name}: {self.what}"


def differences(before: State, now: State) -> list[Change]:
    """What is new, gone or another, section by section; a section that is empty on one side was not seen."""
    found = []
    for section in now:
        old, new = before.get(section, {}), now[section]
        if not old or not new:
            continue
        names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        found += newest_first(
            [Change(section, name, _what(section, old.get(name), new.get(name))) for name in names]
        )
    return found


def _what(section: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"new ({new})" if new and section in ("package", "unit", "mount", "port") else "new"
    if new is None:
        return "gone"
    if section in ("file", "sudo and cron"):
        return "mode or owner changed" if old.split()[0] == new.split()[0] else "changed"
    return f"{old} -> {new}"


def without_snapshot(start: float, end: float) -> list[Change]:
    """What the logs of packages and the times of files in /etc say, where no snapshot is that old."""
    found = []
    for path in _PACKAGE_LOGS:
        for line in (read(path) or "").splitlines():
            match = _PACKAGE_LINE.match(line)
            when = match and time.mktime(time.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S"))
            if match and when and start <= when < end:
                found.append(Change("package", match[4], f"{match[3]} {match[5]} at {match[1]} {match[2]}"))
    found.reverse()
    files = []
    for folder, _, names in os.walk("/etc"):
        for name in names:
            path = f"{folder}/{name}"
            try:
                changed = os.lstat(path).st_mtime
            except OSError:
                continue
            if start <= changed < end:
                files.append(Change("file", path, f"changed {show(changed)}"))
    return found + newest_first(files)[:_MOST_BY_TIME]


def newest_first(found: list[Change]) -> list[Change]:
    """Changes of files by when each was last written; others keep their order, behind them."""

    def written(one: Change) -> float:
        try:
            return os.lstat(one.name).st_mtime if one.name.startswith("/") else 0.0
        except OSError:
            return 0.0

    return sorted(found, key=lambda one: -written(one))


def first_error(start: float, report: Report) -> str | None:
    """The first line of priority err or worse since then, with its time and source; None if unreadable."""
    entries, problem = journal("-p", "err", f"--since=@{start:.0f}", limit=500)
    report.note(problem)
    for entry in entries:
        source = entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or "?"
        return f"{show(stamp(entry))} {source}: {shorten(message(entry), 160)}"
    return None if problem else ""


def snapshot() -> tuple[float, State] | None:
    """The time and the state that the daemon handed over, if it has one."""
    text = read(os.environ.get(_SNAPSHOT, "")) if os.environ.get(_SNAPSHOT) else None
    if not text:
        return None
    whole: dict[str, Any] = json.loads(text)
    return float(whole["time"]), whole["state"]


def make(report: Report) -> None:
    parser = option_parser(str(__doc__))
    parser.add_argument("--since", default="yesterday", help="from when on; without it since yesterday")
    parser.add_argument("--state", action="store_true", help="print the state as JSON, to be compared later")
    parser.add_argument("--json", action="store_true", help="print the changes as JSON")
    options = parser.parse_args()
    Report.full = options.full
    if options.state:
        sys.stdout.write(json.dumps(state(), sort_keys=True, separators=(",", ":")) + "\n")
        raise SystemExit(0)
    start = since(options.since)
    before = snapshot()
    if before is None or before[0] > start:
        first = f"The first is of {show(before[0])}." if before else "From now on: lactl snapshot"
        report.note(
            "There is no snapshot of that time, so this is what logs and times of files tell of it; removed "
            f"files, users, units and ports cannot be told. {first}"
        )
    changes = [] if before is None else differences(before[1], state())
    if before is None or before[0] > start:
        told = {(one.section, one.name) for one in changes}
        earlier = without_snapshot(start, time.time() if before is None else before[0])
        changes += [one for one in earlier if (one.section, one.name) not in told]
    else:
        start = before[0]
    error = first_error(start, report)
    report.finding = headline(changes, start, error)
    if error:
        report.next = checks.prompt(f"errors since {time.strftime('%Y-%m-%d %H:%M', time.localtime(start))}")
    for section in dict.fromkeys(change.section for change in changes):
        rows = [(one.name, one.what) for one in changes if one.section == section]
        report.table(plural(len(rows), section), ("What", "Change"), rows)
    if options.json:
        rows_ = [
            {"section": one.section, "name": one.name, "change": one.what} for one in changes[:_MOST_AS_JSON]
        ]
        whole = {
            "since": start,
            "has_snapshot": before is not None,
            "snapshot": before and before[0],
            "count": len(changes),
            "changes": rows_,
            "first_error": error,
        }
        sys.stdout.write(json.dumps({**whole, "report": report.render()}) + "\n")
        raise SystemExit(0)


def headline(changes: list[Change], start: float, error: str | None) -> str:
    rest = f"; the first error after it: {error}" if error else ""
    if error == "":
        rest = "; no error was logged since"
    if not changes:
        return f"Nothing changed since {show(start)}{rest}.".replace("..", ".")
    counts: dict[str, int] = {}
    for one in changes:
        counts[one.section] = counts.get(one.section, 0) + 1
    told = ", ".join(plural(number, section) for section, number in counts.items())
    files = [one for one in changes if one.section in ("file", "sudo and cron") and one.what != "gone"]
    if len(changes) == 1:
        told = changes[0].words
    elif files:
        told += f"; the newest file is {newest_first(files)[0].name}"
    return f"Changed since {show(start)}: {told}{rest}.".replace("..", ".")


run(make)
