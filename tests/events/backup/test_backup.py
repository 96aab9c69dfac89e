"""Backups: a consistent copy of a store, beside a daemon that writes or without one, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import HistoryDamaged, InvalidArgument, NotFound, StorageError
from lightagentd.events.backup import backup as backup_module
from lightagentd.events.backup.backup import copy_store
from lightagentd.events.backup.store_file import examine
from lightagentd.events.backup.stored import result_as_owner, run_as_owner
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store import layout
from tests.conftest import REPOSITORY
from tests.events.backup.test_stored import STRANGER, as_root, owned
from tests.events.made import make
from tests.events.stored import alter

_BUSY = """
import asyncio, sys
from functools import partial
from pathlib import Path
from lightagentd.events.store import retention
from lightagentd.events.history import History, NewEvent

async def main() -> None:
    history = History(Path(sys.argv[1]))
    await history.start()
    print("ready", flush=True)
    while True:
        several = [history.append(NewEvent(topic="tool.bash", type="x", data={"text": "t" * 700}))
                   for _ in range(200)]
        for one in several:
            await one
        bounds = retention.Bounds(reason="size", to_seq=max(0, history.head_seq - 3000))
        await history.appending(partial(retention.prune, history.environment, bounds))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped daemon's state folder, that no test changes."""
    folder = tmp_path_factory.mktemp("backup") / "state"
    make(folder)
    return folder


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def backup(state: Path, target: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with target.open("wb") as file:
        for piece in run_as_owner(state, copy_store, str(state / "history")):
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                found = piece
    return found


def examined(state: Path, path: Path) -> dict[str, Any]:
    with descriptor(path) as fd:
        found: dict[str, Any] = result_as_owner(
            state, examine, f"/proc/self/fd/{fd}", "the file", pass_fds=[fd]
        )
    return found


def records(folder: Path) -> dict[str, dict[bytes, bytes]]:
    """Everything in a store."""
    stored = StoredHistory(folder)
    try:
        with stored.environment.reading() as txn:
            return {name: dict(txn.cursor(db)) for name, db in stored.environment.db.items()}
    finally:
        stored.close()


def test_a_backup_has_everything_and_verifies(state: Path, tmp_path: Path) -> None:
    said = backup(state, tmp_path / "backup")
    found = examined(state, tmp_path / "backup")
    assert found["verified"]
    assert not found["problem"]
    assert {name: found[name] for name in said} == said
    (tmp_path / "history").mkdir()
    (tmp_path / "backup").rename(tmp_path / "history" / "data.mdb")
    assert records(tmp_path / "history") == records(state / "history")


def test_a_backup_of_a_busy_daemon_that_prunes_is_one_moment_of_it(tmp_path: Path) -> None:
    (state := tmp_path / "state").mkdir(mode=0o700)
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY, str(state / "history")], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == b"ready\n"
            seen: list[dict[str, Any]] = []
            while not seen or seen[-1]["anchor_seq"] == 0 or len(seen) < 5:
                assert busy.poll() is None
                said = backup(state, tmp_path / f"backup-{len(seen)}")
                seen.append(examined(state, tmp_path / f"backup-{len(seen)}"))
                assert seen[-1]["verified"], seen[-1]["problem"]
                assert seen[-1]["seq"] >= said["seq"]
            assert [one["seq"] for one in seen] == sorted(one["seq"] for one in seen)
        finally:
            busy.kill()


@as_root
def test_nothing_of_the_owners_becomes_roots(open_folder: Path) -> None:
    state = owned(make(open_folder / "state").parent)
    (state / "history" / "lock.mdb").unlink()
    backup(state, open_folder / "backup")
    assert {path.stat().st_uid for path in [state, *state.rglob("*")]} == {STRANGER}


def test_without_a_store_there_is_nothing_to_copy(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with pytest.raises(NotFound):
        backup(tmp_path / "state", tmp_path / "backup")
    assert not (tmp_path / "state" / "history").exists()


def test_a_backup_of_an_altered_history_says_so(tmp_path: Path) -> None:
    history = make(tmp_path / "state")
    alter(history, 30, lambda line, data: line + b"\n" + data.replace(b"value", b"VALUE"))
    backup(history.parent, tmp_path / "backup")
    found = examined(history.parent, tmp_path / "backup")
    assert not found["verified"]
    assert "event 30" in found["problem"]


NOT_A_STORE = {
    "empty": b"",
    "text": b"# a text\n" * 2000,
    "zeros": bytes(1 << 16),
    "one page": b"\0" * 16 + bytes.fromhex("dec0efbe01000000") + bytes(4000),
}


@pytest.mark.parametrize("content", NOT_A_STORE.values(), ids=NOT_A_STORE.keys())
def test_a_file_that_is_no_store_is_named(state: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises((InvalidArgument, HistoryDamaged)) as caught:
        examined(state, tmp_path / "file")
    assert "the file" in caught.value.message
    assert "backup" in caught.value.suggestion


def test_another_programs_store_is_refused(state: Path, tmp_path: Path) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "other"), subdir=False, max_dbs=4) as other:
        other.open_db(b"events")
    with pytest.raises(InvalidArgument, match="no history"):
        examined(state, tmp_path / "other")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SCHEMA_VERSION", layout.SCHEMA_VERSION + 1)
        state = make(tmp_path / "state").parent
    backup_of_it = tmp_path / "backup"
    backup_of_it.write_bytes((state / "history" / "data.mdb").read_bytes())
    with pytest.raises(StorageError, match="newer than this program knows"):
        examined(state, backup_of_it)


def test_a_truncated_file_is_refused(state: Path, tmp_path: Path) -> None:
    backup(state, tmp_path / "backup")
    whole = (tmp_path / "backup").read_bytes()
    for pages in (1, 2, 3, 5, len(whole) // 4096 - 1):
        (tmp_path / "cut").write_bytes(whole[: pages * 4096])
        with pytest.raises((HistoryDamaged, InvalidArgument)):
            examined(state, tmp_path / "cut")


def test_pages_that_were_overwritten_crash_no_parent(state: Path, tmp_path: Path) -> None:
    """LMDB may crash, loop through garbage or see that it is wrong; whoever asks gets an error or facts."""
    import random

    backup(state, tmp_path / "backup")
    whole = (tmp_path / "backup").read_bytes()
    for seed in range(40):
        chance = random.Random(seed)
        changed = bytearray(whole)
        at = chance.randrange(len(whole) // 4096) * 4096
        changed[at : at + 4096] = chance.randbytes(4096)
        (tmp_path / "changed").write_bytes(changed)
        try:
            found = examined(state, tmp_path / "changed")
        except (StorageError, InvalidArgument):
            continue
        assert isinstance(found["verified"], bool)


def test_a_map_that_grows_before_the_copy_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "INITIAL_MAP_BYTES", 1 << 20)
        state = make(tmp_path / "state").parent
    real = backup_module._pieces

    def after_growing(environment: layout.Environment) -> Iterator[bytes]:
        program = "import lmdb, sys; e = lmdb.open(sys.argv[1], max_dbs=32, map_size=16 << 20)\n"
        program += (
            "with e.begin(write=True) as txn: txn.put(b'k', bytes(3 << 20), db=e.open_db(b'other', txn=txn))"
        )
        subprocess.run([sys.executable, "-c", program, str(state / "history")], check=True)
        yield from real(environment)

    monkeypatch.setattr(backup_module, "_pieces", after_growing)
    backup(state, tmp_path / "backup")
    assert (tmp_path / "backup").stat().st_size > 3 << 20
    assert examined(state, tmp_path / "backup")["verified"]
