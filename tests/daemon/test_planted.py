"""What a daemon that was taken over left in its runtime folder does not keep the next one from starting."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that is none of the daemon's, with a file."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("kept\n")
    return folder


def _link_to_nothing(path: Path, _: Path) -> None:
    path.symlink_to("/nonexistent")


def _link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def _file(path: Path, _: Path) -> None:
    path.touch()


def _folder(path: Path, _: Path) -> None:
    path.mkdir()


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _dead_socket(path: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("plant", [_link_to_nothing, _link, _file, _folder, _fifo, _dead_socket])
async def test_what_is_in_the_way_is_removed(
    plant: Callable[[Path, Path], None], paths: Paths, precious: Path
) -> None:
    paths.runtime.mkdir(parents=True)
    plant(paths.socket, precious)
    plant(paths.runtime / "kept", precious)
    plant(paths.workers, precious)
    async with Daemon(paths), AsyncClient(paths.socket) as client:
        assert (await client.call("Manager.GetStatus"))["status"]["pid"] == os.getpid()
        assert paths.socket.is_socket()
        kept = (paths.runtime / "kept").lstat()
        assert (kept.st_mode & 0o777, kept.st_uid) == (0o700, os.geteuid())
    assert (precious / "file").read_text() == "kept\n"


async def test_a_folder_among_the_workers_sockets_is_removed(paths: Paths) -> None:
    (paths.workers / "planted" / "deep").mkdir(parents=True)
    async with Daemon(paths):
        assert not (paths.workers / "planted").exists()


async def test_a_folder_that_holds_something_is_named_with_what_to_do(paths: Paths) -> None:
    (paths.socket / "file").mkdir(parents=True)
    with pytest.raises(LightagentError) as caught:
        await Daemon(paths).start()
    assert caught.value.message.startswith(f"{paths.socket}, where the control socket is to be, cannot be")
    assert caught.value.suggestion.endswith(f"rm -r {paths.socket}")
    (paths.socket / "file").rmdir()
    async with Daemon(paths):
        assert paths.socket.is_socket()
