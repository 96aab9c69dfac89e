"""Putting another store in place: nothing is overwritten, and whatever kills it leaves one that is whole."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import Conflict, HistoryDamaged, InvalidArgument, StorageError
from lightagentd.events.audit.verification import verify
from lightagentd.events.backup import installing, store_file
from lightagentd.events.backup.importing import install_export
from lightagentd.events.backup.installing import MARK, STAGING, install_backup, settle
from lightagentd.events.backup.portable import export
from lightagentd.events.backup.stored import result_as_owner, run_as_owner
from lightagentd.events.store.layout import SCHEMA_VERSION
from lightagentd.host import renaming, state_lock
from tests.events.backup.test_backup import backup as copy
from tests.events.backup.test_backup import records
from tests.events.backup.test_stored import STRANGER, as_root, owned
from tests.events.made import make
from tests.events.stored import alter, note, opened

FIRST_SCHEMA = Path(__file__).resolve().parents[2] / "data" / "history-v1.mdb.gz"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped daemon's state folder with `backup` beside it, that no test changes."""
    folder = tmp_path_factory.mktemp("installing") / "state"
    make(folder)
    copy(folder, folder.parent / "backup")
    return folder


@pytest.fixture
def backup(original: Path) -> Path:
    return original.parent / "backup"


@pytest.fixture
async def state(open_folder: Path, original: Path) -> Path:
    """The folder of a daemon that has gone on since the backup by one event."""
    folder = Path(shutil.copytree(original, open_folder / "state"))
    folder.chmod(0o700)
    async with opened(folder / "history") as history:
        await history.append(note(text="after the backup"))
    return folder


