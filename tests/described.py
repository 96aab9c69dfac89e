"""What a worker said of the tools, kept for all daemons of the tests: to ask takes half a second of CPU time.

The process that runs tests has a folder for it, where the daemons that its prepared processes fork look, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lightagentd.host.paths import content_folders
from lightagentd.worker.pool import Pool

Describe = Callable[[Pool], Awaitable[list[dict[str, Any]]]]


def folder_of(pid: int) -> Path:
    """The folder of a process that runs tests."""
    return Path(tempfile.gettempdir()) / f"lightagent-described-{pid}"


def kept_in(folder: Path, describe: Describe) -> Describe:
    """`describe`, asked once for the same files as they are; each time if there is no such folder."""

    async def described(pool: Pool) -> list[dict[str, Any]]:
        folders = content_folders("tools", pool._paths)
        files = [(file, file.stat()) for one in folders for file in sorted(one.glob("*.py"))]
        key = [*folders, *((file, info.st_mtime_ns, info.st_size, info.st_mode) for file, info in files)]
        kept = folder / hashlib.sha256(repr(key).encode()).hexdigest()
        if kept.exists():
            found: list[dict[str, Any]] = json.loads(kept.read_bytes())
            return found
        found = await describe(pool)
        if folder.exists():
            new = folder / f"new-{os.getpid()}"
            new.write_text(json.dumps(found))
            new.rename(kept)
        return found

    return described
