"""What a connection may do that speaks for somebody else: by a token, or for a client of the gateway.

A connection of the gateway (user `lightagent-gateway`) may do nothing until it authenticates
(`org.lightagent1.Manager.Authenticate`), and cannot change what it became then. A `Grant` only narrows: its
uid must be allowed what is asked, too, as polkit says without asking anybody. It belongs to its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from lightagentd.errors import PermissionDenied
from lightagentd.policy.operation import Operation

GATEWAY_USER = "lightagent-gateway"
SCOPES = (Operation.INSPECT, Operation.PROMPT, Operation.APPROVE)
"""What a grant can be for; all else is for people who connect themselves."""


class Ending:
    """Tells all who hold on to something that it has ended, such as a token that was revoked."""

    def __init__(self) -> None:
        self.has_come = False
        self._waiting: set[asyncio.Timeout] = set()

    def come(self) -> None:
        """In the event loop's thread."""
        self.has_come = True
        for one in self._waiting:
            if not one.expired():
                one.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def cutting(self, left_s: float | None) -> AsyncIterator[None]:
        """A block that is cancelled when it comes, and after so many seconds. Raises TimeoutError then."""
        async with asyncio.timeout(left_s) as cut:
            self._waiting.add(cut)
            try:
                yield
            finally:
                self._waiting.discard(cut)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """`name` is the token's, empty for a client of the gateway without one; no `agents` stands for all.
    `id` is as `EventContext.client`. `expires_us` is 0 for a grant that does not expire, `tokens_per_day` for
    one without such a limit of its own.
    """

    id: str = ""
    name: str = ""
    scopes: frozenset[Operation] = frozenset(SCOPES)
    agents: frozenset[str] = frozenset()
    expires_us: int = 0
    tokens_per_day: int = 0
    way: str = "token"
    """How whoever it is for came: by a token, or `notify`, by a link that they were sent."""
    ending: Ending = field(default_factory=Ending, compare=False, repr=False)
    has_left: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Whether the client that it is for has ended."""

    @property
    def origin(self) -> str:
        """What events say of it as their correlation."""
        return f"{self.way}:{self.name}" if self.name else "gateway"

    @property
    def _left_s(self) -> float | None:
        return self.expires_us / 1e6 - time.time() if self.expires_us else None

    def check(self) -> None:
        """Raises PermissionDenied when it is over."""
        left_s = self._left_s
        if self.ending.has_come:
            raise PermissionDenied(f"The token {self.name} was revoked.", suggestion="Use another one.")
        if left_s is not None and left_s <= 0:
            raise PermissionDenied(f"The token {self.name} has expired.", suggestion="Make another one.")
        if self.has_left():
            raise PermissionDenied("The program that this connection speaks for has ended.")

    def check_for(self, operation: Operation, agent: str) -> None:
        """Raises PermissionDenied unless it covers this. Without an agent it covers looking alone, whose
        answers contain its agents only.
        """
        self.check()
        whose = f"The token {self.name}" if self.name else "The gateway without a token"
        if operation not in self.scopes:
            raise PermissionDenied(
                f"{whose} does not cover this: it needs the scope {operation}."
                if operation in SCOPES
                else f"No token covers this: it needs org.lightagent1.{operation}.",
                suggestion="Run lactl as the user themselves, or use a token with that scope.",
            )
        if self.agents and agent not in self.agents and (agent or operation is not Operation.INSPECT):
            raise PermissionDenied(
                f"{whose} does not cover the agent {agent}." if agent else f"{whose} is for certain agents.",
                suggestion=f"It covers: {', '.join(sorted(self.agents))}.",
            )

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """A block that ends with the grant. Raises PermissionDenied then."""
        self.check()
        try:
            async with self.ending.cutting(self._left_s):
                yield
        except TimeoutError:
            self.check()
            raise
