"""A program `ssh` for tests: a script, which gets the arguments that lactl gives ssh(1)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.prepared import REPOSITORY

GREETING = r"""printf '{"lightagent": 1, "version": "0", "uid": 4711}\0'"""
"""What the bridge says first, as a command of the script."""


def fake_ssh(folder: Path, script: str) -> Path:
    """Write it; the folder to put into $PATH. `$there` is the host that it was asked to reach."""
    folder.mkdir(exist_ok=True)
    program = folder / "ssh"
    program.write_text(
        '#!/bin/sh\nfor there do [ "$before" = -- ] && break; before=$there; done\n'
        f"cd {REPOSITORY}\n{script}\n"
    )
    program.chmod(0o755)
    return folder


def bridge(socket: object) -> str:
    """A script that does what the bridge on another machine does, with the daemon of a socket."""
    return f"exec {sys.executable} -m lightagentd.cli.main bridge --greet --socket {socket}"
