"""Finds and loads tool files, by path; only the worker does this, never the daemon.

A tool file is looked for in each folder of the search path; the first file of a name wins. A file that
does not load is reported beside the others and stops nothing else.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.tool import Action, Tool, actions_of


@dataclass(frozen=True, kw_only=True)
class LoadedTool:
    """One tool file: the instance and its actions, or the reason why it could not be loaded."""

    name: str
    path: Path
    tool: Tool | None = None
    actions: dict[str, Action] = field(default_factory=dict)
    error: str = ""


def load_tools(folders: Sequence[Path]) -> dict[str, LoadedTool]:
    """All tools of the search path by name, broken ones included (their `tool` is None)."""
    found: dict[str, LoadedTool] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            if path.stem not in found and not path.name.startswith("_"):
                found[path.stem] = load_tool(path)
    return found


def load_tool(path: Path) -> LoadedTool:
    """Load one file, which must hold exactly one class derived from `Tool`, named like the file."""
    name = path.stem
    try:
        _check_owner(path)
        spec = importlib.util.spec_from_file_location(f"lightagentd_tool_{name}", path)
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
        classes = [
            cls
            for cls in vars(module).values()
            if inspect.isclass(cls)
            and issubclass(cls, Tool)
            and cls is not Tool
            and cls.__module__ == module.__name__
        ]
        if len(classes) != 1:
            raise TypeError(f"the file must define one class derived from Tool, and has {len(classes)}")
        tool = classes[0]()
        if getattr(tool, "name", None) != name:
            raise TypeError(f"the tool's name must be {name!r}, like the file's")
        if not tool.__doc__:
            raise TypeError("the tool's class needs a docstring")
        actions = {found.name: found for found in actions_of(tool)}
        if not actions:
            raise TypeError("the tool declares no action")
    except Exception as err:  # noqa: BLE001 - whatever an administrator's file raises is a report, not a crash
        return LoadedTool(name=name, path=path, error=f"{type(err).__name__}: {err}")
    return LoadedTool(name=name, path=path, tool=tool, actions=actions)


def _check_owner(path: Path) -> None:
    """A file that somebody else can write is not loaded: it would run with this worker's rights."""
    info = path.stat()
    if info.st_uid not in (0, os.getuid(), path.parent.stat().st_uid):
        raise PermissionError(f"it belongs to uid {info.st_uid}, not to root or to the worker's user")
    if stat.S_IMODE(info.st_mode) & 0o002:
        raise PermissionError("everybody can write to it; take that away with chmod o-w")
