"""A call that waits for a person, in this run of the daemon or an earlier one: an approval or an input."""

from __future__ import annotations

from typing import TypeVar

from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.question import Question, State
from lightagentd.policy.questions.questions import Questions

T = TypeVar("T", bound=Question)


async def answer_to(store: Questions[T], question_id: str, origin: Origin, stream: TurnStream) -> T:
    """Wait for the answer to a stored question, and tell the watchers of both. The turn's clock stops
    meanwhile.

    Raises the errors of the store's `wait`.
    """
    asked = store.get(question_id)
    # An input that was answered before the restart is told of all the same: the model's result shows it.
    told = isinstance(asked, Input)
    if asked.state is State.WAITING:
        told = True
        stream.emit(asked.request())
        origin.tell_above(asked.request())
    try:
        with origin.waiting(question_id):
            return await store.wait(question_id)
    finally:
        if told and (now := store.find(question_id)) and now.state is not State.WAITING:
            stream.emit(now.outcome())
            origin.tell_above(now.outcome())
