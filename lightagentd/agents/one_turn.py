"""One turn, from its first step to its stored end; the agent runs it, in a task of the turn's own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lightagentd.agents.parts import AgentParts
from lightagentd.agents.planning.plans import Plans
from lightagentd.agents.sessions.session import Session
from lightagentd.agents.turn import Turn, final_error
from lightagentd.api import turn_events
from lightagentd.errors import LightagentError, TimedOut
from lightagentd.events.types.agent import TurnFailed
from lightagentd.events.types.session import TurnDone
from lightagentd.policy.questions.questions import Suspended


async def take_steps(session: Session, turn: Turn, parts: AgentParts, plans: Plans) -> None:
    """Begin it, or go on where it waited, and take its steps within its time.

    Raises what the steps raise, and TimedOut.
    """
    if turn.taken_up is None:
        await session.begin(turn)
    left_s = parts.turn_timeout_s if turn.taken_up is None else turn.taken_up.left_s
    turn.stream.emit(turn_events.Started(model=parts.clients[0].name))
    try:
        async with (
            asyncio.timeout(left_s) as timer,
            contextlib.aclosing(turn.steps(parts)) as steps,
        ):
            turn.timer = timer
            async for step in steps:
                await turn.hand_over(step)
            await plans.check_task(turn, parts)
    except TimeoutError:
        if not timer.expired():
            raise
        raise TimedOut(f"The turn did not end within {parts.turn_timeout_s:g} seconds.") from None


async def end_turn(
    session: Session, turn: Turn, error: BaseException | None, parts: AgentParts, plans: Plans
) -> None:
    """Store and tell how the turn ended. Its last event goes out even when nothing can be stored."""
    figures = {"steps": turn.steps_done, "duration_ms": turn.duration_ms}
    failure = None if error is None else final_error(error, cancelled=turn.cancelled)
    used, counted = turn.figures()
    stored = {**figures, **used, **({"unattended": True} if turn.unattended else {})}
    if turn.cancelled_because is not None and isinstance(error, asyncio.CancelledError):
        failure = turn.cancelled_because
    if failure is None:
        outcome = TurnDone(**stored).event()
    else:
        data: dict[str, Any] = {**failure.to_dict(), **stored}
        outcome = TurnFailed(**data).event()
    try:
        events, changes = parts.dispatcher.asked.lapse(turn.waits_for, "Its turn ended.")
        async with plans.ending(session, turn, failure) as planned:
            events = [*events, *planned[0]]
            changes = [*changes, *planned[1], *counted]
            await session.end(turn, outcome, lapsed=(events, changes))
    except LightagentError as err:
        failure = err
    except BaseException as err:
        failure = final_error(err, cancelled=False)
        raise
    finally:
        turn.finish(failure, figures)


def stays(turn: Turn, error: BaseException | None, parts: AgentParts, *, failed: bool) -> bool:
    """Whether a turn that was stopped stays stored as it is, with the question that it waits for.

    `failed` says that its agent is, and will be started again.
    """
    asked = parts.dispatcher.asked
    return (
        isinstance(error, Suspended | asyncio.CancelledError)
        and not turn.cancelled
        and turn.handed is None
        and asked.is_open(turn.waits_for)
        and (asked.suspended or failed)
    )
