"""Which program runs a script: the one that its first line names, else the one that its suffix stands for."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path, PurePath

from lightagentd.errors import InvalidArgument

SYSTEM_PYTHON = Path("/usr/bin/python3")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BY_SUFFIX = {
    ".bash": "bash",
    ".cjs": "node",
    ".js": "node",
    ".lua": "lua",
    ".mjs": "node",
    ".php": "php",
    ".pl": "perl",
    ".py": "python3",
    ".r": "Rscript",
    ".rb": "ruby",
    ".sh": "sh",
    ".zsh": "zsh",
}
_HEAD_BYTES = 256
"""As much of a first line as Linux reads, too (execve(2))."""


def is_script(path: Path) -> bool:
    """Whether a file is meant to be run, by its suffix or its first line."""
    with path.open("rb") as file:
        return path.suffix.lower() in _BY_SUFFIX or file.read(2) == b"#!"


def interpreter(script: Path, *, python: tuple[str, ...] = ("-s", "-B")) -> list[str]:
    """The words of a command before the script's path; `python` are the options of a Python.

    Raises InvalidArgument when nothing here runs it, and OSError.
    """
    with script.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"\x7fELF") and os.access(script, os.X_OK):
        return []
    words = _named(head) or [_BY_SUFFIX.get(script.suffix.lower(), "")]
    name = PurePath(words[0]).name
    if name.startswith("python"):
        return [str(SYSTEM_PYTHON) if SYSTEM_PYTHON.exists() else sys.executable, *python]
    found = shutil.which(words[0], path=SEARCH_PATH) or shutil.which(name, path=SEARCH_PATH)
    if not name or found is None:
        missing = f"{name} is not installed here" if name else "its first line names no program"
        raise InvalidArgument(f"Nothing runs the script {script.name}: {missing}.", field="script")
    return [found, *words[1:]]


def _named(head: bytes) -> list[str]:
    """The words of a first line `#!`, without env(1)."""
    line, _, _ = head.partition(b"\n")
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="replace").split()
    if words and PurePath(words[0]).name == "env":
        return words[2:] if words[1:2] == ["-S"] else words[1:2]
    return words
