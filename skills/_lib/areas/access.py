"""Who came in, who was kept out, and who became root: by the journal, auth.log, wtmp and btmp."""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from checks import WARNING, CannotSee, Finding, check
from commands import journal, message, read, run, stamp
from report import plural, shorten

MANY_FAILURES = 20
"""Failed logins from one source in an hour that are called brute force."""
_MOST_REFUSALS = 3
_HOUR_S, _DAY_S = 3600.0, 86400.0
_RECORD = struct.Struct("=hxxi32s4s32s256shhiii16s20s")
"""struct utmp of glibc with 64 bits, 384 bytes (utmp(5))."""
_LOGIN, _USER = 6, 7
DOORS = ("sshd", "sshd-session", "dropbear", "login", "vsftpd", "gdm-password", "cockpit-session")
ROOT_WAYS = ("sudo", "su", "polkitd", "pkexec", "doas")
_LOG_BYTES = 4 << 20

_REPEATED = re.compile(r"message repeated (\d+) times: \[ ?(.*?)\]?$")
_FAILED = (
    re.compile(r"Failed (?!none)\S+ for (?:invalid user )?(?P<user>\S*) from (?P<source>\S+)"),
    re.compile(r"FAILED LOGIN \(?\d*\)? ?on '(?P<source>\S+)'.*FOR '(?P<user>[^']*)'"),
    re.compile(r"[Bb]ad password attempt for '(?P<user>[^']*)' from (?P<source>[^\s:]+)"),
)
_PROBED = (
    re.compile(r"Invalid user (?P<user>\S*) from (?P<source>\S+)"),
    re.compile(r"(?:closed|reset) by (?:authenticating|invalid) user (?P<user>\S*) (?P<source>\S+) port"),
    re.compile(r"authentication failure;.*?rhost=(?P<source>\S+)(?:\s+user=(?P<user>\S+))?"),
)
_ACCEPTED = re.compile(r"Accepted (?P<how>\S+) for (?P<user>\S+) from (?P<source>\S+)")
_SUDO = re.compile(
    r"^\s*(?P<user>\S+) : (?:(?P<refused>[^;=]+) ; )?.*?USER=(?P<to>\S+).*?COMMAND=(?P<what>.*)"
)
_SU = re.compile(r"^(?P<refused>FAILED SU )?\(to (?P<to>\S+)\) (?P<user>\S+) on (?P<what>\S+)")
_POLKIT = re.compile(
    r"FAILED to authenticate to gain authorization for action (?P<what>\S+) .*unix-user:(?P<user>[^\s)]+)"
)
_PKEXEC = re.compile(
    r"^(?P<user>\S+): (?:(?P<refused>Error executing command as another user: Not authorized)|"
    r"Executing command)"
    r".*?\[USER=(?P<to>[^\]]+)\].*?\[COMMAND=(?P<what>[^\]]*)\]"
)
_DOAS = re.compile(
    r"^(?P<refused>(?:failed (?:auth|password)|command not permitted) for )?(?P<user>\S+)"
    r"(?:: | ran command )(?P<what>.*?)(?: as (?P<to>\S+).*)?$"
)


@dataclass(frozen=True)
class Login:
    user: str
    how: str
    source: str
    when: float


@dataclass(frozen=True)
class RootUse:
    """One use of sudo, su or polkit; `refused` is empty when it was allowed."""

    when: float
    program: str
    user: str
    target: str
    what: str
    refused: str = ""


@dataclass(frozen=True)
class Line:
    when: float
    program: str
    text: str


def parsed(lines: Iterable[Line]) -> tuple[list[Login], list[Login], list[RootUse]]:
    """Logins, failed logins and uses of root's rights in lines of logs.

    sshd says some failures in two or three lines; a source's failures are those of the most frequent kind.
    """
    accepted: list[Login] = []
    failed: dict[str, list[Login]] = {}
    probed: dict[str, list[Login]] = {}
    used: list[RootUse] = []
    for line in lines:
        repeated = _REPEATED.search(line.text)
        times, text = (int(repeated[1]), repeated[2]) if repeated else (1, line.text)
        if line.program in ROOT_WAYS:
            one = _root_use(line)
            used += [one] if one else []
            continue
        good = _ACCEPTED.search(text)
        if good:
            accepted.append(Login(good["user"], f"{line.program} ({good['how']})", good["source"], line.when))
            continue
        for patterns, group in ((_FAILED, failed), (_PROBED, probed)):
            match = next((found for found in (one.search(text) for one in patterns) if found), None)
            if match:
                one_login = Login(match["user"] or "?", line.program, match["source"], line.when)
                group.setdefault(match["source"], []).extend([one_login] * min(times, 10000))
                break
    for source, rows in probed.items():
        if len(rows) > 2 * len(failed.get(source, ())):
            failed[source] = rows
    return accepted, sorted(chain.from_iterable(failed.values()), key=lambda one: one.when), used


