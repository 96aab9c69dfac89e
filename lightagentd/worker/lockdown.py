"""Locks down workers: that of a machine's place runs only its own actions and starts no program.

The worker calls this for itself; `places` or its unit makes the sandbox around it. The filter is an
additional barrier: an attacker who controls such a worker can start no program and open no socket. See
seccomp(2).
"""

from __future__ import annotations

from collections.abc import Sequence

from lightagentd.host import libc
from lightagentd.tool import Place
from lightagentd.worker import seccomp
from lightagentd.worker.leftovers import Ends

MACHINE = (Place.KEYS, Place.INSPECT)
"""The places that all agents share, with rights that no shell may have."""

_STARTERS = ("execve", "execveat")


def serves(worker: Place | None, action: Place | None) -> bool:
    """Whether a worker of one place (None: of an effect) may run an action declared for another."""
    if worker in MACHINE:
        return action is worker
    return action is not Place.KEYS


def forbid_programs(families: Sequence[int] = ()) -> bool:
    """Keep this thread, and all that it starts, from starting programs and from opening other sockets.

    Tells whether the filter is active: it does not support every machine's system calls. Raises OSError where
    the kernel refuses.
    """
    if not seccomp.supported():
        return False
    seccomp.enter(seccomp.program(families, refused=_STARTERS, reads_only=False, serves=True))
    return True


def harden(ends: Ends) -> None:
    """Deny the shells this process' core and /proc/PID/mem, and adopt the processes that they leave."""
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    if ends is not Ends.CGROUP:  # there they go to systemd
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
