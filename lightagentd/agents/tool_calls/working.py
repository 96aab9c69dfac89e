"""Has a worker run a call, and asks a person for an action that raises `NeedsInput`.

The question is stored with the action's state, without secrets, so that any later run of the daemon can go on
with the answer. `run` owns the call, and decides whether it may go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.asking import ask
from lightagentd.agents.tool_calls.calls import Ready, whole
from lightagentd.agents.tool_calls.deciding import policy_calls
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.signing import sent
from lightagentd.agents.tool_calls.worker_replies import asked_of, event_of, result_of
from lightagentd.config.terms import Terms
from lightagentd.errors import (
    Cancelled,
    InputInvalid,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    TimedOut,
    ToolError,
)
from lightagentd.events.model import dump_json
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.question import State
from lightagentd.tool import Place
from lightagentd.worker.lanes import Checked
from lightagentd.worker.needs_input import Asked

QUESTIONS = 8
"""So many questions one call may ask, one after the other."""
REMOVED = "[removed: "
"""Begins what stands in the store in place of a secret (`Redactor`, `hide`)."""


async def checked_by(
    dispatcher: Dispatcher, origin: Origin, ready: Ready, *, preview: bool = False
) -> Checked:
    """The arguments of a call as its tool checks them, and a preview if it is wanted. Raises InvalidArgument,
    WorkerUnavailable, and the preview's errors.
    """
    if ready.action.place is Place.DAEMON:
        return dispatcher.builtins.check(ready.action.tool, ready.action.name, ready.args)
    return await dispatcher.pool.check(
        origin.agent.name,
        ready.effect,
        ready.action.tool,
        ready.action.name,
        ready.args,
        session=origin.session_id,
        owner=origin.worker_owner,
        place=ready.action.place,
        preview=preview,
    )


async def previewed(dispatcher: Dispatcher, origin: Origin, ready: Ready) -> tuple[str, dict[str, Any]]:
    """The preview of a call, and the facts behind it; the arguments if the tool has no preview."""
    try:
        checked = await checked_by(dispatcher, origin, ready, preview=True)
    except (ToolError, TimedOut, PermissionDenied) as err:
        return f"There is no preview: {err.message}", {}
    if whole(checked, ready) != ready.args:
        raise InvalidArgument(f"The arguments of {ready.action.function} do not stay what they are.")
    return checked.preview, checked.expected


async def work(
    dispatcher: Dispatcher,
    origin: Origin,
    ready: Ready,
    stream: TurnStream,
    expected: dict[str, Any],
    resumed: dict[str, Any] | None,
    granted: Approval | None,
    terms: Terms | None,
) -> tuple[str, dict[str, Any]] | Asked:
    """Have a worker run a call, or go on with it; gives its output and metadata, or what it asks a person.
    `expected` is what an approval's preview rested on, `terms` those of its change.

    Raises the call's errors, and OutcomeUnknown.
    """
    wanted = replace(ready.wanted(origin, dispatcher.limits.call_timeout_s), resumed=resumed)
    judged = policy_calls(ready, origin, has_change=dispatcher.pool.has_change)
    given = await dispatcher.give(judged, owner=wanted.owner)
    wanted = replace(wanted, **sent(origin, wanted.tool, expected, given, granted, terms))
    try:
        async with contextlib.aclosing(dispatcher.pool.call(wanted)) as events:
            async for event in events:
                kind = event["kind"]
                if kind == "output":
                    stream.output(wanted.call_id, event["stream"], event["text"])
                elif kind == "event":
                    await dispatcher.history.append(event_of(wanted, event))
                elif kind == "result":
                    return result_of(wanted, event)
                elif kind == "asked":
                    return asked_of(wanted, event)
    finally:
        stream.end_output(wanted.call_id)
    raise OutcomeUnknown(f"The worker gave no result for {wanted.tool}.{wanted.action}.")


async def ask_for(
    dispatcher: Dispatcher,
    origin: Origin,
    ready: Ready,
    stream: TurnStream,
    granted: Approval | None,
    asked: Asked,
    *,
    after: Input | None,
) -> Input:
    """Ask a person what an action asks, after an earlier question of the same call, and wait for the answer.

    Raises InputInvalid after too many questions, and the errors of `ask`.
    """
    number = 1 if after is None else after.number + 1
    if number > QUESTIONS:
        raise InputInvalid(
            f"{ready.name} asked {QUESTIONS} questions in one call, and may not ask another one.",
            suggestion="The tool's author has to mend that. Go on without this call.",
        )
    redactor, saved = dispatcher.history.redactor, {"state": asked.state}
    if redactor.suspects(dump_json(saved)):
        saved = await asyncio.to_thread(redactor.value, saved)
    return await ask(
        dispatcher.asked.inputs,
        origin,
        stream,
        ready.name,
        call_id=ready.call_id,
        question=asked.question,
        choices=asked.choices,
        timeout_s=None,
        tool=ready.action.tool,
        action=ready.action.name,
        effect=ready.effect.value,
        approval=granted.id if granted is not None else "",
        number=number,
        saved=saved,
    )


def check_answered(found: Input) -> None:
    """Raises TimedOut and Cancelled for a question without an answer, with which no call goes on, and
    InputNotFound for a damaged record.
    """
    name = f"{found.tool}.{found.action}"
    if found.state is State.EXPIRED:
        span_s = (found.expires_us - found.created_us) / 1_000_000
        raise TimedOut(
            f"Nobody answered the question of {name} within {span_s:g} seconds, so it does not go on.",
            suggestion="Say in your final answer what it asked; what it had done until then stays done.",
        )
    if found.state is not State.ANSWERED:
        raise Cancelled(f"The question of {name} was dropped, so it does not go on.")
    if "state" not in found.saved:
        raise Input.not_found(found.id)


def check_whole(call: ToolCall) -> None:
    """Raises Cancelled for a stored call whose original arguments are lost: policy could not judge it."""
    if REMOVED in call.arguments:
        raise Cancelled(
            "The call does not go on. The daemon was started again meanwhile, and its arguments held a"
            " secret, which is not stored.",
            suggestion="Look at what it did, and ask for it again if it is still wanted.",
        )
