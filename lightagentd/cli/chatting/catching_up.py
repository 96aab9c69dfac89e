"""Reads the stored part of a session: its last messages, and the events that were not watched.

`CatchingUp` returns each stored event once: it remembers the number of the newest one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from lightagentd.cli.chatting.daemon import Daemon
from lightagentd.cli.chatting.transcript import Transcript
from lightagentd.cli.terminal import DIM, clean, in_words, style

_LOOKED_AT = 40
"""So many messages are looked at for the last few that have a text."""
_MESSAGES = 4
_LINES = 6
"""So much is shown of a session that is opened."""


class CatchingUp:
    """Reads the stored events of one session."""

    def __init__(self, daemon: Daemon, session: str) -> None:
        self._daemon = daemon
        self._session = session
        self._newest = 0
        self._last: list[dict[str, Any]] = []

    async def begin(self) -> None:
        """Read the last messages. `go_on` reads the later events. Raises the errors of the client."""
        events = await self._daemon.call("History.Query", session=self._session, limit=1)
        messages = await self._daemon.call("Sessions.Messages", session=self._session, limit=_LOOKED_AT)
        self._newest = max((one["seq"] for one in (*events, *messages)), default=0)
        self._last = [one for one in messages if one["role"] != "tool" and one["content"].strip()][
            -_MESSAGES:
        ]

    def show_last(self, transcript: Transcript) -> None:
        """Show the last few messages, dimmed."""
        for message in self._last:
            transcript.lines(short_lines(message, _LINES, transcript.screen.columns))
        self._last = []

    async def go_on(self, transcript: Transcript) -> None:
        """Show the events stored since. Raises the errors of the client."""
        async with aclosing(
            self._daemon.stream(
                "Events.Subscribe", from_seq=self._newest + 1, session=self._session, follow=False
            )
        ) as replies:
            async for reply in replies:
                if (event := reply.get("event")) is not None:
                    transcript.stored(event)
                    self._newest = event["seq"]
        transcript.caught_up()


def short_lines(message: dict[str, Any], limit: int, columns: int) -> list[str]:
    """A stored message as dimmed lines, at most so many. An answer is laid out for so many columns."""
    lines = clean(message["content"]).strip("\n").split("\n")
    if message["role"] == "assistant":
        from lightagentd.cli.markdown import render  # not before there is something to show

        lines = render(message["content"], columns - 3, colours=False)
    begin = in_words("> ") if message["role"] == "user" else "  "
    shown: list[str] = [
        style(f"{begin if number == 0 else '  '}{line}", DIM) for number, line in enumerate(lines[:limit])
    ]
    if len(lines) > limit:
        shown.append(style(f"  … more lines: {len(lines) - limit}", DIM))
    return shown
