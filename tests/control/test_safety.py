"""The emergency stop: what runs, waits or is stored when it comes, and what may be done until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from lightagentd import api, errors
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.history import History
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.worker import sandbox
from tests.agents.asking import Watched, add, asked, asking, lines, prepare
from tests.agents.scripted import ME, Scripted, define, scripted, types, until
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import ScriptedModel, Stream, call, chunk, say
from tests.worker.running import marked, marker

pytestmark = pytest.mark.describes_tools
STRANGER = Caller(uid=12345, gid=OUTSIDERS_GID, pid=1)
DEAF = "trap '' TERM HUP INT; (setsid sleep {0} &) ; while :; do sleep {0}; done"
"""A shell that no polite signal ends, with a child that left its session."""
HANGS = Stream(pieces=[chunk({"role": "assistant", "content": "thinking"})], hang=True)


@pytest.fixture
def seconds() -> str:
    return marker()


def runs(command: str) -> Stream:
    return call("bash_exec", {"command": command})


def all_events(rig: Scripted, topic: str) -> list[Any]:
    return [event.data for event in rig.stored(topic=topic)]


async def stop(rig: Scripted, reason: str = "enough") -> api.Stopped:
    return await rig.daemon.service.safety.panic(ME, reason)


async def test_a_running_turn_and_a_deaf_shell_end_at_once(
    paths: Paths, seconds: str, sandboxed: None
) -> None:
    async with scripted(paths, [runs(DEAF.format(seconds)), say("never")]) as rig:
        turn = await rig.agent.prompt(await rig.session(), "go")
        watcher = turn.stream.watch()
        await until(lambda: len(marked(seconds)) >= 2)
        stopped = await stop(rig)
        assert marked(seconds) == []
        assert (stopped.turns, stopped.workers, stopped.problems) == (1, 1, [])
        assert (stopped.panic.by, stopped.panic.reason) == (os.getuid(), "enough")
        last = [event async for event in watcher.events()][-1]
        assert (last["type"], last["code"]) == ("error", "panicked")
        assert "enough" in last["message"]
        assert rig.daemon.pool.workers() == []
        assert len(rig.model.requests) == 1
        assert [data["result"] for data in all_events(rig, "tool.bash")] == ["cancelled"]


async def test_the_daemon_kills_a_worker_whose_keeper_does_not(
    paths: Paths, seconds: str, sandboxed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sandbox, "AT_ONCE", b""
    )  # the keeper hears of the end alone, and is polite for a while
    monkeypatch.setattr(sandbox, "KILL_PATIENCE_S", 0.0)
    async with scripted(paths, [runs(DEAF.format(seconds))]) as rig:
        turn = await rig.agent.prompt(await rig.session(), "go")
        await until(lambda: len(marked(seconds)) >= 2)
        assert (await stop(rig)).workers == 1
        assert marked(seconds) == []
        await turn.over.wait()


async def test_what_waits_in_queues_ends_as_panicked_and_never_runs(paths: Paths) -> None:
    async with scripted(paths, [HANGS]) as rig:
        session = await rig.session()
        turns = [await rig.agent.prompt(session, f"prompt {number}") for number in range(4)]
        await until(lambda: rig.model.open_requests)
        stopped = await stop(rig)
        assert stopped.turns == 4
        for turn in turns:
            assert turn.failure is not None
            assert turn.failure.code == "panicked"
        assert rig.daemon.history.queries.state("turns") == {}
        await rig.daemon.service.safety.end_panic(ME)
        assert (session.queue, session.running, len(rig.model.requests)) == (
            type(session.queue)(),
            None,
            1,
        )


async def test_a_prompt_and_a_call_are_refused_and_leave_no_trace(paths: Paths) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        await stop(rig)
        service, before = rig.daemon.service, rig.daemon.history.head_seq
        prompt = service.conversations.prompt(
            ME, agent="test", text="hi", session="", new=True, correlation_id=""
        )
        called = service.tools.call(ME, agent="test", tool="net", action="routes", args={})
        asked = service.conversations.ask(ME, agent="test", text="hi", session="", new=False, timeout_s=5)
        for refused in (anext(prompt), anext(called), asked):
            with pytest.raises(errors.Panicked, match="enough") as caught:
                await refused
            assert "lactl panic --off" in caught.value.suggestion
        session = await rig.session()
        with pytest.raises(errors.Panicked):
            await rig.agent.prompt(session, "hi")
        assert rig.daemon.history.head_seq == before + 1  # the session
        assert rig.model.requests == []


async def test_no_worker_starts_for_whatever_it_is_asked(paths: Paths) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        await stop(rig)
        with pytest.raises(errors.Panicked):
            await rig.daemon.pool.describe()
        assert rig.daemon.pool.workers() == []


async def test_everything_that_only_looks_goes_on_working(paths: Paths) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        session = await rig.session()
        await rig.prompt(session)
        await stop(rig)
        async with AsyncClient(paths.socket) as client:
            status = (await client.call("Manager.GetStatus"))["status"]
            assert status["state"] == "panicked"
            assert status["panic"]["reason"] == "enough"
            assert status["panic"]["by"] == os.getuid()
            assert (await client.call("History.Verify"))["verification"]["ok"]
            assert len((await client.call("Sessions.Messages", session=session.id))["messages"]) == 2
            assert (await client.call("Tools.List"))["tools"]
            agents = (await client.call("Agents.List"))["agents"]
            assert [agent["state"] for agent in agents if agent["name"] == "test"] == ["running"]


async def test_only_an_administrator_may_stop_and_allow_again_and_everybody_sees_it(paths: Paths) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        service = rig.daemon.service
        with pytest.raises(errors.PermissionDenied):
            await service.safety.panic(STRANGER, "")
        assert not rig.daemon.panic.on
        await stop(rig)
        with pytest.raises(errors.PermissionDenied):
            await service.safety.end_panic(STRANGER)
        status = await service.manager.status(STRANGER)
        assert status.panic is not None
        assert status.panic.reason == "enough"


async def test_after_the_end_everything_works_again(paths: Paths, sandboxed: None) -> None:
    async with scripted(paths, [runs("echo works"), say("the answer")]) as rig:
        session = await rig.session()
        await stop(rig)
        await rig.daemon.service.safety.end_panic(ME)
        assert (await rig.daemon.service.manager.status(ME)).panic is None
        events = await rig.prompt(session)
        assert types(events)[-2:] == ["usage", "done"]
        ended = [event.data for event in rig.stored(topic="daemon.state") if event.type == "panic_ended"]
        assert ended == [{"by": os.getuid()}]


async def test_ending_what_is_not_there_is_a_conflict(paths: Paths) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        with pytest.raises(errors.Conflict, match="no emergency stop"):
            await rig.daemon.service.safety.end_panic(ME)


async def test_a_stop_that_comes_during_the_end_of_another_wins(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        await stop(rig)
        end_all_turns = rig.daemon.registry.end_all_turns

        async def slowly() -> None:
            monkeypatch.undo()
            await end_all_turns()
            await rig.daemon.service.safety.panic(ME, "again")

        monkeypatch.setattr(rig.daemon.registry, "end_all_turns", slowly)
        with pytest.raises(errors.Conflict, match="meanwhile"):
            await rig.daemon.service.safety.end_panic(ME)
        assert rig.daemon.panic.on
        assert rig.daemon.panic.marked
        await rig.daemon.service.safety.end_panic(ME)
        assert not rig.daemon.panic.on


async def test_a_persons_call_ends_too(paths: Paths, seconds: str, sandboxed: None) -> None:
    async with scripted(paths, [say("hello")]) as rig:
        args = {"command": DEAF.format(seconds)}
        events: list[api.TurnEvent] = []

        async def watch() -> None:
            called = rig.daemon.service.tools.call(ME, agent="test", tool="bash", action="exec", args=args)
            async with contextlib.aclosing(called) as told:
                events.extend([event async for event in told])

        watching = asyncio.create_task(watch())
        await until(lambda: len(marked(seconds)) >= 2)
        assert (await stop(rig)).turns == 1
        await watching
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "panicked")
        assert marked(seconds) == []


async def test_many_streaming_sessions_end(paths: Paths) -> None:
    endless = Stream(pieces=[chunk({"content": "x"})] * 2000, pause_s=0.01, hang=True)
    async with scripted(paths, lambda body: endless) as rig:
        sessions = [await rig.session() for _ in range(60)]
        turns = [await rig.agent.prompt(session, "talk") for session in sessions]
        await until(lambda: rig.model.open_requests == 60)
        assert (await stop(rig)).turns == 60
        for turn in turns:
            assert turn.failure is not None
            assert turn.failure.code == "panicked"


async def test_a_worker_that_is_being_started_is_killed(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, sandboxed: None
) -> None:
    async with scripted(paths, [runs("echo never"), say("never")]) as rig:
        started, go_on = asyncio.Event(), asyncio.Event()
        spawn = sandbox.spawn
        children: list[sandbox.Child] = []

        async def slowly(*args: Any, **options: Any) -> sandbox.Child:
            children.append(await spawn(*args, **options))
            started.set()
            await go_on.wait()
            return children[0]

        monkeypatch.setattr(sandbox, "spawn", slowly)
        called = asyncio.create_task(rig.daemon.pool.describe())
        await started.wait()
        await stop(rig)
        go_on.set()
        with pytest.raises(errors.Panicked):
            await called
        assert children[0].process.returncode is not None
        assert rig.daemon.pool.workers() == []


# After a restart


async def test_a_daemon_that_starts_during_a_stop_runs_nothing(paths: Paths) -> None:
    async with ScriptedModel([say("the answer")]) as model:
        define(paths, model)
        async with Daemon(paths) as daemon:
            rig = Scripted(daemon=daemon, model=model)
            session = await rig.session()
            await rig.prompt(session)
            await stop(rig)
        async with Daemon(paths) as daemon:
            rig = Scripted(daemon=daemon, model=model)
            status = await daemon.service.manager.status(ME)
            assert (status.state, status.panic and status.panic.reason) == ("panicked", "enough")
            assert [one.id for one in await daemon.service.sessions.listed(ME, "")] == [session.id]
            assert len(await daemon.service.sessions.messages(ME, session.id, 10)) == 2
            again = rig.agent.sessions[session.id]
            with pytest.raises(errors.Panicked):
                await rig.agent.prompt(again, "hi")
            assert status.workers == []
            await daemon.service.safety.end_panic(ME)
            assert daemon.registry.shared.content.toolbox.tools
            assert not daemon.registry.shared.content.toolbox_problem
            events = await rig.prompt(again)
            assert events[-1]["type"] == "done"
        assert len(model.requests) == 2


async def test_a_crash_right_after_the_mark_runs_no_turn_that_was_stored(paths: Paths) -> None:
    async with ScriptedModel([HANGS]) as model:
        define(paths, model)
        process = DaemonProcess(paths)
        try:
            await asyncio.to_thread(process.start)
            async with AsyncClient(paths.socket) as client:
                made = (await client.call("Sessions.Create", agent="test"))["session"]["id"]
                prompts = [
                    asyncio.create_task(_prompt(paths, made, f"prompt {number}")) for number in range(3)
                ]
                await until(lambda: model.open_requests)
                async with asyncio.timeout(30):
                    while (await client.call("Manager.GetStatus"))["status"]["turns_queued"] < 2:
                        await asyncio.sleep(0.01)
            process.kill()
            await asyncio.gather(*prompts)
            (paths.state / "panic.ready").rename(paths.state / "panic")  # as far as the stop came
            asked = len(model.requests)
            await asyncio.to_thread(process.start)
            async with AsyncClient(paths.socket) as client:
                status = (await client.call("Manager.GetStatus"))["status"]
                assert (status["state"], status["panic"]["by"]) == ("panicked", None)
                async with asyncio.timeout(30):
                    while status["turns_queued"] or status["turns_running"]:
                        status = (await client.call("Manager.GetStatus"))["status"]
                await client.call("Manager.EndPanic")
                events = (await client.call("History.Query", session=made, topic="agent.error"))["events"]
                assert sorted(event["type"] for event in events) == ["interrupted", "panicked", "panicked"]
            assert len(model.requests) == asked
        finally:
            await asyncio.to_thread(process.close)


async def _prompt(paths: Paths, session: str, text: str) -> None:
    async with AsyncClient(paths.socket) as client:
        with contextlib.suppress(errors.LightagentError):
            async for _ in client.stream("Sessions.Prompt", session=session, text=text):
                pass


async def test_queued_prompts_of_a_stopped_agent_are_dropped_too(paths: Paths) -> None:
    async with scripted(paths, [HANGS]) as rig:
        session = await rig.session()
        for number in range(3):
            await rig.agent.prompt(session, f"prompt {number}")
        await until(lambda: rig.model.open_requests)
        await rig.agent.stop()
        assert len(rig.daemon.history.queries.state("turns")) == 2
        await stop(rig)
        assert rig.daemon.history.queries.state("turns") == {}
        await rig.daemon.service.safety.end_panic(ME)
        await rig.agent.start()
        assert len(rig.model.requests) == 1
        assert not session.queue


async def test_a_stop_ends_what_waits_of_an_agent_that_cannot_start_with_its_question(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as rig, Watched(rig, await rig.session()):
        question = await asked(rig)
        await rig.daemon.drain()
    good = (paths.config / "agent" / "test" / "AGENT.md").read_text()
    write(paths.config / "agent" / "test" / "AGENT.md", "---\nnonsense: 1\n---\n")
    async with Daemon(paths) as daemon:
        assert "test" not in daemon.registry.agents
        assert daemon.registry.shared.asked.approvals.questions.get(question.id).state == "waiting"
        await daemon.service.safety.panic(ME, "enough")
        assert daemon.history.queries.state("turns") == {}
        assert daemon.registry.shared.asked.approvals.questions.get(question.id).state == "lapsed"
        await daemon.service.safety.end_panic(ME)
        write(paths.config / "agent" / "test" / "AGENT.md", good)
        await daemon.service.manager.reload_content()
        assert daemon.registry.get("test").turns_queued == daemon.registry.get("test").turns_running == 0
    assert lines(out) == []


# When things are bad


async def test_the_kill_comes_before_a_history_that_cannot_store(
    paths: Paths, seconds: str, sandboxed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(paths, [runs(DEAF.format(seconds))]) as rig:
        turn = await rig.agent.prompt(await rig.session(), "go")
        await until(lambda: len(marked(seconds)) >= 2)

        def full(self: History, batch: object) -> None:
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(History, "_store", full)
            stopped = await stop(rig)
            assert marked(seconds) == []
            assert stopped.workers == 1
            assert any("not in the history" in problem for problem in stopped.problems)
            await turn.over.wait()
            assert rig.daemon.panic.marked
        await rig.daemon.service.safety.end_panic(ME)
        await until(lambda: rig.daemon.history.queries.state("turns") == {})


@pytest.mark.uses_up_processes
async def test_a_fork_bomb_ends_and_the_daemon_answers(paths: Paths, seconds: str, sandboxed: None) -> None:
    bomb = (
        f"f() {{ sleep {seconds} & f & f & }}; trap '' TERM; f 2>/dev/null; while :; do sleep {seconds}; done"
    )
    async with scripted(paths, [runs(bomb)]) as rig:
        turn = await rig.agent.prompt(await rig.session(), "go")
        await until(lambda: len(marked(seconds)) >= 50)
        assert (await stop(rig)).workers == 1
        await turn.over.wait()
        await until(lambda: marked(seconds) == [])
        assert (await rig.daemon.service.manager.status(ME)).state == "panicked"


async def test_a_signal_stops_everything(daemon_process: DaemonProcess, seconds: str) -> None:
    await asyncio.to_thread(daemon_process.start)
    socket = daemon_process.paths.socket
    caller = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "lightagentd.cli.main", "tools", "call", "ops", "bash.exec"],
        f"command={DEAF.format(seconds)}",
        cwd=REPOSITORY,
        env=daemon_process.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        await until(lambda: len(marked(seconds)) >= 2)
        os.kill(daemon_process.pid, signal.SIGUSR1)
        _, said = await caller.communicate()
        assert caller.returncode == errors.Panicked.exit_status
        assert b"stopped everything" in said
    finally:
        if caller.returncode is None:
            caller.kill()
            await caller.wait()
    assert marked(seconds) == []
    async with AsyncClient(socket) as client:
        status = (await client.call("Manager.GetStatus"))["status"]
        assert (status["state"], status["panic"]["by"]) == ("panicked", None)
        assert "SIGUSR1" in status["panic"]["reason"]
        await client.call("Manager.EndPanic")


async def test_the_events_say_who_stopped_what_and_why(paths: Paths) -> None:
    async with scripted(paths, [HANGS]) as rig:
        await rig.agent.prompt(await rig.session(), "go")
        await until(lambda: rig.model.open_requests)
        await stop(rig, "it lies")
        (data,) = [event.data for event in rig.stored(topic="daemon.state") if event.type == "panic"]
        assert data == {"by": os.getuid(), "message": "it lies", "turns": 1, "workers": 0}
        found = await rig.daemon.service.history.query(STRANGER, Filter(topic="daemon.state"), 10)
        assert "panic" in [event.type for event in found]


def test_the_mark_is_json_that_an_administrator_can_read(tmp_path: Path) -> None:
    mark = tmp_path / "state" / "panic"

    async def stopped() -> None:
        paths = Paths(config=tmp_path / "etc", state=tmp_path / "state", runtime=tmp_path / "run")
        async with Daemon(paths) as daemon:
            await daemon.service.safety.panic(ME, "look")

    asyncio.run(stopped())
    assert json.loads(mark.read_text())["reason"] == "look"


@pytest.fixture(autouse=True)
async def nobody_is_left(seconds: str) -> AsyncIterator[None]:
    yield
    assert marked(seconds) == []
