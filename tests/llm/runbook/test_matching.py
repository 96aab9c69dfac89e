"""The matcher of the runbook model against many phrasings, and its parts one by one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from lightagentd.llm.runbook.matching import THRESHOLD, Match, SkillIndex, match
from lightagentd.skills import Skill, load_skills

SKILLS = Path(__file__).parents[3] / "skills"
PHRASINGS = Path(__file__).with_name("phrasings.txt")
SATURDAY = datetime(2025, 11, 22, 15, 30).astimezone()


def phrasings() -> list[tuple[str, list[str]]]:
    text = PHRASINGS.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if " => " in line and not line.startswith("#")]
    pairs = [line.split(" => ") for line in lines]
    return [(prompt, expected.split(" || ")) for prompt, expected in pairs]


@pytest.fixture(scope="module")
def index() -> SkillIndex:
    return SkillIndex(load_skills([SKILLS]).skills.values())


def shown(found: Match | None) -> str:
    if found is None:
        return "none"
    return " ".join([found.skill, *(f"{name}={value}" for name, value in sorted(found.args.items()))])


def asked(index: SkillIndex, prompt: str) -> str:
    return shown(index.match(prompt, now=SATURDAY))


def test_every_phrasing_finds_its_skill_and_arguments(index: SkillIndex) -> None:
    wrong = [
        f"{prompt!r}: {asked(index, prompt)} instead of {' or '.join(expected)}"
        for prompt, expected in phrasings()
        if asked(index, prompt) not in expected
    ]
    assert not wrong, "\n".join(wrong)


def test_the_phrasings_are_many_for_each_skill_and_for_none(index: SkillIndex) -> None:
    counts: dict[str, int] = {}
    for _, expected in phrasings():
        name = expected[0].split()[0]
        counts[name] = counts.get(name, 0) + 1
    assert set(counts) == {*load_skills([SKILLS]).skills, "none"}
    assert min(counts.values()) >= 50


def test_arguments_of_a_match_are_accepted_by_the_skill(index: SkillIndex) -> None:
    skills = load_skills([SKILLS]).skills
    for prompt, _ in phrasings():
        found = index.match(prompt, now=SATURDAY)
        if found is not None:
            assert skills[found.skill].command(found.args)
            assert THRESHOLD <= found.confidence <= 1


@pytest.mark.parametrize(
    "prompt",
    [
        "Could you please check the DISK?",
        "hey there, would you mind checking the disk for me, thanks!",
        "please  check   disks!!!",
        "dsik check",
        "CHECK DISK",
    ],
)
def test_case_wrapping_marks_and_typos_do_not_matter(index: SkillIndex, prompt: str) -> None:
    assert asked(index, prompt) == "disk-check"


@pytest.mark.parametrize(
    ("words", "since"),
    [
        ("since this morning", "today"),
        ("since yesterday", "yesterday"),
        ("last night", "yesterday"),
        ("since yesterday 14:00", "yesterday 14:00"),
        ("since yesterday at 2pm", "yesterday 14:00"),
        ("in the last hour", "-1h"),
        ("in the last 2 hours", "-2h"),
        ("during the past fifteen minutes", "-15min"),
        ("in the last half hour", "-30min"),
        ("over the last couple of days", "-2d"),
        ("3 hours ago", "-3h"),
        ("this week", "-7d"),
        ("last week", "-7d"),
        ("in the last 2 weeks", "-14d"),
        ("since boot", "boot"),
        ("since the last reboot", "boot"),
        ("since 14:00", "today 14:00"),
        ("since 9am", "today 09:00"),
        ("since noon", "today 12:00"),
        ("since 12am", "today 00:00"),
        ("since monday", "2025-11-17"),
        ("since saturday", "2025-11-15"),
        ("since may 3", "2025-05-03"),
        ("since 24 december", "2024-12-24"),
        ("since 2025-11-01", "2025-11-01"),
        ("since 2025-11-01 10:30", "2025-11-01 10:30"),
        ("since 2025-11-01T10:30:00", "2025-11-01 10:30"),
    ],
)
def test_times_are_normalized(index: SkillIndex, words: str, since: str) -> None:
    assert asked(index, f"any errors {words}") == f"log-errors since={since}"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("is nginx ok", "service-triage unit=nginx.service"),
        ("is the ssh daemon ok", "service-triage unit=ssh.service"),
        ("is sshd ok", "service-triage unit=sshd.service"),
        ("status of foo.timer", "service-triage unit=foo.timer"),
        ("is the payments service running", "service-triage unit=payments.service"),
        ("is networkmanager running", "service-triage unit=NetworkManager.service"),
        ("how full is the root filesystem", "disk-check path=/"),
        ("is the home partition full", "disk-check path=/home"),
        ("how big is /var/log?", "disk-check path=/var/log"),
        (
            "cert of https://shop.example.org:8443/x",
            "certificate-expiry host=shop.example.org:8443",
        ),
        ("can we reach db.internal:5432", "network-check host=db.internal:5432"),
        ("ping 192.0.2.7", "network-check host=192.0.2.7"),
        ("who is listening on 8080", "listening-ports port=8080"),
        ("who is using port 8080", "who-uses port=8080"),
        ("what is pid 123 doing", "who-uses pid=123"),
    ],
)
def test_arguments_are_taken_out_of_the_prompt(index: SkillIndex, prompt: str, expected: str) -> None:
    assert asked(index, prompt) == expected


def test_a_port_beyond_65535_is_no_argument(index: SkillIndex) -> None:
    assert asked(index, "what is on port 70000") in ("listening-ports", "none")


def test_the_effect_grows_with_the_argument_that_needs_it(index: SkillIndex) -> None:
    local = index.match("check certs in /etc/nginx/tls")
    remote = index.match("check the cert of example.org")
    assert local is not None
    assert remote is not None
    assert (local.effect, remote.effect) == ("observe", "reach")


@pytest.mark.parametrize(
    "verb", ["restart", "stop", "delete", "install", "kill", "disable", "reload", "remove"]
)
@pytest.mark.parametrize(
    "form",
    [
        "{} nginx",
        "please {} nginx",
        "can you {} the nginx service?",
        "check nginx and {} it",
        "how do I {} nginx",
    ],
)
def test_requests_to_change_something_never_match(index: SkillIndex, verb: str, form: str) -> None:
    assert index.match(form.format(verb)) is None


def test_an_empty_prompt_and_no_skills_match_nothing(index: SkillIndex) -> None:
    assert index.match("") is None
    assert index.match("?!") is None
    assert match("check disk", []) is None


def test_hostile_and_endless_text_neither_fails_nor_takes_long(index: SkillIndex) -> None:
    for prompt in (
        "<unit:x> <port> <<>>",
        "\0\x1b[31m\u202e",
        "/" * 5000,
        "a " * 5000,
        "1.2." * 2000,
        "since " * 2000,
    ):
        index.match(prompt)


def make_skill(folder: Path, name: str, description: str, prompts: list[str]) -> Skill:
    target = folder / name
    target.mkdir()
    (target / "run.py").write_text("print('**Fine.**')\n")
    (target / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n")
    (target / "runbook.yaml").write_text("script: run.py\n")
    (target / "examples.txt").write_text("\n".join(prompts))
    return load_skills([folder]).skills[name]


def test_a_skill_of_the_administrator_needs_no_words(tmp_path: Path) -> None:
    skill = make_skill(
        tmp_path,
        "raid-check",
        "Says whether the RAID arrays are whole.",
        ["check the raid", "is mdadm happy"],
    )
    shipped = load_skills([SKILLS]).skills.values()
    index = SkillIndex([*shipped, skill])
    assert asked(index, "check the raid") == "raid-check"
    assert asked(index, "how is the raid doing") == "raid-check"
    assert asked(index, "check disk") == "disk-check"
