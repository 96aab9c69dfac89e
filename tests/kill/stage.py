"""What the kill loop kills: a daemon process with an agent that may change things, and a model beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lightagentd.host.paths import Paths
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.faults.shim import Shim
from tests.prepared import ANSWERS, prepared

AGENT = "test"
_TOML = """
[daemon]
drain_timeout_s = 1

[limits]
max_queue = 1000

[worker]
sandbox = "none"
change_agents = ["test"]

[history]
max_bytes = {max_bytes}
checkpoint_events = 40
checkpoint_s = 1
"""


class Victim(DaemonProcess):
    """A daemon process that may end by itself."""

    def ends_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class Stage:
    """The daemon's folders and its process; `with Stage(base) as stage` ends what is left of both."""

    def __init__(self, base: Path, *, max_bytes: int = 0, mounts_of: int | None = None) -> None:
        """`mounts_of` as in `DaemonProcess`, and `max_bytes` the limit of the history's retention."""
        self.base = base
        base.chmod(0o755)
        self.paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        self.out = base / "out"
        self.out.mkdir(exist_ok=True)
        self.shim = Shim(base, self.paths.state)
        self.daemon = Victim(self.paths, self.shim.env, mounts_of=mounts_of)
        self._max_bytes = max_bytes
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        self._stack.callback(self.shim.close)
        told, tells = os.pipe()
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        with os.fdopen(told) as said:
            with Path(os.devnull).open() as nothing, os.fdopen(tells, "w"):
                streams = (nothing.fileno(), tells, 2)
                server = prepared().fork(ANSWERS, [str(self.out)], env, REPOSITORY, streams)
            self._stack.callback(server.wait, 10)
            self._stack.callback(server.terminate)
            url = said.readline().strip()
        self._stack.callback(self.daemon.close)
        front = f"model: openai/x\nbase_url: {url}\neffects: [observe, reach, change]"
        write(self.paths.config / "agent" / AGENT / "AGENT.md", f"---\n{front}\n---\nBe brief.\n")
        write(self.paths.config / "lightagentd.toml", _TOML.format(max_bytes=self._max_bytes))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill_everything(self) -> None:
        """The daemon and every process below it, as the end of its control group would."""
        for pid in descendants(self.daemon.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemon.kill()


def descendants(pid: int) -> Iterator[int]:
    """The processes below a process, parents first."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in listing.read_text().split():
                yield int(child)
                yield from descendants(int(child))
