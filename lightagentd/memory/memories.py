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
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from lightagentd.config import configuration
from lightagentd.errors import (
    Conflict,
    InvalidArgument,
    LimitExceeded,
    MemoryNotFound,
    PolicyDenied,
    Unavailable,
)
from lightagentd.events.history import History
from lightagentd.events.model import new_id
from lightagentd.events.types import memory as types
from lightagentd.memory.admission import Rules, data_of_user, rules_of
from lightagentd.memory.entries import (
    MACHINE,
    OF_AGENTS,
    STATES,
    Entry,
    State,
    checked_confidence,
    checked_tags,
    checked_text,
    checked_why,
    fingerprint,
)
from lightagentd.memory.keeping import Keeping
from lightagentd.memory.wanted import SURE_ENOUGH, AroundWrites, Wanted, again, is_same, refusal_of

__all__ = ["SURE_ENOUGH", "Memories", "Wanted"]

_log = logging.getLogger(__name__)

_CANDIDATE_PART = 4
"""Candidates may be one in so many of what an owner may have: agents cannot fill it up on their own."""
_MOST_FOUND = 200
"""So many are searched for an agent; those that it may not read are left out afterwards."""


class Memories:
    """Start with `start()`, end with `close()`. All methods raise StorageError and Unavailable, too."""

    def __init__(
        self,
        settings: configuration.Memory,
        history: History,
        policy_of: Callable[[str], configuration.MemoryPolicy | None] = lambda _: None,
    ) -> None:
        """`policy_of` gives what an agent's definition says of its memory."""
        self._settings = settings
        self._history = history
        self._policy_of = policy_of
        self._keeping = Keeping(settings, history, lambda agent: self.rules(agent).store)
        self._changing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By owner: one at a time looks at their memories and changes them."""
        self.around: AroundWrites | None = None
        """What is asked before a write, and told after it."""

    @property
    def problems(self) -> list[str]:
        """The problems of the stores as sentences."""
        return self._keeping.problems()

    def rules(self, agent: str) -> Rules:
        """The policy for an agent; with an empty name that of the configuration alone."""
        return rules_of(self._settings.policy, self._policy_of(agent) if agent else None)

    async def start(self) -> None:
        """Raises ConfigError for a store of the administrator's own that cannot be used."""
        await self._keeping.start()

    async def close(self) -> None:
        await self._keeping.close()

    async def list(
        self, owner: int, *, agent: str = "", state: str = "kept", scope: str = "", limit: int = 100
    ) -> Sequence[Entry]:
        """An owner's memories, newest first; with an agent those that are for it, and with a scope those of
        it. `state` may be `all`.

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
            for entry in await self._keeping.all(owner)
            if (state == "all" or entry.state == state) and (not agent or entry.is_for(agent))
            if not scope or entry.scope == scope
        ]
        found.sort(key=lambda entry: (entry.updated_us, entry.id), reverse=True)
        return found[:limit]

    async def search(
        self, owner: int, query: str, *, agent: str = "", state: State = "kept", limit: int = 10
    ) -> Sequence[Entry]:
        """The memories that fit best, the best first; with an agent, of those that are for it."""
        if not query.strip() or len(query) > 1000:
            raise InvalidArgument("The query is empty or longer than 1000 characters.", field="query")
        return await self._keeping.search(owner, query, agent=agent, state=state, limit=limit)

    async def recall(
        self, owner: int, query: str, *, agent: str, session: str, limit: int
    ) -> Sequence[Entry]:
        """What an agent may read in a session and what fits best, the best first."""
        rules = self.rules(agent)
        found = [*await self.search(owner, query, agent=agent, limit=_MOST_FOUND)]
        if "machine" in rules.scopes:
            found += await self._keeping.search(MACHINE, query, agent="", state="kept", limit=_MOST_FOUND)
        if rules.store:
            of_store = await self._keeping.stores.find(
                rules.store, owner, query, await self._keeping.all(owner)
            )
            found = [*of_store, *(entry for entry in found if entry not in of_store)]
        return [entry for entry in found if rules.lets_through(entry, agent, session)][:limit]

    async def of_prompt(self, owner: int, agent: str, session: str = "") -> Sequence[Entry]:
        """The memories of an agent's prompt: the owner's own words first, then the surest and newest."""
        if not self._settings.prompt_chars:
            return []
        rules = self.rules(agent)
        every = [
            *await self._keeping.all(owner),
            *(await self._keeping.all(MACHINE) if "machine" in rules.scopes else ()),
        ]
        found = [entry for entry in every if entry.state == "kept"]
        found = [entry for entry in found if rules.lets_through(entry, agent, session)]
        found.sort(key=lambda entry: (entry.source != "person", -entry.confidence, -entry.updated_us))
        return found

    async def end_session(self, owner: int, session: str) -> None:
        """Drop what was kept for one session, which is being deleted. Raises StorageError."""
        try:
            async with self._changing[owner]:
                for entry in await self._keeping.all(owner):
                    if entry.scope == "session" and entry.session == session:
                        await self._keeping.drop(entry, types.MemoryForgotten)
        except Unavailable as err:  # nobody else reads it, and `status` says what is wrong with the store
            _log.warning("what was kept for the session %s is not dropped: %s", session, err)

    @property
    def prompt_chars(self) -> int:
        return self._settings.prompt_chars

    async def get(self, owner: int, memory_id: str, *, agent: str = "") -> Entry:
        """One of an owner's memories; with an agent, one that is for it. Raises MemoryNotFound."""
        found = await self._keeping.get(owner, memory_id)
        if found is None or (agent and not found.is_for(agent)):
            raise MemoryNotFound(
                f"There is no memory {memory_id[:60]!r}.", suggestion="Run: lactl memory list", field="memory"
            )
        return found

    async def remember(self, wanted: Wanted, *, administrator: bool = False) -> Entry:
        """Keep a fact, or make it a candidate; the same text again is the same entry.

        Raises InvalidArgument, LimitExceeded, and PolicyDenied for what an owner turned down before, or what
        the policy refuses.
        """
        if self.around is not None:
            wanted = await self.around.before(wanted)
        entry = await self._remember(self._checked(wanted), administrator=administrator)
        if self.around is not None:
            await self.around.after(entry)
        return entry

    async def _remember(self, wanted: Wanted, *, administrator: bool) -> Entry:
        rules = self.rules(wanted.maker or wanted.agent)
        new = wanted.entry(rules)
        if new.owner == MACHINE:
            await _check_for_machine(new.text, administrator=administrator)
        async with self._changing[new.owner]:
            have = await self._keeping.all(new.owner)
            self._check_rejected(wanted, have)
            same = next((entry for entry in have if is_same(entry, new)), None)
            if same is not None:
                new = again(same, new, wanted)
            if (breach := rules.breach(new, have, same)) is not None:
                await self._history.append(refusal_of(new, breach))
                raise breach.error()
            if new is same:
                return same
            if same is None:
                self._check_room(wanted, have)
                if not wanted.by_agent:  # they turned it down once, and want it now
                    await self._forget_rejected(wanted, have)
            kind = types.MemoryProposed if wanted.candidate else types.MemoryRemembered
            await self._keeping.put(new, kind, same)
            return new

    async def promote(
        self, owner: int, memory_id: str, *, why: str = "", administrator: bool = False
    ) -> Entry:
        """Keep a candidate. Raises MemoryNotFound, Conflict; PolicyDenied for one that is for the machine."""
        async with self._changing[owner]:
            entry = await self._candidate(owner, memory_id)
            self._check_secret(why := checked_why(why))
            now_us = _now_us()
            promoted = replace(
                entry,
                state="kept",
                updated_us=now_us,
                promoted_by=owner,
                promoted_us=now_us,
                promoted_why=why,
            )
            if entry.scope != "machine":
                await self._keeping.put(promoted, types.MemoryPromoted, entry)
                return promoted
            await _check_for_machine(entry.text, administrator=administrator)
            promoted = replace(promoted, owner=MACHINE, id=new_id("mem"), namespace="")
            async with self._changing[MACHINE]:
                await self._keeping.put(promoted, types.MemoryPromoted)
            await self._keeping.drop(entry, types.MemoryForgotten)
            return promoted

    async def reject(self, owner: int, memory_id: str) -> Entry:
        """Reject a candidate; only the rejection stays. Raises MemoryNotFound, Conflict."""
        async with self._changing[owner]:
            entry = await self._candidate(owner, memory_id)
            mark = fingerprint(entry.text)
            rejected = replace(
                entry,
                state="rejected",
                text="",
                tags=(),
                fingerprint=mark,
                expires_us=0,
                updated_us=_now_us(),
            )
            await self._keeping.put(rejected, types.MemoryRejected, entry)
            await self._trim_rejected(owner)
            return rejected

    async def forget(self, owner: int, memory_id: str) -> Entry:
        """Drop a memory, in whatever state. Raises MemoryNotFound."""
        async with self._changing[owner]:
            entry = await self.get(owner, memory_id)
            await self._keeping.drop(entry, types.MemoryForgotten)
            return entry

    async def forget_by_agent(self, owner: int, memory_id: str, agent: str) -> Entry:
        """Drop a memory that this agent made for itself.

        Raises MemoryNotFound, PolicyDenied.
        """
        async with self._changing[owner]:
            entry = await self.get(owner, memory_id, agent=agent)
            own = entry.source in OF_AGENTS and (entry.from_agent or entry.agent) == agent
            if not own or entry.scope not in ("agent", "session", "team") or entry.state == "rejected":
                raise PolicyDenied(
                    f"{memory_id} is not for an agent to forget: its user wrote it, or it is for all agents.",
                    suggestion=f"Your user can: lactl memory forget {memory_id}",
                )
            await self._keeping.drop(entry, types.MemoryForgotten)
            return entry

    def _checked(self, wanted: Wanted) -> Wanted:
        """The entry as it would be kept. Raises InvalidArgument."""
        text, tags = checked_text(wanted.text), checked_tags(wanted.tags)
        self._check_secret(wanted.text, text, " ".join(tags))
        if wanted.expires_us and not _now_us() < wanted.expires_us < 1 << 62:
            raise InvalidArgument("The time of expiry is over already, or no time.", field="expires_us")
        if wanted.scope == "session" and not wanted.session:
            raise InvalidArgument("There is no session that this could be kept for.", field="scope")
        if wanted.confidence is not None:
            wanted = replace(wanted, confidence=checked_confidence(wanted.confidence))
        only_proposed = wanted.by_agent and (wanted.scope == "machine" or wanted.source == "reflection")
        return replace(wanted, text=text, tags=tags, candidate=wanted.candidate or only_proposed)

    def _check_secret(self, *texts: str) -> None:
        if any(self._history.redactor.text(one) != one for one in texts):
            raise InvalidArgument(
                "The text holds what looks like a key or a password, which is not remembered.",
                field="text",
                suggestion="Say where the secret is kept instead of what it is.",
            )

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

    async def _forget_rejected(self, wanted: Wanted, have: Sequence[Entry]) -> None:
        mark = fingerprint(wanted.text)
        for entry in have:
            if entry.state == "rejected" and entry.fingerprint == mark:
                await self._keeping.drop(entry, types.MemoryForgotten)

    async def _trim_rejected(self, owner: int) -> None:
        rejected = [entry for entry in await self._keeping.all(owner) if entry.state == "rejected"]
        rejected.sort(key=lambda entry: entry.updated_us, reverse=True)
        for entry in rejected[self._settings.max_entries :]:
            await self._keeping.drop(entry, types.MemoryForgotten)

    async def _candidate(self, owner: int, memory_id: str) -> Entry:
        entry = await self.get(owner, memory_id)
        if entry.state != "candidate":
            raise Conflict(
                f"{memory_id} is no candidate: it is {entry.state}.",
                suggestion="Run: lactl memory candidates",
                field="memory",
            )
        return entry


async def _check_for_machine(text: str, *, administrator: bool) -> None:
    """Raises PolicyDenied unless the agents of all users may read this."""
    if not administrator:
        raise PolicyDenied(
            "Facts about this machine, which the agents of all users read, are kept by administrators alone.",
            suggestion="Keep it for your own agents: leave out the scope machine.",
        )
    if named := await asyncio.to_thread(data_of_user, text):
        raise PolicyDenied(
            f"The agents of all users would read this, and it names {named}.",
            suggestion="Keep it for your own agents, or say it without that.",
        )


def _now_us() -> int:
    return time.time_ns() // 1000
