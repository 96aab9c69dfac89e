"""Watches through the daemon: what reaches the history by itself, and what a lost worker or daemon costs.

With real workers, in the sandbox that works here. The watched folders are open to others, since the workers
of a daemon of root's are the user nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightagentd.agents import watches
from lightagentd.agents.watches import result_of
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError, NotFound
from lightagentd.events.model import Event, within
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect, Place
from lightagentd.worker.pool import Call
from tests.agents.scripted import ME, scripted, until
from tests.conftest import write
from tests.scripted_model import call, say
from tests.worker import running

FORGER = """
from lightagentd.tool import Args, Context, Place, Result, Tool, action


class SayArgs(Args):
    topic: str
    type: str
    data: dict[str, str]


class Forger(Tool):
    "A tool that publishes what it is told to."

    name = "forger"

    @action(place=Place.WATCHER)
    async def say(self, ctx: Context, args: SayArgs) -> Result:
        "Publish something."
        self.publish(args.topic, args.type, {"data": args.data, **args.data})
        return Result(output="said")
"""

CALLER = 4242
"""Somebody else than the owner."""
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def open_paths() -> Iterator[Paths]:
    with running.folders() as made:
        yield made


@pytest.fixture
def folder(open_paths: Paths) -> Path:
    made = open_paths.state.parent / "watched"
    made.mkdir()
    made.chmod(0o755)
    return made


@pytest.fixture
async def daemon(open_paths: Paths) -> AsyncIterator[Daemon]:
    async with Daemon(open_paths) as started:
        yield started


def inotify(action: str, session: str = "", tool: str = "inotify", **args: Any) -> Call:
    return Call(
        call_id=f"call_{next(_numbers):016x}",
        tool=tool,
        action=action,
        args=args,
        agent="ops",
        session=session,
        effect=Effect.OBSERVE,
        timeout_s=60,
        owner=os.getuid(),
        place=Place.WATCHER,
    )


async def watch(daemon: Daemon, path: Path, **args: Any) -> str:
    """A watch that stands, and that the daemon knows of."""
    made = await result_of(daemon.pool, inotify("watch", path=str(path), **args))
    assert made["whole"]
    await until(lambda: made["watch"] in daemon.registry.shared.watches.records)
    await until(lambda: any(event.type == "watch_started" for event in events(daemon)))
    return str(made["watch"])


def events(daemon: Daemon, event_type: str = "") -> list[Event]:
    """The stored events about watches, other than calls."""
    found = daemon.history.queries.select(Filter(topic="tool.inotify"), limit=10_000)
    return [one for one in found if one.type != "invocation" and event_type in ("", one.type)]


def changed(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """Each path that an event told of, with the last change of it."""
    told = [event.data for event in events(daemon, "fs_event")]
    return {change["path"]: change for data in told if data for change in data["changes"]}


def kill_watcher(daemon: Daemon) -> None:
    """As kill -9 does: the worker itself, below its keeper and bwrap."""
    [watcher] = [one for one in daemon.pool.workers() if one.where is Place.WATCHER]
    parent = psutil.Process(watcher.pid)
    leaf = [one for one in (parent, *parent.children(recursive=True)) if not one.children()]
    leaf[0].send_signal(signal.SIGKILL)


async def test_events_reach_the_history_though_nobody_polls(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    (folder / "file").write_text("x")
    await until(lambda: str(folder / "file") in changed(daemon))
    [event] = events(daemon, "fs_event")
    assert event.topic == "tool.inotify.event"
    assert event.source == "tool"
    assert event.agent == "ops"
    assert event.owner == os.getuid()
    assert event.data is not None
    assert event.data["watch"] == made
    assert event.data["changes"][0]["events"] == ["create", "modify", "close_write"]


async def test_events_carry_session_and_trace_of_the_turn_that_made_the_watch(
    open_paths: Paths, folder: Path
) -> None:
    script = [call("inotify_watch", {"path": str(folder)}), say("I watch it.")]
    async with scripted(open_paths, script) as test:
        session = await test.session()
        with within(caller=CALLER):
            turn = await test.prompt(session)
        assert turn[-1]["type"] == "done"
        (folder / "file").touch()
        await until(lambda: str(folder / "file") in changed(test.daemon))
        for event in (*events(test.daemon, "watch_started"), *events(test.daemon, "fs_event")):
            assert event.session == session.id
            assert event.owner == ME.uid
            assert event.trace_id == test.stored(topic="agent.prompt")[0].trace_id
            assert (event.agent, event.caller) == ("test", CALLER)
        assert not session.record.tainted  # what happens in files is not in the conversation


async def test_a_watch_keeps_its_caller_over_a_restart(open_paths: Paths, folder: Path) -> None:
    script = [call("inotify_watch", {"path": str(folder)}), say("I watch it.")]
    async with scripted(open_paths, script) as test:
        session = await test.session()
        with within(caller=CALLER):
            await test.prompt(session)
        await until(lambda: events(test.daemon, "watch_started"))
    async with scripted(open_paths, script) as test:
        await until(lambda: events(test.daemon, "gap"))
        (folder / "file").touch()
        await until(lambda: str(folder / "file") in changed(test.daemon))
        assert {event.caller for event in events(test.daemon)} == {CALLER}


async def test_polling_taints_the_session(open_paths: Paths, folder: Path) -> None:
    async with scripted(open_paths, [call("inotify_list", {}), say("None.")]) as test:
        session = await test.session()
        await test.prompt(session)
        assert session.record.tainted


async def test_a_killed_worker_is_replaced_and_the_gap_is_an_event(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder, recursive=True)
    kill_watcher(daemon)
    (folder / "in the gap").touch()
    await until(lambda: events(daemon, "gap"))
    [gap] = [event.data for event in events(daemon, "gap")]
    assert gap is not None
    assert gap["watch"] == made
    assert gap["why"] == "the worker was lost"
    assert gap["from_us"] < gap["to_us"]
    await until(lambda: str(folder / "in the gap") in changed(daemon))
    (folder / "after").touch()
    await until(lambda: str(folder / "after") in changed(daemon))
    page = await result_of(daemon.pool, inotify("poll", watch=made))
    assert page["watch"] == made
    assert daemon.registry.shared.watches.problems() == []


async def test_a_worker_that_is_killed_again_and_again(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    for count in range(1, 4):
        kill_watcher(daemon)
        await until(partial(_gaps_are, daemon, count))
    (folder / "file").touch()
    await until(lambda: str(folder / "file") in changed(daemon))
    assert {record.watch for record in daemon.registry.shared.watches.records.values()} == {made}


def _gaps_are(daemon: Daemon, count: int) -> bool:
    return len(events(daemon, "gap")) == count


def _is_told(daemon: Daemon, path: Path) -> bool:
    return str(path) in changed(daemon)


async def test_watches_survive_a_restart_of_the_daemon(open_paths: Paths, folder: Path) -> None:
    async with Daemon(open_paths) as first:
        made = await watch(first, folder)
    (folder / "meanwhile").touch()
    async with Daemon(open_paths) as second:
        await until(lambda: str(folder / "meanwhile") in changed(second))
        await until(lambda: events(second, "gap"))
        [gap] = [event.data for event in events(second, "gap")]
        assert gap is not None
        assert gap["why"] == "the daemon was not running"
        (folder / "now").touch()
        await until(lambda: str(folder / "now") in changed(second))
        assert [one["watch"] for one in await listed(second)] == [made]
        assert not events(second, "watch_stopped")


async def listed(daemon: Daemon, session: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await result_of(daemon.pool, inotify("list", session)))["watches"]
    return found


async def test_a_stopped_watch_is_forgotten(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    await result_of(daemon.pool, inotify("stop", watch=made))
    await until(lambda: events(daemon, "watch_stopped"))
    assert daemon.history.queries.state("watches") == {}
    assert daemon.registry.shared.watches.records == {}


async def test_the_watches_of_an_agent_end_with_it(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    await daemon.registry.get("ops").stop()
    [stopped] = [event.data for event in events(daemon, "watch_stopped")]
    assert stopped is not None
    assert (stopped["watch"], stopped["reason"]) == (made, "the agent was stopped")
    assert daemon.history.queries.state("watches") == {}
    await daemon.registry.get("ops").start()
    assert await listed(daemon) == []


async def test_the_watches_of_a_session_end_with_it(daemon: Daemon, folder: Path) -> None:
    mine, other = [(await daemon.service.sessions.create(ME, "ops", "")).id for _ in range(2)]
    for session in (mine, other):
        await result_of(daemon.pool, inotify("watch", session, path=str(folder)))
    await until(lambda: len(daemon.registry.shared.watches.records) == 2)
    await daemon.registry.shared.watches.end_session(mine)
    assert [event.session for event in events(daemon, "watch_stopped")] == [mine]
    assert await listed(daemon, mine) == []
    assert len(await listed(daemon, other)) == 1


async def test_the_watches_of_one_session_are_not_there_for_another(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    for action in ("poll", "stop"):
        with pytest.raises(NotFound):
            await result_of(daemon.pool, inotify(action, "ses_0123456789abcdef", watch=made))
    assert len(await listed(daemon)) == 1


async def test_a_reload_makes_the_watches_again(daemon: Daemon, folder: Path) -> None:
    made = await watch(daemon, folder)
    [before] = [one.pid for one in daemon.pool.workers() if one.where is Place.WATCHER]
    await daemon.reload()
    await until(lambda: events(daemon, "gap"))
    [after] = [one.pid for one in daemon.pool.workers() if one.where is Place.WATCHER]
    assert before != after
    assert [one["watch"] for one in await listed(daemon)] == [made]


async def test_the_daemons_own_writes_are_no_events(daemon: Daemon, open_paths: Paths, folder: Path) -> None:
    """Each event is a write to the history; told of, that would be an event."""
    await watch(daemon, open_paths.state.parent, recursive=True)
    for number in range(3):
        (folder / f"{number}").touch()
        await until(partial(_is_told, daemon, folder / f"{number}"))
    assert set(changed(daemon)) == {str(folder / f"{number}") for number in range(3)}
    assert len(events(daemon, "fs_event")) == 3


@pytest.mark.parametrize("sandbox", ["auto", "none"])
async def test_the_daemons_own_folders_cannot_be_watched(open_paths: Paths, sandbox: str) -> None:
    write(open_paths.config / "lightagentd.toml", f'[worker]\nsandbox = "{sandbox}"\n')
    async with Daemon(open_paths) as started:
        for path in (open_paths.state, open_paths.history, open_paths.runtime):
            with pytest.raises(LightagentError):
                await result_of(started.pool, inotify("watch", path=str(path)))


async def test_without_a_sandbox_the_daemons_own_writes_are_no_events_either(
    open_paths: Paths, folder: Path
) -> None:
    """Here nothing but the engine hides the daemon's folders."""
    write(open_paths.config / "lightagentd.toml", '[worker]\nsandbox = "none"\n')
    open_paths.state.chmod(0o755)
    async with Daemon(open_paths) as started:
        open_paths.history.chmod(0o755)
        await watch(started, open_paths.state.parent, recursive=True)
        (folder / "file").touch()
        await until(lambda: str(folder / "file") in changed(started))
        (folder / "other").touch()
        await until(lambda: str(folder / "other") in changed(started))
        assert set(changed(started)) == {str(folder / "file"), str(folder / "other")}


