"""`lactl policy`: check without a daemon, and the rest against a real one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests.cli.conftest import Lactl, finish, on_terminal
from tests.conftest import DaemonProcess, write

RULES = """[[rule]]
name = "no-shadow"
decision = "deny"
reason = "Secrets."
args = { path = "/etc/shadow*" }
match = [{ args = { path = "/etc/shadow-" } }]
not_match = [{ args = { path = "/etc/hosts" } }]

[[rule]]
name = "reads"
decision = "allow"
tool = "file"
effect = "observe"
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon with rules for the tests of this module."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        write(paths.config / "policy.d" / "10-a.toml", RULES)
        process = DaemonProcess(paths)
        try:
            process.start()
            yield process
        finally:
            process.close()


def run(daemon: DaemonProcess, *arguments: str) -> str:
    done = daemon.lactl("policy", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


# check


def test_check_says_what_it_read(lactl: Lactl, tmp_path: Path) -> None:
    file = write(tmp_path / "policy.d" / "10-a.toml", RULES)
    done = lactl("policy", "check", str(tmp_path / "policy.d"))
    assert (done.status, done.err) == (0, "")
    assert done.out == f"files\t{file}\nrules\t2\nexamples\t2\nresult\tok\n"
    done = lactl("policy", "check", str(file), "--json")
    assert json.loads(done.out) == {"ok": True, "files": [str(file)], "rules": 2, "examples": 2}


def test_check_looks_where_the_daemon_does(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path))
    assert "rules\t0\n" in lactl("policy", "check").out
    write(tmp_path / "policy.d" / "10-a.toml", RULES)
    assert "rules\t2\n" in lactl("policy", "check").out
    write(tmp_path / "policy.d" / "20-b.toml", RULES)
    done = lactl("policy", "check")
    assert (done.status, done.out) == (78, "")
    assert "20-b.toml:1: a rule no-shadow is in" in done.err


