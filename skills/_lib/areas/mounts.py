"""Mounts: what is mounted where and how, fstab entries that are not, and file systems that do not answer.

The table is that of the machine's first process, from the survey of a worker: the sandbox of a script has one
of its own, in which nearly everything is read-only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, read
from report import clean, shorten

SANDBOX = Path("/run/lightagent-scratch")
"""Exists in the sandbox of a worker, and nowhere else."""
IMAGES = frozenset(("squashfs", "iso9660", "erofs", "cramfs", "udf"))
"""Always full, and never written."""
_NETWORK = re.compile(r"nfs4?|cifs|smb3|smbfs|fuse\.(?:sshfs|glusterfs|s3fs|rclone)|9p|ceph|glusterfs|afs")
_KERNEL = ("/proc", "/sys", "/dev", "/run")
_READ_ONLY_BY_DESIGN = (
    *_KERNEL,
    *("/usr", "/boot", "/efi", "/snap", "/nix", "/gnu", "/sysroot", "/ostree", "/media"),
    *("/var/lib/docker", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/lxcfs", "/var/lib/snapd"),
)
_ANSWER_S = 1.5


@dataclass(frozen=True)
class Entry:
    """One line of a mount table (proc_pid_mountinfo(5)); `number` is the device's major:minor."""

    number: str
    root: str
    """Which folder of the file system is mounted; not `/` for a bind mount."""
    folder: str
    options: tuple[str, ...]
    """Of this mount."""
    kind: str
    device: str
    super_options: tuple[str, ...]
    """Of the whole file system."""

    @property
    def read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.super_options

    @property
    def is_bind(self) -> bool:
        return self.root != "/" and self.kind not in ("btrfs", "proc", "sysfs", "cgroup", "cgroup2", "nsfs")

    @property
    def is_network(self) -> bool:
        return _NETWORK.fullmatch(self.kind) is not None

    @property
    def mode(self) -> str:
        return "read-only" if self.read_only else "read-write"

    @property
    def words(self) -> str:
        """What it is: `a bind mount of /srv on /dev/vda1 (ext4), read-only`."""
        what = f"a bind mount of {self.root} on {self.device} ({self.kind})" if self.is_bind else self.kind
        return f"{what}, {self.mode}" + ("" if self.is_bind else f", from {self.device}")


@dataclass(frozen=True)
class Wanted:
    """One line of /etc/fstab (fstab(5))."""

    device: str
    folder: str
    kind: str
    options: tuple[str, ...]


def is_whole() -> bool:
    """Whether the machine's own table can be read."""
    return bool(procfs.survey().get("mounts")) or not SANDBOX.exists() or bool(read("/proc/1/mountinfo"))


def table() -> list[Entry]:
    """The mounts of the machine that are not covered by a later one, in the order in which they were made."""
    text = procfs.survey().get("mounts") or (read("/proc/1/mountinfo") if SANDBOX.exists() else "")
    return parsed(str(text or read("/proc/self/mountinfo") or ""))


def parsed(text: str) -> list[Entry]:
    found: dict[str, Entry] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        columns, tail = left.split(), right.split()
        if len(columns) < 6 or len(tail) < 3:
            continue
        entry = Entry(
            columns[2],
            _unescape(columns[3]),
            clean(_unescape(columns[4])),
            tuple(columns[5].split(",")),
            tail[0],
            _unescape(tail[1]),
            tuple(tail[2].split(",")),
        )
        found.pop(entry.folder, None)
        found[entry.folder] = entry
    return list(found.values())


def holding(path: str, entries: list[Entry]) -> Entry | None:
    """The mount that a path is on."""
    above = (entry for entry in entries if within(path, entry.folder))
    return max(above, key=lambda entry: len(entry.folder), default=None)


def nearest(path: str) -> str:
    """The path, or the last folder on the way to it that is there."""
    return next((str(one) for one in (Path(path), *Path(path).parents) if os.path.lexists(one)), "/")


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def fstab(path: str = "/etc/fstab") -> list[Wanted]:
    """What is to be mounted at boot, without swap."""
    found = []
    for line in (read(path) or "").splitlines():
        columns = line.split()
        if len(columns) < 3 or columns[0].startswith("#") or columns[2] == "swap" or columns[1] == "none":
            continue
        options = tuple((columns[3] if len(columns) > 3 else "defaults").split(","))
        folder = _unescape(columns[1]).rstrip("/") or "/"
        found.append(Wanted(_unescape(columns[0]), folder, columns[2], options))
    return found


def answers(folder: str, timeout_s: float = _ANSWER_S) -> bool:
    """Whether a file system answers in time. A child asks, which stays behind if it hangs."""
    program = shutil.which("stat")
    if program is None:
        return True
    child = subprocess.Popen(
        [program, "-f", "--", folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"LC_ALL": "C"},
    )
    end = time.monotonic() + timeout_s
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert child.stderr is not None
    hangs = child.returncode is None
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
    said = b"" if hangs else child.stderr.read()
    child.stderr.close()
    if hangs:
        return False
    return b"Stale" not in said and b"not connected" not in said and b"Host is down" not in said


