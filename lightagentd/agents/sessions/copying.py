"""Makes sessions of existing conversations: forks and imports.

The messages of the new session are its own events, and each names its origin. They commit together with the
session, all or nothing. No call of the conversation runs again. Approvals, the plan and the queue are not
copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightagentd.agents.sessions.imports import Imported, not_run
from lightagentd.agents.sessions.session import TITLE_CHARS, Session, new_record, title_from
from lightagentd.agents.sessions.transcript import said_us
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.agents.turn import unanswered
from lightagentd.errors import InvalidArgument, LimitExceeded
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import Event
from lightagentd.events.types.session import SessionForked, SessionImported
from lightagentd.llm.protocol import Message

IMPORTED = "import"
"""The reason why an imported session is tainted."""
MAX_COPIED = 20_000
"""The messages that a fork may have: they are stored in one transaction, which others wait for."""
MAX_COPIED_BYTES = 64 << 20


async def fork(
    source: Session, owner: int, title: str, up_to_seq: int | None, *, becomes_current: bool = True
) -> Session:
    """A new session of `owner` with the stored conversation of another, up to a message if one is given.

    Raises InvalidArgument for an event that is not one of its messages, LimitExceeded, MessageTooLarge,
    SessionNotFound, StorageError.
    """
    record = source.record
    named = source.history.redactor.text(title) or f"{record.title[:TITLE_CHARS]} (fork)".strip()
    copy = replace(
        new_record(record.agent, owner, named),
        hosts=record.hosts if owner == record.owner else (),
        forked_from=record.id,
        model=record.model,
    )
    session = Session(copy, source.history)
    with session.context():
        events = await asyncio.to_thread(_forked, source.history, record.id, up_to_seq)
        source.check_there()  # else it may have been read while it was deleted
        forked = SessionForked(title=copy.title, forked_from=record.id, messages=len(events)).event()
    now = source.record  # what was read may have come, and tainted it, since this began
    by = now.tainted_by or (record.id if owner != record.owner else "")  # what another wrote is from outside
    session.record = replace(copy, tainted=now.tainted or owner != record.owner, tainted_by=by)
    await _store(session, [forked, *events], becomes_current=becomes_current)
    return session


def said_before(history: History, source: str) -> list[NewEvent]:
    """The stored conversation of a session up to the step that goes on, for a child. Reads a lot, so run it
    in a thread. Raises LimitExceeded, MessageTooLarge, StorageError.
    """
    found = history.queries.messages(source, most_bytes=MAX_COPIED_BYTES)
    messages = [Message.from_dict(event.data or {}) for event in found]
    steps = [number for number, message in enumerate(messages) if message.tool_calls]
    if unanswered(messages):
        found = found[: steps[-1]]
    if len(found) > MAX_COPIED:
        raise LimitExceeded(f"The session {source} has more than {MAX_COPIED} messages.")
    return [message_event(Message.from_dict(event.data or {}), **_origin(event)) for event in found]


async def take(
    history: History, agent: str, owner: int, title: str, imported: Imported, *, becomes_current: bool = True
) -> Session:
    """A new session of `owner` with an imported conversation, which is text from outside. Raises
    StorageError.
    """
    named = history.redactor.text(title or title_from(imported.title) or "Imported")
    fresh = new_record(agent, owner, named)
    record = replace(fresh, tainted=True, tainted_by=IMPORTED)
    session = Session(record, history)
    with session.context():
        events = await asyncio.to_thread(_imported, imported)
        source = imported.source[:100]
        made = SessionImported(title=record.title, source=source, messages=len(events)).event()
    await _store(session, [made, *events], becomes_current=becomes_current)
    return session


async def _store(session: Session, events: Sequence[NewEvent], *, becomes_current: bool = True) -> None:
    changes = [session.record.change()]
    if becomes_current:
        changes.append(session.record.current_change())
    await session.history.append(*events, changes=changes)


def _forked(history: History, source: str, up_to_seq: int | None) -> list[NewEvent]:
    if up_to_seq is None:
        found = history.queries.messages(source, most_bytes=MAX_COPIED_BYTES)
    else:
        found = history.queries.messages(source, to_seq=max(0, up_to_seq), most_bytes=MAX_COPIED_BYTES)
        if up_to_seq not in {event.seq for event in found[-1:]}:
            raise InvalidArgument(
                f"The event {up_to_seq} is no message of the session {source}.",
                field="up_to_seq",
                suggestion=f"Run: lactl sessions show --json {source}",
            )
    if len(found) > MAX_COPIED:
        raise LimitExceeded(
            f"The session {source} has more than {MAX_COPIED} messages.",
            suggestion="Fork a part of it, with up_to_seq.",
        )
    events = [message_event(Message.from_dict(event.data or {}), **_origin(event)) for event in found]
    messages = [Message.from_dict(event.data or {}) for event in found]
    return [*events, *(message_event(result) for result in not_run(unanswered(messages)))]


def _origin(event: Event) -> dict[str, Any]:
    return {"copied_from": event.seq, "said_us": said_us(event)}


def _imported(imported: Imported) -> list[NewEvent]:
    return [
        message_event(one.message, **({"said_us": one.time_us} if one.time_us else {}))
        for one in imported.said
    ]
