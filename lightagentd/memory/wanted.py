"""What is asked to be remembered, and the entry and the events that come of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lightagentd.config.memory import Scope
from lightagentd.errors import InvalidArgument
from lightagentd.events.history import NewEvent
from lightagentd.events.model import current_context, new_id, within
from lightagentd.events.types import memory as types
from lightagentd.memory.admission import Breach, Rules
from lightagentd.memory.entries import MACHINE, Entry, Source, checked_tags, fingerprint

SURE_ENOUGH = 0.8
"""The confidence of what an agent keeps without saying how sure it is."""


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
    scope: Scope | None = None
    """None for `agent` or `user`, as `agent` says."""
    source: Source | None = None
    """None for `agent` or `person`, as `by_agent` says."""
    from_agent: str = ""
    """The agent that wants it kept; `agent` when it is empty."""
    why: str = ""
    """Why it may only be a candidate."""

    @property
    def maker(self) -> str:
        """The agent that wants it kept; empty for a person."""
        return (self.from_agent or self.agent) if self.by_agent else ""

    def entry(self, rules: Rules) -> Entry:
        """The entry as it would be kept. What is for the machine belongs to no user once it is kept."""
        now_us = time.time_ns() // 1000
        scope = self.scope or ("agent" if self.agent else "user")
        kept_for_machine = scope == "machine" and not self.candidate
        ends_us = self.expires_us or (now_us + rules.ttl_us if rules.ttl_us else 0)
        return Entry(
            id=new_id("mem"),
            owner=MACHINE if kept_for_machine else self.owner,
            agent=self.agent if scope in ("agent", "session") else "",
            text=self.text,
            tags=tuple(self.tags),
            source=self.source or ("agent" if self.by_agent else "person"),
            state="candidate" if self.candidate else "kept",
            session=self.session,
            trace_id=self.trace_id,
            created_us=now_us,
            updated_us=now_us,
            expires_us=ends_us,
            confidence=SURE_ENOUGH if self.confidence is None else self.confidence,
            scope=scope,
            namespace=rules.namespace if self.by_agent else "",
            said_by=self.owner,
            from_agent=self.maker,
            proposed_why=self.why if self.candidate else "",
        )


class AroundWrites(Protocol):
    """What is asked before a memory is written, and told after it."""

    async def before(self, wanted: Wanted, /) -> Wanted:
        """What to write instead. Raises LightagentError to refuse it."""

    async def after(self, entry: Entry, /) -> None: ...


def again(same: Entry, new: Entry, wanted: Wanted) -> Entry:
    """The entry of a text that is kept or proposed already, and is wanted again. A person's word counts more
    than an agent's, and a candidate for nothing.
    """
    if wanted.candidate or (wanted.by_agent and same.source == "person"):
        return same
    entry = replace(new, id=same.id, created_us=same.created_us)
    if wanted.confidence is None:
        entry = replace(entry, confidence=same.confidence)
    if wanted.expires_us is None:
        entry = replace(entry, expires_us=same.expires_us)
    if (
        wanted.by_agent
    ):  # what it is tagged with already it stays tagged with, and so what a person said of it
        with contextlib.suppress(InvalidArgument):
            entry = replace(entry, tags=checked_tags((*same.tags, *wanted.tags)))
        entry = replace(
            entry,
            promoted_by=same.promoted_by,
            promoted_us=same.promoted_us,
            promoted_why=same.promoted_why,
            proposed_why=same.proposed_why,
        )
    return entry


def is_same(one: Entry, new: Entry) -> bool:
    """Whether a new entry says what this one does to the same readers. In the pool each agent has its own."""
    if one.state == "rejected" or (one.agent, one.scope, one.namespace) != (
        new.agent,
        new.scope,
        new.namespace if new.from_agent else one.namespace,
    ):
        return False
    if (new.scope == "session" and one.session != new.session) or (
        new.scope == "team" and one.from_agent != new.from_agent
    ):
        return False
    if new.source == "reflection":
        return fingerprint(one.text) == fingerprint(new.text)
    return one.text.casefold() == new.text.casefold()


def event_of(entry: Entry, kind: type[types.MemoryChanged]) -> NewEvent:
    """The event of a change of a memory, without its text."""
    agent = current_context().agent or entry.agent
    told: dict[str, Any] = {} if entry.scope in ("user", "agent") else {"scope": entry.scope}
    if entry.said_by not in (entry.owner, -1):
        told["said_by"] = entry.said_by
    if kind is types.MemoryPromoted:
        told["promoted_by"] = entry.promoted_by
    changed = kind(
        memory=entry.id,
        for_agent=entry.agent,
        source=entry.source,
        state=entry.state,
        from_session=entry.session,
        confidence=entry.confidence,
        expires_us=entry.expires_us,
        chars=len(entry.text),
        **told,
    )
    nobody: dict[str, Any] = {"caller": None} if kind is types.MemoryExpired else {}
    with within(owner=entry.owner, agent=agent, **nobody):
        return changed.event()


def refusal_of(entry: Entry, breach: Breach) -> NewEvent:
    """The event of a write that the policy refuses."""
    refused = types.MemoryRefused(
        for_agent=entry.agent,
        source=entry.source,
        scope=entry.scope,
        key=breach.key,
        reason=breach.why,
        chars=len(entry.text),
    )
    with within(owner=entry.said_by, agent=current_context().agent or entry.from_agent):
        return refused.event()