def unexpected_read_only(entries: list[Entry], wanted: list[Wanted]) -> Iterator[Entry]:
    """Mounts that are read-only though nobody wrote so down."""
    asked = {each.folder: each for each in wanted}
    for entry in entries:
        if not entry.read_only or entry.kind in IMAGES:
            continue
        if entry.folder in asked:
            if "ro" not in asked[entry.folder].options:
                yield entry
        elif entry.folder == "/" or entry.is_network or entry.kind.startswith("fuse"):
            continue  # as it was booted, or as somebody mounted it
        elif not _is_below(entry.folder, _READ_ONLY_BY_DESIGN) and not _unit_says_so(entry.folder):
            yield entry


def unmounted(entries: list[Entry], wanted: list[Wanted]) -> list[Wanted]:
    there = {entry.folder for entry in entries}
    return [
        each
        for each in wanted
        if not {"noauto", "x-systemd.automount"} & set(each.options)
        and os.path.realpath(each.folder) not in there
        and each.folder not in there
    ]


def why_not(wanted: Wanted) -> str:
    """The last word of the journal on a mount that failed, or what is missing."""
    entries, _ = journal("-b", "-u", unit_of(wanted.folder), limit=12, timeout_s=4)
    lines = [message(entry) for entry in entries]
    telling = [
        line for line in lines if re.search(r"mount: |fail|can't|no such|timed out|unknown", line, re.I)
    ]
    for line in reversed(telling):
        if line.startswith("mount: "):
            return shorten(line.removeprefix("mount: "), 140).rstrip(".")
    waits = next((line for line in lines if "Dependency failed" in line), "")
    if waits or wanted.device.startswith(("UUID=", "LABEL=", "PARTUUID=", "/dev/disk/")):
        return f"its device {wanted.device} did not appear" if waits else ""
    return shorten(telling[-1], 140).rstrip(".") if telling else ""


def unit_of(folder: str) -> str:
    """The name of a mount's unit (systemd-escape(1), --path)."""
    name = folder.strip("/")
    escaped = "".join(
        "-" if letter == "/" else letter if re.match(r"[A-Za-z0-9:_.]", letter) else _hex(letter)
        for letter in name
    )
    return f"{escaped or '-'}.mount"


@check("mounts.read_only", "file systems that are read-only and should not be")
def read_only() -> Iterator[Finding]:
    if not is_whole():
        raise CannotSee("The mount table of the machine is not visible from the sandbox.")
    entries, wanted = table(), fstab()
    for entry in unexpected_read_only(entries, wanted):
        yield Finding(
            read_only_sentence(entry, wanted),
            f"why is {entry.folder} read-only",
            severity=PROBLEM if any(each.folder == entry.folder for each in wanted) else WARNING,
        )


def read_only_sentence(entry: Entry, wanted: list[Wanted]) -> str:
    what = f" (a bind mount of {entry.root})" if entry.is_bind else f" ({entry.kind} from {entry.device})"
    text = f"{entry.folder}{what} is mounted read-only"
    if any(each.folder == entry.folder for each in wanted):
        text += ", though /etc/fstab does not say so"
        if "ro" in entry.super_options:
            return f"{text}: the kernel does that after errors of the file system or the disk."
    return f"{text}: nothing can be written there until `mount -o remount,rw {entry.folder}`."


@check("mounts.fstab", "entries of /etc/fstab that are not mounted")
def fstab_mounted() -> Iterator[Finding]:
    for each in unmounted(table(), fstab()):
        yield Finding(
            unmounted_sentence(each),
            f"why is {each.folder} not mounted",
            severity=WARNING if "nofail" in each.options else PROBLEM,
        )


def unmounted_sentence(each: Wanted) -> str:
    why = why_not(each)
    return f"{each.folder} is in /etc/fstab ({each.device}) and not mounted" + (f": {why}." if why else ".")


@check("mounts.answer", "network file systems that do not answer")
def network_mounts() -> Iterator[Finding]:
    for entry in [entry for entry in table() if entry.is_network][:20]:
        if not answers(entry.folder):
            yield Finding(stale_sentence(entry), f"is the mount {entry.folder} ok")


def dead(path: str) -> str:
    """Why a path must not be touched: its server does not answer, and this would hang. Empty for most."""
    entry = holding(path, table())
    return (
        stale_sentence(entry) if entry is not None and entry.is_network and not answers(entry.folder) else ""
    )


def stale_sentence(entry: Entry) -> str:
    return (
        f"{entry.folder} ({entry.kind} from {entry.device}) does not answer: what touches it hangs until its"
        " server is back."
    )


def note_of_table() -> str:
    """What could not be seen of the mounts, or an empty string."""
    if is_whole():
        return ""
    return "The machine's own mount table: in a sandbox bind mounts and read-only ones cannot be told."


def real(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if not within_system(entry.folder)]


def within_system(folder: str) -> bool:
    return _is_below(folder, _KERNEL)


def _is_below(folder: str, places: tuple[str, ...]) -> bool:
    return any(within(folder, place) for place in places)


def _unit_says_so(folder: str) -> bool:
    """Whether a mount unit of the administrator's says that it is read-only."""
    for place in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"):
        text = read(f"{place}/{unit_of(folder)}") or ""
        if re.search(r"^Options=(?:.*,)?ro(?:,|$)", text, re.M):
            return True
    return False


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _hex(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in letter.encode())
