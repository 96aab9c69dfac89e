"""Runs one tool call: check, decide, ask, store the intent, run, store the result.

The arguments are checked first, by the daemon (`worker.plain`) or by a worker. What comes out is judged by
policy, shown to the person who is asked, stored and run. A refused, invalid or failed call becomes a result
for the model; only a storage failure or a cancel ends the turn. No call runs before its intent is on disk.
The intent also uses up the approval.

A `ToolRun` belongs to one call.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from lightagentd.agents.builtin import BuiltinContext
from lightagentd.agents.builtin.human import answer_result
from lightagentd.agents.hook_phases import HookedCall
from lightagentd.agents.tool_calls.asking import answer_to, asks, taken
from lightagentd.agents.tool_calls.at_once import ALONE, ASKING, WAITING, Order
from lightagentd.agents.tool_calls.calls import Ready, checked_here, parse_call, resumed, unread, whole
from lightagentd.agents.tool_calls.confirmed import ConfirmedCall
from lightagentd.agents.tool_calls.deciding import grounds
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.guarded import guarded
from lightagentd.agents.tool_calls.origin import Origin, host_of
from lightagentd.agents.tool_calls.results import (
    Before,
    Outcome,
    Remark,
    Results,
    error_text,
    message_event,
    no_remark,
)
from lightagentd.agents.tool_calls.signing import (
    answered,
    approval_of,
    at_once,
    is_verified,
    on_terms,
    rest_of,
    rest_signed,
)
from lightagentd.agents.tool_calls.stubs import decide, result_of, stub_of
from lightagentd.agents.tool_calls.working import (
    ask_for,
    check_answered,
    check_whole,
    checked_by,
    previewed,
    work,
)
from lightagentd.api import turn_events
from lightagentd.errors import (
    ApprovalRequired,
    Cancelled,
    LightagentError,
    PolicyDenied,
    Refused,
    StorageError,
    ToolError,
)
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import dump_json, new_id
from lightagentd.events.types.agent import CallIntended, CallRefused
from lightagentd.events.types.tool import CallEnded
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.decide import PERSON, Decision, Ruling, blocked_by_plan
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.approvals import granted
from lightagentd.policy.questions.asked import is_input
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.questions import Suspended
from lightagentd.redaction import off_loop
from lightagentd.tool import Effect, Place
from lightagentd.worker.needs_input import Asked


class ToolRun:
    """One call; `run` it once."""

    def __init__(
        self,
        call: ToolCall,
        dispatcher: Dispatcher,
        origin: Origin,
        results: Results,
        *,
        before: Before | None = None,
        remark: Remark = no_remark,
    ) -> None:
        """The result goes to `results`, which the caller settles. `before` must be stored no later than the
        intent; it is emptied. `remark` gives a remark for the model after the result.
        """
        self._call = call
        self._dispatcher = dispatcher
        self._toolbox = dispatcher.toolbox(origin.agent.name)
        self._origin = origin
        self._results = results
        self._stream = results.stream
        self._before = before or Before()
        self._remark = remark
        self._ready: Ready
        """Exactly what runs. It is missing until the call named an action."""
        self._what: dict[str, Any] = {
            "call_id": new_id("call"),
            "function": call.name,
            **({} if origin.trigger == PERSON else {"trigger": origin.trigger}),
        }
        """What the call's events say of it, as far as that is known."""
        self._waits_for = ""
        """The approval or input that it waits for, or waited for."""
        self._granted: Approval | None = None
        self._order = ALONE
        self._hooked = HookedCall(dispatcher.hooks, origin)
        self._confirmed = ConfirmedCall(dispatcher, origin)

    async def can_run_beside(self, order: Order, *, joined: str) -> bool:
        """Whether the call may run at once with others: it observes, or asks another agent, and no person is
        asked about it. Then it does. What is wrong with it is told when it runs. `joined` as for `run`.
        """
        if joined:
            self._order = order
            return True
        try:
            await self._check()
        except LightagentError:
            return False
        action, effect = self._ready.action, self._ready.effect
        alone = action.place is Place.DAEMON and (action.tool, action.name) not in ASKING
        if alone or effect is not Effect.OBSERVE or self._decide().decision is not Decision.ALLOW:
            return False
        self._order = order
        self._what["position"] = order.position
        return True

    async def run(self, waits_for: str = "", *, joined: str = "") -> Outcome:
        """Run the call. `waits_for` is the approval or input for which it waits since an earlier run of the
        daemon; `joined` is its id if it waited for children then.

        Raises StorageError, Suspended, and CancelledError (after the cancelled call's result went to
        `results`).
        """
        try:
            return await self._run(waits_for, joined)
        finally:
            self._confirmed.leave(self._what["call_id"])

    async def _run(self, waits_for: str, joined: str) -> Outcome:
        self._waits_for = waits_for
        try:
            if joined:
                self._read(joined)
            elif is_input(waits_for):
                self._resume_input()
            else:
                await self._permit()
                await self._intend()
                await self._results.settle()
        except StorageError:
            raise
        except LightagentError as err:
            return await self._refuse(err)
        except (asyncio.CancelledError, Suspended):
            if self._origin.turn is None:  # the caller is gone, or soon will be; a turn's end sees to its own
                self._abandon()
            raise
        self._tell_begin(self._ready.what)
        return await self._execute()

    def _tell_begin(self, what: dict[str, Any]) -> None:
        """Tell the watchers of the call; its result follows."""
        call_id, decision = self._what["call_id"], self._what.get("decision", "")
        self._stream.emit(turn_events.ToolCallStarted(call_id=call_id, decision=decision, **what))

    # Check, decide, ask

    async def _permit(self) -> None:
        """Decide on the call, and wait for a person's approval if policy requires it. Raises for a call that
        may not run.
        """
        if self._waits_for:
            self._resume_approval()
        else:
            if not self._order.position:
                await self._check()
            ruling = self._decide()
            self._what |= {
                "decision": ruling.decision.value,
                "rule": ruling.rule,
                **grounds(self._ready, self._origin),
            }
            if ruling.decision is Decision.ASK:
                await self._results.settle()
                await self._ask(ruling)
        if self._waits_for:
            self._granted = granted(
                await answered(self._dispatcher, self._origin, self._waits_for, self._stream)
            )
            ruling = self._decide()  # it may have changed while a person was asked
        if ruling.decision is Decision.DENY or (ruling.decision is Decision.ASK and self._granted is None):
            raise ruling.error or PolicyDenied(f"Policy refuses {self._ready.name}.")
        await self._confirmed.prepare(self._ready, ruling, self._granted)

    def _resume_approval(self) -> None:
        """Take the call from the approval that an earlier run of the daemon asked for."""
        asked = self._dispatcher.asked.approvals.questions.get(self._waits_for)
        self._what |= {"call_id": asked.call_id, "decision": Decision.ASK.value}
        self._ready = resumed(self._call, asked, self._toolbox)
        self._what |= {"rule": asked.rule, "approval": asked.id, **self._ready.what}

    def _resume_input(self) -> None:
        """Continue a call that had begun and waits for a person's input; its intent is stored.

        The arguments of `human.ask` are not checked again: the stored question has all that matters. Raises
        LightagentError for a damaged record, which nobody can answer.
        """
        asked = self._dispatcher.asked.inputs.questions.get(self._waits_for)
        action = self._toolbox.by_function(self._call.name)
        if (action.tool, action.name) != (asked.tool, asked.action):
            raise Input.not_found(self._waits_for)
        if asked.is_own:
            self._read(asked.call_id)
            return
        args = {"question": asked.question, "choices": asked.choices}
        self._what["call_id"] = asked.call_id
        self._ready = Ready(
            call=self._call, call_id=asked.call_id, action=action, args=args, effect=Effect.OBSERVE
        )

    def _read(self, call_id: str) -> None:
        """Take the call as the model wrote it. One whose intent is stored goes on under its id: one that
        waits for children, which it finds by that, or for a person.
        """
        action, args = parse_call(self._call, self._toolbox)
        effect = action.effect_of(args)
        self._what["call_id"] = call_id
        self._ready = Ready(call=self._call, call_id=call_id, action=action, args=args, effect=effect)

    async def _check(self) -> None:
        """Check the arguments, in a worker where it takes one. Actions that the agent does not have, or that
        plan mode forbids, are not checked: policy denies them anyway, and no worker has to start for them.
        """
        agent = self._origin.agent
        self._read(self._what["call_id"])
        action, effect = self._ready.action, self._ready.effect
        self._what |= self._ready.what
        not_had = not agent.offers(action.tool, action.name) or effect not in agent.front.effects
        if not_had or blocked_by_plan(self._origin.plan, effect):
            if self._decide().decision is not Decision.DENY:
                raise PolicyDenied(f"The agent {agent.name} does not have the effect {effect}.")
            return
        await self._check_args()
        if (args := await self._hooked.before(self._ready)) is not self._ready.args:
            self._ready = replace(self._ready, args=args)
            await self._check_args()

    async def _check_args(self) -> None:
        action, ready = self._ready.action, self._ready
        args = whole(checked_here(ready) or await checked_by(self._dispatcher, self._origin, ready), ready)
        host = host_of(action.goes_to(args))
        self._ready = replace(ready, args=args, effect=action.effect_of(args), host=host)
        self._what |= self._ready.what

    def _decide(self) -> Ruling:
        found = decide(self._dispatcher, self._origin, self._ready)
        return on_terms(self._dispatcher, self._ready, found, self._confirmed.asked_for(self._ready, found))

    async def _ask(self, ruling: Ruling) -> None:
        """Store the approval request, and that the turn waits. For a person's own call the answer is stored
        with it. Raises ApprovalRequired when nobody can be asked.
        """
        ready, origin, approvals = self._ready, self._origin, self._dispatcher.asked.approvals
        if self._order.position:
            message = f"{ready.name} needs an approval by now ({ruling.rule})."
            raise ApprovalRequired(message, suggestion="Ask for it again.")
        if not origin.can_ask:
            raise ApprovalRequired(
                f"{ready.name} needs an approval ({ruling.rule}), and nobody is there to be asked.",
                suggestion="Say what you would have done.",
            )
        preview, expected = await previewed(self._dispatcher, origin, ready)
        await self._hooked.on_approval(ready, rule=ruling.rule, reason=ruling.reason, preview=preview)
        terms = self._confirmed.asked_for(ready, ruling)
        asked = await approval_of(self._dispatcher, origin, ready, ruling, terms, preview, expected)
        answer = await at_once(self._dispatcher, origin, asked)
        self._waits_for = self._what["approval"] = asked.id
        waits = origin.asks(asked.id)
        events, changes = self._before.take()
        events = (*events, *origin.asking(asked.id))
        await approvals.request(
            asked, *events, changes=(*changes, *waits), granted_from=origin.approver, answered=answer
        )

    def _abandon(self) -> None:
        dispatcher = self._dispatcher
        events, changes = dispatcher.asked.approvals.questions.lapse(self._waits_for, "Its caller went away.")
        if events:
            dispatcher.history.append(*events, changes=changes)

    # Intend, or refuse

    async def _intend(self) -> None:
        """Store the call's intent, and use up its approval in the same transaction."""
        ready, origin, approvals = self._ready, self._origin, self._dispatcher.asked.approvals
        more, changes = self._confirmed.begin(ready, self._granted)
        events = (CallIntended(**self._what).event(), *more)
        if self._granted is None:
            await self._append(*events, changes=changes)
            return
        bound, changes = ready.bound(origin, self._confirmed.terms), (*origin.running(), *changes)
        await approvals.use(self._granted.id, bound, ready.call_id, *events, changes=changes)

    async def _refuse(self, err: LightagentError) -> Outcome:
        """Store that a call does not run, and tell the model what to do next."""
        await self._order.comes()
        await self._results.settle()
        dispatcher, origin = self._dispatcher, self._origin
        what = unread(self._call, self._toolbox, dispatcher.readable) | self._what
        text = dispatcher.readable(error_text(err))
        name = dispatcher.history.redactor.text(self._call.name)[:100]
        text += self._remark(self._call, err.code, text, {})
        outcome = Outcome(call=self._call, result=err.code, text=text, function=name)
        message = dispatcher.readable(err.message)
        refused = CallRefused(**{**what, "function": name}, result=err.code, message=message).event()
        lapsed, changes = dispatcher.asked.lapse(self._waits_for, err.message)
        running = origin.running() if self._waits_for else ()
        origin.note_call({**what, "result": err.code})
        await self._append(*lapsed, refused, *self._told(outcome), changes=(*changes, *running))
        about: dict[str, Any] = {"tool": what.get("tool", name), "action": what.get("action", "")}
        self._tell_begin({**about, "effect": what.get("effect", ""), "args": what["args"]})
        about |= {"call_id": what["call_id"], "result": err.code, "metadata": {}, "duration_ms": 0}
        self._stream.emit(turn_events.ToolResult(**about, text=outcome.text))
        return outcome

    def _told(self, outcome: Outcome) -> tuple[NewEvent, ...]:
        """The result as a message; the daemon's own calls are not part of the conversation."""
        return () if self._origin.apart else (message_event(outcome.message()),)

    async def _append(self, *events: NewEvent, changes: tuple[Change, ...] = ()) -> None:
        """Store events, after those of `before`. Raises StorageError."""
        first, with_them = self._before.take()
        await self._dispatcher.history.append(*first, *events, changes=(*with_them, *changes))

    # Execute

    async def _execute(self) -> Outcome:
        ready, origin, dispatcher = self._ready, self._origin, self._dispatcher
        may_know = ready.effect is Effect.REACH and (self._granted is not None or not origin.tainted)
        host = ready.host if may_know else ""
        taints = ready.action.taints
        started = time.monotonic()
        try:
            with origin.turn.working(1) if self._order.position and origin.turn else nullcontext():
                output, metadata = await guarded(self._act(), dispatcher, origin, ready, self._stream)
            result, text = "ok", await off_loop(dispatcher.readable, output)
            if dispatcher.history.redactor.suspects(dump_json(metadata)):
                metadata = dispatcher.history.redactor.value(metadata)
        except StorageError:
            raise
        except LightagentError as err:
            result, text, metadata = err.code, dispatcher.readable(error_text(err)), {}
            # A tool says in it what it likes, such as the last log lines of a unit that did not start.
            taints = taints or isinstance(err, ToolError)
        except asyncio.CancelledError:
            inputs = dispatcher.asked.inputs
            joins = (ready.action.tool, ready.action.name) in WAITING
            if asks(inputs, origin, ready.call_id) or (
                joins and origin.turn and origin.turn.stays_with_children
            ):
                raise  # the turn's end stores how the call ended, or it goes on at the next start
            stopped = Cancelled("The call was cancelled; what it had changed until then stays changed.")
            outcome = self._outcome(stopped.code, error_text(stopped), {}, started, time.monotonic())
            self._store(outcome, origin.after_call(ready.call_id, taints=ready.action.taints, host=""))
            raise
        ended = time.monotonic()
        if self._hooked.hears_results:
            result, heard, metadata = await self._hooked.after(ready, result, text, metadata)
            text = text if heard is text else dispatcher.readable(heard)
        try:
            await self._order.comes()
        finally:  # it has ended, whatever became of those before it
            text += self._remark(ready.call, result, text, metadata)
            outcome = self._outcome(result, text, metadata, started, ended)
            # A call that failed may say what it read all the same, so it taints too.
            changes = origin.after_call(ready.call_id, taints=taints, host=host if result == "ok" else "")
            lapsed, settled = taken(dispatcher.asked.inputs, origin, ready.call_id)
            self._store(outcome, (*changes, *settled), *lapsed)
        return outcome

    async def _act(self) -> tuple[str, dict[str, Any]]:
        """Run the call; gives its output and metadata."""
        ready, action, dispatcher = self._ready, self._ready.action, self._dispatcher
        if (stub := stub_of(self._origin, ready)) is not None:
            return result_of(stub)
        if action.place is not Place.DAEMON:
            return await self._work()
        if is_input(self._waits_for):
            inputs = dispatcher.asked.inputs.questions
            found = answer_result(await answer_to(inputs, self._waits_for, self._origin, self._stream))
        else:
            inside = BuiltinContext(
                call_id=ready.call_id,
                model_call=ready.call.id,
                origin=self._origin,
                stream=self._stream,
                in_order=self._order.comes,
            )
            found = await dispatcher.builtins.run(action.tool, action.name, ready.args, inside)
        return found.output, found.metadata

    async def _work(self) -> tuple[str, dict[str, Any]]:
        """Have a worker run the call; when it asks a person, it goes on with the answer."""
        dispatcher, origin, stream = self._dispatcher, self._origin, self._stream
        found: Input | None = None
        if is_input(self._waits_for):
            check_whole(self._call)
            found = await answer_to(dispatcher.asked.inputs.questions, self._waits_for, origin, stream)
        while True:
            resumed = None if found is None else await self._go_on(found)
            expected, terms = self._confirmed.expected(self._granted), self._confirmed.terms
            if found is not None and is_verified(dispatcher, self._ready):
                expected, terms = rest_of(origin, found), None
            said = await work(
                dispatcher, origin, self._ready, stream, expected, resumed, self._granted, terms
            )
            if not isinstance(said, Asked):
                return said
            if self._order.has_others:
                hint = "Call it in an answer without other calls."
                raise Refused(f"{self._ready.name} asks a person, and others run beside it.", suggestion=hint)
            found = await ask_for(dispatcher, origin, self._ready, stream, self._granted, said, after=found)

    async def _go_on(self, found: Input) -> dict[str, Any]:
        """Decide on the call again, and store that it goes on; gives what its `resume` gets.

        The approval that this call has used lets it go on, and nothing else. Raises LightagentError for a
        call that may not go on.
        """
        dispatcher, origin = self._dispatcher, self._origin
        check_answered(found)
        await self._check()
        ruling = self._decide()
        if ruling.decision is Decision.DENY:
            raise ruling.error or PolicyDenied(f"Policy refuses {self._ready.name}.")
        if ruling.decision is Decision.ASK or found.approval:
            bound = self._ready.bound(origin)
            used = dispatcher.asked.approvals.used_by(found.approval, bound, found.call_id)
            self._granted = self._granted or used
        signed = await rest_signed(dispatcher, origin, self._ready, ruling, self._stream, found)
        self._granted = signed or self._granted
        inputs, decision = dispatcher.asked.inputs, ruling.decision.value
        events, changes = inputs.use(found, decision=decision, rule=ruling.rule)
        await self._append(*events, changes=(*changes, *origin.running()))
        return {**found.saved, "answer": found.answer}

    def _outcome(
        self, result: str, text: str, metadata: dict[str, Any], started: float, ended: float
    ) -> Outcome:
        return Outcome(
            call=self._call,
            result=result,
            text=text,
            metadata=metadata,
            duration_ms=round((ended - started) * 1000),
            started_us=time.time_ns() // 1000 - round((time.monotonic() - started) * 1e6),
            function=self._ready.action.function,
        )

    def _store(self, outcome: Outcome, changes: tuple[Change, ...], *lapsed: NewEvent) -> None:
        """Store the end of the call with changes, after other events."""
        ready = self._ready
        about: dict[str, Any] = {
            "call_id": ready.call_id,
            "tool": ready.action.tool,
            "action": ready.action.name,
            "result": outcome.result,
            "duration_ms": outcome.duration_ms,
            "metadata": outcome.metadata,
        }
        ended = CallEnded(
            **about,
            effect=ready.effect.value,
            output_chars=len(outcome.text),
            taints=ready.action.taints,
            started_us=outcome.started_us,
        )
        self._origin.note_call({**about, "effect": ready.effect.value})
        history, may_wait = self._dispatcher.history, ready.effect is not Effect.CHANGE
        told, (more, with_them) = self._told(outcome), self._origin.ended(outcome)
        armed, due = self._confirmed.end(ready.call_id, outcome)
        events = (*lapsed, ended.event(), *told, *more, *armed)
        stored = history.append(*events, changes=(*changes, *with_them, *due), may_wait=may_wait)
        self._results.add(stored, turn_events.ToolResult(**about, text=outcome.text))
