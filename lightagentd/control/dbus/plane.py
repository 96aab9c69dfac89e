"""The D-Bus plane: the bus name `org.lightagent1` and the objects below `/org/lightagent1`.

A `DBusPlane` belongs to the daemon. The connection belongs to the daemon's `BusLink`, which has the plane
prepare each new one. Peers, their streams and subscriptions end with the connection; the daemon's work goes
on. Calls that the `door` admits go to the methods of the interfaces (`methods`), to streams (`streams`) or to
the objects (`objects`). Each reply and each signal goes to one peer; nothing is broadcast.

While another process owns the name, this one waits in the bus's queue, and `problem` names the owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.bus.connection import Bus, Call, Reply
from lightagentd.control.authz import INTERACTION, Caller
from lightagentd.control.dbus import introspection, replies
from lightagentd.control.dbus.door import CALLS_LIMIT, PlaneDoor
from lightagentd.control.dbus.methods import HANDLE, MANAGER, Method, methods
from lightagentd.control.dbus.name import BUS, BusName
from lightagentd.control.dbus.object_nodes import interfaces_of
from lightagentd.control.dbus.objects import Objects
from lightagentd.control.dbus.peers import Peer, Peers
from lightagentd.control.dbus.streams import STREAM, Stream, check_room, open_stream, open_turn
from lightagentd.control.dbus.types import ROOT, handle_path
from lightagentd.control.dbus.views import TURN
from lightagentd.control.operations.service import Service
from lightagentd.control.outgoing import cleaned_error
from lightagentd.errors import LightagentError, LimitExceeded, ShuttingDown, Unavailable

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

NAME = "org.lightagent1"
_STREAMS = ROOT + "/streams"
_CLOSE_S = 2.0
"""How long the streams have at the daemon's end to say that they end."""
_ABOVE = {"/": ["org"], "/org": ["lightagent1"]}
"""The nodes above ours, and what they show of us."""
_log = logging.getLogger(__name__)


