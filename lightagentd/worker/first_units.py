"""The daemon's first step: asks systemd to start the workers that the daemon's start needs.

Python takes as long to import the daemon as a worker takes to start. This module imports next to nothing.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
from pathlib import Path

USER = "lightagent"
"""The user that the workers' sockets belong to, and that the polkit rule is about."""
FIRST = ("lightagent-observe@00.service", "lightagent-reach@01.service")
"""What the sandbox is proved in, and what describes the tools."""


def expected() -> bool:
    """Whether this is the system's own daemon on a machine that systemd runs."""
    try:
        account = pwd.getpwnam(USER)
    except KeyError:
        return False
    return os.geteuid() == account.pw_uid and Path("/run/systemd/system").is_dir()


def begin() -> None:
    """Ask systemd for them without waiting; the pool sees the outcome when it connects."""
    try:
        asked = subprocess.Popen(
            ["systemctl", "--no-ask-password", "--no-block", "start", *FIRST],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return
    threading.Thread(target=asked.wait, name="begin-workers", daemon=True).start()
