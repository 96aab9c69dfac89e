"""Disks as devices: I/O errors, RAID, LVM, SMART, damaged filesystems; not how full they are."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import clock
import kernel_log
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, read, stamp
from report import plural, shorten, span

DAY_S = 86400.0
_ASK = "are the disks ok"
_IO = re.compile(
    r"(?:I/O|medium|target|nexus|protection|transport) error,? (?:on )?dev(?:ice)? ([\w!-]+)|"
    r"(?:Buffer|lost .*) I/O error on (?:dev(?:ice)? )?([\w!-]+)|"
    r"^(?:sd \S+ )?\[?(sd[a-z]+)\]?.*(?:Unrecovered read error|Medium Error|Hardware Error)|"
    r"^(ata\d+)(?:\.\d+)?: (?:exception Emask|failed command)|"
    r"^(?:nvme |block )?(nvme\d+)\w*: (?:.*timeout|controller is down|Device not ready|Removing after probe)"
)
_DAMAGE = re.compile(
    r"EXT4-fs error \(device ([\w.!-]+)\)|(?:Aborting journal on device )([\w.!-]+)|"
    r"EXT4-fs \(([\w.!-]+)\): (?:Remounting filesystem read-only|.*[Cc]orrupt)|"
    r"XFS \(([\w.!-]+)\): (?=.*(?:[Cc]orruption|metadata I/O error|Internal error|[Ss]hutting down))|"
    r"BTRFS (?:error|critical|warning) \(device ([\w.!-]+)[^)]*\)"
    r"(?=.*(?:corrupt|csum|error|failed|forced readonly))"
)
_DISK = re.compile(
    r"/dev/((?:sd|hd|vd|xvd)[a-z]{1,2}\d*|nvme\d+(?:n\d+(?:p\d+)?)?|md\d+|dm-\d+|mmcblk\d+(?:p\d+)?)"
)
"""Names that the kernel gives to disks, their partitions, and what is made of them."""
_NO_DISK = re.compile(r"(?:fd|sr|loop|zram|ram|nbd)\d+")
_SMART_SAYS = re.compile(
    r"FAILED SMART|FAILURE PREDICTED|FAILING_NOW|[1-9]\d* (?:Currently unreadable|Offline uncorrectable)"
)
_LVM_SAYS = re.compile(r"missing PV|[Cc]ouldn't find device|[Cc]annot activate|degraded|is missing", re.I)


@dataclass
class Errors:
    """What the kernel's log has of one device."""

    device: str
    kind: str
    count: int
    last: float
    text: str

    def told(self) -> str:
        when = f"the last {span(time.time() - self.last)} ago"
        text = f'"{shorten(self.text, 110)}"'
        if self.kind == "I/O":
            return f"The disk {self.device} had {plural(self.count, 'I/O error')}, {when}: {text}."
        end = " and made it read-only" if re.search("read-?only", self.text) else ""
        count = plural(self.count, "error")
        return f"The filesystem on {self.device} is damaged: the kernel found {count}{end}, {when}: {text}."


def no_such_disk(path: str, disks: Path = Path("/sys/class/block")) -> str:
    """A sentence where a path names a disk or partition that this machine does not have; else empty.

    What /dev holds may be less in a sandbox; the kernel lists all in `disks` (sysfs(5)).
    """
    name = _DISK.fullmatch(path)
    known = {each.name for each in disks.glob("*")}
    if name is None or not known or name[1] in known or Path(path).exists():
        return ""
    whole = sorted(
        one
        for one in known
        if _DISK.fullmatch(f"/dev/{one}") and not (disks / one / "partition").exists() and one[:2] != "dm"
    )
    has = f"This machine has {', '.join(whole[:6])}." if whole else "This machine has none of its own."
    return f"There is no such disk: {path}. {has}"


def errors(lines: Iterable[kernel_log.Line]) -> list[Errors]:
    """The devices of which the kernel reported errors, each with its newest message."""
    found: dict[tuple[str, str], Errors] = {}
    for when, text in lines:
        for kind, pattern in (("damage", _DAMAGE), ("I/O", _IO)):
            match = pattern.search(text)
            device = next((name for name in match.groups() if name), "") if match else ""
            if not device or _NO_DISK.match(device):
                continue
            one = found.setdefault((device, kind), Errors(device, kind, 0, when, text))
            one.count += 1
            one.last = when
            if "read-only" not in one.text:
                one.text = text
            break
    return sorted(found.values(), key=lambda one: -one.last)


