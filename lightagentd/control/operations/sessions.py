"""The operations on sessions as a whole: make, list, switch, rename, pause, fork, delete, export and import.

A session belongs to the uid that made it. For others it does not exist, except for callers who see all
sessions. Watchers of a session receive each change of it. `conversations` has the operations on its content.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.sessions import copying, imports, transcript
from lightagentd.agents.sessions.checks import check_title
from lightagentd.agents.sessions.session import Session, new_record, title_from
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import (
    ConfirmationRequired,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    SessionNotPaused,
)
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event
from lightagentd.events.types.session import LeaveWithdrawn, SessionCreated, SessionModelSet
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.llm.protocol import Message
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.agents.team.mail import Mail
    from lightagentd.daemon.runtime import Runtime

_ROOM_BYTES = 64 << 10
"""What an answer holds beside the text of an export, at the most."""
_SUFFIXES = {transcript.MARKDOWN: ".md", transcript.JSON_LINES: ".jsonl"}
_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class Sessions(Operations, interface="org.lightagent1.Sessions"):
    """Conversations. A session belongs to the uid that made it; to others it does not exist."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._now, self._panic = access, runtime.now, runtime.panic
        self._registry, self._history = runtime.registry, runtime.history
        self._deletion = runtime.deletion
        self._copying = asyncio.Lock()
        """Held while a conversation is copied, written or read, which takes a thread a while."""
        self._copying_of: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The same for each user, so that others come in between."""

    @method("Create", returns="session")
    async def create(self, caller: Caller, agent: str, title: str = "") -> api.Session:
        """Begin a conversation."""
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        return session_info(await self.begin(caller, self._registry.get(agent), title))

    @method("List", returns="sessions")
    async def listed(
        self,
        caller: Caller,
        agent: str = "",
        parent: str = "",
        title: str = "",
        first: int = 0,
        limit: int | None = None,
        *,
        planning: bool = False,
    ) -> list[api.Session]:
        """The caller's sessions, newest first; with parent the sessions that this one's turns made with other
        agents, which are not among the others. With title those that have it in their title or id, in any
        case of letters; with planning those that are in plan mode. limit gives so many of them, from the
        number first (0) on.
        """
        if limit is not None:
            check_limit(limit)
        words, begin = title.casefold(), max(first, 0)
        every = await self._seen(caller, agent, parent)
        found = [one for one in every if words in one.record.title.casefold() or words in one.id]
        found = [one for one in found if one.mode != "normal"] if planning else found
        return self._infos(found[begin : None if limit is None else begin + limit])

    async def _seen(self, caller: Caller, agent: str, parent: str) -> list[Session]:
        """Those that the caller may see, newest first."""
        if parent:
            await self._access.admit_to(caller, Operation.INSPECT, parent)
            children = await asyncio.to_thread(self._registry.children_of, parent)
            found = [child for _, child in children if agent in ("", child.record.agent)]
            return sorted(found, key=lambda child: child.record.created_us, reverse=True)
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent, viewing=True)
        if agent:
            agents = [self._registry.get(agent)]
        else:
            seen = await self._access.inspectable(caller, self._registry.agents)
            agents = [one for one in self._registry.agents.values() if one.name in seen]
        found = [session for one in agents for session in self._access.visible(caller, one)]
        return sorted(found, key=lambda session: session.record.updated_us, reverse=True)

    def _infos(self, found: list[Session]) -> list[api.Session]:
        return [session_info(session) for session in found]

    @method("Get", returns="session")
    async def get(self, caller: Caller, session: str) -> api.Session:
        """One session."""
        caller, _, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        return session_info(found)

    @method("Messages", returns="messages")
    async def messages(self, caller: Caller, session: str, limit: int = 100) -> list[api.Message]:
        """The newest messages of a conversation, oldest of them first; 100 unless limit says otherwise."""
        await self._access.admit_to(caller, Operation.INSPECT, session)
        check_limit(limit)
        found = await asyncio.to_thread(
            self._history.queries.newest_messages, session, limit, most_bytes=MAX_MESSAGE_BYTES
        )
        return [
            api.Message(
                seq=event.seq,
                time_us=event.time_us,
                role=event.data["role"],
                speaker=event.data.get("speaker", ""),
                content=event.data["content"],
                name=event.data.get("name", ""),
                tool_call_id=event.data.get("tool_call_id", ""),
                tool_calls=event.data.get("tool_calls", []),
                reasoning=Message.from_dict(event.data).thoughts,
                cut_off=event.data.get("cut_off", ""),
            )
            for event in found
            if event.data is not None
        ]

    @method("Mail", returns="letters")
    async def mail(self, caller: Caller, session: str = "", limit: int = 100) -> list[api.Letter]:
        """What agents wrote to each other in the caller's sessions, the newest first: from one session and to
        it, or in all.
        """
        if session:
            await self._access.admit_to(caller, Operation.INSPECT, session)
        else:
            caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        check_limit(limit)
        agents = await self._access.readable(caller)
        wanted = Filter(topic="session.mail", viewer=caller.viewer, agents=agents)
        found: list[api.Letter] = []

        def taken(event: Event) -> bool:
            data = event.data or {}
            if data and wanted.wants(event) and session in ("", event.session, data["to_session"]):
                found.append(_letter(event, data, self._registry.shared.mail))
            return len(found) >= limit

        await asyncio.to_thread(self._history.queries.find_in_topic, "session.mail", taken)
        return found

    @method("Switch", returns="session")
    async def switch(self, caller: Caller, session: str) -> api.Session:
        """Make a session the current one of its owner with its agent."""
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        if not found.is_current:
            before = agent.current_of(found.record.owner)
            await uninterrupted(found.become_current(by=caller.uid))
            tell_of_former(before)
        return self._changed(found)

    @method("Rename", returns="session")
    async def rename(self, caller: Caller, session: str, title: str) -> api.Session:
        """Give a session another title, of one line."""
        title = check_title(title)
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await found.rename(title, by=caller.uid)
        return self._changed(found)

    @method("SetModel", returns="session")
    async def set_model(self, caller: Caller, session: str, model: str) -> api.Session:
        """Have the next turns ask this model first: one that the agent or [models] of the configuration
        names; empty for the agent's own.
        """
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        parts = agent.running_parts()
        names = parts.models()
        if model and model not in names:
            raise InvalidArgument(
                f"The agent {agent.name} has no model {model[:100]!r}.",
                field="model",
                suggestion=f"It has: {', '.join(names)}. An administrator adds others to fallback.",
            )
        with found.context():
            event = SessionModelSet(model=model, by=caller.uid).event()
        await found.change(event, model=model)
        return self._changed(found)

    @method("Transfer", returns="session")
    async def transfer(self, caller: Caller, session: str, agent: str) -> api.Session:
        """Give a conversation to an agent that the session's own may ask, or back to that one: later prompts
        go there. It can do nothing that the session's own agent could not do.
        """
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._registry.shared.children.transfer(found, agent, "")
        return self._changed(found)

    @method("Pause", returns="session")
    async def pause(self, caller: Caller, session: str) -> api.Session:
        """Have a session take no prompts and begin no turn. What runs goes to its end, what waits stays."""
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        if found.record.paused:
            await self._history.append()  # somebody else's pause may be on its way to the disk
        else:
            await found.set_paused(True, by=caller.uid)
        return self._changed(found)

    @method("Resume", returns="session")
    async def resume(self, caller: Caller, session: str) -> api.Session:
        """Take a paused session up again."""
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        if not found.record.paused:
            raise SessionNotPaused(
                f"The session {found.id} is not paused.", suggestion="It takes prompts as it is."
            )
        self._panic.check()
        await found.set_paused(False, by=caller.uid)
        agent.go_on(found)
        return self._changed(found)

    @method("Withdraw", returns="session")
    async def withdraw(self, caller: Caller, session: str, leave: str) -> api.Session:
        """Withdraw a leave of a session: the call is asked about again. The owner of the session may do this,
        and who may approve.
        """
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        kept = tuple(one for one in found.record.leaves if one["id"] != leave)
        if len(kept) == len(found.record.leaves):
            raise NotFound(
                f"The session {found.id} has no leave {leave[:60]!r}.",
                suggestion=f"lactl sessions show {found.id} lists them.",
                field="leave",
            )
        with found.context():
            event = LeaveWithdrawn(leave=leave, by=caller.uid).event()
        await found.change(event, leaves=kept)
        return self._changed(found)

    @method("Fork", returns="session")
    async def fork(
        self, caller: Caller, session: str, title: str = "", up_to_seq: int | None = None
    ) -> api.Session:
        """Begin a session with the conversation of another one, or with the part of it up to a message. It is
        the current one then, unless a token made it. What taints the other one taints it, too.
        """
        title = check_title(title) if title else ""
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.check_new_session(caller)
        async with self._copying_of[caller.uid], self._copying:
            found.check_there()
            current = caller.grant is None
            copied = copying.fork(found, caller.uid, title, up_to_seq, becomes_current=current)
            made = await uninterrupted(adopted(agent, copied, becomes_current=current))
        return session_info(made)

    @method("Delete")
    async def delete(self, caller: Caller, session: str, *, confirmed: bool = False) -> None:
        """Drop a session and all that was said in it; headers and hashes stay, so that the history still
        verifies. What runs is cancelled. Where there is a conversation the caller has to say that it is meant
        (error confirmation_required).
        """
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        if not confirmed and self._has_conversation(found):
            raise ConfirmationRequired(
                f"The session {found.id} has a conversation, which cannot be brought back.",
                suggestion=f"Export it, or say that it is meant: lactl sessions delete --yes {found.id}",
                field="confirmed",
            )
        await self._deletion.delete(agent, found, by=caller.uid)

    @method("Export", returns="export")
    async def export(self, caller: Caller, session: str, format_: str = "") -> api.Transcript:
        """A session as text: format is markdown, which is the default, or jsonl; Import takes both."""
        kind = format_ or transcript.MARKDOWN
        write = transcript.WRITERS.get(kind)
        if write is None:
            raise InvalidArgument(
                f"There is no format {kind[:60]!r}.", field="format", suggestion="Use markdown or jsonl."
            )
        _, _, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        record = found.record

        def written() -> str:
            messages = self._history.queries.messages(record.id, most_bytes=4 * MAX_MESSAGE_BYTES)
            return _of_bounded_size(write(record, messages))

        async with self._copying_of[caller.uid], self._copying:
            text = await asyncio.to_thread(written)
        found.check_there()  # else it may have been read while it was deleted
        name = _IN_FILE_NAMES.sub("-", record.title).strip("-.")[:60] or record.agent
        return api.Transcript(
            session=record.id, format=kind, name=f"{name}-{record.id}{_SUFFIXES[kind]}", text=text
        )

    @method("Import", returns="session")
    async def import_(self, caller: Caller, agent: str, text: str, title: str = "") -> api.Session:
        """Begin a session with a conversation that was exported. It is text from outside, so it taints."""
        title = check_title(title) if title else ""
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._access.check_new_session(caller)
        running = self._registry.get(agent)
        max_bytes = self._now.config.limits.max_prompt_bytes
        async with self._copying_of[caller.uid], self._copying:
            imported = await asyncio.to_thread(imports.read, text, max_bytes=max_bytes)
        current = caller.grant is None
        taken = copying.take(
            self._history, running.name, caller.uid, title, imported, becomes_current=current
        )
        return session_info(await uninterrupted(adopted(running, taken, becomes_current=current)))

    async def begin(
        self, caller: Caller, agent: Agent, title: str, *, becomes_current: bool = True
    ) -> Session:
        """A new session for an admitted caller."""
        await self._access.check_new_session(caller)
        record = new_record(agent.name, caller.uid, title_from(self._history.redactor.text(title)))
        session = Session(record, self._history)
        changes = [record.change()]
        if becomes_current:
            changes.append(record.current_change())
        with session.context():
            created = SessionCreated(title=record.title).event()
            await self._history.append(created, changes=changes)
        return adopt(agent, session, becomes_current=becomes_current)

    def _has_conversation(self, session: Session) -> bool:
        return bool(
            session.record.turns
            or session.storing
            or session.plan is not None
            or self._history.queries.newest_messages(session.id, 1)
        )

    def _changed(self, session: Session) -> api.Session:
        """The session's present state, which is also sent to its watchers."""
        session.check_there()
        tell_of(session)
        return session_info(session)


