"""The programs on the bus that call us: their identity, and how much they have read of what we sent.

A `Peer` lives from its first call until its unique name leaves the bus or the connection ends. `Peers`
belongs to one connection; the `DBusPlane` (plane.py) that owns it reports the names that leave.

**Slow readers.** The bus queues up to 127 MB for a peer that does not read, and then drops it. So at most
`WINDOW_BYTES` of signals to one peer are unread. When half of that is sent we call the peer's
`org.freedesktop.DBus.Peer.Ping`. Any program on the bus answers it after it has read what came before. Until
then senders to this peer wait, without delaying other peers. After `PATIENCE_S` they get LimitExceeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightagentd import errors
from lightagentd.bus.connection import Bus
from lightagentd.control.authz import Caller
from lightagentd.errors import LightagentError, LimitExceeded, PermissionDenied, Unavailable

if TYPE_CHECKING:
    from lightagentd.control.dbus.streams import Stream

WINDOW_BYTES = 1 << 20
PATIENCE_S = 60.0
_PEER = "org.freedesktop.DBus.Peer"
_NO_GROUP = -1
_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


class Peer:
    """One unique name on the bus, and the caller behind it."""

    def __init__(self, bus: Bus, caller: Caller) -> None:
        self.caller = caller
        self.name = caller.bus_name
        self.streams: set[Stream] = set()
        self.opened = 0
        """How many streams it ever opened: they are numbered for each peer by itself."""
        self.handles: dict[str, str] = {}
        """The paths of turns that it chose, and those of the turns; the newest last."""
        self._gone = False
        self._waiting: set[asyncio.Task[Any]] = set()
        self._bus = bus
        self._on_its_way_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._pinging: asyncio.Task[None] | None = None

    async def send(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str,
        args: Sequence[Any],
        *,
        now: bool = False,
    ) -> None:
        """Send a signal to this peer alone, as soon as it has room; with `now` without waiting for room.
        Raises LimitExceeded when the peer does not read, Unavailable, TimedOut, MessageTooLarge.
        """
        if not now:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._room.wait()
            except TimeoutError as err:
                raise LimitExceeded(
                    f"The program {self.name} on the bus did not read for {PATIENCE_S:g} s.",
                    suggestion="Read the signals as they come, then subscribe again.",
                ) from err
        size_bytes = await self._bus.emit(path, interface, member, signature, args, self.name)
        self._on_its_way_bytes += size_bytes
        if self._on_its_way_bytes >= WINDOW_BYTES:
            self._room.clear()
        if self._on_its_way_bytes >= WINDOW_BYTES // 2 and self._pinging is None:
            self._pinging = asyncio.create_task(self._ping(), name=f"bus ping {self.name}")

    async def _ping(self) -> None:
        """Find out that the peer has read everything sent so far. An error reply proves that too."""
        before = self._on_its_way_bytes
        while True:
            try:
                await self._bus.call(self.name, "/", _PEER, "Ping", timeout_s=10 * PATIENCE_S)
            except (errors.TimedOut, LimitExceeded, PermissionDenied):
                await asyncio.sleep(1.0)  # the bus did not pass it on, so nothing has been read
                continue
            except LightagentError:
                pass
            break
        self._pinging = None
        self._on_its_way_bytes -= before
        if self._on_its_way_bytes < WINDOW_BYTES:
            self._room.set()
        if self._on_its_way_bytes >= WINDOW_BYTES // 2 and not self._gone:
            self._pinging = asyncio.create_task(self._ping(), name=f"bus ping {self.name}")

    @contextlib.contextmanager
    def ends_with_it(self) -> Iterator[None]:
        """For a call whose answer is of no use once the peer is gone: the call is cancelled then."""
        if self._gone:
            raise Unavailable(f"The program {self.name} is not on the bus any more.")
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    async def close(self) -> None:
        """End the peer's streams and other tasks. Nothing more is sent to it."""
        self._gone = True
        tasks = [task for task in (*self._waiting, self._pinging) if task is not None]
        for task in tasks:
            task.cancel()
        for stream in list(self.streams):
            await stream.close()
        await asyncio.gather(*tasks, return_exceptions=True)


class Peers:
    """The peers of one connection to the bus."""

    def __init__(self, bus: Bus) -> None:
        self.by_name: dict[str, Peer] = {}
        self._bus = bus
        self._asking: dict[str, asyncio.Task[Caller]] = {}

    async def of(self, name: str) -> Peer:
        """The peer with this unique name. Raises PermissionDenied when the bus does not say who it is."""
        known = self.by_name.get(name)
        if known is not None:
            return known
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(identify(self._bus, name), name="bus caller")
            asking.add_done_callback(lambda done: self._asked(name, done))
        await asyncio.wait([asking])
        if asking.cancelled():  # it left
            raise PermissionDenied(f"The bus does not say who {name} is.")
        caller = asking.result()
        if name not in self.by_name:
            self.by_name[name] = Peer(self._bus, caller)
        return self.by_name[name]

    def _asked(self, name: str, asking: asyncio.Task[Caller]) -> None:
        self._asking.pop(name, None)
        if not asking.cancelled():
            asking.exception()  # so that asyncio does not report it when nobody waits any more

    def of_uid(self, uid: int) -> list[Peer]:
        return [peer for peer in self.by_name.values() if peer.caller.uid == uid]

    async def left(self, name: str) -> None:
        if (asking := self._asking.get(name)) is not None:
            asking.cancel()
        peer = self.by_name.pop(name, None)
        if peer is not None:
            await peer.close()

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for name in list(self.by_name):
            await self.left(name)


async def identify(bus: Bus, name: str) -> Caller:
    """The caller behind a unique name, as the bus has it from the kernel. Raises PermissionDenied."""
    try:
        [said] = await bus.call(*_BUS, "GetConnectionCredentials", "s", [name])
        uid, pid = said["UnixUserID"], said.get("ProcessID", 0)
    except (LightagentError, KeyError) as err:
        raise PermissionDenied(
            f"The bus does not say who {name} is.", suggestion="Stay on the bus until the answer comes."
        ) from err
    gid, groups = await asyncio.to_thread(_groups, uid, said.get("UnixGroupIDs"))
    return Caller(uid=uid, gid=gid, pid=pid, groups=frozenset(groups), bus_name=name)


def _groups(uid: int, said: list[int] | None) -> tuple[int, list[int]]:
    """The user's primary group, and all groups: of the process if the bus `said` them, else from the
    database.

    A process that gave up its primary group does not get it back here.
    """
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        user = None
    if said:
        own = user.pw_gid if user and user.pw_gid in said else said[0]
        return own, said
    if user is None:
        return _NO_GROUP, []
    return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
