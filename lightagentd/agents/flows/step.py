"""Runs one step of a run, or one item of it, to its end: attempts, approvals, checks, and what is unknown.

What is done is stored with its output in one transaction, and is never done again. What may have changed
something and has no stored end waits for a person, with what is known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.answers.schema import fitting
from lightagentd.agents.flows.asked import asked_in_child, cancel_asked, ending_of
from lightagentd.agents.flows.records import MOST_OUTPUT_BYTES, AsksFor, StepRecord
from lightagentd.agents.flows.step_turn import SAID_BYTES, StepTurn, failure_of
from lightagentd.agents.flows.values import NOTHING, Values
from lightagentd.agents.hook_phases import about_step, after_step, before_step
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.tool_calls.asking import answer_to, ask
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import Before, Outcome, Results, cap_text
from lightagentd.agents.tool_calls.run import ToolRun
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.flows.definition import Step
from lightagentd.config.flows.references import as_text, filled
from lightagentd.config.flows.shell import quoted_for_shell
from lightagentd.errors import LightagentError, StorageError, ToolError
from lightagentd.events.history import Change
from lightagentd.events.model import new_id, within
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.questions.inputs import Input
from lightagentd.policy.questions.question import State
from lightagentd.policy.questions.questions import Suspended
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.agents.flows.run import Run

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
AGAIN, DONE, FAILED = "run it again", "it is done", "it failed"
_UNKNOWN = "outcome_unknown"
_STARTING_TRIES, _STARTING_S = 20, 0.1


@dataclass
class StepFailed(Exception):
    """An attempt did not do what it should. `again`: whether it may be tried again."""

    code: str
    message: str
    again: bool = True


@dataclass
class Unknown(Exception):
    """It is not known what an attempt did."""

    known: str


class StepWork:
    """The work of one step, or one item; `work` it once."""

    def __init__(self, run: Run, step: Step, name: str, item: Any = NOTHING) -> None:
        self._run, self._step, self.name, self._item = run, step, name, item
        self._shared = run.shared
        self.values = Values(run, item)
        if name not in run.steps:
            run.keep(StepRecord(run=run.record.id, name=name, item=None if item is NOTHING else item))

    @property
    def record(self) -> StepRecord:
        return self._run.steps[self.name]

    async def work(self) -> None:
        """Run it to its end, from wherever an earlier run of the daemon left it. Raises StorageError,
        Suspended.
        """
        resumed = self.record.state != "pending"
        while not self.record.is_over:
            if self._run.flows.closing:
                raise Suspended
            try:
                if resumed and self.record.asks_for == "unknown":
                    raise Unknown("")
                await self._attempt(resumed)
            except (StorageError, Suspended):
                raise
            except Unknown as err:
                await self._ask_what_it_did(err.known)
            except StepFailed as err:
                await self._failed(err)
            except LightagentError as err:
                await self._failed(StepFailed(err.code, f"{err.message} {err.suggestion}".strip()))
            resumed = False

    async def cancel(self, why: LightagentError) -> None:
        """Store that it is cancelled, and close what it asks."""
        record = self.record
        if record.is_over:
            return
        if (nested := self._run.flows.runs.get(record.nested)) is not None:
            await nested.cancel(why)
        if record.session:
            await cancel_asked(self._run, record, why)
        events, changes = self._shared.asked.lapse(record.waits_for, why.message)
        done = record.moved("cancelled", code=why.code, message=why.message)
        await self._run.store(done, events=events, changes=changes)

    # One attempt

    async def _attempt(self, resumed: bool) -> None:
        record = self.record
        if resumed and record.code and not record.ran:
            if record.code == _UNKNOWN and await self._changes():
                raise Unknown(record.message)
            raise StepFailed(record.code, record.message, again=_may_again(self._step, record.code))
        if not (resumed and record.ran):
            kind = self._step.kind
            await before_step(self._shared.hooks, about_step(self._run.record, self._agent, self.name, kind))
            if self._step.requires_approval and kind != "call" and not record.allowed:
                await self._ask_to_begin()
            if kind == "call":
                assert self._step.call is not None
                await self._call(self._step.call, self._step.args, resumed=resumed)
            elif kind == "prompt":
                await self._prompt(resumed)
            elif kind == "flow":
                await self._nested()
            else:
                await self._question()
        if not self.record.is_over:
            await self._judge()

    @property
    def _agent(self) -> str:
        """Who does this attempt."""
        step = self._step
        is_last = step.fallback_agent and self.record.tries > step.max_retry
        return (step.fallback_agent if is_last else step.agent) or self._run.record.agent

    async def _failed(self, err: StepFailed) -> None:
        """Try again, after a pause, or store the failure. Raises StorageError."""
        step, record = self._step, self.record
        most = step.max_retry + (1 if step.fallback_agent else 0)
        if not err.again or record.tries >= most:
            done = record.moved("failed", code=err.code, message=err.message, tries=record.tries + 1)
            await self._run.store(done)
            return
        pause_s = min(FIRST_PAUSE_S * 2**record.tries, LONGEST_PAUSE_S)
        fresh = StepRecord(
            run=record.run,
            name=record.name,
            item=record.item,
            attempt=record.attempt,
            tries=record.tries + 1,
            allowed=record.allowed,
            nested=record.nested,  # which goes on: what is done in it stays done
            code=err.code,
            message=err.message,
        )
        await self._run.store(fresh)
        await asyncio.sleep(pause_s)

    def begun(self, **changes: Any) -> StepRecord:
        """The step as it begins an attempt."""
        record = self.record
        return replace(record, code="", message="").moved(
            "running", attempt=record.attempt + 1, agent=self._agent, **changes
        )

    async def _parts(self, name: str) -> AgentParts:
        """The parts of an agent; one that is started again meanwhile is waited for. Raises AgentNotFound,
        AgentNotRunning.
        """
        for _ in range(_STARTING_TRIES):
            agent = self._run.registry.get(name)
            if agent.state == "running":
                break
            await asyncio.sleep(_STARTING_S)
        return self._run.registry.get(name).running_parts()

    def _turn(self, record: StepRecord, asks_for: AsksFor, **how: Any) -> StepTurn:
        run = self._run
        return StepTurn(run.session, run.record, record, asks_for=asks_for, keep=run.keep, **how)

    def _origin(self, turn: StepTurn, parts: AgentParts) -> Origin:
        above = self._shared.mail.above(turn)
        origin = Origin(
            definition=lambda: parts.definition, owner=self._run.record.owner, turn=turn, above=above
        )
        turn.origin = origin
        return origin

    def _within(self, record: StepRecord) -> Any:
        run = self._run.record
        return within(
            agent=record.agent,
            session=run.session,
            owner=run.owner,
            caller=run.owner,
            trace_id=record.trace_id,
            request_id=new_id("req"),
            correlation_id=self._run.correlation(record),
        )

    # A call

    async def _call(
        self, name: str, args: Mapping[str, Any], *, resumed: bool, needs_approval: bool = False
    ) -> None:
        step, record = self._step, self.record
        waits = resumed and record.asks_for == "approval"
        if resumed and record.trace_id and not waits:
            known, changed = await asyncio.to_thread(self._known)
            if changed:
                raise Unknown(known)
        begun = record if waits else self.begun(trace_id=new_id("trace"), call_id=new_id("call"))
        parts = await self._parts(begun.agent)
        found = parts.toolbox.find(*name.split(".", 1))
        made = {key: self.values.argument(name, key, value, found) for key, value in args.items()}
        call = ToolCall(id=begun.call_id, name=found.function, arguments=json.dumps(made))
        turn = self._turn(
            begun,
            "approval",
            judged=_judges(self._run, step, begun.agent) and not needs_approval,
            needs_approval=needs_approval
            or step.requires_approval
            or (bool(step.inverse) and name == step.call),
        )
        turn.terms = step.terms if name == step.call else None
        results = Results(turn.stream, self._shared.history.hurry)
        before = Before() if waits else Before([], [begun.change()])
        with self._within(begun):
            if not waits:
                before.events.append(begun.event(self._run.record.flow))
            self._run.told(begun)
            ran = ToolRun(call, parts.dispatcher, self._origin(turn, parts), results, before=before)
            outcome = await self._timed(turn, ran, results, begun.waits_for)
        self._run.told(turn.record)
        if self.record.is_over or self.record.ran:
            return
        code, message = failure_of(outcome)
        if code == _UNKNOWN and await self._changes():
            raise Unknown(message)
        raise StepFailed(code, message, again=_may_again(self._step, code))

    async def _timed(self, turn: StepTurn, ran: ToolRun, results: Results, waits_for: str) -> Outcome:
        """Run a call within the time of the step, which does not pass while a person is asked."""
        task = asyncio.current_task()
        calls = self._run.registry.get(turn.record.agent).calls
        calls.add(task)  # type: ignore[arg-type]  # an emergency stop cancels what is in it
        try:
            async with asyncio.timeout(self._step.timeout_s) as timer:
                turn.timer = timer
                return await ran.run(waits_for)
        except TimeoutError:
            changed = await self._changes()
            raise StepFailed(
                "timeout", f"It did not end within {self._step.timeout_s:g} seconds.", again=not changed
            ) from None
        finally:
            calls.discard(task)
            await uninterrupted(results.settle())

    async def _changes(self) -> bool:
        """Whether what this attempt did may have changed something."""
        _, changed = await asyncio.to_thread(self._known)
        return changed

    def _known(self) -> tuple[str, bool]:
        """What the history says of an attempt that did not end, and whether it may have changed something."""
        return ending_of(self._shared.history, self.record).known

    # A prompt

    async def _prompt(self, resumed: bool) -> None:
        turn = None
        if resumed and self.record.session:
            turn = await asked_in_child(self._run, self._step, self.record, None)
            if turn is None:
                ended = await asyncio.to_thread(ending_of, self._shared.history, self.record)
                if ended.answer is not None:
                    read = replace(self.record, output=cap_text(ended.answer, MOST_OUTPUT_BYTES), ran=True)
                    await self._run.store(read, changes=self._taint(read.session, ended.tainted), told=False)
                    return
                if ended.known[1]:
                    raise Unknown(ended.known[0])
        if turn is None:
            prompt = self.values.prompt(self._step)
            await self._parts(self._agent)
            begun = self.begun(session=new_id("ses"), trace_id="")
            turn = await asked_in_child(self._run, self._step, begun, prompt)
        assert turn is not None
        if turn.failure is not None:
            again = not await self._changes()
            raise StepFailed(turn.failure.code, turn.failure.message, again=again)
        answer = cap_text(self._shared.history.redactor.text(turn.answer), MOST_OUTPUT_BYTES)
        used = turn.meter.totals() if turn.meter is not None else {}
        taint = self._taint(turn.trace_id, turn.session.record.tainted)
        done = replace(self.record, output=answer, used=used, ran=True)
        await _done(self._run, self._step, done, changes=taint)

    def _taint(self, by: str, tainted: bool) -> Sequence[Change]:
        """What to store with an output that comes from another session, which may be tainted."""
        return self._run.session.after_call(by, taints=tainted, host="")

    # Another flow

    async def _nested(self) -> None:
        assert self._step.flow is not None
        run = await self._run.flows.nested(self._run, self, self._step.flow, _inputs(self._step, self.values))
        state, message, output = await run.result(self._step.timeout_s)
        if state != "success":
            raise StepFailed("child_failed", message, again=state != "cancelled")
        taint = self._taint(run.record.id, run.session.record.tainted)
        await _done(self._run, self._step, replace(self.record, output=output), changes=taint)

    # Questions to people

    async def _question(self) -> None:
        step = self._step
        assert step.ask is not None
        question = as_text(filled(step.ask, self.values.look_up))
        found = await self._ask("answer", question, step.choices, timeout_s=step.timeout_s)
        events, changes = self._shared.asked.inputs.taken(found.id)
        answered = replace(self.record, output=found.answer)
        await _done(self._run, self._step, answered, events=events, changes=changes)

    async def _ask_to_begin(self) -> None:
        step = self._step
        what = self.values.prompt(self._step).question if step.prompt else _named(step, self.values)
        found = await self._ask("begin", f"May the step {self.name} begin? It runs: {what}", ("yes", "no"))
        events, changes = self._shared.asked.inputs.taken(found.id)
        if found.answer != "yes":
            await self._run.store(self.record, events=events, changes=changes, told=False)
            raise StepFailed("approval_denied", "A person did not let it begin.", again=False)
        allowed = replace(self.record, allowed=True, waits_for="", asks_for="")
        await self._run.store(allowed, events=events, changes=changes, told=False)

    async def _ask_what_it_did(self, known: str) -> None:
        """Have a person say what became of an attempt. Raises StorageError, Suspended."""
        what = self._step.call or self._step.kind
        question = (
            f"The step {self.name} ({what}) of the flow {self._run.record.flow} was stopped in the middle,"
            f" and may have changed something. {known}".strip()
        )
        try:
            found = await self._ask("unknown", question, (AGAIN, DONE, FAILED))
        except StepFailed as err:
            await self._run.store(self.record.moved("failed", code=_UNKNOWN, message=err.message))
            return
        except StorageError:
            raise
        except LightagentError as err:
            await self._run.store(self.record.moved("failed", code=_UNKNOWN, message=err.message))
            return
        events, changes = self._shared.asked.inputs.taken(found.id)
        if found.answer == AGAIN:
            fresh = replace(self.record.again(), tries=self.record.tries, allowed=self.record.allowed)
        elif found.answer == DONE:
            fresh = self.record.moved("success", message="A person said that it is done.")
        else:
            fresh = self.record.moved("failed", code=ToolError.code, message="A person said that it failed.")
        await self._run.store(fresh, events=events, changes=changes)

    async def _ask(
        self, asks_for: AsksFor, question: str, choices: Sequence[str], timeout_s: float | None = None
    ) -> Input:
        """The answer of a person. Raises StepFailed when there is none."""
        record, inputs = self.record, self._shared.asked.inputs
        waits = bool(record.waits_for) and record.asks_for == asks_for
        if not waits:
            record = replace(record, agent=record.agent or self._agent)
            record = replace(record, call_id=new_id("call"), trace_id=record.trace_id or new_id("trace"))
            record = record if asks_for == "unknown" else record.moved("running", attempt=record.attempt + 1)
        parts = await self._parts(record.agent)
        turn = self._turn(record, asks_for)
        origin = self._origin(turn, parts)
        with self._within(record):
            if waits:
                found = await answer_to(inputs.questions, record.waits_for, origin, turn.stream)
            else:
                found = await ask(
                    inputs,
                    origin,
                    turn.stream,
                    f"the step {self.name}",
                    call_id=record.call_id,
                    question=cap_text(question, 4 * SAID_BYTES),
                    choices=choices,
                    timeout_s=timeout_s,
                )
        if found.state is State.ANSWERED:
            return found
        why = "Nobody answered in time." if found.state is State.EXPIRED else "The question was dropped."
        events, changes = inputs.taken(found.id)
        await self._run.store(self.record, events=events, changes=changes, told=False)
        raise StepFailed("timeout" if found.state is State.EXPIRED else "cancelled", why, again=False)

    # What is behind the doing

    async def _judge(self) -> None:
        """Whether the output is what it should be. Raises StepFailed, StorageError."""
        step, record = self._step, self.record
        if step.schema_ is not None and step.kind == "call":
            _, misfits = await fitting(step.schema_, record.output)
            if misfits:
                raise StepFailed(
                    "answer_misfit", f"The output does not fit the schema: {'; '.join(misfits)[:800]}"
                )
        if step.check:
            await self._check(step.check)
        about = about_step(self._run.record, record.agent or self._agent, self.name, step.kind)
        said = await after_step(self._shared.hooks, about, record.output)
        await self._run.store(replace(self.record, output=said).moved("success"))

    async def _check(self, template: str) -> None:
        """Run the command that observes whether the step did what it should."""
        command = quoted_for_shell(template, self.values.look_up)
        args = {"command": command, "effect": Effect.OBSERVE.value}
        parts, record = await self._parts(self.record.agent or self._agent), self.record
        call = ToolCall(id=new_id("call"), name="bash_exec", arguments=json.dumps(args))
        turn = self._turn(record, "")
        origin = replace(self._origin(turn, parts), own="check")
        results = Results(turn.stream, self._shared.history.hurry)
        with self._within(record):
            try:
                outcome = await ToolRun(call, parts.dispatcher, origin, results).run()
            finally:
                await uninterrupted(results.settle())
        code, message = failure_of(outcome)
        if code:
            await self._run.store(replace(self.record, ran=False, code="command_failed"), told=False)
            failed = "command_failed"
            raise StepFailed(
                failed, f"Its check did not pass: {message}", again=_may_again(self._step, failed)
            )


def _judges(run: Run, step: Step, agent: str) -> bool:
    """Whether an output is looked at before the step is a success."""
    shaped = step.schema_ is not None and step.kind == "call"
    heard = run.shared.hooks.has("after_flow_step", agent or run.record.agent)
    return bool(step.check) or shaped or heard


async def _done(run: Run, step: Step, record: StepRecord, **with_it: Any) -> None:
    """Store an output, as a success if nothing judges it first. Raises StorageError."""
    if _judges(run, step, record.agent):
        await run.store(replace(record, ran=True), told=False, **with_it)
    else:
        await run.store(record.moved("success"), **with_it)


def _inputs(step: Step, values: Values) -> dict[str, Any]:
    """What a step gives to the flow that it runs."""
    return {key: filled(one, values.look_up) for key, one in step.inputs.items()}


def _named(step: Step, values: Values) -> str:
    """The flow that a step runs, with its inputs, for a person who lets it begin."""
    given = ", ".join(
        f"{key} = {json.dumps(one, ensure_ascii=False)}" for key, one in _inputs(step, values).items()
    )
    return f"the flow {step.flow}" + (f" with {given}" if given else "")


def _may_again(step: Step, code: str) -> bool:
    """Whether a call that failed, or a step whose check did not pass, may be tried again."""
    return step.kind == "call" and code not in ("approval_denied", "policy_denied", "hook_blocked")
