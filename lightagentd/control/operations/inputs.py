"""The operations on the questions that agents ask people.

A caller who may see a session may see its questions, and answer them if they may prompt its agent: the owner,
and administrators. For others the question does not exist.
"""

from __future__ import annotations

from dataclasses import replace

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, leave_out_long, sees
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.policy.operation import Operation
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions import inputs as store

_LEFT_OUT = "(Left out of this list; lactl inputs show has it.)"


class Inputs(Operations, interface="org.lightagent1.Inputs"):
    """What agents ask people in the middle of a turn. Subscribe to the topic input to hear of it."""

    def __init__(self, access: Access, kept: store.Inputs, panic: Panic) -> None:
        self._access, self._kept, self._panic = access, kept, panic

    @method("List", returns="inputs")
    async def listed(self, caller: Caller, *, all_: bool = False) -> list[api.Input]:
        """The questions that wait and that the caller may see, oldest first; with all, also those that are
        over.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        found = await self._kept.questions.listed(closed=all_)
        found = [one for one in found if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in found})
        listed = [shown(api.Input, one) for one in found if one.agent in agents]
        sizes = [len(one.question) + len(one.answer) + sum(map(len, one.choices)) for one in listed]
        for at in leave_out_long(sizes):
            listed[at] = replace(listed[at], question=_LEFT_OUT, choices=[], answer="")
        return listed

    @method("Get", returns="input")
    async def get(self, caller: Caller, input_: str) -> api.Input:
        """One question."""
        found = await self._admit_to(caller, Operation.INSPECT, input_)
        return shown(api.Input, found)

    @method("Answer", returns="input")
    async def answer(self, caller: Caller, input_: str, text: str) -> api.Input:
        """Answer a question; where it has choices, with one of them. The first answer counts."""
        await self._admit_to(caller, Operation.PROMPT, input_)
        self._panic.check()
        store.check_answer(text)
        return shown(api.Input, await self._kept.answer(input_, text, uid=caller.uid))

    async def _admit_to(self, caller: Caller, operation: Operation, input_id: str) -> store.Input:
        """The question, if the caller may see it. Raises InputNotFound, PermissionDenied."""

        def find(caller: Caller) -> tuple[str, store.Input]:
            found = self._kept.questions.get(input_id)
            if not sees(caller, found.owner):
                raise store.not_found(input_id)
            return found.agent, found

        return (await self._access.admit_to_own(caller, operation, find))[1]
