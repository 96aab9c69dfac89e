"""A survey of all processes for the scripts of skills: what only the place INSPECT may see of others.

A worker makes it for one skill's run, in a bounded time and size, and it holds names and numbers, never
content. Names in a person's closed folder are only for that person and root (`paths`).

    {"pid_namespace": "pid:[4026531836]", "net_namespace": "net:[4026531840]", "left_out": 0,
     "mounts": "the text of /proc/1/mountinfo", "shadow": "clara:!:20000:0:99999:7:::",
     "processes": [{"pid": 812, "ppid": 1, "name": "nginx", "state": "S", "uid": 33, "unit": "nginx.service",
       "memory_bytes": 1024, "start_ticks": 99, "threads": 1, "command": "nginx: worker", "wchan": "",
       "exe": "/usr/sbin/nginx", "cwd": "/", "root": "/", "count": 20, "limit": 1024,
       "descriptors": {"6": "socket:[1234]"}, "deleted": {"7": [4096, "254:1:88"]}}]}

`descriptors` has sockets and deleted files, and with `files` all others too, and files that are mapped as
`"mapped /path": ""`. It is null where they may not be seen, or are too much. `shadow` is shadow(5), for
root alone, with `x` or `!` (locked) for each password that is not empty.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightagentd.toolkit.proc.paths import DELETED, FIRST_PERSON, Paths
from lightagentd.toolkit.proc.procfs import all_stats, head_of, name_of, text_of

SIZE_LIMIT_BYTES = 4 << 20
TIME_LIMIT_S = 3.0
_ROW_BYTES = SIZE_LIMIT_BYTES // 8
_DESCRIPTORS = 4000
"""How many of one process are in it."""
_COMMAND_CHARS = 200
_NO_FILES = ("/memfd:", "/dev/", "/SYSV", "/[aio]", "/i915", "/drm ")
"""What the kernel calls deleted though it never was a file on a disk (proc_pid_fd(5))."""
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "afs", "gluster", "lustre", "autofs")
"""File systems that may not answer when a file's size is asked."""


def survey(owner: int, *, files: bool = False) -> str:
    """All processes as JSON, as `owner` (a uid) may know them."""
    end = time.monotonic() + TIME_LIMIT_S
    paths = Paths(owner)
    mounts = _text("/proc/1/mountinfo") or ""
    # systemd is in init.scope below the cgroup of a container (systemd.special(7)).
    first = _lines("/proc/1/cgroup")
    own = [line.removesuffix("/init.scope") for line in first if line.endswith("/init.scope")]
    rows: list[str] = []
    head: dict[str, Any] = {
        "pid_namespace": _link("/proc/self/ns/pid"),
        "net_namespace": _link("/proc/1/ns/net"),
        "mounts": _mounts_told(mounts, paths.of(1, 0)),
    }
    if owner == 0 and (shadow := _text("/etc/shadow")) is not None:
        head["shadow"] = without_hashes(shadow)
    room = SIZE_LIMIT_BYTES - len(json.dumps(head)) - 1000
    # Those of people come last: if there is too much, they cut what is told of people, and not of services.
    stats = sorted(all_stats().values(), key=lambda stat: (stat.uid >= FIRST_PERSON, stat.pid))
    remote = _remote(mounts)
    for stat in stats:
        row: dict[str, Any] = {
            "pid": stat.pid,
            "ppid": stat.ppid,
            "name": name_of(stat),
            "state": stat.state,
            "uid": stat.uid,
            "unit": _unit(stat.pid, own),
            "memory_bytes": stat.memory_bytes,
            "start_ticks": stat.start_ticks,
            "threads": stat.threads,
            "command": _command(stat.pid),
            "descriptors": None,
        }
        if stat.state == "disk-sleep":
            row["wchan"] = _text(f"/proc/{stat.pid}/wchan") or ""
        opened = _opened(stat.pid, paths.of(stat.pid, stat.uid), remote, files=files, end=end)
        written = json.dumps(row | opened)
        if len(written) > _ROW_BYTES:
            written = json.dumps(row | {key: opened[key] for key in ("count", "limit") if key in opened})
        if len(written) > room or time.monotonic() > end:
            break
        room -= len(written) + 2
        rows.append(written)
    head["left_out"] = len(stats) - len(rows)
    return f'{json.dumps(head)[:-1]}, "processes": [{", ".join(rows)}]}}'


