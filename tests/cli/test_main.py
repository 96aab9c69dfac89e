"""The command as such: statuses, messages, help, and what it imports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightagentd import __version__, errors
from lightagentd.cli.main import COMMANDS
from tests.cli.conftest import Lactl, environment, finish, start
from tests.scripted_daemon import ScriptedDaemon, agent, approval, event, skill, status, tool


@pytest.mark.parametrize("row", errors.table(), ids=lambda row: row.code)
def test_each_error_of_the_daemon_has_its_status(
    scripted: ScriptedDaemon, lactl: Lactl, row: errors.ErrorRow
) -> None:
    scripted.fail("Manager.GetStatus", row.varlink, message="It failed.", suggestion="Do this.")
    done = lactl("status")
    assert (done.status, done.out, done.err) == (row.exit_status, "", "lactl: It failed.\nDo this.\n")


def test_an_unknown_error_is_status_one(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.fail("Manager.GetStatus", "org.example.Strange")
    assert lactl("status").status == 1


@pytest.mark.parametrize(("answer", "status"), [(b"{nonsense\0", 65), (b'{"para', 69), (b"", 69)])
def test_a_broken_answer_is_an_error(
    scripted: ScriptedDaemon, lactl: Lactl, answer: bytes, status: int
) -> None:
    scripted.raw("Manager.GetStatus", answer)
    done = lactl("status")
    assert done.status == status
    assert done.err.startswith("lactl: The daemon")


def test_errors_with_json_are_an_object_on_standard_error(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.fail("Agents.Get", "org.lightagent1.AgentNotFound", message="m", suggestion="s", field="name")
    done = lactl("agents", "show", "x", "--json")
    assert done.status == 66
    assert done.out == ""
    assert json.loads(done.err) == {
        "error": {"code": "agent_not_found", "message": "m", "field": "name", "suggestion": "s"}
    }


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["prompt", "--bogus"], ["wait", "ops", "--timeout", "soon"], ["plan"]]
)
def test_a_wrong_command_line_is_an_object_too_wherever_json_stands(
    lactl: Lactl, arguments: list[str]
) -> None:
    for line in ([*arguments, "--json"], ["--json", *arguments]):
        done = lactl(*line)
        assert done.status == 2
        assert json.loads(done.err)["error"]["code"] == "invalid_argument"


def test_without_a_daemon_it_says_what_to_do(lactl: Lactl, tmp_path: Path) -> None:
    done = lactl("--socket", str(tmp_path / "none.sock"), "status")
    assert done.status == 69
    assert done.err == (
        f"lactl: Nothing answers on {tmp_path}/none.sock: the daemon is not running.\n"
        "Start it with: lightagentd\n"
    )


def test_a_socket_that_is_none_is_not_called_a_stopped_daemon(lactl: Lactl, tmp_path: Path) -> None:
    for name in ("/etc/passwd", str(tmp_path)):
        done = lactl("--socket", name, "status")
        assert (done.status, done.err.splitlines()[0]) == (65, f"lactl: {name} is not a socket.")


def test_the_socket_may_be_named_after_the_command(
    scripted: ScriptedDaemon, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.answer("Agents.Get", {"agent": agent()})
    monkeypatch.setenv("LIGHTAGENT_SOCKET", "/nowhere/control.sock")
    assert lactl("agents", "show", "ops").status == 69
    assert lactl("agents", "show", "ops", "--socket", str(scripted.path)).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["agents", "nonsense"],
        ["agents", "show"],
        ["status", "--nonsense"],
        ["history", "--limit", "0"],
        ["history", "--since", "soon"],
        ["tools", "call", "ops", "systemd"],
        ["tools", "call", "ops", "systemd.status", "--args", "[]"],
        ["tools", "call", "ops", "systemd.status", "--args", "{"],
        ["prompt", "ops", "x", "--new", "--session", "s"],
        ["help", "nonsense"],
    ],
)
def test_a_wrong_command_line_is_status_two(lactl: Lactl, arguments: list[str]) -> None:
    done = lactl(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("lactl: ")
    assert "Try: lactl" in done.err


@pytest.mark.parametrize(
    "line",
    [
        "prompt ops hello -a /none",
        "plan set sess_0123456789abcdef /none",
        "sessions import --agent ops /none",
        "history import /none",
        "history restore /none",
        "memory profile --set /none",
        "models refresh /none",
        "policy check /none",
        "policy replay /none",
        "config check --folder /none",
        "config show --folder /etc/passwd",
        "audit verify --public-key /none",
        "audit verify --expect /none",
    ],
)
def test_a_file_that_is_not_there_has_one_status(lactl: Lactl, line: str) -> None:
    done = lactl(*line.split())
    assert (done.status, done.out) == (66, "")
    assert done.err.startswith("lactl: There is no f")


@pytest.mark.parametrize(
    ("arguments", "message", "meant"),
    [
        (["promt"], "There is no command 'promt'.", "lactl prompt"),
        (["agents", "lst"], "There is no command 'agents lst'.", "lactl agents list"),
        (["help", "exitcodes"], "There is no command 'exitcodes'.", "lactl help exit-codes"),
        (["help", "tools", "cal"], "There is no command 'tools cal'.", "lactl help tools call"),
        (["zzz"], "There is no command 'zzz'.", ""),
    ],
)
def test_a_mistyped_command_is_told_the_near_one(
    lactl: Lactl, arguments: list[str], message: str, meant: str
) -> None:
    said = lactl(*arguments).err.splitlines()
    assert said[:-1] == [f"lactl: {message}", *([f"Did you mean: {meant}"] if meant else [])]
    assert said[-1].startswith("Try: lactl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tools select x --limit abc", "--limit takes a whole number from 1 to 1000, not 'abc'."),
        ("history --limit 0", "--limit takes a whole number, 1 or more, not 0."),
        ("wait ops --timeout soon", "--timeout takes a number of seconds from 0 to 86400, not 'soon'."),
        ("wait ops --timeout nan", "--timeout takes a number of seconds from 0 to 86400, not 'nan'."),
        ("history --effect all", "--effect takes one of observe, reach, change, not 'all'."),
        ("history --limt 3", "There is no option --limt. Did you mean --limit?"),
        ("history --limit", "--limit needs a value."),
        ("status --json=yes", "--json takes no value."),
        ("agents show ops web", "That is more than it takes: web."),
        ("agents show", "AGENT is missing."),
        ("sessions import x", "--agent is missing."),
        ("history --caller nosuch", "--caller: there is no user 'nosuch'."),
        ("tools call ops bash", "TOOL.ACTION: 'bash' is not a tool and an action, such as systemd.status."),
    ],
)
def test_a_wrong_value_is_told_what_was_expected(lactl: Lactl, line: str, message: str) -> None:
    assert lactl(*line.split()).err.splitlines()[0] == f"lactl: {message}"


@pytest.mark.parametrize(
    ("value", "why"),
    [("{", "wrong at character 2"), ("[]", "no object"), ("[" * 100_000, "nested too deep")],
)
def test_arguments_that_are_no_object_are_told_what_one_is(lactl: Lactl, value: str, why: str) -> None:
    said = lactl("tools", "call", "ops", "bash.exec", "--args", value).err
    assert """--args takes a JSON object, such as '{"command": "df -h"}'""" in said
    assert why in said


def test_without_arguments_it_shows_the_help(lactl: Lactl) -> None:
    done = lactl()
    assert done.status == 2
    assert "lactl prompt ops" in done.err


def test_the_help_begins_with_what_a_new_user_can_do(lactl: Lactl) -> None:
    out = lactl("--help").out
    assert out.index('lactl prompt ops "check disk"') < out.index("Options:")
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert lactl("help").out == f"{out}\nThe manual: man lactl\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_common_options(lactl: Lactl, name: str) -> None:
    out = lactl(name, "--help").out
    assert out.startswith(f"Usage: lactl {name} ")
    assert "--json" in out
    assert "--socket" in out
    assert lactl("help", name).out == f"{out}\nThe manual: man lactl-{name}\n"


def test_the_help_of_a_noun_cuts_no_sentence(lactl: Lactl) -> None:
    for noun in ("plan", "history", "models"):
        said = lactl(noun, "--help").out.partition("Commands:")[2]
        assert "..." not in said
        assert "\n\n" not in said.strip()


def test_help_finds_commands_within_a_noun(lactl: Lactl) -> None:
    assert lactl("help", "tools", "call").out.startswith("Usage: lactl tools call ")


def test_help_lists_every_exit_status(lactl: Lactl) -> None:
    listed = {tuple(line.split("\t")[:2]) for line in lactl("help", "exit-codes").out.splitlines()}
    assert listed >= {(str(row.exit_status), row.code) for row in errors.table()} | {("2", "usage")}


def test_version(lactl: Lactl) -> None:
    assert lactl("--version").out == f"lactl {__version__}\n"


def test_status_imports_nothing_heavy(scripted: ScriptedDaemon) -> None:
    scripted.answer("Manager.GetStatus", {"status": status()})
    program = (
        "import sys; from lightagentd.cli.main import run; assert run(['status']) == 0;"
        "print(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )
    heavy = {
        "pydantic",
        "httpx",
        "rich",
        "asyncio",
        "yaml",
        "lmdb",
        "acp",
        "asyncvarlink",
        "prompt_toolkit",
        "unicodedata",
    }
    assert not heavy & {*done.stderr.split()}


def test_it_ends_quietly_when_its_reader_leaves(scripted: ScriptedDaemon) -> None:
    page = {"events": [event(seq) for seq in range(5000)], "next_seq": 0}
    scripted.answer("History.Page", {"page": page})
    ours, theirs = os.pipe()
    with start(["history"], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        assert os.read(ours, 10)
        os.close(ours)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-13, b"")


def test_a_daemon_that_hangs_up_while_lactl_writes_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        pipe = subprocess.PIPE
        with start(["prompt", "ops", "--socket", str(tmp_path / "s")], stdin=pipe, stderr=pipe) as process:
            threading.Thread(target=lambda: listener.accept()[0].close()).start()
            _, err = process.communicate(b"x" * (1 << 20), timeout=60)
    assert process.returncode == 69
    assert err.startswith(b"lactl: The daemon closed the connection")


def test_output_that_cannot_be_written_is_an_error(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.List", {"agents": [agent()]})
    with (
        Path("/dev/full").open("w") as full,
        start(["agents", "list"], stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 74
    assert err == b"lactl: The output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("words", ["plan set ops -", "models refresh -"])
def test_a_closed_standard_input_has_nothing_in_it(scripted: ScriptedDaemon, words: str) -> None:
    scripted.answer("Sessions.List", {"sessions": []})
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m lightagentd.cli.main {words} <&-"],
        capture_output=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode > 1
    assert done.stderr.startswith(b"lactl: ")


def test_a_closed_standard_output_loses_no_answer_without_a_word(scripted: ScriptedDaemon) -> None:
    scripted.answer("Manager.GetStatus", {"status": status()})
    scripted.answer("Memory.Export", {"text": ""})
    each = f"{sys.executable} -m lightagentd.cli.main $c <&- >&- 2>&-; echo $?"
    command = f"for c in status 'memory export'; do {each}; done"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        check=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == b"74\n0\n"


def test_a_locale_without_unicode_does_no_harm(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.Get", {"agent": agent(description="grüße 日本")})
    done = finish(["agents", "show", "ops"], env=environment(PYTHONIOENCODING="ascii"))
    assert done.status == 0
    assert "description\tgr??e ??" in done.out


def test_completion_knows_commands_and_agents(scripted: ScriptedDaemon) -> None:
    scripted.answer("Agents.List", {"agents": [agent(), agent("other")]})
    words = {"_LACTL_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "lactl st"}
    assert finish([], env=environment(**words)).out == "plain,status\n"
    words |= {"COMP_CWORD": "2", "COMP_WORDS": "lactl prompt op"}
    assert finish([], env=environment(**words)).out == "plain,ops\n"


COMPLETED = {
    "tools show s": "systemd",
    "tools call ops sys": "systemd.status",
    "policy explain ops systemd.": "systemd.status",
    "history --tool s": "systemd",
    "history --type invoc": "invocation",
    "history --topic machine": "machine.state",
    "changes --since y": "yesterday",
    "help ski": "skills",
    "help skills sh": "show",
    "skills show d": "disk",
    "approve apr": "apr_0123456789abcdef",
    "deny apr": "apr_0123456789abcdef",
    "undo call": "call_1",
    "trace show tr": "trace_1",
    "history --trace tr": "trace_1",
    "models show work/": "work/mine",
    "agents create x --model work/": "work/mine",
}


@pytest.mark.parametrize("line", COMPLETED)
def test_completion_knows_what_is_there(scripted: ScriptedDaemon, line: str) -> None:
    scripted.answer("Tools.List", {"tools": [tool()]})
    scripted.answer("Skills.List", {"skills": [skill()]})
    scripted.answer("Approvals.List", {"approvals": [approval()]})
    scripted.answer("Undo.List", {"changes": [{"call_id": "call_1"}]})
    scripted.answer("History.Query", {"events": [event(1, "agent.prompt")]})
    scripted.answer("Models.List", {"models": [{"model": "work/mine"}]})
    words = {"COMP_WORDS": f"lactl {line}", "COMP_CWORD": str(len(line.split()))}
    done = finish([], env=environment(_LACTL_COMPLETE="bash_complete", **words))
    assert done.out == f"plain,{COMPLETED[line]}\n"
