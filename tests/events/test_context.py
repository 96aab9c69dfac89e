"""On whose behalf: what inherits it, what must not, and what a worker gets of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from lightagentd.events.context import (
    EventContext,
    act_for,
    current_context,
    own_task,
    tell_whose,
    using,
    within,
)

WHOLE = EventContext(
    agent="ops",
    session="ses_1",
    owner=1000,
    caller=0,
    request_id="req_1",
    trace_id="trace_1",
    correlation_id="ticket 7",
)


async def seen() -> EventContext:
    await asyncio.sleep(0)
    return current_context()


async def test_tasks_and_threads_inherit_it_and_a_task_of_the_daemons_own_does_not() -> None:
    with using(WHOLE):
        task = asyncio.create_task(seen())
        own = own_task(seen(), name="own")
        assert await asyncio.to_thread(current_context) == WHOLE
    assert await task == WHOLE
    assert await own == EventContext()
    assert own.get_name() == "own"


async def test_what_an_own_task_sets_stays_in_it() -> None:
    async def acts() -> EventContext:
        act_for(7)
        return await seen()

    with within(agent="ops"):
        assert (await own_task(acts(), name="own")).caller == 7
        assert current_context() == EventContext(agent="ops")


async def test_an_operation_is_on_the_word_of_its_caller_from_then_on() -> None:
    async def operation(uid: int) -> tuple[EventContext, EventContext]:
        act_for(uid)
        return await seen(), await asyncio.create_task(seen())

    first, second = await asyncio.gather(operation(1), operation(2))
    assert [one.caller for one in (*first, *second)] == [1, 1, 2, 2]
    assert current_context().caller is None


def test_a_worker_gets_all_of_it_that_a_call_does_not_name_itself() -> None:
    wire = WHOLE.to_wire()
    assert EventContext.from_wire(wire, agent="ops", session="ses_1", owner=1000) == WHOLE


@pytest.mark.parametrize(
    "wire", [None, [], "x", {}, {"caller": "0", "trace_id": 7}, {"caller": True, "request_id": None}]
)
def test_what_is_no_context_on_the_wire_is_an_empty_one(wire: Any) -> None:
    found = EventContext.from_wire(wire, agent="ops", session="", owner=5)
    assert found == EventContext(agent="ops", owner=5)


def test_a_log_line_says_whose_it_is() -> None:
    def line() -> str:
        record = logging.LogRecord("x", logging.INFO, __file__, 1, "said", None, None)
        assert tell_whose(record)
        return logging.Formatter("%(message)s%(whose)s").format(record)

    assert line() == "said"
    with within(agent="ops", caller=0, trace_id="trace_1"):
        assert line() == "said [agent=ops caller=0 trace_id=trace_1]"
