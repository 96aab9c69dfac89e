"""The operations on memories and profiles.

Everybody, administrators included, has access only to their own: the uid is always that of the caller.
Somebody else's memory is reported as not found.
"""

from __future__ import annotations

import json

from lightagentd import api
from lightagentd.agents.registry import Registry
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import LimitExceeded, MemoryNotFound
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.memory.memories import Wanted
from lightagentd.policy.operation import Operation

_EXPORT_CHARS = MAX_MESSAGE_BYTES // 4
"""How long an export may be: a character may take four bytes, and more when it is quoted."""
_NO_END = 1 << 62


class Memory(Operations, interface="org.lightagent1.Memory"):
    """What agents remember of and for the caller. What an agent wants to keep from a conversation with text
    from outside in it is a candidate until its owner promotes it.
    """

    def __init__(self, access: Access, registry: Registry) -> None:
        self._access, self._registry = access, registry
        self._memories, self._profiles = registry.shared.memories, registry.shared.profiles

    @method("List", returns="memories")
    async def listed(
        self, caller: Caller, *, agent: str = "", state: str = "kept", limit: int = 100
    ) -> list[api.Memory]:
        """The caller's memories, newest first; those that are kept unless state says candidate, rejected or
        all. 100 unless limit says otherwise.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        found = await self._memories.list(caller.uid, agent=agent, state=state or "kept", limit=limit)
        return [shown(api.Memory, entry) for entry in found]

    @method("Search", returns="memories")
    async def search(
        self, caller: Caller, *, query: str, agent: str = "", limit: int = 10
    ) -> list[api.Memory]:
        """The caller's kept memories that fit best, the best first; 10 unless limit says otherwise."""
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        found = await self._memories.search(caller.uid, query, agent=agent, limit=limit)
        return [shown(api.Memory, entry) for entry in found]

    @method("Remember", returns="memory")
    async def remember(
        self,
        caller: Caller,
        *,
        text: str,
        agent: str = "",
        tags: list[str] | None = None,
        confidence: float = 1.0,
        expires_us: int = 0,
    ) -> api.Memory:
        """Keep something; for one agent, or for all that the caller prompts."""
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        if agent:
            self._registry.get(agent)
        wanted = Wanted(
            owner=caller.uid,
            agent=agent,
            text=text,
            tags=tags or [],
            confidence=confidence,
            expires_us=expires_us,
        )
        return shown(api.Memory, await self._memories.remember(wanted))

    @method("Promote", returns="memory")
    async def promote(self, caller: Caller, memory: str) -> api.Memory:
        """Keep a candidate."""
        caller = await self._admit_to(caller, memory)
        return shown(api.Memory, await self._memories.promote(caller.uid, memory))

    @method("Reject", returns="memory")
    async def reject(self, caller: Caller, memory: str) -> api.Memory:
        """Turn a candidate down; it is not proposed again."""
        caller = await self._admit_to(caller, memory)
        return shown(api.Memory, await self._memories.reject(caller.uid, memory))

    @method("Forget")
    async def forget(self, caller: Caller, memory: str) -> None:
        """Drop a memory, in whatever state it is."""
        caller = await self._admit_to(caller, memory)
        await self._memories.forget(caller.uid, memory)

    @method("Export", returns="text")
    async def export(self, caller: Caller) -> str:
        """All of the caller's memories as JSONL."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        found = await self._memories.list(caller.uid, state="all", limit=_NO_END)
        memories = [shown(api.Memory, entry) for entry in reversed(found)]
        lines = [json.dumps(vars(memory), ensure_ascii=False) + "\n" for memory in memories]
        if sum(map(len, lines)) > _EXPORT_CHARS:
            raise LimitExceeded(
                f"Your {len(found)} memories do not fit into one export.",
                suggestion="Read them in parts: lactl memory list --json",
            )
        return "".join(lines)

    @method("GetProfile", returns="text")
    async def get_profile(self, caller: Caller) -> str:
        """What the caller wants every agent to know of him, as Markdown: his own USER.md."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        return self._profiles.get(caller.uid)

    @method("SetProfile")
    async def set_profile(self, caller: Caller, text: str) -> None:
        """Replace that; empty takes it away."""
        caller = await self._access.admit(caller, Operation.PROMPT)
        await self._profiles.set(caller.uid, text)

    async def _admit_to(self, caller: Caller, memory: str) -> Caller:
        """Admit a change of one of the caller's own memories. Raises MemoryNotFound, PermissionDenied."""
        try:
            agent = (await self._memories.get(caller.uid, memory)).agent
        except MemoryNotFound:
            await self._access.admit(caller, Operation.PROMPT)
            raise
        return await self._access.admit(caller, Operation.PROMPT, agent=agent)
