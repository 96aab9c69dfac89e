"""What every test of a native tool needs: the tool, loaded by path as the worker does, and a context."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lightagentd.tool import Effect, Preview, Result
from lightagentd.worker.loader import LoadedTool, load_tool
from tests.left import children

TOOLS = Path(__file__).resolve().parents[2] / "tools"

Load = Callable[[str], LoadedTool]
Call = Callable[..., Coroutine[Any, Any, Result]]
AskPreview = Callable[..., Coroutine[Any, Any, Preview | None]]


@dataclass
class CallContext:
    """A context that a test can read afterwards: `shown` has the progress, `events` what was emitted."""

    scratch: Path
    call_id: str = "call_0123456789abcdef"
    agent: str = "ops"
    session: str = "ses_0123456789abcdef"
    owner: int = 1000
    effect: Effect = Effect.OBSERVE
    timeout_s: float = 30.0
    expected: dict[str, Any] = field(default_factory=dict)
    shown: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    kept: list[tuple[str, bytes, int]] = field(default_factory=list)

    def progress(self, text: str, stream: str = "stdout") -> None:
        self.shown.append((stream, text))

    def keep(self, stream: str, data: bytes, total_bytes: int) -> str:
        self.kept.append((stream, bytes(data), total_bytes))
        return "out_0123456789abcdef"

    def emit(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        self.events.append((topic, event_type, data))


@pytest.fixture
def context(tmp_path: Path) -> CallContext:
    """The context of one call; its scratch folder is the test's `tmp_path`."""
    return CallContext(scratch=tmp_path)


@functools.cache
def _loaded(name: str) -> tuple[LoadedTool, ModuleType]:
    """A tool file as the worker has it, with its module, loaded once: making its models takes 50 ms."""
    found = load_tool(TOOLS / f"{name}.py")
    assert found.tool is not None, found.error
    return found, sys.modules[type(found.tool).__module__]


@pytest.fixture
def load() -> Load:
    """`load("bash")` gives a new tool object of the file; one that does not load fails the test."""

    def loaded(name: str) -> LoadedTool:
        found, module = _loaded(name)
        sys.modules[module.__name__] = module  # a daemon in this process may have loaded the file anew
        assert found.tool is not None
        tool = type(found.tool)()
        actions = {one.name: replace(one, method=getattr(tool, one.name)) for one in found.actions.values()}
        return replace(found, tool=tool, actions=actions)

    return loaded


@pytest.fixture
def call(load: Load, context: CallContext) -> Call:
    """`await call("file", "read", path="/etc/hostname")` checks the arguments and runs the action."""
    tools: dict[str, LoadedTool] = {}

    async def made(tool: str, action: str, /, **arguments: Any) -> Result:
        if tool not in tools:
            tools[tool] = load(tool)
        found = tools[tool].actions[action]
        if "effect" in arguments:
            context.effect = Effect(arguments["effect"])
        elif found.effect is not None:
            context.effect = found.effect
        return await found.method(context, found.args_model.model_validate(arguments))

    return made


@pytest.fixture
def preview(load: Load, context: CallContext) -> AskPreview:
    """`await preview("file", "write", path="/etc/hostname", content="x")` asks what the call would do."""

    async def asked(tool: str, action: str, /, **arguments: Any) -> Preview | None:
        found = load(tool)
        assert found.tool is not None
        return await found.tool.preview(
            context, action, found.actions[action].args_model.model_validate(arguments)
        )

    return asked


def open_descriptors() -> dict[int, str]:
    """The descriptors of this process and what they point to."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:
            continue  # the one that lists the folder
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_of_other_files() -> None:
    """Leave what the tests of other files left out of the search for garbage after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves a descriptor or a child process behind."""
    before, born = open_descriptors(), children()
    yield
    gc.collect()
    left = {fd: what for fd, what in open_descriptors().items() if before.get(fd) != what}
    assert not left
    assert children() == born


def is_root() -> bool:
    """Root passes the checks of file modes, so some tests have nothing to see."""
    return os.getuid() == 0
