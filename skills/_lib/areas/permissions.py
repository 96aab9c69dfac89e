"""Modes of files: what everybody may write, SUID programs of no package, keys that others may read, and the
way to a path.
"""

from __future__ import annotations

import grp
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, run, stamp
from report import clean, plural

from areas.space import entries_of

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SUID_PLACES = (
    *("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local", "/tmp", "/var/tmp", "/dev/shm"),  # noqa: S108
    *("/etc", "/srv", "/opt", "/root", "/home", "/usr/libexec", "/usr/lib", "/var/lib"),
)
_SKIPPED = (
    "/var/lib/docker",
    "/var/lib/containers",
    "/var/lib/machines",
    "/usr/share",
    "/usr/src",
    "/usr/include",
)
_WALK_S = 1.5
_KEY_BYTES = 64 << 10
_ANYTHING = re.compile(
    r"(?:ba|da|z|k|c|fi|tc)?sh|busybox|python[\d.]*|perl[\d.]*|ruby[\d.]*|node|lua[\d.]*|php[\d.]*|find|env|"
    r"(?:g|m|n)?awk|vi|vim(?:\..*)?|nano|less|more|cp|mv|dd|tar|cat|tee|sed|gdb|nmap|socat|rsync|docker|systemctl"
)
"""Programs that run, read or write whatever their caller names, by their file's name."""
_PUBLIC = (
    "/etc/passwd",
    "/etc/group",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs",
)
"""What every program must be able to read."""
_SHARED = ("/tmp", "/var/tmp")  # noqa: S108
_SECRET_FILES = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers")


_REFUSED = "permission denied|read-only file system|operation not permitted|eacces|erofs"
"""What programs write of a path that they may not use; journalctl(1) matches it in any case."""


@dataclass(frozen=True)
class Refusal:
    """What a unit wrote last of a path that it may not use."""

    unit: str
    when: float
    line: str


@dataclass(frozen=True)
class Fault:
    """A file with a mode that it should not have."""

    path: str
    info: os.stat_result
    why: str
    modes: str = "o-w"
    """For chmod(1), to mend it."""

    @property
    def sentence(self) -> str:
        return clean(f"{self.path} ({words(self.info)}) {self.why}.")


def words(info: os.stat_result) -> str:
    """`0644 root:root`."""
    return f"{stat.S_IMODE(info.st_mode):04o} {procfs.user(info.st_uid)}:{group(info.st_gid)}"


