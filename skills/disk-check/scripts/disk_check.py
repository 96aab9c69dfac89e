"""Says how full the file systems are in bytes and inodes, and what is large below a path. Only observes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import mounts, space, storage
from checks import prompt
from clock import show
from report import Report, clean, human, options, plural, refuse, run

_WALK_S, _SHORT_WALK_S, _JOURNAL_WALK_S = 15.0, 3.0, 2.0
_JOURNALS = ("/var/log/journal", "/run/log/journal")


def overview(found: list[space.Filesystem], report: Report) -> None:
    tight = [each for each in found if each.is_tight]
    if not found:
        report.finding = "No file system with space of its own is visible from here."
    elif len(tight) == 1:
        report.finding = space.full_sentence(tight[0])
    elif tight:
        names = "; ".join(f"{each.folder} is {each.state}" for each in tight[:4])
        report.finding = f"{len(tight)} of {plural(len(found), 'file system')} are short of room: {names}."
    else:
        real = [each for each in found if each.entry.kind not in mounts.IMAGES] or found
        words = ", ".join(f"{each.folder} {each.worst} %" for each in real[:3])
        report.finding = f"All file systems have room, in bytes and inodes; the fullest: {words}."
    if tight:
        report.next = prompt(f"what fills {tight[0].folder}")
    if len(tight) == 1:
        report.finding = f"{report.finding[:-1]}{cause(tight[0])}."


def cause(each: space.Filesystem) -> str:
    """What keeps the most of a file system that is short of room, as far as a short look tells."""
    held = [one for one in space.deleted_files()[0] if one.identity.startswith(f"{each.entry.number}:")]
    kept = sum(one.size for one in held)
    if kept > each.size // 10:
        return f"; {human(kept)} are in deleted files that {held[0].holder} holds open"
    try:
        found = space.walk(each.folder, _SHORT_WALK_S)
    except OSError:
        return ""
    if not found.sizes:
        return ""
    if each.inode_percent > each.percent:
        top, count = max(found.counts.items(), key=lambda row: row[1])
        return f"; most files are in {clean(top)} ({count})" if count > 1 else ""
    return most(each.folder, found)


def most(path: str, found: space.Walk) -> str:
    """`; most of it in /var/log/journal (3.1 GiB of 4.0 GiB)`."""
    where, size = found.most(path)
    if where == path and found.sizes:
        where, size = max(found.sizes.items(), key=lambda row: row[1])
        return f"; largest in it: {clean(where)} ({human(size)} of {human(found.total)})"
    return f"; most of it in {clean(where)} ({human(size)} of {human(found.total)})"


def about(path: str, found: list[space.Filesystem], report: Report) -> None:
    if no_disk := storage.no_such_disk(path):
        report.finding, report.found_nothing = no_disk, True
        return
    if hangs := mounts.dead(path):
        report.finding = hangs
        return
    missing = ""
    try:
        Path(path).stat()
    except OSError as err:
        is_there = (
            "does not exist"
            if isinstance(err, FileNotFoundError)
            else f"cannot be looked at ({err.strerror})"
        )
        path, missing = mounts.nearest(str(Path(path).parent)), f"{path} {is_there}; "
        report.found_nothing = True
    real = os.path.realpath(path)
    each = space.holding(real, found)
    if each is None:
        report.finding = f"{missing}{path} is on a file system that cannot be measured from here"
    else:
        where = "" if each.folder == real else f" is on {each.folder}, which"
        report.finding = f"{missing}{path}{where} is {each.state}"
        if "inodes" not in each.state and each.inodes > 0:
            report.finding += f"; {each.inode_percent} % of its inodes are used"
        if each.entry.read_only:
            report.finding += "; it is mounted read-only"
        if missing and each.is_tight:
            report.next = prompt(f"what fills {each.folder}")
    if Path(real).is_dir() and (not missing or (each is not None and each.is_tight)):
        below(real, each, report)
    report.finding += "."


def below(path: str, each: space.Filesystem | None, report: Report) -> None:
    found = space.walk(path, _WALK_S)
    by_size = sorted(found.sizes.items(), key=lambda row: -row[1])
    by_count = sorted(found.counts.items(), key=lambda row: -row[1])
    if by_size:
        what, number = by_count[0]
        if each is not None and each.inode_percent > each.percent:
            report.finding += f"; most files are in {clean(what)} ({number})" if number > 1 else ""
        else:
            report.finding += most(path, found)
    if found.recent:
        folder, size = max(found.recent.items(), key=lambda row: row[1])
        if size > found.total // 20:
            report.finding += f"; {human(size)} in {clean(folder)} were written within the last hour"
    report.table(
        f"Largest directly below {path}",
        ("Size", "Files", "Path"),
        [(human(size), found.counts[name], name) for name, size in by_size[: space.TOP]],
        "It is empty.",
    )
    report.table(
        f"Largest files below {path}",
        ("Size", "Last written", "File"),
        [(human(size), show(written), name) for size, written, name in found.files],
    )
    if found.stopped:
        report.note(f"All of {path}: the walk was stopped after {_WALK_S:.0f} s, so the sizes are too small.")
    if found.unreadable:
        report.note(f"{plural(found.unreadable, 'folder')} below {path} could not be read by this user.")


def journals() -> int:
    return sum(space.walk(path, _JOURNAL_WALK_S).total for path in _JOURNALS if Path(path).is_dir())


def make(report: Report) -> None:
    asked = options(
        str(__doc__), path="say which file system holds this path and what is large below it"
    ).path
    if asked is not None and not asked.startswith("/"):
        refuse(f"--path={asked} is not an absolute path.")
    started = time.monotonic()
    found, notes = space.filesystems()
    if asked is None:
        overview(found, report)
    else:
        about(asked, found, report)
    report.table(
        "File systems",
        ("Mounted at", "Used", "Left", "Size", "Inodes", "Type"),
        [
            (
                each.folder,
                f"{each.percent} %",
                human(each.available),
                human(each.size),
                f"{each.inode_percent} %" if each.inodes > 0 else "-",
                f"{each.entry.kind}{' (read-only)' if each.entry.read_only else ''}",
            )
            for each in found
        ],
    )
    if asked is None and time.monotonic() - started < _WALK_S:
        if size := journals():
            report.text("Journal", f"The journal has {human(size)}.")
        held, _ = space.deleted_files()
        if size := sum(each.size for each in held):
            report.text("Deleted files that are still open", f"They keep {human(size)}.")
    for note in notes:
        report.note(note)
    report.note(mounts.note_of_table())


run(make)
