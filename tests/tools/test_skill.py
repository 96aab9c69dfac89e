"""The tool skill, with skills and scripts that are written for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.errors import ConfigError, SkillNotFound
from lightagentd.tool import InvalidArgument, TimedOut, ToolError

from .conftest import Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")

FRONT = """---
name: {name}
description: Says hello.
license: MIT
---
# How to say hello

Say it.
"""
RUNBOOK = """script: scripts/hello.py
timeout_s: {timeout_s}
args:
  path: {{kind: path, description: "Where."}}
  host: {{kind: host, description: "Whom.", effect: reach}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for skills that the tool looks in, besides one that does not exist."""
    found = tmp_path / "skills"
    found.mkdir()
    monkeypatch.setenv("LIGHTAGENT_SKILLS", f"{tmp_path}/absent::{found}")
    return found


def _write(folder: Path, script: str, name: str = "hello", timeout_s: float = 30) -> Path:
    (folder / name / "scripts").mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(FRONT.format(name=name))
    (folder / name / "runbook.yaml").write_text(RUNBOOK.format(timeout_s=timeout_s))
    (folder / name / "scripts" / "hello.py").write_text(script)
    return folder / name


async def test_list_names_each_skill_with_its_arguments(call: Call, folder: Path) -> None:
    _write(folder, "")
    result = await call("skill", "list")
    assert result.output == "hello: Says hello. (arguments: path, host)\n"
    assert result.metadata == {"skills": ["hello"], "broken": {}}


async def test_list_says_why_a_skill_is_broken(call: Call, folder: Path) -> None:
    _write(folder, "")
    (folder / "bad").mkdir()
    (folder / "bad" / "SKILL.md").write_text("no front matter")
    result = await call("skill", "list")
    assert result.output.startswith("hello: Says hello.")
    assert "bad: cannot be used" in result.output
    assert list(result.metadata["broken"]) == ["bad"]


async def test_without_folders_there_are_no_skills(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_SKILLS", raising=False)
    assert (await call("skill", "list")).output == "There are no skills.\n"


async def test_a_skill_that_is_added_later_is_found(call: Call, folder: Path) -> None:
    assert (await call("skill", "list")).metadata["skills"] == []
    _write(folder, "")
    assert (await call("skill", "list")).metadata["skills"] == ["hello"]


async def test_load_gives_the_body_without_front_matter_and_the_files(call: Call, folder: Path) -> None:
    where = _write(folder, "")
    (where / "reference.md").write_text("more")
    result = await call("skill", "load", name="hello")
    assert result.output.startswith("# How to say hello\n\nSay it.\n")
    assert "license:" not in result.output
    assert result.metadata["files"] == ["SKILL.md", "reference.md", "runbook.yaml", "scripts/hello.py"]
    assert f"in {where}:\n- SKILL.md\n- reference.md\n- runbook.yaml\n- scripts/hello.py\n" in result.output
    assert result.metadata["runbook"] == str(where / "scripts" / "hello.py")


async def test_an_unknown_name_gets_the_nearest_ones(call: Call, folder: Path) -> None:
    _write(folder, "")
    with pytest.raises(SkillNotFound, match="no skill 'helo'") as caught:
        await call("skill", "load", name="helo")
    assert caught.value.suggestion == "Did you mean hello?"


@pytest.mark.parametrize("name", ["../hello", "/etc", "hello/scripts", "-x", ""])
async def test_a_name_is_never_a_path(call: Call, folder: Path, name: str) -> None:
    _write(folder, "")
    with pytest.raises(SkillNotFound):
        await call("skill", "load", name=name)


async def test_a_broken_skill_says_what_is_wrong(call: Call, folder: Path) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "SKILL.md").write_text("no front matter")
    with pytest.raises(ConfigError, match="bad cannot be used"):
        await call("skill", "run", name="bad")


async def test_run_gives_what_the_script_prints(call: Call, folder: Path, context: CallContext) -> None:
    _write(folder, "import sys\nprint('# Hello', sys.argv[1:])\nprint('note', file=sys.stderr)")
    result = await call("skill", "run", name="hello", args={"path": "/a b"})
    assert result.output == "# Hello ['--path=/a b']\n"
    assert result.metadata["skill"] == "hello"
    assert result.metadata["exit_status"] == 0
    assert result.metadata["duration_ms"] >= 0
    assert result.metadata["stderr"] == "note\n"
    assert ("stdout", "# Hello ['--path=/a b']\n") in context.shown


async def test_a_script_that_fails_is_an_error_with_the_end_of_its_errors(call: Call, folder: Path) -> None:
    _write(folder, "import sys\nsys.exit('x' * 9000 + ' no disk here')")
    with pytest.raises(ToolError, match="failed with exit status 1") as caught:
        await call("skill", "run", name="hello")
    assert caught.value.message.endswith("no disk here")
    assert len(caught.value.message) < 3000


async def test_a_script_that_takes_too_long_is_ended(call: Call, folder: Path) -> None:
    _write(
        folder, "import sys, time\nprint('slow', file=sys.stderr, flush=True)\ntime.sleep(600)", timeout_s=0.7
    )
    with pytest.raises(TimedOut, match=r"did not end within 0\.7 s"):
        await call("skill", "run", name="hello")


async def test_an_argument_that_is_not_declared_is_refused(call: Call, folder: Path) -> None:
    _write(folder, "print('ran')")
    with pytest.raises(InvalidArgument, match="no argument 'colour'"):
        await call("skill", "run", name="hello", args={"colour": "red"})


async def test_an_argument_of_the_wrong_kind_is_refused(call: Call, folder: Path) -> None:
    _write(folder, "print('ran')")
    with pytest.raises(InvalidArgument, match="not a path"):
        await call("skill", "run", name="hello", args={"path": "--help"})


async def test_a_script_that_needs_the_network_asks_for_reach(call: Call, folder: Path) -> None:
    _write(folder, "print('ran')")
    with pytest.raises(InvalidArgument, match="needs the network") as caught:
        await call("skill", "run", name="hello", args={"host": "example.org"})
    assert caught.value.field == "effect"
    result = await call("skill", "run", name="hello", args={"host": "example.org"}, effect="reach")
    assert result.output == "ran\n"


async def test_a_script_runs_in_the_scratch_folder(call: Call, folder: Path, tmp_path: Path) -> None:
    _write(folder, "import os\nprint(os.getcwd(), os.environ['HOME'], os.environ['TMPDIR'])")
    assert (await call("skill", "run", name="hello")).output == f"{tmp_path} {tmp_path} {tmp_path}\n"


async def test_a_script_that_prints_without_end_is_capped(call: Call, folder: Path) -> None:
    _write(folder, "import os\nos.write(1, b'x' * 60000)\nfor _ in range(20): os.write(1, b'y' * 60000)")
    result = await call("skill", "run", name="hello")
    assert len(result.output) < 70_000
    assert result.metadata["stdout_omitted_bytes"] == 21 * 60_000 - 65_536


def test_only_the_report_of_a_script_taints(load: Load) -> None:
    actions = load("skill").actions
    assert {name: (found.effect, found.taints) for name, found in actions.items()} == {
        "list": ("observe", False),
        "load": ("observe", False),
        "run": (None, True),
    }
