"""What tools say about themselves, kept in this process as long as their files stay as they are.

A worker that describes the tools has to load all of them, which costs more than the rest of a reload. Nothing
is kept when a tool has a problem: what it lacked may be there the next time, though its file is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Key = tuple[object, ...]
_LIMIT = 16
"""How many search paths are kept; the oldest goes first."""
_kept: dict[Key, list[dict[str, Any]]] = {}


def key_of(backend: str, folders: Sequence[Path]) -> Key | None:
    """What a description depends on: the sandbox, and what stat(2) says of each tool file.

    None when one of the files cannot be looked at.
    """
    found: list[object] = [backend]
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            try:
                info = path.stat()
            except OSError:
                return None
            found += [path, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size]
    return tuple(found)


def known(key: Key | None) -> list[dict[str, Any]] | None:
    """The tools as they were described, or None."""
    return None if key is None else _kept.get(key)


def keep(key: Key | None, tools: list[dict[str, Any]]) -> None:
    """Keep a description in which every tool is well."""
    if key is None or any(tool["problem"] for tool in tools):
        return
    while len(_kept) >= _LIMIT:
        del _kept[next(iter(_kept))]
    _kept[key] = tools
