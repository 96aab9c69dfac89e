"""Limits: descriptors, tasks, process ids, inotify, connection tracking: who is near one."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import procfs
from causes import process
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import journal, message, read, stamp
from report import plural, shorten
from systemd_units import loaded

_NEAR, _AT = 0.8, 0.95
_ASK = "who is near a limit"


@dataclass(frozen=True)
class Use:
    """How much of a limit is used; `who` uses it, and `setting` raises it."""

    what: str
    who: str
    used: int
    limit: int
    setting: str
    pid: int = 0
    unit: str = ""

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit > 0 else 0.0

    def told(self) -> str:
        share = f"{self.share:.0%}"
        return (
            f"{self.who} has {self.used} of {self.limit} {self.what} ({share}): {self.setting} is the limit."
        )


def number(path: str) -> int:
    """A file's number, or the first one; -1 where there is none."""
    words = (read(path) or "").split()
    return int(words[0]) if words and words[0].isdigit() else -1


def open_files(pid: int) -> int | None:
    """How many descriptors a process has, or None where that cannot be seen."""
    row = procfs.surveyed().get(pid, {})
    if "count" in row:
        return int(row["count"])
    if procfs.proc(pid, "comm"):
        with contextlib.suppress(OSError):
            if size := Path(f"/proc/{pid}/fd").stat().st_size:  # the number, since Linux 6.2
                return size
    found = procfs.descriptors(pid)
    return None if found is None else len(found)


def soft_limit(pid: int, name: str) -> int:
    """A soft limit from /proc/PID/limits, such as `Max open files`; -1 where it is unlimited or unknown."""
    match = re.search(rf"^{name}\s+(\d+)", procfs.proc(pid, "limits"), re.M)
    known = procfs.surveyed().get(pid, {}).get("limit", -1) if name == "Max open files" else -1
    return int(match[1]) if match else int(known)


def descriptors() -> tuple[list[Use], int]:
    """The open files of each process against its limit, the nearest first, and how many cannot be seen."""
    found, hidden = [], 0
    for pid in procfs.pids():
        used, limit = open_files(pid), soft_limit(pid, "Max open files")
        if used is None:
            hidden += 1
        elif used and limit > 0:
            unit = procfs.unit_of(pid)
            found.append(Use("open files", f"{process(pid)}", used, limit, "LimitNOFILE=", pid, unit))
    return sorted(found, key=lambda use: -use.share), hidden


def tasks() -> list[Use]:
    """Processes and threads of each unit against its TasksMax=, the nearest first."""
    found = []
    for unit in loaded().values():
        used, limit = unit.number("TasksCurrent"), unit.number("TasksMax")
        if used > 0 and 0 < limit < 1 << 40:
            found.append(Use("tasks", unit.name, used, limit, "TasksMax=", unit=unit.name))
    return sorted(found, key=lambda use: -use.share)


def user_tasks() -> list[Use]:
    """Threads of each user against the limit on their number, the nearest first."""
    counts: Counter[int] = Counter()
    least: dict[int, int] = {}
    for pid in procfs.pids():
        status = procfs.status(pid)
        uid = int((status.get("Uid") or "0").split()[0])
        counts[uid] += int(status.get("Threads") or 1)
        limit = soft_limit(pid, "Max processes")
        if uid and limit > 0:
            least[uid] = max(limit, least.get(uid, 0))
    uses = [
        Use("processes and threads", f"The user {procfs.user(uid)}", counts[uid], limit, "ulimit -u (nproc)")
        for uid, limit in least.items()
    ]
    return sorted(uses, key=lambda use: -use.share)


