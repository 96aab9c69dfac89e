"""Starts programs that outlive the call that needed them first, such as servers of tools.

A kept process is confined as every command of `process` is, and can write to its own folder alone. The worker
that runs calls knows by `kept` which processes are not leftovers of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from lightagentd.host.process import (
    answer,
    clean_environment,
    end_group,
    not_started,
    open_door,
    preparation,
    until,
)

if TYPE_CHECKING:
    from lightagentd.worker.busdoor import BusDoor

LEAVE_S = 0.5
"""How long a kept process has to leave after its input was closed."""


class Group(AbstractContextManager[Any], Protocol):
    """A cgroup: what is started in its block belongs to it, and `end` ends all of it."""

    async def end(self) -> None: ...


_apart: Callable[[str], Group] | None = None
_narrowed: Callable[[Path], AbstractContextManager[Callable[[], None]]] | None = None
_kept: set[KeptProcess] = set()


def keep_apart(
    make: Callable[[str], Group] | None,
    narrow: Callable[[Path], AbstractContextManager[Callable[[], None]]] | None,
) -> None:
    """Say how kept processes are held, beside what holds all commands. Where calls have cgroups, `make` gives
    one for a process that outlives its call; `narrow` gives a function that is called in the new process, so
    that it can write to its own folder alone.
    """
    global _apart, _narrowed
    _apart, _narrowed = make, narrow


def kept() -> frozenset[KeptProcess]:
    """The processes that outlive their calls."""
    return frozenset(_kept)


class KeptProcess:
    """A program that speaks on its standard input and output, confined as a command; its starter ends it."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        streams: SubprocessStreamProtocol,
        home: Path,
        door: BusDoor | None,
        group: Group | None,
    ) -> None:
        self._transport, self._door, self._group = transport, door, group
        self.home = home  # its starter's to remove
        self.stdin = cast(asyncio.StreamWriter, streams.stdin)
        self.stdout = cast(asyncio.StreamReader, streams.stdout)
        self.stderr = cast(asyncio.StreamReader, streams.stderr)

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str], home: Path, limit_bytes: int, apart: str = ""
    ) -> KeptProcess:
        """`limit_bytes` is the longest line of its output. With the name `apart`, it is no part of the call
        that starts it, and outlives that. Raises ToolError when it cannot be started.
        """
        group = _apart(apart) if apart and _apart is not None else None
        door, loop = open_door(argv[0]), asyncio.get_running_loop()
        only_home = _narrowed(home) if _narrowed is not None else contextlib.nullcontext()
        try:
            with group or contextlib.nullcontext(), only_home as narrow:
                transport, streams = await loop.subprocess_exec(
                    lambda: SubprocessStreamProtocol(limit=limit_bytes, loop=loop),
                    *argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=home,
                    env=clean_environment(env),
                    start_new_session=True,
                    preexec_fn=preparation(door, narrow),
                )
            answer(door, argv[0])
        except BaseException as err:
            if door is not None:
                door.close()
            if group is not None:
                await group.end()
            if isinstance(err, OSError | ValueError | subprocess.SubprocessError):
                raise not_started(argv[0], home, err) from err
            raise
        found = cls(transport, streams, home, door, group)
        if apart:
            _kept.add(found)
        return found

    @property
    def status(self) -> int | None:
        """How it has ended; None while it runs."""
        return self._transport.get_returncode()

    async def end(self) -> None:
        """Close its input, which asks it to leave, and end all that is left of it."""
        try:
            self.stdin.close()
            await until(lambda: self.status is not None, LEAVE_S)
            await end_group(self._transport.get_pid(), lambda: self.status is not None)
        finally:
            _kept.discard(self)
            self._transport.close()
            if self._door is not None:
                self._door.close()
            if self._group is not None:
                await self._group.end()
