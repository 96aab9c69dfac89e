"""The operations on memories and profiles.

Everybody, administrators included, has access only to their own: the uid is always that of the caller.
Somebody else's memory is reported as not found. Facts about the machine are everybody's to read, and
administrators' to write.
"""

from __future__ import annotations

import json
from functools import partial

from lightagentd import api
from lightagentd.agents.registry import Registry
from lightagentd.config.memory import Scope
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, LimitExceeded, MemoryNotFound
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.memory.entries import MACHINE, SCOPES, Entry
from lightagentd.memory.memories import Wanted
from lightagentd.policy.operation import Operation

_EXPORT_CHARS = MAX_MESSAGE_BYTES // 4
"""How long an export may be: a character may take four bytes, and more when it is quoted."""
_NO_END = 1 << 62
_WITH, _WITHOUT = "is for more than one agent", "is for one agent, which has to be named"


class Memory(Operations, interface="org.lightagent1.Memory"):
    """What agents remember of and for the caller. What an agent wants to keep from a conversation with text
    from outside in it is a candidate until its owner promotes it.
    """

    def __init__(self, access: Access, registry: Registry) -> None:
        self._access, self._registry = access, registry
        self._memories, self._profiles = registry.shared.memories, registry.shared.profiles

    @method("List", returns="memories")
    async def listed(
        self, caller: Caller, *, agent: str = "", state: str = "kept", limit: int = 100, scope: str = ""
    ) -> list[api.Memory]:
        """The caller's memories, newest first, and then the facts about the machine; those that are kept
        unless state says candidate, rejected or all, and of all scopes unless one is named. 100 unless limit
        says otherwise.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        find = partial(
            self._memories.list, agent=agent, state=state or "kept", scope=_scope(scope) or "", limit=limit
        )
        found = [*await find(caller.uid), *await find(MACHINE)]
        return [shown(api.Memory, entry) for entry in found[:limit]]

    @method("Get", returns="memory")
    async def get(self, caller: Caller, memory: str) -> api.Memory:
        """One of the caller's memories, or a fact about the machine."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        return shown(api.Memory, await self._found(caller, memory))

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
        scope: str = "",
    ) -> api.Memory:
        """Keep something; for one agent, or for all that the caller prompts. With the scope team it is for
        those that read the pool; with machine for the agents of all users, which takes an administrator.
        """
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        wanted_scope = _scope(scope)
        if (wanted_scope in ("team", "machine", "user")) == bool(agent) and wanted_scope:
            raise InvalidArgument(f"The scope {wanted_scope} {_WITH if agent else _WITHOUT}.", field="scope")
        if wanted_scope == "machine":
            caller = await self._access.admit(caller, Operation.ADMINISTER)
        if agent:
            self._registry.get(agent)
        wanted = Wanted(
            owner=caller.uid,
            agent=agent,
            text=text,
            tags=tags or [],
            confidence=confidence,
            expires_us=expires_us,
            scope=wanted_scope,
        )
        kept = await self._memories.remember(wanted, administrator=wanted_scope == "machine")
        return shown(api.Memory, kept)

    @method("Promote", returns="memory")
    async def promote(self, caller: Caller, memory: str) -> api.Memory:
        """Keep a candidate. One that is for the machine takes an administrator."""
        return await self.promote_because(caller, memory, "")

    @method("PromoteBecause", returns="memory")
    async def promote_because(self, caller: Caller, memory: str, why: str) -> api.Memory:
        """As Promote; why, of at most 200 characters, stays with it."""
        caller, entry = await self._admit_to(caller, memory)
        machine = entry.scope == "machine"
        if machine:
            caller = await self._access.admit(caller, Operation.ADMINISTER)
        kept = await self._memories.promote(caller.uid, memory, why=why, administrator=machine)
        return shown(api.Memory, kept)

    @method("Reject", returns="memory")
    async def reject(self, caller: Caller, memory: str) -> api.Memory:
        """Turn a candidate down; it is not proposed again."""
        caller, _ = await self._admit_to(caller, memory)
        return shown(api.Memory, await self._memories.reject(caller.uid, memory))

    @method("Forget")
    async def forget(self, caller: Caller, memory: str) -> None:
        """Drop a memory, in whatever state it is; a fact about the machine takes an administrator."""
        caller, entry = await self._admit_to(caller, memory)
        if entry.owner == MACHINE:
            await self._access.admit(caller, Operation.ADMINISTER)
        await self._memories.forget(entry.owner, memory)

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

    async def _admit_to(self, caller: Caller, memory: str) -> tuple[Caller, Entry]:
        """Admit a change of a memory that the caller sees. Raises MemoryNotFound, PermissionDenied."""
        try:
            entry = await self._found(caller, memory)
        except MemoryNotFound:
            await self._access.admit(caller, Operation.PROMPT)
            raise
        return await self._access.admit(caller, Operation.PROMPT, agent=entry.agent), entry

    async def _found(self, caller: Caller, memory: str) -> Entry:
        """One of the caller's own memories, or a fact about the machine. Raises MemoryNotFound."""
        try:
            return await self._memories.get(caller.uid, memory)
        except MemoryNotFound:
            return await self._memories.get(MACHINE, memory)


def _scope(name: str) -> Scope | None:
    """Raises InvalidArgument for a name that no scope has."""
    found = next((scope for scope in SCOPES if scope == name), None)
    if name and found is None:
        known = ", ".join(SCOPES)
        raise InvalidArgument(
            f"{name[:60]!r} is no scope of a memory.", field="scope", suggestion=f"The scopes are: {known}."
        )
    return found
