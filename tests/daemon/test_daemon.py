"""The daemon as a whole: start, serve, reload, drain, stop, and what it finds again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, LightagentError, StorageError
from lightagentd.events.audit.verification import verify
from lightagentd.events.filter import Filter
from lightagentd.events.queries import StoredHistory
from lightagentd.host.paths import Paths
from lightagentd.llm.http_client import HttpClient
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.scripted_model import ScriptedModel, Stream, call, chunk, say
from tests.talker import talker

ME = Caller(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())


@pytest.fixture(autouse=True)
def real_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons of these tests are programs of their own, from their start to their end."""
    monkeypatch.setattr(DaemonProcess, "forks", False)


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel([say("the answer")]) as running:
        yield running


@contextlib.asynccontextmanager
async def started(process: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """Start the daemon process, and a client of it."""
    await asyncio.to_thread(process.start)
    async with AsyncClient(process.paths.socket) as client:
        yield client


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def told(ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], Any]) -> Any:
    """Ask a daemon again and again until its answer fits; gives the answer."""
    async with asyncio.timeout(60):
        while not condition(answer := await ask()):
            await asyncio.sleep(0.01)
    return answer


def warned(process: DaemonProcess) -> list[str]:
    """The warnings in the log of a daemon without a journal, each with its time."""
    return re.findall(r"^[-\dT]{11}[:\d]{8}[+-]\d{4} WARNING [\w.]+: (.*)$", process.log.read_text(), re.M)


async def ask(client: AsyncClient, text: str = "hello", **more: Any) -> str:
    reply = await client.call("Manager.Ask", **{"agent": "talker", "text": text, **more})
    return str(reply["answer"]["text"])


async def test_a_prompt_gets_a_report_of_the_disks(daemon: Daemon) -> None:
    answer = await daemon.service.conversations.ask(
        ME, agent="ops", text="check disk", session="", new=False, timeout_s=60
    )
    assert answer.steps == 2
    verification = await daemon.service.history.verify(ME)
    assert verification.ok
    assert verification.events == daemon.history.head_seq


def _restarted(times: int, got: dict[str, Any]) -> bool:
    return (got["agent"]["state"], got["agent"]["restarts"]) == ("running", times)


# Starting


async def test_a_second_daemon_on_the_same_folders_is_refused_and_says_why(daemon: Daemon) -> None:
    def second(paths: Paths, *more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "lightagentd.daemon", f"--config-dir={paths.config}", *more]
        argv += [f"--state-dir={paths.state}", f"--runtime-dir={paths.runtime}"]
        return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=30)

    checked = await asyncio.to_thread(second, daemon.paths, "--check")
    assert (checked.returncode, checked.stderr) == (0, "")
    broken = write(daemon.paths.config / "policy.d" / "10-a.toml", "[[rule]\n")
    checked = await asyncio.to_thread(second, daemon.paths, "--check")
    assert (checked.returncode, str(broken) in checked.stderr) == (78, True)
    broken.unlink()
    refused = await asyncio.to_thread(second, daemon.paths)
    assert refused.returncode == Conflict.exit_status
    assert str(daemon.paths.state) in refused.stderr
    assert refused.stderr.count("\n") == 1
    base = daemon.paths.state.parent
    for paths in (
        Paths(config=daemon.paths.config, state=daemon.paths.state, runtime=base / "other-run"),
        Paths(config=daemon.paths.config, state=base / "other-state", runtime=daemon.paths.runtime),
    ):
        with pytest.raises(Conflict, match="Another daemon"):
            async with Daemon(paths):
                pass
    async with AsyncClient(daemon.paths.socket) as client:
        assert (await client.call("Manager.GetStatus"))["status"]["state"] == "running"


async def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(paths: Paths) -> None:
    file = write(paths.state.parent / "file", "")
    with pytest.raises(StorageError, match="file/state cannot be made: Not a directory") as caught:
        async with Daemon(Paths(config=paths.config, state=file / "state", runtime=paths.runtime)):
            pass
    assert "ReadWritePaths=" in caught.value.suggestion


