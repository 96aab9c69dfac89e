"""Shows who became root with sudo, su, pkexec or doas, and what was refused. Only observes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import access, accounts
from checks import prompt
from report import Report, options, plural, refuse, run, span


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        since="from when on: boot, today, 'yesterday 14:00', -2h; without it the last 7 days",
        user="only what this user did",
    )
    if asked.user is not None and not asked.user.isprintable():
        refuse("--user has characters that no name has.")
    since = clock.since(asked.since or "-7d")
    lines, problem = access.from_journal(since, access.ROOT_WAYS)
    report.note(problem)
    used = access.parsed(lines)[2]
    if asked.user:
        used = [one for one in used if one.user == asked.user]
    refused = [one for one in used if one.refused]
    allowed = [one for one in used if not one.refused]
    who = asked.user or ""
    parts = []
    if refused:
        last = refused[-1]
        users = Counter(one.user for one in refused)
        by = f", most for {access.most(users)}" if len(users) > 1 else ""
        what = f" ({last.what})" if last.what else ""
        parts.append(
            f"{plural(len(refused), 'refusal')}{by}: {last.program} refused {last.user} "
            f"{span(time.time() - last.when)} ago: {last.refused}{what}"
        )
        report.next = prompt(f"check the account {last.user}")
    if allowed:
        last = allowed[-1]
        by = f"{who} became" if who else f"{access.most(Counter(one.user for one in allowed))} became"
        parts.append(
            f"{by} another user {plural(len(allowed), 'time')}, last {span(time.time() - last.when)} ago: "
            f"{last.user} with {last.program} as {last.target}{f', {last.what}' if last.what else ''}"
        )
    by = f" by {who}" if who else ""
    nobody = f"No use of sudo, su, pkexec or doas{by} is recorded since {clock.show(since)}"
    report.finding = f"{'; '.join(parts) or nobody}."
    if not parts and report.has_notes:
        report.finding = "The use of sudo and su cannot be seen from here."
    rows = [
        (clock.show(one.when), one.program, one.user, one.target, one.refused or "allowed", one.what)
        for one in reversed(used)
    ]
    header = ("Time", "With", "User", "As", "Result", "What")
    report.table("Refused", header, [row for row in rows if row[4] != "allowed"][:20])
    report.table("Allowed", header, [row for row in rows if row[4] == "allowed"][:20])
    report.table("Groups that may use sudo", ("Group", "Members"), accounts.administrators())


run(make)
