"""Says which processes use a path or a port, or what a process is and has open. Only observes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import mounts, processes, storage
from checks import prompt
from clock import boot_time, show
from report import Report, human, options, plural, refuse, run

_ROWS = 40


def ways(pid: int, path: str, whole: int | None) -> set[str] | None:
    """How a process uses a path or something below it, or None where this user may not look.

    `whole` is the device of a mount point: then everything on that filesystem counts.
    """
    targets = procfs.descriptors(pid)
    links = {what: procfs.link(pid, what) for what in ("exe", "cwd", "root")}
    if targets is None:
        return None
    found = {"open" for target in targets.values() if _within(target, path)}
    names = {"exe": "runs it", "cwd": "working directory", "root": "root directory"}
    found |= {names[what] for what, target in links.items() if _within(target, path)}
    if any(_within(target, path) for target in procfs.mapped(pid)):
        found.add("mapped")
    if whole is not None and not found and not procfs.surveyed():
        for number in targets:
            try:
                if Path(f"/proc/{pid}/fd/{number}").stat().st_dev == whole:
                    found.add("open")
            except OSError:
                continue
    return found


def _within(target: str, path: str) -> bool:
    target = target[: -len(" (deleted)")] if target.endswith(" (deleted)") else target
    return target == path or (path != "/" and target.startswith(path + "/"))


def users(path: str, *, touch: bool = True) -> tuple[list[tuple[int, str]], int]:
    """The pids that use a path, and how; and how many processes could not be looked into."""
    whole = None
    if touch:
        with contextlib.suppress(OSError):  # such as a device, which the sandbox does not show
            info = Path(path).stat()
            whole = info.st_dev if os.path.ismount(path) and path != "/" else None
    rows, hidden = [], 0
    for pid in procfs.pids():
        if pid == os.getpid():
            continue
        found = ways(pid, path, whole)
        if found is None:
            hidden += 1
        elif found:
            rows.append((pid, ", ".join(sorted(found))))
    return sorted(rows, key=lambda row: procfs.is_own(row[0])), hidden


def about_path(path: str, report: Report) -> None:
    if no_disk := storage.no_such_disk(path):
        report.finding, report.found_nothing = no_disk, True
        return
    hangs = mounts.dead(path)
    real = path if hangs else os.path.realpath(path)
    rows, hidden = users(real, touch=not hangs)
    entry = mounts.holding(real, mounts.table())
    mounted = [each for each in mounts.table() if each.device == real]
    what = f"{path} (mounted at {mounted[0].folder})" if mounted else path
    if mounted and not rows:
        rows, hidden = users(mounted[0].folder)
    if rows:
        others = f" and {plural(len(rows) - 1, 'other process')}" if len(rows) > 1 else ""
        report.finding = f"{what} is used by {procfs.who(rows[0][0])} ({rows[0][1]}){others}."
        report.next = prompt(f"what does pid {rows[0][0]} do")
    elif not hangs and not mounted and not os.path.lexists(path) and not real.startswith("/dev/"):
        report.finding = f"{path} does not exist, and no process has it open."
        report.found_nothing = True
    else:
        seen = "" if not hidden else " that can be seen from here"
        report.finding = f"No process{seen} uses {what}."
        below = [
            each.folder for each in mounts.table() if each.folder != real and mounts.within(each.folder, real)
        ]
        if entry is not None and entry.folder == real and real != "/" and below:
            report.finding = (
                f"{report.finding[:-1]}; it is busy all the same, {below[0]} is mounted below it."
            )
        report.found_nothing = not hidden
    report.note(hangs)
    report.table(
        "Processes",
        ("Pid", "User", "How", "Unit", "Command"),
        [
            (pid, procfs.user_of(pid), how, procfs.unit_of(pid), procfs.command(pid, 60))
            for pid, how in rows[:_ROWS]
        ],
    )
    if len(rows) > _ROWS:
        report.note(f"{len(rows) - _ROWS} more processes.")
    if hidden:
        report.note(
            f"The open files of {plural(hidden, 'process')} of other users: only root may look into them."
        )


def about_port(port: int, report: Report) -> None:
    used = [row for row in procfs.sockets() if port in (row.port, row.peer_port) and row.inode]
    owners, hidden = procfs.socket_owners()
    listens = [row for row in used if row.port == port and row.is_listening]
    as_client = [row for row in used if row.peer_port == port]
    chosen = listens or as_client or used
    holders = sorted(
        {pid for row in chosen for pid in owners.get(row.inode, [])}, key=lambda pid: (pid == 1, pid)
    )
    if holders:
        names = ", ".join(procfs.who(pid) for pid in holders[:4])
        how = "listens on it" if listens else "has it"
        if as_client and not listens:
            how = f"is connected to it at {as_client[0].peer}"
        report.finding = f"Port {port} is used by {names}: it {how}."
        clients = {pid for row in as_client for pid in owners.get(row.inode, [])} if listens else set()
        if clients:
            who = ", ".join(procfs.who(pid) for pid in sorted(clients)[:3])
            more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
            report.finding = (
                f"{report.finding[:-1]}; {who}{more} {'is' if len(clients) == 1 else 'are'} connected to it."
            )
        report.next = prompt(f"what does pid {holders[0]} do")
    elif used:
        report.finding = (
            f"Port {port} is in use, by a process of the user "
            f"{procfs.user(used[0].uid)} that cannot be seen from here."
        )
    else:
        report.finding = f"No process uses port {port}."
        report.found_nothing = True
    report.table(
        "Sockets",
        ("Protocol", "Local", "Remote", "State", "User", "Processes"),
        [
            (
                row.protocol,
                f"{row.address}:{row.port}",
                f"{row.peer}:{row.peer_port}",
                "listen" if row.is_listening else row.state,
                procfs.user(row.uid),
                ", ".join(f"{procfs.name(pid)} ({pid})" for pid in owners.get(row.inode, []))
                or "not visible",
            )
            for row in used[:_ROWS]
        ],
    )
    if hidden and any(row.inode not in owners for row in used):
        report.note(
            f"The sockets of {plural(hidden, 'process')} of other users: only root may look into them."
        )
    report.note(procfs.sockets_are_whole())


def about_process(pid: int, report: Report) -> None:
    values = procfs.status(pid)
    if not values:
        report.finding = f"There is no process {pid}."
        report.found_nothing = not procfs.processes_are_whole()
        return
    name, state = values.get("Name", "?"), values.get("State", "?")
    user, unit = procfs.user_of(pid), procfs.unit_of(pid)
    report.finding = f"Process {pid} is {name}, state {state}, of the user {user}" + (
        f", in {unit}." if unit else "."
    )
    each = procfs.stat(pid)
    rows = [
        ("Command", procfs.command(pid, 300)),
        ("Program", procfs.link(pid, "exe")),
        ("Working directory", procfs.link(pid, "cwd")),
        ("Parent", f"{values.get('PPid', '?')} {procfs.name(int(values.get('PPid', '0') or 0))}"),
        ("Threads", values.get("Threads", "?")),
    ]
    if "VmRSS" in values:
        rows.append(("Resident memory", human(int(values["VmRSS"].split()[0]) * 1024)))
    if each is not None:
        rows.append(("Started", show(boot_time() + each.start_s)))
        rows.append(("Processor time used", f"{each.cpu_s:.1f} s"))
    rows.append(("Waits in the kernel at", processes.wchan(pid)))
    report.table("Process", ("What", "Value"), [(key, value) for key, value in rows if value])
    targets = procfs.descriptors(pid)
    if targets is None:
        report.note(
            f"The open files of process {pid}: it belongs to another user, and only root may look into it."
        )
        return
    # A connection that waits for its end (TIME_WAIT) has the inode 0, and no process.
    sockets = {row.inode: row for row in procfs.sockets() if row.inode}
    lines = []
    for number, target in sorted(targets.items(), key=lambda item: (not item[1].startswith("/"), item[0])):
        inode = int(target[8:-1]) if target.startswith("socket:[") else 0
        row = sockets.get(inode)
        shown = f"{row.protocol} {row.address}:{row.port} to {row.peer}:{row.peer_port}" if row else target
        lines.append((number, shown))
    report.table(
        f"Open files ({len(lines)})", ("Descriptor", "Target"), lines[:_ROWS], "It has no file open."
    )
    if len(lines) > _ROWS:
        report.note(f"{len(lines) - _ROWS} more open files.")


def make(report: Report) -> None:
    asked = options(
        str(__doc__), path="a file, a folder or a mount point", port="a TCP or UDP port", pid="a process id"
    )
    given = {key: value for key, value in vars(asked).items() if value is not None}
    if asked.path is not None and not asked.path.startswith("/"):
        refuse(f"--path={asked.path} is not an absolute path.")
    for key in ("port", "pid"):
        if key in given and not (
            given[key].isdigit() and 0 < int(given[key]) < (65536 if key == "port" else 1 << 22)
        ):
            refuse(f"--{key}={given[key]} is not a {key}.")
    if asked.pid is not None:
        about_process(int(asked.pid), report)
    elif asked.port is not None:
        about_port(int(asked.port), report)
    elif asked.path is not None:
        about_path(asked.path, report)
    else:
        report.finding = "Name what is used: a file, a folder, a device, a mount point, a port or a pid."
    report.note(procfs.processes_are_whole())


run(make)