class DBusPlane:
    """End with `close()`; `prepare` is for the `BusLink`."""

    def __init__(self, runtime: Runtime, service: Service) -> None:
        self._service = service
        self._limits = runtime.now.config.limits.owner
        self._peers: Peers | None = None
        self._attending: asyncio.Task[None] | None = None
        self._name: BusName | None = None
        self._door: PlaneDoor | None = None
        self._objects = Objects(runtime, service, self._emit, self._prompt)

    @property
    def problem(self) -> str:
        """Why the daemon cannot be reached by its name although it is on the bus, as a sentence; or empty."""
        return self._name.problem if self._name is not None else ""

    async def close(self) -> None:
        """End every stream, and tell its reader why. The connection stays open."""
        if self._peers is not None:
            why = ShuttingDown("The daemon is stopping.", suggestion="Ask again when it runs.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    for stream in self._streams():
                        await stream.close(why)
        await self._objects.close()
        await self._end_connection()

    async def prepare(self, bus: Bus) -> None:
        """Serve on a new connection. Raises LightagentError when it is unusable."""
        await self._end_connection()
        self._objects.bus_lost()
        peers, name, ready = Peers(bus), BusName(bus, NAME), asyncio.Event()
        self._peers, self._name = peers, name
        self._attending = asyncio.create_task(self._attend(bus, peers, name, ready), name="bus peers")
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([waiting, self._attending], return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            waiting.cancel()
            raise Unavailable("The bus did not let us hear who leaves it.")
        self._door = PlaneDoor(peers, self._limits)
        bus.serve(self._answer, CALLS_LIMIT, self._door)
        await name.acquire()

    async def _end_connection(self) -> None:
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.wait([self._attending])
        self._attending = self._peers = self._name = self._door = None

    # Peers

    async def _attend(self, bus: Bus, peers: Peers, name: BusName, ready: asyncio.Event) -> None:
        """Handle peers that leave and changes of our name's owner, until the connection ends."""
        try:
            async with bus.signals(sender=BUS, interface=BUS, member="NameOwnerChanged") as changes:
                ready.set()
                while True:
                    try:
                        changed, _, owner = (await anext(changes)).args
                    except LimitExceeded:
                        await self._look_who_left(bus, peers)
                        await name.acquire()
                        continue
                    if changed == NAME:
                        await name.changed(owner)
                    elif not owner and changed.startswith(":"):
                        await self._left(peers, changed)
        except LightagentError as err:
            _log.info("no longer on the bus: %s", err.message)
        finally:
            await name.close()
            self._objects.bus_lost()
            await peers.close()

    async def _left(self, peers: Peers, name: str) -> None:
        self._objects.peer_left(name)
        await peers.left(name)

    async def _look_who_left(self, bus: Bus, peers: Peers) -> None:
        for name in list(peers.by_name):
            [is_there] = await bus.call(BUS, "/org/freedesktop/DBus", BUS, "NameHasOwner", "s", [name])
            if not is_there:
                await self._left(peers, name)

    def _streams(self) -> list[Stream]:
        peers = self._peers.by_name.values() if self._peers is not None else ()
        return [stream for peer in peers for stream in peer.streams]

    # Calls

    async def _answer(self, call: Call) -> Reply:
        if self._peers is None:
            raise Unavailable("The daemon is leaving this bus.")
        peer = await self._peers.of(call.sender)
        INTERACTION.set(call.interactive)  # of the task that answers this call
        try:
            return await self._dispatch(peer, call)
        except LightagentError as err:
            raise cleaned_error(self._service.redactor, err) from err.__cause__

    async def _dispatch(self, peer: Peer, call: Call) -> Reply:
        match call.interface, call.member:
            case ("org.freedesktop.DBus.Peer" | "", "GetMachineId"):
                return Reply(signature="s", args=[await asyncio.to_thread(_machine_id)])
            case ("org.freedesktop.DBus.Introspectable" | "", "Introspect"):
                return await self._introspect(peer, call)
        call = replace(call, path=peer.handles.get(call.path, call.path))
        if call.path == ROOT and (method := _method_of(call)) is not None:
            return await self._run(peer, method, call)
        if call.path.startswith(_STREAMS + "/"):
            return await _call_stream(peer, call)
        if call.path in (*_ABOVE, _STREAMS):
            return replies.unknown_interface(call)
        reply = None
        if call.path == ROOT or call.path.startswith(ROOT + "/"):
            reply = await self._objects.call(peer.caller, call)
        if reply is not None:
            return reply
        if call.path != ROOT:
            return replies.unknown_object(call.path)
        known = not call.interface or any(call.interface == interface for interface, _ in methods())
        return replies.unknown_method(call) if known else replies.unknown_interface(call)

    async def _run(self, peer: Peer, method: Method, call: Call) -> Reply:
        if not method.streaming:
            if not method.waits:
                return await method.call(self._service, peer.caller, call)
            with peer.ends_with_it():
                return await method.call(self._service, peer.caller, call)
        args = method.parse(call)
        return args if isinstance(args, Reply) else await self._open(peer, method, args)

    async def _open(self, peer: Peer, method: Method, args: dict[str, Any]) -> Reply:
        streams = self._streams()
        of_its_uid = sum(stream.peer.caller.uid == peer.caller.uid for stream in streams)
        check_room(peer, of_its_uid, len(streams))
        token = args.pop(HANDLE, "")
        items = method.invoke(self._service, peer.caller, args)
        with peer.ends_with_it():
            if method.interface == MANAGER:
                return await open_turn(peer, items, token=token)
            return await open_stream(peer, items, begins_at_once=method.begins_at_once, token=token)

    async def _introspect(self, peer: Peer, call: Call) -> Reply:
        if call.signature:
            return replies.invalid_args(call, "", "Introspect() -> s xml_data")
        interfaces = list(introspection.standard_interfaces())
        children: list[str] = []
        if call.path in _ABOVE:
            children = _ABOVE[call.path]
        elif call.path.startswith(handle_path("turns", peer.name, "")):
            interfaces += interfaces_of(TURN)
        elif call.path == _STREAMS or call.path.startswith(_STREAMS + "/"):
            below = [one.path for one in peer.streams if one.path.startswith(call.path + "/")]
            children = sorted({path.removeprefix(call.path + "/").partition("/")[0] for path in below})
            chosen = call.path.startswith(handle_path("streams", peer.name, ""))
            if chosen or _stream_of(peer, call.path) is not None:
                interfaces.append(introspection.stream_interface())
            elif call.path != _STREAMS and not children:
                return replies.unknown_object(call.path)
        else:
            node = await self._objects.introspect(peer.caller, call.path)
            if node is None or not call.path.startswith(ROOT):
                return replies.unknown_object(call.path)
            if call.path == ROOT:
                interfaces += introspection.manager_interfaces()
                children = ["streams"]
            interfaces += node.interfaces
            children += node.children
        return Reply(signature="s", args=[introspection.render(interfaces, children)])

    # Used by the objects

    async def _emit(
        self, destination: str, path: str, interface: str, member: str, signature: str, args: list[Any]
    ) -> None:
        """Send a signal to one peer. Raises LightagentError, also when the peer has left."""
        peer = self._peers.by_name.get(destination) if self._peers is not None else None
        if peer is None:
            raise Unavailable(f"The program {destination} is not on the bus any more.")
        for handle in (path, *(handle for handle, turn in peer.handles.items() if turn == path)):
            await peer.send(handle, interface, member, signature, args)

    async def _prompt(self, caller: Caller, args: dict[str, Any]) -> Reply:
        """`Manager.Prompt`, for the objects' own methods of that name. Raises LightagentError."""
        if self._peers is None:
            raise Unavailable("The daemon is leaving this bus.")
        return await self._open(await self._peers.of(caller.bus_name), methods()[MANAGER, "Prompt"], args)


def _method_of(call: Call) -> Method | None:
    """The method that a call names. Without an interface, the name must be unique."""
    if call.interface:
        return methods().get((call.interface, call.member))
    found = [method for (_, name), method in methods().items() if name == call.member]
    return found[0] if len(found) == 1 else None


def _stream_of(peer: Peer, path: str) -> Stream | None:
    return next((stream for stream in peer.streams if stream.path == path), None)


async def _call_stream(peer: Peer, call: Call) -> Reply:
    """A call on a stream's object, which exists only for its owner."""
    stream = _stream_of(peer, call.path)
    if stream is None:
        return replies.unknown_object(call.path)
    if call.interface not in (STREAM, ""):
        return replies.unknown_interface(call)
    if call.member != "Close":
        return replies.unknown_method(call)
    if call.signature:
        return replies.invalid_args(call, "", "Close()")
    await stream.close()
    return Reply()


def _machine_id() -> str:
    """As in machine-id(5). Raises Unavailable."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            return Path(path).read_text(encoding="ascii").strip()
    raise Unavailable("This machine has no id.", suggestion="Run: systemd-machine-id-setup")
