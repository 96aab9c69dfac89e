"""Keeps a worker's description of the tools, so that a start or reload need not have all tools loaded.

The description counts, at a start and at a reload, as long as the files in the folders of tools and those of
the package are the same. A minute later the tools are described anew: what a tool's file imports from
elsewhere may have changed. A description with a tool that does not load is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightagentd import __version__
from lightagentd.host.kept_file import KeptFile
from lightagentd.host.paths import PACKAGE_FOLDER, Paths, tool_folders

_OWN = ("", "text", "toolkit", "toolkit/*", "worker")
"""The folders of the package with what describes the tools, or is imported by them."""
FILE = "tools.json"
"""The name of the file in the daemon's state."""


class KeptDescription:
    """The description in the daemon's state. All methods block."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._file = KeptFile(paths.state / FILE, "the description of the tools")

    def read(self) -> list[dict[str, Any]] | None:
        """What was kept for the files as they are; None if nothing was."""
        try:
            kept = json.loads(self._file.path.read_bytes())
            if kept["files"] == self.files():
                tools: list[dict[str, Any]] = kept["tools"]
                return tools
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # there is none, or it is not whole
        return None

    def keep(self, tools: list[dict[str, Any]], files: str) -> None:
        """Keep a description. `files` is what `files` gave before the tools were described."""
        if not files or files != self.files() or any(tool["problem"] for tool in tools):
            return
        self._file.write(json.dumps({"files": files, "tools": tools}).encode())

    def files(self) -> str:
        """A hash of everything about the files that a description rests on; empty if it can't be seen."""
        seen = hashlib.sha256(f"{__version__} {sys.version}".encode())
        try:
            for folder in tool_folders(self._paths):
                for path in (folder, *sorted(folder.rglob("*"))):
                    if "__pycache__" not in path.parts:
                        seen.update(_look(path))
            for path in _modules():
                seen.update(_look(path))
        except OSError:
            return ""
        return seen.hexdigest()


def _modules() -> Iterator[Path]:
    for folder in _OWN:
        yield from sorted(PACKAGE_FOLDER.glob(f"{folder}/*.py" if folder else "*.py"))


def _look(path: Path) -> bytes:
    """A file as far as its state tells; a folder's times change with what nobody loads."""
    info = path.stat()
    times = () if stat.S_ISDIR(info.st_mode) else (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    known = (os.fspath(path), info.st_dev, info.st_ino, info.st_mode, info.st_uid, *times)
    return repr(known).encode()