async def test_a_watch_that_policy_allows_no_more_is_not_made_again(open_paths: Paths, folder: Path) -> None:
    async with Daemon(open_paths) as first:
        await watch(first, folder)
    text = "---\ntools: [proc]\n---\nBe brief.\n"
    write(open_paths.config / "agent" / "ops" / "AGENT.md", text)
    async with Daemon(open_paths) as second:
        await until(lambda: events(second, "watch_stopped"))
        [stopped] = [event.data for event in events(second, "watch_stopped")]
        assert stopped is not None
        assert "policy" in stopped["reason"]
        assert second.history.queries.state("watches") == {}
        assert len(events(second, "watch_started")) == 1


async def test_a_root_that_went_meanwhile_is_waited_for(open_paths: Paths, folder: Path) -> None:
    async with Daemon(open_paths) as first:
        await watch(first, folder)
    folder.rmdir()
    async with Daemon(open_paths) as second:
        await until(lambda: events(second, "gap"))
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "file").touch()
        await until(lambda: str(folder / "file") in changed(second))


async def test_a_watcher_speaks_for_its_agents_watches_only(open_paths: Paths, folder: Path) -> None:
    write(open_paths.config / "tools" / "forger.py", FORGER)
    async with Daemon(open_paths) as started:
        made = await watch(started, folder)

        async def forge(topic: str, kind: str, **data: str) -> None:
            await result_of(started.pool, inotify("say", tool="forger", topic=topic, type=kind, data=data))

        await forge("tool.inotify.event", "fs_event", watch="watch_of_nobody")
        await forge("tool.inotify", "watch_started", watch="watch_new", call_id="call_of_nobody")
        await forge("tool.inotify", "gap", watch=made)
        await forge("agent.message", "message", watch=made, role="user")
        await forge("tool.bash", "invocation", watch=made)
        await forge("tool.inotify.event", "overflow", watch=made, session="ses_other", owner="0")
        await forge("tool.forger.seen", "seen", what="this")
        await until(lambda: started.history.queries.select(Filter(topic="tool.forger.seen")))
        assert {event.type for event in events(started)} == {"watch_started", "overflow"}
        assert list(started.registry.shared.watches.records) == [made]
        [overflow] = events(started, "overflow")
        assert overflow.session == ""
        assert overflow.owner == os.getuid()
        assert overflow.data is not None
        assert overflow.data["session"] == ""
        assert not started.history.queries.select(Filter(topic="tool.bash"))
        assert not started.history.queries.select(Filter(topic="agent.message"))


async def test_an_agent_without_a_watch_is_not_followed_for_ever(daemon: Daemon) -> None:
    assert await listed(daemon) == []
    [follower] = daemon.registry.shared.watches._followers.values()
    follower._until = 0.0
    follower._changed.set()
    await asyncio.wait_for(follower.task, 20)


async def test_a_watcher_that_cannot_be_started_is_a_problem(
    daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch(daemon, folder)
    workers = daemon.paths.workers
    hidden = workers.with_name("hidden")
    workers.rename(hidden)
    with contextlib.suppress(psutil.Error):
        kill_watcher(daemon)
    await until(daemon.registry.shared.watches.problems)
    assert "ops" in daemon.problems()[-1]
    hidden.rename(workers)
    (folder / "file").touch()
    await until(lambda: str(folder / "file") in changed(daemon))
    assert daemon.registry.shared.watches.problems() == []
