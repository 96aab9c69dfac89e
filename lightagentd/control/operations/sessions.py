"""The operations on sessions, a part of `Service`: conversations, prompts and answers.

A session belongs to the uid that made it. To others it does not exist, but to whoever sees all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, TypeVar

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.sessions.attachments import compose
from lightagentd.agents.sessions.session import (
    Session,
    check_prompt,
    new_record,
    session_not_found,
    title_from,
)
from lightagentd.agents.stream import Watcher
from lightagentd.api import turn_events
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations, check_limit
from lightagentd.errors import InvalidArgument, LightagentError, SessionNotFound, TimedOut, from_dict
from lightagentd.events.types.session import SessionCreated
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.quoted import Prompt, sent

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
        found = await asyncio.to_thread(
            self._history.newest_messages, session, limit, most_bytes=MAX_MESSAGE_BYTES
        )
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
            for event in found
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
        attachments: Sequence[api.Attachment] = (),
    ) -> AsyncGenerator[api.TurnEvent, None]:
        if session:
            caller, _, _ = await self._admit_to(caller, Operation.PROMPT, session)
        else:
            caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        self._check_open()
        self._daemon.panic.check()
        prompt = compose(sent(text, outside=outside), attachments, self._daemon.config.limits)
        outside = outside or bool(attachments)
        check_prompt(prompt.text, self._daemon.config.limits.max_prompt_bytes)
        if len(correlation_id) > 256:
            raise InvalidArgument("The correlation id is longer than 256 characters.", field="correlation_id")
        begun = self._begin_turn(
            caller, agent, prompt, session, correlation_id, new=new, unattended=unattended, outside=outside
        )
        name, watcher = await _whole(begun)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield await self._for_caller(event, caller, name)

    async def _begin_turn(
        self,
        caller: Caller,
        agent: str,
        prompt: Prompt,
        session: str,
        correlation_id: str,
        *,
        new: bool,
        unattended: bool,
        outside: bool,
    ) -> tuple[str, Watcher]:
        """The agent's name, and the turn's events."""
        running, found = await self._session_for(
            caller, agent, session, new=new, becomes_current=not unattended
        )
        owner = found.record.owner
        chosen = bool(session) and not unattended and owner == caller.uid and not found.is_current
        before = running.current_of(owner) if chosen else None
        turn = await running.prompt(
            found,
            prompt,
            correlation_id,
            unattended=unattended,
            outside=outside,
            becomes_current=chosen,
        )
        watcher = turn.stream.watch()
        self._tell_of_former(before)
        return running.name, watcher

    async def ask(
        self, caller: Caller, *, agent: str, text: str, session: str, new: bool, timeout_s: float | None
    ) -> api.Answer:
        check_timeout(timeout_s)
        events = self.prompt(caller, agent=agent, text=text, session=session, new=new, correlation_id="")
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if event["type"] == "error":
                        raise from_dict(event)
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
        self, caller: Caller, agent: str, session: str, *, new: bool, becomes_current: bool
    ) -> tuple[Agent, Session]:
        """Where a prompt goes. A session that is made for it becomes the current one, if that is wanted."""
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
        current = None if new else running.current_of(caller.uid)
        if current is not None:
            return running, current
        made = self._new_session(caller, running, "", becomes_current=becomes_current)
        return running, await made

    async def _new_session(
        self, caller: Caller, agent: Agent, title: str, *, becomes_current: bool = True
    ) -> Session:
        self._check_open()
        record = new_record(agent.name, caller.uid, title_from(self._history.redactor.text(title)))
        session = Session(record, self._history)
        changes = [record.change()]
        if becomes_current:
            changes.append(record.current_change())
        with session.context():
            created = SessionCreated(title=record.title).event()
            await self._history.append(created, changes=changes)
        return self._adopt(agent, session, becomes_current=becomes_current)

    def _adopt(self, agent: Agent, session: Session, *, becomes_current: bool) -> Session:
        """Take a session that was just stored into memory."""
        before = agent.current_of(session.record.owner)
        agent.adopt(session)
        if becomes_current:
            agent.take_current(session)
            self._tell_of_former(before)
        return session

    async def _adopted(self, agent: Agent, making: Coroutine[Any, Any, Session]) -> Session:
        """A copied session that becomes the current one."""
        return self._adopt(agent, await making, becomes_current=True)

    def _tell_of(self, session: Session) -> None:
        """Tell those who watch a session how it is now."""
        session.stream.emit(turn_events.SessionChanged(session_info=asdict(self._session_info(session))))

    def _tell_of_former(self, before: Session | None) -> None:
        """Tell those who watch the session that was the current one, if it is not that any more."""
        if before is not None and not before.is_current:
            self._tell_of(before)

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
            raise session_not_found(session)
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
            paused=record.paused,
            current=session.is_current,
            mode=session.mode,
            waits_for=session.running.waits_for if session.waiting and session.running else "",
            forked_from=record.forked_from,
            interrupted=record.interrupted,
            tainted=record.tainted,
            tainted_by=record.tainted_by,
            hosts=list(record.hosts),
        )


def check_timeout(timeout_s: float | None) -> None:
    """Raises InvalidArgument."""
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgument(
            f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}.", field="timeout_s"
        )


async def _whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run what must not be left half done: a caller who is cancelled in it ends only after it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