async def test_two_that_start_at_once_are_one_daemon(paths: Paths) -> None:
    daemons = [Daemon(paths), Daemon(paths)]
    results = await asyncio.gather(*(daemon.start() for daemon in daemons), return_exceptions=True)
    assert [type(result) for result in results if result] == [Conflict]
    running = daemons[results.index(None)]
    async with AsyncClient(paths.socket) as client:
        assert (await client.call("History.Verify"))["verification"]["ok"]
    await running.close()


async def test_a_stale_socket_is_replaced(paths: Paths) -> None:
    paths.runtime.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(paths.socket))
    async with Daemon(paths), AsyncClient(paths.socket) as client:
        assert (await client.call("Manager.GetStatus"))["status"]["pid"] == os.getpid()


async def test_a_broken_configuration_is_refused_and_leaves_nothing_behind(paths: Paths) -> None:
    file = write(paths.config / "lightagentd.toml", "[daemon]\nmax_conections = 7\n")
    with pytest.raises(LightagentError, match="max_conections"):
        await Daemon(paths).start()
    file.unlink()
    async with Daemon(paths):
        assert paths.socket.exists()


# Reloading


async def test_sighup_starts_new_agents_and_reports_broken_ones(
    daemon_process: DaemonProcess, model: ScriptedModel
) -> None:
    paths = daemon_process.paths
    write(paths.config / "agent" / "bent" / "AGENT.md", "---\nmodle: x\n---\n")
    daemon_process.set_variable("PATH", "/nonexistent")  # neither a sandbox nor the programs of reports
    async with started(daemon_process) as client:
        found = (await client.call("Manager.GetStatus"))["status"]["problems"]
        for said in ("bent", "No sandbox enforces effects"):
            assert any(said in problem for problem in found), found
        await until(lambda: any("not installed: df, ip" in warning for warning in warned(daemon_process)))
        await until(lambda: set(found) <= set(warned(daemon_process)))
        talker(paths, model)
        write(paths.config / "agent" / "crooked" / "AGENT.md", "---\nmodle: x\n---\n")
        write(paths.config / "lightagentd.toml", "[limits]\nmax_steps = 7\n")
        os.kill(daemon_process.pid, signal.SIGHUP)
        async for reply in client.stream("Events.Subscribe", from_seq=1, topic="daemon.state"):
            if reply["event"]["type"] == "reloaded":
                break
        assert "started agent talker" in reply["event"]["data"]["message"]
    async with AsyncClient(paths.socket) as client:
        assert await ask(client) == "the answer"
        problems = (await client.call("Manager.GetStatus"))["status"]["problems"]
        assert any("crooked" in problem and "modle" in problem for problem in problems)
        await until(lambda: set(problems) <= set(warned(daemon_process)))
        reloaded = (await client.call("Manager.Reload"))["reloaded"]
        assert reloaded["needs_restart"] == ["limits in the configuration"]
        write(paths.config / "lightagentd.toml", "[limits\n")
        os.kill(daemon_process.pid, signal.SIGHUP)
        await until(lambda: "the reload changed nothing" in daemon_process.log.read_text())
        assert await ask(client) == "the answer"


# Stopping


async def test_sigterm_lets_a_running_turn_end_and_takes_no_new_one(
    daemon_process: DaemonProcess, model: ScriptedModel
) -> None:
    refused = asyncio.Event()
    model.script = [replace(say("begun ", "and on ", "done"), gate=(2, refused))]
    talker(daemon_process.paths, model)
    async with started(daemon_process) as client, AsyncClient(daemon_process.paths.socket) as other:
        events: list[dict[str, Any]] = []
        stopping: asyncio.Task[int] | None = None
        async for reply in client.stream("Sessions.Prompt", agent="talker", text="go"):
            events.append(reply["event"])
            if reply["event"]["type"] == "text_delta" and stopping is None:
                stopping = asyncio.create_task(asyncio.to_thread(daemon_process.stop))
                await told(
                    lambda: other.call("Manager.GetStatus"), lambda got: got["status"]["state"] == "draining"
                )
                with pytest.raises(LightagentError) as caught:
                    await ask(other)
                assert caught.value.code == "shutting_down"
                refused.set()
        assert events[-1]["type"] == "done"
        assert events[-1]["text"] == "begun and on done"
        assert stopping is not None
        assert await stopping == 0
    history = StoredHistory(daemon_process.paths.history)
    try:
        assert verify(history.environment).ok
        assert history.queries.state("turns") == {}
        last = [(event.topic, event.type) for event in history.queries.newest(Filter(), 3)]
        assert [kind for _, kind in last] == ["stopped", "rows", "signed"]
    finally:
        history.close()


