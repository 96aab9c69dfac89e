"""A disk of a test's own: mounted in a mount namespace that nobody else sees, and that ends with the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


class Disk:
    """A mount namespace in which `folder` is a disk; `holder` is the pid of a process in there."""

    def __init__(self, folder: Path, holder: int) -> None:
        self.folder = folder
        self.holder = holder

    @property
    def inside(self) -> Path:
        """The disk, for this process."""
        return Path(f"/proc/{self.holder}/root{self.folder}")

    def run(self, *command: str) -> None:
        entered = ("nsenter", "--mount", f"--target={self.holder}", f"--wd={REPOSITORY}")
        subprocess.run([*entered, *command], check=True)

    def fill(self) -> Path:
        """Take all room that there is; gives the file to remove."""
        ballast = self.inside / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        return ballast


@contextlib.contextmanager
def mounted(folder: Path, *command: str) -> Iterator[Disk]:
    """A namespace in which a mount(8) command has run. Skips where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("only root can mount")
    folder.mkdir(parents=True, exist_ok=True)
    script = 'mount "$@" && echo mounted && exec sleep 100000'
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *command, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert holder.stdout is not None
    try:
        said = holder.stdout.readline()
        if said != "mounted\n":
            pytest.skip(f"nothing can be mounted here: {said}")
        yield Disk(folder, holder.pid)
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdout.close()
