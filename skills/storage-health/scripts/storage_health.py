"""Says whether disks fail: I/O errors, RAID, LVM, SMART, damaged filesystems; not how full. Only observes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
import kernel_log
from areas import storage
from causes import mount_of
from checks import CannotSee, prompt
from commands import read
from commands import run as run_command
from report import Report, human, options, plural, refuse, run, shorten


def disks() -> list[tuple[str, str, str, str]]:
    """The disks: name, size, model, whether it turns, from sysfs."""
    found = []
    for folder in sorted(Path("/sys/block").glob("*")):
        size = (read(str(folder / "size")) or "0").strip()
        if re.match(r"(?:loop|ram|zram|sr|fd|nbd)\d", folder.name) or size == "0":
            continue
        model = (read(str(folder / "device/model")) or "-").strip()
        state = (read(str(folder / "device/state")) or "-").strip()
        found.append((folder.name, human(int(size) * 512), model, state))
    return found


def device_of(path: str) -> set[str]:
    """The names that the kernel may give the device below a path: of the partition, its disk, a mapping."""
    if path.startswith("/dev/"):
        names = {Path(path).name, Path(path).resolve().name}
    else:
        point = mount_of(path)[0]
        rows = [line.split() for line in (read("/proc/1/mountinfo") or "").splitlines()]
        names = {Path(f"/sys/dev/block/{row[2]}").resolve().name for row in rows if row[4] == point}
    for name in list(names):
        parent = Path(f"/sys/class/block/{name}").resolve().parent.name
        slaves = {slave.name for slave in Path(f"/sys/class/block/{name}/slaves").glob("*")}
        names |= slaves | ({parent} if parent not in ("block", "") else set())
        names |= {re.sub(r"p?\d+$", "", slave) for slave in slaves}
    return names


def volume_groups(report: Report) -> list[list[str]]:
    """LVM's groups: name, missing disks, attributes; asking opens the disks, which needs root."""
    listed = run_command("vgs", "--noheadings", "-o", "vg_name,vg_missing_pv_count,vg_attr", timeout_s=5)
    if listed.status not in (0, 127):
        report.note("LVM cannot be asked by this user; what it logged is looked at.")
    return [
        line.split()
        for line in listed.stdout.splitlines()
        if len(line.split()) == 3 and line.split()[1].isdigit()
    ]


def smart(report: Report) -> list[tuple[str, str]]:
    """What the disks say of their own health, where they may be opened."""
    if run_command("smartctl", "--version", timeout_s=5).status == 127:
        report.note("SMART is not looked at: smartctl (smartmontools) is not installed.")
        return []
    readable = [disk[0] for disk in disks() if os.access(f"/dev/{disk[0]}", os.R_OK)]
    if not readable:
        report.note("SMART needs root (smartctl -H /dev/DISK); what smartd logged is looked at.")
    answers = {name: run_command("smartctl", "-H", f"/dev/{name}", timeout_s=5).stdout for name in readable}
    found = {name: re.search(r"(?:result|Health Status): *(\S.*)", text) for name, text in answers.items()}
    return [(name, match[1]) for name, match in found.items() if match]


def kernel_errors(report: Report) -> tuple[list[storage.Errors], str]:
    """What the kernel reported of disks, or why that cannot be seen."""
    try:
        return storage.errors(kernel_log.lines()), ""
    except CannotSee as err:
        report.note(str(err))
        return [], str(err)


def make(report: Report) -> None:
    path = options(str(__doc__), path="only the device below this path, or this device").path
    if path is not None and not path.startswith("/"):
        refuse(f"--path={path} is not an absolute path.")
    if path and (missing := storage.no_such_disk(path)):
        report.finding, report.found_nothing = missing, True
        report.table("Disks", ("Disk", "Size", "Model", "State"), disks())
        return
    names = device_of(path) if path else set()
    errors, hidden = kernel_errors(report)
    arrays = storage.arrays(read("/proc/mdstat") or "")
    counted = storage.counted()
    if path:
        errors = [one for one in errors if one.device in names]
        arrays = [one for one in arrays if one[0] in names]
        counted = [one for one in counted if one[0] in names]
    told = [one.told() for one in errors]
    told += [f"The RAID array {name} is {state}." for name, state, wrong in arrays if wrong]
    told += [text for _, text in counted]
    said, unread = storage.services_say("-30d")
    report.note(unread)
    told += [f"{shorten(text, 150)}." for _, text in said[-4:]]
    groups, healths = volume_groups(report), smart(report)
    told += [
        f"The volume group {row[0]} misses {plural(int(row[1]), 'disk')}."
        for row in groups
        if int(row[1] or 0)
    ]
    told += [
        f"The disk {name} fails its SMART check: {health}." for name, health in healths if "FAIL" in health
    ]
    about = f" of {path}" if path else ""
    if told:
        report.finding = (
            told[0]
            if len(told) == 1
            else f"{plural(len(told), 'problem')} with the disks{about}; first: {told[0]}"
        )
        report.next = prompt("when did the last backup run")
    elif hidden:
        state = (
            "No RAID array is degraded and no filesystem counts errors" if not path else "Nothing is known"
        )
        report.finding = f"{state}{about}; I/O errors cannot be seen: {hidden}"
    else:
        parts = f"; {plural(len(arrays), 'RAID array')} in order" if arrays else ""
        report.finding = (
            f"The kernel reported no I/O error and no damaged filesystem{about} since boot{parts}."
        )
    report.text("Problems", *(f"- {text}" for text in told)) if len(told) > 1 else None
    rows = [(one.device, one.kind, one.count, clock.show(one.last), shorten(one.text, 100)) for one in errors]
    report.table("Errors in the kernel's log", ("Device", "Kind", "Count", "Last", "Newest message"), rows)
    report.table("RAID arrays", ("Array", "State"), [(name, state) for name, state, _ in arrays])
    report.table("Disks", ("Disk", "Size", "Model", "State"), disks())
    report.table("Volume groups", ("Group", "Missing disks", "Attributes"), groups)
    report.table("What SMART says of the disks", ("Disk", "Health"), healths)


run(make)
