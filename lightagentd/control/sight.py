"""A caller's permissions on a stream of events, checked again while it runs.

A stream may last for days, and polkit's verdict on a caller and an agent can change meanwhile. The operation
that streams owns its `Sight`, and asks it about each event.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from lightagentd.control.authz import Authority, Caller, is_yes
from lightagentd.errors import PermissionDenied
from lightagentd.events.model import Event
from lightagentd.host.users import called
from lightagentd.policy.operation import Operation

RIGHTS_S = 1.0
"""How long rights are taken for what they were."""


class Sight:
    """The permissions of a caller who was just admitted to inspect."""

    def __init__(self, authority: Authority, caller: Caller, agent: str) -> None:
        """`agent` is the one that they were admitted to inspect; empty for all."""
        self._authority, self._caller, self._agent = authority, caller, agent
        self._seen: dict[str, bool] = {}
        self._authenticated: bool | None = None
        """Whether they had to authenticate at the start: then they may see later what would need that."""
        self._until_s = 0.0

    async def sees(self, event: Event) -> bool:
        """Raises PermissionDenied when they may no longer see anything."""
        return await self.sees_of(event.agent, event.owner)

    async def sees_of(self, agent: str, owner: int | None) -> bool:
        """Like `sees`, for something about an agent that belongs to a uid, or to nobody."""
        if self._caller.is_administrator:
            return True
        if asyncio.get_running_loop().time() >= self._until_s:
            await self._look_again(agent)
        elif agent not in self._seen:
            await self._look_at({agent})
        viewer = self._caller.viewer
        return self._seen[agent] and (viewer is None or owner in (None, viewer))

    async def _look_again(self, agent: str) -> None:
        await self._look_at({self._agent, agent, *self._seen})
        if not self._seen[self._agent]:
            raise PermissionDenied(
                f"{called(self._caller.uid)} may not see this any more (it needs "
                f"org.lightagent1.{Operation.INSPECT}).",
                suggestion="Ask an administrator, or run the command with sudo.",
            )
        sees_all = await self._authority.may(self._caller, Operation.ADMINISTER)
        self._caller = replace(self._caller, sees_all=sees_all)
        self._until_s = asyncio.get_running_loop().time() + RIGHTS_S

    async def _look_at(self, agents: set[str]) -> None:
        verdicts = await self._authority.verdicts(
            self._caller, Operation.INSPECT, agents - {""} | {self._agent}
        )
        if self._authenticated is None:
            self._authenticated = verdicts[self._agent] is None
        self._seen |= {name: is_yes(verdict, self._authenticated) for name, verdict in verdicts.items()}
        self._seen.setdefault("", True)  # about no agent: their admission covers that
