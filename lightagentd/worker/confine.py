"""Confines each command of a confined worker further: limits, a Landlock domain, and a filter.

The limits keep one command from exhausting the machine; `sandbox` decides what it may access.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lightagentd.host import process
from lightagentd.host.rlimit import lower
from lightagentd.worker import cgroups, landlock, seccomp
from lightagentd.worker.busdoor import BusDoor

COMMAND_NICE = 10
"""The commands stand back behind the daemon and the workers that must end them."""
LEAST_COMMAND_BYTES = 1 << 30
"""What one command may take even on a small machine (RLIMIT_DATA); else a quarter of the machine's memory."""

COMMAND_FILES = 4096
"""How many descriptors each process of a command may have: all together must not use up the system's."""
COMMAND_FILE_BYTES = 1 << 30
"""How long a file may become, one in memory (memfd_create(2)) too, which RLIMIT_DATA leaves out."""


@contextlib.contextmanager
def only_writing_to(folder: Path) -> Iterator[Callable[[], None]]:
    """A function for a new process, after which it can write to this folder alone. Raises OSError."""
    rules = landlock.ruleset(landlock.abi(), writable=[folder, *landlock.WRITABLE_DEVICES])
    try:
        yield partial(landlock.enter, rules)
    finally:
        os.close(rules)


def confine_commands(rules: int | None, processes: int, code: bytes = b"", *, bus: bool = False) -> None:
    """Give every command that `process` starts from now on limits and, with `rules`, its own domain.

    `code` is a filter of system calls for it (`seccomp.program`); with `bus`, it was made for `busdoor`.

    `processes` (0: no limit) counts all processes of the user, and is less than the workers' own limit: a
    command that uses it up does not keep a worker from starting a thread.
    """
    data_bytes = max(LEAST_COMMAND_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)

    def confine() -> None:
        # In the child between fork and exec: nothing but system calls.
        cgroups.join()  # first: the domain may forbid it
        lower(resource.RLIMIT_DATA, data_bytes)
        lower(resource.RLIMIT_NOFILE, COMMAND_FILES)
        lower(resource.RLIMIT_FSIZE, COMMAND_FILE_BYTES)
        if processes:
            lower(resource.RLIMIT_NPROC, processes)
        with contextlib.suppress(PermissionError):  # a unit's filter forbids it, and has a weight of its own
            os.nice(COMMAND_NICE)
        if rules is not None:
            landlock.enter(rules)
        if code and not bus:
            seccomp.enter(code)

    process.before_exec(confine, partial(BusDoor, code) if bus else None)
