"""Files of cases: what they say, and where what is wrong with them is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.assessment.cases import Case, read_cases, stored_cases
from lightagentd.errors import ConfigError, NotFound
from tests.conftest import REPOSITORY, write

WHOLE = """# A comment
[[case]]
name = "disk"
prompt = "how full is /"

[[case]]
name = "whole"
turns = ["first", "second"]
files = ["given.txt"]
effects = ["observe", "reach"]
max_steps = 3
max_tokens = 100
max_cost = 0.5
max_s = 30
check = "test -e /tmp/x"
check_timeout_s = 5

[case.facts]
"df -h" = "all of it"

[case.schema]
type = "object"

[case.answer]
contains = ["97"]
lacks = ["98"]
matches = ["9[67]"]
matches_not = ["^x"]
json = [{ path = "a.0", equals = 3 }]

[case.calls]
may = [{ tool = "net" }]

[[case.calls.must]]
tool = "skill"
action = "run"
args = { name = "disk-check", args = { path = { "=~" = "^/var" } } }

[[case.calls.must_not]]
tool = "bash"

[[case.stub]]
tool = "skill"
action = "run"
args = { name = "disk-check" }
output = "97 %"

[[case.stub]]
tool = "net"
action = "ping"
error = "no route"

[case.judge]
model = "work/a"
rubric = "names the disk"
passes_from = 0.5
"""
SECOND_CASE = 'prompt = "how full is /"\n\n[[case]]'
SECOND_STUB = 'output = "97 %"\n\n[[case.stub]]'


def test_a_case_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path / "given.txt", "the text")
    cases = read_cases(write(tmp_path / "disk.toml", WHOLE))
    assert [one.name for one in cases] == ["disk", "whole"]
    whole = cases[1]
    assert whole.prompts == ("first", "second")
    assert (dict(whole.facts), whole.files) == ({"df -h": "all of it", "given.txt": "the text"}, ())
    assert [one.name for one in whole.stub] == ["skill.run", "net.ping"]
    assert whole.judge is not None
    assert whole.judge.passes_from == 0.5
    assert stored_cases({"cases": [one.to_dict() for one in cases]}) == cases


def test_a_folder_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    for name in ("b/two", "a", ".git/hidden"):
        write(tmp_path / f"{name}.toml", f'[[case]]\nname = "{Path(name).name}"\nprompt = "x"\n')
    write(tmp_path / "notes.txt", "no case")
    assert [one.name for one in read_cases(tmp_path)] == ["a", "two"]


@pytest.mark.parametrize(
    ("before", "after", "at", "said"),
    [
        ('output = "97 %"', 'outputs = "97 %"', "outputs", "stub.0.outputs: there is no such key"),
        ('error = "no route"', "", SECOND_STUB, "stub.1: a stub has an output or an error"),
        ('contains = ["97"]', "contains = [97]", "contains", "answer.contains.0: "),
        ('matches = ["9[67]"]', 'matches = ["9[67"]', "matches =", "is not a regular expression"),
        ('{ "=~" = "^/var" }', '{ "=~" = "(" }', "[[case.calls.must]]", "is not a regular expression"),
        ('effects = ["observe", "reach"]', 'effects = ["watch"]', "effects", "effects.0: "),
        ("max_steps = 3", "max_steps = 0", "max_steps", "max_steps: "),
        ("passes_from = 0.5", "passes_from = 2", "passes_from", "judge.passes_from: "),
        ('turns = ["first", "second"]', "", SECOND_CASE, "a case has a prompt, or turns"),
        ('name = "whole"', 'name = "a b"', 'name = "a b"', "name: "),
        ('name = "whole"', "", SECOND_CASE, "name: the key is missing"),
        ('name = "whole"', 'name = "disk"', SECOND_CASE, "the name disk is that of"),
        ("max_tokens = 100", "max_tokens 100", "max_tokens", "it is not TOML"),
        ('files = ["given.txt"]', 'files = ["../given.txt"]', SECOND_CASE, "outside of the folder"),
        ('files = ["given.txt"]', 'files = ["nosuch.txt"]', SECOND_CASE, "cannot be read"),
    ],
)
def test_a_fault_has_its_line(tmp_path: Path, before: str, after: str, at: str, said: str) -> None:
    """`at` is what the line begins with, or the last line of what is before it."""
    write(tmp_path / "given.txt", "the text")
    text = WHOLE.replace(before, after, 1)
    path = write(tmp_path / "bad.toml", text)
    line = text[: text.index(at) + len(at.rstrip())].count("\n") + 1
    with pytest.raises(ConfigError) as failed:
        read_cases(path)
    assert failed.value.message.startswith(f"{path}:{line}: "), failed.value.message
    assert said in failed.value.message


def test_what_has_no_cases_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no cases"):
        read_cases(tmp_path)
    with pytest.raises(NotFound, match="no file or folder"):
        read_cases(tmp_path / "nosuch")
    with pytest.raises(ConfigError, match=r"it has no \[\[case\]\]"):
        read_cases(write(tmp_path / "empty.toml", ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        stored_cases({"cases": [{"name": "x"}]})


def test_the_shipped_cases_can_be_read() -> None:
    cases = read_cases(REPOSITORY / "agent" / "ops" / "evals")
    assert len(cases) >= 60
    assert f"\n{len(cases)} cases, " in (REPOSITORY / "docs" / "assessment.md").read_text(), "make assessment"
    assert all(isinstance(one, Case) and one.effects is not None for one in cases)
