"""The files of policy.d: whole or not at all, and errors that name file, line, rule and key."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ConfigError
from lightagentd.policy.arguments import ArgumentCondition
from lightagentd.policy.rulefiles import MAX_RULES, RuleSet, load_texts, read_files, rule_files
from tests.conftest import write
from tests.policy.calls import a_call, rules

GOOD = '[[rule]]\nname = "good"\ndecision = "deny"\n'


def load_folder(folder: Path) -> RuleSet:
    return load_texts(read_files(rule_files(folder)))


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_texts({"policy.d/a.toml": text})
    return caught.value


def test_no_folder_and_empty_files_are_no_rules(tmp_path: Path) -> None:
    assert load_folder(tmp_path / "nothing").rules == ()
    write(tmp_path / "policy.d/a.toml", "# nothing yet\n")
    write(tmp_path / "policy.d/b.toml", "")
    assert load_folder(tmp_path / "policy.d").rules == ()


def test_the_files_are_read_by_name_and_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "20-b.toml", GOOD.replace("good", "second"))
    write(tmp_path / "10-a.toml", GOOD.replace("good", "first") + "\n" + GOOD.replace("good", "third"))
    for other in ("10-a.toml.dpkg-old", "README", ".hidden.toml", "x.toml~"):
        write(tmp_path / other, "this is not TOML")
    found = load_folder(tmp_path)
    assert [path.name for path in rule_files(tmp_path)] == ["10-a.toml", "20-b.toml"]
    assert [(rule.name, rule.line, rule.label) for rule in found.rules] == [
        ("first", 1, "first (10-a.toml)"),
        ("third", 5, "third (10-a.toml)"),
        ("second", 1, "second (20-b.toml)"),
    ]
    assert found.rules[0].origin == f"{tmp_path}/10-a.toml:1"


def test_the_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    write(tmp_path / "1.toml", GOOD)
    write(tmp_path / "2.toml", "# ä\n")
    done = subprocess.run("sha256sum *.toml", shell=True, cwd=tmp_path, capture_output=True, check=True)
    found = load_folder(tmp_path)
    assert found.sha256 == hashlib.sha256(done.stdout).hexdigest()
    assert [file.sha256 for file in found.files] == [
        line.split()[0].decode() for line in done.stdout.splitlines()
    ]


def test_a_name_is_used_once_over_all_files() -> None:
    with pytest.raises(ConfigError) as caught:
        load_texts({"a.toml": GOOD, "b.toml": "\n" + GOOD})
    assert caught.value.message == "b.toml:2: a rule good is in a.toml:1 already."


def test_one_broken_file_is_an_error_of_the_whole_folder(tmp_path: Path) -> None:
    write(tmp_path / "10-good.toml", GOOD)
    write(tmp_path / "20-bad.toml", "[[rule]\n")
    with pytest.raises(ConfigError, match=r"20-bad\.toml is not TOML: .*line 1"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        (GOOD + 'tools = "x"\n', 4, "tools", "Did you mean 'tool'?"),
        (GOOD + "\n\nnonsense = 1\n", 6, "nonsense", "The keys are: name, decision"),
        (GOOD + '[[rule]]\ndecision = "deny"\n', 4, "name", "missing"),
        (GOOD + '[[rule]]\nname = "x"\n', 4, "decision", "missing"),
        (GOOD.replace("deny", "refuse"), 3, "decision", "'allow', 'ask' or 'deny'"),
        (GOOD.replace('"good"', "7"), 2, "name", "string"),
        (GOOD.replace("good", "Not A Name"), 2, "name", "pattern"),
        (GOOD.replace("good", "default-change"), 2, "name", "built-in"),
        (GOOD + 'effect = "write"\n', 4, "effect", "'observe', 'reach' or 'change'"),
        (GOOD + 'tool = ""\n', 4, "tool", "can match nothing"),
        (GOOD + 'tool = "systemd.restart"\n', 4, "tool", "can match nothing"),
        (GOOD + "agent = []\n", 4, "agent", "at least 1"),
        (GOOD + "agent = 5\n", 4, "agent", "string"),
        (GOOD + 'caller = "no-such-user"\n', 4, "caller", "no user or group 'no-such-user'"),
        (GOOD + 'caller = "group:no-such"\n', 4, "caller", "no user or group 'group:no-such'"),
        (GOOD + "caller = true\n", 4, "caller", "valid"),
        (GOOD + "even_if_tainted = true\n", 4, "even_if_tainted", "belongs to rules that allow"),
        (GOOD + 'even_if_tainted = "yes"\n', 4, "even_if_tainted", "boolean"),
        (GOOD + 'args = "x"\n', 4, "args", "dictionary"),
        (GOOD + "args = { a = 2026-01-01 }\n", 4, "args", "a is not a pattern"),
        (GOOD + "args = { a = {} }\n", 4, "args", "a has no pattern"),
        (GOOD + 'args = { a = "re:(" }\n', 4, "args", "regular expression"),
        (GOOD + 'match = "x"\n', 4, "match", "list"),
        (GOOD + 'match = [{ tol = "x" }]\n', 4, "match.0.tol", "Did you mean 'tool'?"),
        (GOOD + 'tool = "x"\nnot_match = [{}]\n', 5, "not_match", "example 1"),
        ("rules = 1\n" + GOOD, 0, "rules", "[[rule]]"),
        ('[rule]\nname = "x"\n', 0, "rule", "[[rule]]"),
        ("rule = 5\n", 0, "rule", "[[rule]]"),
        ("rule = [5]\n", 0, "rule", "[[rule]]"),
    ],
)
def test_what_is_wrong_names_file_line_rule_and_key(text: str, line: int, key: str, says: str) -> None:
    err = refused(text)
    assert err.message.startswith(f"policy.d/a.toml:{line}: the rule" if line else "policy.d/a.toml: ")
    assert err.field == key
    assert says in f"{err.message} {err.suggestion}"
    assert err.message.endswith(".")


def test_the_line_is_right_with_headers_inside_of_texts() -> None:
    text = '[[rule]]\nname = "a"\ndecision = "deny"\nreason = """\n[[rule]]\n"""\n\n [[ "rule" ]] # b\n'
    found = load_texts({"a.toml": text + 'name = "b"\ndecision = "deny"\n'})
    assert [(rule.name, rule.line) for rule in found.rules] == [("a", 1), ("b", 8)]
    inline = load_texts({"a.toml": 'rule = [{ name = "a", decision = "deny" }]'})
    assert [rule.line for rule in inline.rules] == [1]


def test_a_table_of_its_own_for_the_arguments_has_its_line() -> None:
    assert refused(
        GOOD + '[rule.args]\nunit = "x"\n[[rule.match]]\nargs = { unit = "y" }\n'
    ).message.startswith("policy.d/a.toml:6: the rule 'good': match, example 1")


def test_values_of_a_file_are_not_repeated_in_errors() -> None:
    assert "hunter2" not in refused(GOOD + 'reason = ["hunter2"]\n').message


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, GOOD + "args." + "a." * 3000 + 'b = "x"\n'])
def test_a_file_that_is_nested_too_deeply_is_an_error(text: str) -> None:
    assert refused(text).exit_status == 78


def test_too_many_rules_are_an_error() -> None:
    text = "".join(f'[[rule]]\nname = "r{n}"\ndecision = "deny"\n' for n in range(MAX_RULES + 1))
    assert "at most 2000" in refused(text).message


def test_examples_that_take_too_long_are_an_error() -> None:
    slow = ", ".join(['{ args = { text = "' + "a" * 4000 + '" } }'] * 100)
    err = refused(GOOD + f'args = {{ text = "re:(a+)+b" }}\nmatch = [{slow}]\n')
    assert "take too long" in err.message


def test_a_folder_or_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "policy.d", "a file")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_folder(tmp_path / "policy.d")
    (tmp_path / "d" / "x.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"x\.toml cannot be read"):
        load_folder(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "gone.toml").symlink_to("/nonexistent")
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        load_folder(tmp_path / "e")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"x\.toml cannot be read"):
        load_folder(tmp_path / "f")


@pytest.mark.skipif(os.geteuid() != 0, reason="writes below /etc")
def test_below_etc_a_file_that_others_can_write_is_refused() -> None:
    folder = Path("/etc") / f"lightagentd-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        file = write(folder / "a.toml", GOOD)
        for mode, uid in ((0o644, 0), (0o666, 0), (0o664, 0), (0o644, 65534)):
            os.chown(file, uid, 0)
            file.chmod(mode)
            if (mode, uid) == (0o644, 0):
                assert len(load_folder(folder).rules) == 1
                continue
            with pytest.raises(ConfigError, match="can be written by others than root"):
                load_folder(folder)
        os.chown(file, 0, 0)
        file.chmod(0o644)
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match="can be written by others than root"):
            load_folder(folder)
    finally:
        file.unlink()
        folder.rmdir()


def test_the_rules_that_match_are_given_in_their_order() -> None:
    found = rules(
        'decision = "allow"\ntool = "systemd"', 'decision = "deny"\ntool = "file"', 'decision = "ask"'
    )
    assert [rule.name for rule in found.matching(a_call())] == ["rule-1", "rule-3"]


def test_many_slow_conditions_of_one_rule_do_not_hold_up_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take a tenth of a second, and all together what examples may take."""
    conditions = ", ".join(f'a{n} = "re:(a+)+b"' for n in range(400))
    example = ", ".join(f'a{n} = "{"a" * 40}"' for n in range(400))
    text = (
        f'[[rule]]\nname = "slow"\ndecision = "deny"\nargs = {{ {conditions} }}\n'
        f"match = [{{ args = {{ {example} }} }}]\n"
    )
    asked: list[str] = []
    holds = ArgumentCondition.holds

    def counted(self: ArgumentCondition, args: dict[str, Any]) -> bool:
        asked.append(self.name)
        return holds(self, args)

    monkeypatch.setattr(ArgumentCondition, "holds", counted)
    with pytest.raises(ConfigError, match="take too long"):
        load_texts({"slow.toml": text})
    assert len(asked) < 400
