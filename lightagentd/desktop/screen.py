"""Shows a `Board` through the desktop's notification server, and forwards the clicks.

A `Screen` owns its connection to the session bus and its notifications, and withdraws them when it ends. It
waits for a missing bus or server: a new server shows questions again, but news only once. Pauses between
attempts grow (`pause`), also when a notification makes the server crash.

The server belongs to the person, and so do all programs on the session bus: a click is worth as much as a
command of theirs. Accidental clicks must not count. There is no default action, so a click on the
notification itself answers nothing. The first button of an approval denies. A click on any other button
within `GUARD_S` of the notification's appearance was meant for something below it, so the notification is
shown again.

Specification: https://specifications.freedesktop.org/notification-spec/latest/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from lightagentd import errors
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.bus.connection import Bus, Signal, Signals, Variant, connect
from lightagentd.client.pause import Pause, keep_trying
from lightagentd.desktop.board import APPROVE, DENY, Board, Card
from lightagentd.errors import LightagentError

NAME = "org.freedesktop.Notifications"
PATH = "/org/freedesktop/Notifications"
APP_NAME = "lightagentd"
SHOWN_LIMIT = 10
"""Questions on the screen at a time; the next is shown when one of them is over."""
GUARD_S = 1.0
CALL_S = 10.0
_CLEANUP_S = 2.0
_NEVER, _SERVER_DECIDES = 0, -1
_LOW, _NORMAL = 0, 1
_EXPIRED, _DISMISSED = 1, 2
_LABELS = {DENY: "Deny", APPROVE: "Approve once"}
_BUS_NAME, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"

_log = logging.getLogger(__name__)

Answer = Callable[[Card, str], Awaitable[bool]]
"""Gives an answer to the daemon: the question, and one of its `answers`. True when the question is over."""


@dataclass(frozen=True, kw_only=True)
class _Server:
    """A notification server. `owner` is its unique name; its notifications end with it."""

    owner: str
    can: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A question that one server shows."""

    owner: str
    number: int
    since: float


