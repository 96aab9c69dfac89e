"""What bad input gets: a stable code, a sentence that says what to do, and a daemon that goes on serving."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lightagentd.client.blocking import Client
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DaemonUnreachable, PermissionDenied
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write
from tests.raw_varlink import Raw, code, message
from tests.scripted_model import ScriptedModel, Stream, calls, chunk, say
from tests.talker import talker


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel([say("the answer")]) as running:
        yield running


@pytest.fixture
async def daemon(paths: Paths, model: ScriptedModel) -> AsyncIterator[Daemon]:
    talker(paths, model)
    async with Daemon(paths) as running:
        yield running


async def serves(daemon: Daemon) -> None:
    """The daemon answers a new client, its agent answers a prompt, and its history is sound."""
    async with Raw(daemon.paths.socket) as raw:
        answer = await raw.call("Manager.Ask", agent="talker", text="are you there?", new=True)
        assert answer["parameters"]["answer"]["text"] == "the answer"
        verification = (await raw.call("History.Verify"))["parameters"]["verification"]
        assert verification["ok"], verification


async def test_each_bad_request_has_its_code_and_says_what_to_do(daemon: Daemon) -> None:
    """One connection takes them all."""
    ask = {"agent": "talker", "text": "hello"}
    async with Raw(daemon.paths.socket) as raw:
        for method, parameters, expected in (
            ("Manager.Ask", ask | {"agent": "nobody"}, "agent_not_found"),
            ("Manager.Ask", ask | {"agent": ""}, "invalid_argument"),
            ("Manager.Ask", ask | {"session": "ses_nothing"}, "session_not_found"),
            ("Manager.Ask", ask | {"text": ""}, "invalid_argument"),
            ("Manager.Ask", ask | {"text": " \n\t "}, "invalid_argument"),
            ("Manager.Ask", ask | {"text": "a\0b"}, "invalid_argument"),
            ("Manager.Ask", ask | {"text": "x" * (13 << 20)}, "invalid_argument"),
            ("Manager.Ask", ask | {"text": "half \ud83d of a character"}, "malformed_message"),
            ("Manager.Ask", ask | {"text": "x" * (12 << 20) + "\0"}, "invalid_argument"),
            ("Sessions.Get", {"session": "\0"}, "session_not_found"),
            ("Sessions.List", {"agent": "nobody"}, "agent_not_found"),
            ("Agents.Stop", {"name": "nobody"}, "agent_not_found"),
            ("Agents.Create", {"name": "Not A Name"}, "invalid_argument"),
            ("Agents.Create", {"name": "talker"}, "agent_exists"),
            ("Tools.Get", {"name": "nothing"}, "tool_not_found"),
            ("Skills.Get", {"name": "nothing"}, "skill_not_found"),
            ("Manager.Nothing", {}, "org.varlink.service.MethodNotFound"),
            ("Nothing.Nothing", {}, "org.varlink.service.InterfaceNotFound"),
            ("Manager.GetStatus", {"verbose": True}, "org.varlink.service.InvalidParameter"),
        ):
            reply = await raw.call(method, **parameters)
            assert code(reply) == expected, (method, str(parameters)[:80])
            if expected.islower():
                assert reply["parameters"]["message"].endswith(".")
                assert reply["parameters"]["suggestion"] or reply["parameters"]["field"]
        for arguments, expected in (
            ({"tool": "nothing", "action": "list", "args": {}}, "tool_not_found"),
            ({"tool": "proc", "action": "nothing", "args": {}}, "tool_not_found"),
            ({"tool": "proc", "action": "info", "args": {"pid": "one"}}, "invalid_argument"),
            ({"tool": "proc", "action": "info", "args": {"nothing": 1}}, "invalid_argument"),
            ({"tool": "proc", "action": "info", "args": []}, "invalid_argument"),
        ):
            replies = [reply async for reply in raw.stream("Tools.Call", agent="talker", **arguments)]
            event = replies[-1].get("parameters", {}).get("event", {})
            assert (event.get("code") or code(replies[-1])) == expected, arguments
    await serves(daemon)


async def test_a_prompt_of_10_mib_is_answered_and_shown(daemon: Daemon, model: ScriptedModel) -> None:
    text = "é" * (5 << 20)
    async with Raw(daemon.paths.socket) as raw:
        call = message("Manager.Ask", agent="talker", text="TEXT").replace(b"TEXT", text.encode())
        await raw.send(call)
        answer = (await raw.reply())["parameters"]["answer"]
        assert answer["text"] == "the answer"
        assert model.requests[0].body["messages"][-1]["content"] == text
        shown = (await raw.call("Sessions.Messages", session=answer["session"]))["parameters"]["messages"]
        assert shown[0]["content"] == text
        await raw.send(call)
        assert code(await raw.reply()) == "ok"
        assert code(await raw.call("Sessions.Messages", session=answer["session"])) == "message_too_large"
        assert code(await raw.call("Sessions.Messages", session=answer["session"], limit=2)) == "ok"
    await serves(daemon)


async def test_bytes_that_are_no_messages_leave_the_daemon_serving(daemon: Daemon) -> None:
    for garbage in (
        os.urandom(100_000),
        b"\0" * 10_000,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"[" * (1 << 20) + b"\0",
        b'{"method":' * 100_000,
        message("Manager.GetStatus") * 1000,
        b"x" * (17 << 20),
    ):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(daemon.paths.socket))
        try:
            await asyncio.wait_for(asyncio.to_thread(sock.sendall, garbage), 20)
        except OSError:
            pass  # cut off, which is its right
        finally:
            sock.close()
    await serves(daemon)


async def test_arguments_nested_without_end_leave_the_history_writing(
    daemon: Daemon, model: ScriptedModel
) -> None:
    async with Raw(daemon.paths.socket) as raw:
        nested: object = {}
        for _ in range(85):
            nested = {"args": nested}
        call = {"agent": "talker", "tool": "proc", "action": "info", "args": {"pid": nested}}
        replies = [reply async for reply in raw.stream("Tools.Call", **call)]
        assert replies[-1]["parameters"]["event"]["code"] == "invalid_argument"
        head = message("Tools.Call", more=True, agent="talker", tool="proc", action="info", args="ARGS")
        await raw.send(head.replace(b'"ARGS"', b'{"pid":' * 400 + b"1" + b"}" * 400))
        assert code(await raw.reply()) == "malformed_message"
    await serves(daemon)


async def test_a_client_that_hangs_up_in_a_prompt_leaves_the_turn_to_its_end(
    daemon: Daemon, model: ScriptedModel
) -> None:
    model.script = [
        Stream(pieces=calls(("proc_info", {"pid": 1}, "call_1")).pieces, pause_s=0.02),
        say("all ", "is ", "well", pause_s=0.02),
    ]
    async with Raw(daemon.paths.socket) as raw:
        await raw.send(message("Sessions.Prompt", more=True, agent="talker", text="go"))
        first = (await raw.reply())["parameters"]["event"]
    async with asyncio.timeout(20):
        while daemon.history.queries.state("turns"):
            await asyncio.sleep(0.01)
    shown = [event.data for event in daemon.history.queries.messages(first["session"])]
    assert [one["role"] for one in shown if one] == ["user", "assistant", "tool", "assistant"]
    assert shown[-1] is not None
    assert shown[-1]["content"] == "all is well"


async def test_a_client_that_hangs_up_in_a_subscription_leaves_no_task(daemon: Daemon) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with Raw(daemon.paths.socket) as raw:
            await raw.send(message("Events.Subscribe", more=True, from_seq=1))
            assert (await raw.reply())["continues"]
    async with asyncio.timeout(20):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_a_client_that_never_reads_keeps_nobody_waiting(daemon: Daemon, model: ScriptedModel) -> None:
    model.script = [Stream(pieces=[*(chunk({"content": "x" * 1000}) for _ in range(2000)), *say("").pieces])]
    async with Raw(daemon.paths.socket) as deaf:
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a read transport too
        await deaf.send(message("Sessions.Prompt", more=True, agent="talker", text="go on and on"))
        async with Raw(daemon.paths.socket) as other:
            async with asyncio.timeout(20):
                while True:
                    events = await other.call("History.Query", topic="session.turn", limit=1)
                    if (
                        events["parameters"]["events"][-1:]
                        and events["parameters"]["events"][0]["type"] == "done"
                    ):
                        break
                    await asyncio.sleep(0.01)
        model.script = [say("the answer")]
        await serves(daemon)


@pytest.fixture
def open_paths(paths: Paths) -> Iterator[Paths]:
    """Folders with tools that a worker, which runs as another user, can reach."""
    config = Path(tempfile.mkdtemp(prefix="la-"))
    config.chmod(0o755)
    yield Paths(config=config, state=paths.state, runtime=paths.runtime)
    shutil.rmtree(config)


async def test_broken_files_disable_themselves_alone_and_status_says_so(
    open_paths: Paths, model: ScriptedModel
) -> None:
    paths = open_paths
    talker(paths, model)
    broken = {
        "agent/unclosed/AGENT.md": "---\nmodel: runbook\n",
        "agent/unknown-key/AGENT.md": "---\nmodle: runbook\n---\n",
        "agent/Bad Name/AGENT.md": "---\n---\n",
        "skills/no-front/SKILL.md": "no front matter",
        "skills/bad-yaml/SKILL.md": "---\nname: [\n---\n",
        "tools/nosyntax.py": "def (",
        "tools/raises.py": "raise RuntimeError('at import')",
        "tools/empty.py": "",
    }
    for name, text in broken.items():
        write(paths.config / name, text)
    (paths.config / "agent/binary").mkdir()
    (paths.config / "agent/binary/AGENT.md").write_bytes(b"\xff\xfe\0")
    (paths.config / "agent/folder/AGENT.md").mkdir(parents=True)
    (paths.config / "skills/binary").mkdir()
    (paths.config / "skills/binary/SKILL.md").write_bytes(b"\xff\xfe\0")
    async with Daemon(paths) as daemon, Raw(paths.socket) as raw:
        status = (await raw.call("Manager.GetStatus"))["parameters"]["status"]
        said = "\n".join(status["problems"])
        for name in [*broken, "agent/binary", "agent/folder", "skills/binary"]:
            kind, thing = name.split("/")[:2]
            what = f"The {kind.removesuffix('s')} {thing.removesuffix('.py')} is disabled: "
            assert what in said, f"{what!r} is missing in:\n{said}"
        listed = (await raw.call("Agents.List"))["parameters"]["agents"]
        states = {agent["name"]: agent["state"] for agent in listed}
        assert states["talker"] == states["ops"] == "running"
        assert states["unclosed"] == states["binary"] == "broken"
        tools = {
            tool["name"]: tool["problem"] for tool in (await raw.call("Tools.List"))["parameters"]["tools"]
        }
        assert "SyntaxError" in tools["nosyntax"]
        assert not tools["proc"]
        assert code(await raw.call("Manager.Ask", agent="unclosed", text="hello")) == "agent_broken"
        await serves(daemon)


# A daemon that is not there


def test_a_daemon_that_is_stopped_is_unreachable_and_it_is_said_how_to_start_it(
    daemon_process: DaemonProcess,
) -> None:
    for _ in range(2):
        with pytest.raises(DaemonUnreachable) as caught, daemon_process.client():
            pass
        assert "lightagentd" in caught.value.suggestion
        shown = daemon_process.lactl("status")
        assert shown.returncode == DaemonUnreachable.exit_status
        assert "not running" in shown.stderr
        assert "Traceback" not in shown.stderr
        daemon_process.paths.socket.parent.mkdir(exist_ok=True)
        daemon_process.paths.socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
            stale.bind(str(daemon_process.paths.socket))


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root may open every socket; tests/control has it with two uids"
)
def test_a_socket_without_permission_is_permission_denied(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        (tmp_path / "s").chmod(0)
        with pytest.raises(PermissionDenied), Client(tmp_path / "s"):
            pass
