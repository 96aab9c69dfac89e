"""Changes that take themselves back: confirmed, overdue, after restarts, and with a clock that was set."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lightagentd.agents.confirming import confirmations, records
from lightagentd.agents.confirming.confirmations import Confirmations
from lightagentd.agents.confirming.records import Confirmation
from lightagentd.client.aio import AsyncClient
from lightagentd.config.terms import Terms
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, NotFound, PermissionDenied
from lightagentd.events.history import History
from lightagentd.events.types.history import HistoryInstalled
from lightagentd.host.paths import Paths
from lightagentd.worker import ways
from tests.agents.asking import FRONT, TOML, Watched, asked, asking
from tests.agents.flows.rig import add as flow_add
from tests.agents.flows.rig import allow, flow, over, question, running
from tests.agents.scripted import ME, Scripted, define, scripted, until
from tests.conftest import DaemonProcess, write
from tests.other_user import OUTSIDERS_GID
from tests.ports import free_port
from tests.scripted_model import ScriptedModel, call, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
HOUR_US = 3_600_000_000
NO_DELETE = '[[rule]]\nname = "no-delete"\ndecision = "deny"\ntool = "file"\naction = "delete"\n'
BACK = {"tool": "file", "action": "undo", "args": {"call_id": "x"}}
TEXTS = dict.fromkeys(("id", "agent", "session", "tool", "action", "what", "approval"), "x")
in_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def test(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    """A daemon for all tests that stop none, with its workers. A test leaves none of its changes open."""
    base = tmp_path_factory.mktemp("la")
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    write(paths.config / "policy.d" / "10.toml", NO_DELETE)
    async with scripted(paths, [], front=FRONT, toml=TOML) as made:
        for effect in ("observe", "reach", "change"):
            await attempt(made, "bash.exec", {"command": "true", "effect": effect})
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmations, "TICK_S", 0.02)
    monkeypatch.setattr(confirmations, "AGAIN_S", 0.02)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one\n")
    return path


def set_clock(monkeypatch: pytest.MonkeyPatch, by_us: int) -> None:
    monkeypatch.setattr(records, "wall_us", lambda: time.time_ns() // 1000 + by_us)


async def attempt(test: Scripted, name: str, args: dict[str, Any], **terms: Any) -> dict[str, Any]:
    """Make a call as a person, and give its last event and its id."""
    tool, action = name.split(".")
    called = test.daemon.service.tools.call(ME, agent="test", tool=tool, action=action, args=args, **terms)
    events = [event async for event in called]
    return {
        **events[-1],
        "call_id": next(event["call_id"] for event in events if event["type"] == "tool_call"),
    }


async def make(test: Scripted, name: str, args: dict[str, Any], **terms: Any) -> str:
    """As `attempt`, for a call that goes well; gives its id."""
    terms.setdefault("confirm_within", "1h")
    ended = await attempt(test, name, args, **terms)
    assert ended["type"] == "done", ended
    return str(ended["call_id"])


async def make_file(test: Scripted, file: Path, **terms: Any) -> str:
    return await make(test, "file.write", {"path": str(file), "content": "two\n"}, **terms)


def state(test: Scripted | Daemon, call_id: str) -> str:
    daemon = test if isinstance(test, Daemon) else test.daemon
    return daemon.registry.shared.confirmations.get(call_id).state


def _stands(daemon: Daemon, call_id: str, state: str, tries: int) -> bool:
    found = daemon.registry.shared.confirmations.get(call_id)
    return (found.state, found.tries) == (state, tries)


async def refused(awaited: Any, kind: type[LightagentError]) -> str:
    with pytest.raises(kind) as caught:
        await awaited
    return caught.value.message


def writes(file: Path) -> Any:
    return call("file_write", {"path": str(file), "content": "two\n"})


async def test_an_approved_change_is_taken_back_unless_it_is_confirmed(
    paths: Paths, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of its session, and once an emergency stop is over."""
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
            await service.sessions.delete(ME, session.id, confirmed=True)
        waiting = await service.confirmations.listed(ME)
        assert [(one.id, one.state, one.may_confirm) for one in waiting] == [
            (each, "waiting", True) for each in ids
        ]
        assert 290 < waiting[0].left_s <= 300
        assert "file.undo" in waiting[0].back
        await refused(service.confirmations.confirm(OTHER, ids[0]), LightagentError)
        assert (await service.confirmations.confirm(ME, ids[1])).state == "confirmed"
        await service.safety.panic(ME, reason="test")
        set_clock(monkeypatch, HOUR_US)
        await until(lambda: any("not taken back yet" in problem for problem in test.daemon.problems()))
        assert (state(test, ids[0]), file.read_text()) == ("waiting", "two\n")
        await service.safety.end_panic(ME)
        await until(lambda: state(test, ids[0]) == "taken_back")
        assert (file.read_text(), other.read_text()) == ("one\n", "two\n")
        assert "was taken back at" in await refused(service.confirmations.confirm(ME, ids[0]), Conflict)
        assert "confirmed already" in await refused(service.confirmations.confirm(ME, ids[1]), Conflict)
        await refused(service.confirmations.confirm(ME, "call_0"), NotFound)
        assert await service.confirmations.listed(ME) == []


