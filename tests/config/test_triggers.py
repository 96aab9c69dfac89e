"""The files of triggers: what they may say, and what a broken one gets."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from lightagentd.config.template import fill, names_of
from lightagentd.config.triggers import KINDS, TriggerFile, TriggerFiles, check_trigger, trigger_files
from lightagentd.errors import ConfigError, NotFound
from lightagentd.tool import Effect
from lightagentd.unattended.sources import SOURCES
from tests.conftest import REPOSITORY, write

OWNER = pwd.getpwuid(os.geteuid()).pw_name
GOOD = f'on = "journal"\npattern = "x"\nagent = "ops"\nowner = "{OWNER}"\nprompt = "look at {{unit}}"\n'


def load(folder: Path, text: str, name: str = "disk") -> TriggerFile:
    return check_trigger(write(folder / "triggers" / f"{name}.toml", text))


def test_a_file_says_little_and_the_rest_is_careful(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    how = found.handling()
    assert (how.effects, how.rate_limit, how.coalesce_s, how.catch_up) == ((Effect.OBSERVE,), 12, 2, False)
    assert (found.session, found.answer) == ("aside", "journal")
    timer = GOOD.replace('"journal"\npattern = "x"', '"timer"\ncalendar = "daily"').replace("unit", "time")
    assert load(tmp_path, timer).handling().coalesce_s == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("{unit}", "{unit"), "the template is broken: expected '}'"),
        (GOOD.replace("{unit}", "{}"), "the template is broken: {} is no plain name"),
        (GOOD.replace("{unit}", "{a.b}"), "{a.b} is no plain name"),
        (GOOD.replace("{unit}", "{a!r}"), "{a} is no plain name"),
        (GOOD.replace("{unit}", "{a:>9999999999}"), "{a} is no plain name"),
        (GOOD.replace("journal", "jurnal"), ":1: on"),
        (GOOD.replace('pattern = "x"\n', ""), "needs match, pattern or both"),
        (GOOD.replace('"x"', '"("'), "pattern is no regular expression"),
        (GOOD + 'path = "/srv"\n', "path does not go with on = "),
        (GOOD + 'patern = "y"\n', "the key 'patern' is not known"),
        (GOOD.replace("journal", "timer"), "pattern does not go with"),
        (GOOD.replace('"journal"\npattern = "x"', '"timer"'), "needs calendar"),
        (
            GOOD.replace('"journal"\npattern = "x"', '"timer"\ncalendar = "daily"'),
            "{unit} is not known; there",
        ),
        (GOOD.replace('"journal"\npattern = "x"', '"inotify"\npath = "srv"'), "path has to be absolute"),
        (GOOD.replace('"journal"\npattern = "x"', '"inotify"\npath = "/s"\nchanges = ["eat"]'), "changes"),
        (GOOD.replace('agent = "ops"\n', ""), "the key 'agent' is missing"),
        (GOOD.replace("agent", "flow"), "prompt does not go with flow"),
        (GOOD + 'inputs = { a = "b" }\n', "inputs go with flow"),
        (GOOD.replace(f'"{OWNER}"', '"no-such-user"'), "there is no user 'no-such-user'"),
        (GOOD + "effects = []\n", ":6: effects"),
        (GOOD + 'effects = ["all"]\n', ":6: effects"),
        (GOOD + "rate_limit = 0\n", ":6: rate_limit"),
        (GOOD + "coalesce_s = -1\n", ":6: coalesce_s"),
        (GOOD + 'session = "latest"\n', ":6: session"),
        (GOOD + 'answer = "command"\n', "go together"),
        (GOOD + 'answer = "command"\ncommand = ["true"]\n', "absolute path of a program"),
        (GOOD + 'command = ["/bin/true"]\n', "go together"),
        ("on = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert said in caught.value.message
    assert caught.value.code == "config_invalid"


@pytest.mark.parametrize("name", ["Disk", "a b", "-x", "person", "unattended", "triage", "x" * 65])
def test_a_name_that_rules_could_not_mean_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can be the name of no trigger|means something else"):
        load(tmp_path, GOOD, name)


def test_all_files_are_read_and_a_broken_one_is_kept_apart(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    write(tmp_path / "triggers/broken.toml", GOOD.replace("{unit}", "{unit"))
    write(tmp_path / "prompts/daily.toml", f'agent = "ops"\nprompt = "{{x"\nowner = "{OWNER}"\n')
    files = TriggerFiles(tmp_path)
    files.read()
    assert sorted(files.found) == ["disk", "prompt@daily", "prompt@health", "triage"]
    assert files.found["prompt@daily"].question({"x": 1}) == "{x"
    assert files.found["triage"].question({"unit": "a.service"}) == "why did a.service fail"
    with pytest.raises(ConfigError, match="the template is broken"):
        files.get("broken")
    with pytest.raises(NotFound):
        files.get("nosuch")
    assert files.granted("disk") == (Effect.OBSERVE,)
    assert files.granted("prompt@daily") == files.granted("person") == ()


def test_the_prompt_of_a_unit_is_read_when_it_asks(tmp_path: Path) -> None:
    files = TriggerFiles(tmp_path)
    files.read()
    path = write(tmp_path / "prompts/new.toml", f'agent = "ops"\nprompt = "x"\nowner = "{OWNER}"\n')
    files.read_prompt("prompt@new")
    assert files.get("prompt@new").prompt == "x"
    path.write_text("agent =")
    files.read_prompt("prompt@new")
    with pytest.raises(ConfigError):
        files.get("prompt@new")
    path.unlink()
    files.read_prompt("prompt@new")
    with pytest.raises(NotFound):
        files.get("prompt@new")
    files.read_prompt("prompt@../x")


def test_a_template_takes_one_line_of_each_value() -> None:
    data = {"a": "one\n  two\x1b[31m", "b": ["x"], "c": "y" * 301, "d": None}
    assert names_of("{a} {{no}} {b} {a}") == ["a", "b"]
    assert fill("{a}|{{}}|{b}|{d}|{e}", data) == 'one two [31m|{}|["x"]|(unknown)|(unknown)'
    assert fill("{c}", data) == "y" * 300 + "…"


def test_every_kind_has_who_follows_it_and_a_page() -> None:
    assert set(SOURCES) == {name for name, kind in KINDS.items() if kind.followed_by == "service"}
    page = (REPOSITORY / "packaging/man/lightagent-trigger.5").read_text().replace("\\-", "-")
    page = page.replace("\\(dq", '"')
    for name, kind in KINDS.items():
        assert f'on = "{name}"' in page
        assert all(one in page for one in kind.names or ())
    assert [key for key in TriggerFile.model_fields if f"\\fB{key}\\fR" not in page and key != "on"] == []


def test_the_examples_are_found(tmp_path: Path) -> None:
    assert trigger_files(tmp_path) == []
    assert len(trigger_files(REPOSITORY / "packaging/examples")) == 4


def test_a_position_counts_for_what_was_waited_for_alone(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    stored = found.marked("s=1;i=2")
    assert found.unmarked(stored) == "s=1;i=2"
    assert load(tmp_path, GOOD + "rate_limit = 3\n").unmarked(stored) == "s=1;i=2"
    assert load(tmp_path, GOOD.replace('"x"', '"y"')).unmarked(stored) == ""
    assert (found.unmarked(""), found.unmarked("17"), found.marked("")) == ("", "", "")


def test_a_name_that_is_no_prompt_leaves_nothing_behind(tmp_path: Path) -> None:
    files = TriggerFiles(tmp_path)
    files.read()
    before = dict(files.found)
    for name in ("prompt@a b", "prompt@../x", "prompt@", "prompt@nosuch", "disk"):
        files.read_prompt(name)
        assert (files.found, files.broken) == (before, {})
