"""Finds and kills all processes that a call or a worker leaves running, in any session.

The caller is a child subreaper (PR_SET_CHILD_SUBREAPER(2const)): a process whose parent is gone becomes the
caller's child, so once the caller has no child left, nothing that it started is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from pathlib import Path


class Ends(StrEnum):
    """The boundary of kill(2) with the pid -1."""

    DOMAIN = "domain"
    """The caller's Landlock domain: exactly what it started."""
    NAMESPACE = "namespace"
    """The caller's PID namespace, which has nothing else in it but its init, which -1 leaves out."""
    CGROUP = "cgroup"
    """The call's own cgroup, and nobody needs kill(2) for it (see `cgroups`)."""
    CHILDREN = "children"
    """Nothing: the caller would kill every process of its user, and so kills its children one by one."""


def end_all(ends: Ends) -> bool:
    """Kill everything that the caller started; tells whether there was anything. Does not wait."""
    if not has_children():
        return False
    if ends is not Ends.CHILDREN:
        # One pass under the kernel's lock: a process with SIGKILL pending cannot fork any more.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return True
    for pid in children():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True


def has_children() -> bool:
    """Whether there is a child, zombies included; reaps nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap(awaited: int = 0) -> int | None:
    """Reap every ended child. Gives the exit status of the child `awaited` if it is one of them.

    A signal counts as a shell counts it: 128 plus its number.
    """
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == awaited:
                code = os.waitstatus_to_exitcode(status)
                found = code if code >= 0 else 128 - code
    return found


def children() -> list[int]:
    """The children of this process, adopted ones too (proc_pid_task(5), `children`)."""
    found: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return found
