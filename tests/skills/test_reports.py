"""Every shipped script, run for real: the finding first, no traceback, bad arguments refused."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.host.process import clean_environment
from tests.skills.library import module as library
from tests.skills.script import SKILLS, finding, report, skill

FOLDER = Path(__file__).parents[2] / "skills"
LIBRARY = FOLDER / "_lib"
SHARED = {path.stem for path in LIBRARY.iterdir()}
SCRIPTS = sorted(FOLDER.glob("*/scripts/*.py"))
MODULES = [*SCRIPTS, *sorted(LIBRARY.rglob("*.py"))]


@pytest.mark.parametrize("name", sorted(SKILLS))
def test_report_begins_with_the_finding(name: str) -> None:
    assert len(finding(report(name))) > 20


@pytest.mark.parametrize("name", sorted(SKILLS))
def test_report_needs_no_command_of_the_system(name: str) -> None:
    text = report(name, search_path="")
    assert "not installed or not on the search path" in text or finding(text)


@pytest.mark.parametrize("name", sorted(SKILLS))
def test_an_unknown_option_is_refused_with_a_status(name: str) -> None:
    argv = [*skill(name).command({}), "--colour=red"]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=clean_environment(), timeout=30, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--colour" in done.stderr


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("disk-check", "--path=etc"),
        ("service-triage", "--unit=--help"),
        ("log-errors", "--since=tomorrow"),
        ("log-errors", "--unit=-x"),
        ("login-audit", "--since=2025-99-99"),
        ("network-check", "--host=-c"),
        ("listening-ports", "--port=70000"),
        ("certificate-expiry", "--path=x"),
        ("certificate-expiry", "--host=a b"),
        ("who-uses", "--pid=0"),
        ("who-uses", "--path=x"),
    ],
)
def test_a_bad_value_is_refused_with_a_sentence(name: str, option: str) -> None:
    argv = [*skill(name).command({}), option]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=clean_environment(), timeout=30, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_scripts_import_only_the_standard_library(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {
        (node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    assert names <= set(sys.stdlib_module_names) | SHARED


def test_running_a_script_leaves_no_bytecode_behind() -> None:
    report("boot-check")
    assert not list(Path(__file__).parents[2].glob("skills/**/__pycache__"))


@pytest.mark.parametrize(
    "since", ["boot", "today", "yesterday 14:00", "-30min", "-2h", "-7d", "2025-01-31", "2025-01-31 14:00"]
)
def test_every_form_of_a_time_is_understood(since: str) -> None:
    assert "since 20" in finding(
        report("log-errors", search_path="", since=since)
    ) or "cannot be said" in report("log-errors", search_path="", since=since)


@pytest.mark.parametrize(
    "name", ["nginx.service", "/a b", "/t/$(reboot)", "/t/`id`", '/t/";id;"', "/t/x' y!z", r"a\x2db.mount"]
)
def test_the_next_command_is_one_word_for_a_shell_whatever_a_file_is_called(name: str) -> None:
    made = library("report").Report()
    made.finding, made.next = "Bad.", library("checks").prompt(f"permissions of {name}")
    [line] = [line for line in made.render().splitlines() if line.startswith("Next: ")]
    command = line.removeprefix("Next: ").strip("`")
    said = subprocess.check_output(["sh", "-c", f'set -- {command}; printf %s "$#$4"'], text=True)
    assert said == f"4permissions of {name}"


def test_no_text_of_the_machine_makes_lines_links_or_escapes_in_a_report() -> None:
    evil = "a\n**Fine.**\r\x1b[2J\u202e[x](http://evil.example/)" + "y" * 100_000
    made = library("report").Report()
    made.full, made.finding, made.next = True, evil, evil
    made.text(evil, f"- {evil}")
    made.table("Table", (evil,), [(evil,)])
    made.lines("Lines", [evil])
    made.note(evil)
    text = made.render()
    assert not set("\r\x1b\u202e") & set(text)
    assert not [line for line in text.splitlines()[1:] if line.startswith("**")]
    shown = [line for line in text.splitlines() if not line.startswith(("    ", "Next: ", "## "))]
    assert "](" not in "".join(shown)
    assert max(map(len, shown)) < 2100
