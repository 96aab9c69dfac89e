"""CPU time of a process and all its descendants, out of /proc (proc(5))."""

from __future__ import annotations

from pathlib import Path


def shares_s(pid: int) -> tuple[float, float]:
    """What a process has used until now, and those below it that are alive."""
    return used_ns(pid) / 1e9, sum(map(used_ns, _below(pid))) / 1e9


def cpu_s(pid: int) -> float:
    """What a process and those below it that are alive have used until now, by the scheduler's own count."""
    return sum(used_ns(one) for one in (pid, *_below(pid))) / 1e9


def used_ns(pid: int) -> int:
    """All threads of a process; 0 when it is gone."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except OSError:
        return total
    return total


def _below(pid: int) -> list[int]:
    """Children, and theirs."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
