"""A small Varlink interface for tests of the server, and the counts by which a test sees what it did."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod

from lightagentd.errors import LightagentError, SkillNotFound
from lightagentd.varlink.server import Peer, error_reply


@dataclass(eq=False)
class Echo:
    """What happened, and the gate that `Wait` waits at."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    said: list[str] = field(default_factory=list)
    waiting: int = 0
    waited: int = 0
    streams: int = 0
    flooded: int = 0
    made: int = 0
    connected: int = 0


class EchoInterface(VarlinkInterface, name="org.lightagent1.Echo"):
    """One method for each thing that a test needs."""

    def __init__(self, echo: Echo, peer: Peer) -> None:
        self._echo = echo
        self._peer = peer
        echo.connected += 1

    @varlinkmethod(return_parameter="text")
    async def Say(self, *, text: str) -> str:
        self._echo.said.append(text)
        return text

    @varlinkmethod(return_parameter="number")
    async def Number(self, *, number: int) -> int:
        return number

    @varlinkmethod(return_parameter="value", allow_foreign=True)
    async def Whatever(self, *, value: Any) -> Any:
        return value

    @varlinkmethod(return_parameter="length")
    async def Length(self, *, text: str) -> int:
        return len(text)

    @varlinkmethod(return_parameter="text")
    async def Make(self, *, length: int) -> str:
        self._echo.made += 1
        return "x" * length

    @varlinkmethod(return_parameter="who")
    async def WhoAmI(self) -> str:
        return f"{self._peer.uid}:{self._peer.gid}:{self._peer.pid}"

    @varlinkmethod(return_parameter="text")
    async def Wait(self) -> str:
        self._echo.waiting += 1
        await self._echo.go.wait()
        self._echo.waited += 1
        return "waited"

    @varlinkmethod(return_parameter="text")
    async def Fail(self, *, how: str) -> str:
        if how == "known":
            err: LightagentError = SkillNotFound(
                "There is no such skill.", suggestion="Look again.", field="name"
            )
            raise error_reply(err)
        raise RuntimeError("secret detail")

    @varlinkmethod(return_parameter="number", delay_generator=False)
    async def Count(self, *, to: int) -> AsyncIterator[int]:
        for number in range(1, to):
            yield number
        raise LastResult(to)

    @varlinkmethod(return_parameter="number", delay_generator=False)
    async def Silence(self) -> AsyncIterator[int]:
        self._echo.streams += 1
        try:
            await asyncio.Event().wait()
            yield 0
        finally:
            self._echo.streams -= 1

    @varlinkmethod(return_parameter="flood", delay_generator=False, allow_foreign=True)
    async def Flood(self, *, length: int) -> AsyncIterator[Any]:
        self._echo.streams += 1
        try:
            while True:
                self._echo.flooded += 1
                yield {"number": self._echo.flooded, "text": "x" * length}
        finally:
            self._echo.streams -= 1
