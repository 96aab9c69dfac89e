"""One run of a flow, while it goes on: begins steps when those before them are over, and ends the run.

Everything that it knows is stored; what is here is a copy, which a failed write or a restart makes anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from lightagentd.agents.flows.records import RunRecord, StepRecord, aggregate, now_us
from lightagentd.agents.flows.step import StepFailed, StepWork
from lightagentd.agents.flows.values import NOTHING, Values
from lightagentd.agents.turn import Turn
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.flows.conditions import Condition, Outcome
from lightagentd.config.flows.definition import MOST_ITEMS, Flow, Step
from lightagentd.config.flows.references import filled
from lightagentd.errors import Cancelled, LightagentError, LimitExceeded, StorageError, TimedOut
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import within as event_context
from lightagentd.events.types.flow import FlowEnded
from lightagentd.policy.questions.questions import Suspended

if TYPE_CHECKING:
    from lightagentd.agents.flows.flows import Flows
    from lightagentd.agents.registry import Registry
    from lightagentd.agents.sessions.session import Session

_log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""How soon a run goes on after the disk took no writes."""


class Run:
    """One run. `begin` it once; it ends by itself, or with the daemon."""

    def __init__(
        self, flows: Flows, record: RunRecord, flow: Flow, session: Session, steps: Sequence[StepRecord]
    ) -> None:
        self.flows, self.record, self.flow, self.session = flows, record, flow, session
        self.registry: Registry = flows.registry
        self.shared = flows.registry.shared
        self.steps = {one.name: one for one in steps}
        self.handled: dict[str, list[str]] = {}
        """The steps whose failure a step handles, by its name."""
        for one in flow.step:
            if one.handler:
                self.handled.setdefault(one.handler, []).append(one.name)
        self.asked_turns: set[Turn] = set()
        """The turns of its prompts that go on."""
        self.ended = asyncio.Event()
        """Set when nothing of it goes on in this run of the daemon."""
        self.changed = asyncio.Event()
        """Set, and then another one, when something of it is in another state."""
        self._room = asyncio.Semaphore(flow.at_once)
        self._task: asyncio.Task[None] | None = None
        self._cancelled: LightagentError | None = None
        self._halted = ""
        """Why no more steps begin."""

    # What is stored

    def keep(self, record: StepRecord) -> None:
        """Take the newest state of a step, which is on its way to the disk."""
        self.steps[record.name] = record

    async def store(
        self,
        *records: StepRecord,
        events: Sequence[NewEvent] = (),
        changes: Sequence[Change] = (),
        told: bool = True,
    ) -> None:
        """Store steps with events and changes, in one transaction. Raises StorageError, SessionNotFound."""
        self.session.check_there()
        with self.within():
            own = [one.event(self.record.flow) for one in records] if told else []
        stored = [one.change() for one in records]
        appended = self.shared.history.append(*events, *own, changes=[*changes, *stored])

        async def taken() -> None:
            await appended
            for one in records:
                self.keep(one)
            self.ring()

        await uninterrupted(taken())  # a cancel must not take what is stored for undone

    def told(self, record: StepRecord) -> None:
        """A step was stored by one of its calls."""
        self.keep(record)
        self.ring()

    def ring(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def correlation(self, record: StepRecord) -> str:
        """By which the events of a step's attempt are found."""
        return f"flow:{self.record.id}:{record.name}:{record.attempt}"[:256]

    def within(self) -> Any:
        """The context of its own events, as a `with` block."""
        record = self.record
        return event_context(
            agent=record.agent, session=record.session, owner=record.owner, caller=record.owner, trace_id=""
        )

    # Its life

    def begin(self) -> None:
        self.session.ends = self.end_for_deletion
        with event_context(client=self.record.client):
            self._task = asyncio.create_task(self._live(), name=f"flow-{self.record.id}")

    async def close(self) -> None:
        """Stop it with the daemon: the next start goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def cancel(self, why: LightagentError) -> None:
        """Cancel it, and wait for that. Raises StorageError."""
        is_first, self._cancelled = self._cancelled is None, self._cancelled or why
        for turn in list(self.asked_turns):
            turn.cancel(why)
        if is_first and self._task is not None and not self._task.done():
            self._task.cancel()
        await self.ended.wait()

    async def end_for_deletion(self) -> None:
        """Its session is deleted, and it with that."""
        for turn in list(self.asked_turns):
            turn.cancel(Cancelled("The run of its flow was deleted."))
        await self.close()
        self.flows.forget(self)
        below = [self.flows.runs[one.nested] for one in self.steps.values() if one.nested in self.flows.runs]
        for run in below:
            await run.cancel(Cancelled("The run of which it is a step was deleted."))

    async def result(self, timeout_s: float | None) -> tuple[str, str, str]:
        """Wait for its end; gives its state, its message and its output. Raises Suspended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended.wait()
        except TimeoutError:
            await self.cancel(TimedOut(f"It did not end within {timeout_s:g} seconds."))
        if self.record.state == "running":
            raise Suspended
        return self.record.state, self.record.message, self.output

    @property
    def output(self) -> str:
        """The output of the last of its steps that has one."""
        found = [self.steps[step.name] for step in self.flow.step if step.name in self.steps]
        return next((one.output for one in reversed(found) if one.state == "success" and one.output), "")

    async def _live(self) -> None:
        """Run to the end; a disk that takes no writes is tried again, from what is stored."""
        try:
            while True:
                try:
                    await self._run()
                    return
                except StorageError as err:
                    _log.warning(
                        "the run %s of the flow %s waits: %s", self.record.id, self.record.flow, err.message
                    )
                try:
                    await asyncio.sleep(AGAIN_S)
                except asyncio.CancelledError:
                    if self._cancelled is None:
                        raise
                self.steps = {one.name: one for one in self.flows.stored.steps(self.record)}
        except Suspended:
            pass
        except LightagentError as err:
            _log.warning("the run %s of the flow %s stops: %s", self.record.id, self.record.flow, err.message)
            await _stopped_by(self, err)
        except Exception:  # noqa: BLE001 - the boundary of a run: logged, and it can be resumed
            _log.exception("the run %s of the flow %s stops", self.record.id, self.record.flow)
            await _stopped_by(
                self, LightagentError("A fault of the daemon stopped it; the journal has more.")
            )
        finally:
            if self.record.state != "running" or not self.flows.closing:
                self.flows.forget(self)
            self.ended.set()
            self.ring()

    async def _run(self) -> None:
        left_s = self.flow.timeout_s - (now_us() - self.record.started_us) / 1_000_000
        before = self._cancelled
        if before is not None:  # that could not be stored
            await self._end_cancelled()
            return
        try:
            async with asyncio.timeout(max(left_s, 0.001)) as timer:
                await self._take_steps()
            await self._end()
        except TimeoutError:
            if not timer.expired():
                raise
            self._cancelled = TimedOut(f"The run did not end within {self.flow.timeout_s:g} seconds.")
            await self._end_cancelled()
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise
            if self.record.state == "running":
                await uninterrupted(self._end_cancelled())

    async def _take_steps(self) -> None:
        """Begin each step when those before it are over. Raises StorageError, Suspended."""
        sorter = TopologicalSorter(self.flow.before())
        sorter.prepare()
        steps = {step.name: step for step in self.flow.step}
        tasks: dict[asyncio.Task[None], str] = {}
        stopped: BaseException | None = None
        try:
            while True:
                stopped = stopped or (Suspended() if self.flows.closing else None)
                ready = [] if self._halted or stopped is not None else list(sorter.get_ready())
                for name in ready:
                    if name in self.steps and self.steps[name].is_over:
                        self._over(steps[name], sorter)
                    else:
                        tasks[asyncio.create_task(self._kept(steps[name]), name=name)] = name
                if not tasks:
                    if ready:
                        continue
                    break
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = tasks.pop(task)
                    try:
                        task.result()
                    except (Suspended, StorageError) as err:
                        stopped = err  # the others come to their ends
                    else:
                        self._over(steps[name], sorter)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await uninterrupted(asyncio.wait(list(tasks)))
        if stopped is not None and sorter.is_active() and not self._halted:
            raise stopped

    def _over(self, step: Step, sorter: TopologicalSorter[str]) -> None:
        record = self.steps[step.name]
        if record.state == "failed" and step.on_failure == "stop":
            self._halted = self._halted or f"the step {step.name} failed: {record.message}"
        elif record.state == "cancelled":
            self._halted = self._halted or f"the step {step.name} was cancelled: {record.message}"
        sorter.done(step.name)

    async def _kept(self, step: Step) -> None:
        """Run a step, and again from what is stored while the disk takes no writes: others go on meanwhile,
        or wait for a person. Raises StorageError when the daemon stops, Suspended.
        """
        while True:
            try:
                await self._step(step)
                return
            except StorageError as err:
                if self.flows.closing:
                    raise
                _log.warning("the step %s of the run %s waits: %s", step.name, self.record.id, err.message)
            await asyncio.sleep(AGAIN_S)
            stored = [one for one in self.flows.stored.steps(self.record) if one.of == step.name]
            others = {name: one for name, one in self.steps.items() if one.of != step.name}
            self.steps = others | {one.name: one for one in stored}

    async def _step(self, step: Step) -> None:
        """Run a step to its end, whatever that is. Raises StorageError, Suspended."""
        record = self.steps.get(step.name) or StepRecord(run=self.record.id, name=step.name)
        self.keep(record)
        begins = record.state == "pending" and not record.tries
        if begins and (decided := _decided(self, step, record)) is not None:
            await self.store(decided)
            return
        if step.for_each is not None:
            await self._each(step)
            return
        async with self._room:
            if not self._halted:
                await self._to_end(StepWork(self, step, step.name))

    async def _to_end(self, work: StepWork) -> None:
        """Also to the end of a cancel."""
        try:
            await work.work()
        except asyncio.CancelledError:
            why = self._cancelled or (self.shared.panic.error() if self.shared.panic.on else None)
            if why is None:
                raise
            await uninterrupted(work.cancel(why))
            if self._cancelled is not None:
                raise

    async def _each(self, step: Step) -> None:
        """Run a step once for each item. Raises StorageError, Suspended."""
        record = self.steps[step.name]
        look_up = Values(self, NOTHING).look_up
        try:
            items = step.for_each if isinstance(step.for_each, tuple) else filled(step.for_each, look_up)
            if not isinstance(items, list | tuple):
                raise StepFailed("invalid_argument", "for_each is no list.")
            if len(items) > MOST_ITEMS:
                said = f"for_each has {len(items)} items, and {MOST_ITEMS} is the most."
                raise StepFailed("limit_exceeded", said)
        except (StepFailed, LightagentError) as err:
            await self.store(record.moved("failed", code=err.code, message=err.message))
            return
        if record.state == "pending":
            await self.store(record.moved("running", attempt=record.attempt + 1))
        room, names = (
            asyncio.Semaphore(step.at_once),
            [f"{step.name}/{place:04d}" for place in range(len(items))],
        )

        async def one(name: str, item: Any) -> None:
            async with room, self._room:
                if self.flows.closing:
                    raise Suspended
                failed = any(self.steps[other].state == "failed" for other in names if other in self.steps)
                if not (failed and step.on_failure == "stop") and not self._halted:
                    await self._to_end(StepWork(self, step, name, item))

        pending = [(name, item) for name, item in zip(names, items, strict=True) if not _is_over(self, name)]
        tasks = [asyncio.create_task(one(name, item), name=name) for name, item in pending]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await uninterrupted(asyncio.wait(tasks))
        for result in results:
            if isinstance(result, BaseException):
                raise result
        found = [self.steps[name] for name in names if name in self.steps]
        bad = [one for one in found if one.state not in ("success", "skipped")]
        if bad or len(found) < len(names):
            first = bad[0] if bad else None
            said = (
                f"{len(bad)} of {len(names)} failed; {first.name}: {first.message}"
                if first
                else "It was stopped."
            )
            code = first.code if first is not None else Cancelled.code
            await self.store(self.steps[step.name].moved("failed", code=code, message=said))
        else:
            await self.store(self.steps[step.name].moved("success", output=aggregate(found)))

    # Its end

    async def _end(self) -> None:
        cancelled = [one for one in self.steps.values() if one.state == "cancelled"]
        if cancelled:
            await self.finish("cancelled", cancelled[0].code, cancelled[0].message)
        elif self._halted:
            await self._offer_undoing()
            failed = next(one for one in self.steps.values() if one.state == "failed")
            await self.finish("failed", failed.code, self._halted[:1].upper() + self._halted[1:])
        else:
            await self.finish("success", "", "")

    async def _end_cancelled(self) -> None:
        """Store that the run and its steps that were not over are cancelled."""
        assert self._cancelled is not None
        steps = {step.name: step for step in self.flow.step}
        for record in list(self.steps.values()):
            if record.state in ("running", "waiting_approval") and record.of in steps:
                await StepWork(self, steps[record.of], record.name).cancel(self._cancelled)
        state = "failed" if isinstance(self._cancelled, TimedOut) else "cancelled"
        await self.finish(state, self._cancelled.code, self._cancelled.message)

    async def finish(self, state: Any, code: str, message: str) -> None:
        """Raises StorageError."""
        own = {step.name for step in self.flow.step}
        over = sum(1 for one in self.steps.values() if one.is_over and one.name in own)
        done = replace(self.record, state=state, code=code, message=message, ended_us=now_us(), done=over)
        took_s = (done.ended_us - done.started_us) / 1_000_000
        said = f"{done.flow}: {state}" + (f": {message}" if message else f" after {took_s:.1f} s")
        more = {"code": code} if code else {}
        with self.within():
            event = FlowEnded(message=said, run=done.id, flow=done.flow, state=state, **more).event()
        appended = self.shared.history.append(event, changes=[done.change()])

        async def taken() -> None:
            await appended
            self.record = done

        await uninterrupted(taken())

    async def _offer_undoing(self) -> None:
        """Offer to a person to take back what the steps did, the last first. Raises StorageError,
        Suspended.
        """
        steps = [step for step in self.flow.step if step.undo is not None]
        steps = [step for step in steps if self.steps.get(step.name, _PENDING).state == "success"]
        for step in sorted(steps, key=lambda one: self.steps[one.name].ended_us, reverse=True):
            assert step.undo is not None
            undoing = step.model_copy(
                update={
                    "call": step.undo.call,
                    "args": step.undo.args,
                    "prompt": None,
                    "undo": None,
                    "requires_approval": True,
                    "max_retry": 0,
                    "check": "",
                    "schema_": None,
                    "when": (),
                    "for_each": None,
                    "fallback_agent": None,
                }
            )
            await self._to_end(StepWork(self, undoing, f"{step.name}/undo"))


async def _stopped_by(run: Run, err: LightagentError) -> None:
    """Store that something stopped a run for which no step accounts, so that it is seen and can go on."""
    if not run.session.deleted:
        with contextlib.suppress(LightagentError):  # then the next start goes on with it
            await run.finish("failed", err.code, err.message)


_PENDING = StepRecord(run="run_", name="")


def _is_over(run: Run, name: str) -> bool:
    return name in run.steps and run.steps[name].is_over


def _decided(run: Run, step: Step, record: StepRecord) -> StepRecord | None:
    """The step as its conditions end it; None when it runs."""
    try:
        if why := _skips(run, step):
            return record.moved("skipped", message=why)
        if step.cancel_if and _hold(run, step.cancel_if):
            why = f"The condition cancel_if of the step {step.name} holds."
            return record.moved("cancelled", code=Cancelled.code, message=why)
    except LimitExceeded as err:
        return record.moved("failed", code=err.code, message=f"{err.message} {err.suggestion}")
    return None


def _skips(run: Run, step: Step) -> str:
    """Why a step is skipped, as a sentence; empty when it is not."""
    for_failure = run.handled.get(step.name, ())
    if for_failure and not any(run.steps[name].state == "failed" for name in for_failure):
        return f"{for_failure[0]} did not fail."
    return "" if _hold(run, step.when) else "Its condition when does not hold."


def _hold(run: Run, conditions: Sequence[Condition]) -> bool:
    outcomes: dict[str, Outcome] = {
        one.step: run.steps[one.step].outcome() for one in conditions if one.step in run.steps
    }
    return all(one.holds(outcomes, run.record.inputs) for one in conditions)