def _root_use(line: Line) -> RootUse | None:
    if line.program == "polkitd":
        match = _POLKIT.search(line.text)
        refused = "not authorized"
    else:
        pattern = {"sudo": _SUDO, "su": _SU, "pkexec": _PKEXEC, "doas": _DOAS}[line.program]
        match = pattern.search(line.text)
        refused = (match["refused"] or "").strip() if match else ""
    if match is None:
        return None
    groups = match.groupdict()
    return RootUse(
        line.when,
        "polkit" if line.program == "polkitd" else line.program,
        groups["user"],
        groups.get("to") or "root",
        shorten(groups["what"] or "", 100),
        "wrong password" if line.program == "su" and refused else refused,
    )


def from_journal(since: float, programs: tuple[str, ...]) -> tuple[list[Line], str]:
    """The lines of these programs, oldest first, and what could not be read; else those of auth.log."""
    match = [f"SYSLOG_IDENTIFIER={name}" for name in programs]
    entries, problem = journal(
        f"--since=@{int(since)}",
        "--output-fields=MESSAGE,SYSLOG_IDENTIFIER,_UID,_EXE",
        *match,
        limit=20000,
        timeout_s=8,
    )
    lines = [Line(stamp(one), str(one.get("SYSLOG_IDENTIFIER", "")), message(one)) for one in entries]
    if not lines:
        lines = [line for line in from_files(since) if line.program in programs]
    return lines, "" if lines else problem


def from_files(since: float, root: str = "") -> list[Line]:
    """Lines of auth.log or secure, with the time stamps of RFC 3339 or of RFC 3164."""
    rows = []
    pattern = re.compile(
        r"^(\d{4}-\d\d-\d\dT[\d:]{8}|[A-Z][a-z]{2} [ \d]\d [\d:]{8})\S* \S+ ([\w-]+)(?:\[\d+\])?: (.*)"
    )
    year = time.localtime().tm_year
    for path in (f"{root}/var/log/auth.log", f"{root}/var/log/secure"):
        for line in (read(path) or "")[-_LOG_BYTES:].splitlines():
            match = pattern.match(line)
            if not match:
                continue
            try:
                if match[1][0].isdigit():
                    when = time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
                else:
                    when = time.mktime(time.strptime(f"{year} {match[1]}", "%Y %b %d %H:%M:%S"))
                    when -= 366 * _DAY_S if when > time.time() + _DAY_S else 0
            except ValueError:
                continue
            if when >= since:
                rows.append(Line(when, match[2], match[3][:1000]))
    return rows


