"""What one does with a session beside prompting: switch, rename, pause, fork, delete, export and import.

A part of `Service`; `session_operations` has the conversation itself. Whoever watches a session is told of
each change of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from lightagentd import api
from lightagentd.agents.sessions import imports, transcript
from lightagentd.agents.sessions.copying import fork, take
from lightagentd.agents.sessions.deletion import Deletion
from lightagentd.agents.sessions.session import Session, check_title, session_not_found
from lightagentd.agents.stream import REQUESTS
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.sessions import SessionOperations, check_timeout
from lightagentd.control.sight import Sight
from lightagentd.errors import (
    ConfirmationRequired,
    InvalidArgument,
    MessageTooLarge,
    SessionNotPaused,
    ShuttingDown,
    TimedOut,
)
from lightagentd.limits import MAX_MESSAGE_BYTES

_ROOM_BYTES = 64 << 10
"""What an answer holds beside the text of an export, at the most."""
_SUFFIXES = {transcript.MARKDOWN: ".md", transcript.JSON_LINES: ".jsonl"}
_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class SessionCareOperations(SessionOperations):
    """All that changes a session as a whole, and that watches it."""

    def __init__(self) -> None:
        super().__init__()
        self._copying = asyncio.Lock()
        """Held while a conversation is copied, written or read, which takes a thread a while."""
        self._copying_of: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The same for each user, so that others come in between."""

    async def watch(self, caller: Caller, session: str) -> AsyncGenerator[api.TurnEvent, None]:
        caller, agent, found = await self._admit_to(caller, Operation.INSPECT, session)
        sight = Sight(self._daemon.authority, caller, agent.name)
        watcher = found.stream.watch()
        async with aclosing(watcher.events(of_session=True)) as events:
            info = asdict(self._session_info(found))
            opened = turn_events.SessionChanged(session_info=info)
            yield {"type": opened.type, "session": found.id, "trace_id": "", **opened.fields()}
            if (asked := _waits_for(found)) is not None:
                yield await self._for_caller(asked, caller, agent.name)
            if found.stream.ended:
                return
            async for event in events:
                if not await sight.sees_of(agent.name, found.record.owner):
                    raise session_not_found(found.id)
                yield await self._for_caller(event, caller, agent.name)

    async def wait(self, caller: Caller, session: str, timeout_s: float | None) -> api.Session:
        check_timeout(timeout_s)
        caller, _, found = await self._admit_to(caller, Operation.INSPECT, session)
        try:
            async with asyncio.timeout(timeout_s):
                await _until_at_rest(found, caller)
        except TimeoutError as err:
            raise TimedOut(
                f"The session {found.id} did not come to rest within {timeout_s:g} seconds; it goes on.",
                suggestion="Look at it later, or cancel what runs in it.",
            ) from err
        found.check_there()
        if not found.at_rest and self._daemon.draining:
            raise ShuttingDown("The daemon stops; what runs in the session goes on with its next start.")
        return self._session_info(found)

    async def switch_session(self, caller: Caller, session: str) -> api.Session:
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        if not found.is_current:
            before = agent.current_of(found.record.owner)
            await uninterrupted(found.become_current(by=caller.uid))
            self._tell_of_former(before)
        return self._changed(found)

    async def rename_session(self, caller: Caller, session: str, title: str) -> api.Session:
        title = check_title(title)
        caller, _, found = await self._admit_to(caller, Operation.PROMPT, session)
        await found.rename(title, by=caller.uid)
        return self._changed(found)

    async def pause_session(self, caller: Caller, session: str) -> api.Session:
        """Pausing one that is paused already changes nothing, and is no error."""
        caller, _, found = await self._admit_to(caller, Operation.PROMPT, session)
        if found.record.paused:
            await self._history.append()  # somebody else's pause may be on its way to the disk
        else:
            await found.set_paused(True, by=caller.uid)
        return self._changed(found)

    async def resume_session(self, caller: Caller, session: str) -> api.Session:
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        if not found.record.paused:
            raise SessionNotPaused(
                f"The session {found.id} is not paused.", suggestion="It takes prompts as it is."
            )
        self._daemon.panic.check()
        await found.set_paused(False, by=caller.uid)
        agent.go_on(found)
        return self._changed(found)

    async def fork_session(
        self, caller: Caller, session: str, title: str, up_to_seq: int | None
    ) -> api.Session:
        title = check_title(title) if title else ""
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        self._check_open()
        async with self._copying_of[caller.uid], self._copying:
            found.check_there()
            made = await uninterrupted(self._adopted(agent, fork(found, caller.uid, title, up_to_seq)))
        return self._session_info(made)

    async def delete_session(self, caller: Caller, session: str, *, confirmed: bool) -> None:
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        if not confirmed and self._has_conversation(found):
            raise ConfirmationRequired(
                f"The session {found.id} has a conversation, which cannot be brought back.",
                suggestion=f"Export it, or say that it is meant: lactl sessions delete --yes {found.id}",
                field="confirmed",
            )
        registry = self._registry
        deletion = Deletion(self._history, registry.asked, registry.watches, registry.ledger)
        await deletion.delete(agent, found, by=caller.uid)

    async def export_session(self, caller: Caller, session: str, kind: str) -> api.Export:
        write = transcript.WRITERS.get(kind)
        if write is None:
            raise InvalidArgument(
                f"There is no format {kind[:60]!r}.", field="format", suggestion="Use markdown or jsonl."
            )
        _, _, found = await self._admit_to(caller, Operation.INSPECT, session)
        record = found.record

        def written() -> str:
            messages = self._history.messages(record.id, most_bytes=4 * MAX_MESSAGE_BYTES)
            return _of_bounded_size(write(record, messages))

        async with self._copying_of[caller.uid], self._copying:
            text = await asyncio.to_thread(written)
        found.check_there()  # else it may have been read while it was deleted
        name = _IN_FILE_NAMES.sub("-", record.title).strip("-.")[:60] or record.agent
        return api.Export(
            session=record.id, format=kind, name=f"{name}-{record.id}{_SUFFIXES[kind]}", text=text
        )

    async def import_session(self, caller: Caller, agent: str, text: str, title: str) -> api.Session:
        title = check_title(title) if title else ""
        caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        self._check_open()
        running = self._registry.get(agent)
        max_bytes = self._daemon.config.limits.max_prompt_bytes
        async with self._copying_of[caller.uid], self._copying:
            imported = await asyncio.to_thread(imports.read, text, max_bytes=max_bytes)
        taken = take(self._history, running.name, caller.uid, title, imported)
        return self._session_info(await uninterrupted(self._adopted(running, taken)))

    def _has_conversation(self, session: Session) -> bool:
        return bool(
            session.record.turns
            or session.storing
            or session.plan is not None
            or self._history.newest_messages(session.id, 1)
        )

    def _changed(self, session: Session) -> api.Session:
        """The session as it is now, which those who watch it are told, too."""
        session.check_there()
        self._tell_of(session)
        return self._session_info(session)


def _waits_for(session: Session) -> api.TurnEvent | None:
    """The request that the running turn waits with, for somebody who comes only now."""
    turn = session.running
    latest = turn.stream.latest if turn is not None and turn.is_waiting else None
    return latest if latest is not None and latest["type"] in REQUESTS else None


async def _until_at_rest(session: Session, caller: Caller) -> None:
    """Wait until the session is at rest, or the caller has hung up."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(session.until_at_rest())]
    if caller.process is not None:
        tasks.append(asyncio.create_task(caller.process.gone.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _of_bounded_size(text: str) -> str:
    """Raises MessageTooLarge for what no answer can hold."""
    room = MAX_MESSAGE_BYTES - _ROOM_BYTES
    if len(text) > room or len(json.dumps(text)) > room:
        raise MessageTooLarge(
            f"The export is larger than {MAX_MESSAGE_BYTES >> 20} MiB.",
            suggestion="Fork a part of the session, and export that.",
        )
    return text
