"""What a worker said of the tools, kept for all daemons of the tests: to ask takes half a second of CPU time.

The process that runs tests has a folder for it, where the daemons that its prepared processes fork look, too.
Likewise the sandbox is tried once (`chosen_once`).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from lightagentd.host.paths import Paths, tool_folders
from lightagentd.worker import sandbox
from lightagentd.worker.pool import Pool

Describe = Callable[[Pool], Awaitable[list[dict[str, Any]]]]

_choose = sandbox.choose
_chosen: dict[tuple[str, str | None], sandbox.Backend] = {}


async def chosen_once(wanted: str, paths: Paths) -> sandbox.Backend:
    key = wanted, os.environ.get("PATH")
    if key in _chosen:
        return _chosen[key]
    found = await _choose(wanted, paths)
    if found.enforced:  # what did not work just now may work for the next one
        _chosen[key] = found
    return found


def folder_of(pid: int) -> Path:
    """The folder of a process that runs tests."""
    return Path(tempfile.gettempdir()) / f"lightagent-described-{pid}"


def kept_in(folder: Path, describe: Describe) -> Describe:
    """`describe`, asked once for files of the same content; each time if there is no such folder."""

    async def described(pool: Pool) -> list[dict[str, Any]]:
        folders = tool_folders(pool._paths)
        places = [f"<{number}>" for number in range(len(folders))]
        kept = folder / hashlib.sha256(repr([_content(one) for one in folders]).encode()).hexdigest()
        if kept.exists():
            return _placed(kept.read_text(), places, folders)
        found = await describe(pool)
        if folder.exists():
            new = folder / f"new-{os.getpid()}"
            new.write_text(json.dumps(_placed(json.dumps(found), folders, places)))
            new.rename(kept)
        return found

    return described


def _content(folder: Path) -> object:
    """What a worker can find in a folder of tools, wherever that is."""
    if not folder.is_dir():
        return None
    info = folder.stat()
    files = ((file.name, file.stat(), file.read_bytes()) for file in sorted(folder.glob("*.*")))
    return info.st_mode, info.st_uid, [(name, one.st_mode, one.st_uid, text) for name, one, text in files]


def _placed(text: str, before: Sequence[object], after: Sequence[object]) -> list[dict[str, Any]]:
    """What was described, as JSON, with the folders in the places of others."""
    for old, new in zip(before, after, strict=True):
        text = text.replace(str(old), str(new))
    found: list[dict[str, Any]] = json.loads(text)
    return found
