"""Deletes a session: ends its turns, removes its data from the history, and leaves a tombstone.

The headers of its events stay with their hashes, so that the chain still verifies and shows that the session
existed. Its content is removed in one transaction with the tombstone. Memories (`memory`), but for
those of the scope session, changed files and usage do not belong to the session and stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.errors import Cancelled, LightagentError
from lightagentd.events.history import Change, History
from lightagentd.events.types.session import SessionDeleted

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.model_calls.metering.ledger import Ledger
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.watches import Watches
    from lightagentd.memory.memories import Memories
    from lightagentd.policy.questions.asked import AllQuestions

_WHY = "Its session was deleted."
_BY_SESSION = (
    "turns",
    "plans",
    "inputs",
    "approvals",
    "compactions",
    "current",
    "mail",
    "flow_runs",
    "flow_steps",
    "ratings",
)
"""The states whose entries name the session that they belong to."""


class Deletion:
    """Deletes sessions with functions of the registry; owns nothing."""

    def __init__(
        self,
        history: History,
        asked: AllQuestions,
        watches: Watches,
        ledger: Ledger,
        memories: Memories,
        children_of: Callable[[str], list[tuple[Agent | None, Session]]],
    ) -> None:
        """`children_of` gives the child sessions of a session, which are deleted with it."""
        self._children_of = children_of
        self._history = history
        self._ledger = ledger
        self._memories = memories
        self._asked = asked
        self._watches = watches

    async def delete(self, agent: Agent, session: Session, *, by: int, reason: str = "") -> None:
        """Delete a session for a uid. From the beginning nobody else can find it.

        `reason` is given when the daemon itself deletes it.

        Raises SessionNotFound when it is being deleted already. Raises StorageError: then the session still
        exists, but its turns are cancelled.
        """
        session.check_there()
        session.deleted = True
        await uninterrupted(self._delete(agent, session, by, reason))

    async def _delete(self, agent: Agent, session: Session, by: int, reason: str) -> None:
        try:
            await agent.end_turns(session, Cancelled(_WHY))
            for of_child, child in await asyncio.to_thread(self._children_of, session.id):
                child.deleted = True
                await self._delete(of_child or agent, child, by, reason)
            async with agent.recovering:
                await self._watches.end_session(session.id)
                await self._lapse(session.id)
                await self._memories.end_session(session.record.owner, session.id)
                await self._history.append()  # what was stored of it just before has to be found, too
                changes = await asyncio.to_thread(_all_of, self._history, session)
                with session.context():
                    why: dict[str, Any] = {"reason": reason} if reason else {}
                    tombstone = SessionDeleted(by=by, **why).event()
                changes.append(self._ledger.forget_session(session.id))
                await self._history.erase(session.id, tombstone, changes=changes)
            await self._watches.pool.kept.end_session(session.id)
        except LightagentError:
            session.deleted = False
            agent.go_on(session)
            raise
        agent.sessions.pop(session.id, None)
        session.forget_messages()
        session.plan = None
        session.stream.emit(turn_events.SessionChanged(session_info=None))
        session.stream.end()

    async def _lapse(self, session: str) -> None:
        """Close the session's open questions. Raises StorageError."""
        for question in self._asked.of_session(session):
            events, changes = self._asked.lapse(question, _WHY)
            await self._history.append(*events, changes=changes)


def _all_of(history: History, session: Session) -> list[Change]:
    """The stored state to delete with a session. Reads a lot, so run it in a thread."""
    found = [("sessions", session.id)]
    for state in _BY_SESSION:
        for key, value in history.queries.state(state).items():
            if value.get("session") == session.id or key.split("/")[0] == session.id:
                found.append((state, key))
    return [Change(state=state, key=key, value=None) for state, key in found]
