"""Processes: what runs, what it costs, what one of them holds open, and signals to it.

`list` and `tree` read /proc directly (proc(5)), one small file for each process, and all else only for what
is shown; 500 processes take some 30 ms. `info` uses psutil for what the kernel spreads over many files.
A process that ends in between is left out. Bytes that are not UTF-8 appear as \\xNN.
"""

import asyncio
import os
import pwd
import re
import shlex
import signal as signals
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field

from lightagentd.errors import NotFound, PermissionDenied
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, Tool, ToolError, action

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COMM_BYTES = 15
"""The kernel cuts a process's name to this many bytes."""
NAME_CHARS = 40
COMMAND_CHARS = 4000
FILES_SHOWN = 30
NAMES_SHOWN = 100
END_WAIT_S = 1.0
KTHREADD = 2
"""The parent of the kernel's own threads."""
STARTED_TOLERANCE_S = 2.0
"""The clock may be set between two calls by a little; a pid is not used again that fast."""
STATES = {
    "R": "running", "S": "sleeping", "D": "disk-sleep", "Z": "zombie", "T": "stopped",
    "t": "traced", "I": "idle", "X": "dead", "P": "parked",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stat:
    """One process as /proc/PID/stat has it."""

    pid: int
    comm: str
    state: str
    ppid: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    memory_bytes: int
    uid: int


class ListArgs(Args):
    sort: Literal["cpu", "memory", "pid", "name", "started"] = Field(
        default="cpu", description="cpu, memory and started begin with the largest and the newest."
    )
    name: str = Field(default="", max_length=100, description="Only processes with this in their name.")
    user: str = Field(default="", max_length=64, description="Only processes of this user: a name or a uid.")
    state: str = Field(
        default="", max_length=20, description="Such as running, sleeping, disk-sleep, zombie."
    )
    pid: int = Field(default=0, ge=0, description="Only this process.")
    limit: int = Field(default=30, ge=1, le=1000, description="How many are shown.")
    interval_s: float = Field(
        default=0.2,
        ge=0,
        le=5,
        description="How long CPU use is measured; 0 gives the average since the start.",
    )


class InfoArgs(Args):
    pid: int = Field(gt=0, description="The process.")


class TreeArgs(Args):
    pid: int = Field(
        default=0, ge=0, description="The root of the tree; 0 shows all but the kernel's threads."
    )
    limit: int = Field(default=200, ge=1, le=1000, description="How many processes are shown.")


class SignalArgs(Args):
    pid: int = Field(gt=1, description="The process; pid 1 and process groups are refused.")
    signal: Literal["TERM", "KILL", "HUP", "INT", "QUIT", "USR1", "USR2", "STOP", "CONT", "WINCH"] = Field(
        default="TERM", description="Which signal."
    )
    started: float | None = Field(
        default=None, description="`started` as list or info gave it: then a reused pid is not hit."
    )


class Proc(Tool):
    """Processes: list them with CPU and memory, look at one closely, show the tree, send signals."""

    name = "proc"

    @action()
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List processes with CPU use (100 % is one core), memory, state and user."""
        del ctx
        first = await asyncio.to_thread(_all_stats, args.pid)
        began = time.monotonic()
        before: dict[int, Stat] = {}
        if args.interval_s:
            await asyncio.sleep(args.interval_s)
            before, first = first, await asyncio.to_thread(_all_stats, args.pid)
        return await asyncio.to_thread(_listed, args, first, before, time.monotonic() - began)

    @action(taints=True)
    async def info(self, ctx: Context, args: InfoArgs) -> Result:
        """Show one process: command line, parents, memory, files, limits, cgroup, environment names."""
        del ctx
        return await asyncio.to_thread(_described, args.pid)

    @action()
    async def tree(self, ctx: Context, args: TreeArgs) -> Result:
        """Show processes as a tree of parents and children."""
        del ctx
        return await asyncio.to_thread(_tree, args)

    @action(effect=Effect.CHANGE)
    async def signal(self, ctx: Context, args: SignalArgs) -> Result:
        """Send a signal to one process and say whether it ended within a second."""
        del ctx
        if args.pid == os.getpid():
            raise InvalidArgument(
                "This is the process that runs the tool; it does not signal itself.", field="pid"
            )
        try:
            fd = os.pidfd_open(args.pid)
        except ProcessLookupError as err:
            raise _no_process(args.pid) from err
        except OSError as err:  # EINVAL: a thread's id
            raise ToolError(f"Process {args.pid} cannot be opened: {err.strerror}.") from err
        try:
            return await _signalled(fd, args)
        finally:
            os.close(fd)


async def _signalled(fd: int, args: SignalArgs) -> Result:
    """The pidfd stands for one process even when its pid is used again, so what is checked is what is hit."""
    stat = _read_stat(args.pid)
    if stat is None:
        raise _no_process(args.pid)
    if args.started is not None and abs(_started(stat) - args.started) > STARTED_TOLERANCE_S:
        raise ToolError(
            f"Pid {args.pid} is another process now: {_name(stat)}, started {_when(_started(stat))}.",
            suggestion="List the processes again.",
        )
    try:
        signals.pidfd_send_signal(fd, signals.Signals[f"SIG{args.signal}"])
    except PermissionError as err:
        raise PermissionDenied(
            f"Process {args.pid} ({_name(stat)}) belongs to {_user(stat.uid)}; this worker may not signal it."
        ) from err
    except ProcessLookupError as err:
        raise _no_process(args.pid) from err
    ended = await _ends(fd) if args.signal in ("TERM", "KILL", "INT", "QUIT", "HUP") else False
    outcome = "It has ended." if ended else "It still runs."
    if args.signal == "KILL" and not ended:
        outcome = "It has not ended yet: it waits in the kernel, perhaps for a disk."
    text = f"SIG{args.signal} was sent to {args.pid} ({_name(stat)}). {outcome}"
    return Result(output=text, metadata={"pid": args.pid, "signal": args.signal, "ended": ended})


async def _ends(fd: int) -> bool:
    """A pidfd becomes readable when its process has ended (pidfd_open(2))."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, gone.set)
    try:
        async with asyncio.timeout(END_WAIT_S):
            await gone.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True


def _all_stats(only: int = 0) -> dict[int, Stat]:
    pids = [only] if only else _pids()
    return {stat.pid: stat for stat in map(_read_stat, pids) if stat is not None}


def _pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def _read_stat(pid: int) -> Stat | None:
    """None for a process that is gone. The name may hold anything, spaces and parentheses too."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
            uid = Path(f"/proc/{pid}").stat().st_uid  # the folder's: a file's owner is root if not dumpable
        finally:
            os.close(fd)
    except OSError:
        return None
    head, _, tail = data.rpartition(b")")
    rest = tail.split()
    return Stat(
        pid=pid,
        comm=_text(head.partition(b"(")[2]),
        state=STATES.get(rest[0].decode(), "unknown"),
        ppid=int(rest[1]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        threads=int(rest[17]),
        start_ticks=int(rest[19]),
        memory_bytes=int(rest[21]) * PAGE_BYTES,
        uid=uid,
    )


def _listed(args: ListArgs, now: dict[int, Stat], before: dict[int, Stat], passed_s: float) -> Result:
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    cpu = {pid: _cpu_percent(stat, before, passed_s, uptime_s) for pid, stat in now.items()}
    uid = _uid(args.user) if args.user else None
    found = [
        stat
        for stat in now.values()
        if (uid is None or stat.uid == uid)
        and (not args.state or stat.state == args.state)
        and (not args.name or args.name.lower() in _name(stat).lower())
    ]
    orders: dict[str, Any] = {
        "cpu": lambda stat: (-cpu[stat.pid], -stat.memory_bytes),
        "memory": lambda stat: -stat.memory_bytes,
        "pid": lambda stat: stat.pid,
        "name": lambda stat: (stat.comm.lower(), stat.pid),
        "started": lambda stat: -stat.start_ticks,
    }
    found.sort(key=orders[args.sort])
    rows: list[dict[str, Any]] = [
        {
            "pid": stat.pid,
            "name": _name(stat),
            "user": _user(stat.uid),
            "state": stat.state,
            "cpu_percent": round(cpu[stat.pid], 1),
            "memory_bytes": stat.memory_bytes,
            "threads": stat.threads,
            "started": round(_started(stat), 2),
            "ppid": stat.ppid,
        }
        for stat in found[: args.limit]
    ]
    lines = ["    PID USER           CPU%   MEMORY STATE      STARTED              NAME"]
    lines += [
        f"{row['pid']:>7} {row['user']:<12} {row['cpu_percent']:>6.1f} {_size(row['memory_bytes']):>8}"
        f" {row['state']:<10} {_when(row['started'])} {row['name']}"
        for row in rows
    ]
    states = Counter(stat.state for stat in now.values())
    summary = f"{len(found)} of {len(now)} processes match"
    if len(found) > len(rows):
        summary += f", {len(found) - len(rows)} more are not shown"
    by_state = ", ".join(f"{count} {state}" for state, count in states.most_common())
    lines.append(f"{summary}. {by_state}.")
    counts = {"total": len(now), "matching": len(found), "states": dict(states)}
    return Result(output="\n".join(lines), metadata={"processes": rows, **counts})


def _cpu_percent(stat: Stat, before: dict[int, Stat], passed_s: float, uptime_s: float) -> float:
    old = before.get(stat.pid)
    if old is not None and old.start_ticks == stat.start_ticks:
        return (stat.cpu_ticks - old.cpu_ticks) / TICKS / max(passed_s, 0.001) * 100
    lived_s = max(uptime_s - stat.start_ticks / TICKS, 1 / TICKS)
    return stat.cpu_ticks / TICKS / lived_s * 100


def _tree(args: TreeArgs) -> Result:
    stats = _all_stats()
    if args.pid and args.pid not in stats:
        raise _no_process(args.pid)
    below: dict[int, list[int]] = {}
    for stat in sorted(stats.values(), key=lambda stat: stat.pid):
        below.setdefault(stat.ppid, []).append(stat.pid)
    kernel = 0
    if not args.pid and KTHREADD in stats and stats[KTHREADD].comm == "kthreadd":
        kernel = len(below.pop(KTHREADD, [])) + 1
    tops = [pid for pid in stats if stats[pid].ppid not in stats and not (kernel and pid == KTHREADD)]
    tops = [args.pid] if args.pid else tops
    lines: list[str] = []
    todo = [(pid, 0) for pid in sorted(tops, reverse=True)]
    total = 0
    while todo:
        pid, level = todo.pop()
        total += 1
        if total <= args.limit:
            stat = stats[pid]
            lines.append(f"{'  ' * min(level, 30)}{pid} {_name(stat)} ({_user(stat.uid)}, {stat.state})")
        todo += [(child, level + 1) for child in reversed(below.get(pid, [])) if child != pid]
    if total > args.limit:
        lines.append(f"{total - args.limit} more processes are not shown.")
    if kernel:
        lines.append(f"{kernel} threads of the kernel are left out.")
    return Result(output="\n".join(lines), metadata={"processes": total, "shown": min(total, args.limit)})


def _described(pid: int) -> Result:
    stat = _read_stat(pid)
    if stat is None:
        raise _no_process(pid)
    hidden: dict[str, str] = {}
    folder = Path(f"/proc/{pid}")
    readers: dict[str, Any] = {
        "command": lambda: _command(folder),
        "exe": lambda: _text(os.fsencode((folder / "exe").readlink())),
        "cwd": lambda: _text(os.fsencode((folder / "cwd").readlink())),
        "cgroup": lambda: _cgroup(folder),
        "real_user": lambda: _user(psutil.Process(pid).uids().real),
        "parents": lambda: _parents(stat),
        "cpu_s": lambda: stat.cpu_ticks / TICKS,
        "io": lambda: _io(pid),
        "open_files": lambda: _open_files(folder),
        "limits": lambda: _limits(folder),
        "environment_names": lambda: _environment_names(folder),
    }
    found: dict[str, Any] = {}
    for key, read in readers.items():
        try:
            found[key] = read()
        except (PermissionError, psutil.AccessDenied):
            hidden[key] = "permission denied"
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            hidden[key] = "the process has none, or it has ended" if _read_stat(pid) else "it has ended"
        except (OSError, ValueError) as err:
            hidden[key] = str(err)
    data = {
        "pid": pid,
        "name": _name(stat),
        "user": _user(stat.uid),
        "state": stat.state,
        "started": round(_started(stat), 2),
        "threads": stat.threads,
        "memory_bytes": stat.memory_bytes,
        **found,
        "hidden": hidden,
    }
    return Result(output="\n".join(_info_lines(data)), metadata=data)


def _info_lines(data: dict[str, Any]) -> list[str]:
    lines = [
        f"{data['pid']} {data['name']}: {data['state']}, user {data['user']}",
        f"started {_when(data['started'])} UTC, {data['threads']} threads",
        f"memory {_size(data['memory_bytes'])}",
    ]
    plain = ("command", "exe", "cwd", "cgroup", "real_user", "parents", "cpu_s")
    lines += [f"{key}: {data[key]}" for key in plain if data.get(key) not in (None, "")]
    if "io" in data:
        read, written = _size(data["io"]["read_bytes"]), _size(data["io"]["written_bytes"])
        lines.append(f"disk: {read} read, {written} written")
    if "limits" in data:
        limits = (f"{key} {value}" for key, value in data["limits"].items())
        lines.append("limits (soft/hard): " + ", ".join(limits))
    if "open_files" in data:
        files = data["open_files"]
        kinds = ", ".join(f"{count} {kind}" for kind, count in files["kinds"].items())
        lines.append(f"open descriptors: {files['count']}" + (f" ({kinds})" if kinds else ""))
        lines += [f"  {path}" for path in files["paths"]]
    if "environment_names" in data:
        lines.append("environment (names only): " + " ".join(data["environment_names"]))
    if data["hidden"]:
        lines.append("Not shown: " + "; ".join(f"{key} ({why})" for key, why in data["hidden"].items()) + ".")
    return lines


def _io(pid: int) -> dict[str, int]:
    """What it had read from and written to disks."""
    count = psutil.Process(pid).io_counters()
    return {"read_bytes": count.read_bytes, "written_bytes": count.write_bytes}


def _command(folder: Path) -> str:
    parts = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    command = shlex.join(_text(part) for part in parts if part)
    return command if len(command) <= COMMAND_CHARS else command[:COMMAND_CHARS] + " [...]"


def _cgroup(folder: Path) -> str:
    """The path in the unified hierarchy, which is the one of systemd's units (cgroups(7))."""
    rows = (folder / "cgroup").read_bytes().splitlines()
    return next((_text(row[3:]) for row in rows if row.startswith(b"0::")), "")


def _parents(stat: Stat) -> str:
    found: list[str] = []
    above = _read_stat(stat.ppid) if stat.ppid else None
    while above is not None and len(found) < 20:
        found.append(f"{above.pid} {_name(above)}")
        above = _read_stat(above.ppid) if above.ppid else None
    return " < ".join(found) or "none"


def _open_files(folder: Path) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    paths: set[str] = set()
    links = [*(folder / "fd").iterdir()]
    for link in links:
        try:
            target = os.fsencode(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(b"/"):
            kinds["device" if target.startswith(b"/dev/") else "file"] += 1
            paths.add(_text(target))
        else:
            kinds[_text(target.partition(b":")[0])] += 1
    shown = sorted(paths)[:FILES_SHOWN]
    more = [f"... and {len(paths) - len(shown)} more"] if len(paths) > len(shown) else []
    return {"count": len(links), "kinds": dict(kinds.most_common()), "paths": shown + more}


def _limits(folder: Path) -> dict[str, str]:
    wanted = {"Max open files": "files", "Max processes": "processes", "Max address space": "address space",
              "Max core file size": "core", "Max locked memory": "locked memory"}  # fmt: skip
    found = {}
    for line in (folder / "limits").read_text("ascii").splitlines():
        parts = re.split(r" {2,}", line)
        if parts[0] in wanted:
            found[wanted[parts[0]]] = f"{parts[1]}/{parts[2]}"
    return found


def _environment_names(folder: Path) -> list[str]:
    """Names and never values, which hold passwords and keys."""
    parts = (folder / "environ").read_bytes().split(b"\0")
    names = sorted({_text(part.partition(b"=")[0]) for part in parts if b"=" in part})
    return names[:NAMES_SHOWN] + (
        [f"... and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    )


def _text(data: bytes) -> str:
    """As UTF-8, with other bytes and control characters escaped, so that a name cannot make up lines."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _name(stat: Stat) -> str:
    """The name, completed from the command line where the kernel cut it."""
    if len(stat.comm.encode()) < COMM_BYTES:
        return stat.comm
    try:
        full = Path(f"/proc/{stat.pid}/cmdline").read_bytes().partition(b"\0")[0].rpartition(b"/")[2]
    except OSError:
        return stat.comm
    text = _text(full)
    whole = text.startswith(stat.comm) and re.fullmatch(r"[\w.+@:-]+", text)
    return text[:NAME_CHARS] if whole else stat.comm


@cache
def _boot_time() -> float:
    rows = Path("/proc/stat").read_text("ascii").splitlines()
    return next(float(row.split()[1]) for row in rows if row.startswith("btime "))


def _started(stat: Stat) -> float:
    return _boot_time() + stat.start_ticks / TICKS


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _size(size_bytes: float) -> str:
    for unit in ("B", "K", "M"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f}{unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f}G"


@cache
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _uid(user: str) -> int:
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as err:
        raise InvalidArgument(f"There is no user {user!r} on this machine.", field="user") from err


def _no_process(pid: int) -> NotFound:
    return NotFound(f"There is no process {pid} now.", suggestion="List the processes.", field="pid")
