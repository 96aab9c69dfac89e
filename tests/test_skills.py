"""The loader of skills: front matter, broken skills, the search path, commands and trust."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.errors import InvalidArgument
from lightagentd.skills import SkillCatalog, load_skills

SHIPPED = Path(__file__).parents[1] / "skills"
FRONT = """name: ping-check
description: Pings.
runbook: scripts/run.py
effect: observe
timeout_s: 5
args:
  host: {kind: host, description: Whom., effect: reach}
  since: {kind: time, description: When.}
  unit: {kind: unit, description: What.}
  path: {kind: path, description: Where.}
  port: {kind: port, description: Port.}
  pid: {kind: pid, description: Pid.}
words:
  4: [ping]
  2: [ping, echo]
"""


def write(folder: Path, name: str = "ping-check", front: str = FRONT, body: str = "# Ping") -> Path:
    target = folder / name
    (target / "scripts").mkdir(parents=True, mode=0o755)
    script = target / "scripts" / "run.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    (target / "SKILL.md").write_text(f"---\n{front}---\n\n{body}\n")
    for path in (folder, target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def reason(folder: Path, front: str) -> str:
    write(folder, front=front)
    catalog = load_skills([folder])
    assert not catalog.skills
    return catalog.broken["ping-check"]


def test_shipped_skills_all_load() -> None:
    catalog = load_skills([SHIPPED])
    assert catalog.broken == {}
    assert len(catalog.skills) == 12
    assert all(skill.runbook and skill.body and len(skill.prompts) >= 5 for skill in catalog.skills.values())


def test_a_skill_has_what_its_front_matter_says(tmp_path: Path) -> None:
    write(tmp_path)
    skill = load_skills([tmp_path]).skills["ping-check"]
    assert (skill.description, skill.timeout_s, skill.body, skill.origin) == (
        "Pings.",
        5,
        "# Ping",
        str(tmp_path),
    )
    assert skill.words == {"ping": 4, "echo": 2}


def test_an_unknown_key_is_refused_by_name_with_file_and_line(tmp_path: Path) -> None:
    text = reason(tmp_path, FRONT + "colour: red\n")
    assert "SKILL.md, line 17" in text
    assert "colour" in text


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        (FRONT.replace("kind: host", "kind: planet"), "args.host.kind"),
        (FRONT.replace("effect: observe", "effect: change"), "effect"),
        (FRONT.replace("description: Pings.\n", ""), "description is missing"),
        (FRONT.replace("name: ping-check", "name: other"), "the folder is 'ping-check'"),
        (FRONT.replace("scripts/run.py", "scripts/none.py"), "does not exist"),
        (FRONT.replace("scripts/run.py", "../run.py"), "outside"),
        ("name: [\n", "line"),
        ("- a\n", "mapping"),
    ],
)
def test_a_broken_skill_says_what_is_wrong_and_where(tmp_path: Path, front: str, expected: str) -> None:
    text = reason(tmp_path, front)
    assert expected in text
    assert "SKILL.md" in text


def test_a_broken_skill_disables_only_itself(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "SKILL.md").write_text("no front matter")
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "SKILL.md").write_bytes(b"---\n\xff\n---\n")
    catalog = load_skills([tmp_path])
    assert list(catalog.skills) == ["ping-check"]
    assert set(catalog.broken) == {"empty", "bare", "binary"}


def test_the_first_folder_wins_even_with_a_broken_skill(tmp_path: Path) -> None:
    write(tmp_path / "first", front=FRONT.replace("Pings.", "First."))
    write(tmp_path / "second")
    write(tmp_path / "third", front="name: [")
    assert load_skills([tmp_path / "first", tmp_path / "second"]).skills["ping-check"].description == "First."
    assert load_skills([tmp_path / "third", tmp_path / "second"]).skills == {}


def test_missing_folders_and_shared_modules_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "_lib").mkdir()
    (tmp_path / ".git").mkdir()
    assert load_skills([tmp_path / "none", tmp_path]) == SkillCatalog()


def test_a_skill_without_a_script_cannot_be_run(tmp_path: Path) -> None:
    write(tmp_path, front="name: ping-check\ndescription: Text.\n")
    with pytest.raises(InvalidArgument, match="has no script"):
        load_skills([tmp_path]).skills["ping-check"].command({})


def test_each_value_is_inside_its_own_option(tmp_path: Path) -> None:
    write(tmp_path)
    skill = load_skills([tmp_path]).skills["ping-check"]
    argv = skill.command({"since": "-2h", "path": "/a b; rm -rf *"})
    assert argv[1] == "-I"
    assert argv[-2:] == ["--since=-2h", "--path=/a b; rm -rf *"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(argv[-2:])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", "red"),
        ("unit", "--help"),
        ("unit", "a b"),
        ("unit", ""),
        ("path", "etc/passwd"),
        ("path", "/a\0b"),
        ("path", "/a\n"),
        ("host", "-oProxyCommand=x"),
        ("host", "example.org:0"),
        ("host", "example.org:70000"),
        ("host", "a b"),
        ("port", "0"),
        ("port", "65536"),
        ("port", "http"),
        ("pid", "0"),
        ("pid", "-1"),
        ("since", "now; reboot"),
        ("since", "--boot"),
        ("since", "2 hours ago"),
    ],
)
def test_what_does_not_fit_its_kind_is_refused(tmp_path: Path, name: str, value: str) -> None:
    write(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        load_skills([tmp_path]).skills["ping-check"].command({name: value})
    assert caught.value.field == name
    assert caught.value.suggestion


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unit", "nginx.service"),
        ("unit", "wg-quick@wg0.service"),
        ("unit", "-.mount"),
        ("path", "/"),
        ("host", "example.org:443"),
        ("host", "192.0.2.1"),
        ("host", "2001:db8::1"),
        ("host", "[2001:db8::1]:443"),
        ("port", "65535"),
        ("pid", "1"),
        ("since", "boot"),
        ("since", "yesterday 14:00"),
        ("since", "-30min"),
        ("since", "2025-01-31 14:00"),
    ],
)
def test_what_fits_its_kind_is_taken(tmp_path: Path, name: str, value: str) -> None:
    write(tmp_path)
    assert load_skills([tmp_path]).skills["ping-check"].command({name: value})[-1] == f"--{name}={value}"


def test_the_effect_is_the_greatest_of_skill_and_arguments(tmp_path: Path) -> None:
    write(tmp_path)
    skill = load_skills([tmp_path]).skills["ping-check"]
    assert skill.effect_of({}) == "observe"
    assert skill.effect_of({"host": "example.org"}) == "reach"
    with pytest.raises(InvalidArgument):
        skill.effect_of({"colour": "red"})


@pytest.mark.parametrize(
    "loose", [".", "ping-check", "ping-check/scripts", "ping-check/scripts/run.py", "_lib", "_lib/report.py"]
)
def test_what_others_can_write_is_not_trusted(tmp_path: Path, loose: str) -> None:
    share = tmp_path / "skills"
    write(share)
    (share / "_lib").mkdir(mode=0o755)
    (share / "_lib" / "report.py").touch(mode=0o644)
    (share / "_lib").chmod(0o755)
    (share / "_lib" / "report.py").chmod(0o644)
    skill = load_skills([share]).skills["ping-check"]
    assert skill.trusted()
    (share / loose).chmod((share / loose).stat().st_mode | 0o020)
    assert not skill.trusted()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    share = tmp_path / "skills"
    write(share)
    skill = load_skills([share]).skills["ping-check"]
    assert skill.runbook is not None
    os.chown(skill.runbook, 12345, 12345)
    assert not skill.trusted()
    os.chown(share, 12345, 12345)
    assert skill.trusted()


def test_importing_the_loader_imports_nothing_of_the_daemon() -> None:
    program = (
        "import sys, lightagentd.skills; print(sorted(m for m in sys.modules if m.startswith('lightagentd')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = ["lightagentd", "lightagentd.errors", "lightagentd.frontmatter", "lightagentd.skills"]
    assert done.stdout.strip() == str(loaded)