def records(path: str, since: float, *, failed: bool = False) -> tuple[list[Login], str]:
    """The logins of a file such as /var/log/wtmp, oldest first, and why it could not be read."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return [], ""
    except OSError as err:
        return [], f"{path} cannot be read: {err.strerror}."
    found = []
    for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
        kind, _, line, _, user, host, _, _, _, seconds, *_ = _RECORD.unpack_from(data, at)
        words = [field.split(b"\0")[0].decode("utf-8", "replace") for field in (user, line, host)]
        if kind in ((_LOGIN, _USER) if failed else (_USER,)) and words[0] and seconds >= since:
            found.append(Login(words[0], words[1], words[2], float(seconds)))
    return found, ""


def wtmpdb(since: float, path: str = "/var/lib/wtmpdb/wtmp.db") -> tuple[list[Login], str]:
    """The logins of wtmpdb(8), which Debian 13 has in place of wtmp."""
    if not Path(path).exists():
        return [], ""
    try:
        import sqlite3  # Python can be built without it
    except ImportError:
        return [], f"{path} cannot be read: this Python has no sqlite3."
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, timeout=1)) as base:
            rows = base.execute(
                "SELECT User, TTY, RemoteHost, Login FROM wtmp WHERE Type = 3 AND Login >= ? ORDER BY Login",
                (int(since * 1e6),),
            ).fetchall()
    except sqlite3.Error as err:
        return [], f"{path} cannot be read: {err}."
    return [Login(str(row[0]), str(row[1] or ""), str(row[2] or ""), row[3] / 1e6) for row in rows], ""


def sessions() -> tuple[list[tuple[str, str, str]], str]:
    """User, terminal and session of everybody who is logged in, and what could not be read."""
    answer = run("loginctl", "list-sessions", "--no-pager", timeout_s=3)
    if not answer.problem:
        return sessions_in(answer.stdout), ""
    found, _ = records("/run/utmp", 0)
    return [(one.user, f"{one.how} {one.source}", "") for one in found], "" if found else answer.problem


def sessions_in(text: str) -> list[tuple[str, str, str]]:
    """The rows of loginctl(1), whose columns have grown over the years; services of users are no logins."""
    header, *lines = text.splitlines() or [""]
    found = []
    for line in lines:
        row = dict(zip(header.split(), line.split()))  # noqa: B905  # Python 3.9
        if len(row) > 2 and row.get("CLASS", "user") in ("user", "user-early", "greeter"):
            terminal = row.get("TTY", "-")
            found.append((row.get("USER", "?"), "" if terminal == "-" else terminal, row.get("SESSION", "")))
        elif not line.strip():
            break
    return found


def most(counted: Counter[str], limit: int = 2) -> str:
    """Who was most: `root (12)`; at a tie all of them: `root and admin (3 each)`."""
    if not counted:
        return ""
    top = max(counted.values())
    names = sorted(name for name, count in counted.items() if count == top)
    if len(names) == 1:
        return f"{names[0]} ({top})"
    few = (
        " and ".join(names)
        if len(names) <= limit
        else f"{', '.join(names[:limit])} and {len(names) - limit} more"
    )
    return f"{few} ({top} each)"


def brute_force(failed: list[Login], accepted: list[Login]) -> Iterator[Finding]:
    """Sources with many failures in an hour."""
    sources: dict[str, list[Login]] = {}
    for one in failed:
        sources.setdefault(one.source, []).append(one)
    for source, rows in sorted(sources.items(), key=lambda pair: -len(pair[1])):
        if len(rows) < MANY_FAILURES:
            continue
        users = Counter(one.user for one in rows)
        text = f"{plural(len(rows), 'failed login')} from {source} in the last hour, for "
        text += next(iter(users)) if len(users) == 1 else plural(len(users), "name")
        text += f", most for {most(users)}" if 1 < len(users) < len(rows) else ""
        came_in = [one for one in accepted if one.source == source and one.when >= rows[0].when]
        if came_in:
            yield Finding(
                f"{text}, then {came_in[0].user} came in from there.", f"who logged in from {source}"
            )
        else:
            yield Finding(f"{text}.", "failed logins by source", since=rows[0].when, severity=WARNING)


def refusals(used: list[RootUse]) -> Iterator[Finding]:
    """Who was refused root's rights: for want of a right, or often for a wrong password."""
    by_user: dict[tuple[str, str], list[RootUse]] = {}
    for one in used:
        if one.refused and "password is required" not in one.refused:
            by_user.setdefault((one.user, one.program), []).append(one)
    for (user, program), rows in sorted(by_user.items()):
        wrong = sum(_wrong_passwords(one) for one in rows)
        if wrong == len(rows) < _MOST_REFUSALS and program != "polkit":
            continue
        last, times = rows[-1], "once" if len(rows) == 1 else f"{len(rows)} times"
        yield Finding(
            f"{program} refused {user} {times} in the last day: {last.refused}"
            + (f", for {last.what}." if last.what else "."),
            f"what did sudo refuse to {user}",
            since=rows[0].when,
            severity=WARNING,
        )


def _wrong_passwords(one: RootUse) -> int:
    match = re.match(r"(\d+) incorrect password", one.refused)
    return 0 if match and int(match[1]) >= _MOST_REFUSALS else int("password" in one.refused)


@check("access.brute-force", "sources with many failed logins")
def doors() -> Iterator[Finding]:
    lines, problem = from_journal(time.time() - _HOUR_S, DOORS)
    if problem:
        raise CannotSee(problem)
    accepted, failed, _ = parsed(lines)
    yield from brute_force(failed, accepted)


def nologin(root: str = "") -> Iterator[Finding]:
    """Whether nobody but root may log in (pam_nologin(8))."""
    for path in ("/etc/nologin", "/run/nologin"):
        if (text := read(root + path)) is not None:
            said = f', and is told "{shorten(text, 80)}"' if text.strip() else ""
            told = f"Nobody but root can log in while there is {path}{said}."
            yield Finding(told, "why can users not log in by ssh")


@check("access.closed", "files that keep everybody from logging in")
def closed() -> Iterator[Finding]:
    yield from nologin()


@check("access.refused", "refusals of sudo, su and polkit")
def refused() -> Iterator[Finding]:
    lines, problem = from_journal(time.time() - _DAY_S, ROOT_WAYS)
    if problem:
        raise CannotSee(problem)
    yield from refusals(parsed(lines)[2])
