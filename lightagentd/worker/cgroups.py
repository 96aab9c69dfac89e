"""One cgroup for each call of a worker unit, so that a call's processes can be killed completely.

    lightagent-observe@07.service      made by systemd, and delegated (Delegate=yes)
        worker                         the worker itself (DelegateSubgroup=worker)
        call-call_0123456789abcdef     what one call has started; made and removed by the worker

Every command of a call moves into the call's cgroup between fork and exec (`join`). So all its descendants
are inside, even in another session. At the end of the call the kernel kills all of them at once, forks in
progress included (`cgroup.kill`). The cgroup tree belongs to the command's own user; its Landlock domain
(`landlock.ruleset`) keeps a confined command from moving itself elsewhere. Modes are outside Landlock: the
command can close the folders, or open them to others. So the worker ends a call by descriptors that it opened
before, keeps others out of the unit's folder, and restores its mode after each call. See cgroups(7) and
https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import stat
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from lightagentd.errors import OutcomeUnknown

_log = logging.getLogger(__name__)

END_ROUNDS, END_PAUSE_S = 600, 0.005
"""How often and how fast it is looked after a cgroup that was killed: its processes take a moment to go."""

_CLOSED = 0o700
"""Nobody else gets through such a folder, so that the modes of the files in it do not matter."""

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

    def __init__(self, path: Path, restore: Callable[[], None]) -> None:
        """Make the cgroup; `restore` gives the folders above it their modes back. Raises OSError."""
        self.path = path
        self._restore = restore
        path.mkdir()
        self._files: list[int] = []
        try:
            for name, flags in (
                ("cgroup.procs", os.O_WRONLY),
                ("cgroup.kill", os.O_WRONLY),
                ("cgroup.events", os.O_RDONLY),
            ):
                self._files.append(os.open(path / name, flags | os.O_CLOEXEC))
        except OSError:
            self._close()
            path.rmdir()
            raise

    def __enter__(self) -> CallCgroup:
        self._token = _joined.set(self._files[0])
        return self

    def __exit__(self, *_: object) -> None:
        _joined.reset(self._token)

    async def end(self) -> None:
        """Kill its processes, wait for their end, and remove it. A cancel is delayed until then.

        Raises OutcomeUnknown if they do not end; then only the end of the whole unit can help.
        """
        cancelled = False
        for _ in range(END_ROUNDS):
            if self._ended():
                break
            try:
                await asyncio.sleep(END_PAUSE_S)
            except asyncio.CancelledError:
                cancelled = True
        else:
            self._close()
            raise OutcomeUnknown(
                f"Processes of the call cannot be killed, and may go on: {self.path}.",
                suggestion="Look at what still runs: systemd-cgls",
            )
        if cancelled:
            raise asyncio.CancelledError

    def _ended(self) -> bool:
        """Kill its processes; True when it was empty and is removed."""
        if not self._files:
            return True
        _, kill, events = self._files
        try:
            if b"populated 1" in os.pread(events, 256, 0):
                os.write(kill, b"1")
                return False
            self._restore()
            self._remove()
        except FileNotFoundError:
            pass
        except OSError as err:
            if err.errno != errno.ENODEV:  # somebody else has removed it; else a process joined meanwhile
                return False
        self._close()
        return True

    def _remove(self) -> None:
        try:
            self.path.rmdir()
        except OSError:  # a command of root's can have made some below
            self.path.chmod(_CLOSED)
            for folder, inner, _ in os.walk(self.path):
                for name in inner:
                    Path(folder, name).chmod(_CLOSED)
            for folder, _, _ in os.walk(self.path, topdown=False):
                Path(folder).rmdir()

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())


class CallCgroups:
    """Makes the cgroups of a worker's calls, below the one that systemd delegated to its unit."""

    def __init__(self, unit: Path) -> None:
        self._unit = unit
        self._modes: dict[str, int] = {}
        """What a command must not keep closed, or open to others; root needs no modes."""
        if os.geteuid():
            unit.chmod(_CLOSED)
            self._modes = {str(path): path.stat().st_mode for path in (unit, unit / "cgroup.procs")}

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
        path = self._unit / f"call-{re.sub(r'[^A-Za-z0-9_-]', '-', call_id)[:64]}"
        try:
            return CallCgroup(path, self._restore)
        except PermissionError:  # a call that still runs has closed the unit's
            self._restore()
            return CallCgroup(path, self._restore)

    def _restore(self) -> None:
        """Give the unit's folder, and its file that moves processes, their modes back. Raises OSError."""
        for path, mode in self._modes.items():
            if os.stat(path).st_mode != mode:  # noqa: PTH116 - the faster one, since each call does it
                _log.warning("a command changed the mode of %s", path)
                Path(path).chmod(stat.S_IMODE(mode))
