"""A call or a prompt that runs in the daemon, which outlives the request that began it.

When it waits for a person whom the client cannot ask, its request is answered with what the person can do.
The call goes on waiting, and runs once it is allowed; the same request again, or the one that brings the
person's answer, gets its result. What happens meanwhile is told to the client, as progress and log messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import LightagentError
from lightagentd.mcp_server.asking import question_id
from lightagentd.mcp_server.request import LEVELS, Connect, Request, called
from lightagentd.text.jsonrpc import Lost, Peer

PROMPT = "Sessions.Prompt"
_STALE_S = 600.0
"""After so long nobody who asks the same means this call."""
_APART_S = 0.1
"""How long output that follows other output is not told."""
_OUTPUT_CHARS = 200


class Held:
    """Begin with `start`. It ends by itself, or with `stop`."""

    def __init__(self, connect: Connect, method: str, parameters: dict[str, Any]) -> None:
        self._connect, self._method, self._parameters = connect, method, parameters
        self.teller: Telling | None = None
        """That of the request that waits for it now."""
        self.session = ""
        self.end: dict[str, Any] | None = None
        """Its last event, or its error in that form."""
        self.report: dict[str, Any] = {}
        """The last result of a call."""
        self._questions: dict[str, dict[str, Any]] = {}
        self._changed = asyncio.Event()
        self._ended_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    @property
    def question(self) -> dict[str, Any] | None:
        """The event that asks what it waits for."""
        return next(iter(self._questions.values()), None)

    @property
    def stale(self) -> bool:
        return self.end is not None and time.monotonic() - self._ended_s > _STALE_S

    async def next_question(self) -> dict[str, Any] | None:
        """The question that it waits for next, if it does before it ends."""
        while self.end is None and self.question is None:
            await self._change()
        return self.question

    async def until_over(self, question: dict[str, Any]) -> None:
        """Wait until it does not wait for this answer any more."""
        while self.question is question:
            await self._change()

    async def _change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def stop(self, *, cancel: bool) -> None:
        """End it: a call of a tool ends with its connection, a turn only if it is to be cancelled."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if cancel and self.session:
            with contextlib.suppress(LightagentError):
                await called(self._connect, "Sessions.Cancel", session=self.session)

    async def _follow(self) -> None:
        try:
            async with (
                self._connect() as client,
                contextlib.aclosing(client.stream(self._method, **self._parameters)) as replies,
            ):
                if self._method == PROMPT:
                    await self._take(await uninterrupted(self._begun(replies)))
                async for reply in replies:
                    await self._take(reply["event"])
        except LightagentError as err:
            self._ended(err.to_dict())
        if self.end is None:
            self._ended({"code": "internal", "message": "The daemon sent no end of the call."})

    async def _begun(self, replies: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
        """The first event of a turn: only it says which session is to be cancelled."""
        event: dict[str, Any] = (await anext(replies))["event"]
        self.session = event["session"]
        return event

    async def _take(self, event: dict[str, Any]) -> None:
        self.session = self.session or event.get("session") or ""
        kind = event["type"]
        if kind in ("approval_requested", "input_requested"):
            event = await self._connect().asked(event)
            self._questions[question_id(event)] = event
            self._changed.set()
        elif kind in ("approval_answered", "input_answered"):
            self._questions.pop(question_id(event), None)
            self._changed.set()
        elif kind == "tool_result":
            self.report = event
        elif kind in ("done", "error"):
            self._ended(event)
        if self.teller is not None:
            try:
                await self.teller.tell(event)
            except (OSError, Lost):
                self.teller = None

    def _ended(self, event: dict[str, Any]) -> None:
        self.end, self._ended_s = event, time.monotonic()
        self._questions.clear()
        self._changed.set()


class Telling:
    """Belongs to one request. Nothing is sent for what its client has not asked for."""

    def __init__(self, peer: Peer, request: Request) -> None:
        self._peer, self._request = peer, request
        self._progress = 0
        self._told_s = 0.0

    async def tell(self, event: dict[str, Any]) -> None:
        """Tell of an event of a turn. Raises OSError, Lost."""
        level, said = _said(event)
        if not said:
            return
        wanted = self._request.level
        if wanted and LEVELS.index(level) >= LEVELS.index(wanted):
            await self._peer.tell(
                "notifications/message", {"level": level, "logger": "lightagentd", "data": said}
            )
        now = time.monotonic()
        if self._request.token is None or (level == "debug" and now - self._told_s < _APART_S):
            return
        self._progress, self._told_s = self._progress + 1, now
        progress = {"progressToken": self._request.token, "progress": self._progress, "message": said}
        await self._peer.tell("notifications/progress", progress)


def _said(event: dict[str, Any]) -> tuple[str, str]:
    """The level and the words for an event; empty where it is nothing to tell."""
    call = f"{event.get('tool')}.{event.get('action')}"
    match event["type"]:
        case "started":
            return "info", f"The turn runs with {event['model']}."
        case "tool_call":
            return "info", f"{call} begins."
        case "tool_output":
            return "debug", event["text"][-_OUTPUT_CHARS:]
        case "tool_result":
            return "info", f"{call} ended: {event['result']}."
        case "approval_requested":
            return "notice", f"{call} waits for an approval ({event['approval']})."
        case "input_requested":
            return "notice", f"The agent asks something ({event['input']})."
        case "notice":
            return "warning", event["message"]
    return "debug", ""
