"""lactl starts a text agent when polkit would ask: a scripted daemon, and an agent that stands on PATH."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.blocking import Client
from tests.cli.conftest import Finished, Lactl, environment, finish, start
from tests.cli.test_approvals import at_terminal, waits
from tests.scripted_daemon import Connection, ScriptedDaemon

ALLOW = "allowInteractiveAuthentication"
REQUIRED = "org.lightagent1.AuthorizationRequired"
AGENT = f"""#!{sys.executable}
import os, signal, sys
with open(os.environ["AGENT_LOG"], "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if os.environ.get("AGENT_FAILS"):
    sys.exit(127)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.close(int(next(one for one in sys.argv if one.startswith("--notify-fd=")).partition("=")[2]))
signal.pause()
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program on PATH that registers like pkttyagent; gives the file with how it was started."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "pkttyagent"
    program.write_text(AGENT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    log = tmp_path / "agent.log"
    log.touch()
    return log


def terminal(arguments: list[str], **env: str) -> Finished:
    """Run lactl with all its streams on a terminal of its own; `err` is empty, since all is in `out`."""
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with start(arguments, env=environment(**env), start_new_session=True, **streams) as process:
        os.close(theirs)
        out = bytearray()
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while chunk := os.read(ours, 65536):
                out += chunk
        os.close(ours)
        process.wait(60)
    return Finished(status=process.returncode, out=out.decode().replace("\r\n", "\n"), err="")


def needs_person(answer: Callable[[Connection], None], *, refusals: int = 1) -> Callable[..., None]:
    """Refuses until a call allows to ask, and the first `refusals - 1` of those too."""
    left = [refusals]

    def handler(connection: Connection, call: dict[str, Any]) -> None:
        if not call["parameters"].get(ALLOW) or left[0] > 1:
            left[0] -= bool(call["parameters"].get(ALLOW))
            connection.error(REQUIRED, message="It needs a person.", suggestion="Use sudo.")
        else:
            answer(connection)

    return handler


def reloaded(connection: Connection) -> None:
    connection.reply({"reloaded": {"applied": ["all"], "needs_restart": [], "problems": [], "refused": []}})


def flags(scripted: ScriptedDaemon) -> list[bool]:
    return [ALLOW in call["parameters"] for call in scripted.calls]


def test_on_a_terminal_the_call_is_made_again_beside_an_agent(scripted: ScriptedDaemon, agent: Path) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    done = terminal(["reload"], AGENT_LOG=str(agent))
    assert (done.status, done.out) == (0, "applied\tall\n")
    assert flags(scripted) == [False, True]
    [started] = agent.read_text().splitlines()
    pid, descriptor, fallback = started.split()
    assert pid.startswith("--process=")
    assert descriptor.startswith("--notify-fd=")
    assert fallback == "--fallback"
    assert subprocess.run(["pgrep", "-f", "--", started], capture_output=True, check=False).stdout == b""


def test_where_an_agent_that_falls_back_is_passed_over_another_one_is_started(
    scripted: ScriptedDaemon, agent: Path
) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded, refusals=2))
    assert terminal(["reload"], AGENT_LOG=str(agent)).status == 0
    assert flags(scripted) == [False, True, True]
    assert ["--fallback" in line for line in agent.read_text().splitlines()] == [True, False]


def test_a_stream_is_begun_again(scripted: ScriptedDaemon, agent: Path) -> None:
    def turn(connection: Connection) -> None:
        end = {"text": "the answer", "steps": 1, "duration_ms": 1, "usage": {}}
        whose = {"session": "ses_1", "trace_id": "trace_1"}
        connection.reply({"event": {"type": "text_delta", "text": "the answer", **whose}}, continues=True)
        connection.reply({"event": {"type": "done", **whose, **end}})

    scripted.handle("Sessions.Prompt", needs_person(turn))
    done = terminal(["prompt", "ops", "hello"], AGENT_LOG=str(agent))
    assert done.status == 0, done
    assert "the answer" in done.out
    assert flags(scripted) == [False, True]


def test_an_agent_that_cannot_register_is_told(scripted: ScriptedDaemon, agent: Path) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    done = terminal(["reload"], AGENT_LOG=str(agent), AGENT_FAILS="1")
    assert done.status == 77
    assert "could not register with polkit" in done.out
    assert not any(flags(scripted))


def test_without_an_agent_it_is_told_what_to_install(scripted: ScriptedDaemon) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    done = terminal(["reload"], PATH="/nowhere")
    assert done.status == 77
    assert "It needs a person. It cannot ask here: pkttyagent is not installed." in done.out
    assert "package polkitd" in done.out


def test_nobody_is_asked_without_a_terminal(scripted: ScriptedDaemon, agent: Path, lactl: Lactl) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    for done in (lactl("reload"), finish(["reload"], env=environment(AGENT_LOG=str(agent)))):
        assert (done.status, done.err) == (77, "lactl: It needs a person.\nUse sudo.\n")
    assert not any(flags(scripted))
    assert agent.read_text() == ""


def test_nobody_is_asked_who_said_so(scripted: ScriptedDaemon, agent: Path) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    for arguments in (["reload", "--no-ask-password"], ["--no-ask-password", "reload"]):
        assert terminal(arguments, AGENT_LOG=str(agent)).status == 77
    assert not any(flags(scripted))
    assert agent.read_text() == ""


def test_a_yes_to_a_call_has_an_administrator_authenticate(scripted: ScriptedDaemon, agent: Path) -> None:
    waits(scripted, may_answer=False, must_authenticate=True)
    allow, refused = scripted.handler("Approvals.Approve"), list[str]()

    def approve(connection: Connection, call: dict[str, Any]) -> None:
        if call["parameters"].get(ALLOW) and len(refused) > 1:
            allow(connection, call)
        elif call["parameters"].get(ALLOW):
            refused.append("wrong password")
            connection.error("org.lightagent1.PermissionDenied", message="It was dismissed.", suggestion="")
        else:
            refused.append("nobody asked")
            connection.error(REQUIRED, message="It needs a person.", suggestion="Use sudo.")

    scripted.handle("Approvals.Approve", approve)
    question = "Allow it, once? An administrator must authenticate then. [y/N] "
    twice = (question, b"y\n"), (f"It was dismissed.\r\n{question}", b"y\n")
    status, out = at_terminal(["prompt", "ops", "x"], *twice, AGENT_LOG=str(agent))
    assert (status, out.count("[y/N]")) == (0, 2), out
    assert "it is granted" in out
    assert refused == ["nobody asked", "wrong password", "nobody asked"]


def test_who_wants_no_password_is_not_asked_about_a_call(scripted: ScriptedDaemon) -> None:
    answered = waits(scripted, may_answer=False, must_authenticate=True)
    _, out = at_terminal(["prompt", "ops", "x", "--no-ask-password"], ("lactl approve", answered.set))
    assert "[y/N]" not in out


def test_a_program_that_has_an_agent_of_its_own_allows_to_ask(scripted: ScriptedDaemon) -> None:
    scripted.handle("Manager.Reload", needs_person(reloaded))
    with Client(scripted.path, interactive=True) as client:
        assert client.call("Manager.Reload")["reloaded"]["applied"] == ["all"]
    assert flags(scripted) == [True]
