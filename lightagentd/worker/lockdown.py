"""What the one worker of a machine's place may do: its own actions, and nothing that starts a program.

The worker calls this for itself; the sandbox around it is `places`' or its unit's. The filter is a wall of
its own: whoever takes such a worker over can start no program and open no socket from it. See seccomp(2).
"""

from __future__ import annotations

from collections.abc import Sequence

from lightagentd.tool import Place
from lightagentd.worker import seccomp

MACHINE = (Place.KEYS, Place.INSPECT)
"""The places that all agents share, with rights that no shell may have."""

_STARTERS = ("execve", "execveat")


def serves(worker: Place | None, action: Place | None) -> bool:
    """Whether a worker of one place (None: of an effect) may run an action that is declared for another."""
    if worker in MACHINE:
        return action is worker
    return action is not Place.KEYS


def forbid_programs(families: Sequence[int] = ()) -> bool:
    """From now on this thread, and all that it starts, can start no program and open only these sockets.

    Says whether that is in force: a machine whose system calls the filter does not know goes without it.
    Raises OSError where the kernel refuses.
    """
    if not seccomp.supported():
        return False
    seccomp.enter(seccomp.program(families, refused=_STARTERS))
    return True
