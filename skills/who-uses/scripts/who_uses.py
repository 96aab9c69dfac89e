"""Says which processes use a path or a port, or what a process is and has open. Only observes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from clock import boot_time, show
from commands import read
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
    for line in (read(f"/proc/{pid}/maps") or "").splitlines():
        columns = line.split(None, 5)
        if len(columns) == 6 and _within(columns[5], path):
            found.add("mapped")
            break
    if whole is not None and not found:
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


def about_path(path: str, report: Report) -> None:
    real = os.path.realpath(path)
    try:
        info = Path(real).stat()
    except OSError as err:
        report.finding = f"{path} cannot be looked at: {err.strerror}."
        return
    whole = info.st_dev if os.path.ismount(real) and real != "/" else None
    rows, hidden = [], 0
    for pid in procfs.pids():
        if pid == os.getpid():
            continue
        found = ways(pid, real, whole)
        if found is None:
            hidden += 1
        elif found:
            rows.append(
                (pid, procfs.user_of(pid), ", ".join(sorted(found)), procfs.unit_of(pid), procfs.command(pid))
            )
    if rows:
        first = f"{procfs.name(rows[0][0])} (pid {rows[0][0]})"
        others = f" and {plural(len(rows) - 1, 'other process')}" if len(rows) > 1 else ""
        report.finding = f"{path} is used by {first}{others}."
    else:
        report.finding = f"No process that can be seen from here uses {path}."
    report.table("Processes", ("Pid", "User", "How", "Unit", "Command"), rows[:_ROWS])
    if len(rows) > _ROWS:
        report.note(f"{len(rows) - _ROWS} more processes.")
    if hidden:
        report.note(
            f"The open files of {plural(hidden, 'process')} of other users: only root may look into them."
        )


def about_port(port: int, report: Report) -> None:
    used = [row for row in procfs.sockets() if port in (row.port, row.peer_port) and row.inode]
    owners, hidden = procfs.socket_owners()
    own = [row for row in used if row.port == port]
    holders = sorted({pid for row in (own or used) for pid in owners.get(row.inode, [])})
    if holders:
        names = ", ".join(f"{procfs.name(pid)} (pid {pid})" for pid in holders[:5])
        report.finding = f"Port {port} is used by {names}."
    elif used:
        report.finding = (
            f"Port {port} is in use, by a process of the user "
            f"{procfs.user(used[0].uid)} that cannot be seen from here."
        )
    else:
        report.finding = f"No process uses port {port}."
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
        report.finding = f"There is no process {pid}, or it cannot be seen from here."
        return
    name, state = values.get("Name", "?"), values.get("State", "?")
    user, unit = procfs.user_of(pid), procfs.unit_of(pid)
    report.finding = f"Process {pid} is {name}, state {state}, of the user {user}" + (
        f", in {unit}." if unit else "."
    )
    columns = (read(f"/proc/{pid}/stat") or ") ").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    rows = [
        ("Command", procfs.command(pid, 300)),
        ("Program", procfs.link(pid, "exe")),
        ("Working directory", procfs.link(pid, "cwd")),
        ("Parent", f"{values.get('PPid', '?')} {procfs.name(int(values.get('PPid', '0') or 0))}"),
        ("Threads", values.get("Threads", "?")),
    ]
    if "VmRSS" in values:
        rows.append(("Resident memory", human(int(values["VmRSS"].split()[0]) * 1024)))
    if len(columns) > 19:
        rows.append(("Started", show(boot_time() + int(columns[19]) / ticks)))
        rows.append(("Processor time used", f"{(int(columns[11]) + int(columns[12])) / ticks:.1f} s"))
    rows.append(("Waits in the kernel at", (read(f"/proc/{pid}/wchan") or "").strip("0")))
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
        deleted_files(report)
    report.note(procfs.processes_are_whole())


def deleted_files(report: Report) -> None:
    """Without arguments: deleted files that a process still holds open, since they keep their space."""
    rows, hidden = [], 0
    for pid in procfs.pids():
        targets = procfs.descriptors(pid)
        if targets is None:
            hidden += 1
            continue
        for number, target in targets.items():
            if (
                target.endswith(" (deleted)")
                and target.startswith("/")
                and not target.startswith(("/memfd:", "/dev/"))
            ):
                try:
                    size = Path(f"/proc/{pid}/fd/{number}").stat().st_blocks * 512
                except OSError:
                    continue
                rows.append((size, pid, target))
    rows.sort(reverse=True)
    total = sum(size for size, _, _ in rows)
    report.finding = (
        (
            f"{plural(len(rows), 'deleted file')} held open, with {human(total)} on disk. Name a "
            "path, a port or a pid to ask who uses it."
        )
        if rows
        else "No deleted file is held open. Name a path, a port or a pid to ask who uses it."
    )
    report.table(
        "Deleted files that are still open",
        ("Size", "Pid", "Command", "File"),
        [(human(size), pid, procfs.command(pid), target) for size, pid, target in rows[:_ROWS]],
    )
    if hidden:
        report.note(
            f"The open files of {plural(hidden, 'process')} of other users: only root may look into them."
        )


run(make)