async def test_terms_that_came_after_the_question_do_not_count_as_approved(paths: Paths, file: Path) -> None:
    shell = call("bash_exec", {"command": f"echo two > {file}", "effect": "change"})
    async with asking(paths, [shell, say("done")]) as test:
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            approve = test.daemon.service.approvals.approve
            assert "no inverse" in await refused(approve(ME, question.id, confirm_within="5m"), Conflict)
            for wrong in ("0s", "2d", "-5m", "5 m", "soon", "1e3", "99999999h"):
                await refused(approve(ME, question.id, confirm_within=wrong, inverse="true"), InvalidArgument)
            for inverse in ("file.read {}", "file.write {", "no.such {}", " ", "a\x1b[2J", "x" * 5000):
                wrong_inverse = approve(ME, question.id, confirm_within="5m", inverse=inverse)
                await refused(wrong_inverse, LightagentError)
            await refused(approve(ME, question.id, inverse="true"), InvalidArgument)
            rule = '[[rule]]\nname = "later"\ndecision = "ask"\neffect = "change"\n'
            later = f'{rule}confirm_within = "1h"\ninverse = "rm -r /"\n'
            write(paths.config / "policy.d" / "20.toml", later)
            await test.daemon.reload()
            await approve(ME, question.id)
            events = await turn.end()
        results = [event["result"] for event in events if event["type"] == "tool_result"]
        assert (results, file.read_text()) == (["conflict"], "one\n")


@in_module_loop
@pytest.mark.parametrize(
    ("inverse", "why"),
    [
        ("", "no inverse"),
        ('file.delete {"path": "/x"}', "no-delete"),  # policy would refuse it
        ('file.write {"path": "/x"}', "content"),
        ('file.write {"path": "/x", "content": "", "mode": "rw"}', "mode"),
        ('systemd.start {"unut": "x"}', "unut"),
        ('no.such {"a": 1}', "no.such"),
        ('file.read {"path": "/x"}', "changes nothing"),
    ],
)
async def test_what_cannot_be_taken_back_is_refused_before_it_is_done(
    test: Scripted, file: Path, inverse: str, why: str
) -> None:
    args = {"command": f"echo two > {file}", "effect": "change"}
    ended = await attempt(test, "bash.exec", args, confirm_within="1h", inverse=inverse)
    assert ended["code"] in ("conflict", "invalid_argument"), ended
    assert why in ended["message"]
    assert file.read_text() == "one\n"


@in_module_loop
async def test_only_who_may_approve_sets_terms(test: Scripted, file: Path) -> None:
    terms = {"confirm_within": "1h", "inverse": "true", "outside": True}
    await refused(attempt(test, "file.write", {"path": str(file), "content": ""}, **terms), PermissionDenied)
    assert file.read_text() == "one\n"