class Screen:
    """`await run()` shows the board until it is cancelled."""

    def __init__(
        self, board: Board, answer: Answer, *, bus: str = "session", guard_s: float = GUARD_S
    ) -> None:
        self._board = board
        self._answer = answer
        self._bus = bus
        self._guard_s = guard_s
        self._server: _Server | None = None
        self._server_pause = Pause()
        self._shown: dict[str, _Shown] = {}
        self._dismissed: set[str] = set()
        """Questions that the person closed: they stay open, but are not shown to them again."""
        self._answering: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Never returns."""
        await keep_trying(lambda: connect(self._bus), self._on_bus, "session bus")

    async def _on_bus(self, bus: Bus) -> None:
        try:
            async with (
                bus.signals(sender=_BUS_NAME, member="NameOwnerChanged", arg0=NAME) as owners,
                bus.signals(interface=NAME, path=PATH) as clicks,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(self._until_lost(bus), name="notify: bus")
                group.create_task(self._follow_owners(owners), name="notify: owners")
                group.create_task(self._follow_clicks(bus, clicks), name="notify: clicks")
                group.create_task(self._present(bus), name="notify: present")
        finally:
            await self._leave(bus)

    async def _until_lost(self, bus: Bus) -> None:
        raise await bus.wait_lost()

    async def _leave(self, bus: Bus) -> None:
        """Withdraw the notifications, because their buttons have no effect any more."""
        shown, self._shown, self._server = [*self._shown.values()], {}, None
        tasks = [*self._answering.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(LightagentError, TimeoutError):
            async with asyncio.timeout(_CLEANUP_S):
                for one in shown:
                    await self._close(bus, one)

    # Signals of the server

    async def _follow_owners(self, owners: Signals) -> None:
        async for signal in _never_full(owners):
            if self._server is not None and signal.args[2] != self._server.owner:
                self._server = None
                self._server_pause.failed()
            self._shown = {key: one for key, one in self._shown.items() if one.owner == signal.args[2]}
            self._board.changed.set()

    async def _follow_clicks(self, bus: Bus, clicks: Signals) -> None:
        async for signal in _never_full(clicks):
            if signal.signature == "us" and signal.member == "ActionInvoked":
                await self._clicked(bus, signal)
            elif signal.signature == "uu" and signal.member == "NotificationClosed":
                self._closed(signal)

    def _key_of(self, signal: Signal) -> str:
        """The question that a signal is about; empty if it is not ours, or another server's."""
        owner, number = signal.sender, signal.args[0]
        found = (key for key, one in self._shown.items() if (one.owner, one.number) == (owner, number))
        return next(found, "")

    async def _clicked(self, bus: Bus, signal: Signal) -> None:
        key, answer = self._key_of(signal), signal.args[1]
        card = self._board.questions.get(key)
        if card is None or answer not in card.answers:
            return
        shown = self._shown.pop(key)
        if answer != DENY and time.monotonic() - shown.since < self._guard_s:
            _log.info("the answer to %s came with its notification, so it does not count", key)
        elif key not in self._answering:
            task = asyncio.create_task(self._give(card, answer), name=f"notify: answer {key}")
            self._answering[key] = task
            task.add_done_callback(lambda done: self._given(key, done))
        with contextlib.suppress(LightagentError):
            await self._close(bus, shown)  # most servers close it with the click
        self._board.changed.set()

    async def _give(self, card: Card, answer: str) -> None:
        if await self._answer(card, answer):
            self._board.settle(card.key)

    def _given(self, key: str, done: asyncio.Task[None]) -> None:
        self._answering.pop(key, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.error("the answer to %s failed", key, exc_info=error)
        self._board.changed.set()

    def _closed(self, signal: Signal) -> None:
        if (key := self._key_of(signal)) and signal.args[1] in (_EXPIRED, _DISMISSED):
            self._dismissed.add(key)
        self._shown.pop(key, None)

    # Notifications

    async def _present(self, bus: Bus) -> None:
        pause = Pause()
        while True:
            await pause.wait()
            self._board.changed.clear()
            try:
                await self._sync(bus)
            except LightagentError as err:
                pause.failed()
                _log.warning("the notification server failed, trying again: %s", err)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_expiry_s()):
                    await self._board.changed.wait()

    def _until_expiry_s(self) -> float | None:
        ends = [card.expires_us for card in self._board.questions.values()]
        return max(0.0, min(ends) / 1e6 - time.time()) + 0.01 if ends else None

    async def _sync(self, bus: Bus) -> None:
        """Show the present board. Raises LightagentError when the server refuses."""
        board = self._board
        board.settle_overdue(time.time_ns() // 1000)
        self._dismissed &= board.questions.keys()
        if not (board.questions or board.news or self._shown):
            return  # nothing to show: no server needs to be started for it
        if self._server is None and (server := await self._start_server(bus)) is not None:
            self._server = server
        server = self._server
        if server is None:
            return
        for key in self._shown.keys() - board.questions.keys():
            if (shown := self._shown.pop(key, None)) is not None:
                await self._close(bus, shown)
        for card in [*board.questions.values()]:
            busy = card.key in self._shown or card.key in self._answering or card.key in self._dismissed
            if not busy and len(self._shown) < SHOWN_LIMIT:
                # Also during a cancellation: a notification must be known to be withdrawn.
                await uninterrupted(self._show(bus, server, card))
        if board.dropped:
            lost, board.dropped = board.dropped, 0
            _log.warning("%d news were not shown, because there was no notification server", lost)
        while board.news:
            await self._notify(bus, server, board.news[0], asks=False)
            board.news.popleft()

    async def _show(self, bus: Bus, server: _Server, card: Card) -> None:
        number = await self._notify(bus, server, card)
        if self._server is server:  # else the next one shows it
            self._shown[card.key] = _Shown(owner=server.owner, number=number, since=time.monotonic())

    async def _start_server(self, bus: Bus) -> _Server | None:
        """The running server, or one that the bus can start; None without one."""
        await self._server_pause.wait()
        if not (owner := await self._owner(bus)):
            try:
                start = ("StartServiceByName", "su", [NAME, 0], CALL_S)
                await bus.call(_BUS_NAME, _BUS_PATH, _BUS_NAME, *start)
            except (errors.Unavailable, errors.NotFound, errors.ToolError) as err:
                _log.info("there is no notification server now: %s", err)
            if not (owner := await self._owner(bus)):
                return None
        [can] = await bus.call(owner, PATH, NAME, "GetCapabilities", timeout_s=CALL_S)
        return _Server(owner=owner, can=frozenset(can))

    async def _owner(self, bus: Bus) -> str:
        """The unique name of the running server; empty for none."""
        [has] = await bus.call(_BUS_NAME, _BUS_PATH, _BUS_NAME, "NameHasOwner", "s", [NAME], CALL_S)
        if not has:
            return ""
        [owner] = await bus.call(_BUS_NAME, _BUS_PATH, _BUS_NAME, "GetNameOwner", "s", [NAME], CALL_S)
        return str(owner)

    async def _notify(self, bus: Bus, server: _Server, card: Card, *, asks: bool = True) -> int:
        buttons = card.answers if "actions" in server.can else ()
        body = card.body
        if asks and card.how and not set(buttons) - {DENY}:
            body = f"{body}\n{card.how}"
        if "body-markup" in server.can:
            body = escape(body, quote=False)
        hints = {
            "urgency": Variant("y", _NORMAL if card.urgent else _LOW),
            "category": Variant("s", "x-lightagent.question" if asks else "x-lightagent.news"),
        }
        labels = {answer: card.choice(answer) or _LABELS[answer] for answer in buttons}
        actions = [text for pair in labels.items() for text in pair]
        expires_ms = _NEVER if asks else _SERVER_DECIDES
        args: list[Any] = [APP_NAME, 0, card.icon, card.summary, body, actions, hints, expires_ms]
        [number] = await bus.call(server.owner, PATH, NAME, "Notify", "susssasa{sv}i", args, CALL_S)
        return int(number)

    async def _close(self, bus: Bus, shown: _Shown) -> None:
        """Close a notification. Servers report errors of their own for one that is closed already, which does
        not matter.
        """
        with contextlib.suppress(errors.ToolError, errors.NotFound, errors.InvalidArgument):
            await bus.call(shown.owner, PATH, NAME, "CloseNotification", "u", [shown.number], CALL_S)


async def _never_full(signals: Signals) -> AsyncGenerator[Signal, None]:
    """The signals; surplus ones are dropped, and logged."""
    while True:
        try:
            yield await anext(signals)
        except errors.LimitExceeded as err:
            _log.warning("%s", err)
