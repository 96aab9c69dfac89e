"""The cgroups of test machines: one for each, beside the processes of the test run (cgroups(7), version 2).

A name holds the PID of the test process that owns it, so that the next run can tell what a killed one has
left: an empty cgroup, which takes no memory to speak of and is removed then.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

PREFIX = "lightagentd-e2e-"

_numbers = itertools.count(1)


def cgroup_root() -> Path | None:
    """Where this process' own cgroup is in the mounted cgroup v2 hierarchy, or None when none is mounted."""
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if own and source.startswith("cgroup2 "):
            return Path(fields.split()[4]) / own[0].lstrip("/")
    return None


def make_cgroup() -> Path:
    """A new cgroup for one machine; those of test processes that are gone are removed on the way.

    Raises FileNotFoundError when no cgroup v2 hierarchy is mounted.
    """
    parent = cgroup_root()
    if parent is None:
        raise FileNotFoundError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    for stale in parent.glob(f"{PREFIX}*"):
        owner = stale.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):  # its processes are still ending, or another run removes it
                remove_cgroup(stale)
    cgroup = parent / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    cgroup.mkdir()
    return cgroup


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup and all below it; raises OSError while a process is in one of them."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        Path(folder).rmdir()


def pids_below(cgroup: Path) -> set[int]:
    """The PIDs of every process in a cgroup and below; empty when it is gone."""
    return {int(pid) for procs in cgroup.rglob("cgroup.procs") for pid in procs.read_text().split()}
