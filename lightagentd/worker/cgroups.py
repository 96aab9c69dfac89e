"""One cgroup for each call of a worker unit, so that a call's processes can be killed completely.

    lightagent-observe@ops.service     made by systemd, and delegated (Delegate=yes)
        worker                         the worker itself (DelegateSubgroup=worker)
        call-call_0123456789abcdef     what one call has started; made and removed by the worker

Every command of a call moves into the call's cgroup between fork and exec (`join`). So all its descendants
are inside, even in another session. At the end of the call the kernel kills all of them at once, forks in
progress included (`cgroup.kill`). The cgroup tree belongs to the command's own user; its Landlock domain
(`landlock.ruleset`) keeps a confined command from moving itself elsewhere. See cgroups(7) and
https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from contextvars import ContextVar
from pathlib import Path

_log = logging.getLogger(__name__)

END_ROUNDS, END_PAUSE_S = 600, 0.005
"""How often and how fast it is looked after a cgroup that was killed: its processes take a moment to go."""

_joined: ContextVar[int] = ContextVar("cgroup", default=-1)
"""The descriptor of `cgroup.procs` of the call that the running task belongs to."""


def own_cgroup() -> Path:
    """The folder of this process' cgroup. Raises FileNotFoundError where no cgroup v2 is mounted."""
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if own and source.startswith("cgroup2 "):
            return Path(fields.split()[4]) / own[0].lstrip("/")
    raise FileNotFoundError("no cgroup v2 hierarchy is mounted")


def join() -> None:
    """In a new process: move into the cgroup of its call, if there is one.

    Only system calls: it runs between fork and exec. Raises OSError.
    """
    procs = _joined.get()
    if procs >= 0:
        os.write(procs, b"0")


class CallCgroup:
    """The cgroup of one call. Processes started in its `with` block, or in a task made there, join it.

    `end` kills its processes and removes it; the maker of the object calls it.
    """

    def __init__(self, path: Path) -> None:
        """Make the cgroup. Raises OSError."""
        self.path = path
        path.mkdir()
        self._procs = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def __enter__(self) -> CallCgroup:
        self._token = _joined.set(self._procs)
        return self

    def __exit__(self, *_: object) -> None:
        _joined.reset(self._token)

    @property
    def populated(self) -> bool:
        """Whether a process is in it or in a cgroup below it."""
        return "populated 1" in (self.path / "cgroup.events").read_text()

    async def end(self) -> None:
        """Kill its processes, wait for their end, and remove it. A cancel is delayed until then."""
        cancelled = False
        for _ in range(END_ROUNDS):
            if self._ended():
                break
            try:
                await asyncio.sleep(END_PAUSE_S)
            except asyncio.CancelledError:
                cancelled = True
        else:
            _log.error("processes of an ended call cannot be killed: %s", self.path)
        if cancelled:
            raise asyncio.CancelledError

    def _ended(self) -> bool:
        """Kill its processes; True when it was empty and is removed."""
        if self._procs >= 0:
            os.close(self._procs)
            self._procs = -1
        try:
            if self.populated:
                (self.path / "cgroup.kill").write_text("1")
                return False
            for folder, _, _ in os.walk(self.path, topdown=False):
                Path(folder).rmdir()  # a command of root's can have made some below
        except FileNotFoundError:
            return True
        except OSError:  # a process joined meanwhile
            return False
        return True


class CallCgroups:
    """Makes the cgroups of a worker's calls, below the one that systemd delegated to its unit."""

    def __init__(self, unit: Path) -> None:
        self._unit = unit

    @staticmethod
    def of_this_unit() -> CallCgroups:
        """For a worker that systemd put into a subgroup. Raises OSError otherwise."""
        unit = own_cgroup().parent
        made = CallCgroups(unit)
        probe = made.make("probe")
        with contextlib.suppress(FileNotFoundError):
            probe._ended()
        return made

    def make(self, call_id: str) -> CallCgroup:
        """A new cgroup for a call. Raises OSError."""
        return CallCgroup(self._unit / f"call-{re.sub(r'[^A-Za-z0-9_-]', '-', call_id)[:64]}")
