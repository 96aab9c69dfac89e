"""All runs of flows: has them run, go on after a restart, run again, and end.

A run belongs to a session of its owner, and its prompts to child sessions of that one. What it runs is stored
with it, so a changed file changes nothing of a run that goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents import hook_phases
from lightagentd.agents.builtin.flows import FLOWS, FlowsTool
from lightagentd.agents.flows.files import FlowFiles
from lightagentd.agents.flows.records import (
    DEFINITIONS,
    RUNS,
    RunRecord,
    StepRecord,
    definition_change,
    digest_of,
    now_us,
)
from lightagentd.agents.flows.run import Run
from lightagentd.agents.flows.store import FlowStore
from lightagentd.agents.sessions.session import Session, SessionRecord, new_record
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.flows.definition import Flow
from lightagentd.config.flows.references import as_text
from lightagentd.errors import (
    Cancelled,
    Conflict,
    HistoryDamaged,
    LightagentError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Panicked,
    ShuttingDown,
    TimedOut,
)
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import current_context, within
from lightagentd.events.types.flow import FlowStarted
from lightagentd.events.types.session import SessionCreated

if TYPE_CHECKING:
    from lightagentd.agents.flows.step import StepWork
    from lightagentd.agents.registry import Registry

_log = logging.getLogger(__name__)

StoredWith = Callable[[Session], tuple[Sequence[NewEvent], Sequence[Change]]]

MOST_RUNS = 1000
"""How many runs may go on at once."""
_CUT_OFF = (OutcomeUnknown.code, Cancelled.code, TimedOut.code, Panicked.code)
"""How a step ends that did not come to an end of its own."""
MOST_NESTED = 8
"""How deep flows may run flows."""


class Flows:
    """Start with `start()`, once the agents run; end with `close()`."""

    def __init__(self, registry: Registry, files: FlowFiles) -> None:
        self.registry, self.files = registry, files
        self._history = registry.shared.history
        self.runs: dict[str, Run] = {}
        """Those that go on."""
        self.closing = False
        self.stored = FlowStore(self._history)
        self._changing = asyncio.Lock()
        """Held while a run is made or has to go on again."""
        tool = registry.shared.builtins.tool(FLOWS)
        assert isinstance(tool, FlowsTool)
        tool.bind(self)

    async def start(self) -> None:
        """Go on with the runs that are not over. Raises StorageError."""
        rows = self._history.queries.state(RUNS)
        used: set[str] = set()
        for key, value in rows.items():
            record = RunRecord.from_dict(value)
            used.add(record.digest)
            if record.state != "running":
                continue
            try:
                self._begin(self._stored(record))
            except LightagentError as err:
                _log.warning("the run %s of the flow %s stays: %s", key, record.flow, err.message)
        gone = self._history.queries.state(DEFINITIONS).keys() - used
        if gone:
            changes = [Change(state=DEFINITIONS, key=key, value=None) for key in gone]
            await self._history.append(changes=changes)

    async def close(self) -> None:
        """Stop all runs; they go on at the next start."""
        self.closing = True
        await asyncio.gather(*(run.close() for run in list(self.runs.values())))

    async def drain(self) -> None:
        """Begin no more steps, and wait until those that run are over."""
        self.closing = True
        await asyncio.gather(*(run.ended.wait() for run in list(self.runs.values())))

    def forget(self, run: Run) -> None:
        self.runs.pop(run.record.id, None)

    # What is stored

    def record(self, run_id: str) -> RunRecord:
        """Raises NotFound."""
        if run_id in self.runs:
            return self.runs[run_id].record
        return self.stored.record(run_id)

    def of_session(self, session: Session) -> Run | None:
        """The run that a session belongs to, which goes on or is over; None when it is no run's."""
        try:
            return self.of_record(self.record(f"run_{session.id.partition('_')[2]}"))
        except NotFound:
            return None

    def of_record(self, record: RunRecord) -> Run:
        """A run that goes on or is over. Raises SessionNotFound, HistoryDamaged."""
        if record.id in self.runs:
            return self.runs[record.id]
        run = self._stored(record)
        run.ended.set()
        return run

    def steps(self, record: RunRecord) -> list[StepRecord]:
        """The steps of a run, as they are now."""
        run = self.runs.get(record.id)
        return [*run.steps.values()] if run is not None else self.stored.steps(record)

    def _stored(self, record: RunRecord) -> Run:
        """Raises SessionNotFound, HistoryDamaged."""
        return Run(
            self, record, self.stored.definition(record), self._session(record), self.stored.steps(record)
        )

    def _session(self, record: RunRecord) -> Session:
        """Raises SessionNotFound, HistoryDamaged."""
        try:
            return self.registry.session(record.session)[1]
        except NotFound:  # its agent is gone
            value = self._history.queries.state_of("sessions", record.session)
            return Session(SessionRecord.from_dict(value), self._history)

    def _begin(self, run: Run) -> Run:
        self.runs[run.record.id] = run
        run.begin()
        return run

    # Running

    async def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        owner: int,
        *,
        unattended: bool = False,
        trigger: str = "",
        sent_by: Sequence[dict[str, Any]] = (),
        tainted: bool = False,
        stored_with: StoredWith = lambda _: ((), ()),
    ) -> Run:
        """Have a flow run; gives the run once it is stored. `stored_with` gives what to store with it. Raises
        NotFound, ConfigError, InvalidArgument, LimitExceeded, ShuttingDown, StorageError.
        """
        flow = self.files.get(name)
        record = self._new(self.files.file(name).name, flow, flow.given(inputs), owner)
        record = replace(record, unattended=unattended, trigger=trigger, sent_by=tuple(sent_by))
        return await self._make(record, flow, stored_with=stored_with, tainted=tainted)

    async def nested(self, above: Run, work: StepWork, name: str, inputs: Mapping[str, Any]) -> Run:
        """The run that is a step of another: a new one, or the one that it began with. Raises as `run`."""
        if found := work.record.nested:
            if found in self.runs:
                return self.runs[found]
            record = self.record(found)
            if record.state in ("failed", "cancelled") and work.record.state == "pending":
                return await self._resume(record)
            return self.of_record(record)
        depth, parent = 1, self._above(above.record)
        while parent is not None:
            depth, parent = depth + 1, self._above(parent)
        if depth >= MOST_NESTED:
            raise LimitExceeded(f"Flows run flows {MOST_NESTED} deep here, which is the most.")
        flow = self.files.get(name)
        texts = {key for key, one in flow.inputs.items() if one.type == "string"}
        inputs = {key: as_text(one) if key in texts else one for key, one in inputs.items()}
        of = above.record
        record = self._new(self.files.file(name).name, flow, flow.given(inputs), of.owner)
        record = replace(
            record, unattended=of.unattended, trigger=of.trigger, sent_by=of.sent_by, parent=of.id
        )
        begun = work.begun(nested=record.id)
        with above.within():
            events = [begun.event(of.flow)]
        tainted = above.session.record.tainted
        try:
            return await self._make(
                record, flow, stored_with=lambda _: (events, [begun.change()]), tainted=tainted
            )
        finally:
            if record.id in self.runs:
                above.told(begun)

    def _new(self, name: str, flow: Flow, inputs: dict[str, Any], owner: int) -> RunRecord:
        agent = flow.agent or next((step.agent for step in flow.step if step.agent), "")
        session = new_record(agent, owner, "")
        return RunRecord(
            id=f"run_{session.id.partition('_')[2]}",
            flow=name,
            digest=digest_of(flow),
            owner=owner,
            agent=agent,
            inputs=inputs,
            client=current_context().client,
            started_us=now_us(),
        )

    async def _make(
        self,
        record: RunRecord,
        flow: Flow,
        steps: Sequence[StepRecord] = (),
        *,
        stored_with: StoredWith = lambda _: ((), ()),
        tainted: bool = False,
    ) -> Run:
        """Store a new run with its session, and begin it."""
        if self.closing:
            raise ShuttingDown("The daemon stops; have it run again after the next start.")
        if len(self.runs) >= MOST_RUNS:
            raise LimitExceeded(f"{MOST_RUNS} runs of flows go on, which is the most.")
        self.registry.shared.panic.check()
        made = replace(
            new_record(record.agent, record.owner, f"flow {record.flow}"),
            id=record.session,
            run=record.id,
            tainted=tainted,
            tainted_by=record.id if tainted else "",
        )
        session = Session(made, self._history)
        run = Run(self, record, flow, session, steps)
        with within(caller=record.owner), session.context():
            created = SessionCreated(title=made.title).event()
            started = self._started(record, again=record.copied_from)
            events, changes = stored_with(session)
        stored = [made.change(), record.change(), definition_change(record.digest, flow)]
        stored += [one.change() for one in steps]
        appended = self._history.append(created, started, *events, changes=[*stored, *changes])

        async def begun() -> Run:
            await appended
            if record.agent in self.registry.agents:
                self.registry.agents[record.agent].adopt(session)
            return self._begin(run)

        return await uninterrupted(begun())  # what is stored runs, also when who asked for it went away

    def _started(self, record: RunRecord, *, again: str = "") -> NewEvent:
        more = {"again": again} if again else {}
        said = f"{record.flow} runs" + (f" ({again})" if again else "")
        return FlowStarted(
            message=said, run=record.id, flow=record.flow, digest=record.digest, inputs=record.inputs, **more
        ).event()

    # Going on

    async def resume(self, run_id: str) -> Run:
        """Go on with a run that failed or was cancelled, with the definition that it began with: what is done
        stays done. Raises NotFound, Conflict, StorageError.
        """
        async with self._changing:
            record = self._at_rest(run_id)
            await hook_phases.before_again(self.registry.shared.hooks, "on_resume", record)
            return await self._resume(record)

    async def _resume(self, record: RunRecord) -> Run:
        steps = self.stored.steps(record)
        undone = _undone(steps)
        changed = [_resumed(one) for one in steps if _resumable(one) or one.of in undone]
        return await self._again(record, self.stored.definition(record), steps, changed, "resume")

    async def rerun(self, run_id: str, step: str, *, new: bool = False) -> Run:
        """Run a step of a run that is over again, and all behind it; `new`: with the definition as it is now.

        Raises NotFound, Conflict, ConfigError, StorageError.
        """
        async with self._changing:
            record = self._at_rest(run_id)
            await hook_phases.before_again(self.registry.shared.hooks, "on_rerun", record, step=step)
            flow = self.files.get(record.flow) if new else self.stored.definition(record)
            steps = self.stored.steps(record)
            again = _behind(flow, step) | _undone(steps)
            changed = [one.again() for one in steps if one.of in again or _resumable(one)]
            record = replace(record, digest=digest_of(flow), inputs=flow.given(record.inputs))
            return await self._again(record, flow, steps, changed, "rerun")

    async def fork(self, run_id: str, step: str, owner: int, *, inputs: Mapping[str, Any]) -> Run:
        """A new run that begins at a step, with the outputs that another one has for those before. Raises
        NotFound, ConfigError, InvalidArgument, StorageError.
        """
        of = self.record(run_id)
        flow = self.files.get(of.flow)
        again = _behind(flow, step)
        names = {one.name for one in flow.step} - again
        kept = [one for one in self.steps(of) if one.of in names and one.state in ("success", "skipped")]
        if missing := sorted(names - {one.of for one in kept} - _not_before(flow, step)):
            raise Conflict(f"The run {of.id} has no output of the step {missing[0]}, which is before {step}.")
        record = self._new(of.flow, flow, flow.given({**of.inputs, **inputs}), owner)
        record = replace(record, copied_from=of.id)
        value = self._history.queries.state_of("sessions", of.session)
        tainted = SessionRecord.from_dict(value).tainted
        copied = [replace(one, run=record.id) for one in kept]
        return await self._make(record, flow, copied, tainted=tainted)

    def _at_rest(self, run_id: str) -> RunRecord:
        """Raises NotFound, Conflict."""
        record = self.record(run_id)
        if record.id in self.runs:
            waits = [one.waits_for for one in self.runs[record.id].steps.values() if one.waits_for]
            hint = (
                f"It waits for an answer: {', '.join(waits)}"
                if waits
                else f"See: lactl flows show {record.id}"
            )
            raise Conflict(f"The run {record.id} goes on.", suggestion=hint)
        above = self._above(record)
        if above is not None and above.state == "running":
            raise Conflict(f"The run {record.id} is a step of {record.parent}, which goes on.")
        return record

    def _above(self, record: RunRecord) -> RunRecord | None:
        """The run of which one is a step; None also when that is deleted."""
        with contextlib.suppress(NotFound):
            return self.record(record.parent) if record.parent else None
        return None

    async def _again(
        self,
        record: RunRecord,
        flow: Flow,
        steps: Sequence[StepRecord],
        changed: Sequence[StepRecord],
        why: str,
    ) -> Run:
        if self.closing:
            raise ShuttingDown("The daemon stops; try it again after the next start.")
        self.registry.shared.panic.check()
        record = replace(record, state="running", code="", message="", ended_us=0, started_us=now_us())
        names = {one.name for one in changed}
        kept = [one for one in steps if one.name not in names]
        gone = [one for one in changed if "/" in one.name]
        changed = [one for one in changed if "/" not in one.name or one.state == "running" or one.nested]
        made = Run(self, record, flow, self._session(record), [*kept, *changed])
        with within(agent=record.agent, session=record.session, owner=record.owner):
            events = [self._started(record, again=why), *(one.event(record.flow) for one in changed)]
        stored = [record.change(), definition_change(record.digest, flow), *(one.change() for one in changed)]
        stored += [one.change(there=False) for one in gone if one not in changed]
        appended = self._history.append(*events, changes=stored)

        async def begun() -> Run:
            await appended
            return self._begin(made)

        return await uninterrupted(begun())

    async def cancel(self, run_id: str) -> RunRecord:
        """Cancel a run and its nested ones; gives it once that is stored. Raises NotFound, Conflict,
        StorageError.
        """
        record = self.record(run_id)
        run = self.runs.get(record.id)
        if run is None:
            if record.state != "running":
                raise Conflict(f"The run {record.id} is over: {record.state}.")
            try:
                run = self._stored(record)
            except HistoryDamaged:  # its definition is gone, which nobody needs to cancel it
                run = Run(self, record, Flow.model_construct(step=()), self._session(record), [])
            run.ended.set()
            await run.finish("cancelled", Cancelled.code, "A person cancelled it.")
            return run.record
        await run.cancel(Cancelled("A person cancelled the run."))
        return run.record