@in_module_loop
async def test_a_check_that_passes_confirms(
    test: Scripted, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees the network of the machine, as the command that the approver named needs it."""
    port = free_port()
    call_id = await make_file(test, file, confirm_within="50s", check=f": < /dev/tcp/127.0.0.1/{port}")
    checks = lambda: [one for one in test.stored(topic="tool.bash") if one.data]  # noqa: E731
    await until(checks)
    assert state(test, call_id) == "waiting"
    with socket.create_server(("127.0.0.1", port)):
        await until(lambda: state(test, call_id) == "confirmed")
    assert test.daemon.registry.shared.confirmations.get(call_id).by is None
    intents = [one.data or {} for one in test.stored(topic="agent.tool_dispatch")]
    assert {one["effect"] for one in intents if one.get("trigger") == "confirm"} == {"reach"}
    set_clock(monkeypatch, HOUR_US)
    await asyncio.sleep(0.1)
    assert file.read_text() == "two\n"


@in_module_loop
@pytest.mark.parametrize("by_us", [-24 * HOUR_US, 24 * HOUR_US])
async def test_the_deadline_holds_when_the_clock_is_set(
    test: Scripted, file: Path, monkeypatch: pytest.MonkeyPatch, by_us: int
) -> None:
    call_id = await make_file(test, file)
    set_clock(monkeypatch, by_us)
    if by_us < 0:
        await asyncio.sleep(0.1)
        assert state(test, call_id) == "waiting"
        monkeypatch.setattr(records, "boot_us", lambda: time.clock_gettime_ns(7) // 1000 + HOUR_US)
    await until(lambda: state(test, call_id) == "taken_back")
    assert file.read_text() == "one\n"


@in_module_loop
async def test_a_disk_without_room_keeps_no_change_alive(
    test: Scripted, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the reserve it is taken back; where that is used up, once there is room."""
    call_id = await make_file(test, file)
    history = test.daemon.history
    with monkeypatch.context() as full:
        full.setattr(history.environment, "reserve", lambda: False)
        full.setattr(history.environment, "full", True)
        full.setattr(history, "disk_low", True)
        set_clock(full, HOUR_US)
        await until(lambda: any("not taken back yet" in problem for problem in test.daemon.problems()))
        assert (state(test, call_id), file.read_text()) in {("waiting", "two\n"), ("taking_back", "two\n")}
        full.setattr(history.environment, "full", False)
        await until(lambda: state(test, call_id) == "taken_back")
        ended = await attempt(test, "file.write", {"path": str(file), "content": "three\n"})
        assert "nearly full" in ended["message"], "all other changes are refused"
    assert file.read_text() == "one\n"


async def test_after_a_restart_it_is_tried_once_more_and_nothing_old_acts(paths: Paths, file: Path) -> None:
    tried, other = file.with_name("tried"), file.with_name("other")
    async with scripted(paths, [], front=FRONT, toml=TOML) as test:
        shell = {"command": "true", "effect": "change"}
        failing = await make(test, "bash.exec", shell, confirm_within="1s", inverse=f"echo >> {tried}; false")
        await until(lambda: state(test, failing) == "failed")
        waiting = await make_file(test, file)
        found = test.daemon.registry.shared.confirmations.get(waiting)
        cut = replace(found, id="call_cut", state="running", due_us=0)
        cut = replace(cut, back={**cut.back, "args": {"call_id": "call_cut"}})
        await test.daemon.history.append(changes=[cut.change()])
    async with Daemon(paths) as daemon:
        await until(partial(_stands, daemon, failing, "failed", 2))
        await until(lambda: state(daemon, "call_cut") == "unchanged")
        assert any(failing in problem and "status 1" in problem for problem in daemon.problems())
        assert not any("call_cut" in problem for problem in daemon.problems()), "nothing has happened there"
        installed = HistoryInstalled(
            how="restore", by=0, seq=1, hash="", set_aside="", verified=True, message="a backup was restored"
        )
        await daemon.history.append(installed.event())
        assert state(daemon, waiting) == "waiting"
    (paths.config / "agent" / "test" / "AGENT.md").unlink()
    async with Daemon(paths) as daemon:
        assert _stands(daemon, waiting, "failed", 2), "it belongs to the history before"
        assert any(waiting in problem and "Another history" in problem for problem in daemon.problems())
        gone = replace(found, id="call_gone", due_us=0)
        confirmations_ = daemon.registry.shared.confirmations
        confirmations_._all[gone.id] = gone
        confirmations_._watch(gone)
        await until(lambda: any("not taken back yet" in problem for problem in daemon.problems()))
        assert state(daemon, "call_gone") == "waiting", "its agent is not there any more, which is said"
        assert (await daemon.service.confirmations.confirm(ME, gone.id)).state == "confirmed"
        assert (await daemon.service.confirmations.confirm(ME, failing)).state == "confirmed"
        assert not any(failing in problem for problem in daemon.problems())
    assert tried.read_text().count("\n") == 2
    assert (file.read_text(), other.exists()) == ("two\n", False)


def test_another_boot_counts_what_is_left_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms(within_s=3600)
    before: Confirmation = records.begun(terms, BACK, owner=0, approved_by=None, seat={}, **TEXTS)
    assert before.of_this_boot() is before
    earlier = replace(before, boot="another", boot_due_us=5)
    assert 3590 < earlier.of_this_boot().left_s <= 3600
    set_clock(monkeypatch, -10_000_000)
    assert earlier.of_this_boot().left_s == 0, "the clock was set back, so nobody knows how long ago it was"
    assert before.left_s > 3590


async def test_it_is_taken_back_after_the_daemon_was_stopped_or_killed(paths: Paths, file: Path) -> None:
    """Nobody asks for it, the time is over while the daemon is away, and what is done is not done twice."""
    tried = file.with_name("tried")
    slow = f"echo >> {tried}; test $(wc -l < {tried}) -gt 1 || sleep 60"
    async with ScriptedModel([]) as model:
        define(paths, model, front=FRONT)
        write(paths.config / "lightagentd.toml", TOML)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            await _call(paths, "file", "write", {"path": str(file), "content": "two\n"})
            await asyncio.to_thread(daemon.stop)
            assert file.read_text() == "two\n"
            await asyncio.sleep(1)
            await asyncio.to_thread(daemon.start)
            await until(lambda: file.read_text() == "one\n")
            assert [one["tries"] for one in await until_taken_back(paths)] == [1]
            file.write_text("three\n")
            await _call(paths, "bash", "exec", {"command": "true", "effect": "change"}, inverse=slow)
            await until(lambda: tried.exists() and tried.read_text())
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            assert [one["tries"] for one in await until_taken_back(paths)] == [1, 2]
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            await until_taken_back(paths)
            assert (tried.read_text().count("\n"), file.read_text()) == (2, "three\n")
        finally:
            await asyncio.to_thread(daemon.close)


async def _call(paths: Paths, tool: str, action: str, args: dict[str, Any], **terms: str) -> None:
    async with AsyncClient(paths.socket) as client:
        about = {"agent": "test", "tool": tool, "action": action, "args": args, "confirm_within": "1s"}
        replies = [one async for one in client.stream("Tools.Call", **about, **terms)]
    assert replies[-1]["event"]["type"] == "done", replies[-1]


async def until_taken_back(paths: Paths) -> list[dict[str, Any]]:
    """Ask the daemon of a process until all changes are taken back; gives them."""
    async with asyncio.timeout(60):
        while True:
            async with AsyncClient(paths.socket) as client:
                listed = (await client.call("Confirmations.List", all=True))["confirmations"]
            if {one["state"] for one in listed} == {"taken_back"}:
                return list(listed)
            await asyncio.sleep(0.05)


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


async def test_no_user_takes_all_room_and_what_is_over_is_forgotten(paths: Paths) -> None:
    one = records.begun(Terms(within_s=60), BACK, owner=1, approved_by=None, seat={}, **TEXTS)
    history = History(paths.history)
    await history.start()
    kept = Confirmations(history)
    kept._all = {f"call_{n}": replace(one, id=f"call_{n}", state="waiting") for n in range(50)}
    with pytest.raises(Conflict, match="Too many"):
        kept.check_room(1)
    kept.check_room(2)
    over = {f"over_{n}": replace(one, id=f"over_{n}", state="confirmed", begun_us=2) for n in range(201)}
    kept._all = {"oldest": replace(one, id="oldest", state="waiting", begun_us=1), **over}
    assert (await kept.confirm("oldest", 0)).state == "confirmed"
    assert "oldest" in kept._all
    assert len(kept._all) == 201
    await kept.close()
    await history.close()


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
