"""Shows who is logged in, who was, and failed logins by source. Only observes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import access
from areas.access import Login
from checks import prompt
from report import Report, options, plural, refuse, run, span

_HOUR_S = 3600.0


def seen(since: float, root: str, report: Report) -> tuple[list[Login], list[Login]]:
    """Logins and failed logins from all records, oldest first; those of sshd are in two of them."""
    lines, problem = ([], "") if root else access.from_journal(since, access.DOORS)
    if root:
        lines = access.from_files(since, root)
    report.note(problem)
    accepted, failed, _ = access.parsed(lines)
    logins: list[Login] = []
    for found, why in (
        access.records(f"{root}/var/log/wtmp", since),
        access.wtmpdb(since, f"{root}/var/lib/wtmpdb/wtmp.db"),
    ):
        logins += found
        report.note(why)
    noted = {(one.user, one.source, round(one.when / 10)) for one in logins}
    logins += [
        one
        for one in accepted
        if not {(one.user, one.source, round(one.when / 10) + shift) for shift in (-1, 0, 1)} & noted
    ]
    bad, why = access.records(f"{root}/var/log/btmp", since, failed=True)
    if len(bad) > len(failed):
        failed = bad
    elif not failed:
        report.note(why)
    return sorted(logins, key=lambda one: one.when), sorted(failed, key=lambda one: one.when)


def failures(failed: list[Login]) -> str:
    """How many failed, from where and for whom."""
    if not failed:
        return ""
    sources, users = Counter(one.source or one.how for one in failed), Counter(one.user for one in failed)
    words = f"{plural(len(failed), 'failed login')}, most from {access.most(sources)}"
    return (
        f"{words} and most for {access.most(users)}"
        if len(failed) > 1
        else (f"1 failed login, from {failed[0].source or failed[0].how} for {failed[0].user}")
    )


def by_source(failed: list[Login]) -> list[tuple[int, str, str, str]]:
    """Count, source, users and time of the last failure, the most frequent source first."""
    rows: dict[str, list[Login]] = {}
    for one in failed:
        rows.setdefault(one.source or one.how, []).append(one)
    table = []
    for source, found in sorted(rows.items(), key=lambda pair: -len(pair[1])):
        users = Counter(one.user for one in found).most_common()
        few = ", ".join(f"{name} ({count})" for name, count in users[:3])
        rest = f" and {len(users) - 3} more" if len(users) > 3 else ""
        table.append((len(found), source, few + rest, clock.show(found[-1].when)))
    return table


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        since="from when on: boot, today, 'yesterday 14:00', -2h; without it the last 7 days",
        user="only this user",
        host="only logins from this source",
        root="read var/log/ below this folder",
    )
    for name in ("user", "host"):
        if getattr(asked, name) is not None and not getattr(asked, name).isprintable():
            refuse(f"--{name} has characters that no name has.")
    since, root = clock.since(asked.since or "-7d"), asked.root or ""
    host = (asked.host or "").rpartition(":")[0] if (asked.host or "").count(":") == 1 else asked.host
    now, problem = ([], "") if root else access.sessions()
    report.note(problem)
    logins, failed = seen(since, root, report)
    brute = list(access.brute_force([one for one in failed if one.when > time.time() - _HOUR_S], logins))
    if asked.user:
        logins, failed = ([one for one in rows if one.user == asked.user] for rows in (logins, failed))
        now = [row for row in now if row[0] == asked.user]
    if host:
        logins, failed = ([one for one in rows if one.source == host] for rows in (logins, failed))
    who = "".join((f" of {asked.user}" if asked.user else "", f" from {host}" if host else ""))
    users = list(dict.fromkeys(row[0] for row in now))
    words = f"Logged in now: {', '.join(users[:5])}" if users else "Nobody is logged in now"
    if asked.user:
        words = f"{asked.user} is logged in now" if now else f"{asked.user} is not logged in now"
    words += f"; {plural(len(logins), 'login') if logins else 'no login'}{who} since {clock.show(since)}"
    if logins:
        last = logins[-1]
        words += (
            f", the last by {last.user} from {last.source or last.how} {span(time.time() - last.when)} ago"
        )
    is_brute = bool(brute) and not asked.user and (not host or any(host in one.text for one in brute))
    if is_brute and len({one.source for one in failed}) == 1 and failed[0].when > time.time() - _HOUR_S:
        words += "."  # the finding has said it all
    else:
        words += f"; {failures(failed)}." if failed else "; no failed login."
    if not (now or logins or failed) and report.has_notes:
        words = "No login can be seen from here, and not every record could be read."
    if is_brute:
        words = f"{brute[0].text} {words}"
        report.next = prompt("who is banned by the firewall")
    for one in access.nologin(root):
        words = f"{one.text} {words}"
        report.next = f"rm {one.text.partition(' there is ')[2].rstrip('.').partition(',')[0]}"
    report.finding = words
    report.table("Logged in now", ("User", "Where", "Session"), now)
    report.table("Failed logins", ("Count", "From", "Users", "Last"), by_source(failed)[:20])
    report.table(
        "Last logins",
        ("Time", "User", "How", "From"),
        [(clock.show(one.when), one.user, one.how, one.source or "-") for one in reversed(logins[-30:])],
    )


run(make)