def group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass
class Walk:
    """A bounded walk through folders, each on its file system; counts what could not be entered."""

    ends: float
    unreadable: int = 0

    @property
    def stopped(self) -> bool:
        return time.monotonic() > self.ends

    def files(self, places: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Every entry below the places, and the places themselves, without symbolic links."""
        real = dict.fromkeys(os.path.realpath(place) for place in places)
        for place in real:
            try:
                info = os.lstat(place)
            except OSError:
                continue
            yield place, info
            yield from self._below(place, info.st_dev)

    def _below(self, place: str, device: int) -> Iterator[tuple[str, os.stat_result]]:
        stack = [place]
        while stack and not self.stopped:
            folder = stack.pop()
            try:
                entries = entries_of(folder, device)
            except OSError:
                self.unreadable += 1
                continue
            for path, info in entries:
                if stat.S_ISLNK(info.st_mode):
                    continue
                yield path, info
                if stat.S_ISDIR(info.st_mode) and path not in _SKIPPED:
                    stack.append(path)


def refusals(path: str) -> tuple[list[Refusal], str]:
    """The units that were refused a path, or what is below it, within a day, the newest first; and why this
    may not be all.
    """
    entries, problem = journal("--since=-1d", f"--grep={_REFUSED}", limit=500, timeout_s=4)
    return refusals_in(entries, path), problem


def refusals_in(entries: Iterable[dict[str, Any]], path: str) -> list[Refusal]:
    """The last line of each service about a path, which stands in it whole."""
    named = re.compile(rf"(?<![\w./-]){re.escape(path)}(?![\w-]|\.\w)")
    found: dict[str, Refusal] = {}
    for entry in entries:
        unit, line = str(entry.get("_SYSTEMD_UNIT") or entry.get("UNIT") or ""), message(entry)
        is_of_machine = unit.endswith(".service") and not unit.startswith(("user@", "lightagent"))
        if is_of_machine and re.search(_REFUSED, line, re.IGNORECASE) and named.search(line):
            found[unit] = Refusal(clean(unit), stamp(entry), line)
    return sorted(found.values(), key=lambda one: -one.when)


def world_writable(walk: Walk, root: str = "") -> Iterator[Fault]:
    """What everybody may write in /etc and where programs are; folders with the sticky bit too: not even a
    file that one owns belongs there.
    """
    for path, info in walk.files(root + place for place in ("/etc", *_PATH)):
        if _is_open(info):
            yield Fault(path, info, "can be written by everybody")


def open_below(walk: Walk, folder: str) -> list[Fault]:
    """What everybody may write below a folder; folders like /tmp, and what is in them, do not count."""
    shared: set[str] = set()
    found = []
    for path, info in walk.files([folder]):
        if stat.S_ISDIR(info.st_mode) and (
            info.st_mode & stat.S_ISVTX or Path(path).parent.as_posix() in shared
        ):
            shared.add(path)
        elif path != folder and _is_open(info) and Path(path).parent.as_posix() not in shared:
            found.append(Fault(path, info, "can be written by everybody"))
    return found


def _is_open(info: os.stat_result) -> bool:
    is_stored = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
    return is_stored and bool(info.st_mode & stat.S_IWOTH)


def suid(walk: Walk, root: str = "") -> list[Fault]:
    """SUID and SGID programs that belong to no package, or that run whatever their caller wants.

    Raises CannotSee without a package system.
    """
    found = [
        (path, info)
        for path, info in walk.files(root + place for place in _SUID_PLACES)
        if stat.S_ISREG(info.st_mode)
        and (info.st_mode & stat.S_ISUID or (info.st_mode & stat.S_ISGID and info.st_mode & stat.S_IXGRP))
        and info.st_mode & 0o111
    ]
    owned = packaged([path for path, _ in found])
    faults = []
    for path, info in found:
        kind = "SUID" if info.st_mode & stat.S_ISUID else "SGID"
        if _ANYTHING.fullmatch(Path(path).name):
            who = f"as {procfs.user(info.st_uid) if kind == 'SUID' else group(info.st_gid)}"
            faults.append(Fault(path, info, f"is {kind}: whoever starts it can do anything {who}", "ug-s"))
        elif path not in owned:
            faults.append(Fault(path, info, f"is {kind} and belongs to no package", "ug-s"))
    return faults


def packaged(paths: list[str]) -> set[str]:
    """Those that a package of dpkg or rpm has. Raises CannotSee."""
    if not paths:
        return set()
    asked = {path: path for path in paths}
    asked |= {path.removeprefix("/usr"): path for path in paths if path.startswith("/usr/")}
    answer = run("dpkg-query", "-S", *asked, timeout_s=3)
    if answer.status == 127:
        answer = run("rpm", "-qf", "--qf", "[%{FILENAMES}\n]", *paths, timeout_s=4)
        if answer.status in (124, 127):
            raise CannotSee("Neither dpkg nor rpm can be asked which package a program belongs to.")
        return set(answer.stdout.splitlines()) & set(paths)
    if answer.status == 124:
        raise CannotSee(answer.problem)
    lines = (line.partition(": ")[2].strip() for line in answer.stdout.splitlines())
    return {asked[name] for name in lines if name in asked}


def keys(root: str = "") -> Iterator[Fault]:
    """Private keys, password files and files of ssh that others may read or write."""
    for path in _SECRET_FILES:
        if (info := _looked_at(root + path)) and info.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            yield Fault(root + path, info, "can be read by everybody", "o=")
    for key in sorted(Path(root or "/", "etc/ssh").glob("ssh_host_*_key")):
        if (info := _looked_at(str(key))) and info.st_mode & 0o077 and group(info.st_gid) != "ssh_keys":
            yield Fault(str(key), info, "is a private key that others may read: sshd refuses it", "go=")
    for path, info in Walk(time.monotonic() + _WALK_S).files([f"{root}/etc"]):
        if path.endswith((".key", ".pem")) and info.st_mode & stat.S_IROTH and _holds_key(path):
            yield Fault(path, info, "is a private key that everybody may read", "o=")
    for home in [Path(root or "/", "root"), *sorted(Path(root or "/", "home").glob("*"))]:
        info = _looked_at(str(home))
        if info and info.st_mode & stat.S_IWOTH and stat.S_ISDIR(info.st_mode):
            yield Fault(str(home), info, "is a home folder that everybody may write")
        yield from _of_ssh(home)


def narrow(root: str = "") -> Iterator[Fault]:
    """What everybody needs and not everybody may use: files that all programs read, and folders for all."""
    for path in _PUBLIC:
        if (info := _looked_at(root + path)) and not info.st_mode & stat.S_IROTH:
            yield Fault(root + path, info, "cannot be read by everybody, and every program needs it", "a+rX")
    for path in _SHARED:
        if (info := _looked_at(root + path)) and stat.S_IMODE(info.st_mode) & 0o1777 != 0o1777:
            why = "should have mode 1777, so that all may use it and nobody others' files"
            yield Fault(root + path, info, why, "1777")


def _holds_key(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return b"PRIVATE KEY-----" in file.read(_KEY_BYTES)
    except OSError:
        return False


def _of_ssh(home: Path) -> Iterator[Fault]:
    try:
        files = sorted((home / ".ssh").iterdir())
    except OSError:
        return
    for path in [home / ".ssh", *files]:
        info = _looked_at(str(path))
        if info is None:
            continue
        shared = info.st_mode & 0o020 and group(info.st_gid) != procfs.user(info.st_uid)
        if info.st_mode & 0o002 or shared:
            yield Fault(str(path), info, "can be written by others: sshd refuses the keys in it", "go-w")
        elif path.name.startswith("id_") and path.suffix != ".pub" and info.st_mode & 0o077:
            yield Fault(str(path), info, "is a private key that others may read: ssh refuses it", "go=")


def of(path: str, info: os.stat_result) -> Iterator[Fault]:
    """The faults of one path."""
    yield from (one for one in (*keys(), *narrow()) if one.path == path)
    if _is_open(info) and stat.S_ISREG(info.st_mode):
        yield Fault(path, info, "can be written by everybody")


def chain(path: str) -> list[tuple[str, os.stat_result]]:
    """A path with each folder above it, from the root on, as far as it can be looked at."""
    found = []
    for each in [*reversed(Path(path).parents), Path(path)]:
        info = _looked_at(str(each))
        if info is None:
            break
        found.append((str(each), info))
    return found


def _looked_at(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError:
        return None


@check("permissions.writable", "files that everybody may write in /etc and where programs are")
def writable() -> Iterator[Finding]:
    walk = Walk(time.monotonic() + _WALK_S)
    found = list(world_writable(walk))
    for fault in found[:5]:
        yield Finding(fault.sentence, f"permissions of {fault.path}")
    if len(found) > 5:
        yield Finding(f"{plural(len(found) - 5, 'more file')} in /etc and PATH can be written by everybody.")
    if walk.stopped:
        raise CannotSee(f"The walk through /etc and PATH was stopped after {_WALK_S} s.")


@check("permissions.suid", "SUID programs that belong to no package")
def suid_programs() -> Iterator[Finding]:
    walk = Walk(time.monotonic() + _WALK_S)
    for fault in suid(walk)[:5]:
        severity = PROBLEM if "anything" in fault.why else WARNING
        yield Finding(fault.sentence, f"permissions of {fault.path}", severity=severity)
    if walk.stopped:
        raise CannotSee(f"The walk for SUID programs was stopped after {_WALK_S} s.")


@check("permissions.keys", "private keys that others may read, and modes that stop programs")
def key_modes() -> Iterator[Finding]:
    for fault in [*keys(), *narrow()]:
        yield Finding(fault.sentence, f"permissions of {fault.path}", severity=PROBLEM)
