"""Work on a store's files in a child process that has no more rights than their owner."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import (
    Conflict,
    HistoryDamaged,
    LightagentError,
    NotFound,
    PermissionDenied,
    StorageError,
)
from lightagentd.events.backup.stored import Owner, owner_of, result_as_owner, run_as_owner

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another uid")
STRANGER = 4711


@pytest.fixture
def state(open_folder: Path) -> Path:
    folder = open_folder / "state"
    folder.mkdir(mode=0o700)
    return folder


def owned(folder: Path, uid: int = STRANGER) -> Path:
    """The folder with all in it, as another user's. He must be able to get there: use `open_folder`."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, uid, follow_symlinks=False)
    return folder


def identity() -> Iterator[Any]:
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff"))
    yield {
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "capabilities": int(capabilities.split()[1], 16),
        "no_new_privileges": "NoNewPrivs:\t1" in status,
        "session": os.getsid(0) == os.getpid(),
        "descriptors": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir()),
        "umask": os.umask(0o077),
    }


@as_root
def test_the_child_of_root_is_no_more_than_the_owner(state: Path) -> None:
    groups = os.getgroups()
    os.setgroups([0, 4])
    try:
        [found] = run_as_owner(owned(state), identity)
    finally:
        os.setgroups(groups)
    assert (found["uids"], found["gids"], found["groups"]) == ([STRANGER] * 3, [STRANGER] * 3, [])
    assert found["capabilities"] == 0
    assert found["no_new_privileges"]


def test_the_child_has_no_terminal_and_the_descriptors_that_it_was_given(state: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        [found] = run_as_owner(state, identity, pass_fds=[one.fileno()])
        assert found["session"]
        assert one.fileno() in found["descriptors"]
        assert other.fileno() not in found["descriptors"]
        assert len(found["descriptors"]) <= 6  # 0, 1, 2, the pipe, the one, and that which lists them
        assert found["umask"] == 0o077


def test_standard_streams_are_closed_to_it(state: Path) -> None:
    def streams() -> Iterator[str]:
        yield from (str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3))

    assert set(run_as_owner(state, streams)) == {"/dev/null"}


def test_bytes_and_json_arrive_in_order(state: Path) -> None:
    def values() -> Iterator[Any]:
        yield {"text": "\x00 ü"}
        yield b"\x00\xff" * 100_000
        yield [1, None]

    assert list(run_as_owner(state, values)) == [{"text": "\x00 ü"}, b"\x00\xff" * 100_000, [1, None]]
    assert result_as_owner(state, values) == [1, None]


def test_an_error_comes_over_as_it_is(state: Path) -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise Conflict("No.", suggestion="Wait.", field="file")

    found = run_as_owner(state, fail)
    assert next(found) == 1
    with pytest.raises(Conflict) as caught:
        next(found)
    assert caught.value.to_dict() == {
        "code": "conflict",
        "message": "No.",
        "field": "file",
        "suggestion": "Wait.",
    }


def test_a_defect_in_the_child_is_an_error_of_the_parent(state: Path) -> None:
    def fail() -> Iterator[int]:
        yield 1 // 0

    with pytest.raises(LightagentError, match="ZeroDivisionError"):
        list(run_as_owner(state, fail))


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_a_crash_means_damage(state: Path, number: int) -> None:
    def crash() -> Iterator[int]:
        os.kill(os.getpid(), number)
        yield 1

    with pytest.raises(HistoryDamaged, match=signal.Signals(number).name):
        list(run_as_owner(state, crash))


def test_a_kill_is_no_damage(state: Path) -> None:
    def killed() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield 1

    with pytest.raises(StorageError, match="SIGKILL") as caught:
        list(run_as_owner(state, killed))
    assert not isinstance(caught.value, HistoryDamaged)


def test_an_end_without_a_word_is_an_error(state: Path) -> None:
    def leave() -> Iterator[int]:
        yield from ()
        os._exit(0)

    with pytest.raises(StorageError, match="ended early"):
        list(run_as_owner(state, leave))


def test_whoever_leaves_ends_the_child(state: Path) -> None:
    def endless() -> Iterator[int]:
        yield os.getpid()
        while True:
            signal.pause()

    found = run_as_owner(state, endless)
    child = next(found)
    found.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_end_of_the_parent_ends_the_child(state: Path) -> None:
    def endless() -> Iterator[int]:
        yield os.getpid()
        while True:
            signal.pause()

    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        found = run_as_owner(state, endless, pass_fds=[writing])
        os.write(writing, str(next(found)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    os.waitpid(middle, 0)
    with os.fdopen(reading, "rb") as pipe:
        assert int(pipe.read())  # up to the end, which comes when nobody holds the other end any more


def test_no_folder_and_no_right_to_look_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        owner_of(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        owner_of(tmp_path / "file")


@as_root
def test_another_user_is_refused_and_told_of_sudo(state: Path) -> None:
    owned(state, STRANGER)
    os.seteuid(STRANGER + 1)
    try:
        with pytest.raises(PermissionDenied, match="belongs to uid 4711") as caught:
            owner_of(state)
    finally:
        os.seteuid(0)
    assert "sudo" in caught.value.suggestion


@as_root
def test_a_store_of_another_owner_than_its_folder_is_refused(state: Path) -> None:
    (state / "history").mkdir()
    owned(state)
    os.chown(state / "history", 0, 0)
    with pytest.raises(StorageError, match="belongs to root"):
        owner_of(state)


@as_root
def test_a_store_behind_a_link_of_the_owner_is_not_opened_as_root(state: Path, tmp_path: Path) -> None:
    owned(state)
    (state / "history").symlink_to(tmp_path)
    with pytest.raises(StorageError):  # the link is root's here
        owner_of(state)
    os.chown(state / "history", STRANGER, STRANGER, follow_symlinks=False)
    assert owner_of(state) == Owner(uid=STRANGER, gid=STRANGER)  # what lies behind it is his to open, or not


@as_root
def test_roots_folder_that_others_can_write_is_refused(state: Path) -> None:
    state.chmod(0o777)
    with pytest.raises(StorageError, match="others can write it"):
        owner_of(state)
