"""A polkit whose answers a test writes down: it owns the name on a bus, and answers as polkit 126 does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lightagentd.bus.connection import Call, Reply, Variant, connect

NAME = "org.freedesktop.PolicyKit1"
YES: tuple[bool, bool, dict[str, str]] = (True, False, {})
NO: tuple[bool, bool, dict[str, str]] = (False, False, {})
CHALLENGE: tuple[bool, bool, dict[str, str]] = (False, True, {})
Answer = tuple[bool, bool, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What it was asked."""

    kind: str
    subject: dict[str, Any]
    action: str
    details: dict[str, str]
    flags: int
    check_id: str

    @property
    def interactive(self) -> bool:
        return self.flags == 1


@dataclass
class ScriptedPolkit:
    """`answer` is called with each check; an error name instead of an answer is answered as that."""

    answer: Callable[[Check], Awaitable[Answer | str]]
    version: str = "126"
    checks: list[Check] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each check and each cancel."""

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def serve(self, call: Call) -> Reply:
        if call.member == "GetAll":
            found = {"BackendName": Variant("s", "js"), "BackendVersion": Variant("s", self.version)}
            return Reply(signature="a{sv}", args=[found])
        if call.member == "CancelCheckAuthorization":
            self.cancelled.append(call.args[0])
            self.changed.set()
            return Reply()
        (kind, subject), action, details, flags, check_id = call.args
        check = Check(
            kind=kind, subject=subject, action=action, details=details, flags=flags, check_id=check_id
        )
        self.checks.append(check)
        self.changed.set()
        answer = await self.answer(check)
        if isinstance(answer, str):
            return Reply(error=answer, args=["it does not work"])
        return Reply(signature="(bba{ss})", args=[list(answer)])

    @contextlib.asynccontextmanager
    async def on(self, address: str) -> AsyncIterator[ScriptedPolkit]:
        """Serve on the bus at this address for the length of the block."""
        async with connect(address) as bus:
            bus.serve(self.serve, 2048)
            await bus.request_name(NAME)
            yield self


def always(answer: Answer | str) -> Callable[[Check], Awaitable[Answer | str]]:
    async def say(_: Check) -> Answer | str:
        return answer

    return say
