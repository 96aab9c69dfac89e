"""Limits and signals: no descriptors left, a daemon that is stopped, one that is killed in its start."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightagentd.errors import DaemonUnreachable
from lightagentd.events.queries import StoredHistory
from tests.faults.acting import answered, call, prompts_of, sound, until
from tests.faults.shim import AFTER, BEFORE, HALF, Shim, can_build
from tests.kill.stage import Stage

VERSION_1 = Path(__file__).parent.parent / "data" / "history-v1.mdb.gz"


def test_descriptors_that_run_out_keep_new_clients_waiting_and_nobody_else(stage: Stage) -> None:
    session = answered(stage, "p1")
    in_use = len(list(Path(f"/proc/{stage.daemon.pid}/fd").iterdir()))
    limits = resource.prlimit(stage.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(stage.daemon.pid, resource.RLIMIT_NOFILE, (in_use + 20, limits[1]))
    with stage.daemon.client() as served, ExitStack() as crowd:
        served.call("Manager.GetStatus")
        for _ in range(60):
            one = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.settimeout(1)
            try:
                one.connect(str(stage.paths.socket))
            except OSError:
                break  # the backlog is full, too
        for _ in range(5):
            assert served.call("Sessions.Get", session=session)["session"]["id"] == session
            served.call("Sessions.Rename", session=session, title="still served")
    resource.prlimit(stage.daemon.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: answered(stage, "p2", session=session))
    stage.daemon.kill()
    sound(stage)


def test_a_daemon_that_is_stopped_for_a_while_goes_on_where_it_was(stage: Stage) -> None:
    session = answered(stage, "p1")
    answers: list[str] = []
    os.kill(stage.daemon.pid, signal.SIGSTOP)
    try:
        asks = [
            threading.Thread(target=lambda at=at: answers.append(answered(stage, f"p{at}", session=session)))
            for at in range(2, 6)
        ]
        for thread in asks:
            thread.start()
        until(lambda: Path(f"/proc/{stage.daemon.pid}/stat").read_text().split()[2] == "T")
    finally:
        os.kill(stage.daemon.pid, signal.SIGCONT)
    for thread in asks:
        thread.join(60)
    assert answers == [session] * 4
    assert sorted(prompts_of(stage, session)) == [f"p{at} say" for at in range(1, 6)]


def test_a_daemon_killed_in_the_middle_of_a_compaction_loses_nothing(stage: Stage) -> None:
    session = answered(stage, "p1", "look")
    for operation, when in ((1, BEFORE), (4, HALF), (7, AFTER), (12, BEFORE)):
        stage.shim.kill_at(operation, when)
        with pytest.raises(DaemonUnreachable):
            _compact_often(stage)
        assert stage.daemon.ends_within(60)
        sound(stage)
        stage.shim.kill_at(0)
        stage.daemon.start()
        assert prompts_of(stage, session) == ["p1 look"]
    call(stage, "History.Compact")
    answered(stage, "p2", session=session)
    assert call(stage, "History.Verify")["verification"]["ok"]


def _compact_often(stage: Stage) -> None:
    for _ in range(20):
        call(stage, "History.Compact")


@pytest.fixture
def old(base: Path) -> Iterator[Stage]:
    """Not started, with a store of version 1."""
    if not can_build():
        pytest.skip("there is no cc to build the shim with")
    with Stage(base) as made:
        history = made.paths.history
        history.mkdir(parents=True, mode=0o700)
        (history / "data.mdb").write_bytes(gzip.decompress(VERSION_1.read_bytes()))
        yield made


def test_a_start_killed_at_any_write_of_the_migration_is_finished_by_the_next(old: Stage) -> None:
    shim: Shim = old.shim
    for operation in (2, 5, 9, 14, 20):
        shim.kill_at(operation, (BEFORE, AFTER, HALF)[operation % 3])
        old.daemon.spawn()
        assert old.daemon.ends_within(60)
        shim.kill_at(0)
    old.daemon.start()
    assert call(old, "History.Verify")["verification"]["ok"]
    migrated = call(old, "History.Query", topic="daemon.history", limit=1000)["events"]
    assert [one["data"]["to_version"] for one in migrated if one["type"] == "migrated"] == [3]
    old.daemon.stop()
    history = StoredHistory(old.paths.history)
    try:
        assert [event.seq for event in history.queries.range(limit=45)] == list(range(1, 46))
    finally:
        history.close()
    sound(old)
