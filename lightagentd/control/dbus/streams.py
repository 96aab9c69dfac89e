"""Answers of many parts on D-Bus: signals to the one peer that asked, until the last part or until it leaves.

A method that streams returns the path of an object with the interface `org.lightagent1.Stream`. The object
exists for its owner alone. It sends `Item` for each part, then `Ended` with an empty error on success.
`Manager.Prompt` sends `org.lightagent1.Turn.Event` from the turn's path instead. An item is pulled from its
source only when the peer has room for it (`peers`).

A client library that connects to the signals of the path in a reply may come too late for the first ones. So
the caller can choose the path by `handle_token`, and connect before it calls.

A `Stream` owns the task that sends; its `Peer` owns the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from lightagentd import api
from lightagentd.bus.connection import Reply, error_reply
from lightagentd.control.dbus.peers import Peer
from lightagentd.control.dbus.types import ROOT, handle_path, object_path, to_bus
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, LimitExceeded

STREAM = "org.lightagent1.Stream"
TURN = "org.lightagent1.Turn"
PER_PEER, PER_UID, IN_ALL = 32, 64, 256
"""How many streams may run: of one connection to the bus; of one user, and of all but administrators."""
HANDLES = 64
"""How many turns of one connection to the bus have a path of the caller's choice, the newest."""
_TOKEN = re.compile("[A-Za-z0-9_]{1,64}")

_log = logging.getLogger(__name__)
_INTERNAL = LightagentError("The stream broke off inside the daemon.", suggestion="The journal says why.")


class Stream:
    """One stream. Call `begin` after its path has been sent."""

    FOLDER = "streams"

    def __init__(
        self, peer: Peer, items: AsyncGenerator[Any, None], *, begins_at_once: bool, token: str = ""
    ) -> None:
        """With `begins_at_once`, `first` waits for the first item or for the error instead of it. `token` is
        the caller's for the path. Raises InvalidArgument, Conflict.
        """
        self.peer = peer
        self.path = _chosen_path(peer, self.FOLDER, token) if token else ""
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._items = items
        self._begins_at_once = begins_at_once
        self._begun = asyncio.Event()
        peer.streams.add(self)
        self._sending = asyncio.create_task(self._run(), name=f"bus stream to {peer.name}")

    def begin(self) -> None:
        self._begun.set()

    async def close(self, why: LightagentError | None = None) -> None:
        """End it, with `why` as the error or without a message, and wait until its source is closed."""
        self._sending.cancel()
        await asyncio.wait([self._sending])
        if self.first.done() and not self.first.cancelled():
            self.first.exception()  # so that asyncio does not report what nobody waits for any more
        if why is not None and self._begun.is_set():
            with contextlib.suppress(LightagentError):
                await self._end(why)

    async def _run(self) -> None:
        # All in one task: a generator may hold something bound to the task that started it.
        failure: LightagentError | None = None
        try:
            async with aclosing(self._items) as items:
                try:
                    if self._begins_at_once:
                        self.first.set_result(await anext(items))
                    await self._begun.wait()
                    if self._begins_at_once:
                        await self._send(self.first.result())
                    async for item in items:
                        await self._send(item)
                except LightagentError as err:
                    failure = err
                except Exception:  # noqa: BLE001 - the boundary of a request
                    _log.exception("the stream %s of %s broke off", self.path, self.peer.name)
                    failure = _INTERNAL
            if self._begins_at_once and not self.first.done():
                self.first.set_exception(failure or _INTERNAL)
                return
            with contextlib.suppress(LightagentError):  # the bus is gone
                await self._end(failure)
        finally:
            self.first.cancel()
            self.peer.streams.discard(self)

    async def _send(self, item: Any) -> None:
        await self.peer.send(self.path, STREAM, "Item", "a{sv}", [to_bus(item, "a{sv}")])

    async def _end(self, failure: LightagentError | None) -> None:
        said = ["", "", ""]
        if failure is not None:
            said = [error_reply(failure).error, failure.message, failure.suggestion]
        args = [to_bus(one, "s") for one in said]
        await self.peer.send(self.path, STREAM, "Ended", "sss", args, now=True)


class TurnStream(Stream):
    """The events of a turn, as signals of the turn's object. The last is of the type done or error."""

    FOLDER = "turns"

    async def _send(self, item: api.TurnEvent) -> None:
        await self.peer.send(self.path, TURN, "Event", "sa{sv}", [item["type"], to_bus(item, "a{sv}")])

    async def _end(self, failure: LightagentError | None) -> None:
        if failure is not None:
            event = to_bus({"type": "error", **failure.to_dict()}, "a{sv}")
            await self.peer.send(self.path, TURN, "Event", "sa{sv}", ["error", event], now=True)


def check_room(peer: Peer, of_its_uid: int, in_all: int) -> None:
    """Raises LimitExceeded when this peer may open no more streams."""
    if len(peer.streams) >= PER_PEER:
        raise LimitExceeded(
            f"This program reads {len(peer.streams)} streams already.", suggestion="Close some of them first."
        )
    if not peer.caller.is_administrator and (of_its_uid >= PER_UID or in_all >= IN_ALL):
        raise LimitExceeded(
            "Too many streams run already.", suggestion="Close some of them, or try again later."
        )


def _chosen_path(peer: Peer, folder: str, token: str) -> str:
    """Raises InvalidArgument for an invalid token, Conflict for one that is in use."""
    if not _TOKEN.fullmatch(token):
        raise InvalidArgument(
            "A handle_token is of 1 to 64 letters, digits and underscores.", field="handle_token"
        )
    path = handle_path(folder, peer.name, token)
    if any(stream.path == path for stream in peer.streams):
        raise Conflict(
            f"The handle_token {token} is in use.", suggestion="Choose another one.", field="handle_token"
        )
    return path


async def open_stream(
    peer: Peer, items: AsyncGenerator[Any, None], *, begins_at_once: bool, token: str = ""
) -> Reply:
    """Open a stream for the peer, and return the reply with its path.

    With `begins_at_once`, an error of the source before its first item is raised here.
    """
    stream = Stream(peer, items, begins_at_once=begins_at_once, token=token)
    if begins_at_once:
        await _first_of(stream)
    if not token:
        peer.opened += 1
        stream.path = f"{ROOT}/streams/{peer.opened}"
    return Reply(signature="o", args=[stream.path], after=stream.begin)


async def open_turn(peer: Peer, items: AsyncGenerator[api.TurnEvent, None], *, token: str = "") -> Reply:
    """Open the stream of a turn's events, and return the reply with the paths of session and turn."""
    stream = TurnStream(peer, items, begins_at_once=True, token=token)
    first = await _first_of(stream)
    turn = object_path("turns", first["trace_id"])
    if token:
        peer.handles.pop(stream.path, None)
        peer.handles[stream.path] = turn
        while len(peer.handles) > HANDLES:
            peer.handles.pop(next(iter(peer.handles)))
    else:
        stream.path = turn
    session = object_path("sessions", first["session"])
    return Reply(signature="oo", args=[session, stream.path], after=stream.begin)


async def _first_of(stream: Stream) -> Any:
    """The first item of a stream. A cancellation while waiting ends the stream."""
    try:
        await asyncio.wait([stream.first])
        return stream.first.result()
    except asyncio.CancelledError:
        await stream.close()
        raise
