"""Describes one process: its arguments, open files and limits, without any content.

It may run with rights to inspect the processes of others (the place INSPECT), so it names files and
variables, but never returns their contents.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from lightagentd.errors import NotFound
from lightagentd.host.users import user_name
from lightagentd.tool import Result
from lightagentd.toolkit.proc.paths import Paths
from lightagentd.toolkit.proc.procfs import (
    TICKS,
    Stat,
    head_of,
    name_of,
    read_stat,
    size,
    started_s,
    text_of,
    when,
)

COMMAND_CHARS = 4000
FILES_SHOWN = 30
NAMES_SHOWN = 100
ENVIRONMENT_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.-]{0,99}(?:%%|\(\))?=")
"""A variable, or a function that bash exported."""


def described(pid: int, owner: int) -> Result:
    """What `owner`, the uid of who asks, may know of it. Raises NotFound."""
    stat = read_stat(pid)
    if stat is None:
        raise no_process(pid)
    hidden: dict[str, str] = {}
    tell = Paths(owner).of(pid, stat.uid)
    folder = Path(f"/proc/{pid}")
    readers: dict[str, Any] = {
        "command": lambda: command_of(folder),
        "exe": lambda: tell(str((folder / "exe").readlink())),
        "cwd": lambda: tell(str((folder / "cwd").readlink())),
        "cgroup": lambda: _cgroup(folder),
        "real_user": lambda: user_name(psutil.Process(pid).uids().real),
        "parents": lambda: _parents(stat),
        "cpu_s": lambda: stat.cpu_ticks / TICKS,
        "io": lambda: _io(pid),
        "open_files": lambda: _open_files(folder, tell),
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
            hidden[key] = "the process has none, or it has ended" if read_stat(pid) else "it has ended"
        except (OSError, ValueError) as err:
            hidden[key] = str(err)
    data = {
        "pid": pid,
        "name": name_of(stat),
        "user": user_name(stat.uid),
        "state": stat.state,
        "started": round(started_s(stat), 2),
        "threads": stat.threads,
        "memory_bytes": stat.memory_bytes,
        **found,
        "hidden": hidden,
    }
    return Result(output="\n".join(_info_lines(data)), metadata=data)


def _info_lines(data: dict[str, Any]) -> list[str]:
    lines = [
        f"{data['pid']} {data['name']}: {data['state']}, user {data['user']}",
        f"started {when(data['started'])} UTC, {data['threads']} threads",
        f"memory {size(data['memory_bytes'])}",
    ]
    plain = ("command", "exe", "cwd", "cgroup", "real_user", "parents", "cpu_s")
    lines += [f"{key}: {data[key]}" for key in plain if data.get(key) not in (None, "")]
    if "io" in data:
        read, written = size(data["io"]["read_bytes"]), size(data["io"]["written_bytes"])
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


def command_of(folder: Path) -> str:
    parts = head_of(folder / "cmdline").rstrip(b"\0").split(b"\0")
    command = shlex.join(text_of(part) for part in parts if part)
    return command if len(command) <= COMMAND_CHARS else command[:COMMAND_CHARS] + " [...]"


def _cgroup(folder: Path) -> str:
    """The path in the unified hierarchy, which is the one of systemd's units (cgroups(7))."""
    rows = (folder / "cgroup").read_bytes().splitlines()
    return next((text_of(row[3:]) for row in rows if row.startswith(b"0::")), "")


def _parents(stat: Stat) -> str:
    found: list[str] = []
    above = read_stat(stat.ppid) if stat.ppid else None
    while above is not None and len(found) < 20:
        found.append(f"{above.pid} {name_of(above)}")
        above = read_stat(above.ppid) if above.ppid else None
    return " < ".join(found) or "none"


def _open_files(folder: Path, tell: Callable[[str], str]) -> dict[str, Any]:
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
            paths.add(tell(os.fsdecode(target)))
        else:
            kinds[text_of(target.partition(b":")[0])] += 1
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
    """Names and never values, which hold passwords and keys.

    A program may write what it likes over its environment, so what does not look like a name is not shown.
    """
    parts = [part for part in head_of(folder / "environ").split(b"\0") if part]
    names = sorted({part.partition(b"=")[0] for part in parts if ENVIRONMENT_NAME.match(part)})
    other = sum(not ENVIRONMENT_NAME.match(part) for part in parts)
    found = [name.decode("ascii") for name in names[:NAMES_SHOWN]]
    if len(names) > NAMES_SHOWN:
        found.append(f"... and {len(names) - NAMES_SHOWN} more")
    if other:
        found.append(f"... and {other} that are no names")
    return found


def no_process(pid: int) -> NotFound:
    return NotFound(f"There is no process {pid} now.", suggestion="List the processes.", field="pid")
