"""Changes that take themselves back: confirmed, overdue, after restarts, and with a clock that was set."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.confirming import confirmations, records, ways
from lightagentd.agents.confirming.records import Confirmation
from lightagentd.client.aio import AsyncClient
from lightagentd.config.terms import Terms
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, NotFound
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, Watched, asked, asking
from tests.agents.flows.rig import add as flow_add
from tests.agents.flows.rig import allow, flow, over, question, running
from tests.agents.scripted import ME, Scripted, define, scripted, until
from tests.conftest import DaemonProcess, write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import ScriptedModel, call, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmations, "TICK_S", 0.02)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one\n")
    return path


def rule(within: str = "1h", **more: str) -> str:
    """A rule that lets every change run, and has it confirmed."""
    lines = [f"{name} = '{text}'" for name, text in more.items()]
    start = '[[rule]]\nname = "confirmed"\ndecision = "allow"\neffect = "change"\n'
    return start + "\n".join([f'confirm_within = "{within}"', *lines, ""])


def set_clock(monkeypatch: pytest.MonkeyPatch, by_us: int) -> None:
    monkeypatch.setattr(records, "wall_us", lambda: time.time_ns() // 1000 + by_us)


async def make(test: Scripted, tool: str, action: str, **args: Any) -> str:
    """Make a call as a person, and give its id."""
    called = test.daemon.service.tools.call(ME, agent="test", tool=tool, action=action, args=args)
    events = [event async for event in called]
    assert events[-1]["type"] == "done", events[-1]
    return str(next(event["call_id"] for event in events if event["type"] == "tool_call"))


def state(test: Scripted, call_id: str) -> str:
    return test.daemon.registry.shared.confirmations.get(call_id).state


def _stands(daemon: Daemon, call_id: str, state: str, tries: int) -> bool:
    found = daemon.registry.shared.confirmations.get(call_id)
    return (found.state, found.tries) == (state, tries)


async def until_taken_back(paths: Paths) -> list[dict[str, Any]]:
    """Ask the daemon of a process until all changes are taken back; gives them."""
    async with asyncio.timeout(60):
        while True:
            async with AsyncClient(paths.socket) as client:
                listed = (await client.call("Confirmations.List", all=True))["confirmations"]
            if {one["state"] for one in listed} == {"taken_back"}:
                return list(listed)
            await asyncio.sleep(0.05)


async def refused(awaited: Any, kind: type[LightagentError]) -> str:
    with pytest.raises(kind) as caught:
        await awaited
    return caught.value.message


def writes(file: Path) -> Any:
    return call("file_write", {"path": str(file), "content": "two\n"})


async def test_an_approved_change_is_taken_back_unless_it_is_confirmed(
    paths: Paths, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = file.with_name("other")
    async with asking(paths, [writes(file), say("a"), writes(other), say("b")]) as test:
        service, ids = test.daemon.service, []
        for _ in range(2):
            session = await test.session()
            async with Watched(test, session) as turn:
                question = await asked(test)
                granted = await service.approvals.approve(ME, question.id, confirm_within="5m")
                assert granted.confirm_within_s == 300
                await turn.end()
            ids.append(question.call_id)
        waiting = await service.confirmations.listed(ME)
        assert [(one.id, one.state, one.may_confirm) for one in waiting] == [
            (each, "waiting", True) for each in ids
        ]
        assert 290 < waiting[0].left_s <= 300
        assert "file.undo" in waiting[0].back
        await refused(service.confirmations.confirm(OTHER, ids[0]), LightagentError)
        assert (await service.confirmations.confirm(ME, ids[1])).state == "confirmed"
        set_clock(monkeypatch, HOUR_US)
        await until(lambda: state(test, ids[0]) == "taken_back")
        assert (file.read_text(), other.read_text()) == ("one\n", "two\n")
        assert "was taken back at" in await refused(service.confirmations.confirm(ME, ids[0]), Conflict)
        assert "confirmed already" in await refused(service.confirmations.confirm(ME, ids[1]), Conflict)
        await refused(service.confirmations.confirm(ME, "call_0"), NotFound)
        assert await service.confirmations.listed(ME) == []
        told = ["pending", "pending", "confirmed", "taking_back", "taken_back"]
        await until(lambda: [event.type for event in test.stored(topic="confirmation")] == told)


async def test_what_cannot_be_taken_back_is_refused_before_it_is_done(paths: Paths, file: Path) -> None:
    command = call("bash_exec", {"command": f"echo two > {file}", "effect": "change"})
    async with asking(paths, [command, command, say("done")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            approve = test.daemon.service.approvals.approve
            assert "no inverse" in await refused(approve(ME, question.id, confirm_within="5m"), Conflict)
            for wrong in ("0s", "2d", "-5m", "5 m", "soon", "1e3", "99999999h"):
                await refused(approve(ME, question.id, confirm_within=wrong, inverse="true"), InvalidArgument)
            for inverse in ("file.read {}", "file.write {", "no.such {}", " ", "a\x1b[2J", "x" * 5000):
                wrong_inverse = approve(ME, question.id, confirm_within="5m", inverse=inverse)
                await refused(wrong_inverse, LightagentError)
            await refused(approve(ME, question.id, inverse="true"), InvalidArgument)
            assert file.read_text() == "one\n"
            write(paths.config / "policy.d" / "10.toml", rule())
            await test.daemon.reload()
            await approve(ME, question.id)  # the rule that came meanwhile counts
            events = await turn.end()
        results = [event["result"] for event in events if event["type"] == "tool_result"]
        assert (results, file.read_text()) == (["conflict", "conflict"], "one\n")


async def test_a_check_that_passes_confirms(
    paths: Paths, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees the network of the machine, as the command that the approver named needs it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write(paths.config / "policy.d" / "10.toml", rule("50s", check=f": < /dev/tcp/127.0.0.1/{port}"))
    async with scripted(paths, [], front=FRONT, toml=TOML) as test:
        call_id = await make(test, "file", "write", path=str(file), content="two\n")
        checks = lambda: [one for one in test.stored(topic="tool.bash") if one.data]  # noqa: E731
        await until(checks)
        assert state(test, call_id) == "waiting"
        with socket.create_server(("127.0.0.1", port)):
            await until(lambda: state(test, call_id) == "confirmed")
        assert test.daemon.registry.shared.confirmations.get(call_id).by is None
        intents = [one.data for one in test.stored(topic="agent.tool_dispatch") if one.data]
        assert {(one["trigger"], one["effect"]) for one in intents[1:]} == {("confirm", "reach")}
        set_clock(monkeypatch, HOUR_US)
        await asyncio.sleep(0.1)
        assert file.read_text() == "two\n"


async def test_what_fails_is_told_and_tried_once_more_after_a_restart(
    paths: Paths, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inverse = f"echo tried >> {file}; false"
    write(paths.config / "policy.d" / "10.toml", rule(inverse=inverse))
    async with scripted(paths, [], front=FRONT, toml=TOML) as test:
        call_id = await make(test, "bash", "exec", command="true", effect="change")
        set_clock(monkeypatch, HOUR_US)
        await until(lambda: state(test, call_id) == "failed")
    for _ in range(2):
        async with Daemon(paths) as daemon:
            await until(partial(_stands, daemon, call_id, "failed", 2))
            assert any(call_id in problem and "status 1" in problem for problem in daemon.problems())
    assert file.read_text().count("tried") == 2
    async with Daemon(paths) as daemon:
        assert (await daemon.service.confirmations.confirm(ME, call_id)).state == "confirmed"
        assert not any(call_id in problem for problem in daemon.problems())


@pytest.mark.parametrize("by_us", [-24 * HOUR_US, 24 * HOUR_US])
async def test_the_deadline_holds_when_the_clock_is_set(
    paths: Paths, file: Path, monkeypatch: pytest.MonkeyPatch, by_us: int
) -> None:
    write(paths.config / "policy.d" / "10.toml", rule("1h"))
    async with scripted(paths, [], front=FRONT, toml=TOML) as test:
        call_id = await make(test, "file", "write", path=str(file), content="two\n")
        set_clock(monkeypatch, by_us)
        if by_us < 0:
            await asyncio.sleep(0.1)
            assert state(test, call_id) == "waiting"
            monkeypatch.setattr(records, "boot_us", lambda: time.clock_gettime_ns(7) // 1000 + HOUR_US)
        await until(lambda: state(test, call_id) == "taken_back")
        assert file.read_text() == "one\n"


def test_another_boot_counts_what_is_left_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms(within_s=3600)
    texts = dict.fromkeys(("id", "agent", "session", "tool", "action", "what", "approval"), "x")
    before: Confirmation = records.begun(terms, {}, owner=0, approved_by=None, seat={}, **texts)
    assert before.of_this_boot() is before
    earlier = replace(before, boot="another", boot_due_us=5)
    assert 3590 < earlier.of_this_boot().left_s <= 3600
    set_clock(monkeypatch, -10_000_000)
    assert earlier.of_this_boot().left_s == 0, "the clock was set back, so nobody knows how long ago it was"
    assert before.left_s > 3590


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_it_is_taken_back_after_the_daemon_ended(paths: Paths, file: Path, end: str) -> None:
    """One is taken back while the daemon is away for the whole of its time, and no client comes."""
    async with ScriptedModel([]) as model:
        define(paths, model, front=FRONT)
        write(paths.config / "lightagentd.toml", TOML)
        write(paths.config / "policy.d" / "10.toml", rule("1s"))
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            args = {"path": str(file), "content": "two\n"}
            async with AsyncClient(paths.socket) as client:
                stream = client.stream("Tools.Call", agent="test", tool="file", action="write", args=args)
                replies = [one async for one in stream]
                assert replies[-1]["event"]["type"] == "done"
            await asyncio.to_thread(getattr(daemon, end))
            assert file.read_text() == "two\n"
            await asyncio.sleep(1)
            await asyncio.to_thread(daemon.start)
            await until(lambda: file.read_text() == "one\n")
            file.write_text("three\n")
            await asyncio.to_thread(daemon.stop)
            await asyncio.to_thread(daemon.start)
            listed = await until_taken_back(paths)
            assert [one["tries"] for one in listed] == [1]
            assert file.read_text() == "three\n", "it is not done twice"
        finally:
            await asyncio.to_thread(daemon.close)


async def test_a_step_of_a_flow_names_what_takes_its_change_back(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person approves it, whatever policy allows, and sees the inverse with the call."""
    out = tmp_path / "lines"
    terms = {"confirm_within": "5m", "inverse": f"rm {out}"}
    flow(paths, "flow", {"name": "add", **flow_add(out), **terms})
    allow(paths)
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        found = daemon.registry.shared.asked.approvals.questions.get(await question(daemon, run, "add"))
        assert (found.confirm_within_s, found.inverse) == (300, f"rm {out}")
        await daemon.service.approvals.approve(ME, found.id)
        await over(run)
        assert out.read_text() == "ran\n"
        set_clock(monkeypatch, HOUR_US)
        await until(lambda: not out.exists())


