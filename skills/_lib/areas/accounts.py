"""The accounts of /etc/passwd, their groups and rights, and what /etc/shadow would say.

See passwd(5), group(5), shadow(5).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import procfs
from checks import WARNING, CannotSee, Finding, check
from commands import journal, message, read, stamp
from report import shorten

ADMIN_GROUPS = ("sudo", "wheel", "admin", "root", "docker", "lxd", "incus-admin", "libvirt", "disk", "shadow")
"""Groups whose members can become root."""
SUDO_GROUPS = ("sudo", "wheel", "admin")
_NO_SHELLS = ("nologin", "false", "sync", "halt", "shutdown", "git-shell")
_FIRST_PERSON, _LAST_PERSON = 1000, 60000
_DAY_S = 86400
ASK = "check the accounts"
_NEW_USER = re.compile(r"^new user: name=([^,]+), UID=(\d+).*?shell=([^,]*)")


@dataclass(frozen=True)
class Account:
    name: str
    password: str
    uid: int
    gid: int
    home: str
    shell: str

    @property
    def can_log_in(self) -> bool:
        return not self.shell.endswith(_NO_SHELLS)

    @property
    def is_person(self) -> bool:
        return _FIRST_PERSON <= self.uid <= _LAST_PERSON


@dataclass(frozen=True)
class Password:
    """A line of /etc/shadow; days count from 1970."""

    name: str
    password: str
    changed: int | None
    longest: int | None
    expires: int | None

    @property
    def state(self) -> str:
        """`empty`, `locked`, `account expired`, `password expired` or an empty string."""
        today = int(time.time() // _DAY_S)
        if not self.password:
            return "empty"
        if self.expires is not None and 0 <= self.expires <= today:
            return "account expired"
        if self.password.startswith(("!", "*")):
            return "locked"
        if self.changed == 0 or (
            self.changed is not None
            and self.longest is not None
            and 0 <= self.longest < 99999
            and self.changed + self.longest < today
        ):
            return "password expired"
        return ""


def accounts(text: str | None = None) -> tuple[list[Account], list[tuple[int, str]]]:
    """The accounts of /etc/passwd, and the lines that are none."""
    found, bad = [], []
    for number, line in enumerate(
        (read("/etc/passwd") or "" if text is None else text).splitlines(), start=1
    ):
        columns = line.split(":")
        if not line.strip() or line.startswith(("#", "+", "-")):
            continue
        if len(columns) != 7 or not columns[0] or not columns[2].isdigit() or not columns[3].isdigit():
            bad.append((number, line))
            continue
        found.append(
            Account(
                columns[0], columns[1], int(columns[2]), int(columns[3]), columns[5], columns[6] or "/bin/sh"
            )
        )
    return found, bad


def groups(text: str | None = None) -> dict[str, tuple[int, list[str]]]:
    """Gid and members of each group in /etc/group."""
    found = {}
    for line in (read("/etc/group") or "" if text is None else text).splitlines():
        columns = line.split(":")
        if len(columns) == 4 and columns[2].isdigit():
            found[columns[0]] = (int(columns[2]), [name for name in columns[3].split(",") if name])
    return found


def groups_of(account: Account) -> list[str]:
    return [
        name for name, (gid, members) in groups().items() if account.name in members or gid == account.gid
    ]


def administrators(names: tuple[str, ...] = SUDO_GROUPS) -> list[tuple[str, str]]:
    """Each of these groups that has members, with them."""
    return [
        (name, ", ".join(members)) for name, (_, members) in groups().items() if name in names and members
    ]


def passwords(path: str = "/etc/shadow") -> dict[str, Password] | None:
    """What /etc/shadow says, or None where only root may know it."""
    text = read(path)
    if text is None and (text := procfs.survey().get("shadow")) is None:
        return None
    found = {}
    for line in text.splitlines():
        columns = [*line.split(":"), *[""] * 9]
        numbers = [
            int(word) if re.fullmatch(r"-?\d+", word) else None
            for word in (columns[2], columns[4], columns[7])
        ]
        found[columns[0]] = Password(columns[0], columns[1], *numbers)
    return found


def without_password() -> list[str] | None:
    """The accounts with an empty password, or None where this may not be seen."""
    known = passwords()
    return None if known is None else [one.name for one in known.values() if one.state == "empty"]


def sudoers() -> tuple[list[tuple[str, str]], list[str]]:
    """The rules of sudoers that everybody may read, with their file, and what could not be read."""
    rules, unread = [], []
    folder = Path("/etc/sudoers.d")
    files = [Path("/etc/sudoers")]
    try:
        files += sorted(file for file in folder.iterdir() if "." not in file.name and file.name[-1] != "~")
    except FileNotFoundError:
        pass
    except OSError as err:
        unread.append(f"{folder} cannot be read: {err.strerror}.")
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as err:
            unread.append(f"{file} cannot be read: {err.strerror}.")
            continue
        rules += [
            (str(file), shorten(line, 100))
            for line in re.sub(r"\\\n", " ", text).splitlines()
            if "=" in line and not line.lstrip().startswith(("#", "Defaults", "Cmnd_Alias", "User_Alias"))
        ]
    return rules, unread


def new_users(since: float) -> tuple[list[tuple[float, str, int, str]], str]:
    """Time, name, uid and shell of the users that useradd(8) made."""
    entries, problem = journal(f"--since=@{int(since)}", "SYSLOG_IDENTIFIER=useradd", limit=200, timeout_s=4)
    rows = []
    for entry in entries:
        match = _NEW_USER.match(message(entry))
        if match:
            rows.append((stamp(entry), match[1], int(match[2]), match[3]))
    return rows, problem


def faults(found: list[Account], bad: list[tuple[int, str]]) -> Iterator[Finding]:
    """What is wrong in /etc/passwd."""
    ask = ASK
    for one in found:
        if one.uid == 0 and one.name != "root":
            shell = f", with the shell {one.shell}" if one.can_log_in else ""
            yield Finding(f"The account {one.name} has uid 0, so it is root{shell}.", ask)
        if not one.password:
            yield Finding(f"The account {one.name} has no password in /etc/passwd: anybody can be it.", ask)
    uids: dict[int, str] = {}
    names: set[str] = set()
    for one in found:
        other = uids.setdefault(one.uid, one.name)
        if other != one.name and one.uid != 0:
            yield Finding(
                f"The accounts {other} and {one.name} have the same uid {one.uid}.", ask, severity=WARNING
            )
        if one.name in names:
            yield Finding(f"/etc/passwd has the account {one.name} twice.", ask, severity=WARNING)
        names.add(one.name)
    for number, line in bad[:5]:
        yield Finding(f"/etc/passwd line {number} is no account: {shorten(line, 60)!r}.", ask)
    if found and "root" not in names:
        yield Finding("/etc/passwd has no account root.", ask)


def empty(found: list[Account], names: list[str]) -> Iterator[Finding]:
    """The accounts among those without a password that can log in."""
    for one in found:
        if one.name in names and one.can_log_in:
            text = f"The account {one.name} has an empty password: anybody can be it."
            yield Finding(text, f"check the account {one.name}")


def expired(found: list[Account], known: dict[str, Password]) -> Iterator[Finding]:
    for one in found:
        state = known[one.name].state if one.name in known else ""
        if state in ("account expired", "password expired") and (one.is_person or one.uid == 0):
            what = state.partition(" ")[0]
            yield Finding(
                f"The {what} of {one.name} has expired.", f"check the account {one.name}", severity=WARNING
            )


@check("accounts.passwd", "accounts with uid 0, without a password, or twice")
def passwd() -> Iterator[Finding]:
    if read("/etc/passwd") is None:
        raise CannotSee("/etc/passwd cannot be read.")
    yield from faults(*accounts())


@check("accounts.passwords", "empty passwords")
def open_accounts() -> Iterator[Finding]:
    names = without_password()
    if names is None:
        raise CannotSee("Only root may know of passwords.")
    yield from empty(accounts()[0], names)


@check("accounts.expired", "expired passwords")
def expired_accounts() -> Iterator[Finding]:
    known = passwords()
    if known is None:
        raise CannotSee("Only root may know of passwords.")
    yield from expired(accounts()[0], known)
