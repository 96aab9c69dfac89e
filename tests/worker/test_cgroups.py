"""Cgroups of calls, in the hierarchy of this machine: who joins, who ends, and that each call ends alone."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from lightagentd.errors import OutcomeUnknown, ToolError
from lightagentd.host import process
from lightagentd.worker import cgroups
from lightagentd.worker.cgroups import CallCgroup, CallCgroups, own_cgroup
from tests.worker.running import marked, marker, wait_until


@pytest.fixture
def unit() -> Iterator[Path]:
    """A cgroup that may be used as that of a unit."""
    try:
        folder = own_cgroup() / f"lightagentd-test-{os.getpid()}"
        folder.mkdir()
    except OSError as err:
        pytest.skip(f"no cgroup can be made here: {err}")
    yield folder
    (folder / "cgroup.kill").write_text("1")  # where a test has failed
    for inner, _, _ in os.walk(folder, topdown=False):
        Path(inner).rmdir()


@pytest.fixture(autouse=True)
def joining() -> Iterator[None]:
    process.before_exec(cgroups.join)
    yield
    process.before_exec(None)


async def start_apart(mark: str, folder: Path, command: str = "exec sleep {mark}") -> None:
    """Leave a process in a session of its own behind, and return when it is there."""
    seen = folder / f"seen-{mark}"
    inner = f"touch {seen}; {command.format(mark=mark)}"
    await shell(f"setsid sh -c '{inner}' > /dev/null 2>&1 & until test -e {seen}; do sleep 0.01; done")
    wait_until(lambda: marked(mark), "it does not start")


async def shell(command: str) -> str:
    done = await process.run(["/bin/sh", "-c", command], timeout_s=30.0)
    return done.stdout.text()


async def test_command_of_a_call_is_in_its_cgroup_and_the_worker_is_not(unit: Path) -> None:
    held = CallCgroups(unit).make("call_1")
    with held:
        said = await shell("cat /proc/self/cgroup")
    assert f"{unit.name}/call-call_1" in said
    assert unit.name not in Path("/proc/self/cgroup").read_text()
    assert unit.name not in await shell("cat /proc/self/cgroup")
    await held.end()
    assert list(unit.glob("call-*")) == []


async def test_task_that_was_made_in_the_block_stays_in_its_cgroup(unit: Path) -> None:
    calls = CallCgroups(unit)
    first, second = calls.make("first"), calls.make("second")
    with first:
        one = asyncio.create_task(shell("sleep 0.1; cat /proc/self/cgroup"))
    with second:
        other = asyncio.create_task(shell("cat /proc/self/cgroup"))
    assert "call-first" in await one
    assert "call-second" in await other
    await first.end()
    await second.end()


@pytest.mark.parametrize(
    "command",
    [
        "exec sleep {mark}",
        "(sleep {mark} &) & wait",
        'trap "" TERM HUP INT; sleep {mark}; sleep {mark}',
        "while true; do sleep {mark} & sleep 0.01; done",
    ],
)
async def test_end_kills_what_fled(unit: Path, tmp_path: Path, command: str) -> None:
    mark = marker()
    held = CallCgroups(unit).make("call_1")
    with held:
        await start_apart(mark, tmp_path, command)
    await held.end()
    assert marked(mark) == []
    assert not held.path.exists()


async def test_end_of_one_call_leaves_what_another_runs(unit: Path, tmp_path: Path) -> None:
    calls = CallCgroups(unit)
    marks = [marker(), marker()]
    made: list[CallCgroup] = []
    for number, mark in enumerate(marks):
        held = calls.make(f"call_{number}")
        with held:
            await start_apart(mark, tmp_path)
        made.append(held)
    await made[0].end()
    assert marked(marks[0]) == []
    assert marked(marks[1])
    await made[1].end()
    assert marked(marks[1]) == []


async def test_end_takes_cgroups_below_along(unit: Path, tmp_path: Path) -> None:
    mark = marker()
    held = CallCgroups(unit).make("call_1")
    inner = held.path / "inner" / "most"
    with held:
        move = f"mkdir -p {inner} && echo $$ > {inner}/cgroup.procs && exec sleep {{mark}}"
        await start_apart(mark, tmp_path, move)
    assert [int(pid) for pid in (inner / "cgroup.procs").read_text().split()] == marked(mark)
    await held.end()
    assert marked(mark) == []
    assert not held.path.exists()


async def test_end_can_be_called_twice_and_is_not_cut_short_by_a_cancel(unit: Path, tmp_path: Path) -> None:
    mark = marker()
    held = CallCgroups(unit).make("call_1")
    with held:
        await start_apart(mark, tmp_path)
    task = asyncio.create_task(held.end())
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked(mark) == []
    await held.end()


async def test_command_that_cannot_join_does_not_start(unit: Path) -> None:
    held = CallCgroups(unit).make("call_1")
    with held:
        held.path.rmdir()
        with pytest.raises(ToolError):
            await shell("echo started")
    await held.end()


async def test_name_of_a_call_cannot_lead_elsewhere(unit: Path) -> None:
    held = CallCgroups(unit).make("../../x/" + "y" * 200)
    assert held.path.parent == unit
    await held.end()


async def test_same_call_twice_is_refused(unit: Path) -> None:
    held = CallCgroups(unit).make("call_1")
    with pytest.raises(OSError, match="exists"):
        CallCgroups(unit).make("call_1")
    await held.end()


def as_worker(unit: Path, work: Callable[[CallCgroups], Awaitable[bool]]) -> None:
    """Do the work as the user `nobody`, in the cgroups of a unit that systemd has delegated to them."""
    worker, nobody = unit / "worker", pwd.getpwnam("nobody").pw_uid
    worker.mkdir()
    for folder in (unit, worker):
        for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
            os.chown(path, nobody, nobody)
    child = os.fork()
    if not child:
        try:
            (worker / "cgroup.procs").write_text("0")
            os.setgroups([])
            os.setresgid(nobody, nobody, nobody)
            os.setresuid(nobody, nobody, nobody)
            os._exit(0 if asyncio.run(_awaited(work(CallCgroups.of_this_unit()))) else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def _awaited(work: Awaitable[bool]) -> bool:
    return await work


CLOSING = {
    "its own cgroup": "chmod 000 $CG",
    "its own files": "chmod 000 $CG/*",
    "the unit": "chmod 000 $CG/.. $CG/../cgroup.procs",
    "the worker": "chmod 000 $CG/../worker $CG/../worker/cgroup.procs",
    "everything, opened to strangers": "chmod -R 777 $CG/..",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="modes hold back a worker that is not root")
@pytest.mark.parametrize("command", CLOSING.values(), ids=CLOSING)
def test_modes_of_cgroups_keep_no_process_alive_and_no_call_out(unit: Path, command: str) -> None:
    mark = marker()
    procs = unit / "cgroup.procs"
    mode = procs.stat().st_mode

    async def work(calls: CallCgroups) -> bool:
        held = calls.make("call_1")
        with held:
            await shell(
                f"CG={held.path}; setsid sleep {mark} > /dev/null 2>&1 &"
                f" until ps -C sleep -o args= | grep -qF {mark}; do sleep 0.01; done; {command}"
            )
        await held.end()
        again = calls.make("call_2")
        with again:
            said = await shell("cat /proc/self/cgroup")
        await again.end()
        return "call-call_2" in said

    as_worker(unit, work)
    assert marked(mark) == []
    assert sorted(path.name for path in unit.iterdir() if path.is_dir()) == ["worker"]
    assert (unit.stat().st_mode & 0o777, procs.stat().st_mode) == (0o700, mode)


async def test_call_whose_processes_stay_fails(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "END_ROUNDS", 1)  # the first round kills, and it is not looked again
    held = CallCgroups(unit).make("call_1")
    with held:
        await start_apart(marker(), tmp_path)
    with pytest.raises(OutcomeUnknown, match="cannot be killed"):
        await held.end()
    await held.end()  # it is known to have failed


async def test_killed_worker_leaves_nothing_that_keeps_the_next_one_out(unit: Path) -> None:
    """A worker in a subgroup, as systemd makes it, says where its calls go, and leaves no probe behind."""
    worker = unit / "worker"
    worker.mkdir()
    child = os.fork()
    if not child:
        try:
            (worker / "cgroup.procs").write_text("0")
            made = CallCgroups.of_this_unit()
            os._exit(0 if made.make("call_1").path == unit / "call-call_1" else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert sorted(path.name for path in unit.iterdir() if path.is_dir()) == ["call-call_1", "worker"]
