"""The pool, with real workers: what a caller gets when calls are cancelled, and when workers hang or die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from lightagentd.config import configuration
from lightagentd.errors import OutcomeUnknown, TimedOut, WorkerUnavailable
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect, Place
from lightagentd.worker import pool as pool_module
from lightagentd.worker import room, sandbox
from lightagentd.worker.lanes import SHARED_CONNECTIONS
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.pool import Pool
from lightagentd.worker.source import Child, Whom
from tests.worker import running
from tests.worker.running import (
    PATIENCE_S,
    a_call,
    events,
    local,
    marked,
    marker,
    runs,
    shell,
    until,
    wait_until,
)

PROBE = Path(__file__).with_name("probe.py")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_paths() -> Iterator[Paths]:
    with running.folders() as made:
        shutil.copy(PROBE, made.config / "tools/probe.py")
        yield made


@pytest.fixture
async def own_pool(own_paths: Paths) -> AsyncIterator[Pool]:
    pool = Pool(configuration.Worker(), own_paths)
    await pool.start()
    yield pool
    await pool.close()


def processes(pool: Pool) -> list[psutil.Process]:
    """What the pool's workers consist of: bwrap and keepers first, the workers last."""
    found = []
    for one in pool.workers():
        top = psutil.Process(one.pid)
        found += [top, *top.children(recursive=True)]
    return found


async def test_a_worker_starts_with_the_first_call_and_stays_for_the_next(own_pool: Pool) -> None:
    assert own_pool.workers() == []
    (first,) = await events(own_pool, "probe", "noop")
    (second,) = await events(own_pool, "probe", "noop")
    assert (first["metadata"]["calls"], second["metadata"]["calls"]) == (1, 2)
    assert len(own_pool.workers()) == 1


async def test_agents_and_effects_do_not_share_a_worker(own_pool: Pool) -> None:
    for agent in ("ops", "dev"):
        for effect in (Effect.OBSERVE, Effect.REACH):
            (result,) = await events(own_pool, "probe", "noop", agent=agent, effect=effect)
            assert result["metadata"]["calls"] == 1
    assert len(own_pool.workers()) == 4
    await own_pool.end_agent("dev")
    assert {one.agent for one in own_pool.workers()} == {"ops"}


async def test_owners_do_not_share_a_worker(own_pool: Pool) -> None:
    for owner in (1000, 1001):
        (result,) = await events(own_pool, "probe", "noop", owner=owner)
        assert result["metadata"]["calls"] == 1
        await own_pool.check("ops", Effect.OBSERVE, "probe", "noop", {}, owner=owner)
    assert sorted(one.owner for one in own_pool.workers()) == [1000, 1001]


async def test_another_worker_takes_the_place_of_the_one_that_was_idle_longest(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(max_workers=4), own_paths)
    await pool.start()
    try:
        for owner in (1, 2, 3, 4, 1, 5):
            await events(pool, "probe", "noop", owner=owner)
        assert {one.owner for one in pool.workers()} == {1, 3, 4, 5}
        await events(pool, "probe", "noop", owner=0)
        assert {one.owner for one in pool.workers()} == {0, 1, 3, 4, 5}, "root's is not one of the four"
    finally:
        await pool.close()


async def test_at_the_limit_an_idle_worker_is_handed_over_among_the_agents_of_one_person(
    own_paths: Paths,
) -> None:
    pool = Pool(configuration.Worker(max_workers=4), own_paths)
    await pool.start()

    async def noop(agent: str, owner: int = 7) -> tuple[int, int]:
        """Which worker it was, and its how manieth call."""
        (result,) = await events(pool, "probe", "noop", agent=agent, owner=owner)
        return result["metadata"]["pid"], result["metadata"]["calls"]

    try:
        first, second = await noop("a"), await noop("b")
        assert first[0] != second[0], "there is room for two"
        assert await noop("c") == (first[0], 2), "the one that was idle longest"
        assert await noop("a") == (second[0], 2)
        assert await noop("a") == (second[0], 3), "it is its own now"
        assert sorted(one.agent for one in pool.workers()) == ["a", "c"]
        await pool.end_agent("c")
        assert [one.agent for one in pool.workers()] == ["a"]
        assert (await noop("d"))[1] == 1, "there is room for one again"
        before = {one.child for one in pool.workers()}
        await events(pool, "bash", "exec", agent="e", owner=7, command="true", effect=Effect.REACH)
        (reaching,) = (one.child for one in pool.workers() if one.where is Effect.REACH)
        assert reaching not in before, "never that of another effect"
        for owner in (8, 9, 10):
            assert (await noop("a", owner=owner))[1] == 1, "never another person's"
        assert len(pool.workers()) == 4
    finally:
        await pool.close()