async def test_a_turn_that_does_not_end_in_the_drain_time_is_cancelled(
    daemon_process: DaemonProcess, model: ScriptedModel
) -> None:
    model.script = [Stream(pieces=[chunk({"content": "begun"})], hang=True)]
    talker(daemon_process.paths, model)
    write(daemon_process.paths.config / "lightagentd.toml", "[daemon]\ndrain_timeout_s = 0.2\n")
    async with started(daemon_process) as client:
        events: list[dict[str, Any]] = []
        async for reply in client.stream("Sessions.Prompt", agent="talker", text="go"):
            events.append(reply["event"])
            if reply["event"]["type"] == "text_delta":
                os.kill(daemon_process.pid, signal.SIGTERM)
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "cancelled")
    await asyncio.to_thread(daemon_process.stop)
    assert "Traceback" not in daemon_process.log.read_text()


# After a crash


@pytest.mark.usefixtures("sandboxed")
async def test_after_kill_9_the_turn_is_interrupted_and_a_queued_prompt_runs(
    daemon_process: DaemonProcess, model: ScriptedModel
) -> None:
    model.script = [call("bash_exec", {"command": "sleep 30"}), say("the queued answer")]
    talker(daemon_process.paths, model)
    async with started(daemon_process) as client, AsyncClient(daemon_process.paths.socket) as other:
        async for reply in client.stream("Sessions.Prompt", agent="talker", text="first"):
            event = reply["event"]
            session = event["session"]
            if event["type"] == "tool_call":
                break
        waiting = asyncio.create_task(ask(other, "second", session=session))
        async with AsyncClient(daemon_process.paths.socket) as third:
            await told(
                lambda: third.call("Sessions.Get", session=session), lambda got: got["session"]["queued"]
            )
        await asyncio.to_thread(daemon_process.kill)
        with pytest.raises(LightagentError):
            await waiting
    async with started(daemon_process) as client:
        reply = await told(
            lambda: client.call("Sessions.Messages", session=session),
            lambda got: got["messages"][-1]["content"] == "the queued answer",
        )
        shown = reply["messages"]
        roles = [message["role"] for message in shown]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert "outcome_unknown" in shown[2]["content"]
        assert "outcome_unknown" in shown[3]["cut_off"]
        assert shown[4]["content"] == "second"
        errors = (await client.call("History.Query", topic="agent.error"))["events"]
        assert [(event["type"], event["data"]["code"]) for event in errors] == [
            ("interrupted", "outcome_unknown")
        ]
        assert (await client.call("History.Verify"))["verification"]["ok"]
        assert len(model.requests) == 2
        assert model.requests[1].body["messages"][-1]["content"] == "second"


async def test_an_agent_made_at_run_time_is_there_after_a_restart(paths: Paths, model: ScriptedModel) -> None:
    async with Daemon(paths), AsyncClient(paths.socket) as client:
        made = (
            await client.call(
                "Agents.Create", name="fresh", model="openai/x", base_url=model.base_url, prompt="Be brief."
            )
        )["agent"]
        assert await ask(client, agent="fresh") == "the answer"
        session = (await client.call("Sessions.List", agent="fresh"))["sessions"][0]["id"]
    async with Daemon(paths), AsyncClient(paths.socket) as client:
        assert (await client.call("Agents.Get", name="fresh"))["agent"] == made | {"sessions": 1}
        assert await ask(client, agent="fresh", session=session) == "the answer"
        assert "Be brief." in str(model.requests[-1].body["messages"][0])
        assert len(model.requests[-1].body["messages"]) == 4