async def test_a_taking_back_that_was_stopped_in_the_middle_is_tried_once_more(
    paths: Paths, file: Path
) -> None:
    inverse = f"echo tried >> {file}; test $(wc -l < {file}) -gt 2 || sleep 60"
    async with ScriptedModel([]) as model:
        define(paths, model, front=FRONT)
        write(paths.config / "lightagentd.toml", TOML)
        write(paths.config / "policy.d" / "10.toml", rule("1s", inverse=inverse))
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            args = {"command": "true", "effect": "change"}
            async with AsyncClient(paths.socket) as client:
                stream = client.stream("Tools.Call", agent="test", tool="bash", action="exec", args=args)
                assert [one async for one in stream]
            await until(lambda: file.read_text().count("tried") == 1)
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            await until(lambda: file.read_text().count("tried") == 2)
            await until_taken_back(paths)
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            await until_taken_back(paths)
            assert file.read_text().count("tried") == 2
        finally:
            await asyncio.to_thread(daemon.close)


def test_units_get_the_state_that_they_had() -> None:
    terms, args = Terms(within_s=60), {"unit": "x.service"}

    def back(action: str, **before: str) -> str:
        found = ways.way_back(terms, "systemd", action, "call_0", args, before)
        assert found["args"] == args
        return str(found["action"])

    for action in ("start", "stop", "restart", "reload"):
        assert back(action, active_state="active") == "start"
        assert back(action, active_state="inactive") == "stop"
        assert back(action, active_state="failed") == "stop"
    for action in ("enable", "disable"):
        assert back(action, unit_file_state="enabled") == "enable"
        assert back(action, unit_file_state="disabled") == "disable"
        with pytest.raises(Conflict, match="static now"):
            back(action, unit_file_state="static")
    with pytest.raises(Conflict, match="unknown state"):
        back("stop")
