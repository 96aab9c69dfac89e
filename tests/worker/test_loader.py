"""Loading tool files: a broken one disables itself and nothing else."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.worker import loader
from lightagentd.worker.loader import ToolFiles, load_tool

GOOD = '''
from lightagentd.tool import Args, Context, Effect, Result, Tool, action

class PingArgs(Args):
    pass

class {cls}(Tool):
    """{doc}"""
    name = "{name}"

    @action(effect=Effect.OBSERVE)
    async def ping(self, ctx: Context, args: PingArgs) -> Result:
        """Say pong."""
        return Result(output="pong")
'''


def write(folder: Path, name: str, text: str = "", *, doc: str = "A tool.") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text or GOOD.format(cls="Found", name=name, doc=doc))
    path.chmod(0o644)
    return path


def good() -> str:
    return GOOD.format(cls="Found", name="broken", doc="A tool.")


BROKEN = {
    "a syntax error": ("def (", "SyntaxError"),
    "a missing import": ("import no_such_module_anywhere", "ModuleNotFoundError"),
    "an exit": ("import sys; sys.exit(3)", "SystemExit"),
    "an assertion": ("assert False, 'no'", "AssertionError"),
    "endless recursion": ("def f(): f()\nf()", "RecursionError"),
    "an endless loop": ("while True: pass", "TimeoutError"),
    "no tool": ("x = 1", "has 0"),
    "two tools": (good() + GOOD.format(cls="Second", name="broken", doc="x"), "has 2"),
    "another name": (GOOD.format(cls="Found", name="other", doc="x"), "must be 'broken'"),
    "no name": (good().replace('name = "broken"', ""), "must be 'broken'"),
    "no docstring": (good().replace('"""A tool."""', ""), "docstring"),
    "no action": (good().replace("@action(effect=Effect.OBSERVE)", ""), "no action"),
    "an action without docstring": (good().replace('"""Say pong."""', ""), "docstring"),
    "an action that is not async": (good().replace("async def", "def"), "async"),
    "an action without arguments": (good().replace("args: PingArgs", "args: dict"), "derived from Args"),
    "an action with a capital": (good().replace("def ping", "def Ping"), "lower-case"),
    "a chosen effect without its argument": (good().replace("Effect.OBSERVE", "None"), "'effect'"),
    "a constructor that fails": (
        good().replace(
            'name = "broken"', 'name = "broken"\n    def __init__(self): raise OSError("no disk")'
        ),
        "no disk",
    ),
    "bytes that are not text": ("\udcff\udcfe", "Error"),
}


@pytest.fixture
def garbage_stays() -> Iterator[None]:
    """What other tests left is not finalized where an endless recursion has used up the stack."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("garbage_stays")
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_disables_that_one_tool(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "LOAD_LIMIT_S", 0.3)
    text, reason = BROKEN[what]
    write(tmp_path, "after")
    write(tmp_path, "before")
    (tmp_path / "broken.py").write_bytes(text.encode(errors="surrogateescape"))
    found = ToolFiles([tmp_path])
    assert set(found) == {"after", "before", "broken"}
    assert found["broken"].tool is None
    assert found["broken"].actions == {}
    assert reason in found["broken"].error
    assert list(found["after"].actions) == ["ping"]
    assert found["after"].error == found["before"].error == ""
    assert "lightagentd_tool_broken" not in sys.modules


def test_what_is_not_a_readable_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "fine")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere")
    write(tmp_path, "has-dash")
    write(tmp_path, "a" * 62)
    (tmp_path / "notes.txt").write_text("not a tool")
    write(tmp_path, "_helper")
    found = ToolFiles([tmp_path, tmp_path / "missing"])
    assert set(found) == {"fine", "folder", "lost", "has-dash", "a" * 62}
    assert [name for name, tool in found.items() if not tool.error] == ["fine"]


def test_the_first_file_of_a_name_wins_even_when_it_is_broken(tmp_path: Path) -> None:
    write(tmp_path / "etc", "one", doc="The administrator's.")
    write(tmp_path / "etc", "two", "raise ValueError('mine')")
    write(tmp_path / "share", "one")
    write(tmp_path / "share", "two")
    found = ToolFiles([tmp_path / "etc", tmp_path / "share"])
    assert found["one"].path == tmp_path / "etc/one.py"
    assert found["two"].error == "ValueError: mine"


def test_a_file_that_everybody_can_write_is_not_loaded(tmp_path: Path) -> None:
    path = write(tmp_path, "open", f"open({str(tmp_path / 'ran')!r}, 'w')")
    path.chmod(0o666)
    assert "chmod o-w" in load_tool(path).error
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    assert "chmod o-w" in load_tool(path).error
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    path = write(tmp_path, "foreign", f"open({str(tmp_path / 'ran')!r}, 'w')")
    os.chown(path, 61234, 61234)
    assert "61234" in load_tool(path).error
    assert not (tmp_path / "ran").exists()


def test_a_file_is_loaded_when_it_is_looked_up_and_only_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ran = f"with open({str(tmp_path / 'ran')!r}, 'a') as ran: ran.write('{name} ')"
        write(tmp_path, name, ran + GOOD.format(cls="Found", name=name, doc="A tool."))
    ready: list[str] = []
    found = ToolFiles([tmp_path], lambda tool: ready.append(tool.name))
    assert set(found) == {"one", "two"}
    assert not (tmp_path / "ran").exists()
    assert found["two"].tool is found["two"].tool
    assert (tmp_path / "ran").read_text() == "two "
    assert (ready, list(found.loaded)) == (["two"], ["two"])
    assert found.get("three") is None


def test_every_shipped_tool_loads() -> None:
    found = ToolFiles([Path(__file__).resolve().parents[2] / "tools"])
    assert found
    assert {name: tool.error for name, tool in found.items() if tool.error} == {}
