"""Checks accounts, passwords and rights, of all users or of one. Only observes."""

from __future__ import annotations

import difflib
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas import access, accounts
from areas.accounts import Account
from checks import CannotSee, prompt
from commands import run as run_command
from headline import tell
from report import Report, options, plural, refuse, run

_SINCE_S = 7 * 86400.0
_DAY_S = 86400


def rights_of(account: Account, rules: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rules of sudoers that name the user or one of their groups."""
    names = {account.name, f"#{account.uid}", *(f"%{name}" for name in accounts.groups_of(account))}
    return [rule for rule in rules if rule[1].split()[:1] and rule[1].split()[0] in names]


def password_words(account: Account, report: Report) -> str:
    """What is known of the password, as the end of a sentence."""
    known = accounts.passwords()
    if known is None:
        report.note("Whether the password is empty, locked or expired: only root may know.")
        return ""
    entry = known.get(account.name)
    if entry is None:
        return ", without a line in /etc/shadow"
    changed = f" since {clock.show(entry.changed * _DAY_S)[:10]}" if entry.changed else ""
    return f", {entry.state}" if entry.state else f", with a password{changed}"


def about(name: str, found: list[Account], report: Report) -> None:
    account = next((one for one in found if one.name == name), None)
    if account is None:
        there = run_command("getent", "passwd", "--", name, timeout_s=4).stdout.strip()
        if there:
            account = next(iter(accounts.accounts(there)[0]), None)
    if account is None:
        near = difflib.get_close_matches(name, [one.name for one in found], 2, 0.75)
        like = f"; there is {' and '.join(near)}" if near else ""
        report.finding = f"There is no account {name}{like}."
        report.found_nothing = True
        return
    groups = accounts.groups_of(account)
    strong = [one for one in groups if one in accounts.ADMIN_GROUPS]
    rules, unread = accounts.sudoers()
    mine = rights_of(account, rules)
    shell = f"the shell {account.shell}" if account.can_log_in else f"no login shell ({account.shell})"
    rights = f"; it can become root by {', '.join(strong)}" if strong and account.uid else ""
    if mine and not rights and account.uid:
        rights = f"; sudoers has {plural(len(mine), 'rule')} for it"
    report.finding = (
        f"{account.name} has uid {account.uid} and {shell}{password_words(account, report)}, and is in "
        f"{', '.join(groups) or 'no group'}{rights}."
    )
    wrong = [one.text for one in accounts.faults(found, []) if f" {account.name} " in one.text]
    report.finding = " ".join([*wrong[:1], report.finding])
    report.next = prompt(f"logins of {account.name}")
    report.table("Account", ("What", "Value"), [("Home", account.home), ("Gid", account.gid)])
    report.table("Rules of sudoers", ("File", "Rule"), mine)
    for sentence in unread:
        report.note(sentence)


def everybody(found: list[Account], bad: list[tuple[int, str]], report: Report) -> None:
    faults = list(accounts.faults(found, bad))
    known = accounts.passwords()
    faults += accounts.empty(found, accounts.without_password() or [])
    faults += [*accounts.expired(found, known or {}), *access.nologin()]
    if known is None:
        report.note("Empty, locked and expired passwords: only root may know.")
    people = [one for one in found if one.is_person and one.can_log_in]
    system = [one for one in found if 0 < one.uid < 1000 and one.can_log_in]
    members = accounts.administrators()
    admins = sorted({name for _, names in members for name in names.split(", ")})
    good = f"{plural(len(found), 'account')}, only root has uid 0"
    good += ", none that can log in has an empty password" if known is not None else ""
    who = plural(len(people), "person").replace("persons", "people") if people else "nobody"
    good += f"; {who} besides root {'have' if len(people) > 1 else 'has'} a login shell"
    good += f", and {', '.join(admins[:4])} may use sudo" if admins else ", and nobody is in a group for sudo"
    good += "." if known is not None else "; whether a password is empty or expired only root may know."
    made, problem = accounts.new_users(time.time() - _SINCE_S)
    report.note(problem)
    if not tell(report, faults, good, look="getent passwd 0", own=accounts.ASK) and known is None:
        report.next = "passwd -S -a"
    if made:
        report.finding += f" New in the last 7 days: {', '.join(name for _, name, _, _ in made[-4:])}."
    report.table(
        "New accounts",
        ("Made", "Name", "Uid", "Shell"),
        [(clock.show(when), name, uid, shell) for when, name, uid, shell in reversed(made)],
    )
    report.table(
        "Groups that lead to root", ("Group", "Members"), accounts.administrators(accounts.ADMIN_GROUPS)
    )
    states = {name: entry.state for name, entry in (known or {}).items()}
    report.table(
        "Accounts that can log in",
        ("Name", "Uid", "Shell", "Home", "Password"),
        [
            (
                one.name,
                one.uid,
                one.shell,
                one.home,
                states.get(one.name, "") or ("set" if known else "not known"),
            )
            for one in [*(one for one in found if one.uid == 0), *people, *system]
        ],
    )
    rules, unread = accounts.sudoers()
    report.table("Rules of sudoers", ("File", "Rule"), rules)
    for sentence in unread:
        report.note(sentence)


def make(report: Report) -> None:
    asked = options(str(__doc__), user="only this user")
    if asked.user is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?", asked.user):
        refuse(f"--user={asked.user} is not the name of a user.")
    found, bad = accounts.accounts()
    if not found:
        raise CannotSee("/etc/passwd cannot be read.")
    if asked.user:
        about(asked.user, found, report)
    else:
        everybody(found, bad, report)


run(make)
