"""What every group of the `Service`'s operations begins with: may the caller do this?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.registry import Registry
from lightagentd.agents.sessions.session import Session
from lightagentd.api.turn_events import ApprovalRequested
from lightagentd.control.authz import Caller, Operation
from lightagentd.errors import InvalidArgument, ShuttingDown
from lightagentd.events.context import act_for
from lightagentd.events.history import History

if TYPE_CHECKING:
    from lightagentd.daemon.daemon import Daemon

MAX_LIMIT = 1000
"""The most events or messages that one answer holds; a stream has no such limit."""


class Operations:
    """A group of operations; `Service` is made of them."""

    _daemon: Daemon
    _registry: Registry
    _history: History

    async def _admit(self, caller: Caller, operation: Operation, *, agent: str = "") -> Caller:
        """The caller with what he may see: what the running task does from here on is on his word.

        Raises PermissionDenied.
        """
        admitted = await self._daemon.authority.admit(caller, operation, agent=agent)
        act_for(caller.uid)
        return admitted

    async def _inspectable(self, caller: Caller, agents: Iterable[str]) -> frozenset[str]:
        """Those of the agents that may be in an answer to a caller who was admitted."""
        return await self._daemon.authority.inspectable(caller, agents)

    async def _readable(self, caller: Caller, agent: str = "") -> frozenset[str] | None:
        """The agents whose events may be in an answer: for `Filter`. None where nothing is to be left out:
        root sees all, and who asks about one agent was admitted to look at that.
        """
        if caller.is_administrator or agent:
            return None
        return await self._inspectable(caller, await asyncio.to_thread(self._history.agents))

    async def _may_approve(self, caller: Caller, agent: str) -> bool:
        """Whether a caller may answer yes to what this agent asks, without being asked himself."""
        return await self._daemon.authority.may(caller, Operation.APPROVE, agent=agent)

    async def _for_caller(self, event: api.TurnEvent, caller: Caller, agent: str) -> api.TurnEvent:
        """A turn event as this caller gets it: a question says whether they may answer it."""
        if event["type"] != ApprovalRequested.type:
            return event
        return {**event, "may_answer": await self._may_approve(caller, agent)}

    def _visible(self, caller: Caller, agent: Agent) -> list[Session]:
        viewer = caller.viewer
        return [
            one
            for one in agent.sessions.values()
            if not one.deleted and (viewer is None or one.record.owner == viewer)
        ]

    def _check_open(self) -> None:
        if self._daemon.draining:
            raise ShuttingDown("The daemon is stopping and takes no new work.", suggestion="Try again later.")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be from 1 to {MAX_LIMIT}.", field="limit")
