"""An argument that begins with a dash is a value, or is refused: never an option of some program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd import errors

from .conftest import Call

pytestmark = pytest.mark.usefixtures("nothing_left")

REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("file", "read", {"path": "--help"}),
    ("file", "list", {"path": "-R"}),
    ("file", "stat", {"path": "-"}),
    ("file", "glob", {"pattern": "*", "path": "-delete"}),
    ("file", "grep", {"pattern": "x", "path": "-f/etc/shadow"}),
    ("file", "usage", {"path": "-x"}),
    ("file", "write", {"path": "-o", "content": "x"}),
    ("file", "edit", {"path": "-i", "old": "a", "new": "b"}),
    ("file", "delete", {"path": "-rf"}),
    ("file", "undo", {"call_id": "--all"}),
    ("bash", "exec", {"command": "true", "cwd": "-P"}),
    ("bash", "read_output", {"handle": "--version"}),
    ("net", "ping", {"host": "-f"}),
    ("net", "ping", {"host": "--flood"}),
    ("proc", "list", {"user": "-u"}),
    ("proc", "info", {"pid": "-1"}),
    ("proc", "signal", {"pid": -1}),
    ("proc", "signal", {"pid": 2**22 + 1, "signal": "-9"}),
    ("systemd", "status", {"unit": "--all"}),
    ("systemd", "list", {"state": "--all"}),
    ("systemd", "logs", {"unit": "ssh", "since": "--rotate"}),
    ("journal", "query", {"since": "--vacuum-size=1"}),
    ("journal", "query", {"boot": "--list-boots"}),
    ("journal", "query", {"fields": {"--file": "/etc/shadow"}}),
    ("journal", "fields", {"name": "--rotate"}),
    ("udev", "info", {"device": "--cleanup-db"}),
]


@pytest.mark.parametrize(("tool", "action", "args"), REFUSED)
async def test_what_looks_like_an_option_is_refused_where_it_can_be_no_value(
    call: Call, tool: str, action: str, args: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal").mkdir()
    monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.delenv("LIGHTAGENT_UNDO", raising=False)
    with pytest.raises((errors.LightagentError, ValidationError)):
        await call(tool, action, **args)


async def test_a_file_whose_name_begins_with_a_dash_can_be_written_searched_and_deleted(
    call: Call, tmp_path: Path
) -> None:
    path = tmp_path / "-rf"
    await call("file", "write", path=str(path), content="--version\n")
    found = await call("file", "grep", pattern="--version", path=str(tmp_path), glob="-*")
    assert found.output == f"{path}:1:--version\n"
    assert str(path) in (await call("file", "glob", pattern="-r*", path=str(tmp_path))).output
    await call("file", "delete", path=str(path))
    assert list(tmp_path.iterdir()) == []


async def test_a_name_or_filter_that_begins_with_a_dash_is_looked_for(call: Call) -> None:
    assert (await call("proc", "list", name="--help", interval_s=0)).metadata["matching"] == 0
    assert (await call("udev", "list", subsystem="--help")).metadata["total"] == 0
    assert (await call("udev", "list", sys_name="--help")).metadata["total"] == 0
