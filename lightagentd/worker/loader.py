"""Finds and loads tool files, by path; only the worker does this, never the daemon.

A file is loaded on first use: most workers run only one or two tools, and loading all of them would take half
of a worker's start time.

A tool file is searched in each folder of the search path; the first file with the name wins. A file that does
not load is reported and does not affect the others, even if it calls exit or hangs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from lightagentd.errors import ConfigError
from lightagentd.host.users import called
from lightagentd.tool import Action, Tool, actions_of
from lightagentd.worker.functions import Misdeclared, tool_of

LOAD_LIMIT_S = 5.0
"""How long one file may take to load, in the main thread of a process."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a tool and an action may be called: their names make the name of a function towards a model."""
_CLASS = re.compile(rb"class \w+\(.*Tool\b")
SERVER_FOLDERS = ("mcp.d", "mcp")
"""The folders whose files are MCP servers (`toolkit.mcp`)."""
FUNCTION_LIMIT_CHARS = 64
"""The longest name of a function that the models' interfaces take."""


@dataclass(frozen=True, kw_only=True)
class LoadedTool:
    """One tool file: the instance and its actions, or why it could not be loaded."""

    name: str
    path: Path
    tool: Tool | None = None
    actions: dict[str, Action] = field(default_factory=dict)
    error: str = ""
    sha256: str = ""
    """That of the file when it was loaded."""
    line: int = 0
    """The line of the file that the error comes from; 0 when it is not known."""


class ToolFiles(Mapping[str, LoadedTool]):
    """The tools of a search path by name, each loaded once, at its first lookup. The `tool` of a broken one
    is None. `ready` is called with each loaded tool.
    """

    def __init__(self, folders: Sequence[Path], ready: Callable[[Tool], None] | None = None) -> None:
        self._paths: dict[str, Path] = {}
        self.loaded: dict[str, LoadedTool] = {}
        self.ready = ready
        for folder in folders:
            for path in sorted(folder.glob("*.toml" if folder.name in SERVER_FOLDERS else "*.py")):
                if not path.name.startswith("_"):
                    self._paths.setdefault(path.stem, path)

    def __getitem__(self, name: str) -> LoadedTool:
        if name not in self.loaded:
            found = load_tool(self._paths[name])
            if found.tool is not None and self.ready is not None:
                self.ready(found.tool)
            self.loaded[name] = found
        return self.loaded[name]

    def path(self, name: str) -> Path:
        """The file of a tool. Raises KeyError."""
        return self._paths[name]

    def unread(self, name: str) -> Path | None:
        """The file of a tool that is not loaded yet; None for one that is, or is not there."""
        return None if name in self.loaded else self._paths.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def load_tool(path: Path) -> LoadedTool:
    """Load one file, which must hold exactly one class derived from `Tool`, named like the file, or functions
    with `tool_info` (see `functions`); or the file of an MCP server."""
    name = path.stem
    module_name = f"lightagentd_tool_{name}"
    try:
        _check_name(name)
        check_owner(path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        with bounded(LOAD_LIMIT_S, "load"):
            tool = _import(path, module_name)
            if getattr(tool, "name", None) != name:
                raise TypeError(f"the tool's name must be {name!r}, like the file's")
            if not type(tool).__doc__:
                raise TypeError("the tool's class needs a docstring")
            actions = {found.name: found for found in actions_of(tool)}
        for action in actions.values():
            _check_name(action.name, action.function)
        if not actions:
            raise TypeError("the tool declares no action")
    except (Exception, SystemExit) as err:  # noqa: BLE001 - whatever a file raises is a report, not a crash
        sys.modules.pop(module_name, None)
        error = err.message if isinstance(err, ConfigError) else f"{type(err).__name__}: {err}"
        return LoadedTool(name=name, path=path, error=error, line=line_of(err, path) or line_of_class(path))
    return LoadedTool(name=name, path=path, tool=tool, actions=actions, sha256=sha256)


def line_of(err: BaseException, path: Path) -> int:
    """The last line of the file that took part in an error; 0 if unknown."""
    if isinstance(err, Misdeclared) and err.line:
        return err.line
    if isinstance(err, SyntaxError) and err.filename == str(path):
        return err.lineno or 0
    frames = traceback.walk_tb(err.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(path)]
    return lines[-1] if lines else 0


def line_of_class(path: Path) -> int:
    """The line of a file's first class that looks like a tool; 0 if there is none."""
    try:
        text = path.read_bytes().splitlines()
    except OSError:
        return 0
    return next((number for number, line in enumerate(text, 1) if _CLASS.match(line)), 0)


def module_of(path: Path, module_name: str) -> ModuleType:
    """Run a Python file as a module of this name. Raises whatever the file raises."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _import(path: Path, module_name: str) -> Tool:
    if path.suffix == ".toml":
        from lightagentd.toolkit.mcp.server_file import approved_path  # few workers have one
        from lightagentd.toolkit.mcp.tool import class_of

        if (approved := approved_path(path)).exists():
            try:
                check_owner(approved)
            except PermissionError as err:
                raise ConfigError(f"{approved.name}: {err}") from None
        return class_of(path)()
    module = module_of(path, module_name)
    classes = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls)
        and issubclass(cls, Tool)
        and cls is not Tool
        and cls.__module__ == module_name
    ]
    if not classes and (made := tool_of(module, path.stem)) is not None:
        return made()
    if len(classes) != 1:
        raise TypeError(
            f"the file must define one class derived from Tool, or functions with tool_info, and has"
            f" {len(classes)} classes"
        )
    tool: Tool = classes[0]()
    return tool


@contextmanager
def bounded(limit_s: float, what: str) -> Iterator[None]:
    """A block that raises TimeoutError when it takes too long; `what` is what it did not do."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it did not {what} within {limit_s:g} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread only, and a worker loads there
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check_name(name: str, function: str = "") -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} must be lower-case letters, digits and underscores, a letter first")
    if len(function) > FUNCTION_LIMIT_CHARS:
        raise ValueError(
            f"{function} is longer than the {FUNCTION_LIMIT_CHARS} characters of a function name"
        )


def check_owner(path: Path) -> None:
    """Raises PermissionError for a file that others can write: it would run with this worker's rights."""
    info = path.stat()
    if info.st_uid not in (0, os.getuid(), path.parent.stat().st_uid):
        raise PermissionError(f"it belongs to {called(info.st_uid)}, not to root or to the worker's user")
    if stat.S_IMODE(info.st_mode) & 0o002:
        raise PermissionError("everybody can write to it; take that away with chmod o-w")
    folder = stat.S_IMODE(path.parent.stat().st_mode)
    if folder & 0o002 and not folder & stat.S_ISVTX:
        raise PermissionError(f"everybody can replace it; take that away with chmod o-w {path.parent}")
