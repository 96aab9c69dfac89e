"""A call that waits for a person, in this run of the daemon or an earlier one: an approval or an input."""

from __future__ import annotations

from typing import Any, TypeVar

from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.errors import Refused
from lightagentd.events.model import current_context
from lightagentd.policy.questions.inputs import Input, Inputs
from lightagentd.policy.questions.question import Question, State
from lightagentd.policy.questions.questions import Questions, Stored

T = TypeVar("T", bound=Question)


async def ask(inputs: Inputs, origin: Origin, stream: TurnStream, name: str, **question: Any) -> Input:
    """Ask the person whose session it is, for the call of `name`, and wait for the answer. `question` has the
    fields of `Inputs.new` that `origin` does not know.

    Raises Refused where nobody can be asked, LimitExceeded, StorageError, and the errors of `answer_to`.
    """
    if origin.turn is None:
        raise Refused(
            f"{name} asks in the middle of a turn, and this call belongs to none.",
            suggestion=f"Prompt the agent {origin.agent.name}, so that it can ask.",
        )
    if not origin.can_ask:
        raise Refused(
            "Nobody is there to be asked: this turn runs unattended.",
            suggestion="Say in your final answer what you would have asked, and what you left undone.",
        )
    if origin.above is not None:
        question["question"] = f"{origin.chain}: {question['question']}"
    asked = inputs.new(
        agent=origin.agent.name,
        session=origin.session_id,
        owner=origin.owner,
        trace_id=current_context().trace_id,
        **question,
    )
    await inputs.questions.ask(asked, *origin.asking(asked.id), changes=origin.asks(asked.id))
    return await answer_to(inputs.questions, asked.id, origin, stream)


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


def asks(inputs: Inputs, origin: Origin, call_id: str) -> bool:
    """Whether a question of a call of its own to a person is open."""
    turn, questions = origin.turn, inputs.questions
    return (
        turn is not None
        and questions.is_open(turn.waits_for)
        and (questions.get(turn.waits_for).call_id == call_id)
    )


def taken(inputs: Inputs, origin: Origin, call_id: str) -> Stored:
    """What to store with the result of a call that asked a person, or children: the turn no longer waits."""
    if origin.turn is None or not asks(inputs, origin, call_id):
        return [], origin.settled()
    lapsed, changes = inputs.taken(origin.turn.waits_for)
    return lapsed, [*changes, *origin.running()]
