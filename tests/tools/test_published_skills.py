"""Skills of the shapes that are published for other agents work as they are: read, listed and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.errors import SkillNotFound
from lightagentd.skills import Skill, load_skills
from lightagentd.tool import InvalidArgument, ToolError
from tests.conftest import write

from .conftest import Call, CallContext

pytestmark = pytest.mark.usefixtures("nothing_left")

PUBLISHED = {
    # Python with a module beside it, a long quoted description, reference pages.
    "form-filler": {
        "SKILL.md": "---\nname: form-filler\ndescription: \"Use it when a user has a 'form': fill it.\"\n"
        "license: Proprietary. See LICENSE.txt\n---\n# Forms\n\nRead [the guide](references/guide.md).\n",
        "scripts/fill.py": "import sys\nfrom fields import NAMES\nprint('filled', NAMES, *sys.argv[1:])\n",
        "scripts/fields.py": "NAMES = ['a']\n",
        "references/guide.md": "One field at a time.\n",
        "LICENSE.txt": "All of it.\n",
    },
    # Shell, a name with an underscore, keys of one client, and a description that is no YAML.
    "get_status": {
        "SKILL.md": "---\nname: get_status\ndescription: Use when: somebody asks for the state\n"
        "allowed-tools: Bash(git:*), Read\ncontext: fork\nagent: Explore\nmodel: inherit\n"
        "argument-hint: '[what]'\n---\nRun `scripts/status.sh`.\n",
        "scripts/status.sh": '#!/usr/bin/env bash\nparts=(state of "$1")\n'
        'echo "${parts[@]}" "$(head -1 assets/a)"\n',
        "assets/a": "fine\n",
    },
    # Perl without a suffix, metadata, compatibility, lines as Windows ends them.
    "log-words": {
        "SKILL.md": "---\r\nname: log-words\r\ndescription: >-\r\n  Counts\r\n  words.\r\n"
        "compatibility: Requires perl\r\nmetadata:\r\n  author: me\r\n  version: '1.0'\r\n---\r\nCount.\r\n",
        "bin/count": "#!/usr/bin/perl -w\nprint scalar(@ARGV), qq(\\n);\n",
    },
    # Awk by the words of its first line, a key that nobody knows, lists for tools.
    "sum-up": {
        "SKILL.md": "---\nname: sum-up\ndescription: Adds.\nallowed-tools:\n  - Read\n  - Grep\n"
        "surfaces: [codebase]\nversion: 2\n---\nAdd.\n",
        "scripts/two": "#!/usr/bin/env -S awk -f\nBEGIN { print ARGV[1] + 1 }\n",
    },
    # Text alone.
    "house-style": {
        "SKILL.md": "---\nname: house-style\ndescription: How to write.\nmetadata: x\n---\nShort sentences.\n"
    },
}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Skill]:
    for name, files in PUBLISHED.items():
        for file, text in files.items():
            write(tmp_path / "skills" / name / file, text)
    monkeypatch.setenv("LIGHTAGENT_SKILLS", str(tmp_path / "skills"))
    catalog = load_skills([tmp_path / "skills"])
    assert catalog.broken == {}
    return catalog.skills


def test_published_skills_load_with_warnings_only_for_what_is_odd(published: dict[str, Skill]) -> None:
    assert published.keys() == PUBLISHED.keys()
    assert [warning.partition("/skills/")[2] for one in published.values() for warning in one.warnings] == [
        "get_status/SKILL.md, line 3: the value has a colon in it, so YAML wants it in quotes.",
        "sum-up/SKILL.md, line 7: the key surfaces is not known; it is kept.",
    ]
    assert published["get_status"].description == "Use when: somebody asks for the state"
    assert published["log-words"].description == "Counts words."


@pytest.mark.parametrize(
    ("name", "script", "arguments", "said"),
    [
        ("form-filler", "scripts/fill.py", ["--to", "x y"], "filled ['a'] --to x y\n"),
        ("get_status", "scripts/status.sh", ["$HOME"], "state of $HOME fine\n"),
        ("log-words", "bin/count", ["a", "b", ""], "3\n"),
        ("sum-up", "scripts/two", ["1"], "2\n"),
    ],
)
async def test_scripts_of_any_language_run(
    published: dict[str, Skill], call: Call, name: str, script: str, arguments: list[str], said: str
) -> None:
    assert (await call("skill", "run", name=name, script=script, arguments=arguments)).output == said


async def test_text_shows_the_hints_and_files_and_files_can_be_read(
    published: dict[str, Skill], call: Call
) -> None:
    text = (await call("skill", "load", name="get_status")).output
    assert "Its author thought of these tools: Bash(git:*), Read" in text
    assert "- assets/a\n- scripts/status.sh\n" in text
    assert "It needs: Requires perl" in (await call("skill", "load", name="log-words")).output
    assert "Short sentences." in (await call("skill", "load", name="house-style")).output
    guide = await call("skill", "load", name="form-filler", file="references/guide.md")
    assert guide.output == "One field at a time.\n"


async def test_a_long_file_is_read_in_parts_and_a_binary_one_is_named(
    published: dict[str, Skill], call: Call
) -> None:
    folder = published["house-style"].folder
    (folder / "long.txt").write_text("x" * 50_000 + "end")
    (folder / "image.png").write_bytes(b"\x89PNG\0\0")
    first = (await call("skill", "load", name="house-style", file="long.txt")).output
    assert first.endswith("x\n(851 more bytes: offset 49152)\n")
    rest = (await call("skill", "load", name="house-style", file="long.txt", offset=49152)).output
    assert rest == "x" * 848 + "end"
    image = (await call("skill", "load", name="house-style", file="image.png")).output
    assert image == f"{folder}/image.png is not text; it has 6 bytes.\n"


@pytest.mark.parametrize("file", ["../form-filler/SKILL.md", "/etc/passwd", "none", "a\0b", "x" * 300, "out"])
async def test_only_files_of_the_skill_are_read_and_run(
    published: dict[str, Skill], call: Call, file: str
) -> None:
    (published["house-style"].folder / "out").symlink_to("/etc/passwd")
    with pytest.raises(InvalidArgument, match="has no file"):
        await call("skill", "load", name="house-style", file=file)
    with pytest.raises(InvalidArgument, match="has no file"):
        await call("skill", "run", name="house-style", script=file)


async def test_a_script_that_others_can_write_does_not_run(published: dict[str, Skill], call: Call) -> None:
    (published["form-filler"].folder / "scripts/fields.py").chmod(0o666)
    with pytest.raises(InvalidArgument, match="Others can write"):
        await call("skill", "run", name="form-filler", script="scripts/fill.py")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("x.rkt", "#!/usr/bin/env no-such-language\n", "no-such-language is not installed"),
        ("x.unknown", "echo hello\n", "names no program"),
        ("x", "#!\n", "names no program"),
    ],
)
async def test_a_script_that_nothing_runs_is_refused(
    published: dict[str, Skill], call: Call, file: str, text: str, said: str
) -> None:
    write(published["sum-up"].folder / file, text)
    with pytest.raises(InvalidArgument, match=said):
        await call("skill", "run", name="sum-up", script=file)


async def test_a_failure_shows_both_outputs_and_says_what_the_effect_keeps_it_from(
    published: dict[str, Skill], call: Call
) -> None:
    write(published["sum-up"].folder / "check.sh", "echo two fields are missing\necho bad >&2\nexit 3\n")
    with pytest.raises(ToolError, match=r"The script check\.sh of the skill sum-up failed .* 3") as caught:
        await call("skill", "run", name="sum-up", script="check.sh")
    assert caught.value.message.endswith("It says:\ntwo fields are missing\nbad")
    assert "may not write or use the network" in str(caught.value.suggestion)


async def test_runbook_and_script_do_not_mix(published: dict[str, Skill], call: Call) -> None:
    with pytest.raises(InvalidArgument, match="args are for the runbook"):
        await call("skill", "run", name="sum-up", script="scripts/two", args={"path": "/"})
    with pytest.raises(InvalidArgument, match="has no runbook"):
        await call("skill", "run", name="sum-up")


async def test_an_agent_sees_only_the_skills_that_it_may_use(
    published: dict[str, Skill], call: Call, context: CallContext
) -> None:
    context.expected["skills"] = ["sum-up", "by-hand"]
    write(
        published["sum-up"].folder.parent / "by-hand" / "SKILL.md",
        "---\nname: by-hand\ndescription: Y.\ndisable-model-invocation: true\n---\n",
    )
    assert (await call("skill", "list")).metadata["skills"] == ["sum-up"]
    with pytest.raises(SkillNotFound, match="no skill 'form-fillr'") as caught:
        await call("skill", "load", name="form-fillr")
    assert caught.value.suggestion == "List the skills first."
