"""Judges the answer of a turn whose prompt had a schema: the instruction, the check, and one repair.

An answer that does not fit stays in the conversation, followed by a message of the daemon's that says why.
The model is then asked once more; that is a step of the turn like every other. So it is with what was meant
as a call, and cannot be read as one (`llm.written_calls`): nobody is shown it, and nothing of it is stored,
because its arguments may be for the tool alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightagentd.agents.answers.schema import fitting, json_of
from lightagentd.agents.model_calls.call import Reply
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.api import turn_events
from lightagentd.errors import AnswerMisfit, ModelError
from lightagentd.llm.protocol import Message
from lightagentd.llm.text_calls import HOW_TO_CALL
from lightagentd.quoted import quoted

if TYPE_CHECKING:
    from lightagentd.agents.turn import Turn

_FORM = """\
# The form of your answer

A program reads your answer. Once you need no more calls, answer with one JSON value that fits this JSON
Schema, and with nothing else: no word before or behind it, and no code fence.

"""
REPAIR = "[From the daemon, not from your user.]"
"""Begins the message about an answer that does not fit."""
_UNREAD = "[A call that cannot be read.]"
"""Stands in the conversation where the model wrote one."""


def instruction(schema: dict[str, Any] | None) -> str:
    """The section of the system prompt; empty without a schema."""
    return "" if schema is None else _FORM + json.dumps(schema, ensure_ascii=False)


async def accept(turn: Turn, reply: Reply, *, is_last: bool) -> bool:
    """Take a final answer as that of the turn. False when it does not fit the schema, and the model was told:
    ask it once more. `is_last`: there is no step left for that.

    Raises AnswerMisfit, ModelError, StorageError.
    """
    turn.answer, turn.finish_reason = reply.text, reply.finish.reason
    if reply.finish.unread:
        await _tell_form(turn, reply, is_last=is_last)
        return False
    if turn.choice.schema is None:
        return True
    value, misfits = await fitting(turn.choice.schema, reply.text)
    if not misfits:
        turn.answer, turn.data = json_of(reply.text), value
        return True
    message, why = f"The answer of {reply.model} does not fit the schema", "; ".join(misfits)
    if turn.repaired or is_last:
        tried = "it is the second that does not" if turn.repaired else "there is no step left to repair it"
        # The journal has the message, which therefore says nothing of what is in the answer.
        raise AnswerMisfit(
            f"{message}, and {tried}.",
            suggestion="Say in the prompt what belongs where, choose another model, or a simpler schema."
            f" It does not fit because {why}.",
        )
    turn.repaired = True
    notice = turn_events.Notice(code=AnswerMisfit.code, message=f"{message}: {why}. It is asked once more.")
    turn.stream.emit(notice)
    await _tell(turn, _repair(misfits))
    return False


def said_in(reply: Reply) -> str:
    """What a reply says, as it is kept in the conversation."""
    return f"{reply.text.rstrip()}\n\n{_UNREAD}".lstrip() if reply.finish.unread else reply.text


async def _tell_form(turn: Turn, reply: Reply, *, is_last: bool) -> None:
    """Say how to write a call. Raises ModelError when that was said just before."""
    unread = turn.session.history.redactor.text(reply.finish.unread)
    if turn.told_form or is_last:
        raise ModelError(
            f"The model {reply.model} wrote a call that cannot be read: {unread}.",
            suggestion="Try again, or choose a model that takes functions.",
            reached=True,
        )
    turn.told_form = True
    message = f"The model {reply.model} wrote a call that cannot be read. It is told how to write it."
    turn.stream.emit(turn_events.Notice(code="call_unread", message=message))
    await _tell(turn, f"{REPAIR} Your call cannot be read: {unread}. {HOW_TO_CALL}")


async def _tell(turn: Turn, text: str) -> None:
    told = Message(role="user", content=text)
    await turn.session.history.append(message_event(told), changes=(turn.change("running"),))
    turn.session.messages.append(told)


def _repair(misfits: Sequence[str]) -> str:
    told = quoted("the check, with parts of your answer", "\n".join(misfits))
    return f"{REPAIR} Your answer does not fit the JSON Schema. Give it again: the JSON alone.\n\n{told}"
