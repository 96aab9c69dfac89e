"""Deletes a session: its turns end, its data goes out of the history, and a tombstone stays.

The headers of its events stay with their hashes, so that the chain still verifies and shows that there was
something; what was said, done and asked in it is gone, in one transaction with the tombstone. What the agent
was told to remember (`memory`), the files that it changed and what its turns cost are not the session's, and
stay.
"""

from __future__ import annotations

import asyncio
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
    from lightagentd.policy.questions.asked import AllQuestions

_WHY = "Its session was deleted."
_BY_SESSION = ("turns", "plans", "inputs", "approvals", "compactions", "current")
"""The states whose entries name the session that they belong to."""


class Deletion:
    """Deletes sessions; the registry's parts of it are given, and nothing is owned."""

    def __init__(self, history: History, asked: AllQuestions, watches: Watches, ledger: Ledger) -> None:
        self._history = history
        self._ledger = ledger
        self._asked = asked
        self._watches = watches

    async def delete(self, agent: Agent, session: Session, *, by: int, reason: str = "") -> None:
        """Delete a session on the word of a uid. Nobody else finds it from the beginning on.

        `reason` says why the daemon itself does it.

        Raises SessionNotFound when that was asked for already; StorageError, and then it is still there,
        though its turns are cancelled.
        """
        session.check_there()
        session.deleted = True
        await uninterrupted(self._delete(agent, session, by, reason))

    async def _delete(self, agent: Agent, session: Session, by: int, reason: str) -> None:
        try:
            await agent.end_turns(session, Cancelled(_WHY))
            async with agent.recovering:
                await self._watches.end_session(session.id)
                await self._lapse(session.id)
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
        """Close what is still asked in it. Raises StorageError."""
        for question in self._asked.of_session(session):
            events, changes = self._asked.lapse(question, _WHY)
            await self._history.append(*events, changes=changes)


def _all_of(history: History, session: Session) -> list[Change]:
    """What has to go out of the stored state with a session. Reads much, so it is for a thread."""
    found = [("sessions", session.id)]
    for state in _BY_SESSION:
        for key, value in history.state(state).items():
            if value.get("session") == session.id or key.split("/")[0] == session.id:
                found.append((state, key))
    return [Change(state=state, key=key, value=None) for state, key in found]
