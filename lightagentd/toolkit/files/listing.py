"""Describes a path or lists a folder with lstat(2). No file is opened and no link followed."""

from __future__ import annotations

import grp
import heapq
import os
import pwd
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightagentd.toolkit.files.search import kind_of, shown

SCAN_LIMIT = 100_000
"""How many entries of a folder are looked at, before the first ones by name are shown."""


def first_names(path: str, limit: int) -> tuple[list[str], int]:
    """The first names in order, and how many there are."""
    with os.scandir(path) as entries:
        names = [entry.name for _, entry in zip(range(SCAN_LIMIT), entries, strict=False)]
    return heapq.nsmallest(limit, names), len(names)


def entry_line(folder: str, name: str) -> str:
    path = Path(folder) / name
    try:
        info = path.lstat()
    except FileNotFoundError:
        return ""  # removed meanwhile
    except OSError as err:
        return f"?  {shown(name)}  ({err.strerror})"
    target = f" -> {shown(str(path.readlink()))}" if stat.S_ISLNK(info.st_mode) else ""
    owner = f"{_user(info.st_uid)}:{_group(info.st_gid)}"
    when = _time(info.st_mtime)
    return f"{stat.filemode(info.st_mode)} {owner} {info.st_size:>10} {when} {shown(name)}{target}"


def facts_of(path: str) -> dict[str, Any]:
    info = os.lstat(path)
    facts: dict[str, Any] = {
        "path": path,
        "kind": kind_of(info.st_mode),
        "size_bytes": info.st_size,
        "allocated_bytes": info.st_blocks * 512,
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "permissions": stat.filemode(info.st_mode),
        "owner": f"{_user(info.st_uid)} ({info.st_uid})",
        "group": f"{_group(info.st_gid)} ({info.st_gid})",
        "modified": _time(info.st_mtime),
        "changed": _time(info.st_ctime),
        "accessed": _time(info.st_atime),
        "inode": info.st_ino,
        "device": f"{os.major(info.st_dev)}:{os.minor(info.st_dev)}",
        "hard_links": info.st_nlink,
    }
    if stat.S_ISLNK(info.st_mode):
        facts["target"] = shown(str(Path(path).readlink()))
        facts["resolved"] = shown(os.path.realpath(path))
        facts["dangling"] = not Path(path).exists()
    try:
        facts["attributes"] = os.listxattr(path, follow_symlinks=False)
    except OSError:
        facts["attributes"] = []
    return facts


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return str(seconds)