def without_hashes(shadow: str) -> str:
    """The text of /etc/shadow with `x` or `!` for each password that is not empty."""
    rows = (line.split(":") for line in shadow.splitlines() if ":" in line)
    told = [[name, hash_ and ("!" if hash_[0] in "!*" else "x"), *rest] for name, hash_, *rest in rows]
    return "\n".join(text_of(os.fsencode(":".join(row))) for row in told)


def _opened(
    pid: int, tell: Callable[[str], str], remote: set[str], *, files: bool, end: float
) -> dict[str, Any]:
    """What a process holds: as `descriptors` and what stands beside it; nothing where it may not be seen."""
    found: dict[str, Any] = {}
    for name in ("exe", "cwd", "root"):
        if target := _link(f"/proc/{pid}/{name}"):
            found[name] = tell(target)
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - names alone: there may be a million
    except PermissionError:
        return found
    except OSError:
        numbers = []
    kept: dict[str, str] = {}
    deleted: dict[str, list[Any]] = {}
    for number in numbers:
        if len(kept) >= _DESCRIPTORS or time.monotonic() > end:
            break
        target = _link(f"/proc/{pid}/fd/{number}")
        gone = target.endswith(DELETED) and not target.startswith(_NO_FILES)
        if gone or target.startswith(("socket:[", "anon_inode:inotify")) or (files and target):
            kept[number] = tell(target)
        if gone and (size := _size(pid, number, remote)):
            deleted[number] = size
    if files:
        kept |= {f"mapped {tell(path)}": "" for path in _mapped(pid)}
    limit = next((line.split()[3] for line in _lines(f"/proc/{pid}/limits") if "open files" in line), "")
    found |= {"descriptors": kept, "count": len(numbers)}
    if limit.isdigit():
        found["limit"] = int(limit)
    return found | ({"deleted": deleted} if deleted else {})


def _size(pid: int, number: str, remote: set[str]) -> list[Any]:
    """The bytes on disk and the identity of an open file, unless its file system might not answer."""
    try:
        described = dict(
            line.split(":\t", 1) for line in _lines(f"/proc/{pid}/fdinfo/{number}") if ":\t" in line
        )
        if described.get("mnt_id", "").strip() in remote:
            return []
        info = Path(f"/proc/{pid}/fd/{number}").stat()
    except OSError:
        return []
    device = f"{os.major(info.st_dev)}:{os.minor(info.st_dev)}"
    return [info.st_blocks * 512, f"{device}:{info.st_ino}"]


def _remote(mounts: str) -> set[str]:
    """The ids of mounts whose server may be gone (proc_pid_mountinfo(5))."""
    rows = (line.partition(" - ") for line in mounts.splitlines())
    return {left.split()[0] for left, _, right in rows if right.startswith(_REMOTE)}


def _mounts_told(mounts: str, tell: Callable[[str], str]) -> str:
    lines = []
    for line in mounts.splitlines():
        columns = line.split(" ")
        if len(columns) > 4:
            columns[4] = tell(columns[4])
        lines.append(" ".join(columns))
    return "\n".join(lines)


def _mapped(pid: int) -> list[str]:
    paths = {line.split(maxsplit=5)[-1] for line in _lines(f"/proc/{pid}/maps") if " /" in line}
    return sorted(path for path in paths if path.startswith("/"))[:500]


def _unit(pid: int, own: Sequence[str]) -> str:
    """The outermost service or scope in the path of the process's cgroup (cgroups(7)): what is below may be
    of a container, or named by a person. What is above is not of this machine, if it is a container itself
    with the cgroups `own`.
    """
    lines = [
        next((line.removeprefix(group) for group in own if line.startswith(f"{group}/")), line)
        for line in _lines(f"/proc/{pid}/cgroup")
    ]
    parts = [part for line in lines for part in line.split("/")]
    return text_of(os.fsencode(next((part for part in parts if part.endswith((".service", ".scope"))), "")))


def _command(pid: int) -> str:
    return text_of(
        os.fsencode((_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip())[:_COMMAND_CHARS]
    )


def _lines(path: str) -> list[str]:
    return (_text(path) or "").splitlines()


def _text(path: str) -> str | None:
    try:
        return os.fsdecode(head_of(path))
    except OSError:
        return None


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
