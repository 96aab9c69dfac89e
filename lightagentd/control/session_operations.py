"""The operations on sessions, a part of `Service`: conversations, prompts and answers.

A session belongs to the uid that made it. To others it does not exist, but to whoever sees all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.session import Session, check_prompt, new_record
from lightagentd.agents.stream import Watcher
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations import Operations, check_limit
from lightagentd.control.presentation import error_of
from lightagentd.errors import InvalidArgument, LightagentError, SessionNotFound, TimedOut
from lightagentd.events.history import NewEvent

_T = TypeVar("_T")
MAX_TIMEOUT_S = 86_400.0


class SessionOperations(Operations):
    """Conversations."""

    async def create_session(self, caller: Caller, agent: str, title: str) -> api.Session:
        caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        return self._session_info(await self._new_session(caller, self._registry.get(agent), title))

    async def list_sessions(self, caller: Caller, agent: str) -> list[api.Session]:
        caller = await self._admit(caller, Operation.INSPECT, agent=agent)
        if agent:
            agents = [self._registry.get(agent)]
        else:
            seen = await self._inspectable(caller, self._registry.agents)
            agents = [one for one in self._registry.agents.values() if one.name in seen]
        found = [session for one in agents for session in self._visible(caller, one)]
        found.sort(key=lambda session: session.record.updated_us, reverse=True)
        return [self._session_info(session) for session in found]

    async def get_session(self, caller: Caller, session: str) -> api.Session:
        caller, _, found = await self._admit_to(caller, Operation.INSPECT, session)
        return self._session_info(found)

    async def messages(self, caller: Caller, session: str, limit: int) -> list[api.Message]:
        await self._admit_to(caller, Operation.INSPECT, session)
        check_limit(limit)
        return [
            api.Message(
                seq=event.seq,
                time_us=event.time_us,
                role=event.data["role"],
                content=event.data["content"],
                name=event.data.get("name", ""),
                tool_call_id=event.data.get("tool_call_id", ""),
                tool_calls=event.data.get("tool_calls", []),
            )
            for event in self._history.messages(session)[-limit:]
            if event.data is not None
        ]

    async def prompt(
        self,
        caller: Caller,
        *,
        agent: str,
        text: str,
        session: str,
        new: bool,
        correlation_id: str,
        unattended: bool = False,
        outside: bool = False,
    ) -> AsyncGenerator[api.TurnEvent, None]:
        if session:
            caller, _, _ = await self._admit_to(caller, Operation.PROMPT, session)
        else:
            caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        self._check_open()
        self._daemon.panic.check()
        check_prompt(text, self._daemon.config.limits.max_prompt_bytes)
        if len(correlation_id) > 256:
            raise InvalidArgument("The correlation id is longer than 256 characters.", field="correlation_id")
        begun = self._begin_turn(
            caller, agent, text, session, correlation_id, new=new, unattended=unattended, outside=outside
        )
        name, watcher = await _whole(begun)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield await self._for_caller(event, caller, name)

    async def _begin_turn(
        self,
        caller: Caller,
        agent: str,
        text: str,
        session: str,
        correlation_id: str,
        *,
        new: bool,
        unattended: bool,
        outside: bool,
    ) -> tuple[str, Watcher]:
        """The agent's name, and the turn's events."""
        running, found = await self._session_for(caller, agent, session, new=new)
        turn = await running.prompt(found, text, correlation_id, unattended=unattended, outside=outside)
        return running.name, turn.stream.watch()

    async def ask(
        self, caller: Caller, *, agent: str, text: str, session: str, new: bool, timeout_s: float | None
    ) -> api.Answer:
        if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InvalidArgument(
                f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}.", field="timeout_s"
            )
        events = self.prompt(caller, agent=agent, text=text, session=session, new=new, correlation_id="")
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if event["type"] == "error":
                        raise error_of(event)
                    if event["type"] == "done":
                        return api.Answer(
                            text=event["text"],
                            session=event["session"],
                            trace_id=event["trace_id"],
                            steps=event["steps"],
                            duration_ms=event["duration_ms"],
                        )
        except TimeoutError as err:
            raise TimedOut(
                f"There was no answer within {timeout_s:g} seconds; the turn goes on.",
                suggestion="Look at the session later, or cancel it.",
            ) from err
        finally:
            await events.aclose()
        raise LightagentError("The turn ended without a last event.")

    async def cancel(self, caller: Caller, session: str) -> int:
        _, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        return agent.cancel(found)

    async def _session_for(
        self, caller: Caller, agent: str, session: str, *, new: bool
    ) -> tuple[Agent, Session]:
        if session:
            running, found = self._own_session(caller, session)
            if agent and running.name != agent:
                raise SessionNotFound(
                    f"The session {session} is not with the agent {agent[:60]!r}.", field="session"
                )
            return running, found
        if not agent:
            raise InvalidArgument("Name an agent or a session.", field="agent")
        running = self._registry.get(agent)
        own = [one for one in running.sessions.values() if one.record.owner == caller.uid]
        if own and not new:
            return running, max(own, key=lambda one: one.record.updated_us)
        return running, await self._new_session(caller, running, "")

    async def _new_session(self, caller: Caller, agent: Agent, title: str) -> Session:
        self._check_open()
        record = new_record(agent.name, caller.uid, title[:200])
        session = Session(record, self._history)
        with session.context():
            created = NewEvent(topic="session.created", type="created", data={"title": record.title})
            await self._history.append(created, changes=(record.change(),))
        return agent.adopt(session)

    async def _admit_to(
        self, caller: Caller, operation: Operation, session: str
    ) -> tuple[Caller, Agent, Session]:
        """As `_admit`, for a session that the caller may see. Raises SessionNotFound.

        Whoever may not do this at all learns no more than that: only then the session is looked for.
        """
        caller = await self._admit(caller, operation)
        agent, found = self._own_session(caller, session)
        return await self._admit(caller, operation, agent=agent.name), agent, found

    def _own_session(self, caller: Caller, session: str) -> tuple[Agent, Session]:
        agent, found = self._registry.session(session)
        if caller.viewer not in (None, found.record.owner):
            raise SessionNotFound(
                f"There is no session {session[:60]!r}.",
                suggestion="Run: lactl sessions list",
                field="session",
            )
        return agent, found

    def _session_info(self, session: Session) -> api.Session:
        record = session.record
        return api.Session(
            id=record.id,
            agent=record.agent,
            owner=record.owner,
            title=record.title,
            state="waiting" if session.waiting else "running" if session.running else "idle",
            created_us=record.created_us,
            updated_us=record.updated_us,
            turns=record.turns,
            queued=len(session.queue),
            tainted=record.tainted,
            tainted_by=record.tainted_by,
            hosts=list(record.hosts),
        )


async def _whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run what must not be left half done: a caller who is cancelled in it ends only after it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
