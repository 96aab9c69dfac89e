"""The shim: a library in C that a daemon is started with, and through which a test breaks what it stands on.

It is compiled by cc(1) from `shim.c`, once a process. A `Shim` owns the control page, a file in a folder of
the test's, and works for every process that is started with its `env`, also while that runs.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.prepared import SHIM_CONTROL

WRITES, SYNCS, ALLOCATIONS, NAMES = 1, 2, 4, 8
"""The operations that can fail: bits of `Shim.fail`."""
BEFORE, AFTER, HALF = 0, 1, 2
"""Where in an operation a process is killed."""
_FIELDS = ("countdown", "when", "error", "operations", "halves", "clock_ns", "seen")
_PATH_AT = 8 * len(_FIELDS)
_PATH_BYTES = 512


class Shim:
    """Everything is off at first; `under` is the folder below which operations count."""

    def __init__(self, folder: Path, under: Path) -> None:
        self._file = folder / "shim-control"
        self._file.write_bytes(bytes(_PATH_AT + _PATH_BYTES))
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self.under(under)

    @property
    def env(self) -> dict[str, str]:
        """The variables to start a process with."""
        return {"LD_PRELOAD": str(_library()), SHIM_CONTROL: str(self._file)}

    def close(self) -> None:
        self._page.close()

    def under(self, path: Path) -> None:
        """Operations count on paths that begin so."""
        text = str(path.resolve()).encode()
        assert len(text) < _PATH_BYTES
        self._page[_PATH_AT : _PATH_AT + _PATH_BYTES] = text.ljust(_PATH_BYTES, b"\0")

    def kill_at(self, operation: int, when: int = BEFORE) -> None:
        """Kill the process at its n-th operation from now on; 0 for never."""
        self._set("when", when)
        self._set("countdown", operation)

    def fail(self, error: int, operations: int = WRITES | SYNCS | ALLOCATIONS) -> None:
        """Have operations fail with an errno; 0: they work again."""
        self._set("operations", operations)
        self._set("error", error)

    def write_halves(self, on: bool) -> None:
        """Have each write store half of what it was given, and say so."""
        self._set("halves", int(on))

    def set_clock(self, ahead_s: float) -> None:
        """Have the wall clock be ahead by so much; behind, when it is negative."""
        self._set("clock_ns", int(ahead_s * 1e9))

    @property
    def seen(self) -> int:
        """How many operations there were."""
        return int(struct.unpack_from("q", self._page, 8 * _FIELDS.index("seen"))[0])

    def _set(self, field: str, value: int) -> None:
        struct.pack_into("q", self._page, 8 * _FIELDS.index(field), value)


def can_build() -> bool:
    """Whether there is a compiler."""
    return shutil.which("cc") is not None


@functools.cache
def _library() -> Path:
    built = Path(tempfile.mkdtemp(prefix="la-shim-")) / "shim.so"
    atexit.register(shutil.rmtree, built.parent)
    built.parent.chmod(0o755)
    source = Path(__file__).with_name("shim.c")
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"],
        check=True,
    )
    return built
