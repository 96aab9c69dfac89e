"""Says what is mounted where and how, and what is not as fstab has it. Only observes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import mounts, storage
from checks import prompt
from report import Report, options, plural, refuse, run


def faults(entries: list[mounts.Entry], wanted: list[mounts.Wanted]) -> list[str]:
    """What is wrong, as sentences, worst first."""
    dead = [entry for entry in entries if entry.is_network and not mounts.answers(entry.folder)]
    found = [mounts.stale_sentence(entry) for entry in dead]
    if mounts.is_whole():
        found += [
            mounts.read_only_sentence(entry, wanted) for entry in mounts.unexpected_read_only(entries, wanted)
        ]
    return found + [mounts.unmounted_sentence(each) for each in mounts.unmounted(entries, wanted)]


def about(path: str, entries: list[mounts.Entry], wanted: list[mounts.Wanted], report: Report) -> None:
    if no_disk := storage.no_such_disk(path):
        report.finding, report.found_nothing = no_disk, True
        return
    missing = next((each for each in mounts.unmounted(entries, wanted) if each.folder == path), None)
    if missing is not None:
        report.finding = mounts.unmounted_sentence(missing)
        report.next = shlex.join(["systemctl", "status", mounts.unit_of(path)])
        return
    if hangs := mounts.dead(path):
        report.finding = hangs
        return
    there = mounts.nearest(path)
    real = os.path.realpath(there)
    entry = mounts.holding(real, entries)
    report.found_nothing = there != path
    absent = f"{path} does not exist; " if report.found_nothing else ""
    if entry is None:
        report.finding = f"{path} is on no mount that can be seen."
        return
    if not mounts.is_whole() and entry.read_only:
        report.finding = f"{absent}{there} is on {entry.folder} ({entry.kind} from {entry.device})."
    elif entry in mounts.unexpected_read_only([entry], wanted):
        on = "" if absent or entry.folder == real else f"{there} is on {entry.folder}: "
        report.finding = f"{absent}{on}{mounts.read_only_sentence(entry, wanted)}"
        report.next = prompt("errors of the disks") if "errors" in report.finding else f"findmnt -T {there}"
    elif entry.folder == real:
        report.finding = f"{absent}{there} is a mount point: {entry.words}."
    else:
        report.finding = f"{absent}{there} is no mount point: it is on {entry.folder}, {entry.words}."
    report.table("Options", ("Of", "Options"), [
        ("this mount", ",".join(entry.options)),
        ("the file system", ",".join(entry.super_options)),
    ])  # fmt: skip


def make(report: Report) -> None:
    asked = options(str(__doc__), path="a mount point, or a path on it").path
    if asked is not None and not asked.startswith("/"):
        refuse(f"--path={asked} is not an absolute path.")
    entries, wanted = mounts.table(), mounts.fstab()
    if asked is not None:
        about(asked.rstrip("/") or "/", entries, wanted, report)
    else:
        found = faults(entries, wanted)
        if found:
            count = "" if len(found) == 1 else f"{plural(len(found), 'problem')} with mounts: "
            report.finding = count + found[0]
            report.table("Problems", ("Problem",), [(each,) for each in found[1:]])
            first = found[0].partition(" ")[0]
            report.next = prompt(
                f"why is {first} not mounted" if "not mounted" in found[0] else "errors of the disks"
            )
        else:
            entries_of_fstab = f"{len(wanted)} of {len(wanted)} entries of /etc/fstab are mounted"
            report.finding = f"The mounts are as they should be: {entries_of_fstab}"
            report.finding += ", and nothing is unexpectedly read-only." if mounts.is_whole() else "."
    report.table(
        "Mounts",
        ("Mounted at", "Mode", "Type", "Device", "Bind of"),
        [
            (entry.folder, entry.mode, entry.kind, entry.device, entry.root if entry.is_bind else "")
            for entry in mounts.real(entries)
            if asked is None or mounts.within(entry.folder, asked) or mounts.within(asked, entry.folder)
        ],
    )
    report.note(mounts.note_of_table())


run(make)
