"""Runs calls of one answer at once, and has their results stored in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lightagentd.agents.tool_calls.results import Outcome
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import StorageError
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.policy.questions.questions import Suspended

MOST = 8
"""So many calls of one turn run at once."""
ASKING = (("agent", "ask"), ("skill", "activate"))
"""The built-in actions that make a child and wait for it."""
WAITING = (*ASKING, ("agent", "wait"))
_WORST_FIRST = (StorageError, Suspended, BaseException)


@dataclass(kw_only=True)
class Order:
    """The place of a call among those that run at once."""

    position: int
    """In the model's answer, from 1; 0 for a call that runs alone."""
    before_stored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the result of the call before it is stored."""
    has_others: bool = False
    """Whether others run beside it."""

    async def comes(self) -> None:
        """Wait until it is this call's turn to store its result."""
        if self.position:
            await self.before_stored.wait()


ALONE = Order(position=0)


Run = Callable[[], Awaitable[Outcome]]


class Group:
    """The calls of an answer: each is added, and those that were added run at once."""

    def __init__(self, told: Callable[[Message], None]) -> None:
        """`told` takes the results, in order."""
        self.outcomes: list[Outcome] = []
        self._told = told
        self._calls: list[tuple[ToolCall, Order, Run]] = []

    def add(self, call: ToolCall, order: Order, run: Run) -> None:
        self._calls.append((call, order, run))

    def has_like(self, call: ToolCall) -> bool:
        """Whether the same call is among those that were added."""
        return any((one.name, one.arguments) == (call.name, call.arguments) for one, _, _ in self._calls)

    async def run(self) -> None:
        """Run what was added. When a call raises, or the caller is cancelled, the others are cancelled, and
        have ended when this raises.
        """
        calls = [(order, run) for _, order, run in self._calls]
        self._calls.clear()
        if not calls:
            return
        calls[0][0].before_stored.set()
        for order, _ in calls:
            order.has_others = len(calls) > 1
        found = [await calls[0][1]()] if len(calls) == 1 else await self._at_once(calls)
        self.outcomes += found
        for outcome in found:
            self._told(outcome.message())

    async def _at_once(self, calls: Sequence[tuple[Order, Run]]) -> list[Outcome]:
        room = asyncio.Semaphore(MOST)

        async def one(run: Run, following: Order | None) -> Outcome:
            async with room:
                outcome = await run()
            if following is not None:
                following.before_stored.set()
            return outcome

        orders = [order for order, _ in calls[1:]]
        tasks = [
            asyncio.create_task(one(run, following))
            for (_, run), following in zip(calls, [*orders, None], strict=True)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await uninterrupted(asyncio.wait(tasks))
        errors = [task.exception() for task in tasks if not task.cancelled()]
        for kind in _WORST_FIRST:
            for error in errors:
                if isinstance(error, kind):
                    raise error
        return [task.result() for task in tasks]
