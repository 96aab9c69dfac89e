"""The Varlink interface `org.lightagent1.Memory`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Memory(Adapter, VarlinkInterface, name="org.lightagent1.Memory"):
    """What agents remember of and for the caller. What an agent wants to keep from a conversation with text
    from outside in it is a candidate until its owner promotes it.
    """

    @varlinkmethod(return_parameter="memories")
    async def List(
        self, *, agent: str | None = None, state: str | None = None, limit: int | None = None
    ) -> list[api.Memory]:
        """The caller's memories, newest first; those that are kept unless state says candidate, rejected or
        all. 100 unless limit says otherwise.
        """
        return await self.service.list_memories(
            self.caller, agent=agent or "", state=state or "kept", limit=100 if limit is None else limit
        )

    @varlinkmethod(return_parameter="memories")
    async def Search(
        self, *, query: str, agent: str | None = None, limit: int | None = None
    ) -> list[api.Memory]:
        """The caller's kept memories that fit best, the best first; 10 unless limit says otherwise."""
        return await self.service.search_memories(
            self.caller, query=query, agent=agent or "", limit=10 if limit is None else limit
        )

    @varlinkmethod(return_parameter="memory")
    async def Remember(
        self,
        *,
        text: str,
        agent: str | None = None,
        tags: list[str] | None = None,
        confidence: float | None = None,
        expires_us: int | None = None,
    ) -> api.Memory:
        """Keep something; for one agent, or for all that the caller prompts."""
        return await self.service.remember(
            self.caller,
            text=text,
            agent=agent or "",
            tags=tags or [],
            confidence=1.0 if confidence is None else confidence,
            expires_us=expires_us or 0,
        )

    @varlinkmethod(return_parameter="memory")
    async def Promote(self, *, memory: str) -> api.Memory:
        """Keep a candidate."""
        return await self.service.promote_memory(self.caller, memory)

    @varlinkmethod(return_parameter="memory")
    async def Reject(self, *, memory: str) -> api.Memory:
        """Turn a candidate down; it is not proposed again."""
        return await self.service.reject_memory(self.caller, memory)

    @varlinkmethod
    async def Forget(self, *, memory: str) -> None:
        """Drop a memory, in whatever state it is."""
        await self.service.forget_memory(self.caller, memory)

    @varlinkmethod(return_parameter="text")
    async def Export(self) -> str:
        """All of the caller's memories as JSONL."""
        return await self.service.export_memories(self.caller)

    @varlinkmethod(return_parameter="text")
    async def GetProfile(self) -> str:
        """What the caller wants every agent to know of him, as Markdown: his own USER.md."""
        return await self.service.get_profile(self.caller)

    @varlinkmethod
    async def SetProfile(self, *, text: str) -> None:
        """Replace that; empty takes it away."""
        await self.service.set_profile(self.caller, text)