def restored(state: Path, backup: Path, *, force: bool = False) -> dict[str, Any]:
    fd = os.open(backup, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found: dict[str, Any] = result_as_owner(
            state, install_backup, str(state), fd, "the file", 1000, force, pass_fds=[fd]
        )
    finally:
        os.close(fd)
    return found


def events(folder: Path) -> dict[bytes, bytes]:
    return records(folder)["events"]


async def started(state: Path) -> list[Any]:
    """The events of `daemon.history` that the next start of a daemon adds."""
    async with opened(state / "history") as history:
        return [event for event in history.queries.range(limit=1000) if event.type == "installed"]


async def test_a_restore_puts_the_backup_in_place_and_the_next_start_says_so(
    state: Path, backup: Path, original: Path
) -> None:
    before = events(state / "history")
    found = restored(state, backup)
    assert found["verified"]
    aside = Path(found["set_aside"])
    assert aside.parent == state
    assert aside.name.startswith("history.before-restore-")
    assert events(aside) == before
    assert events(state / "history") == events(original / "history")
    assert sorted(path.name for path in state.iterdir()) == sorted(["history", aside.name, "lock"])
    [said] = await started(state)
    assert said.seq == found["seq"] + 1
    assert said.data["set_aside"] == str(aside)
    assert (said.data["how"], said.data["by"], said.data["verified"]) == ("restore", 1000, True)
    assert (said.data["seq"], said.data["hash"]) == (found["seq"], found["hash"])
    assert await started(state) == [said]  # once


async def test_a_restored_history_goes_on_and_verifies(state: Path, backup: Path) -> None:
    restored(state, backup)
    async with opened(state / "history") as history:
        await history.append(note(text="later"))
        assert verify(history.environment).ok


def test_two_restores_within_a_second_overwrite_nothing(state: Path, backup: Path) -> None:
    one, other = restored(state, backup)["set_aside"], restored(state, backup)["set_aside"]
    assert one != other
    assert Path(one).is_dir()
    assert Path(other).is_dir()


def test_a_restore_where_there_was_no_store(tmp_path: Path, backup: Path, original: Path) -> None:
    (state := tmp_path / "empty").mkdir(mode=0o700)
    assert restored(state, backup)["set_aside"] == ""
    assert events(state / "history") == events(original / "history")


def test_with_a_daemon_nothing_is_restored(state: Path, backup: Path) -> None:
    before = events(state / "history")
    fd = state_lock.hold(state)
    try:
        with pytest.raises(Conflict, match="is running") as caught:
            restored(state, backup)
    finally:
        os.close(fd)
    assert "systemctl stop" in caught.value.suggestion
    assert events(state / "history") == before


@as_root
def test_what_is_restored_belongs_to_the_owner(state: Path, backup: Path) -> None:
    restored(owned(state), backup)
    assert {path.stat().st_uid for path in [state, *state.rglob("*")]} == {STRANGER}
    assert (state / "history").stat().st_mode & 0o777 == 0o700
    assert (state / "history" / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_a_backup_that_does_not_verify_is_put_in_place_only_when_forced(
    state: Path, original: Path, tmp_path: Path
) -> None:
    before = events(state / "history")
    changed = Path(shutil.copytree(original / "history", tmp_path / "changed"))
    alter(changed, 30, lambda line, data: line + b"\n" + data.replace(b"value", b"VALUE"))
    with pytest.raises(HistoryDamaged, match="the file does not verify: event 30"):
        restored(state, changed / "data.mdb")
    assert events(state / "history") == before
    assert not (state / STAGING).exists()
    found = restored(state, changed / "data.mdb", force=True)
    assert not found["verified"]
    assert events(state / "history") == events(changed)


@pytest.mark.parametrize("content", [b"", b"text", bytes(1 << 16)])
def test_a_file_that_is_no_backup_changes_nothing(state: Path, tmp_path: Path, content: bytes) -> None:
    before = events(state / "history")
    (tmp_path / "file").write_bytes(content)
    with pytest.raises((InvalidArgument, HistoryDamaged)):
        restored(state, tmp_path / "file", force=True)
    assert events(state / "history") == before
    assert not (state / STAGING).exists()


STEPS = ("mkdir", "facts", "owe", "mark", "exchange", "aside", "unmark")
"""Where a restore can be killed: at the beginning of each."""


def _killed_at(step: str, *, exchanging: bool) -> None:
    """In the child: have it end with SIGKILL at a step."""
    patch = pytest.MonkeyPatch()
    rename_new, unlink, renames = renaming.rename_new, Path.unlink, []

    def kill(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_at_second(source: Path, target: Path) -> None:
        renames.append(source)
        if len(renames) == 2:
            kill()
        rename_new(source, target)

    def kill_at_mark(path: Path, missing_ok: bool = False) -> None:
        if path.name == MARK:
            kill()
        unlink(path, missing_ok)

    if not exchanging:
        patch.setattr(installing, "exchange", lambda *_: False)
    if step == "exchange" and not exchanging:
        patch.setattr(installing, "rename_new", kill_at_second)
        return
    target, name, function = {
        "mkdir": (Path, "mkdir", kill),
        "facts": (store_file, "facts", kill),
        "owe": (installing, "_owe", kill),
        "mark": (installing, "_mark", kill),
        "exchange": (installing, "exchange", kill),
        "aside": (installing, "_finish", kill),
        "unmark": (Path, "unlink", kill_at_mark),
    }[step]
    patch.setattr(target, name, function)


@pytest.mark.parametrize("exchanging", [True, False], ids=["exchanging", "in two steps"])
@pytest.mark.parametrize("step", STEPS)
async def test_whatever_kills_a_restore_leaves_a_whole_store(
    state: Path, backup: Path, original: Path, step: str, *, exchanging: bool
) -> None:
    old, new = events(state / "history"), events(original / "history")
    fd = os.open(backup, os.O_RDONLY | os.O_CLOEXEC)

    def interrupted() -> Iterator[Any]:
        _killed_at(step, exchanging=exchanging)
        yield from install_backup(str(state), fd, "the file", 1000, False)

    try:
        with pytest.raises(StorageError, match="SIGKILL"):
            list(run_as_owner(state, interrupted, pass_fds=[fd]))
    finally:
        os.close(fd)
    said = settle(state)
    assert settle(state) == ""
    placed = step in ("aside", "unmark") or (step == "exchange" and not exchanging)
    assert events(state / "history") == (new if placed else old)
    assert not (state / STAGING).exists()
    assert not (state / "history" / MARK).exists()
    asides = list(state.glob("history.before-restore-*"))
    assert [events(path) for path in asides] == ([old] if placed else [])
    assert bool(said) == (step not in ("mkdir",))
    assert ("is finished" in said) == placed
    assert len(await started(state)) == placed


def test_the_next_restore_clears_up_and_says_so(state: Path, backup: Path) -> None:
    (state / STAGING).mkdir()
    (state / STAGING / "data.mdb").write_bytes(b"half")
    fd = os.open(backup, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = list(run_as_owner(state, install_backup, str(state), fd, "x", 0, False, pass_fds=[fd]))
    finally:
        os.close(fd)
    assert "before it changed anything" in found[0]["said"]
    assert found[1]["verified"]


def test_what_cannot_be_cleared_up_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (state / STAGING).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(StorageError, match="Read-only file system"):
            settle(state)


def test_without_room_nothing_changes(state: Path, backup: Path) -> None:
    import resource

    before = events(state / "history")
    fd = os.open(backup, os.O_RDONLY | os.O_CLOEXEC)

    def with_little_room() -> Iterator[Any]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        yield from install_backup(str(state), fd, "the file", 0, False)

    try:
        with pytest.raises(StorageError, match="no room"):
            list(run_as_owner(state, with_little_room, pass_fds=[fd]))
    finally:
        os.close(fd)
    assert events(state / "history") == before
    assert not (state / STAGING).exists()


def test_names_are_exchanged_in_one_step_and_never_replaced(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / folder.name).touch()
    if renaming.exchange(one, other):
        assert (one / "other").exists()
        assert (other / "one").exists()
    with pytest.raises(FileExistsError):
        renaming.rename_new(one, other)
    renaming.rename_new(one, tmp_path / "free")
    assert not one.exists()


async def test_a_store_of_the_first_schema_is_restored_as_it_is_and_migrated_by_the_start(
    open_folder: Path,
) -> None:
    (state := open_folder / "state").mkdir(mode=0o700)
    (open_folder / "backup").write_bytes(gzip.decompress(FIRST_SCHEMA.read_bytes()))
    assert restored(state, open_folder / "backup")["schema_version"] == 1
    async with opened(state / "history") as history:
        said = [event.type for event in history.queries.range(limit=1000) if event.topic == "daemon.history"]
        assert sorted(said) == ["installed", "migrated"]
        assert verify(history.environment).ok


async def test_an_export_of_the_first_schema_becomes_a_store_of_this_one(open_folder: Path) -> None:
    for name in ("one", "other"):
        (open_folder / name / "history").mkdir(mode=0o700, parents=True)
        (open_folder / name).chmod(0o700)
    (open_folder / "one" / "history" / "data.mdb").write_bytes(gzip.decompress(FIRST_SCHEMA.read_bytes()))
    pieces = run_as_owner(open_folder / "one", export, str(open_folder / "one" / "history"), {}, None)
    (open_folder / "export").write_bytes(b"".join(piece for piece in pieces if isinstance(piece, bytes)))
    fd = os.open(open_folder / "export", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = str(open_folder / "other")
        found = result_as_owner(
            open_folder / "other", install_export, other, fd, "x", 0, False, pass_fds=[fd]
        )
    finally:
        os.close(fd)
    assert (found["events"], found["schema_version"], found["verified"]) == (45, SCHEMA_VERSION, True)
    old, new = records(open_folder / "one" / "history"), records(open_folder / "other" / "history")
    for name in old.keys() - {"meta"}:
        assert old[name] == new[name], name
