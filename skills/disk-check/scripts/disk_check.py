"""Says how full the filesystems are, and what is large below a path. Only observes."""

from __future__ import annotations

import heapq
import os
import stat
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from commands import read
from report import Report, human, options, plural, refuse, run

_SANDBOX = Path("/run/lightagent-scratch")
"""Exists in the sandbox of a worker, and nowhere else."""
_MEMORY_TYPES = frozenset(("tmpfs", "devtmpfs", "ramfs"))
_WITHOUT_BLOCKS = frozenset(
    [
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "devpts",
        "mqueue",
        "debugfs",
        "tracefs",
        "securityfs",
        "pstore",
        "bpf",
        "configfs",
        "fusectl",
        "autofs",
        "nsfs",
        "binfmt_misc",
        "hugetlbfs",
        "efivarfs",
        "rpc_pipefs",
        "selinuxfs",
    ]
)
_FULL_PERCENT, _CLOSE_PERCENT = 95, 85
_ANSWER_S = 3.0
"""How long a filesystem may take to answer; a dead network filesystem never does."""
_WALK_S = 15.0
_LARGEST = 12


@dataclass(frozen=True)
class Mount:
    """One mounted filesystem. `percent` and `inode_percent` are as df counts them."""

    device: str
    folder: str
    kind: str
    read_only: bool
    size: int
    used: int
    available: int
    inodes: int
    inodes_free: int

    @property
    def percent(self) -> int:
        usable = self.used + self.available
        return -(-100 * self.used // usable) if usable else 0

    @property
    def inode_percent(self) -> int:
        return -(-100 * (self.inodes - self.inodes_free) // self.inodes) if self.inodes else 0


@dataclass(frozen=True)
class Entry:
    """One line of a mount table (proc_pid_mountinfo(5)); `number` is the device's major:minor."""

    number: str
    folder: str
    kind: str
    device: str
    read_only: bool


def mount_table(pid: str) -> list[Entry]:
    """The mounts of a process, one for each device, as df chooses them."""
    by_device: dict[str, tuple[int, int, Entry]] = {}
    on_top: dict[str, str] = {}
    for order, line in enumerate((read(f"/proc/{pid}/mountinfo") or "").splitlines()):
        left, _, right = line.partition(" - ")
        columns, tail = left.split(), right.split()
        if len(columns) < 6 or len(tail) < 3:
            continue
        folder = _unescape(columns[4])
        read_only = "ro" in columns[5].split(",") or "ro" in tail[2].split(",")
        key = columns[2]
        entry = (len(folder), order, Entry(key, folder, tail[0], _unescape(tail[1]), read_only))
        hidden = on_top.get(folder)
        if hidden is not None and by_device.get(hidden, entry)[2].folder == folder:
            by_device.pop(hidden, None)
        on_top[folder] = key
        if key not in by_device or entry[:2] < by_device[key][:2]:
            by_device[key] = entry
    return [entry for _, _, entry in by_device.values()]


def mounts(report: Report) -> list[Mount]:
    """The mounts of the machine that df shows: those with blocks.

    The sandbox of a worker has a mount table of its own, with folders covered and the rest read-only. The
    machine's mounts are in the table of its first process; each filesystem is measured where this process
    sees it.
    """
    own = mount_table("self")
    machine = mount_table("1") if _SANDBOX.exists() else []
    root = Path("/").stat().st_dev
    # In a chroot, the root of this process is no mount point of its own.
    seen_at = {f"{os.major(root)}:{os.minor(root)}": "/", **{entry.number: entry.folder for entry in own}}
    found = []
    for entry in machine or own:
        if entry.kind in _WITHOUT_BLOCKS:
            continue
        folder = seen_at.get(entry.number)
        if folder is None:
            report.note(f"The filesystem at {entry.folder} ({entry.kind}) cannot be measured from here.")
            continue
        info = _ask(folder)
        if info is None:
            report.note(
                f"The filesystem at {entry.folder} ({entry.kind}) did not answer within {_ANSWER_S:.0f} s or "
                "may not be read."
            )
        elif info.f_blocks > 0:
            unit = info.f_frsize
            used = (info.f_blocks - info.f_bfree) * unit
            found.append(
                Mount(
                    entry.device,
                    entry.folder,
                    entry.kind,
                    entry.read_only,
                    info.f_blocks * unit,
                    used,
                    info.f_bavail * unit,
                    info.f_files,
                    info.f_ffree,
                )
            )
    return sorted(found, key=lambda mount: (-mount.percent, mount.folder))


def _unescape(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def _ask(folder: str) -> os.statvfs_result | None:
    answers: list[os.statvfs_result] = []

    def ask() -> None:
        try:
            answers.append(os.statvfs(folder))
        except OSError:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return answers[0] if answers else None


def finding(real: list[Mount]) -> str:
    if not real:
        return "No filesystem with space of its own is visible from here."
    full = [
        mount
        for mount in real
        if max(mount.percent, mount.inode_percent) >= _FULL_PERCENT and not _is_image(mount)
    ]
    close = [
        mount
        for mount in real
        if max(mount.percent, mount.inode_percent) >= _CLOSE_PERCENT and not _is_image(mount)
    ]
    for group, words in ((full, "full or nearly full"), (close, "getting full")):
        if group:
            names = ", ".join(f"{mount.folder} ({_why(mount)})" for mount in group)
            return (
                f"{len(group)} of {plural(len(real), 'filesystem')} "
                f"{'is' if len(group) == 1 else 'are'} {words}: {names}."
            )
    fullest = max(
        (mount for mount in real if not _is_image(mount)), key=lambda mount: mount.percent, default=real[0]
    )
    if len(real) == 1:
        return f"The only filesystem has room: {fullest.folder} is at {fullest.percent} %."
    return f"All {len(real)} filesystems have room: the fullest is {fullest.folder} at {fullest.percent} %."


def _is_image(mount: Mount) -> bool:
    """Images such as squashfs are always full and never grow."""
    return mount.kind in ("squashfs", "iso9660", "erofs", "cramfs", "udf")


def _why(mount: Mount) -> str:
    if mount.inode_percent > mount.percent:
        return f"{mount.inode_percent} % of its inodes used"
    return f"{mount.percent} %, {human(mount.available)} left"


def largest(path: str, report: Report) -> None:
    """The largest entries directly below `path`, and the largest files below it on the same filesystem."""
    ends = time.monotonic() + _WALK_S
    device = os.lstat(path).st_dev
    sizes: dict[str, int] = {}
    files: list[tuple[int, str]] = []
    seen: set[int] = set()
    unreadable, stopped = 0, False
    stack: list[tuple[str, str]] = [(path, "")]
    while stack and not stopped:
        folder, child = stack.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            unreadable += 1
            continue
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if info.st_dev != device or (
                info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode) and info.st_ino in seen
            ):
                continue
            seen.add(info.st_ino)
            top = child or entry.path
            size = info.st_blocks * 512
            sizes[top] = sizes.get(top, 0) + size
            if stat.S_ISDIR(info.st_mode):
                stack.append((entry.path, top))
            elif size > 1 << 20:
                heapq.heappush(files, (size, entry.path))
                if len(files) > _LARGEST:
                    heapq.heappop(files)
        stopped = time.monotonic() > ends
    rows = sorted(sizes.items(), key=lambda item: -item[1])[:_LARGEST]
    report.table(
        f"Largest directly below {path}",
        ("Size", "Path"),
        [(human(size), name) for name, size in rows],
        "It is empty.",
    )
    report.table(
        f"Largest files below {path}",
        ("Size", "File"),
        [(human(size), name) for size, name in sorted(files, reverse=True)],
    )
    if stopped:
        report.note(f"The walk below {path} was stopped after {_WALK_S:.0f} s, so the sizes are too small.")
    if unreadable:
        report.note(
            f"{plural(unreadable, 'folder')} below {path} could not be read by this user and are "
            "not in the sizes."
        )


def make(report: Report) -> None:
    asked = options(str(__doc__), path="say which filesystem holds this path and what is large below it").path
    if asked is not None and not asked.startswith("/"):
        refuse(f"--path={asked} is not an absolute path.")
    found = mounts(report)
    real = [mount for mount in found if mount.kind not in _MEMORY_TYPES]
    report.finding = finding(real)
    header = (
        "Mounted at",
        "Used",
        "Size",
        "Used bytes",
        "Available",
        "Inodes used",
        "Type",
        "Device",
        "Mode",
    )
    for title, group in (
        ("Filesystems", real),
        ("In memory", [mount for mount in found if mount not in real]),
    ):
        report.table(
            title,
            header,
            [
                (
                    mount.folder,
                    f"{mount.percent} %",
                    human(mount.size),
                    human(mount.used),
                    human(mount.available),
                    f"{mount.inode_percent} %" if mount.inodes else "-",
                    mount.kind,
                    mount.device,
                    "read-only" if mount.read_only else "read-write",
                )
                for mount in group
            ],
        )
    if asked is not None:
        about_path(asked, found, report)


def about_path(path: str, found: list[Mount], report: Report) -> None:
    try:
        device = Path(path).stat().st_dev
    except OSError as err:
        report.finding = f"{path} cannot be looked at: {err.strerror}."
        return
    real = os.path.realpath(path)
    holders = [
        mount for mount in found if real == mount.folder or real.startswith(mount.folder.rstrip("/") + "/")
    ]
    holder = max(holders, key=lambda mount: len(mount.folder), default=None)
    if holder is not None:
        report.finding = (
            f"{path} is on the filesystem {holder.folder}, which is {holder.percent} % full: "
            f"{human(holder.available)} of {human(holder.size)} available"
            + (", and it is mounted read-only." if holder.read_only else ".")
        )
    if Path(path).is_dir() and device is not None:
        largest(real, report)


run(make)
