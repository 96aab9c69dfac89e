"""The loader of skills: front matter, broken skills, the search path, commands and trust."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.errors import InvalidArgument
from lightagentd.skills import Skill, SkillCatalog, load_skills
from lightagentd.skills.checking import check

SHIPPED = Path(__file__).parents[1] / "skills"
FRONT = "name: ping-check\ndescription: Pings.\n"
RUNBOOK = """script: scripts/run.py
effect: observe
timeout_s: 5
args:
  host: {kind: host, description: Whom., effect: reach}
  since: {kind: time, description: When.}
  unit: {kind: unit, description: What.}
  path: {kind: path, description: Where.}
  port: {kind: port, description: Port.}
  pid: {kind: pid, description: Pid.}
  user: {kind: user, description: Who.}
  package: {kind: package, description: Package.}
  interface: {kind: interface, description: Link.}
  container: {kind: container, description: Container.}
  priority: {kind: priority, description: How bad.}
"""


def write(
    folder: Path, name: str = "ping-check", front: str = FRONT, runbook: str = RUNBOOK, examples: bytes = b""
) -> Path:
    target = folder / name
    (target / "scripts").mkdir(parents=True, mode=0o755)
    (target / "scripts" / "run.py").write_text("import sys\nprint(sys.argv[1:])\n")
    (target / "SKILL.md").write_text(f"---\n{front}---\n\n# Ping\n")
    if runbook:
        (target / "runbook.yaml").write_text(runbook)
    if examples:
        (target / "examples.txt").write_bytes(examples)
    for path in (folder, target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def loaded(folder: Path) -> Skill:
    catalog = load_skills([folder])
    assert catalog.broken == {}
    return catalog.skills["ping-check"]


def test_shipped_skills_all_load() -> None:
    catalog = load_skills([SHIPPED])
    assert catalog.broken == {}
    assert len(catalog.skills) >= 30
    assert all(skill.runbook and skill.body and not skill.warnings for skill in catalog.skills.values())


def test_a_skill_has_what_its_files_say(tmp_path: Path) -> None:
    front = FRONT + "license: MIT\nallowed-tools: [Bash(ping:*), Read]\nmodel: opus\ncompatibility:\n"
    write(tmp_path, front=front, examples=b"is it there\n")
    skill = loaded(tmp_path)
    assert (skill.description, skill.timeout_s, skill.body, skill.origin) == (
        "Pings.",
        5,
        "# Ping",
        str(tmp_path),
    )
    assert (skill.front.license, skill.front.allowed_tools, dict(skill.front.extra)) == (
        "MIT",
        "Bash(ping:*) Read",
        {"model": "opus"},
    )
    assert (skill.prompts, skill.warnings) == (("is it there",), ())


def test_an_unknown_key_is_kept_and_warned_of_with_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, front=FRONT + "colour: red\nargs: {}\nprompts: [ping]\n")
    skill = loaded(tmp_path)
    assert skill.front.extra["colour"] == "red"
    places = [warning.partition(": ") for warning in skill.warnings]
    assert [place for place, _, _ in places] == [
        f"{skill.folder}/SKILL.md, line {line}" for line in (4, 5, 6)
    ]
    assert ["kept" in places[0][2], "runbook.yaml" in places[1][2], "examples.txt" in places[2][2]] == [
        True
    ] * 3


def test_what_is_nested_in_a_text_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, front=FRONT + "license: &x [[1]]\nallowed-tools: [Read, *x]\n")
    skill = loaded(tmp_path)
    assert (skill.front.license, skill.front.allowed_tools) == ("", "Read")


def test_the_runbook_may_stand_in_the_metadata(tmp_path: Path) -> None:
    ours = "metadata: {author: me, lightagentd: {script: scripts/run.py, timeout_s: 7}}\n"
    write(tmp_path, front=FRONT + ours, runbook="")
    skill = loaded(tmp_path)
    assert (skill.runbook, skill.timeout_s) == (skill.folder / "scripts/run.py", 7)


@pytest.mark.parametrize("name", ["3d", "get_logs", "a", "a" * 64])
def test_names_are_those_of_the_standard_and_with_underscores(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, front=f"name: '{name}'\ndescription: X.\n")
    assert list(load_skills([tmp_path]).skills) == [name]


@pytest.mark.parametrize("name", ["-a", "a-", "A", "a b", "a" * 65])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, front=f"name: '{name}'\ndescription: X.\n")
    assert "both must be the same" in load_skills([tmp_path]).broken[name]


@pytest.mark.parametrize(
    ("front", "runbook", "expected"),
    [
        (
            FRONT,
            RUNBOOK.replace("kind: host", "kind: planet"),
            "runbook.yaml, line 4: the key args.host.kind",
        ),
        (FRONT, RUNBOOK.replace("effect: observe", "effect: change"), "runbook.yaml, line 2: the key effect"),
        (FRONT, RUNBOOK.replace("scripts/run.py", "scripts/none.py"), "runbook.yaml, line 1: the script"),
        (FRONT, RUNBOOK.replace("scripts/run.py", "../run.py"), "outside"),
        (FRONT, RUNBOOK + "colour: red\n", "runbook.yaml, line 16: the key colour is not known"),
        (FRONT, "timeout_s: 3\n", "script is missing"),
        (FRONT + "metadata: {lightagentd: {timeout_s: 1}}\n", "", "SKILL.md: the key script is missing"),
        (FRONT + "metadata: {lightagentd: here}\n", "", "SKILL.md, line 4: metadata.lightagentd"),
        (FRONT.replace("description: Pings.\n", ""), "", "SKILL.md: the key description is missing"),
        (FRONT.replace("name: ping-check", "name: other"), "", "the folder is 'ping-check'"),
        ("name: [\n", "", "SKILL.md, line"),
        ("- a\n", "", "mapping"),
    ],
)
def test_a_broken_skill_says_what_is_wrong_and_where(
    tmp_path: Path, front: str, runbook: str, expected: str
) -> None:
    write(tmp_path, front=front, runbook=runbook)
    catalog = load_skills([tmp_path])
    assert not catalog.skills
    assert expected in catalog.broken["ping-check"]


def test_examples_are_read_with_their_marks(tmp_path: Path) -> None:
    text = (
        "# a comment\n\nis {host:shop.example.org:8443} there\nwhat fills the {path:root partition=/}\n"
        'errors of {unit:nginx} {since: since noon =today 12:00} in {"a": 1} ${X}\nall fine?\r\n'
    )
    write(tmp_path, examples=b"\xef\xbb\xbf" + text.encode())
    skill = loaded(tmp_path)
    assert [
        (example.text, [(m.name, example.text[m.start : m.end], m.value) for m in example.marks])
        for example in skill.examples
    ] == [
        ("is shop.example.org:8443 there", [("host", "shop.example.org:8443", "")]),
        ("what fills the root partition", [("path", "root partition", "/")]),
        (
            'errors of nginx since noon in {"a": 1} ${X}',
            [("unit", "nginx", ""), ("since", "since noon", "today 12:00")],
        ),
        ("all fine?", []),
    ]
    assert skill.prompts[0] == "all fine?"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"is {colour:red} there", "no argument 'colour'"),
        (b"is {unit:nginx there", "'{unit:nginx there' is not"),
        (b"is {unit:} there", "is not"),
        (b"is {unit} there", "is not"),
        (b"is {unit:a {path:/x}} there", "is not"),
        (b"what fills {path:it=var}", "not a path"),
        (b"\xff", "not UTF-8"),
        (b"{unit:a}" * 10_000, "more than 4000 bytes"),
    ],
)
def test_a_bad_example_disables_the_skill_with_file_and_line(
    tmp_path: Path, line: bytes, expected: str
) -> None:
    where = write(tmp_path, examples=b"# fine\n" + line)
    said = load_skills([tmp_path]).broken["ping-check"]
    assert said.startswith(f"{where}/examples.txt, line 2: ")
    assert expected in said


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
    write(tmp_path / "third", front="name: [\n")
    assert load_skills([tmp_path / "first", tmp_path / "second"]).skills["ping-check"].description == "First."
    assert load_skills([tmp_path / "third", tmp_path / "second"]).skills == {}


def test_missing_folders_and_shared_modules_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "_lib").mkdir()
    (tmp_path / ".git").mkdir()
    assert load_skills([tmp_path / "none", tmp_path]) == SkillCatalog()


def test_a_skill_without_a_script_cannot_be_run(tmp_path: Path) -> None:
    write(tmp_path, runbook="")
    with pytest.raises(InvalidArgument, match="has no runbook"):
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
        ("user", "-l"),
        ("package", "a b"),
        ("interface", "a/b"),
        ("interface", "a" * 16),
        ("container", "../x"),
        ("priority", "error"),
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
        ("user", "www-data"),
        ("user", "EXAMPLE\\\\pc$"),
        ("package", "libstdc++6:amd64"),
        ("interface", "wg0"),
        ("container", "web_1"),
        ("priority", "err"),
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
    [said] = [each for each in check(skill.folder).warnings if "others can write it" in each]
    assert said.startswith(f"{(share / loose).resolve()}: ")
    subprocess.run(["sh", "-c", said.partition("Mend it: ")[2]], check=True)
    assert skill.trusted()


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
    found = ast.literal_eval(done.stdout)
    assert {name for name in found if not name.startswith("lightagentd.skills")} == {
        "lightagentd",
        "lightagentd.errors",
        "lightagentd.frontmatter",
        "lightagentd.host",
        "lightagentd.host.paths",
        "lightagentd.text",
        "lightagentd.text.reason",
    }
