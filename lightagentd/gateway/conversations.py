"""Finds the session of a conversation whose client sends all of it each time and names no session.

After each answer the session is remembered by a mark of all that was said. The next request begins with
exactly that, so it goes on in the same session, with all that belongs to it: calls, approvals, taint.
One that begins otherwise (an edited message, another branch, after a restart of the gateway) gets a new
session, into which what was said before is imported; imported text counts as text from outside.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

from lightagentd.gateway.callers import Caller

MOST = 4096


class Conversations:
    """Marks and their sessions, the latest of each."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By the caller's key and the mark."""
        self._left: OrderedDict[str, None] = OrderedDict()

    def take(self, caller: Caller, mark: str) -> str:
        """The session of a mark, once: a second request with the same begin is another branch."""
        return self._sessions.pop((caller.key, mark), "")

    def put(self, caller: Caller, mark: str, session: str) -> None:
        """Remember the session after an answer."""
        self._sessions[caller.key, mark] = session
        while len(self._sessions) > MOST:
            self._sessions.popitem(last=False)

    def leave(self, session: str) -> None:
        """Remember that a client was told of a question, and not yet of what comes of it."""
        self._left[session] = None
        while len(self._left) > MOST:
            self._left.popitem(last=False)

    def told(self, session: str) -> None:
        """A client was told of it."""
        self._left.pop(session, None)

    def left(self, session: str) -> bool:
        """Whether no client was told yet what came of a question."""
        return session in self._left


async def imported(caller: Caller, agent: str, before: Sequence[dict[str, str]]) -> str:
    """A new session that begins with what was said before. Raises what the daemon refuses."""
    facts = {"format": "lightagent-session", "version": 1, "messages": len(before)}
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in (facts, *before))
    title = next((one["content"][:60] for one in before if one["role"] == "user"), "")
    made = await caller.client.call("Sessions.Import", agent=agent, text=text, title=" ".join(title.split()))
    return str(made["session"]["id"])