def adopt(agent: Agent, session: Session, *, becomes_current: bool) -> Session:
    """Load a session that was just stored into memory."""
    before = agent.current_of(session.record.owner)
    agent.adopt(session)
    if becomes_current:
        agent.take_current(session)
        tell_of_former(before)
    return session


async def adopted(
    agent: Agent, making: Coroutine[Any, Any, Session], *, becomes_current: bool = True
) -> Session:
    """The copied session, now the current one unless that is not wanted."""
    return adopt(agent, await making, becomes_current=becomes_current)


def tell_of(session: Session) -> None:
    """Send a session's present state to its watchers."""
    session.stream.emit(turn_events.SessionChanged(session_info=asdict(session_info(session))))


def tell_of_former(before: Session | None) -> None:
    """Notify the watchers of the former current session, if another one is current now."""
    if before is not None and not before.is_current:
        tell_of(before)


def session_info(session: Session) -> api.Session:
    """A session in the form that callers get."""
    return shown(
        api.Session,
        session.record,
        state="waiting" if session.waiting else "running" if session.running else "idle",
        queued=len(session.queue),
        current=session.is_current,
        mode=session.mode,
        waits_for=session.running.waits_for if session.waiting and session.running else "",
    )


def _letter(event: Event, data: dict[str, Any], mail: Mail) -> api.Letter:
    return api.Letter(
        id=data["message_id"],
        agent=event.agent,
        session=event.session,
        to_agent=data["to_agent"],
        to_session=data["to_session"],
        sent_us=event.time_us,
        text=data["text"],
        hops=data["hops"],
        tainted=data.get("tainted", False),
        waits=any(one.id == data["message_id"] for one in mail.waiting(data["to_session"])),
    )


def _of_bounded_size(text: str) -> str:
    """Raises MessageTooLarge for content too large for an answer."""
    room = MAX_MESSAGE_BYTES - _ROOM_BYTES
    if len(text) > room or len(json.dumps(text)) > room:
        raise MessageTooLarge(
            f"The export is larger than {MAX_MESSAGE_BYTES >> 20} MiB.",
            suggestion="Fork a part of the session, and export that.",
        )
    return text
