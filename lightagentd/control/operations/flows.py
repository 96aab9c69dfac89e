"""The operations on flows: check and run them, look at their runs, and have these go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.flows.records import RunRecord, StepRecord
from lightagentd.config.flows.checking import MOST_BYTES
from lightagentd.config.flows.definition import Flow, Step
from lightagentd.config.flows.drawing import FORMATS, drawn, layers
from lightagentd.config.flows.references import INPUTS, MISSING, Reference, dig, filled
from lightagentd.config.flows.shell import is_command, quoted_for_shell
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit, sees
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.errors import HistoryDamaged, InvalidArgument, LightagentError, NotFound
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

_SHOWN_CHARS = 4000
_LOOK_S, _PAUSE_S = 1.0, 0.05
"""How often a run is looked at that tells nothing, and how long what it tells is gathered."""
_ALL_CHARS, _LEAST_CHARS = 100_000, 80
"""How long the outputs of all steps in one answer are together, about, and how much of each is shown."""


class Flows(Operations, interface="org.lightagent1.Flows"):
    """Graphs of steps that run the same way every time. Files below /etc/lightagentd/flows say what a flow
    does, and so do those in the folders of agents. A run belongs to the uid that began it.
    """

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._flows = access, runtime.flows
        self._registry = runtime.registry

    @method("List", returns="flows")
    async def listed(self, caller: Caller) -> list[api.Flow]:
        """All flows, also those that cannot be used."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        shown = [self._shown(name) for name in self._flows.files.names()]
        seen = await self._access.inspectable(caller, {one.agent for one in shown if one.agent})
        return [one for one in shown if not one.agent or one.agent in seen]

    @method("Check", returns="checked")
    async def check(self, caller: Caller, name: str, *, text: str = "") -> api.FlowCheck:
        """What is wrong with a flow, or with a text that is to become one; name is what the faults call it.
        The files are read again.
        """
        await self._access.admit(caller, Operation.INSPECT)
        if len(text) > MOST_BYTES:
            raise InvalidArgument(f"A flow has at most {MOST_BYTES >> 20} MiB.", field="text")
        if text:
            found = await asyncio.to_thread(self._flows.files.check, text, name[:1000])
        else:
            await asyncio.to_thread(self._flows.files.read)
            await self._admit_to_flow(caller, name)
            found = self._flows.files.file(name).checked
        return api.FlowCheck(name=name, faults=[*found.faults], warnings=[*found.warnings])

    @method("Draw", returns="picture")
    async def draw(self, caller: Caller, what: str, *, format_: str = "text") -> str:
        """The picture of a flow, or of a run (by its id) with the states of its steps: text, dot or svg."""
        if format_ not in FORMATS:
            raise InvalidArgument(f"There is no format {format_[:20]!r}.", field="format")
        if what.startswith("run_"):
            record = await self._admit_to_steps(caller, what)
            states = {one.name: one.state for one in self._flows.steps(record)}
            return drawn(self._flows.stored.definition(record), format_, states)
        await self._admit_to_flow(caller, what)
        return drawn(self._flows.files.get(what), format_, None)

    @method("Plan", returns="steps")
    async def plan(self, caller: Caller, flow: str, *, inputs: Any = None) -> list[api.FlowStep]:
        """What a run would do, and with what: nothing runs. What is known only then stands in braces."""
        await self._admit_to_flow(caller, flow)
        found = self._flows.files.get(flow)
        given = found.given(_object(inputs))
        before = found.before()
        by_name = {step.name: step for step in found.step}
        names = [name for names in layers(found) for name in names]
        return [
            _step(by_name[name], before[name], None, found, will=_will(by_name[name], given))
            for name in names
        ]

    @method("Run", returns="run")
    async def run(
        self, caller: Caller, flow: str, *, inputs: Any = None, first: str = "", of: str = ""
    ) -> api.FlowRun:
        """Have a flow run in the caller's name; gives the run once it is stored. inputs is an object, or its
        JSON. With first, a step, it begins there, with the outputs that the run of has for the steps before;
        without of those of the caller's newest run of the flow.
        """
        found = self._flows.files.get(flow)
        caller = await self._may_run(caller, found)
        await self._access.check_new_session(caller)
        if not first:
            if of:
                raise InvalidArgument("of goes with first.", field="of")
            run = await self._flows.run(flow, _object(inputs), caller.uid)
            return self._run(run.record)
        if not of:
            name = self._flows.files.file(flow).name
            own = [
                one for one in await asyncio.to_thread(self._flows.stored.records) if one.owner == caller.uid
            ]
            last = [one for one in own if one.flow == name][-1:]
            if not last:
                raise NotFound(f"There is no run of {name} whose outputs there are.", field="of")
            of = last[0].id
        record = await self._admit_to(caller, of, Operation.INSPECT)
        if record.flow != (name := self._flows.files.file(flow).name):
            raise InvalidArgument(f"The run {of} is one of {record.flow}, and not of {name}.", field="of")
        run = await self._flows.fork(record.id, first, caller.uid, inputs=_object(inputs))
        return self._run(run.record)

    @method("Runs", returns="runs")
    async def runs(self, caller: Caller, *, flow: str = "", limit: int = 100) -> list[api.FlowRun]:
        """The runs that the caller may see, the newest first."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        check_limit(limit)
        name = self._flows.files.file(flow).name if flow in self._flows.files.all_names() else flow
        records = [
            one for one in await asyncio.to_thread(self._flows.stored.records) if name in ("", one.flow)
        ]
        seen = [one for one in reversed(records) if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in seen})
        own = [one for one in seen if one.agent in agents][:limit]
        return await asyncio.to_thread(lambda: [self._run(one) for one in own])

    @method("Get", returns="found")
    async def get(self, caller: Caller, run: str) -> api.FlowRun:
        """One run."""
        return self._run(await self._admit_to(caller, run, Operation.INSPECT))

    @method("Show", returns="shown")
    async def show(self, caller: Caller, run: str) -> api.FlowShown:
        """A run with its steps. Long outputs are cut; Output gives one as a whole."""
        record = await self._admit_to_steps(caller, run)
        return await asyncio.to_thread(self._with_steps, record)

    @method("Output", returns="output")
    async def output(self, caller: Caller, run: str, step: str) -> str:
        """The output of a step."""
        record = await self._admit_to_steps(caller, run)
        found = next((one for one in self._flows.steps(record) if one.name == step), None)
        if found is None:
            raise NotFound(f"The run {run} has no step {step[:80]!r} that has begun.", field="step")
        return found.output

    @stream("Follow", returns="progress")
    async def follow(self, caller: Caller, run: str) -> AsyncGenerator[api.FlowProgress, None]:
        """A run as it goes on: first all of its steps, then those that changed, to its end. Leaving changes
        nothing of the run.
        """
        record = await self._admit_to_steps(caller, run)
        going = self._flows.runs.get(record.id)
        shown = self._with_steps(record)
        last = {one.name: one for one in shown.steps}
        yield api.FlowProgress(run=shown.run, steps=shown.steps)
        while going is not None:
            changed, over = going.changed, going.ended.is_set()
            names = {one.name for one in going.steps.values() if _may_differ(one, last.get(one.name))}
            shown = self._with_steps(going.record, names)
            new = [one for one in shown.steps if last.get(one.name) != one]
            if new or over:
                last |= {one.name: one for one in new}
                yield api.FlowProgress(run=shown.run, steps=new)
            if over:
                return
            with contextlib.suppress(TimeoutError):  # a child session asks without a word to the run
                async with asyncio.timeout(_LOOK_S):
                    await changed.wait()
            await asyncio.sleep(_PAUSE_S)

    @method("Resume", returns="run")
    async def resume(self, caller: Caller, run: str) -> api.FlowRun:
        """Go on with a run that failed or was cancelled: what is done stays done."""
        record = await self._admit_to(caller, run, Operation.PROMPT)
        await self._may_prompt(caller, self._flows.stored.definition(record))
        return self._run((await self._flows.resume(record.id)).record)

    @method("Rerun", returns="run")
    async def rerun(self, caller: Caller, run: str, step: str, *, new: bool = False) -> api.FlowRun:
        """Run a step again, and all behind it; with new as the file is now. Earlier attempts stay in the
        history.
        """
        record = await self._admit_to(caller, run, Operation.PROMPT)
        if new:
            await self._may_run(caller, self._flows.files.get(record.flow))
        else:
            await self._may_prompt(caller, self._flows.stored.definition(record))
        return self._run((await self._flows.rerun(record.id, step, new=new)).record)

    @method("Cancel", returns="run")
    async def cancel(self, caller: Caller, run: str) -> api.FlowRun:
        """Cancel a run, and answer once it is."""
        record = await self._admit_to(caller, run, Operation.PROMPT)
        return self._run(await self._flows.cancel(record.id))

    # Who may

    async def _may_run(self, caller: Caller, flow: Flow) -> Caller:
        """A caller who may prompt every agent of a flow. Raises PermissionDenied, NotFound."""
        caller = await self._may_prompt(caller, flow)
        for nested in {step.flow for step in flow.step if step.flow}:
            caller = await self._may_run(caller, self._flows.files.get(nested))
        return caller

    async def _may_prompt(self, caller: Caller, flow: Flow) -> Caller:
        """A caller who may prompt the agents of a flow's own steps. Raises PermissionDenied."""
        await self._access.check_open(caller)
        for agent in _agents(flow):
            caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        return caller

    async def _admit_to(self, caller: Caller, run: str, operation: Operation) -> RunRecord:
        """A run that the caller may see. Raises NotFound."""

        def find(caller: Caller) -> tuple[str, RunRecord]:
            record = self._flows.record(run)
            if not sees(caller, record.owner):
                raise NotFound(
                    f"There is no run {run[:60]!r}.", field="run", suggestion="See: lactl flows runs"
                )
            return record.agent, record

        _, record = await self._access.admit_to_own(caller, operation, find, seeing=operation)
        return record

    async def _admit_to_steps(self, caller: Caller, run: str) -> RunRecord:
        """As `_admit_to`, for who may look at each of its agents: what they said is in the steps."""
        record = await self._admit_to(caller, run, Operation.INSPECT)
        for agent in _agents(self._flows.stored.definition(record)):
            await self._access.admit(caller, Operation.INSPECT, agent=agent)
        return record

    async def _admit_to_flow(self, caller: Caller, name: str) -> None:
        """Raises PermissionDenied for one who may not look at the agent of a flow, NotFound."""
        known = name in self._flows.files.all_names()
        flow = self._flows.files.file(name).checked.flow if known else None
        await self._access.admit(caller, Operation.INSPECT, agent=(flow and flow.agent) or "")

    # What is shown

    def _shown(self, name: str) -> api.Flow:
        file = self._flows.files.file(name)
        flow, faults = file.checked.flow, file.checked.faults
        inputs = (
            []
            if flow is None
            else [
                api.FlowInput(
                    name=key,
                    type=one.type,
                    description=one.description,
                    required=one.default is None,
                    default=one.default,
                )
                for key, one in flow.inputs.items()
            ]
        )
        return api.Flow(
            name=name,
            path=str(file.path),
            description=flow.description if flow is not None else "",
            agent=(flow.agent or "") if flow is not None else "",
            inputs=inputs,
            steps=len(flow.step) if flow is not None else 0,
            problem=faults[0] if faults else "",
        )

    def _run(self, record: RunRecord) -> api.FlowRun:
        try:
            flow = self._flows.stored.definition(record)
            own, problem = {step.name for step in flow.step}, ""
        except HistoryDamaged as err:  # one of them must not hide the others
            own, problem = set(), err.message
        going = self._flows.runs.get(record.id)
        steps = [*going.steps.values()] if going is not None else []
        waits = self._waits(steps)
        done = sum(1 for one in steps if one.is_over and one.name in own)
        state = record.state
        file = self._flows.files.found.get(record.flow)
        return api.FlowRun(
            id=record.id,
            flow=record.flow,
            state="waiting" if state == "running" and waits else state,
            owner=record.owner,
            agent=record.agent,
            session=record.session,
            inputs=json.dumps(record.inputs, ensure_ascii=False),
            unattended=record.unattended,
            trigger=record.trigger,
            parent=record.parent,
            copied_from=record.copied_from,
            changed=file is None or file.digest != record.digest,
            started_us=record.started_us,
            ended_us=record.ended_us,
            code=record.code,
            message=record.message or problem,
            waits=waits,
            done=record.done if going is None else done,
            steps=len(own),
        )

    def _waits(self, steps: Iterable[StepRecord]) -> list[str]:
        found = [self._waits_for(one) for one in steps if not one.is_over]
        return [one for one in found if one]

    def _waits_for(self, step: StepRecord) -> str:
        """The question that a step waits for, also when it is one of its child session or nested run."""
        if step.waits_for or step.is_over:
            return step.waits_for
        if step.nested in self._flows.runs:
            return next(iter(self._waits(self._flows.runs[step.nested].steps.values())), "")
        if step.session:
            try:
                _, session = self._registry.session(step.session)
            except LightagentError:
                return ""
            if session.waiting and session.running is not None:
                return session.running.waits_for
        return ""

    def _with_steps(self, record: RunRecord, wanted: Collection[str] | None = None) -> api.FlowShown:
        """A run with all of its steps, or those that are wanted."""
        flow = self._flows.stored.definition(record)
        before, by_name = flow.before(), {step.name: step for step in flow.step}
        records = {one.name: one for one in self._flows.steps(record)}
        every = {*by_name, *records} if wanted is None else wanted
        place = {name: number for number, name in enumerate(name for names in layers(flow) for name in names)}
        names = sorted(every, key=lambda name: (place.get(name.partition("/")[0], len(place)), name))
        chars = max(_LEAST_CHARS, min(_SHOWN_CHARS, _ALL_CHARS // max(1, len(records))))
        shown = []
        for name in names:
            of = name.partition("/")[0]
            if of not in by_name:
                continue
            found = records.get(name)
            made = _step(
                by_name[of],
                before[of] if of == name else (of,),
                found,
                flow,
                name=name,
                waits_for=self._waits_for(found) if found is not None else "",
                chars=chars,
            )
            shown.append(made)
        return api.FlowShown(run=self._run(record), steps=shown)


def _may_differ(record: StepRecord, shown: api.FlowStep | None) -> bool:
    """Whether a step may look different from how it was shown."""
    if shown is None or not record.is_over:
        return True
    return (record.state, record.ended_us) != (shown.state, shown.ended_us)


def _step(
    step: Step,
    after: Sequence[str],
    record: StepRecord | None,
    flow: Flow,
    *,
    name: str = "",
    waits_for: str = "",
    will: str = "",
    chars: int = _SHOWN_CHARS,
) -> api.FlowStep:
    found = record or StepRecord(run="run_", name=step.name)
    state = "waiting_approval" if waits_for and found.state == "running" else found.state
    output = found.output
    if len(output) > chars:
        output = f"{output[:chars]}\n[... {len(output) - chars} more characters]"
    cost = found.used.get("cost")
    return api.FlowStep(
        name=name or step.name,
        kind=step.kind,
        state=state,
        after=[*after],
        attempt=found.attempt,
        agent=found.agent or (step.agent or flow.agent or ""),
        session=found.session,
        trace_id=found.trace_id,
        run=found.nested,
        waits_for=waits_for,
        will=will,
        output=output,
        code=found.code,
        message=found.message,
        total_tokens=int(found.used.get("total_tokens") or 0),
        cost=float(cost) if isinstance(cost, int | float) else None,
        started_us=found.started_us,
        ended_us=found.ended_us,
    )


def _will(step: Step, inputs: dict[str, Any]) -> str:
    """What a step would run, with the inputs and without what only the run will know."""

    def look_up(reference: Reference) -> Any:
        value = dig(inputs, reference.path) if reference.to == INPUTS else MISSING
        return str(reference) if value is MISSING else value

    def made(value: Any) -> str:
        found = filled(value, look_up)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    if step.call is not None:
        args = {
            key: quoted_for_shell(one, look_up) if is_command(step.call, key) else filled(one, look_up)
            for key, one in step.args.items()
        }
        what = f"{step.call} {json.dumps(args, ensure_ascii=False)}"
    elif step.flow is not None:
        what = f"the flow {step.flow} with {made(step.inputs)}"
    else:
        what = made(step.prompt if step.prompt is not None else step.ask)
    each = "" if step.for_each is None else f", for each of {made(step.for_each)}"
    when = f", when {len(step.when)} conditions hold" if step.when else ""
    return f"{what}{each}{when}{', after an approval' if step.requires_approval else ''}"


def _agents(flow: Flow) -> list[str]:
    named = [flow.agent, *(one for step in flow.step for one in (step.agent, step.fallback_agent))]
    return list(dict.fromkeys(one for one in named if one))


def _object(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, dict):
        raise InvalidArgument("inputs is an object with the values of the flow's inputs.", field="inputs")
    return value
