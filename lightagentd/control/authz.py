"""Who may call what. The caller comes from the kernel or the bus, never from an argument.

Root and the daemon's own user may do everything. Of others polkit decides, action by action
(`org.lightagent1.inspect` and so on); where it does not run, members of the socket's group may inspect and
prompt. The `Authority` belongs to the daemon, and every operation of the `Service` asks it first.
"""

from __future__ import annotations

import contextlib
import grp
import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from lightagentd.errors import PermissionDenied
from lightagentd.interaction import INTERACTION as INTERACTION
from lightagentd.peer import PeerProcess


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
        """The caller, with what he may see. Raises PermissionDenied when he may not do this.

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

    async def _allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        for decider in self._deciders:
            verdict = await decider.allows(caller, operation, agent=agent, ask=ask)
            if verdict is not None:
                return verdict
        return False
