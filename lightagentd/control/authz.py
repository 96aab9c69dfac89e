"""Who may call what. The caller comes from the kernel or the bus, never from an argument.

Root and the daemon's own user may do everything. polkit decides about all other callers, action by action
(`org.lightagent1.inspect` and so on). Where polkit does not run, members of the socket's group may inspect
and prompt. The `Authority` belongs to the daemon, and every operation of the `Service` asks it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from lightagentd.control.grants import GATEWAY_USER, Grant
from lightagentd.errors import AuthorizationRequired, PermissionDenied
from lightagentd.host.peer import Passed, PeerProcess
from lightagentd.host.users import called, user_name
from lightagentd.policy.operation import Operation
from lightagentd.varlink.interaction import INTERACTION as INTERACTION

FOR_GROUP = frozenset({Operation.INSPECT, Operation.PROMPT})


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A peer, identified by the kernel when it connected, or by the bus.

    `groups` are the peer's groups at the time it connected. `bus_name` is its unique name on the bus, for a
    peer on the bus; `process` is its process, for a peer on the control socket. `sees_all` says
    whether they see what belongs to others, and is None until `Authority.viewing` has found that out.
    `grant` narrows what is done in their name. `connection` is their own, where that can speak for others.
    """

    uid: int
    gid: int
    pid: int
    groups: frozenset[int] = frozenset()
    bus_name: str = ""
    process: PeerProcess | None = field(default=None, compare=False, repr=False)
    sees_all: bool | None = None
    grant: Grant | None = None
    connection: Connection | None = field(default=None, compare=False, repr=False)

    @property
    def is_administrator(self) -> bool:
        return self.grant is None and self._is_privileged

    @property
    def is_gateway(self) -> bool:
        """Whether it is the gateway itself, in nobody's name."""
        return self.grant is None and user_name(self.uid) == GATEWAY_USER

    @property
    def may_authenticate(self) -> bool:
        return self.is_gateway or self.is_administrator

    @property
    def _is_privileged(self) -> bool:
        return self.uid in (0, os.geteuid())

    @property
    def viewer(self) -> int | None:
        """The uid whose sessions this caller may see, as far as that is known; None for all."""
        return None if self.sees_all or self.is_administrator else self.uid


class Connection:
    """Who speaks on one connection: its peer, until that authenticates (`grants`)."""

    def __init__(self, peer: Caller, passed: Passed) -> None:
        self.caller = replace(peer, connection=self)
        self.passed = passed
        passed.wanted = self.caller.may_authenticate

    def become(self, caller: Caller) -> None:
        """From here on, whatever comes is asked by this caller, who cannot authenticate again. Raises
        LimitExceeded.
        """
        self.passed.count_for(caller.uid)
        self.passed.close()
        if caller.process is not self.caller.process:
            self.passed.process = caller.process
        self.caller = caller


class Decider(Protocol):
    """Who decides about callers other than root and the daemon's own user: polkit, or the group rule."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        """Whether the caller may do it; None when this decider is not available. With `ask`, it may ask a
        person. Raises PermissionDenied to refuse with a reason of its own.
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
    """Asks the deciders in their order; the first available one decides."""

    def __init__(self, *deciders: Decider) -> None:
        self._deciders = deciders

    async def admit(self, caller: Caller, operation: Operation, *, agent: str = "") -> Caller:
        """The caller. Raises PermissionDenied when they may not do this."""
        if caller.is_administrator:
            return caller
        if not await self._allows(caller, operation, agent=agent, ask=True):
            raise PermissionDenied(
                f"{called(caller.uid)} may not do this (it needs org.lightagent1.{operation}).",
                suggestion="Ask an administrator, or run the command with sudo.",
            )
        return replace(caller, sees_all=True) if operation is Operation.ADMINISTER else caller

    async def viewing(self, caller: Caller) -> Caller:
        """An admitted caller, with `sees_all` set: those who may administer see everybody's sessions."""
        if caller.is_administrator or caller.sees_all is not None:
            return caller
        return replace(caller, sees_all=await self.may(caller, Operation.ADMINISTER))

    async def may(self, caller: Caller, operation: Operation, *, agent: str = "") -> bool:
        """Whether the caller may do this. Nobody is asked for a password."""
        if caller.is_administrator:
            return True
        try:
            return await self._allows(caller, operation, agent=agent, ask=False)
        except PermissionDenied:
            return False

    async def may_each(self, caller: Caller, operation: Operation, agents: Iterable[str]) -> frozenset[str]:
        """The agents for which the caller may do this. Nobody is asked for a password."""
        verdicts = await self.verdicts(caller, operation, agents)
        return frozenset(agent for agent, verdict in verdicts.items() if verdict)

    async def inspectable(self, caller: Caller, agents: Iterable[str]) -> frozenset[str]:
        """The agents that an admitted caller may inspect; an answer about several agents contains no others.
        Nobody is asked for a password.

        Callers who authenticated to inspect everything may also inspect the agents that would need the same
        authentication again: polkit keeps an authentication for the action, whatever its details are.
        """
        verdicts = await self.verdicts(caller, Operation.INSPECT, agents)
        authenticated = False
        if None in verdicts.values():
            authenticated = (await self.verdicts(caller, Operation.INSPECT, [""]))[""] is None
        return frozenset(agent for agent, verdict in verdicts.items() if is_yes(verdict, authenticated))

    async def verdicts(
        self, caller: Caller, operation: Operation, agents: Iterable[str]
    ) -> Mapping[str, bool | None]:
        """Whether the caller may do this, for each agent and for the empty name (no agent); None when they
        must authenticate first. All checks run at once, and nobody is asked for a password.
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
        """Raises PermissionDenied to refuse with a reason."""
        if caller.is_gateway:
            raise PermissionDenied(
                "The gateway may do nothing in its own name.",
                suggestion="It must call org.lightagent1.Manager.Authenticate first.",
            )
        if caller.grant is not None:
            caller.grant.check_for(operation, agent)
            if caller._is_privileged:
                return True
            ask = False  # nobody sits there
        for decider in self._deciders:
            verdict = await decider.allows(caller, operation, agent=agent, ask=ask)
            if verdict is not None:
                return verdict
        return False


def is_yes(verdict: bool | None, authenticated: bool) -> bool:
    """Whether a verdict allows a caller to look, given whether they have authenticated."""
    return authenticated if verdict is None else verdict
