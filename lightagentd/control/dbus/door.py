"""Admits calls to the D-Bus plane by their headers, before a body is read or decoded.

A peer that is not yet identified may cost little: a limited number of calls and bytes. After that each user
has a share. A body is read only if its signature is the one that the method takes.

- Calls above a limit get LimitExceeded; those that want no reply are dropped.
- Only a few calls of each user run at a time (`varlink/turns.py`); the others wait. `GetManagedObjects`, the
  most expensive call, is answered one by one.
- Administrators have only the limits of the connection, and do not wait for others.

A `PlaneDoor` belongs to one connection to the bus.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import TracebackType

from lightagentd.bus.connection import Call, Door, Entrance
from lightagentd.config.configuration import OwnerLimits
from lightagentd.control.dbus.methods import methods
from lightagentd.control.dbus.object_methods import methods_of
from lightagentd.control.dbus.peers import Peer, Peers
from lightagentd.control.dbus.properties import INTERFACE as PROPERTIES
from lightagentd.control.dbus.types import ROOT
from lightagentd.control.dbus.views import KINDS
from lightagentd.control.dbus.watchers import OBJECT_MANAGER
from lightagentd.errors import LimitExceeded, MessageTooLarge
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.varlink.turns import Turn, Turns

CALLS_OF_UNKNOWN, CALLS_IN_ALL = 64, 1024
"""How many calls may wait for their answers: of one peer that we do not know yet, and of all users but
administrators."""
CALLS_LIMIT = 2 * CALLS_IN_ALL + 256
"""Those of everybody: of users, of whom we do not know yet, and a reserve for administrators."""
HELD_OF_UNKNOWN_BYTES, HELD_IN_ALL_BYTES = 2 * MAX_MESSAGE_BYTES, 8 * MAX_MESSAGE_BYTES
"""How large the arguments of these calls may be together, until they are answered."""
_UNKNOWN = -1
"""Stands for the uid of all peers that the bus has not told us of yet."""


class PlaneDoor(Door):
    """Counts admitted calls until they are answered."""

    def __init__(self, peers: Peers, limits: OwnerLimits) -> None:
        self.peers = peers
        self._limits = limits
        self.turns = Turns()
        self.calls: Counter[int] = Counter()
        """The calls that wait for an answer, by uid."""
        self.held_bytes: Counter[int] = Counter()
        self.unknown: Counter[str] = Counter()
        """The calls of peers that we do not know yet, by unique name."""
        self.one_by_one: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def enter(self, call: Call, body_bytes: int) -> Entrance:
        wants_body = bool(body_bytes) and takes(call)
        if wants_body and body_bytes > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"The arguments of {call.member} are larger than {MAX_MESSAGE_BYTES >> 20} MiB.",
                suggestion="Put what is large into a file, and name that.",
            )
        held = body_bytes if wants_body else 0
        peer = self.peers.by_name.get(call.sender)
        if peer is None:
            if self.unknown[call.sender] >= CALLS_OF_UNKNOWN:
                raise _too_many_calls()
            self._check(_UNKNOWN, held, CALLS_IN_ALL, HELD_OF_UNKNOWN_BYTES)
        elif not peer.caller.is_administrator:
            self.check_user(peer.caller.uid, held)
        return PlaneEntrance(self, call, peer, held, wants_body=wants_body)

    def check_user(self, uid: int, held: int) -> None:
        """Raises LimitExceeded when this user may make no further call."""
        self._check(uid, held, self._limits.calls, self._limits.waiting_bytes)
        if self.calls.total() - self.calls[_UNKNOWN] >= CALLS_IN_ALL:
            raise _too_many_calls()
        if held and self.held_bytes.total() - self.held_bytes[_UNKNOWN] + held > HELD_IN_ALL_BYTES:
            raise _too_much_held()

    def _check(self, uid: int, held: int, calls: int, held_bytes: int) -> None:
        if self.calls[uid] >= calls:
            raise _too_many_calls()
        if held and self.held_bytes[uid] + held > held_bytes:
            raise _too_much_held()

    def count(self, uid: int, calls: int, held: int) -> None:
        for counter, change in ((self.calls, calls), (self.held_bytes, held)):
            counter[uid] += change
            if not counter[uid]:
                del counter[uid]
        if not self.calls[uid]:
            self.one_by_one.pop(uid, None)


class PlaneEntrance(Entrance):
    """One call. It counts for the uid of its peer as soon as that is known."""

    def __init__(
        self, door: PlaneDoor, call: Call, peer: Peer | None, held: int, *, wants_body: bool
    ) -> None:
        self.wants_body = wants_body
        self._door, self._call, self._held = door, call, held
        self._uid = peer.caller.uid if peer is not None else _UNKNOWN
        self._lock: asyncio.Lock | None = None
        self._turn: Turn | None = None
        door.count(self._uid, 1, held)
        if peer is None:
            door.unknown[call.sender] += 1

    async def __aenter__(self) -> Entrance:
        door = self._door
        peer = await door.peers.of(self._call.sender)
        caller = peer.caller
        if self._uid == _UNKNOWN:
            if not caller.is_administrator:
                door.check_user(caller.uid, self._held)
            self._forget()
            self._uid = caller.uid
            door.count(caller.uid, 1, self._held)
        if caller.is_administrator:
            return self
        if (self._call.interface, self._call.member) in _ONE_BY_ONE:
            lock = door.one_by_one[caller.uid]
            await lock.acquire()
            self._lock = lock
        try:
            await door.turns.take(caller.uid)
        except asyncio.CancelledError:
            self._end()
            raise
        self._turn = Turn(door.turns, caller.uid)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def decoded(self) -> None:
        if self._turn is not None:
            self._turn.works()

    def left(self) -> None:
        self._end()
        self._forget()

    def _forget(self) -> None:
        """Stop counting the call."""
        if self._uid == _UNKNOWN:
            self._door.unknown[self._call.sender] -= 1
            if not self._door.unknown[self._call.sender]:
                del self._door.unknown[self._call.sender]
        self._door.count(self._uid, -1, -self._held)

    def _end(self) -> None:
        if self._turn is not None:
            self._turn.end()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


_ONE_BY_ONE = {(OBJECT_MANAGER, "GetManagedObjects"), ("", "GetManagedObjects")}


def takes(call: Call) -> bool:
    """Whether a method takes a call with this header; if not, the header alone determines the reply."""
    if call.path != ROOT and not call.path.startswith(ROOT + "/"):
        return False
    return call.signature in _signatures().get((call.interface, call.member), ())


@functools.cache
def _signatures() -> Mapping[tuple[str, str], frozenset[str]]:
    """The signatures that each method takes, by interface and name, and by name alone."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    listed = [(PROPERTIES, "Get", "ss"), (PROPERTIES, "GetAll", "s"), (PROPERTIES, "Set", "ssv")]
    of_all = [(interface, name, one) for (interface, name), one in methods().items()]
    of_all += [(kind.interface, name, one) for kind in KINDS for name, one in methods_of(kind).items()]
    listed += [
        (interface, name, signature) for interface, name, one in of_all for signature in one.in_signatures
    ]
    for interface, name, signature in listed:
        found[interface, name].add(signature)
        found["", name].add(signature)
    return {key: frozenset(signatures) for key, signatures in found.items()}


def _too_many_calls() -> LimitExceeded:
    return LimitExceeded(
        "Too many calls of your user, or of all users, wait for their answers.",
        suggestion="Wait for some of them. The limit of a user is [limits.owner] calls.",
    )


def _too_much_held() -> LimitExceeded:
    return LimitExceeded(
        "The calls of your user, or of all users, that wait for their answers are too large together.",
        suggestion="Send one after another. The limit of a user is [limits.owner] waiting_bytes.",
    )
