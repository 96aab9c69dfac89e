"""Enforces the rules of memory: who may keep what, and what an agent may read.

A memory has one owner, and is for one of their agents or for all. A kept memory is in the system prompts of
those agents. A candidate is read by no agent until its owner promotes it. A memory becomes a candidate when
an agent makes it in a conversation with text from outside, in a turn that nobody watched, or for other
agents. So a log that says "remember that …" yields only a candidate. Splitting such a text, even over several
sessions, does not help: every memory from a tainted session is a candidate.

A kept memory came from its owner or from a conversation without text from outside, or its owner promoted it.
So recalling it does not taint a session. Models get it marked as data all the same.

Events never hold the texts: they record only that something was remembered, so forgetting is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lightagentd.config import configuration
from lightagentd.errors import (
    Conflict,
    InvalidArgument,
    LimitExceeded,
    MemoryNotFound,
    PolicyDenied,
)
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import current_context, new_id, within
from lightagentd.events.types import memory as kinds
from lightagentd.memory.entries import (
    STATES,
    Entry,
    State,
    checked_confidence,
    checked_tags,
    checked_text,
    fingerprint,
    is_id,
)
from lightagentd.memory.history_store import HistoryStore
from lightagentd.memory.own_store import OwnStore
from lightagentd.memory.store import Backing

_log = logging.getLogger(__name__)

_CANDIDATE_PART = 4
"""Candidates may be one in so many of what an owner may have: agents cannot fill it up on their own."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Something to remember. `agent` is empty when it is for all agents of its owner."""

    owner: int
    agent: str
    text: str
    tags: Sequence[str] = ()
    confidence: float | None = 1.0
    """None for that of the entry with the same text, or else `SURE_ENOUGH`."""
    expires_us: int | None = 0
    """0 for never, None for the time of the entry with the same text, if there is one."""
    by_agent: bool = False
    """Whether an agent wants it kept; else its owner does."""
    candidate: bool = False
    session: str = ""
    trace_id: str = ""


class AroundWrites(Protocol):
    """What is asked before a memory is written, and told after it."""

    async def before(self, wanted: Wanted, /) -> Wanted:
        """What to write instead. Raises LightagentError to refuse it."""

    async def after(self, entry: Entry, /) -> None: ...


SURE_ENOUGH = 0.8
"""The confidence of what an agent keeps without saying how sure it is."""


