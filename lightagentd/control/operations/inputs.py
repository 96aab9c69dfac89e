"""The operations on what agents ask people, a part of `Service`.

Whoever may see a session may see what is asked in it, and answer if he may prompt its agent: the owner, and
administrators. To others the question does not exist.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations
from lightagentd.policy.questions.inputs import Input, Inputs, check_answer, not_found

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry

LISTED_CHARS, SHORT_CHARS = 1 << 20, 1 << 10
"""How long the texts of a list may be in all, and those that are in it in any case."""
_LEFT_OUT = "(Left out of this list; lactl inputs show has it.)"


class InputOperations(Operations):
    """List, look at and answer."""

    _registry: Registry

    async def list_inputs(self, caller: Caller, *, every: bool) -> list[api.Input]:
        """Those that wait, oldest first; with `every` those that are over, too.

        What is long is left out of a long list, so that no question can keep others from being seen.
        """
        caller = await self._admit(caller, Operation.INSPECT)
        await self._inputs.expire()
        kept = self._inputs
        found = await asyncio.to_thread(kept.all) if every else kept.open_ones()
        found = [one for one in found if _sees(caller, one)]
        agents = await self._inspectable(caller, {one.agent for one in found})
        listed = [_info(one) for one in found if one.agent in agents]
        room = LISTED_CHARS
        for at, one in enumerate(listed):
            size = len(one.question) + len(one.answer) + sum(map(len, one.choices))
            if size > SHORT_CHARS and size > room:
                listed[at] = replace(one, question=_LEFT_OUT, choices=[], answer="")
            else:
                room -= size
        return listed

    async def get_input(self, caller: Caller, input_id: str) -> api.Input:
        _, found = await self._admit_to_input(caller, input_id)
        return _info(found)

    async def answer_input(self, caller: Caller, input_id: str, text: str) -> api.Input:
        caller, found = await self._admit_to_input(caller, input_id)
        caller = await self._admit(caller, Operation.PROMPT, agent=found.agent)
        self._registry.panic.check()
        check_answer(text)
        return _info(await self._inputs.answer(input_id, text, uid=caller.uid))

    async def _admit_to_input(self, caller: Caller, input_id: str) -> tuple[Caller, Input]:
        """For a question that the caller may look at. Raises InputNotFound, PermissionDenied."""
        caller = await self._admit(caller, Operation.INSPECT)
        found = self._inputs.get(input_id)
        if not _sees(caller, found):
            raise not_found(input_id)
        return await self._admit(caller, Operation.INSPECT, agent=found.agent), found

    @property
    def _inputs(self) -> Inputs:
        return self._registry.inputs


def _sees(caller: Caller, found: Input) -> bool:
    return caller.viewer is None or found.owner == caller.viewer


def _info(found: Input) -> api.Input:
    return api.Input(**found.to_dict())
