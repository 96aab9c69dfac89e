"""The loop of one turn, step by step, from its stored beginning to its stored end.

A step is one model call and its tool calls. Each step is stored before the next one begins. The agent's
supervision runs the loop, in the turn's own task. If a caller drives the turn (`Session.run`), they get each
step, and the next one begins when they have taken it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lightagentd.agents.model_calls.asking import Asking
from lightagentd.agents.model_calls.call import Reply, store_unwatched
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.storable import storable
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.repeats import Repeats
from lightagentd.agents.tool_calls.results import Before, Outcome, Results, message_event
from lightagentd.agents.tool_calls.run import ToolRun
from lightagentd.agents.tool_calls.working import REMOVED
from lightagentd.agents.turn import Resumed, Step, Turn, final_error, unanswered
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.errors import AgentNotRunning, LightagentError, StepLimit, TimedOut
from lightagentd.events.model import new_id, within
from lightagentd.events.types.agent import TurnFailed
from lightagentd.events.types.session import TurnDone
from lightagentd.llm.protocol import Message, ModelClient, ToolCall
from lightagentd.policy.questions.questions import Suspended

if TYPE_CHECKING:
    from lightagentd.agents.supervision import Supervision

_STILL_WAITING = AgentNotRunning(
    "The agent stopped while this turn waits for an approval, or for an answer.",
    suggestion="The turn goes on at its next start; lactl approvals and lactl inputs show the question.",
)


class TurnLoop:
    """Runs one turn, once."""

    def __init__(self, turn: Turn, parts: AgentParts, supervision: Supervision) -> None:
        self._turn = turn
        self._session = turn.session
        self._parts = parts
        self._shared = parts.shared
        self._supervision = supervision
        record = turn.session.record
        above = turn.above
        whose = Whose(
            agent=record.agent,
            owner=record.owner,
            session=record.id,
            trace_id=turn.trace_id,
            above=above.meter.whose if above is not None and above.meter is not None else None,
        )
        turn.origin = self._origin = Origin(
            agent=parts.definition,
            owner=record.owner,
            turn=turn,
            above=above.origin if above is not None else None,
        )
        wall_ms = turn.resumed.wall_ms if turn.resumed else 0
        self._meter = Meter(self._shared.ledger, whose, wall_ms=wall_ms)
        self._results = Results(turn.stream, self._shared.history.hurry)
        self._repeats = Repeats(turn.trace_id)

    async def run(self) -> None:
        """Run the turn to its stored end. An unexpected error fails the agent."""
        turn = self._turn
        turn.begun = True
        error: BaseException | None = None
        with self._session.context(turn):
            try:
                self._shared.panic.check()
                if turn.cancelled:
                    raise asyncio.CancelledError
                await self._take_steps()
            except (LightagentError, Suspended) as err:
                error = err
            except asyncio.CancelledError as err:
                error = err
                raise
            except Exception as err:  # noqa: BLE001 - the boundary of a turn: recorded, and the agent restarts
                error = err
                self._supervision.fail(err)
            finally:
                if isinstance(error, Suspended) and turn.handed is not None:
                    error = asyncio.CancelledError()  # the caller who drives the turn goes, and it with them
                turn.stays = self._stays(error)
                try:
                    if turn.children:
                        await uninterrupted(self._shared.children.end_of(turn, stays=turn.stays))
                finally:
                    if turn.stays:
                        self._session.forget_messages()
                        turn.finish(_STILL_WAITING, turn.figures)
                    else:
                        await uninterrupted(self._end(error))

    async def _take_steps(self) -> None:
        """Begin the turn, or continue where it waited, and take its steps within its time.

        Raises the errors of the steps, and TimedOut.
        """
        turn, parts = self._turn, self._parts
        if turn.resumed is None:
            await self._session.begin(turn)
        left_s = parts.turn_timeout_s if turn.resumed is None else turn.resumed.left_s
        left_s = min([left_s, *_left_above(turn)])
        turn.stream.emit(turn_events.Started(model=self._first_client().name))
        try:
            async with asyncio.timeout(left_s) as timer:
                turn.timer = timer
                await self._run_metered()
                await self._shared.plans.check_task(turn, parts)
        except TimeoutError:
            if not timer.expired():
                raise
            raise TimedOut(f"The turn did not end within {left_s:g} seconds.") from None

    def _stays(self, error: BaseException | None) -> bool:
        """Whether a stopped turn stays stored with the question for which it waits."""
        turn, asked = self._turn, self._shared.asked
        return (
            isinstance(error, Suspended | asyncio.CancelledError)
            and not turn.cancelled
            and turn.handed is None
            and asked.is_open(turn.waits_for)
            and (asked.suspended or (self._supervision.state == "failed" and turn.above is None))
        )

    async def _end(self, error: BaseException | None) -> None:
        """Store the turn's end and tell the watchers. Its last event goes out even when storing fails."""
        turn, session, shared = self._turn, self._session, self._shared
        figures = turn.figures
        failure = None if error is None else final_error(error, cancelled=turn.cancelled)
        counted = turn.meter.ending() if turn.meter is not None else []
        used = turn.meter.totals() if turn.meter is not None else {}
        stored = {**figures, **used, **({"unattended": True} if turn.unattended else {})}
        if turn.cancelled_because is not None and isinstance(error, asyncio.CancelledError):
            failure = turn.cancelled_because
        if failure is None:
            outcome = TurnDone(**stored).event()
        else:
            data: dict[str, Any] = {**failure.to_dict(), **stored}
            outcome = TurnFailed(**data).event()
        try:
            events, changes = shared.asked.lapse(turn.waits_for, "Its turn ended.")
            async with shared.plans.ending(session, turn, failure) as planned:
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

    # The steps

    async def _run_metered(self) -> None:
        """Raises StepLimit, CallLoop, ModelError, BudgetExceeded, ContextFull, and StorageError."""
        turn = self._turn
        turn.started = time.monotonic()
        turn.meter = self._meter
        asking = Asking(turn, self._parts, self._meter, self._results)
        self._meter.run()
        try:
            await self._run_steps(asking)
        finally:
            self._meter.stop()
            asking.close()
            await uninterrupted(self._results.settle())

    def _first_client(self) -> ModelClient:
        return self._parts.clients_for(self._session.record.model)[0]

    async def _run_steps(self, asking: Asking) -> None:
        turn, session, parts = self._turn, self._session, self._parts
        system = await parts.system_prompt(session)
        offer = await self._shared.offers.begin(
            session,
            parts.definition,
            parts.shared.content.toolbox,
            self._first_client(),
            change=self._shared.pool.has_change(parts.definition.name),
            max_tools=parts.limits.max_tools,
        )
        limit = parts.max_steps
        if turn.resumed is not None:
            await self._resume(turn.resumed)
        for number in range(turn.steps_done + 1, limit + 1):
            with within(request_id=new_id("req")) as context:
                reply = await asking.ask(system, offer.functions(session.messages))
                turn.steps_done = number
                outcomes = await self._act(reply)
            if not reply.calls:
                turn.answer = reply.text
            if turn.handed is not None:
                await self._results.settle()
                step = Step(
                    number=number,
                    request_id=context.request_id,
                    text=reply.text,
                    calls=reply.calls,
                    outcomes=outcomes,
                    usage=reply.usage,
                    final=not reply.calls,
                )
                turn.handed.put_nowait(step)
                await turn.handed.join()
            if not reply.calls:
                return
        raise StepLimit(
            f"The turn used all its {limit} steps without coming to an answer.",
            suggestion="Ask for less at once, or raise max_steps in the agent's limits.",
        )

    async def _act(self, reply: Reply) -> tuple[Outcome, ...]:
        """Store the model's message, then run its calls one by one, in order."""
        said = Message(
            role="assistant", content=reply.text, tool_calls=reply.calls, reasoning=reply.reasoning
        )
        self._turn.said.clear()
        message = storable(said, self._shared.content.toolbox, self._shared.history.redactor)
        room = self._meter.room_for_calls(len(reply.calls))
        self._turn.calls_left = room if room < len(reply.calls) else None
        events, changes = reply.stored(self._meter, counted_calls=room)
        before = Before([*events, message_event(message)], changes)
        if not reply.calls:
            await self._shared.history.append(*before.events, changes=before.changes)
        self._session.messages.append(message)
        if not reply.calls:
            return ()
        return await self._run_calls(reply.calls, before, cut=reply.finish.reason == "length")

    async def _resume(self, resumed: Resumed) -> None:
        """Finish the step in which the turn waited, beginning with its first call without a result."""
        with within(request_id=resumed.request_id):
            calls = unanswered(self._session.messages)
            if resumed.joins:
                await self._shared.children.resume(self._turn)
            else:
                await self._run_calls(calls[:1], Before(), waits_for=resumed.waits_for)
                calls = calls[1:]
            for call in calls:
                if call.id in resumed.joins:
                    await self._run_calls([call], Before(), joined=resumed.joins[call.id])
                elif REMOVED in call.arguments:
                    await self._cannot_take_up(call)
                else:
                    await self._run_calls([call], Before())

    async def _cannot_take_up(self, call: ToolCall) -> None:
        """Give a result to a call whose original arguments are lost."""
        text = (
            "Error (cancelled): The call was not run. The daemon was started again meanwhile, and its"
            " arguments held a secret, which is not stored. Ask for it again if it is still wanted."
        )
        message = Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
        await self._shared.history.append(message_event(message))
        self._session.messages.append(message)

    async def _run_calls(
        self,
        calls: Sequence[ToolCall],
        before: Before,
        *,
        waits_for: str = "",
        joined: str = "",
        cut: bool = False,
    ) -> tuple[Outcome, ...]:
        """Run calls one by one. `waits_for` is the question for which the first call waits already, `joined`
        its id if it waits for children. `cut`: the model's answer was cut in the last call because it was too
        long.

        Raises BudgetExceeded when no more calls are allowed, and CallLoop.
        """
        dispatcher, origin = self._parts.dispatcher, self._origin
        outcomes: list[Outcome] = []
        try:
            for call in calls:
                if not (waits_for or joined):
                    self._repeats.check(call)
                    await self._make_room(before)
                remark = partial(self._repeats.remark, cut=cut and call is calls[-1])
                run = ToolRun(call, dispatcher, origin, self._results, before=before, remark=remark)
                outcome = await run.run(waits_for, joined=joined)
                waits_for = joined = ""
                outcomes.append(outcome)
                self._session.messages.append(outcome.message())
        except BaseException:
            # The conversation on disk is the truth now: it is read again before the next turn. What the step
            # used is used, even where no call came as far as to be stored with it.
            store_unwatched(self._shared.history, *before.take())
            self._session.forget_messages()
            raise
        return tuple(outcomes)

    async def _make_room(self, before: Before) -> None:
        """Check that the budgets allow one more call. Stores `before` and raises BudgetExceeded otherwise."""
        turn = self._turn
        if turn.calls_left is None:
            return
        if turn.calls_left <= 0:
            events, changes = before.take()
            await self._shared.history.append(*events, changes=changes)
            await self._meter.refuse_calls()
        turn.calls_left -= 1


def _left_above(turn: Turn) -> list[float]:
    """The time that the turns above a turn have left: what runs for them ends with it."""
    above, found = turn.above, list[float]()
    while above is not None:
        if (left_s := above.left_s()) is not None:
            found.append(left_s)
        above = above.above
    return found