def machine() -> list[Use]:
    """What the whole machine uses of its limits."""
    all_tasks = int(((read("/proc/loadavg") or "").split() or ["0/0"] * 4)[3].partition("/")[2] or 0)
    kernel, net = "/proc/sys/kernel", "/proc/sys/net/netfilter"
    files = (read("/proc/sys/fs/file-nr") or "0 0 0").split()
    rows = [
        ("tasks", all_tasks, number(f"{kernel}/threads-max"), "kernel.threads-max"),
        ("process ids", all_tasks, number(f"{kernel}/pid_max"), "kernel.pid_max"),
        ("open files", int(files[0]), int(files[2]), "fs.file-max"),
        (
            "tracked connections",
            number(f"{net}/nf_conntrack_count"),
            number(f"{net}/nf_conntrack_max"),
            "net.netfilter.nf_conntrack_max",
        ),
    ]
    return [
        Use(what, "The machine", used, limit, name) for what, used, limit, name in rows if used >= 0 < limit
    ]


def inotify() -> tuple[list[Use], int]:
    """Instances and watches of inotify(7) of each user, and how many processes cannot be seen."""
    instances: Counter[int] = Counter()
    watches: Counter[int] = Counter()
    hidden = 0
    for pid in procfs.pids():
        targets = procfs.descriptors(pid)
        if targets is None:
            hidden += 1
            continue
        own = [fd for fd, target in targets.items() if target == "anon_inode:inotify"]
        if own:
            uid = int((procfs.status(pid).get("Uid") or "0").split()[0])
            instances[uid] += len(own)
            watches[uid] += sum(procfs.proc(pid, f"fdinfo/{fd}").count("inotify wd:") for fd in own)
    found = []
    for what, counts, name in (
        ("inotify instances", instances, "max_user_instances"),
        ("inotify watches", watches, "max_user_watches"),
    ):
        limit = number(f"/proc/sys/fs/inotify/{name}")
        users = ((f"The user {procfs.user(uid)}", count) for uid, count in counts.items())
        found += [Use(what, who, count, limit, f"fs.inotify.{name}") for who, count in users if limit > 0]
    return sorted(found, key=lambda use: -use.share), hidden


def _findings(uses: list[Use]) -> Iterator[Finding]:
    for use in uses:
        if use.share >= _NEAR:
            ask = f"is {use.unit} near a limit" if use.unit else _ASK
            yield Finding(use.told(), ask, severity=PROBLEM if use.share >= _AT else WARNING)


def refused(since: str = "-1h") -> tuple[dict[str, tuple[int, float, str]], str]:
    """Who logged that a limit was reached: by unit, how often, when last, and the newest line."""
    words = "too many open files|inotify watch(es)? limit|fork rejected by pids|table full, dropping packet"
    entries, problem = journal(
        "--since", since, "--case-sensitive=no", f"--grep={words}", limit=200, timeout_s=4
    )
    found: dict[str, tuple[int, float, str]] = {}
    for entry in entries:
        name = str(entry.get("_SYSTEMD_UNIT") or entry.get("SYSLOG_IDENTIFIER") or "kernel")
        count = found[name][0] if name in found else 0
        found[name] = (count + 1, stamp(entry), message(entry))
    return found, problem


@check("limits.log", "messages that a limit was reached")
def logged() -> Iterator[Finding]:
    found, problem = refused()
    for name, (count, when, text) in found.items():
        told = (
            f'{name} reached a limit ({plural(count, "message")} in the last hour): "{shorten(text, 110)}".'
        )
        yield Finding(told, f"is {name} near a limit", when)
    if problem:
        raise CannotSee(problem)


@check("limits.machine", "the machine's limits: tasks, open files, connections")
def of_machine() -> Iterator[Finding]:
    yield from _findings(machine())


@check("limits.descriptors", "processes near their limit of open files")
def of_descriptors() -> Iterator[Finding]:
    yield from _findings(descriptors()[0][:5])


@check("limits.tasks", "units and users near their limit of tasks")
def of_tasks() -> Iterator[Finding]:
    yield from _findings(tasks()[:5])
    yield from _findings(user_tasks()[:3])


@check("limits.inotify", "users near their limit of inotify instances and watches")
def of_inotify() -> Iterator[Finding]:
    uses, hidden = inotify()
    yield from _findings(uses[:3])
    if hidden:
        raise CannotSee(f"The inotify instances of {plural(hidden, 'process')} cannot be seen.")
