"""The operations on memories and profiles, a part of `Service`.

Everybody has his own alone, administrators too: the uid is that of the caller, and there is no way to name
another. Somebody else's memory is one that does not exist.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations, check_limit
from lightagentd.errors import LimitExceeded
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.memory.entries import Entry
from lightagentd.memory.memories import Memories, Wanted

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry

_EXPORT_CHARS = MAX_MESSAGE_BYTES // 4
"""How long an export may be: a character may take four bytes, and more when it is quoted."""
_NO_END = 1 << 62


class MemoryOperations(Operations):
    """What agents remember of and for a caller."""

    _registry: Registry

    async def list_memories(self, caller: Caller, *, agent: str, state: str, limit: int) -> list[api.Memory]:
        caller = await self._admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        found = await self._memories.list(caller.uid, agent=agent, state=state, limit=limit)
        return [_info(entry) for entry in found]

    async def search_memories(
        self, caller: Caller, *, query: str, agent: str, limit: int
    ) -> list[api.Memory]:
        caller = await self._admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        found = await self._memories.search(caller.uid, query, agent=agent, limit=limit)
        return [_info(entry) for entry in found]

    async def remember(
        self, caller: Caller, *, text: str, agent: str, tags: list[str], confidence: float, expires_us: int
    ) -> api.Memory:
        caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        if agent:
            self._registry.get(agent)
        wanted = Wanted(
            owner=caller.uid,
            agent=agent,
            text=text,
            tags=tags,
            confidence=confidence,
            expires_us=expires_us,
        )
        return _info(await self._memories.remember(wanted))

    async def promote_memory(self, caller: Caller, memory: str) -> api.Memory:
        caller = await self._admit_to_memory(caller, memory)
        return _info(await self._memories.promote(caller.uid, memory))

    async def reject_memory(self, caller: Caller, memory: str) -> api.Memory:
        caller = await self._admit_to_memory(caller, memory)
        return _info(await self._memories.reject(caller.uid, memory))

    async def forget_memory(self, caller: Caller, memory: str) -> None:
        caller = await self._admit_to_memory(caller, memory)
        await self._memories.forget(caller.uid, memory)

    async def export_memories(self, caller: Caller) -> str:
        """One JSON object on each line, the oldest first, in whatever state they are."""
        caller = await self._admit(caller, Operation.INSPECT)
        found = await self._memories.list(caller.uid, state="all", limit=_NO_END)
        lines = [json.dumps(_info(entry).__dict__, ensure_ascii=False) + "\n" for entry in reversed(found)]
        if sum(map(len, lines)) > _EXPORT_CHARS:
            raise LimitExceeded(
                f"Your {len(found)} memories do not fit into one export.",
                suggestion="Read them in parts: lactl memory list --json",
            )
        return "".join(lines)

    async def get_profile(self, caller: Caller) -> str:
        caller = await self._admit(caller, Operation.INSPECT)
        return self._registry.profiles.get(caller.uid)

    async def set_profile(self, caller: Caller, text: str) -> None:
        caller = await self._admit(caller, Operation.PROMPT)
        await self._registry.profiles.set(caller.uid, text)

    async def _admit_to_memory(self, caller: Caller, memory: str) -> Caller:
        """For a change of one of the caller's own. Raises MemoryNotFound, PermissionDenied."""
        caller = await self._admit(caller, Operation.PROMPT)
        found = await self._memories.get(caller.uid, memory)
        return await self._admit(caller, Operation.PROMPT, agent=found.agent) if found.agent else caller

    @property
    def _memories(self) -> Memories:
        return self._registry.memories


def _info(entry: Entry) -> api.Memory:
    return api.Memory(
        id=entry.id,
        owner=entry.owner,
        agent=entry.agent,
        text=entry.text,
        tags=list(entry.tags),
        source=entry.source,
        state=entry.state,
        session=entry.session,
        trace_id=entry.trace_id,
        created_us=entry.created_us,
        updated_us=entry.updated_us,
        expires_us=entry.expires_us,
        confidence=entry.confidence,
    )
