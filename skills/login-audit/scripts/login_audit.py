"""Shows logins, failed logins, use of sudo and the accounts that can log in. Only observes."""

from __future__ import annotations

import re
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from commands import journal, message, read, stamp
from commands import run as run_command
from report import Report, options, plural, run, shorten

_RECORD = struct.Struct("=hxxi32s4s32s256shhiii16s20s")
"""struct utmp of glibc with 64 bits, 384 bytes (utmp(5))."""
_LOGIN, _USER = 6, 7
_ROWS = 20
_FAILED = re.compile(
    r"Failed \w+ for (?:invalid user )?(\S*) from (\S+)|"
    r"authentication failure;.*?(?:rhost=(\S*))?.*?user=(\S+)"
)
_ACCEPTED = re.compile(r"Accepted (\S+) for (\S+) from (\S+)")
_NO_SHELLS = ("nologin", "false", "sync", "halt", "shutdown")


@dataclass(frozen=True)
class Login:
    user: str
    line: str
    host: str
    when: float


def records(path: str, kinds: tuple[int, ...], since: float, report: Report) -> list[Login]:
    """The records of a file such as /var/log/wtmp, oldest first."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        report.note(f"{path} does not exist on this machine.")
        return []
    except OSError as err:
        report.note(f"{path} cannot be read: {err.strerror}.")
        return []
    found = []
    for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
        kind, _, line, _, user, host, _, _, _, seconds, *_ = _RECORD.unpack_from(data, at)
        words = [field.split(b"\0")[0].decode("utf-8", "replace") for field in (user, line, host)]
        if kind in kinds and words[0] and seconds >= since:
            found.append(Login(words[0], words[1], words[2], float(seconds)))
    return found


def sessions(report: Report) -> list[tuple[str, ...]]:
    """Sessions now: from systemd-logind, else from utmp."""
    answer = run_command("loginctl", "list-sessions", "--no-legend", "--no-pager")
    if not answer.problem:
        rows = [tuple(line.split()) for line in answer.stdout.splitlines() if line.split()]
        return [(row[2] if len(row) > 2 else "?", " ".join(row[3:]), f"session {row[0]}") for row in rows]
    found = records("/run/utmp", (_USER,), 0, Report())
    if not found:
        report.note(f"Sessions: {answer.problem}")
    return [(login.user, f"{login.line} {login.host}", clock.show(login.when)) for login in found]


def accounts(root: str) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """Accounts with a login shell, and the names besides root that have uid 0."""
    rows, zero = [], []
    for line in (read(f"{root}/etc/passwd") or "").splitlines():
        columns = line.split(":")
        if len(columns) < 7:
            continue
        if columns[2] == "0" and columns[0] != "root":
            zero.append(columns[0])
        if columns[6] and not columns[6].endswith(_NO_SHELLS):
            rows.append((columns[0], columns[2], columns[6], columns[5]))
    return rows, zero


def administrators(root: str) -> list[tuple[str, str]]:
    """Members of the groups that may use sudo on Debian, Red Hat and SUSE."""
    rows = []
    for line in (read(f"{root}/etc/group") or "").splitlines():
        columns = line.split(":")
        if len(columns) > 3 and columns[0] in ("sudo", "wheel", "admin") and columns[3]:
            rows.append((columns[0], columns[3].replace(",", ", ")))
    return rows


def from_journal(
    since: float, report: Report
) -> tuple[list[Login], Counter[tuple[str, str]], list[tuple[str, str]]]:
    """Accepted SSH logins, failed ones by user and address, and uses of sudo and su."""
    accepted: list[Login] = []
    failed: Counter[tuple[str, str]] = Counter()
    used: list[tuple[str, str]] = []
    entries, problem = journal(
        "--since",
        f"@{int(since)}",
        "SYSLOG_FACILITY=10",
        "+",
        "SYSLOG_FACILITY=4",
        "--since",
        f"@{int(since)}",
        limit=8000,
    )
    report.note(problem)
    rows = [(stamp(entry), str(entry.get("SYSLOG_IDENTIFIER", "")), message(entry)) for entry in entries]
    if not entries:
        report.note("The journal has no entry about authentication in that time.")
        rows = _auth_log(since)
    for when, name, text in rows:
        good, bad = _ACCEPTED.search(text), _FAILED.search(text)
        if good:
            accepted.append(Login(good[2], f"ssh ({good[1]})", good[3], when))
        elif bad:
            failed[(bad[1] or bad[4] or "?", bad[2] or bad[3] or "local")] += 1
        elif name in ("sudo", "su") and ("COMMAND=" in text or text.startswith("(to ")):
            used.append((clock.show(when), shorten(f"{name}: {text}", 160)))
    return accepted, failed, used


def _auth_log(since: float) -> list[tuple[float, str, str]]:
    rows = []
    pattern = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* \S+ (\w+)(?:\[\d+\])?: (.*)")
    for path in ("/var/log/auth.log", "/var/log/secure"):
        for line in (read(path) or "")[-(4 << 20) :].splitlines():
            match = pattern.match(line)
            if match:
                when = time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
                if when >= since:
                    rows.append((when, match[2], match[3]))
    return rows


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        since=(
            "from when on: boot, today, 'yesterday 14:00', -2h, '2025-01-31 14:00'; without it "
            "the last 7 days"
        ),
        root="read etc/ and var/log/ below this folder",
    )
    since, root = clock.since(asked.since or "-7d"), asked.root or ""
    now = [] if root else sessions(report)
    last = records(f"{root}/var/log/wtmp", (_USER,), since, report)
    accepted, failed, used = ([], Counter(), []) if root else from_journal(since, report)
    bad = records(f"{root}/var/log/btmp", (_LOGIN, _USER), since, report)
    if bad:
        failed = max(
            failed,
            Counter((login.user, login.host or login.line) for login in bad),
            key=lambda c: sum(c.values()),
        )
    with_shell, zero = accounts(root)
    logins = last or accepted
    fails = sum(failed.values())
    words = f"{plural(len(now), 'session')} now; since {clock.show(since)} {plural(len(logins), 'login')}"
    words += f" and {plural(fails, 'failed login')}" + (
        f", most for {failed.most_common(1)[0][0][0]}" if fails else ""
    )
    alarm = f"WARNING, uid 0 besides root: {', '.join(zero)}; " if zero else ""
    if not (now or logins or fails or used) and report.has_notes:
        words = "No login can be seen from here, and not every record could be read"
    report.finding = f"{alarm}{words}."
    report.table(
        "Sessions now",
        ("User", "Where", "Since"),
        now,
        "" if root else "Nobody is logged in, as far as can be seen.",
    )
    report.table(
        "Last logins",
        ("Time", "User", "Terminal", "From"),
        [
            (clock.show(login.when), login.user, login.line, login.host or "-")
            for login in reversed(logins[-_ROWS:])
        ],
        "None are recorded.",
    )
    report.table(
        "Failed logins",
        ("Count", "User", "From"),
        [(count, *key) for key, count in failed.most_common(_ROWS)],
        "None are recorded.",
    )
    report.table("Uses of sudo and su", ("Time", "What"), used[-_ROWS:], "" if root else "None are recorded.")
    report.table("Accounts that can log in", ("Name", "Uid", "Shell", "Home"), with_shell)
    report.table("Groups that may use sudo", ("Group", "Members"), administrators(root))


run(make)
