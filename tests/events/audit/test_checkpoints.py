"""Checkpoints: when the daemon makes one, what is in it, and what a start compares with the newest one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import ConfigError, StorageError
from lightagentd.events.audit.checkpoints import Checkpoints, KeptHead
from lightagentd.events.audit.signing import signed_by, signing_key
from lightagentd.events.history import History
from lightagentd.events.journal.entry import journal_fields
from lightagentd.events.model import Event, within
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write
from tests.events.stored import alter, note

DAY_S = 86_400.0


@contextlib.asynccontextmanager
async def running(
    state: Path, *, every_events: int = 1000, every_s: float = DAY_S
) -> AsyncIterator[tuple[History, Checkpoints]]:
    """A history with its checkpoints, as the daemon has them."""
    history = History(state / "history", on_commit=lambda events: checkpoints.committed(events))
    state.mkdir(exist_ok=True)
    checkpoints = Checkpoints(
        history, signing_key(state / "audit"), state / "audit", every_events=every_events, every_s=every_s
    )
    await history.start()
    try:
        await checkpoints.start()
        yield history, checkpoints
        await checkpoints.close()
    finally:
        await history.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def signed(history: History) -> list[Event]:
    found = [event for event in history.queries.range(1, 1000) if event.topic == "daemon.checkpoint"]
    return [event for event in found if event.type == "signed"]


async def test_the_first_start_stores_its_key_and_the_next_one_signs_what_it_finds(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as (history, checkpoints):
        [event] = history.queries.range()
        assert (event.topic, event.type, event.caller) == ("daemon.checkpoint", "key", None)
        key = checkpoints.key
        assert event.data == {"fingerprint": key.fingerprint, "public_key": key.public_text, "made": True}
    async with running(tmp_path / "state") as (history, _):
        first, second, third = history.queries.range()
        assert (second.type, third.type) == ("key", "signed")
        assert second.data is not None
        assert second.data["made"] is False
        assert third.data is not None
        assert (third.data["seq"], third.data["hash"]) == (1, first.hash)
        assert signed_by(key.public, 1, first.hash, third.data["signature"])


async def test_so_many_events_are_followed_by_a_checkpoint_of_them(tmp_path: Path) -> None:
    async with running(tmp_path / "state", every_events=5) as (history, _):
        for number in range(4):
            await history.append(note(number))
        await history.append()
        assert not signed(history)
        await history.append(note(5))
        await until(lambda: signed(history))
        [event] = signed(history)
        assert event.data is not None
        assert event.data["seq"] == 6
        for _ in range(3):
            await history.append(*(note(number) for number in range(5)))
            await until(lambda: history.head_seq == signed(history)[-1].seq)


async def test_after_some_time_what_is_not_covered_is(tmp_path: Path) -> None:
    async with running(tmp_path / "state", every_s=0.01) as (history, _):
        await history.append(note(1))
        await until(lambda: signed(history))
        await until(lambda: history.head_seq == 3)


async def test_a_daemon_that_does_nothing_makes_none(tmp_path: Path) -> None:
    async with running(tmp_path / "state", every_events=1, every_s=0.01) as (history, checkpoints):
        await checkpoints.sign()
        await history.append(note(1))
        await until(lambda: len(signed(history)) == 2)
        seq = history.head_seq
        # Were its own event a reason, there would be one for each of these turns of the loop.
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert history.head_seq == seq


async def test_the_stop_makes_one_and_keeps_the_hash_of_its_own_event(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as (history, checkpoints):
        await history.append(note(1))
    kept = KeptHead.read(tmp_path / "state/audit/head.json")
    assert kept is not None
    async with running(tmp_path / "state") as (history, _):
        newest = history.queries.range(kept.seq, 1)[0]
        assert (newest.type, newest.hash) == ("signed", kept.hash)
        assert signed_by(checkpoints.key.public, kept.seq, kept.hash, kept.signature)


async def test_nobody_is_the_caller_of_a_checkpoint(tmp_path: Path) -> None:
    async with running(tmp_path / "state", every_events=1) as (history, _):
        with within(caller=1000, agent="ops", session="ses_1", trace_id="trace_1"):
            await history.append(note(1))
        await until(lambda: signed(history))
        [event] = signed(history)
        assert (event.caller, event.agent, event.session, event.trace_id) == (None, "", "", "")


async def test_a_head_that_cannot_be_kept_is_a_problem_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    async with running(state) as (history, checkpoints):
        (state / "audit").rename(state / "away")
        for number in range(3):
            await history.append(note(number))
            await checkpoints.sign()
        [problem] = checkpoints.problems()
        assert "head.json, which keeps the newest checkpoint, cannot be written (3 times)" in problem
        assert sum("head.json" in record.getMessage() for record in caplog.records) == 1
        (state / "away").rename(state / "audit")
        await history.append(note(4))
        await checkpoints.sign()
        assert checkpoints.problems() == []
    async with running(state) as (_, checkpoints):
        assert checkpoints.problems() == []


async def test_one_that_cannot_be_stored_stops_nothing_and_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "state", every_events=1, every_s=0.01) as (history, checkpoints):
        failed, tries = asyncio.Event(), 0

        async def full(*_: object, **__: object) -> list[Event]:
            nonlocal tries
            if (tries := tries + 1) == 3:
                failed.set()
            raise StorageError("The disk is full.")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_history", _Refusing(history, full))
            await history.append(note(1))
            await failed.wait()
            assert "The disk is full." in checkpoints.problems()[0]
            assert len([one for one in caplog.records if "could be stored" in one.getMessage()]) == 1
        await until(lambda: signed(history))
        await until(lambda: checkpoints.problems() == [])


class _Refusing:
    """A history whose disk is full."""

    def __init__(self, history: History, append: object) -> None:
        self.head = history.head
        self.append = self.appending = append
        self.environment, self.redactor = history.environment, history.redactor


async def test_a_head_that_was_altered_or_lost_is_told_by_the_next_start(tmp_path: Path) -> None:
    state = tmp_path / "state"
    head = state / "audit/head.json"
    async with running(state) as (history, _):
        await history.append(note(1))
    whole = head.read_text()
    for content, words in (
        (None, "is gone"),
        ("{}", "is not known"),
        ("[" * 100_000, "is not known"),
        (json.dumps({**json.loads(whole), "seq": 1}), "signature is wrong"),
    ):
        head.unlink()
        if content is not None:
            head.write_text(content)
        async with running(state) as (history, checkpoints):
            assert words in checkpoints.problems()[0]
            broken = [event for event in history.queries.range(1, 1000) if event.type == "broken"][-1]
            assert words in (broken.data or {})["message"]
            fields = journal_fields(broken)
            assert (fields["PRIORITY"], words in fields["MESSAGE"]) == ("3", True)


async def test_an_event_that_was_exchanged_while_no_daemon_ran_is_told_by_the_next_start(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    async with running(state) as (history, _):
        await history.append(note(1))
        last = history.head_seq + 1
    alter(
        state / "history",
        last,
        lambda line, data: line.replace(b'"daemon"', b'"d\\u0061emon"') + b"\n" + data,
    )
    async with running(state) as (_, checkpoints):
        assert f"has another event {last}" in checkpoints.problems()[0]


async def test_records_that_are_damaged_do_not_keep_a_start_from_signing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as (history, checkpoints):
        await history.append(note(1), note(2))
        await checkpoints.sign()
        await history.append(note(3))
        broken = history.head_seq - 1  # of the checkpoint
        await history.append(note(4))
    for head in (True, False):
        if not head:
            (state / "audit/head.json").unlink()
        alter(state / "history", broken, lambda line, data: b"no event")
        async with running(state) as (history, checkpoints):
            await history.append(note(5))


async def test_the_journal_gets_what_an_auditor_needs(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as (history, checkpoints):
        await history.append(note(1))
        await checkpoints.sign()
        first, second, event = history.queries.range()
        fields = journal_fields(event)
        key = checkpoints.key
        assert fields["MESSAGE"] == f"signed: the history up to event 2, with the key {key.fingerprint[:16]}"
        assert fields["LIGHTAGENT_CHECKPOINT_SEQ"] == "2"
        assert fields["LIGHTAGENT_CHECKPOINT_HASH"] == second.hash
        assert fields["LIGHTAGENT_CHECKPOINT_KEY"] == key.fingerprint
        assert signed_by(key.public, 2, second.hash, fields["LIGHTAGENT_CHECKPOINT_SIGNATURE"])
        assert (
            journal_fields(first)["MESSAGE"] == f"key: {key.fingerprint[:16]} signs the history from now on"
        )


async def test_a_daemon_signs_at_its_start_and_its_stop(paths: Paths) -> None:
    for _ in range(2):
        async with Daemon(paths) as daemon:
            assert daemon.now.checkpoints is not None
            assert not daemon.now.checkpoints.problems()
            topics = [(event.topic, event.type) for event in daemon.history.queries.range(1, 1000)]
    starts = [number for number, kind in enumerate(topics) if kind == ("daemon.state", "starting")]
    assert topics[starts[1] - 2 : starts[1]] == [
        ("daemon.checkpoint", "key"),
        ("daemon.checkpoint", "signed"),
    ]
    stop = topics.index(("daemon.state", "stopped"))
    assert topics[stop + 1] == ("daemon.checkpoint", "signed")


async def test_a_key_that_is_broken_keeps_the_daemon_from_starting(paths: Paths) -> None:
    async with Daemon(paths):
        pass
    (paths.audit / "key.pem").write_text("broken")
    with pytest.raises(ConfigError, match="holds no Ed25519 key"):
        async with Daemon(paths):
            pass


def test_a_killed_daemon_is_followed_by_one_that_signs_all_that_was_stored(
    daemon_process: DaemonProcess,
) -> None:
    paths = daemon_process.paths
    write(paths.config / "lightagentd.toml.d/50.toml", "[history]\ncheckpoint_events = 3\n")
    daemon_process.start()
    for _ in range(3):
        assert daemon_process.lactl("tools", "call", "ops", "net.list_interfaces").returncode == 0
    daemon_process.kill()
    daemon_process.start()
    with daemon_process.client() as client:
        found = client.call("History.Verify")["verification"]
    assert (found["ok"], found["trusted"]) == (True, True), found
    assert found["checkpoints"] >= 3
    assert not [one for one in daemon_process.lactl("status").stdout.splitlines() if "signed" in one]