async def test_a_worker_with_several_idle_connections_makes_room(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(max_workers=4), own_paths)
    await pool.start()
    try:
        watcher = Whom("ops", Place.WATCHER, 1)
        async with pool._worker(watcher, 1), pool._worker(watcher, 1):
            pass
        for owner in (2, 3, 4, 5):
            await events(pool, "probe", "noop", owner=owner)
        assert {one.owner for one in pool.workers()} == {2, 3, 4, 5}
    finally:
        await pool.close()


async def test_one_owner_gets_half_of_what_others_leave_and_root_some_that_are_left_to_it(
    own_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(configuration.Worker(max_workers=4), own_paths)
    await pool.start()

    async def refused(owner: int) -> None:
        with monkeypatch.context() as short:
            short.setattr(room, "PATIENCE_S", 0.1)
            with pytest.raises(WorkerUnavailable, match="busy"):
                await events(pool, "probe", "noop", agent="c", owner=owner)

    try:
        async with contextlib.AsyncExitStack() as held:
            for whom in (Whom("a", Effect.OBSERVE, 7), Whom("b", Effect.OBSERVE, 7)):
                await held.enter_async_context(pool._worker(whom))
            await refused(7)
            await held.enter_async_context(pool._worker(Whom("a", Effect.OBSERVE, 8)))
            await refused(8)
            await held.enter_async_context(pool._worker(Whom("a", Effect.OBSERVE, 9)))
            await refused(10)
            await events(pool, "probe", "noop", owner=0)
        await events(pool, "probe", "noop", owner=10)
    finally:
        await pool.close()


async def test_a_burst_of_one_owner_leaves_workers_to_others(
    own_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are about to start count, too, while not one of them has started."""
    pool = Pool(configuration.Worker(max_workers=8), own_paths)
    await pool.start()
    most, opened, going = 0, running.local(pool).open, 0

    async def count(whom: Whom) -> Child:
        nonlocal most, going
        going += 1
        most = max(most, going + len(pool.workers()))
        try:
            return await opened(whom)
        finally:
            going -= 1

    monkeypatch.setattr(running.local(pool), "open", count)
    try:
        await asyncio.gather(*(events(pool, "probe", "noop", agent=f"a{n}", owner=7) for n in range(8)))
        assert most <= 4
    finally:
        await pool.close()


async def test_calls_that_wait_for_a_place_take_turns(
    own_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(configuration.Worker(max_workers=4), own_paths)
    await pool.start()
    opened, order = running.local(pool).open, list[str]()

    async def note(whom: Whom) -> Child:
        order.append(whom.agent)
        return await opened(whom)

    monkeypatch.setattr(running.local(pool), "open", note)
    names = [f"a{number:02}" for number in range(12)]

    async def stale(name: str) -> None:
        """A call whose worker nobody can take over."""
        async with pool._worker(Whom(name, Effect.OBSERVE, 7)) as worker:
            worker.outdated = True

    try:
        await asyncio.gather(*map(stale, names))
        assert order == names
    finally:
        await pool.close()


async def test_one_owner_leaves_connections_to_a_place_to_others(own_pool: Pool) -> None:
    keys = Whom("", Place.KEYS)
    async with contextlib.AsyncExitStack() as held:
        for _ in range(SHARED_CONNECTIONS // 4):
            await held.enter_async_context(own_pool._worker(keys, 7))
        waiting = [asyncio.ensure_future(own_pool._worker(keys, 7).__aenter__()) for _ in range(40)]
        for owner in (8, 0):
            await held.enter_async_context(own_pool._worker(keys, owner))
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_calls_beyond_the_limit_wait_in_line(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(max_per_effect=2), own_paths)
    await pool.start()
    try:
        results = await asyncio.gather(*(events(pool, "probe", "noop") for _ in range(6)))
        assert len(results) == 6
        assert len(pool.workers()) == 2
    finally:
        await pool.close()


async def test_an_idle_worker_is_ended(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(idle_timeout_s=0.3), own_paths)
    await pool.start()
    try:
        await events(pool, "probe", "noop")
        started = processes(pool)
        await until(lambda: not pool.workers(), "the worker stays")
        await until(lambda: not any(map(runs, started)), "its processes stay")
        await until(lambda: not list(own_paths.workers.iterdir()), "its socket stays")
        (result,) = await events(pool, "probe", "noop")
        assert result["metadata"]["calls"] == 1
    finally:
        await pool.close()


async def test_a_cancelled_call_ends_all_that_it_started_and_keeps_the_worker(own_pool: Pool) -> None:
    mark = marker()
    await events(own_pool, "probe", "noop")
    command = f"trap '' TERM; setsid sleep {mark} & (sleep {mark} &); sleep {mark}"
    call = asyncio.create_task(shell(own_pool, command))
    await until(lambda: len(marked(mark)) == 3, "the command does not start")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert marked(mark) == []
    (result,) = await events(own_pool, "probe", "noop")
    assert result["metadata"]["calls"] == 2


async def test_a_call_that_is_cancelled_twice_loses_no_worker(own_pool: Pool) -> None:
    mark = marker()
    call = asyncio.create_task(shell(own_pool, f"trap '' TERM; sleep {mark}"))
    await until(lambda: marked(mark), "the command does not start")
    call.cancel()
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await shell(own_pool, "echo again") == "again\n"
    await until(lambda: marked(mark) == [], "the command stays")
    assert await shell(own_pool, "echo again") == "again\n"


@pytest.mark.parametrize("patience_s", [PATIENCE_S, 0.0], ids=["by its keeper", "by the daemon"])
async def test_a_worker_that_ignores_the_cancel_is_killed(
    own_pool: Pool, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(pool_module, "OVERTIME_S", 0.3)
    monkeypatch.setattr(sandbox, "KILL_PATIENCE_S", patience_s)
    await events(own_pool, "probe", "noop")
    started = processes(own_pool)
    with pytest.raises(TimedOut):
        await events(own_pool, "probe", "block", seconds=600.0, timeout_s=0.2)
    assert not any(map(runs, started))
    (result,) = await events(own_pool, "probe", "noop")
    assert result["metadata"]["calls"] == 1


async def test_a_lost_worker_is_an_unknown_outcome_and_leaves_nothing(own_pool: Pool) -> None:
    mark = marker()
    call = asyncio.create_task(shell(own_pool, f"setsid sleep {mark} & sleep {mark}"))
    await until(lambda: len(marked(mark)) == 2, "the command does not start")
    (worker,) = [one for one in processes(own_pool) if one.pid == _worker_pid(mark)]
    worker.kill()
    with pytest.raises(OutcomeUnknown):
        await call
    assert marked(mark) == []
    assert await shell(own_pool, "echo again") == "again\n"


async def test_a_lost_keeper_takes_the_worker_and_its_commands_with_it(own_pool: Pool) -> None:
    mark = marker()
    if own_pool.backend.ends is not Ends.DOMAIN:
        pytest.skip("a namespace's init has no keeper")
    call = asyncio.create_task(shell(own_pool, f"setsid sleep {mark} & sleep {mark}"))
    await until(lambda: len(marked(mark)) == 2, "the command does not start")
    started = processes(own_pool)
    psutil.Process(_worker_pid(mark)).parent().kill()  # type: ignore[union-attr]  # it has one
    with pytest.raises(OutcomeUnknown):
        await call
    await until(lambda: marked(mark) == [], "the command stays")
    await until(lambda: not any(map(runs, started)), "the worker stays")


def _worker_pid(mark: str) -> int:
    """The worker that runs the marked command: the parent of the shell."""
    for pid in marked(mark):
        for above in psutil.Process(pid).parents():
            if "lightagentd.worker.keeper" in above.cmdline():
                return above.pid
    raise AssertionError("no worker runs the command")


async def test_calls_share_the_new_worker_of_a_place_while_an_old_one_is_busy(own_pool: Pool) -> None:
    watcher = Whom("ops", Place.WATCHER, 1000)
    async with own_pool._worker(watcher) as old:
        await own_pool.end_watchers("ops")
        async with own_pool._worker(watcher) as second, own_pool._worker(watcher) as third:
            assert second.child is third.child is not old.child
    assert len(own_pool.workers()) == 1


async def test_a_worker_that_died_while_it_was_idle_is_replaced(own_pool: Pool) -> None:
    await events(own_pool, "probe", "noop")
    for process in processes(own_pool):
        process.kill()
    await until(lambda: not own_pool.workers()[0].running, "it is not noticed")
    (result,) = await events(own_pool, "probe", "noop")
    assert result["metadata"]["calls"] == 1


async def test_a_check_whose_worker_is_killed_is_made_by_another(own_pool: Pool) -> None:
    await events(own_pool, "probe", "noop")
    [worker] = own_pool.workers()
    started = processes(own_pool)
    for process in started:
        process.suspend()
    check = asyncio.create_task(own_pool.check("ops", Effect.OBSERVE, "probe", "noop", {}))
    await until(lambda: worker.busy, "it is not asked")
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before it
            process.kill()
    assert (await check).args == {}


async def test_after_a_reload_every_call_gets_a_worker_with_the_new_files(
    own_pool: Pool, own_paths: Paths
) -> None:
    mark = marker()
    go = own_paths.config / "go"
    busy = asyncio.create_task(shell(own_pool, f"sleep {mark} & until test -e {go}; do sleep 0.05; done"))
    await until(lambda: marked(mark), "the command does not start")
    await own_pool.end_idle_now()
    go.touch()
    await busy
    (own_paths.config / "tools/added.py").write_text(
        PROBE.read_text().replace("class Probe", "class Added").replace('"probe"', '"added"')
    )
    (result,) = await events(own_pool, "added", "noop")
    assert result["output"] == "done"


async def test_a_closed_pool_starts_nothing(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(max_per_effect=1), own_paths)
    await pool.start()
    calls = [asyncio.create_task(events(pool, "probe", "deaf", seconds=30.0)) for _ in range(3)]
    await until(lambda: pool.workers(), "no worker starts")
    await pool.close()
    for call in calls:
        with pytest.raises((OutcomeUnknown, WorkerUnavailable)):
            await call
    assert pool.workers() == []
    assert list(own_paths.workers.iterdir()) == []


async def test_a_worker_that_cannot_start_is_said_to_be_unavailable(
    own_pool: Pool, own_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerUnavailable):
        await events(own_pool, "probe", "noop")
    assert own_pool.workers() == []
    assert list(own_paths.workers.iterdir()) == []


async def test_a_description_that_is_given_up_leaves_no_worker(own_pool: Pool) -> None:
    """As by a reload: its answer may still be on the way."""
    describing = asyncio.create_task(own_pool.describe())
    await until(lambda: any(one.busy for one in own_pool.workers()), "it describes")
    describing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await describing
    assert own_pool.workers() == []
    assert "probe" in {tool["name"] for tool in await own_pool.describe()}
    assert own_pool.workers() == []


async def test_an_abandoned_call_does_not_block_its_worker(own_pool: Pool) -> None:
    call = a_call(
        "bash", "exec", effect=Effect.OBSERVE, agent="ops", timeout_s=60.0, command="echo shown; sleep 50"
    )
    async with contextlib.aclosing(own_pool.call(call)) as found:
        async for event in found:
            assert event["text"] == "shown\n"
            break
    assert await shell(own_pool, "echo again") == "again\n"
    assert len(own_pool.workers()) == 1


async def test_cancel_does_not_wait_for_a_worker_that_was_stopped(
    own_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OVERTIME_S", 120.0)
    monkeypatch.setattr(sandbox, "END_GRACE_S", 120.0)
    mark = marker()
    task = asyncio.create_task(shell(own_pool, f"sleep {mark}", timeout_s=600.0))
    await until(lambda: marked(mark), "the command does not start")
    [worker] = own_pool.workers()
    for process in psutil.Process(worker.pid).children(recursive=True):
        process.suspend()
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([task])
    assert task.cancelled()
    await until(lambda: not marked(mark), "it is killed, and the kernel takes it down")
    assert await shell(own_pool, "echo again") == "again\n"


DAEMON = """
import asyncio, sys
from pathlib import Path
from lightagentd.config import configuration as config
from lightagentd.host.paths import Paths
from lightagentd.worker.pool import Pool
from tests.worker.running import shell

async def main(base, mark):
    pool = Pool(config.Worker(), Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
    await pool.start()
    await shell(pool, f"trap '' TERM; setsid sleep {mark} & sleep {mark}; sleep {mark}", timeout_s=600.0)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_daemon_is_killed_its_workers_and_their_commands_end(
    own_paths: Paths, signum: signal.Signals
) -> None:
    mark = marker()
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(own_paths.config.parent), mark],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(marked(mark)) == 3, "the command does not start")  # the daemon has it, too
        below = psutil.Process(daemon.pid).children(recursive=True)
    finally:
        daemon.send_signal(signum)
        daemon.wait()
    wait_until(lambda: marked(mark) == [], "the command stays")
    wait_until(lambda: not any(map(runs, below)), "the worker stays")


@pytest.mark.skipif(os.geteuid() == 0, reason="nobody cannot run the tests' interpreter everywhere")
async def test_without_a_sandbox_calls_work_and_leave_nothing(own_paths: Paths) -> None:
    pool = Pool(configuration.Worker(sandbox="none"), own_paths)
    await pool.start()
    try:
        mark = marker()
        leave = f"setsid sleep {mark} >/dev/null 2>&1 & (sleep {mark} >/dev/null 2>&1 &)"
        await shell(pool, leave)
        assert marked(mark) == []
        (result,) = await events(pool, "probe", "who", effect=Effect.CHANGE)
        assert result["output"] == f"{os.getuid()} change True"
        await shell(pool, leave, Effect.CHANGE)
        assert marked(mark) == []
    finally:
        await pool.close()


BUS = """
import socket, sys
for name in ("/run/dbus/system_bus_socket", sys.argv[1], "\\0" + sys.argv[2]):
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(name)
    except OSError:
        print("refused")
    else:
        print("connected")
"""


@pytest.mark.usefixtures("sandboxed")
async def test_with_a_bus_in_the_sandbox_no_other_socket_can_be_reached(
    own_pool: Pool, own_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_pool.backend.ends is not Ends.DOMAIN:
        pytest.skip("without scopes abstract sockets can be reached, and the backend says so")
    folder = own_paths.config.parent / "sockets"
    folder.mkdir()
    with (
        socket.socket(socket.AF_UNIX) as bus,
        socket.socket(socket.AF_UNIX) as other,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        bus.bind(str(folder / "bus"))
        other.bind(str(folder / "other"))
        abstract.bind(f"\0{folder}")
        for sock in (bus, other, abstract):
            sock.listen()
        for name in ("bus", "other"):
            (folder / name).chmod(0o777)
        monkeypatch.setattr(local(own_pool).bus, "path", folder / "bus")
        said = await shell(own_pool, f"python3 -c '{BUS}' {folder}/other {folder}")
        monkeypatch.undo()
    assert said.split() == ["connected", "refused", "refused"]