# Many at once, and one that fails


async def test_a_stopped_agent_ends_its_turn_and_a_restarted_one_goes_on(
    paths: Paths, model: ScriptedModel
) -> None:
    model.script = [say("first"), Stream(pieces=[chunk({"content": "begun"})], hang=True), say("after")]
    talker(paths, model)
    async with Daemon(paths), AsyncClient(paths.socket) as client, AsyncClient(paths.socket) as other:
        assert await ask(client) == "first"
        hanging = asyncio.create_task(ask(other))
        await until(lambda: len(model.requests) == 2)
        assert (await client.call("Agents.Stop", name="talker"))["agent"]["state"] == "stopped"
        with pytest.raises(LightagentError) as caught:
            await hanging
        assert caught.value.code == "cancelled"
        with pytest.raises(LightagentError) as caught:
            await ask(client)
        assert caught.value.code == "agent_not_running"
        assert (await client.call("Agents.Restart", name="talker"))["agent"]["state"] == "running"
        assert await ask(client) == "after"
        assert model.requests[2].body["messages"][1]["content"] == "hello"


async def test_an_agent_that_fails_unexpectedly_is_started_again_and_no_other_notices(
    paths: Paths, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.supervision.FIRST_PAUSE_S", 0.05)
    whole = HttpClient.stream
    faults = 2

    async def faulty(self: HttpClient, request: Any) -> AsyncIterator[Any]:
        nonlocal faults
        if "x-fault" in self.name and faults:
            faults -= 1
            raise RuntimeError("injected fault")
        async for part in whole(self, request):
            yield part

    monkeypatch.setattr(HttpClient, "stream", faulty)
    talker(paths, model)
    talker(paths, model, "shaky")
    shaky = paths.config / "agent" / "shaky" / "AGENT.md"
    shaky.write_text(shaky.read_text().replace("openai/x", "openai/x-fault"))
    async with Daemon(paths), AsyncClient(paths.socket) as client:
        for number in (1, 2):
            with pytest.raises(LightagentError) as caught:
                await ask(client, agent="shaky")
            assert caught.value.code == "internal"
            assert "injected" not in caught.value.message
            assert await ask(client) == "the answer"
            await told(
                lambda: client.call("Agents.Get", name="shaky"),
                functools.partial(_restarted, number),
            )
        assert await ask(client, agent="shaky") == "the answer"
        states = (await client.call("History.Query", topic="daemon.agent", agent="shaky"))["events"]
        assert [event["type"] for event in states] == ["started", *["failed", "restarted"] * 2]
        pauses = [event["data"]["pause_s"] for event in states if event["type"] == "failed"]
        assert pauses[1] == 2 * pauses[0]
        others = (await client.call("History.Query", topic="daemon.agent", agent="talker"))["events"]
        assert [event["type"] for event in others] == ["started"]


async def test_200_sessions_at_once_have_no_error_and_keep_their_order(
    paths: Paths, model: ScriptedModel
) -> None:
    def echo(body: dict[str, Any]) -> Stream:
        return say(f"re: {body['messages'][-1]['content']}")

    model.script = echo
    talker(paths, model)
    async with Daemon(paths) as daemon:
        service = daemon.service

        async def prompt(session: str, text: str) -> str:
            asked = service.conversations.ask(
                ME, agent="talker", text=text, session=session, new=False, timeout_s=60
            )
            return (await asked).text

        async def one(number: int) -> None:
            session = (await service.sessions.create(ME, "talker", "")).id
            texts = [f"{number}.{step}" for step in range(2)]
            answers = await asyncio.gather(*(prompt(session, text) for text in texts))
            assert answers == [f"re: {text}" for text in texts]
            shown = [message.content for message in await service.sessions.messages(ME, session, 10)]
            assert shown == [said for text in texts for said in (text, f"re: {text}")]

        await asyncio.gather(*(one(number) for number in range(200)))
        assert verify(daemon.history.environment).ok
        assert daemon.history.queries.state("turns") == {}
