"""Who may call what. The caller comes from the kernel or the bus, never from an argument.

Root and the daemon's own user may do everything. Of others polkit decides, action by action
(`org.lightagent1.inspect` and so on); where it does not run, members of the socket's group may inspect and
prompt. The `Authority` belongs to the daemon, and every operation of the `Service` asks it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from lightagentd.errors import AuthorizationRequired, PermissionDenied
from lightagentd.host.peer import PeerProcess
from lightagentd.varlink.interaction import INTERACTION as INTERACTION


class Operation(StrEnum):
    """What polkit calls an action, without the prefix `org.lightagent1.`."""

    INSPECT = "inspect"
    PROMPT = "prompt"
    APPROVE = "approve"
    MANAGE_AGENTS = "manage-agents"
    ADMINISTER = "administer"


FOR_GROUP = frozenset({Operation.INSPECT, Operation.PROMPT})


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A peer, as the kernel named it when it connected, or as the bus names it.

    `groups` are those that it was in when it connected, `bus_name` its unique name on the bus, if it came
    over that, and `process` its process, if it came over the control socket. `sees_all` is for
    `Authority.admit` to set.
    """

    uid: int
    gid: int
    pid: int
    groups: frozenset[int] = frozenset()
    bus_name: str = ""
    process: PeerProcess | None = field(default=None, compare=False, repr=False)
    sees_all: bool = False

    @property
    def is_administrator(self) -> bool:
        return self.uid in (0, os.geteuid())

    @property
    def viewer(self) -> int | None:
        """The uid whose sessions this caller may see; None for all."""
        return None if self.sees_all or self.is_administrator else self.uid


class Decider(Protocol):
    """Who decides about callers other than root and the daemon's own user: polkit, or the group rule."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        """Whether the caller may do it; None when this decider is not there now. With `ask`, a person may be
        asked. Raises PermissionDenied to refuse with a reason of its own.
        """


class GroupRule:
    """Members of one group may inspect and prompt; without such a group nobody may."""

    def __init__(self, group: str) -> None:
        self._group = group

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:  # noqa: ARG002
        if operation not in FOR_GROUP:
            return False
        with contextlib.suppress(KeyError):
            return grp.getgrnam(self._group).gr_gid in caller.groups | {caller.gid}
        return False


class Authority:
    """Asks the deciders in their order; the first that is there decides."""

    def __init__(self, *deciders: Decider) -> None:
        self._deciders = deciders

    async def admit(self, caller: Caller, operation: Operation, *, agent: str = "") -> Caller:
        """The caller, with what they may see. Raises PermissionDenied when they may not do this.

        Whoever may administer sees everybody's sessions, like root.
        """
        if caller.is_administrator:
            return caller
        if not await self._allows(caller, operation, agent=agent, ask=True):
            raise PermissionDenied(
                f"The user with uid {caller.uid} may not do this (it needs org.lightagent1.{operation}).",
                suggestion="Ask an administrator, or run the command with sudo.",
            )
        sees_all = operation is Operation.ADMINISTER or await self.may(caller, Operation.ADMINISTER)
        return replace(caller, sees_all=sees_all)

    async def may(self, caller: Caller, operation: Operation, *, agent: str = "") -> bool:
        """Whether the caller may do this without anybody being asked."""
        if caller.is_administrator:
            return True
        try:
            return await self._allows(caller, operation, agent=agent, ask=False)
        except PermissionDenied:
            return False

    async def may_each(self, caller: Caller, operation: Operation, agents: Iterable[str]) -> frozenset[str]:
        """For which of the agents the caller may do this without anybody being asked."""
        verdicts = await self.verdicts(caller, operation, agents)
        return frozenset(agent for agent, verdict in verdicts.items() if verdict)

    async def inspectable(self, caller: Caller, agents: Iterable[str]) -> frozenset[str]:
        """Those of the agents that a caller who was just admitted may look at: an answer about several agents
        has no more than these. Nobody is asked for it.

        Callers who had to authenticate to look at all may also look at those for which they would have to
        authenticate again: polkit keeps an authentication for the action, whatever its details are.
        """
        verdicts = await self.verdicts(caller, Operation.INSPECT, {"", *agents})
        authenticated = verdicts[""] is None
        return frozenset(
            agent for agent, verdict in verdicts.items() if agent and is_yes(verdict, authenticated)
        )

    async def verdicts(
        self, caller: Caller, operation: Operation, agents: Iterable[str]
    ) -> Mapping[str, bool | None]:
        """For each agent, and for the empty name that stands for none, whether the caller may do this; None
        when they may once they have authenticated. All are asked about at once, nobody for a password.
        """
        names = set(agents)
        if caller.is_administrator:
            return dict.fromkeys(names, True)
        async with asyncio.TaskGroup() as asking:
            asked = {
                name: asking.create_task(self._verdict(caller, operation, name), name=f"may {name}")
                for name in names
            }
        return {name: task.result() for name, task in asked.items()}

    async def _verdict(self, caller: Caller, operation: Operation, agent: str) -> bool | None:
        """In a task of its own, because nobody shall be asked in it."""
        INTERACTION.set(False)
        try:
            return await self._allows(caller, operation, agent=agent, ask=True)
        except AuthorizationRequired:
            return None
        except PermissionDenied:
            return False

    async def _allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        for decider in self._deciders:
            verdict = await decider.allows(caller, operation, agent=agent, ask=ask)
            if verdict is not None:
                return verdict
        return False


def is_yes(verdict: bool | None, authenticated: bool) -> bool:
    """Whether a verdict lets somebody look who has authenticated for this, or not."""
    return authenticated if verdict is None else verdict