def test_check_names_an_example_that_does_not_hold(lactl: Lactl, tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", RULES.replace("/etc/hosts", "/etc/shadow"))
    done = lactl("policy", "check", str(file))
    assert done.status == 78
    assert f"{file}:7: the rule 'no-shadow': not_match, example 1: the rule matches this call." in done.err
    done = lactl("policy", "check", str(file), "--json")
    assert json.loads(done.err)["error"]["code"] == "config_invalid"


def test_check_of_a_file_that_is_not_there_is_an_error(lactl: Lactl, tmp_path: Path) -> None:
    done = lactl("policy", "check", str(tmp_path / "none.toml"))
    assert done.status == 66
    assert "There is no file" in done.err


# list and explain


def test_list_has_each_rule_on_a_line(daemon: DaemonProcess) -> None:
    file = daemon.paths.config / "policy.d" / "10-a.toml"
    assert run(daemon, "list").splitlines() == [
        f'no-shadow\tdeny\targs={{"path": "/etc/shadow*"}}\t{file}:1\tSecrets.',
        f"reads\tallow\ttool=file effect=observe\t{file}:9\t-",
    ]
    assert [rule["name"] for rule in json.loads(run(daemon, "list", "--json"))] == ["no-shadow", "reads"]


def test_check_says_whether_the_daemon_has_read_the_files(daemon: DaemonProcess) -> None:
    file = daemon.paths.config / "policy.d" / "10-a.toml"
    text = file.read_text()
    env = daemon.env | {"LIGHTAGENT_CONFIG_DIR": str(daemon.paths.config)}
    assert "\nin_force\tyes\n" in finish(["policy", "check"], env=env).out
    file.write_text(text + "# changed\n")
    try:
        done = finish(["policy", "check"], env=env)
        assert (done.status, "\nin_force\tno\n" in done.out) == (0, True)
        assert "lactl reload" in done.err
        assert "are not in force" in run(daemon, "explain", "ops", "net.routes")
    finally:
        file.write_text(text)


def explained(daemon: DaemonProcess, *arguments: str) -> dict[str, Any]:
    found = json.loads(run(daemon, "explain", *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_explain_names_the_rule_with_file_and_line(daemon: DaemonProcess) -> None:
    out = run(daemon, "explain", "ops", "file.read", "path=/etc//shadow")
    origin = f"{daemon.paths.config}/policy.d/10-a.toml"
    assert out.startswith(
        f"decision\tdeny\nrule\tno-shadow\norigin\t{origin}:1\neffect\tobserve\nreason\tSecrets.\n"
    )
    assert f"also_matches\treads (allow, {origin}:9)\n" in out
    found = explained(daemon, "ops", "file.read", "path=/etc/hosts")
    assert (found["decision"], found["rule"]) == ("allow", "reads")
    assert "origin\tbuilt in\n" in run(daemon, "explain", "ops", "net.routes")


def test_explain_takes_taint_trigger_caller_and_json_arguments(daemon: DaemonProcess) -> None:
    get = ["ops", "web.get", "--args", '{"url": "https://example.org/"}']
    assert explained(daemon, *get)["decision"] == "allow"
    assert explained(daemon, *get, "--tainted")["rule"] == "tainted-reach"
    assert explained(daemon, *get, "--plan", "observe")["rule"] == "plan-mode"
    assert explained(daemon, "ops", "proc.list", "--plan", "observe")["decision"] == "allow"
    assert explained(daemon, "ops", "proc.list", "--plan", "none")["decision"] == "deny"
    found = explained(daemon, *get, "--tainted", "--trigger", "timer", "--caller", "root")
    assert found["decision"] == "deny"
    assert "timer began the turn" in found["notes"][-1]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("ops", "file"), 2),
        (("ops", "file.read", "path"), 2),
        (("ops", "file.read", "path=/x", "--caller", "no-such-user"), 2),
        (("ops", "file.read"), 65),
        (("ops", "file.nothing"), 66),
        (("nobody", "file.read", "path=/x"), 66),
    ],
)
def test_explain_refuses_what_is_no_call(
    daemon: DaemonProcess, arguments: tuple[str, ...], status: int
) -> None:
    done = daemon.lactl("policy", "explain", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("lactl: ")


# replay


def test_a_call_is_refused_by_the_rule_and_replay_shows_what_would_change(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    refused = daemon.lactl("tools", "call", "ops", "file.read", "path=/etc/shadow")
    assert refused.returncode == 77
    assert "no-shadow (10-a.toml) denies file.read: Secrets" in refused.stderr
    assert daemon.lactl("tools", "call", "ops", "file.read", "path=/etc/hostname").returncode == 0
    new = write(
        tmp_path / "new.toml",
        '[[rule]]\nname = "no-name"\ndecision = "ask"\nargs = { path = "/etc/hostname" }\n',
    )
    done = daemon.lactl("policy", "replay", str(new))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(row[2], row[4], row[5]) for row in rows] == [
        ("ops", "deny -> allow", "no-shadow (10-a.toml) -> default-observe"),
        ("ops", "allow -> ask", "reads (10-a.toml) -> no-name (new.toml)"),
    ]
    assert rows[0][3].startswith('file.read {"path": "/etc/shadow"')
    assert done.stderr == "lactl: 2 of 2 calls would be decided otherwise.\n"
    lines = [json.loads(line) for line in run(daemon, "replay", str(new), "--json").splitlines()]
    assert [line["change"]["after"] for line in lines[:-1]] == ["allow", "ask"]
    assert lines[-1] == {"judged": 2, "changed": 2, "skipped": 0, "change": None}
    assert run(daemon, "replay", str(new), "--agent", "other") == ""
    assert run(daemon, "replay", str(daemon.paths.config / "policy.d"), "--since", "now") == ""
    shown = on_terminal(
        ["policy", "replay", str(new)], width=200, env=daemon.env | {"NO_COLOR": "1", "TERM": "xterm"}
    )
    assert "deny -> allow  file.read" in shown.out


def test_replay_of_a_broken_file_is_an_error(daemon: DaemonProcess, tmp_path: Path) -> None:
    done = daemon.lactl("policy", "replay", str(write(tmp_path / "new.toml", "[[rule]]\n")))
    assert (done.returncode, done.stdout) == (78, "")
    assert "new.toml:1: the rule without a name" in done.stderr
    assert daemon.lactl("policy", "replay").returncode == 2


def test_a_daemon_with_broken_rules_says_so_and_ends(daemon_process: DaemonProcess) -> None:
    write(daemon_process.paths.config / "policy.d" / "10-a.toml", RULES.replace("deny", "denied"))
    with pytest.raises(AssertionError, match=r"10-a\.toml:3: the rule 'no-shadow': decision: Input"):
        daemon_process.start()
    assert daemon_process.stop() == 78


# guards

GUARDS = """use = "privacy"
[[guard]]
name = "falcon"
on = ["prompt", "answer"]
pattern = "falcon"
action = "block"
examples.match = ["Falcon"]
"""


def test_guards_are_checked_and_replayed_and_texts_are_explained(
    daemon: DaemonProcess, lactl: Lactl, tmp_path: Path
) -> None:
    file = write(tmp_path / "guards.toml", GUARDS)
    assert "rules\t0\nexamples\t9\nguards\t2\n" in lactl("policy", "check", str(file)).out
    assert run(daemon, "guards") == ""
    finish(["prompt", "ops", "tell me of the falcon"], env=daemon.env)
    done = finish(["policy", "replay", str(file)], env=daemon.env)
    assert "\tprompt\tblock\tfalcon (block, 1 found, " in done.out
    assert "Guards would act on 1 of " in done.err
    own = write(daemon.paths.config / "policy.d" / "20-guards.toml", GUARDS)
    try:
        assert finish(["reload"], env=daemon.env).status == 0
        assert run(daemon, "guards").splitlines()[0].startswith("falcon\tblock\tprompt,answer\tfalcon\t")
        told = run(daemon, "explain", "ops", "--text", "write to jane@example.org")
        assert "action\tredact\ntext\twrite to [mail address]\nguard\tprivacy-text (redact, 1 found" in told
        blocked = json.loads(run(daemon, "explain", "ops", "--text", "FALCON", "--on", "answer", "--json"))
        assert (blocked["action"], blocked["text"]) == ("block", "")
        assert finish(["prompt", "ops", "the falcon"], env=daemon.env).status == 77
        assert finish(["policy", "explain", "ops"], env=daemon.env).status == 2
    finally:
        own.unlink()
        finish(["reload"], env=daemon.env)
