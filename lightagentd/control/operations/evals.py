"""The operations on assessments: their runs, the trials of these, and what people say of answers.

A client runs the trials, with `Sessions.Prompt`; the daemon keeps what came of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightagentd import api
from lightagentd.agents import evals
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, sees
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, NotFound, PermissionDenied, SessionNotFound
from lightagentd.events.filter import Filter
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

_MOST_LISTED = 1000
_MOST_TRIALS = 100
"""In one answer."""
_MOST_NOTE = 4000


class Evals(Operations, interface="org.lightagent1.Evals"):
    """Assessments: how well an agent answers cases. A client asks the agent and judges the answers."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._registry, self._history = access, runtime.registry, runtime.history
        self._evals = evals.Evals(runtime.history)

    @method("Begin", returns="run")
    async def begin(
        self,
        caller: Caller,
        agent: str,
        models: list[str],
        cases: int,
        times: int,
        definition: Any,
        name: str = "",
    ) -> api.EvalRun:
        """Begin a run, which belongs to the caller: each of so many cases is asked so many times for each
        model. definition is an object with the cases, which is kept for a run that goes on.
        """
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._access.check_open(caller)
        self._check(models, cases, times)
        parts = self._registry.get(agent).running_parts()
        for model in models:
            if model not in (there := parts.models()):
                raise InvalidArgument(
                    f"The agent {agent} has no model {model[:100]!r}.",
                    field="models",
                    suggestion=f"It has: {', '.join(there)}.",
                )
        if not isinstance(definition, dict):
            raise InvalidArgument("definition is an object with the cases.", field="definition")
        record = evals.EvalRecord(
            id="",
            name=name[:200],
            owner=caller.uid,
            agent=agent,
            models=tuple(models),
            cases=cases,
            times=times,
            started_us=0,
        )
        return _shown(await self._evals.begin(record, self._history.redactor.value(definition)))

    @method("Record")
    async def add(self, caller: Caller, run: str, trial: Any) -> None:
        """Store one trial of a run of the caller's; it is an object with the fields of EvalTrial."""
        await self._own(caller, run)
        try:
            told = _Trial.model_validate(trial)
        except ValidationError as err:
            first = err.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidArgument(f"trial: {where}: {first['msg']}.", field="trial") from None
        await self._evals.add(run, self._history.redactor.value(told.model_dump()))

    @method("End", returns="run")
    async def end(self, caller: Caller, run: str) -> api.EvalRun:
        """Say that nobody runs it any more; a run without all of its trials can go on later."""
        await self._own(caller, run)
        return _shown(await self._evals.end(run))

    @method("List", returns="runs")
    async def listed(self, caller: Caller, limit: int = 100) -> list[api.EvalRun]:
        """The runs that the caller may see, newest first."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        if not 1 <= limit <= _MOST_LISTED:
            raise InvalidArgument(f"limit is from 1 to {_MOST_LISTED}.", field="limit")
        found = [one for one in await asyncio.to_thread(self._evals.records) if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in found})
        return [_shown(one) for one in reversed(found) if one.agent in agents][:limit]

    @method("Get", returns="found")
    async def get(self, caller: Caller, run: str) -> api.EvalShown:
        """One run, with its cases."""
        record = await self._seen(caller, run)
        definition = await asyncio.to_thread(self._evals.definition, run)
        return api.EvalShown(run=_shown(record), definition=definition)

    @method("Trials", returns="trials")
    async def trials(
        self, caller: Caller, run: str, first: int = 0, limit: int = _MOST_TRIALS
    ) -> list[api.EvalTrial]:
        """Trials of a run, in their order, from the number first on; 100 at most."""
        await self._seen(caller, run)
        if not 1 <= limit <= _MOST_TRIALS:
            raise InvalidArgument(f"limit is from 1 to {_MOST_TRIALS}.", field="limit")
        found = await asyncio.to_thread(self._evals.trials, run, first, limit)
        return [api.EvalTrial(**one) for one in found]

    @method("Rate", returns="rating")
    async def rate(self, caller: Caller, trace_id: str, rating: str, note: str = "") -> api.Rating:
        """Say what the answer of a turn is worth: good or bad. It takes the place of what the caller said of
        it before.
        """
        if rating not in ("good", "bad"):
            raise InvalidArgument(f"A rating is good or bad, and not {rating[:60]!r}.", field="rating")
        if len(note) > _MOST_NOTE:
            raise InvalidArgument(f"A note has {_MOST_NOTE} characters at most.", field="note")
        session = await asyncio.to_thread(self._session_of, trace_id)
        try:
            caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        except SessionNotFound:
            raise _no_turn(trace_id) from None
        with found.context():
            return api.Rating(**await self._evals.rate(trace_id, caller.uid, rating, note))

    @method("Ratings", returns="ratings")
    async def ratings(self, caller: Caller, limit: int = 100) -> list[api.Rating]:
        """What people said of answers that the caller may see, newest first."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        found = [one for one in await asyncio.to_thread(self._evals.ratings) if sees(caller, one["owner"])]
        agents = await self._access.inspectable(caller, {one["agent"] for one in found})
        return [api.Rating(**one) for one in reversed(found) if one["agent"] in agents][: max(1, limit)]

    def _session_of(self, trace_id: str) -> str:
        """The session of a turn; empty where there is none."""
        wanted = Filter(topic="agent.prompt", trace=trace_id)
        found = self._history.queries.newest(wanted, 1) if trace_id else []
        return found[0].session if found else ""

    def _check(self, models: list[str], cases: int, times: int) -> None:
        """Raises InvalidArgument."""
        for what, given in (("cases", cases), ("times", times)):
            if given < 1:
                raise InvalidArgument(f"A run has at least 1 of {what}, and this is {given}.", field=what)
        if not models or len(set(models)) != len(models):
            raise InvalidArgument("Name at least one model, and each of them once.", field="models")

    async def _own(self, caller: Caller, run: str) -> evals.EvalRecord:
        """Raises NotFound, PermissionDenied."""
        record = await self._seen(caller, run)
        await self._access.admit(caller, Operation.PROMPT, agent=record.agent)
        if record.owner != caller.uid:
            raise PermissionDenied(
                f"The run {run} is somebody else's, and only they go on with it.",
                suggestion="Begin one of your own: lactl eval run",
            )
        return record

    async def _seen(self, caller: Caller, run: str) -> evals.EvalRecord:
        """Raises NotFound."""

        def find(caller: Caller) -> tuple[str, evals.EvalRecord]:
            record = self._evals.record(run)
            if not sees(caller, record.owner):
                raise evals.no_run(run)
            return record.agent, record

        return (await self._access.admit_to_own(caller, Operation.INSPECT, find))[1]


def _no_turn(trace_id: str) -> NotFound:
    return NotFound(
        f"There is no turn {trace_id[:60]!r}.", field="trace_id", suggestion="See: lactl trace list"
    )


def _shown(record: evals.EvalRecord) -> api.EvalRun:
    return shown(api.EvalRun, record)


_Long = Annotated[str, Field(max_length=evals.MOST_TRIAL_BYTES)]
_Word = Annotated[str, Field(max_length=300)]


class _Trial(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    number: int = Field(ge=0)
    case: _Word
    model: _Word
    state: Literal["passed", "failed", "judge_failed", "error"]
    why: list[_Long] = Field(max_length=100)
    code: _Word = ""
    answer: _Long = ""
    calls: list[dict[str, Any]] = Field(default_factory=list, max_length=1000)
    score: float | None = Field(default=None, ge=0, le=1)
    reason: _Long = ""
    session: _Word = ""
    trace_id: _Word = ""
    steps: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)
    cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    duration_ms: int = Field(default=0, ge=0)
