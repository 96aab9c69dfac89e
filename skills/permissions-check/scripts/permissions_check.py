"""Says which files have modes that are too wide, or who may read and write one path. Only observes."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import causes
from areas import mounts, permissions
from checks import CannotSee, prompt
from clock import show
from commands import run as run_command
from procfs import user
from report import Report, clean, options, plural, refuse, run, span
from systemd_units import named

_WALK_S = 12.0
_ROWS = 60


def who(info: os.stat_result, bits: tuple[int, int, int]) -> str:
    """Whom the mode lets do something, as words; root always may."""
    found = []
    if info.st_mode & bits[0]:
        found.append(user(info.st_uid))
    if info.st_mode & bits[1]:
        found.append(f"the group {permissions.group(info.st_gid)}")
    if info.st_mode & bits[2]:
        return "everybody"
    names = [name for name in found if name not in ("root", "the group root")]
    return " and ".join(["root", *names]) if names else "only root"


def barrier(chain: list[tuple[str, os.stat_result]]) -> tuple[str, os.stat_result] | None:
    """The first folder on the way that not everybody may pass."""
    return next(
        (
            (path, info)
            for path, info in chain
            if stat.S_ISDIR(info.st_mode) and not info.st_mode & stat.S_IXOTH
        ),
        None,
    )


def rights(info: os.stat_result) -> str:
    kind = "folder" if stat.S_ISDIR(info.st_mode) else "file"
    reads, writes = who(info, (0o400, 0o040, 0o004)), who(info, (0o200, 0o020, 0o002))
    may = f"{reads} may read and {writes} may write" if reads != writes else f"{reads} may read and write"
    return f"a {kind} that {may}"


def way(chain: list[tuple[str, os.stat_result]]) -> str:
    """Who is stopped before the end of the way."""
    closed_at = barrier(chain[:-1])
    if closed_at is None:
        return ""
    folder, its = closed_at
    passes = who(its, (0o100, 0o010, 0o001)).removeprefix("only ")
    return f"but only {passes} may pass {folder} ({permissions.words(its)})"


def below(folder: str, info: os.stat_result, report: Report) -> str:
    """What in a folder everybody may write."""
    walk = permissions.Walk(time.monotonic() + _WALK_S / 2)
    found = permissions.open_below(walk, folder)
    rows = [(permissions.words(each.info), each.path) for each in found[:_ROWS]]
    report.table("What everybody may write in it", ("Mode and owner", "Path"), rows)
    if walk.stopped:
        report.note(f"All of {folder}: the walk was stopped after {_WALK_S / 2:.0f} s.")
    if walk.unreadable:
        report.note(f"{plural(walk.unreadable, 'folder')} in {folder} may not be entered by this user.")
    if not found:
        is_whole = not walk.stopped and not walk.unreadable and not info.st_mode & stat.S_IWOTH
        return "nothing in it can be written by everybody" if is_whole else ""
    report.next = report.next or f"chmod {found[0].modes} {shlex.quote(found[0].path)}"
    more = f" and {plural(len(found) - 1, 'other path')} in it" if found[1:] else ""
    return f"everybody may write {found[0].path} ({permissions.words(found[0].info)}){more}"


def about(path: str, report: Report) -> None:
    if hangs := mounts.dead(path):
        report.finding = hangs
        return
    real = os.path.realpath(path)
    chain = permissions.chain(real)
    report.table(
        "The way to it",
        ("Mode and owner", "Path"),
        [(f"{stat.filemode(info.st_mode)} {permissions.words(info)}", each) for each, info in chain],
    )
    there, info = chain[-1]
    if there != real and not os.access(there, os.X_OK):
        report.finding = (
            f"{path} cannot be looked at from here: {there} ({permissions.words(info)}) lets only"
            f" {who(info, (0o100, 0o010, 0o001)).removeprefix('only ')} pass."
        )
        return
    report.found_nothing = there != real
    report.finding = f"{path} does not exist; {there}" if report.found_nothing else path
    fault = next(permissions.of(there, info), None)
    told = [f"is {rights(info)}", way(chain)]
    if script := causes.script_fault(there):
        report.finding = f"{script}. {report.finding}"
        report.next = f"sed -i 's/\\r$//' {shlex.quote(there)}" if "(CR LF)" in script else ""
    if fault is not None:
        told[0] = f"{fault.why}; it {told[0]}"
        report.next = f"chmod {fault.modes} {shlex.quote(there)}"
    if stat.S_ISDIR(info.st_mode) and not report.found_nothing:
        told.append(below(there, info, report))
    entry = mounts.holding(there, mounts.table())
    if entry is not None and entry.read_only and mounts.is_whole():
        told.append(f"{entry.folder} is mounted read-only, so nobody can write there")
    report.finding += f" ({permissions.words(info)}) {'; '.join(filter(None, told))}."
    refused(path, report)
    real = there
    acl = run_command("getfacl", "-cp", "--", real, timeout_s=3).stdout
    extra = [
        line
        for line in acl.splitlines()
        if line.startswith(("user:", "group:", "mask:")) and "::" not in line
    ]
    report.lines("Its access control list adds", extra)
    attributes = run_command("lsattr", "-d", "--", real, timeout_s=3).stdout.split(" ")[0]
    if "i" in attributes or "a" in attributes:
        report.text(
            "Attributes", f"It has {clean(attributes)}: i makes it unchangeable, a lets it only grow."
        )


def refused(path: str, report: Report) -> None:
    """Say first which unit was refused the path, and by what."""
    found, problem = permissions.refusals(path) if path != "/" else ([], "")
    report.note(problem)
    if found:
        one = found[0]
        unit = next(iter(named(one.unit)), None)
        by = causes.behind(one.line, unit)
        why = f": {by}" if by else ""
        ago = span(time.time() - one.when)
        report.finding = f"{one.unit} was refused {path} {ago} ago{why}. {report.finding}"
        report.next = prompt(f"why is {one.unit} down")
    report.lines("What units were refused", [f"{show(one.when)} {one.unit}: {one.line}" for one in found[:5]])


def everywhere(report: Report) -> None:
    walk = permissions.Walk(time.monotonic() + _WALK_S)
    found = [*permissions.keys(), *permissions.narrow(), *permissions.world_writable(walk)]
    try:
        found += permissions.suid(walk)
    except CannotSee as err:
        report.note(str(err))
    if found:
        others = "" if len(found) == 1 else f" {len(found) - 1} more below."
        report.finding = found[0].sentence + others
        report.next = f"chmod {found[0].modes} {shlex.quote(found[0].path)}"
    else:
        looked = "/etc, PATH, SUID programs outside of packages, private keys"
        report.finding = f"No mode is too wide where this looked: {looked}."
    report.table(
        "Modes that are too wide",
        ("Mode and owner", "File", "Why"),
        [(permissions.words(each.info), each.path, each.why) for each in found[:_ROWS]],
    )
    if walk.stopped:
        report.note(f"Everything: the walk was stopped after {_WALK_S:.0f} s.")
    if walk.unreadable:
        report.note(f"{plural(walk.unreadable, 'folder')} may not be entered by this user.")


def make(report: Report) -> None:
    path = options(str(__doc__), path="who may read or write it").path
    if path is not None and not path.startswith("/"):
        refuse(f"--path={path} is not an absolute path.")
    if path is None:
        everywhere(report)
    else:
        about(path.rstrip("/") or "/", report)


run(make)
