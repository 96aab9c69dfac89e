"""What each command of a confined worker gets on top of what holds the worker: limits, and its own domain.

The limits keep one command from taking the machine down; what it may see and touch is `sandbox`'s to decide.
"""

from __future__ import annotations

import os
import resource

from lightagentd.worker import landlock, process
from lightagentd.worker.keeper import lower

COMMAND_NICE = 10
"""The commands stand back behind the daemon and the workers that must end them."""
LEAST_COMMAND_BYTES = 1 << 30
"""What one command may take even on a small machine (RLIMIT_DATA); else a quarter of the machine's memory."""


def confine_commands(rules: int | None, processes: int) -> None:
    """Give every command that `process` starts from now on limits and, with `rules`, a domain of its own.

    `processes` (0: no limit) is for all processes of the user together, and less than what the workers have:
    a command that uses it up does not keep a worker from starting a thread.
    """
    data_bytes = max(LEAST_COMMAND_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)

    def confine() -> None:
        # In the child between fork and exec: nothing but system calls.
        lower(resource.RLIMIT_DATA, data_bytes)
        if processes:
            lower(resource.RLIMIT_NPROC, processes)
        os.nice(COMMAND_NICE)
        if rules is not None:
            landlock.enter(rules)

    process.before_exec(confine)