def arrays(mdstat: str) -> list[tuple[str, str, bool]]:
    """The arrays of /proc/mdstat: (name, what it says, whether something is wrong with it); see md(4)."""
    found = []
    for block in re.split(r"\n(?=\S)", mdstat):
        head = re.match(r"(md\S*) : (\S+) (.*)", block)
        if head is None:
            continue
        name, state, rest = head.groups()
        failed = re.findall(r"(\S+?)\[\d+\]\(F\)", rest)
        slots = re.search(r"\[(\d+)/(\d+)\] \[([U_]+)\]", block)
        progress = re.search(r"(recovery|resync|reshape|check) *= *([\d.]+%)", block)
        told, wrong = state, state == "inactive"
        if slots and "_" in slots[3]:
            told, wrong = f"degraded, {slots[2]} of {slots[1]} disks work", True
        if failed:
            told, wrong = f"{told}, failed: {', '.join(failed)}", True
        if progress:
            told += f", {progress[1]} at {progress[2]}"
        found.append((name, told, wrong))
    return found


def counted() -> list[tuple[str, str]]:
    """Errors that filesystems keep count of, over reboots too: (device, sentence)."""
    found = []
    for folder in sorted(Path("/sys/fs/ext4").glob("*")):
        count = (read(str(folder / "errors_count")) or "0").strip()
        last = (read(str(folder / "last_error_time")) or "0").strip()
        if count not in ("", "0"):
            when = f", the last on {clock.show(float(last))}" if last.isdigit() and last != "0" else ""
            text = f"ext4 on {folder.name} has counted {plural(int(count), 'error')}{when}: run e2fsck on it."
            found.append((folder.name, text))
    for stats in sorted(Path("/sys/fs/btrfs").glob("*/devinfo/*/error_stats")):
        wrong = [line for line in (read(str(stats)) or "").splitlines() if not line.endswith(" 0")]
        if wrong:
            name, device = stats.parents[2].name, stats.parent.name
            text = f"btrfs {name} has counted errors of its device {device}: {', '.join(wrong)}."
            found.append((name, text))
    return found


def services_say(since: str = "-1d") -> tuple[list[tuple[float, str]], str]:
    """What smartd, mdadm and LVM wrote about disks that fail: (when, line), each line once; and why this may
    not be all.
    """
    names = ("smartd", "lvm", "dmeventd", "mdadm")
    wanted = [f"SYSLOG_IDENTIFIER={name}" for name in names]
    entries, problem = journal("-b", "--since", since, *wanted, limit=1000, timeout_s=5)
    told = {}
    for entry in entries:
        text = message(entry)
        if _SMART_SAYS.search(text) or (
            entry.get("SYSLOG_IDENTIFIER") != "smartd" and _LVM_SAYS.search(text)
        ):
            told[re.sub(r"\d+", "#", text)] = (stamp(entry), f"{entry.get('SYSLOG_IDENTIFIER')}: {text}")
    return sorted(told.values()), problem


@check("storage.arrays", "RAID arrays that are degraded, and errors that filesystems counted")
def states() -> Iterator[Finding]:
    if kernel_log.is_container():
        return
    for name, told, wrong in arrays(read("/proc/mdstat") or ""):
        if wrong:
            yield Finding(f"The RAID array {name} is {told}.", _ASK)
    for _, text in counted():
        yield Finding(text, _ASK)


@check("storage.log", "I/O errors and damaged filesystems in the kernel's log")
def log() -> Iterator[Finding]:
    for one in errors(kernel_log.lines(time.time() - DAY_S)):
        yield Finding(one.told(), _ASK, one.last)


@check("storage.services", "what smartd, mdadm and LVM say of failing disks")
def said() -> Iterator[Finding]:
    found, problem = services_say()
    for when, text in found[-4:]:
        yield Finding(f"{shorten(text, 160)}.", _ASK, when, PROBLEM if "FAIL" in text else WARNING)
    if problem:
        raise CannotSee(problem)
