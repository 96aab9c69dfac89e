"""Follows the daemon: fills a `Board` with open questions and finished turns, and sends answers.

A `DaemonLink` owns its connections. It reads the stored events from the last one that it has seen, so after a
restart of the daemon nothing is missed and nothing comes twice. While there is no daemon it waits, and tries
again after pauses that grow (`pause`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.client.approver import Question
from lightagentd.client.pause import keep_trying
from lightagentd.desktop import cards
from lightagentd.desktop.board import APPROVE, Board, Card
from lightagentd.errors import LightagentError

CALL_S = 30.0
_TOPICS = ("approval", "input", "session.turn", "agent.error")
_MESSAGES = 50
"""How many of a session's newest messages are searched for the prompt that an answer belongs to."""
_NO_END = "fallback"
"""The one event of `agent.error` that does not end a turn."""

_log = logging.getLogger(__name__)


class DaemonLink:
    """`await run()` follows the daemon until it is cancelled.

    An empty `socket` selects the same one as `lactl` would. `uid` is the person: questions and turns of
    others are left out, unless `everybody`. It reports turns that took at least `min_s`, and all turns that
    nobody attended.
    """

    def __init__(self, board: Board, *, socket: str, uid: int, min_s: float, everybody: bool = False) -> None:
        self._board = board
        self._socket = socket
        self._uid = uid
        self._min_s = min_s
        self._everybody = everybody
        self._next: dict[str, int] = {}
        """The number of the next event of each topic; empty before the first connection."""
        self._asking = asyncio.Lock()
        self.tried = asyncio.Event()
        """Set once the daemon is followed, or was found not to answer."""

    async def run(self) -> None:
        """Never returns."""
        await keep_trying(
            lambda: AsyncClient(self._socket or None, timeout_s=CALL_S),
            self._follow,
            "daemon",
            self.tried.set,
        )

    async def answer(self, card: Card, answer: str) -> bool:
        """Send an answer, and tell the person if it has no effect. True when the question is over."""
        asked = Question(id=card.key, approver=card.approver, digest=card.digest)
        try:
            async with AsyncClient(self._socket or None, timeout_s=CALL_S) as client:
                if choice := card.choice(answer):
                    await client.call("Inputs.Answer", input=card.key, text=choice)
                elif answer == APPROVE:
                    await client.approve(asked)
                else:
                    await client.deny(asked)
        except LightagentError as err:
            self._board.tell(cards.not_answered(card, err.message, err.suggestion))
            return isinstance(err, errors.NotFound | errors.ApprovalClosed | errors.InputClosed)
        return True

    async def _follow(self, client: AsyncClient) -> None:
        """Follow the daemon until the connection ends, which raises an exception."""
        status = (await client.call("Manager.GetStatus"))["status"]
        head = int(status["history"]["events"])
        if not self._next or head + 1 < max(self._next.values()):  # it is another history
            self._next = dict.fromkeys(_TOPICS, head + 1)
        await self._list(client)
        self.tried.set()
        async with asyncio.TaskGroup() as group:
            for topic in _TOPICS:
                group.create_task(self._read(client, topic), name=f"notify: events {topic}")

    async def _list(self, client: AsyncClient) -> None:
        """Read the present open questions; later events update them."""
        open_ones: dict[str, str] = {}
        for kind in ("approval", "input"):
            found = (await client.call(f"{kind.capitalize()}s.List"))[f"{kind}s"]
            waiting = (each for each in found if each["state"] == "waiting" and self._mine(each["owner"]))
            open_ones |= {each["id"]: kind for each in waiting}
        self._board.keep_only(open_ones)
        for name, kind in open_ones.items():
            if name not in self._board.questions:
                await self._ask(client, kind, name)

    async def _read(self, client: AsyncClient, topic: str) -> None:
        async with AsyncClient(self._socket or None, timeout_s=CALL_S) as events:
            async for reply in events.stream("Events.Subscribe", from_seq=self._next[topic], topic=topic):
                if (missed := reply.get("missed")) is not None:  # retention removed them
                    self._next[topic] = missed["from_seq"]
                    continue
                event = reply["event"]
                if event is None:
                    break
                if self._mine(event["owner"]):
                    async with self._asking:  # the connection carries only one call at a time
                        await self._take(client, event)
                self._next[topic] = event["seq"] + 1
        raise errors.DaemonUnreachable("The daemon stops.")

    def _mine(self, owner: int | None) -> bool:
        return self._everybody or owner == self._uid

    async def _take(self, client: AsyncClient, event: dict[str, Any]) -> None:
        data = event["data"] or {}
        kind = event["topic"].partition(".")[0]
        if kind in ("approval", "input"):
            name = str(data.get(kind, ""))
            if event["type"] == "requested":
                await self._ask(client, kind, name)
            else:
                self._board.settle(name)
        elif self._worth_telling(event):
            self._board.tell(cards.finished(event, await self._messages(client, event["session"])))

    async def _ask(self, client: AsyncClient, kind: str, name: str) -> None:
        """Put a question, an approval or an input, on the board, if it is still open."""
        try:
            found = (await client.call(f"{kind.capitalize()}s.Get", **{kind: name}))[kind]
        except (errors.NotFound, errors.PermissionDenied):
            return
        if found["state"] == "waiting":
            if kind == "approval":
                self._board.ask(cards.question(await client.asked(found), uid=self._uid))
            else:
                self._board.ask(cards.asked(found))

    def _worth_telling(self, event: dict[str, Any]) -> bool:
        data = event["data"] or {}
        if event["type"] in ("started", _NO_END, errors.Cancelled.code) or not event["session"]:
            return False
        if data.get("unattended") or event["type"] == "interrupted":
            return True
        return float(data.get("duration_ms", 0)) >= self._min_s * 1000

    async def _messages(self, client: AsyncClient, session: str) -> list[dict[str, Any]]:
        try:
            found = await client.call("Sessions.Messages", session=session, limit=_MESSAGES)
        except LightagentError as err:
            if isinstance(err, errors.NotFound | errors.PermissionDenied | errors.MessageTooLarge):
                return []  # deleted meanwhile, or too long: the card says less
            raise
        return list(found["messages"])
