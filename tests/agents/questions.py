"""What the tests of questions to people share: asking one, waiting for it, and what was stored of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lightagentd.agents.sessions.session import Session
from lightagentd.agents.turn import Turn
from lightagentd.api import TurnEvent
from lightagentd.policy.questions.inputs import Input
from tests.agents.scripted import Scripted, until, watch
from tests.scripted_model import Stream, call

QUESTION = "Which disk may I look at?"


def ask(question: str = QUESTION, *, call_id: str = "c1", **more: Any) -> Stream:
    """A model's answer that asks a person."""
    return call("human_ask", {"question": question, **more}, call_id=call_id)


async def question(test: Scripted, count: int = 1, *, after: str = "") -> Input:
    """Wait until so many questions are stored and their turns wait; gives the newest. `after` is one that is
    about to be over.
    """
    questions = test.daemon.registry.shared.asked.inputs.questions
    await until(lambda: [one.id for one in questions.open_ones()][-1:] not in ([], [after]))
    await until(lambda: len(questions.open_ones()) == count)
    found = questions.open_ones()

    def all_wait() -> bool:
        running = [session.running for session in test.agent.sessions.values() if session.running]
        return {one.id for one in found} <= {turn.waits_for for turn in running if turn.is_waiting}

    await until(all_wait)
    return found[-1]


@asynccontextmanager
async def prompted(
    test: Scripted, session: Session
) -> AsyncIterator[tuple[Turn, asyncio.Task[list[TurnEvent]]]]:
    """A turn, and the task that collects its events while the test does other things."""
    turn = await test.agent.prompt(session, "go")
    task = asyncio.create_task(watch(turn))
    try:
        yield turn, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kinds(test: Scripted) -> list[str]:
    """The types of the stored events of questions, in their order."""
    return [event.type for event in test.stored(topic="input")]


def ends(test: Scripted) -> list[dict[str, Any]]:
    """How the calls that asked ended, as it is stored."""
    return [event.data or {} for event in test.stored(topic="tool.human")]


def intents(test: Scripted) -> list[dict[str, Any]]:
    """The stored intents of calls that ask."""
    found = [event for event in test.stored(topic="agent.tool_dispatch") if event.type == "intent"]
    return [event.data for event in found if event.data and event.data["tool"] == "human"]
