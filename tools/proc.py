"""Processes: what runs, what it costs, what one of them holds open, and signals to it.

`list` and `tree` read one small file for each process (`toolkit/proc/procfs`), and all else only for what is
shown; 500 processes take some 30 ms. `info` (`toolkit/proc/process`) may run with the rights to look into all
of them.
"""

import asyncio
import os
import pwd
import signal as signals
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lightagentd.errors import Conflict, PermissionDenied
from lightagentd.host.users import user_name
from lightagentd.tool import (
    Args,
    Context,
    Effect,
    InvalidArgument,
    Place,
    Preview,
    Result,
    Tool,
    ToolError,
    action,
)
from lightagentd.toolkit.proc.process import command_of, described, no_process
from lightagentd.toolkit.proc.procfs import (
    TICKS,
    Stat,
    all_stats,
    name_of,
    read_stat,
    size,
    started_s,
    when,
)

END_WAIT_S = 1.0
KTHREADD = 2
"""The parent of the kernel's own threads."""
STARTED_TOLERANCE_S = 2.0
"""The clock may be set between two calls by a little; a pid is not used again that fast."""


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

    @action(taints=True)
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List processes with CPU use (100 % is one core), memory, state and user."""
        first = await asyncio.to_thread(all_stats, args.pid)
        began = time.monotonic()
        before: dict[int, Stat] = {}
        if args.interval_s:
            await asyncio.sleep(args.interval_s)
            before, first = first, await asyncio.to_thread(all_stats, args.pid)
        return await asyncio.to_thread(_listed, args, first, before, time.monotonic() - began)

    @action(taints=True, place=Place.INSPECT)
    async def info(self, ctx: Context, args: InfoArgs) -> Result:
        """Show one process: command line, parents, memory, files, limits, cgroup, environment names."""
        return await asyncio.to_thread(described, args.pid, ctx.owner)

    @action(taints=True)
    async def tree(self, ctx: Context, args: TreeArgs) -> Result:
        """Show processes as a tree of parents and children."""
        return await asyncio.to_thread(_tree, args)

    @action(effect=Effect.CHANGE, taints=True)
    async def signal(self, ctx: Context, args: SignalArgs) -> Result:
        """Send a signal to one process and say whether it ended within a second."""
        if args.pid == os.getpid():
            raise InvalidArgument(
                "This is the process that runs the tool; it does not signal itself.", field="pid"
            )
        try:
            fd = os.pidfd_open(args.pid)
        except ProcessLookupError as err:
            raise no_process(args.pid) from err
        except OSError as err:  # EINVAL: a thread's id
            raise ToolError(f"Process {args.pid} cannot be opened: {err.strerror}.") from err
        try:
            return await _signalled(fd, args, ctx.expected)
        finally:
            os.close(fd)

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """Which process a signal goes to: a pid may be another one's when the approval comes."""
        if action != "signal":
            return None
        return await asyncio.to_thread(_signal_preview, args)


def _signal_preview(args: SignalArgs) -> Preview:
    stat = read_stat(args.pid)
    if stat is None:
        return Preview(
            text=f"SIG{args.signal} to process {args.pid}, which is not there, or cannot be seen from here."
        )
    text = (
        f"SIG{args.signal} to process {args.pid}: {name_of(stat)}, user {user_name(stat.uid)}, {stat.state},"
        f" started {when(started_s(stat))} UTC.\n"
    )
    try:
        text += f"Its command: {command_of(Path(f'/proc/{args.pid}'))}\n"
    except OSError:
        text += "Its command cannot be read from here.\n"
    return Preview(text=text, expected={"start_ticks": stat.start_ticks, "name": stat.comm})


async def _signalled(fd: int, args: SignalArgs, expected: dict[str, Any]) -> Result:
    """The pidfd stands for one process even when its pid is used again, so what is checked is what is hit."""
    stat = read_stat(args.pid)
    if stat is None:
        raise no_process(args.pid)
    if expected and (stat.start_ticks, stat.comm) != (expected.get("start_ticks"), expected.get("name")):
        raise Conflict(
            f"Pid {args.pid} has changed since it was approved: it is {name_of(stat)} now,"
            f" started {when(started_s(stat))}.",
            suggestion="List the processes, and ask again.",
        )
    if args.started is not None and abs(started_s(stat) - args.started) > STARTED_TOLERANCE_S:
        raise ToolError(
            f"Pid {args.pid} is another process now: {name_of(stat)}, started {when(started_s(stat))}.",
            suggestion="List the processes again.",
        )
    try:
        signals.pidfd_send_signal(fd, signals.Signals[f"SIG{args.signal}"])
    except PermissionError as err:
        raise PermissionDenied(
            f"Process {args.pid} ({name_of(stat)}) belongs to {user_name(stat.uid)};"
            " this worker may not signal it."
        ) from err
    except ProcessLookupError as err:
        raise no_process(args.pid) from err
    ended = await _ends(fd) if args.signal in ("TERM", "KILL", "INT", "QUIT", "HUP") else False
    outcome = "It has ended." if ended else "It still runs."
    if args.signal == "KILL" and not ended:
        outcome = "It has not ended yet: it waits in the kernel, perhaps for a disk."
    text = f"SIG{args.signal} was sent to {args.pid} ({name_of(stat)}). {outcome}"
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


def _listed(args: ListArgs, now: dict[int, Stat], before: dict[int, Stat], passed_s: float) -> Result:
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    cpu = {pid: _cpu_percent(stat, before, passed_s, uptime_s) for pid, stat in now.items()}
    uid = _uid(args.user) if args.user else None
    found = [
        stat
        for stat in now.values()
        if (uid is None or stat.uid == uid)
        and (not args.state or stat.state == args.state)
        and (not args.name or args.name.lower() in name_of(stat).lower())
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
            "name": name_of(stat),
            "user": user_name(stat.uid),
            "state": stat.state,
            "cpu_percent": round(cpu[stat.pid], 1),
            "memory_bytes": stat.memory_bytes,
            "threads": stat.threads,
            "started": round(started_s(stat), 2),
            "ppid": stat.ppid,
        }
        for stat in found[: args.limit]
    ]
    lines = ["    PID USER           CPU%   MEMORY STATE      STARTED              NAME"]
    lines += [
        f"{row['pid']:>7} {row['user']:<12} {row['cpu_percent']:>6.1f} {size(row['memory_bytes']):>8}"
        f" {row['state']:<10} {when(row['started'])} {row['name']}"
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
    stats = all_stats()
    if args.pid and args.pid not in stats:
        raise no_process(args.pid)
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
            lines.append(
                f"{'  ' * min(level, 30)}{pid} {name_of(stat)} ({user_name(stat.uid)}, {stat.state})"
            )
        todo += [(child, level + 1) for child in reversed(below.get(pid, [])) if child != pid]
    if total > args.limit:
        lines.append(f"{total - args.limit} more processes are not shown.")
    if kernel:
        lines.append(f"{kernel} threads of the kernel are left out.")
    return Result(output="\n".join(lines), metadata={"processes": total, "shown": min(total, args.limit)})


def _uid(user: str) -> int:
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as err:
        raise InvalidArgument(f"There is no user {user!r} on this machine.", field="user") from err
