"""Tells a client what happens while its request runs: progress and log messages."""

from __future__ import annotations

import time
from typing import Any

from lightagentd.mcp_server.request import Request
from lightagentd.text.jsonrpc import Peer

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_APART_S = 0.1
"""How long output that follows other output is not told."""
_OUTPUT_CHARS = 200


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
