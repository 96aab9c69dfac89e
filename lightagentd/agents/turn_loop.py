"""The loop of one turn, step by step, from its stored beginning to its stored end.

A step is one model call and its tool calls. Each step is stored before the next one begins. The agent's
supervision runs the loop, in the turn's own task. If a caller drives the turn (`Session.run`), they get each
step, and the next one begins when they have taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lightagentd.agents import hook_phases
from lightagentd.agents.answers.judging import accept, instruction, said_in
from lightagentd.agents.context_skill import context_of
from lightagentd.agents.deliberation import with_plan
from lightagentd.agents.model_calls.asking import Asking
from lightagentd.agents.model_calls.call import Reply, store_unwatched
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.storable import storable
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.sessions.recovery import UNKNOWN
from lightagentd.agents.tool_calls.at_once import Group, Order
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

_LOST = (
    "Error (cancelled): The call was not run. The daemon was started again meanwhile, and its"
    " arguments held a secret, which is not stored. Ask for it again if it is still wanted."
)
_NONE: Mapping[str, str] = {}
_STILL_WAITING = AgentNotRunning(
    "The agent stopped while this turn waits for an approval, or for an answer.",
    suggestion="The turn goes on at its next start; lactl approvals and lactl inputs show the question.",
)


class TurnLoop:
    """Runs one turn, once."""

    def __init__(self, turn: Turn, parts: AgentParts, supervision: Supervision) -> None:
        self._turn = turn
        self._session = turn.session
        self._own = self._of_agent = parts
        self._shared = parts.shared
        self._supervision = supervision
        record = turn.session.record
        above = turn.above
        whose = Whose(
            agent=record.agent,
            owner=record.owner,
            session=record.id,
            trace_id=turn.trace_id,
            client=turn.client,
            above=above.meter.whose if above is not None and above.meter is not None else None,
        )
        self._above = above.origin if above is not None else self._shared.mail.above(turn)
        turn.origin = self._origin = self._origin_of(parts, self._above)
        wall_ms = turn.resumed.wall_ms if turn.resumed else 0
        self._meter = Meter(self._shared.ledger, whose, wall_ms=wall_ms)
        self._results = Results(turn.stream, self._shared.history.hurry)
        self._repeats = Repeats(turn.trace_id)

    @property
    def _parts(self) -> AgentParts:
        """What the turn may use now."""
        return self._of_agent.for_turn(self._turn.choice)

    def _origin_of(self, parts: AgentParts, above: Origin | None) -> Origin:
        turn = self._turn
        return Origin(
            definition=lambda: parts.for_turn(turn.choice).definition,
            owner=turn.session.record.owner,
            turn=turn,
            above=above,
        )

    async def _take_holder(self) -> None:
        """Go on as the agent that has the conversation now. The session's own stays above it."""
        turn, holder = self._turn, self._session.record.holder
        self._of_agent, above = self._own, self._above
        if holder:
            try:
                self._of_agent = (await self._shared.children.started(holder)).running_parts()
                above = self._origin_of(self._own, above)
            except LightagentError as err:
                message = f"{err.message} So {self._session.record.agent} answers."
                turn.stream.emit(turn_events.Notice(code=err.code, message=message))
        turn.origin = self._origin = self._origin_of(self._of_agent, above)

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
        turn = self._turn
        await self._take_holder()
        parts = self._parts
        await hook_phases.before_turn(self._shared.hooks, parts.definition.name, turn)
        if turn.resumed is None:
            await self._session.begin(turn)
        left_s = parts.turn_timeout_s if turn.resumed is None else turn.resumed.left_s
        left_s = min([left_s, *_left_above(turn)])
        turn.stream.emit(turn_events.Started(model=(first := self._first_client().name)))
        if turn.choice.model not in ("", first):
            message = f"The agent has no model {turn.choice.model} any more; the turn asks {first}."
            turn.stream.emit(turn_events.Notice(code="model_gone", message=message))
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
            await hook_phases.after_turn(shared.hooks, self._of_agent.definition.name, turn, failure)
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
        self._meter.run()
        resumed = turn.resumed
        try:
            while True:
                asking = Asking(turn, self._parts, self._meter, self._results)
                with contextlib.closing(asking):
                    if await self._run_steps(asking, resumed):
                        break
                await self._take_holder()
                resumed = None
        finally:
            self._meter.stop()
            await uninterrupted(self._results.settle())

    def _first_client(self) -> ModelClient:
        choice = self._turn.choice
        model = choice.model or self._session.record.model
        return self._parts.clients_for(model, schema=choice.schema is not None)[0]

    async def _run_steps(self, asking: Asking, resumed: Resumed | None) -> bool:
        """Take steps to the answer, or until another agent has the conversation; whether it is answered."""
        turn, session, parts = self._turn, self._session, self._parts
        report = await context_of(turn, parts)
        more = await parts.shared.more_prompt(turn) if parts.shared.more_prompt is not None else ""
        asked = turn.choice.system, instruction(turn.choice.schema)
        system = await parts.system_prompt(session, more, report, *asked)
        offer = await self._shared.offers.begin(
            session,
            parts.definition,
            parts.toolbox,
            self._first_client(),
            change=bool(turn.choice.stubs) or self._shared.pool.has_change(parts.definition.name),
            max_tools=parts.limits.max_tools,
        )
        limit, holder = parts.max_steps, session.record.holder
        if resumed is not None:
            await self._resume(resumed)
        system = await with_plan(turn, parts, asking, system)
        for number in range(turn.steps_done + 1, limit + 1):
            with within(request_id=new_id("req")) as context:
                await self._shared.mail.deliver(turn)
                reply = await asking.ask(system, offer.functions(session.messages))
                turn.steps_done = number
                outcomes = await self._act(reply)
                final = not reply.calls and await accept(turn, reply, is_last=number >= limit)
            if turn.handed is not None:
                await self._results.settle()
                step = Step(
                    number=number,
                    request_id=context.request_id,
                    text=reply.text,
                    calls=reply.calls,
                    outcomes=outcomes,
                    usage=reply.usage,
                    final=final,
                )
                turn.handed.put_nowait(step)
                await turn.handed.join()
            if final:
                return True
            if session.record.holder != holder:
                return False
        raise StepLimit(
            f"The turn used all its {limit} steps without coming to an answer.",
            suggestion="Ask for less at once, or raise max_steps in the agent's limits.",
        )

    async def _act(self, reply: Reply) -> tuple[Outcome, ...]:
        """Store the model's message, then run its calls one by one, in order."""
        said = Message(
            role="assistant", content=said_in(reply), tool_calls=reply.calls, reasoning=reply.reasoning
        )
        self._turn.said.clear()
        message = storable(said, self._parts.toolbox, self._shared.history.redactor)
        room = self._meter.room_for_calls(len(reply.calls))
        self._turn.calls_left = room if room < len(reply.calls) else None
        events, changes = reply.stored(self._meter, counted_calls=room, step=self._turn.steps_done)
        holder = self._session.record.holder
        speaks = {"speaker": holder} if holder and self._of_agent is not self._own else {}
        before = Before([*events, message_event(message, **speaks)], changes)
        if not reply.calls:
            await self._shared.history.append(*before.events, changes=before.changes)
        self._session.messages.append(message)
        if not reply.calls:
            return ()
        self._turn.told_form = False
        places = _places(reply.calls)
        return await self._run_calls(reply.calls, before, places, cut=reply.finish.reason == "length")

    async def _resume(self, resumed: Resumed) -> None:
        """Finish the step in which the turn waited, beginning with its first call without a result."""
        with within(request_id=resumed.request_id):
            calls = unanswered(self._session.messages)
            said = next((one for one in reversed(self._session.messages) if one.tool_calls), None)
            places = _places(said.tool_calls if said is not None else ())
            if resumed.joins:
                await self._shared.children.resume(self._turn)
                first = [call for call in calls if call.id in resumed.joins]
                await self._run_calls(first, Before(), places, joined=resumed.joins)
            else:
                first = calls[:1]
                await self._run_calls(first, Before(), places, waits_for=resumed.waits_for)
            for call in [call for call in calls if call not in first]:
                if places.get(call.id) in resumed.begun:
                    await self._cannot_take_up(call, UNKNOWN)
                elif REMOVED in call.arguments:
                    await self._cannot_take_up(call, _LOST)
                else:
                    await self._run_calls([call], Before(), places)

    async def _cannot_take_up(self, call: ToolCall, text: str) -> None:
        """Give a result to a call that is not run, or not again."""
        message = Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
        await self._shared.history.append(message_event(message))
        self._session.messages.append(message)

    async def _run_calls(
        self,
        calls: Sequence[ToolCall],
        before: Before,
        places: Mapping[str, int],
        *,
        waits_for: str = "",
        joined: Mapping[str, str] = _NONE,
        cut: bool = False,
    ) -> tuple[Outcome, ...]:
        """Run calls one by one, or at once those of them that can be. `places` are those in the model's
        answer, by the model's ids. `waits_for` is the question for which the first call waits already,
        `joined` the ids of those that wait for children. `cut`: the model's answer was cut in the last call
        because it was too long.

        Raises BudgetExceeded when no more calls are allowed, and CallLoop.
        """
        group = Group(self._session.messages.append)
        try:
            for call in calls:
                if call.id not in joined and not waits_for:
                    if group.has_like(call):
                        await group.run()
                    try:
                        self._repeats.check(call)
                        await self._make_room(before)
                    except LightagentError:
                        await group.run()
                        raise
                remark = partial(self._repeats.remark, cut=cut and call is calls[-1])
                run = ToolRun(
                    call, self._parts.dispatcher, self._origin, self._results, before=before, remark=remark
                )
                order, own_id = Order(position=places[call.id]), joined.get(call.id, "")
                may = self._parts.definition.front.parallel and not waits_for
                beside = may and await run.can_run_beside(order, joined=own_id)
                if not beside:
                    await group.run()
                group.add(call, order, partial(run.run, waits_for, joined=own_id))
                if not beside:
                    await group.run()
                waits_for = ""
            await group.run()
        except BaseException:
            # The conversation on disk is the truth now: it is read again before the next turn. What the step
            # used is used, even where no call came as far as to be stored with it.
            store_unwatched(self._shared.history, *before.take())
            self._session.forget_messages()
            raise
        return tuple(group.outcomes)

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


def _places(calls: Sequence[ToolCall]) -> dict[str, int]:
    """The places of calls in the model's answer, from 1, by their ids."""
    return {call.id: place for place, call in enumerate(calls, 1)}


def _left_above(turn: Turn) -> list[float]:
    """The time that the turns above a turn have left: what runs for them ends with it."""
    above, found = turn.above, list[float]()
    while above is not None:
        if (left_s := above.left_s()) is not None:
            found.append(left_s)
        above = above.above
    return found