def _resumable(record: StepRecord) -> bool:
    return record.state in ("failed", "cancelled")


def _undone(steps: Sequence[StepRecord]) -> set[str]:
    """The steps that a person had taken back."""
    return {one.of for one in steps if one.name.endswith("/undo") and one.state == "success"}


def _resumed(record: StepRecord) -> StepRecord:
    """A step that is to go on. One that was cut off asks first, if it may have changed something."""
    begun = record.trace_id or record.session
    if record.code in _CUT_OFF and begun and not record.name.endswith("/undo"):
        return replace(record, state="running", code="", message="", tries=0, ended_us=0)
    return replace(record.again(), nested=record.nested)


def _behind(flow: Flow, step: str) -> set[str]:
    """A step and all that wait for it. Raises NotFound."""
    before = flow.before()
    if step not in before:
        named = ", ".join(before)[:500]
        raise NotFound(f"The flow has no step {step[:60]!r}.", field="step", suggestion=f"There are: {named}")
    found = {step}
    while more := {name for name, steps in before.items() if name not in found and found & set(steps)}:
        found |= more
    return found


def _not_before(flow: Flow, step: str) -> set[str]:
    """The steps that are not before a step."""
    before, found = flow.before(), {step}
    while more := {one for name in found for one in before[name]} - found:
        found |= more
    return set(before) - (found - {step})