class Memories:
    """Start with `start()`, end with `close()`. All methods raise StorageError and Unavailable, too."""

    def __init__(self, settings: configuration.Memory, history: History) -> None:
        self._settings = settings
        self._history = history
        self._store: Backing = OwnStore(settings.store, history) if settings.store else HistoryStore(history)
        self._changing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By owner: one at a time looks at their memories and changes them."""
        self.hooks: AroundWrites | None = None
        """What is asked before a write, and told after it."""

    @property
    def problem(self) -> str:
        """The problem of the store as a sentence; empty when it works."""
        return self._store.problem

    async def start(self) -> None:
        """Raises ConfigError for a store of the administrator's own that cannot be used."""
        await self._store.start()

    async def close(self) -> None:
        await self._store.close()

    async def list(
        self, owner: int, *, agent: str = "", state: str = "kept", limit: int = 100
    ) -> Sequence[Entry]:
        """An owner's memories, newest first; with an agent those that are for it. `state` may be `all`.

        Raises InvalidArgument.
        """
        if state not in (*STATES, "all"):
            raise InvalidArgument(
                f"{state[:60]!r} is no state of a memory.",
                field="state",
                suggestion="Use kept, candidate, rejected or all.",
            )
        found = [
            entry
            for entry in await self._all(owner)
            if (state == "all" or entry.state == state) and (not agent or entry.is_for(agent))
        ]
        found.sort(key=lambda entry: (entry.updated_us, entry.id), reverse=True)
        return found[:limit]

    async def search(
        self, owner: int, query: str, *, agent: str = "", state: State = "kept", limit: int = 10
    ) -> Sequence[Entry]:
        """The memories that fit best, the best first; with an agent, of those that are for it."""
        if not query.strip() or len(query) > 1000:
            raise InvalidArgument("The query is empty or longer than 1000 characters.", field="query")
        found = await self._store.search(owner, query, agent=agent or None, state=state, limit=limit)
        return await self._without_expired(found)

    async def of_prompt(self, owner: int, agent: str) -> Sequence[Entry]:
        """The memories of an agent's prompt: the owner's own words first, then the surest and newest."""
        if not self._settings.prompt_chars:
            return []
        found = [entry for entry in await self._all(owner) if entry.state == "kept" and entry.is_for(agent)]
        found.sort(key=lambda entry: (entry.source != "person", -entry.confidence, -entry.updated_us))
        return found

    @property
    def prompt_chars(self) -> int:
        return self._settings.prompt_chars

    async def get(self, owner: int, memory_id: str, *, agent: str = "") -> Entry:
        """One of an owner's memories; with an agent, one that is for it. Raises MemoryNotFound."""
        found = await self._store.get(owner, memory_id) if is_id(memory_id) else None
        if found is not None and (not agent or found.is_for(agent)):
            found = next(iter(await self._without_expired([found])), None)
        else:
            found = None
        if found is None:
            raise MemoryNotFound(
                f"There is no memory {memory_id[:60]!r}.", suggestion="Run: lactl memory list", field="memory"
            )
        return found

    async def remember(self, wanted: Wanted) -> Entry:
        """Keep a fact, or make it a candidate; the same text again is the same entry.

        Raises InvalidArgument, LimitExceeded, and PolicyDenied for what an owner turned down before.
        """
        if self.hooks is not None:
            wanted = await self.hooks.before(wanted)
        entry = await self._remember(self._checked(wanted))
        if self.hooks is not None:
            await self.hooks.after(entry)
        return entry

    async def _remember(self, wanted: Wanted) -> Entry:
        async with self._changing[wanted.owner]:
            have = await self._all(wanted.owner)
            self._check_rejected(wanted, have)
            same = next((entry for entry in have if _is_same(entry, wanted)), None)
            if same is not None:
                return await self._again(same, wanted)
            self._check_room(wanted, have)
            if not wanted.by_agent:  # they turned it down once, and want it now
                await self._forget_rejected(wanted, have)
            entry = _new(wanted)
            kind = kinds.MemoryProposed if wanted.candidate else kinds.MemoryRemembered
            await self._put(entry, kind, new=True)
            return entry

    async def promote(self, owner: int, memory_id: str) -> Entry:
        """Keep a candidate. Raises MemoryNotFound, Conflict."""
        async with self._changing[owner]:
            entry = await self._candidate(owner, memory_id)
            entry = replace(entry, state="kept", updated_us=_now_us())
            await self._put(entry, kinds.MemoryPromoted)
            return entry

    async def reject(self, owner: int, memory_id: str) -> Entry:
        """Reject a candidate; only the rejection stays. Raises MemoryNotFound, Conflict."""
        async with self._changing[owner]:
            entry = await self._candidate(owner, memory_id)
            mark = fingerprint(entry.text)
            entry = replace(
                entry,
                state="rejected",
                text="",
                tags=(),
                fingerprint=mark,
                expires_us=0,
                updated_us=_now_us(),
            )
            await self._put(entry, kinds.MemoryRejected)
            await self._trim_rejected(owner)
            return entry

    async def forget(self, owner: int, memory_id: str) -> Entry:
        """Drop a memory, in whatever state. Raises MemoryNotFound."""
        async with self._changing[owner]:
            entry = await self.get(owner, memory_id)
            await self._drop(entry, kinds.MemoryForgotten)
            return entry

    async def forget_by_agent(self, owner: int, memory_id: str, agent: str) -> Entry:
        """Drop a memory that this agent made for itself.

        Raises MemoryNotFound, PolicyDenied.
        """
        async with self._changing[owner]:
            entry = await self.get(owner, memory_id, agent=agent)
            if entry.source != "agent" or entry.agent != agent or entry.state == "rejected":
                raise PolicyDenied(
                    f"{memory_id} is not for an agent to forget: its user wrote it, or it is for all agents.",
                    suggestion=f"Your user can: lactl memory forget {memory_id}",
                )
            await self._drop(entry, kinds.MemoryForgotten)
            return entry

    def _checked(self, wanted: Wanted) -> Wanted:
        """The entry as it would be kept. Raises InvalidArgument."""
        text, tags = checked_text(wanted.text), checked_tags(wanted.tags)
        if any(self._history.redactor.text(one) != one for one in (wanted.text, text, " ".join(tags))):
            raise InvalidArgument(
                "The text holds what looks like a key or a password, which is not remembered.",
                field="text",
                suggestion="Say where the secret is kept instead of what it is.",
            )
        if wanted.expires_us and not _now_us() < wanted.expires_us < 1 << 62:
            raise InvalidArgument("The time of expiry is over already, or no time.", field="expires_us")
        if wanted.confidence is not None:
            wanted = replace(wanted, confidence=checked_confidence(wanted.confidence))
        return replace(wanted, text=text, tags=tags)

    def _check_rejected(self, wanted: Wanted, have: Sequence[Entry]) -> None:
        mark = fingerprint(wanted.text)
        if wanted.by_agent and any(entry.fingerprint == mark for entry in have if entry.state == "rejected"):
            raise PolicyDenied(
                "The user turned this down before; it is not remembered.", suggestion="Go on without it."
            )

    def _check_room(self, wanted: Wanted, have: Sequence[Entry]) -> None:
        most = self._settings.max_entries
        candidates = sum(entry.state == "candidate" for entry in have)
        if wanted.candidate and candidates >= max(1, most // _CANDIDATE_PART):
            raise LimitExceeded(
                f"{candidates} candidates wait for the user already.",
                suggestion="Promote or reject some: lactl memory candidates",
            )
        if sum(entry.state != "rejected" for entry in have) >= most:
            raise LimitExceeded(
                f"The user has {most} memories already, which is all that memory.max_entries allows.",
                suggestion="Forget some: lactl memory list",
            )

    async def _again(self, same: Entry, wanted: Wanted) -> Entry:
        """The same text again: a person's word counts more than an agent's, and a candidate for nothing."""
        if wanted.candidate or (wanted.by_agent and same.source == "person"):
            return same
        if wanted.confidence is None:
            wanted = replace(wanted, confidence=same.confidence)
        if wanted.expires_us is None:
            wanted = replace(wanted, expires_us=same.expires_us)
        entry = replace(_new(wanted), id=same.id, created_us=same.created_us)
        if wanted.by_agent:  # what it is tagged with already it stays tagged with
            with contextlib.suppress(InvalidArgument):
                entry = replace(entry, tags=checked_tags((*same.tags, *wanted.tags)))
        await self._put(entry, kinds.MemoryRemembered)
        return entry

    async def _forget_rejected(self, wanted: Wanted, have: Sequence[Entry]) -> None:
        mark = fingerprint(wanted.text)
        for entry in have:
            if entry.state == "rejected" and entry.fingerprint == mark:
                await self._drop(entry, kinds.MemoryForgotten)

    async def _trim_rejected(self, owner: int) -> None:
        rejected = [entry for entry in await self._all(owner) if entry.state == "rejected"]
        rejected.sort(key=lambda entry: entry.updated_us, reverse=True)
        for entry in rejected[self._settings.max_entries :]:
            await self._drop(entry, kinds.MemoryForgotten)

    async def _candidate(self, owner: int, memory_id: str) -> Entry:
        entry = await self.get(owner, memory_id)
        if entry.state != "candidate":
            raise Conflict(
                f"{memory_id} is no candidate: it is {entry.state}.",
                suggestion="Run: lactl memory candidates",
                field="memory",
            )
        return entry

    async def _all(self, owner: int) -> Sequence[Entry]:
        return await self._without_expired(await self._store.list(owner))

    async def _without_expired(self, found: Sequence[Entry]) -> Sequence[Entry]:
        """The entries that have not expired. Expired ones are dropped, without the owner's lock."""
        now_us = _now_us()
        if not any(entry.is_expired(now_us) for entry in found):
            return found
        drops = (self._drop(entry, kinds.MemoryExpired) for entry in found if entry.is_expired(now_us))
        for failure in await asyncio.gather(*drops, return_exceptions=True):
            if isinstance(failure, BaseException):  # it counts as gone, and is dropped another time
                _log.warning("a memory that has expired was not dropped: %s", failure)
        return [entry for entry in found if not entry.is_expired(now_us)]

    async def _put(self, entry: Entry, kind: type[kinds.MemoryChanged], *, new: bool = False) -> None:
        await self._store.put(entry, _event(entry, kind), new=new)

    async def _drop(self, entry: Entry, kind: type[kinds.MemoryChanged]) -> None:
        await self._store.drop(entry, _event(entry, kind))


def _is_same(entry: Entry, wanted: Wanted) -> bool:
    return (
        entry.state != "rejected"
        and entry.agent == wanted.agent
        and entry.text.casefold() == wanted.text.casefold()
    )


def _new(wanted: Wanted) -> Entry:
    now_us = _now_us()
    return Entry(
        id=new_id("mem"),
        owner=wanted.owner,
        agent=wanted.agent,
        text=wanted.text,
        tags=tuple(wanted.tags),
        source="agent" if wanted.by_agent else "person",
        state="candidate" if wanted.candidate else "kept",
        session=wanted.session,
        trace_id=wanted.trace_id,
        created_us=now_us,
        updated_us=now_us,
        expires_us=wanted.expires_us or 0,
        confidence=SURE_ENOUGH if wanted.confidence is None else wanted.confidence,
    )


def _event(entry: Entry, kind: type[kinds.MemoryChanged]) -> NewEvent:
    """The event of a change of a memory, without its text."""
    agent = current_context().agent or entry.agent
    told = kind(
        memory=entry.id,
        for_agent=entry.agent,
        source=entry.source,
        state=entry.state,
        from_session=entry.session,
        confidence=entry.confidence,
        expires_us=entry.expires_us,
        chars=len(entry.text),
    )
    nobody: dict[str, Any] = {"caller": None} if kind is kinds.MemoryExpired else {}
    with within(owner=entry.owner, agent=agent, **nobody):
        return told.event()


def _now_us() -> int:
    return time.time_ns() // 1000
