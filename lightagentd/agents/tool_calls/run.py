"""One tool call from the model's words to a stored result: check, decide, ask, store the intent, run, store.

The worker that has the tool checks the arguments first. What it gives back is what policy judges, what a
person is asked about, what is stored and what runs. What is refused, invalid or failed becomes a result that
the model reads; only a history that cannot store and a cancel end the turn. No call runs before its intent is
on disk, and an approval is used up with the intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightagentd.agents.builtin import BuiltinContext, Builtins
from lightagentd.agents.builtin.human import answer_to
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.calls import (
    Ready,
    answered,
    parse_call,
    requested,
    taken_up,
    whole,
)
from lightagentd.agents.tool_calls.origin import Origin, host_of
from lightagentd.agents.tool_calls.results import (
    Before,
    Outcome,
    Results,
    cap_text,
    error_text,
    message_event,
)
from lightagentd.agents.tool_calls.toolbox import ActionInfo, Toolbox
from lightagentd.agents.tool_calls.worker_replies import event_of, result_of
from lightagentd.config.configuration import Limits
from lightagentd.errors import (
    ApprovalRequired,
    Cancelled,
    InvalidArgument,
    LightagentError,
    OutcomeUnknown,
    PermissionDenied,
    PolicyDenied,
    StorageError,
    TimedOut,
    ToolError,
)
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import current_context, new_id
from lightagentd.events.types.agent import CallIntended, CallRefused
from lightagentd.events.types.tool import CallEnded
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.decide import PERSON, Decision, Policy, PolicyCall, Ruling, blocked_by_plan
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.asked import Asked, is_input
from lightagentd.policy.questions.inputs import ACTION, TOOL, Input
from lightagentd.policy.questions.question import State
from lightagentd.policy.questions.questions import Suspended
from lightagentd.redaction import off_loop
from lightagentd.tool import Effect, Place
from lightagentd.worker.lanes import Call, Checked
from lightagentd.worker.pool import Pool

Remark = Callable[[ToolCall, str, str, Mapping[str, Any]], str]
"""From a call, its result, the text of that and its metadata: what is said behind the text."""


def _no_remark(_call: ToolCall, _result: str, _text: str, _metadata: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Dispatcher:
    """What it takes to run calls; one for the daemon."""

    history: History
    policy: Policy
    asked: Asked
    pool: Pool
    limits: Limits
    builtins: Builtins

    async def run(
        self,
        call: ToolCall,
        *,
        origin: Origin,
        toolbox: Toolbox,
        stream: TurnStream,
        results: Results,
        before: Before,
        waits_for: str = "",
        remark: Remark = _no_remark,
    ) -> Outcome:
        """Run one call; its result goes to `results`, which the caller settles.

        `remark` gives what the model reads behind the result.

        `before` is what must be stored no later than the intent; it is emptied. `waits_for` is
        the approval or input that the call waits for already, since an earlier run of the daemon. Raises
        StorageError, Suspended, and CancelledError after the cancelled call's result went to `results`.
        """
        await results.settle()
        if is_input(waits_for):
            return await self._resume(call, waits_for, origin, toolbox, stream, results, remark)
        approval = waits_for
        asked = self.asked.approvals.find(approval) if approval else None
        what: dict[str, Any] = {
            "call_id": asked.call_id if asked else new_id("call"),
            "function": call.name,
            **({} if origin.trigger == PERSON else {"trigger": origin.trigger}),
        }
        granted: Approval | None = None
        try:
            if approval:
                ready = taken_up(call, self.asked.approvals.get(approval), toolbox, what)
                granted = await self._answer(approval, origin, stream)
                ruling = self._decide(ready, origin)
            else:
                ready = await self._check(call, toolbox, origin, what)
                ruling = self._decide(ready, origin)
                what |= {"decision": ruling.decision.value, "rule": ruling.rule, **_grounds(ready, origin)}
                if ruling.decision is Decision.ASK:
                    asked = await self._question(ready, ruling, origin)
                    what["approval"] = approval = asked.id
                    await self._request(asked, origin, before)
                    granted = await self._answer(approval, origin, stream)
                    ruling = self._decide(ready, origin)  # it may have changed while a person was asked
            if ruling.decision is Decision.DENY or (ruling.decision is Decision.ASK and granted is None):
                raise ruling.error or PolicyDenied(f"Policy refuses {ready.action.tool}.{ready.action.name}.")
            await self._intend(ready, what, granted, origin, before)
        except StorageError:
            raise
        except LightagentError as err:
            return await self._refuse(call, what, err, origin, stream, before, approval, remark)
        except (asyncio.CancelledError, Suspended):
            if origin.turn is None:  # the caller is gone, or soon will be; a turn's end sees to its own
                self._abandon(approval)
            raise
        stream.event("tool_call", call_id=ready.call_id, decision=what["decision"], **ready.what)
        return await self._execute(ready, granted, origin, stream, results, remark)

    async def _intend(
        self,
        ready: Ready,
        what: dict[str, Any],
        granted: Approval | None,
        origin: Origin,
        before: Before,
    ) -> None:
        """Store that the call begins; an approval is used up in the same transaction."""
        intent = CallIntended(**what).event()
        if granted is None:
            await self._store(before, intent)
        else:
            await self.asked.approvals.use(
                granted.id, ready.bound(origin), ready.call_id, intent, changes=origin.running()
            )

    async def _resume(
        self,
        call: ToolCall,
        waits_for: str,
        origin: Origin,
        toolbox: Toolbox,
        stream: TurnStream,
        results: Results,
        remark: Remark,
    ) -> Outcome:
        """Go on with a call that had begun and waits for a person's input; its intent is stored.

        Its arguments are not looked at again: all that counts of them is in the stored question.
        """
        try:
            asked = self.asked.inputs.get(waits_for)
            action = toolbox.by_function(call.name)
            if (action.tool, action.name) != (TOOL, ACTION):
                raise Input.not_found(waits_for)
        except LightagentError as err:  # a record was damaged, so that nobody can answer
            what: dict[str, Any] = {"call_id": new_id("call")}
            return await self._refuse(call, what, err, origin, stream, Before(), waits_for, remark)
        ready = Ready(call=call, call_id=asked.call_id, action=action, args={}, effect=Effect.OBSERVE)
        return await self._execute(ready, None, origin, stream, results, remark, waits_for=waits_for)

    async def _check(self, call: ToolCall, toolbox: Toolbox, origin: Origin, what: dict[str, Any]) -> Ready:
        """The call with the arguments that its action will get. Fills in `what` as far as it comes.

        What the agent does not have at all, or not while a plan is drafted, is not checked, because policy
        denies it as it is, and no worker is started for it.
        """
        agent = origin.agent
        action, args = parse_call(call, toolbox)
        effect = action.effect_of(args)
        ready = Ready(call=call, call_id=what["call_id"], action=action, args=args, effect=effect)
        what |= ready.what
        not_had = not agent.offers(action.tool, action.name) or effect not in agent.front.effects
        if not_had or blocked_by_plan(origin.plan, effect):
            if self._decide(ready, origin).decision is not Decision.DENY:
                raise PolicyDenied(f"The agent {agent.name} does not have the effect {effect}.")
            return ready
        ready = await self._checked(ready, origin)
        what |= ready.what
        return ready

    async def _checked(self, ready: Ready, origin: Origin) -> Ready:
        checked = await self._ask_worker(ready, origin, preview=False)
        args = whole(checked, ready)
        effect = ready.action.effect_of(args)
        host = host_of(args.get(ready.action.host)) if ready.action.host else ""
        return replace(ready, args=args, effect=effect, host=host)

    async def _ask_worker(self, ready: Ready, origin: Origin, *, preview: bool) -> Checked:
        if ready.action.place is Place.DAEMON:
            return self.builtins.check(ready.action.tool, ready.action.name, ready.args)
        return await self.pool.check(
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

    def _decide(self, ready: Ready, origin: Origin) -> Ruling:
        agent = origin.agent
        return self.policy.decide(
            PolicyCall(
                agent=agent.name,
                tool=ready.action.tool,
                action=ready.action.name,
                args=ready.args,
                effect=ready.effect,
                agent_effects=tuple(agent.front.effects),
                offered=agent.offers(ready.action.tool, ready.action.name),
                agent_skills=None if agent.front.skills is None else tuple(agent.front.skills),
                caller=origin.owner,
                trigger=origin.trigger,
                tainted=origin.tainted,
                host=ready.host,
                known_host=origin.knows(ready.host),
                change_enabled=self.pool.has_change(agent.name),
                plan=origin.plan,
            )
        )

    async def _question(self, ready: Ready, ruling: Ruling, origin: Origin) -> Approval:
        """What a person is to be asked. Raises ApprovalRequired when nobody is there."""
        name = f"{ready.action.tool}.{ready.action.name}"
        if origin.trigger != PERSON:
            raise ApprovalRequired(
                f"{name} needs an approval ({ruling.rule}), and nobody is there to be asked.",
                suggestion="Say what you would have done.",
            )
        preview, expected = await self._preview(ready, origin)
        return self.asked.approvals.new(
            ready.bound(origin),
            owner=origin.owner,
            trace_id=current_context().trace_id,
            call_id=ready.call_id,
            preview=preview,
            expected=expected,
            rule=ruling.rule,
            reason=ruling.reason,
            hidden=[each for each in ready.action.hidden if ready.args.get(each) is not None],
            granted=origin.approver is not None,
        )

    async def _request(self, asked: Approval, origin: Origin, before: Before) -> None:
        """Store the question and that the turn waits; a person's own call is answered with it."""
        waits: tuple[Change, ...] = ()
        if origin.turn is not None:
            origin.turn.waits_for = asked.id
            waits = (origin.turn.change("waiting", asked.id),)
        events, changes = before.take()
        await self.asked.approvals.request(
            asked, *events, changes=(*changes, *waits), granted_by=origin.approver
        )

    async def _preview(self, ready: Ready, origin: Origin) -> tuple[str, dict[str, Any]]:
        """What the call would do, and what that rests on. Where a tool cannot say, the arguments must do."""
        try:
            checked = await self._ask_worker(ready, origin, preview=True)
        except (ToolError, TimedOut, PermissionDenied) as err:
            return f"There is no preview: {err.message}", {}
        if whole(checked, ready) != ready.args:
            raise InvalidArgument(f"The arguments of {ready.action.function} do not stay what they are.")
        return checked.preview, checked.expected

    async def _answer(self, approval_id: str, origin: Origin, stream: TurnStream) -> Approval:
        """Wait for the answer. Raises what `Approvals.wait` raises."""
        asked = self.asked.approvals.get(approval_id)
        waited = asked.state is State.WAITING
        if waited:
            stream.event("approval_requested", **requested(asked))
        try:
            with origin.waiting(approval_id):
                return await self.asked.approvals.wait(approval_id)
        finally:
            if waited and (now := self.asked.approvals.find(approval_id)) and now.state is not State.WAITING:
                stream.event("approval_answered", **answered(now))

    def _abandon(self, approval: str) -> None:
        events, changes = self.asked.approvals.lapse(approval, "Its caller went away.")
        if events:
            self.history.append(*events, changes=changes)

    def _wanted(self, ready: Ready, granted: Approval | None, origin: Origin) -> Call:
        """The call as a worker gets it."""
        action = ready.action
        return Call(
            call_id=ready.call_id,
            tool=action.tool,
            action=action.name,
            args=ready.args,
            agent=origin.agent.name,
            session=origin.session_id,
            effect=ready.effect,
            timeout_s=action.timeout_of(ready.args, self.limits.call_timeout_s),
            owner=origin.worker_owner,
            place=action.place,
            expected=granted.expected if granted is not None else {},
        )

    async def _execute(
        self,
        ready: Ready,
        granted: Approval | None,
        origin: Origin,
        stream: TurnStream,
        results: Results,
        remark: Remark,
        *,
        waits_for: str = "",
    ) -> Outcome:
        call, action, wanted = ready.call, ready.action, self._wanted(ready, granted, origin)
        may_know = ready.effect is Effect.REACH and (granted is not None or not origin.tainted)
        host = ready.host if may_know else ""
        taints = action.taints
        started = time.monotonic()
        try:
            if action.place is Place.DAEMON:
                inside = BuiltinContext(call_id=ready.call_id, origin=origin, stream=stream)
                if waits_for:
                    found = await answer_to(self.asked.inputs, waits_for, inside)
                else:
                    found = await self.builtins.run(action.tool, action.name, ready.args, inside)
                output, metadata = found.output, found.metadata
            else:
                output, metadata = await self._work(wanted, stream)
            result, text = "ok", await off_loop(self._readable, output)
            metadata = self.history.redactor.value(metadata)
        except StorageError:
            raise
        except LightagentError as err:
            result, text, metadata = err.code, self._readable(error_text(err)), {}
            # A tool says in it what it likes, such as the last log lines of a unit that did not start.
            taints = taints or isinstance(err, ToolError)
        except asyncio.CancelledError:
            if origin.turn is not None and self.asked.inputs.is_open(origin.turn.waits_for):
                raise  # the turn's end stores how the call ended, or it goes on at the next start
            stopped = Cancelled("The call was cancelled; what it had changed until then stays changed.")
            outcome = self._outcome(call, action, stopped.code, error_text(stopped), {}, started)
            changes = origin.after_call(wanted.call_id, taints=action.taints, host="")
            self._store_result(wanted, action, outcome, results, changes)
            raise
        text += remark(call, result, text, metadata)
        outcome = self._outcome(call, action, result, text, metadata, started)
        # A call that failed may say what it read all the same, so it taints too.
        changes = origin.after_call(wanted.call_id, taints=taints, host=host if result == "ok" else "")
        lapsed, settled = self._taken(origin)
        self._store_result(wanted, action, outcome, results, (*changes, *settled), lapsed)
        return outcome

    def _readable(self, text: str) -> str:
        """What the model, the history and the watchers get of a text. A cut could halve a secret, so secrets
        are taken out before it.
        """
        return cap_text(self.history.redactor.result(text), self.limits.result_bytes)

    def _taken(self, origin: Origin) -> tuple[list[NewEvent], list[Change]]:
        """What goes with a call's result when it asked a person: the turn waits for nobody any more."""
        if origin.turn is None or not self.asked.inputs.is_open(origin.turn.waits_for):
            return [], []
        lapsed, changes = self.asked.inputs.taken(origin.turn.waits_for)
        return lapsed, [*changes, *origin.running()]

    async def _work(self, wanted: Call, stream: TurnStream) -> tuple[str, dict[str, Any]]:
        try:
            async with contextlib.aclosing(self.pool.call(wanted)) as events:
                async for event in events:
                    kind = event["kind"]
                    if kind == "output":
                        stream.output(wanted.call_id, event["stream"], event["text"])
                    elif kind == "event":
                        await self.history.append(event_of(wanted, event))
                    elif kind == "result":
                        return result_of(wanted, event)
        finally:
            stream.end_output(wanted.call_id)
        raise OutcomeUnknown(f"The worker gave no result for {wanted.tool}.{wanted.action}.")

    def _outcome(
        self,
        call: ToolCall,
        action: ActionInfo,
        result: str,
        text: str,
        metadata: dict[str, Any],
        started: float,
    ) -> Outcome:
        return Outcome(
            call=call,
            result=result,
            text=text,
            metadata=metadata,
            duration_ms=round((time.monotonic() - started) * 1000),
            function=action.function,
        )

    def _store_result(
        self,
        wanted: Call,
        action: ActionInfo,
        outcome: Outcome,
        results: Results,
        changes: Sequence[Change],
        lapsed: Sequence[NewEvent] = (),
    ) -> None:
        ended = CallEnded(
            call_id=wanted.call_id,
            tool=wanted.tool,
            action=wanted.action,
            effect=wanted.effect.value,
            result=outcome.result,
            duration_ms=outcome.duration_ms,
            output_chars=len(outcome.text),
            taints=action.taints,
            metadata=outcome.metadata,
        )
        stored = self.history.append(
            *lapsed,
            ended.event(),
            *((message_event(outcome.message()),) if results.in_conversation else ()),
            changes=changes,
        )
        results.add(
            stored,
            call_id=wanted.call_id,
            tool=wanted.tool,
            action=wanted.action,
            result=outcome.result,
            text=outcome.text,
            metadata=outcome.metadata,
            duration_ms=outcome.duration_ms,
        )

    async def _refuse(
        self,
        call: ToolCall,
        what: dict[str, Any],
        err: LightagentError,
        origin: Origin,
        stream: TurnStream,
        before: Before,
        approval: str,
        remark: Remark,
    ) -> Outcome:
        """A call that does not run: stored as such, and told to the model with what to do next."""
        text, name = self._readable(error_text(err)), self.history.redactor.text(call.name)[:100]
        text += remark(call, err.code, text, {})
        outcome = Outcome(call=call, result=err.code, text=text, function=name)
        message = self._readable(err.message)
        refused = CallRefused(**{**what, "function": name}, result=err.code, message=message).event()
        lapsed, changes = self.asked.approvals.lapse(approval, err.message) if approval else ([], [])
        running = origin.running() if approval else ()
        told = () if origin.is_check else (message_event(outcome.message()),)
        await self._store(before, *lapsed, refused, *told, changes=(*changes, *running))
        stream.event(
            "tool_result",
            call_id=what["call_id"],
            tool=what.get("tool", name),
            action=what.get("action", ""),
            result=err.code,
            text=outcome.text,
            metadata={},
            duration_ms=0,
        )
        return outcome

    async def _store(self, before: Before, *events: NewEvent, changes: Sequence[Change] = ()) -> None:
        first, with_them = before.take()
        await self.history.append(*first, *events, changes=(*with_them, *changes))


def _grounds(ready: Ready, origin: Origin) -> dict[str, Any]:
    """What a decision on a call rested on beside the call, where that is not as in an ordinary prompt."""
    found: dict[str, Any] = {"tainted": True} if origin.tainted else {}
    if origin.plan:
        found["plan"] = origin.plan
    if ready.effect is Effect.REACH and ready.host:
        found |= {"host": ready.host, "known_host": origin.knows(ready.host)}
    return found
