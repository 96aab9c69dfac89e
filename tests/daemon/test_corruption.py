"""A daemon whose history is damaged: it sets it aside, changes nothing in it, says so, and works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError, StorageError
from lightagentd.events.audit.verification import verify
from lightagentd.events.corruption import examination as damage
from lightagentd.events.corruption.examination import DATA, LOCK, export_of
from lightagentd.events.corruption.pages import Walk
from lightagentd.events.corruption.salvage import is_whole
from lightagentd.events.history import Change
from lightagentd.events.model import Event
from lightagentd.events.store.layout import SCHEMA_VERSION
from lightagentd.events.types.agent import Said
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, scripted, until
from tests.conftest import DaemonProcess, write
from tests.events.corruption.damaging import PAGE, damaged, pages_of
from tests.events.stored import alter, opened, raw_meta
from tests.scripted_model import say


@pytest.fixture
async def stored(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Event:
    """The newest event of a store with a hundred of them, made by a daemon that stopped. The next one takes
    its time to examine it, or a slow machine would see the damage only after a first write.
    """
    monkeypatch.setattr(damage, "QUICK_S", 60.0)
    async with Daemon(paths) as daemon:
        for number in range(10):
            change = Change(state="current", key=f"none/{number}", value={"session": ""})
            await daemon.history.append(
                *(Said(role="user", content="x" * 900).event() for _ in range(10)), changes=[change]
            )
    async with opened(paths.history) as history:
        last = history.queries.last()
    assert last is not None
    return last


def data_file(paths: Paths) -> Path:
    return paths.history / DATA


async def works(paths: Paths) -> tuple[list[str], list[Event]]:
    """Start a daemon and have it answer a prompt; gives its problems, and what it says of its history."""
    async with scripted(paths, [say("fine")]) as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["text"] == "fine"
        await until(lambda: (task := test.daemon.recovery._salvaging) is not None and task.done())
        assert all(export_of(path).exists() for path in damage.left_aside(paths.history))
        assert (await asyncio.to_thread(verify, test.daemon.history.environment)).ok
        problems = (await test.daemon.service.manager.status(ME)).problems
        return problems, test.stored(topic="daemon.history")


async def is_set_aside(paths: Paths, last: Event | None, kept: bytes | None) -> Path:
    """See that a daemon sets its store aside as it was, goes on behind the last event, and says so."""
    problems, told = await works(paths)
    (aside,) = damage.left_aside(paths.history)
    assert any(str(aside) in problem for problem in problems)
    assert [event.type for event in told][:2] == ["set_aside", "salvaged"]
    first, second = (event.data or {} for event in told[:2])
    assert (first["path"], second["path"], second["export"]) == (
        str(aside),
        str(aside),
        str(export_of(aside)),
    )
    if last is not None:
        assert (first["last_seq"], first["last_hash"]) == (last.seq, last.hash)
        assert told[0].prev == last.hash
    assert told[0].seq == first["last_seq"] + 1
    if kept is not None:
        assert (aside / DATA).read_bytes() == kept
    assert export_of(aside).stat().st_mode & 0o777 == 0o600
    return aside


async def test_a_truncated_history_is_set_aside_and_the_daemon_works(paths: Paths, stored: Event) -> None:
    whole = data_file(paths).read_bytes()
    with pages_of(paths.history) as file:
        used_bytes = (file.meta().last_page + 1) * PAGE
    state = paths.state.with_name("kept")
    shutil.copytree(paths.state, state)
    for size in (0, used_bytes // 2):
        shutil.rmtree(paths.state)
        shutil.copytree(state, paths.state)
        data_file(paths).write_bytes(whole[:size])
        aside = await is_set_aside(paths, stored, whole[:size])
        assert is_whole(export_of(aside)) is False


async def test_without_its_first_pages_the_history_is_set_aside(paths: Paths, stored: Event) -> None:
    with data_file(paths).open("r+b") as file:
        file.write(os.urandom(2 * PAGE))
    await is_set_aside(paths, stored, data_file(paths).read_bytes())


@pytest.mark.parametrize("seed", range(4, 6))
async def test_a_history_with_random_damage_is_used_or_set_aside(
    paths: Paths, stored: Event, seed: int
) -> None:
    with pages_of(paths.history) as file:
        used_bytes = (file.meta().last_page + 1) * PAGE
    kept = damaged(data_file(paths).read_bytes()[:used_bytes], seed)
    data_file(paths).write_bytes(kept)
    if damage.examine(paths.history, seconds=60.0).problem:
        await is_set_aside(paths, None, kept)
    else:
        async with scripted(paths, [say("fine")]) as test:
            assert (await test.prompt(await test.session()))[-1]["text"] == "fine"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _text(path: Path) -> None:
    path.write_text("this is no database\n" * 1000)


@pytest.mark.parametrize("plant", [_fifo, _device])
async def test_what_lies_in_the_place_of_the_file_is_set_aside(
    paths: Paths, stored: Event, plant: Callable[[Path], None]
) -> None:
    data_file(paths).unlink()
    plant(data_file(paths))
    aside = await is_set_aside(paths, stored, None)
    assert os.path.lexists(aside / DATA)
    assert not (aside / DATA).is_file()


async def test_a_file_in_the_place_of_the_folder_is_set_aside(paths: Paths, stored: Event) -> None:
    shutil.rmtree(paths.history)
    _text(paths.history)
    aside = await is_set_aside(paths, stored, None)
    assert aside.read_text().startswith("this is no database")


async def test_a_lock_file_that_is_none_is_in_nobodys_way(paths: Paths, stored: Event) -> None:
    (paths.history / LOCK).unlink()
    _fifo(paths.history / LOCK)
    problems, told = await works(paths)
    assert told == []
    assert not any("set aside" in problem for problem in problems)


async def test_only_an_index_is_damaged_so_all_is_exported_and_the_status_says_how_to_go_back(
    paths: Paths, stored: Event
) -> None:
    with pages_of(paths.history) as file:
        root = Walk(file, file.meta()).trees()["by_topic"].root
    assert root is not None
    with data_file(paths).open("r+b") as raw:
        raw.seek(root * PAGE)
        raw.write(bytes(PAGE))
    aside = await is_set_aside(paths, stored, data_file(paths).read_bytes())
    assert is_whole(export_of(aside))
    async with Daemon(paths) as daemon:
        assert any(f"lactl history import {export_of(aside)}" in each for each in daemon.problems())
    aside.rename(paths.state.parent / "moved")
    async with Daemon(paths) as daemon:
        assert not any("set aside" in each for each in daemon.problems())


async def test_a_second_damage_is_set_aside_beside_the_first(paths: Paths, stored: Event) -> None:
    for number in range(2):
        data_file(paths).write_bytes(b"%d" % number)
        async with Daemon(paths) as daemon:
            assert len([each for each in daemon.problems() if "set aside" in each]) == number + 1
    assert [(path / DATA).read_bytes() for path in damage.left_aside(paths.history)] == [b"0", b"1"]


async def test_a_start_that_was_killed_while_it_set_aside_is_gone_on_with(
    paths: Paths, stored: Event
) -> None:
    kept = b"no database"
    data_file(paths).write_bytes(kept)
    damage.set_aside(paths.history, "It was damaged.", stored.seq, stored.hash)
    await is_set_aside(paths, stored, kept)
    assert not damage.note_file(paths.history).exists()


async def test_a_note_that_was_not_removed_is_not_told_twice(paths: Paths, stored: Event) -> None:
    data_file(paths).write_bytes(b"no database")
    async with Daemon(paths) as daemon:
        message = (daemon.history.queries.range(1, 1)[0].data or {})["message"]
    (aside,) = damage.left_aside(paths.history)
    aside.rename(paths.history.with_name("moved"))
    shutil.copytree(paths.history, paths.history.with_name("copy"))
    damage.set_aside(paths.history, message, stored.seq, stored.hash)
    damage.left_aside(paths.history)[0].rename(paths.history.with_name("gone"))
    paths.history.with_name("copy").rename(paths.history)
    paths.history.with_name("moved").rename(aside)
    async with Daemon(paths) as daemon:
        told = daemon.history.queries.range(1, 1000)
    assert [event.type for event in told if event.topic == "daemon.history"].count("set_aside") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"anchor", b'[-5,""]'),
        (b"anchor", b'[1208925819614629174706176,""]'),
        (b"anchor", b'[1e400,""]'),
        (b"owed", b'[["agent.message","message",{"role":"assistant","content":"never said"}]]'),
        (b"owed", b'[["daemon.history","pruned",{}]]'),
        (b"owed", b'[["daemon.history","installed",{}]]'),
    ],
)
async def test_a_forged_entry_of_meta_is_damage_and_becomes_no_event(
    paths: Paths, stored: Event, key: bytes, value: bytes
) -> None:
    with raw_meta(paths.history) as txn:
        txn.put(key, value)
    await is_set_aside(paths, stored, None)
    async with opened(paths.history) as history:
        after = history.queries.range(stored.seq + 1, 100)
    assert "never said" not in [(event.data or {}).get("content") for event in after]


async def test_a_newer_schema_is_no_damage(paths: Paths, stored: Event) -> None:
    with raw_meta(paths.history) as txn:
        txn.put(b"schema_version", str(SCHEMA_VERSION + 1).encode())
    kept = data_file(paths).read_bytes()
    with pytest.raises(StorageError, match="newer than this program knows"):
        await Daemon(paths).start()
    assert data_file(paths).read_bytes()[: 2 * PAGE] == kept[: 2 * PAGE]
    assert damage.left_aside(paths.history) == []


async def test_a_folder_that_may_not_be_moved_stays_where_it_is(
    paths: Paths, stored: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_file(paths).write_bytes(b"no database")

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match="could not be moved away"):
            await Daemon(paths).start()
    assert data_file(paths).read_bytes() == b"no database"
    await is_set_aside(paths, stored, b"no database")


# What can be read, and was altered


async def test_a_history_that_does_not_verify_is_named_and_used(paths: Paths, stored: Event) -> None:
    alter(paths.history, stored.seq - 3, lambda line, data: line + b"\n" + data + b" ")
    async with Daemon(paths) as daemon:
        assert any(f"event {stored.seq - 3}" in each and "audit verify" in each for each in daemon.problems())
        (told,) = [each for each in daemon.history.queries.range(stored.seq, 100) if each.type == "recovered"]
        assert f"does not verify at event {stored.seq - 3}" in (told.data or {})["message"]
        assert "without a stop" not in (told.data or {})["message"]
    assert damage.left_aside(paths.history) == []


async def test_after_one_run_that_was_killed_everything_is_looked_at(
    paths: Paths, stored: Event, daemon_process: DaemonProcess
) -> None:
    await asyncio.to_thread(daemon_process.start)
    await asyncio.to_thread(daemon_process.kill)
    async with Daemon(paths) as daemon:
        assert daemon.now.examined_us > daemon.now.started_us
    alter(paths.history, 50, lambda line, data: b"{\n" + data)
    await asyncio.to_thread(daemon_process.start)
    await asyncio.to_thread(daemon_process.kill)
    assert damage.left_aside(paths.history) == []
    async with Daemon(paths) as daemon:
        (first, *_) = daemon.history.queries.range(1, 1)
        assert (first.type, "the event at 50 cannot be read" in (first.data or {})["message"]) == (
            "set_aside",
            True,
        )


# After a crash


@pytest.mark.usefixtures("sandboxed")
async def test_a_call_of_a_person_that_was_killed_is_told_of_in_one_event(
    paths: Paths, daemon_process: DaemonProcess
) -> None:
    write(paths.config / "agent" / "test" / "AGENT.md", "---\ndescription: x\n---\n")
    await asyncio.to_thread(daemon_process.start)
    async with AsyncClient(paths.socket) as client:
        args = {"command": "echo begun; sleep 60", "effect": "observe"}
        stream = client.stream("Tools.Call", agent="test", tool="bash", action="exec", args=args)
        with contextlib.suppress(LightagentError):
            async for reply in stream:
                if reply["event"]["type"] == "tool_output":
                    await asyncio.to_thread(daemon_process.kill)
    await asyncio.to_thread(daemon_process.start)
    async with AsyncClient(paths.socket) as client:
        found = await client.call("History.Query", topic="daemon.history")
        (told,) = [event for event in found["events"] if event["type"] == "recovered"]
        assert told["data"]["unknown_calls"] == 1
        assert "1 call of unknown outcome" in told["data"]["message"]
        calls = (await client.call("History.Query", topic="tool.bash"))["events"]
        assert [(event["data"]["result"], event["source"]) for event in calls] == [
            ("outcome_unknown", "daemon")
        ]
        assert calls[0]["owner"] == os.getuid()
        assert (await client.call("History.Verify"))["verification"]["ok"]
    assert await asyncio.to_thread(daemon_process.stop) == 0
    async with Daemon(paths) as daemon:
        events: list[Any] = daemon.history.queries.range(1, 1000)
        assert [event.type for event in events].count("recovered") == 1
