"""What is stored of assessments: runs with their cases, trials, and ratings of answers.

A client runs the trials, and stores each as it comes, so that a run goes on where it was left. The state
`evals` has a run's row under `run/ID`, its cases under `cases/ID` and its trials under `trial/ID/NUMBER`;
`ratings` is by trace id and owner.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from lightagentd.errors import Conflict, InvalidArgument, LimitExceeded, MessageTooLarge, NotFound
from lightagentd.events.history import Change, History
from lightagentd.events.model import dump_json, new_id, within
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types.assessment import AnswerRated, EvalEnded, EvalStarted, EvalTrial
from lightagentd.events.types.event_type import EventType

STATE, RATINGS = "evals", "ratings"
MOST_RUNS = 200
"""How many runs of one owner are kept; the oldest go when there are more."""
MOST_CASES_BYTES = 4 << 20
MOST_TRIAL_BYTES = 96 << 10
MOST_TRIALS = 20_000
"""In one run."""
PASSED, FAILED, JUDGE_FAILED, ERROR = "passed", "failed", "judge_failed", "error"
TRIAL_STATES = (PASSED, FAILED, JUDGE_FAILED, ERROR)
_BLOCK, _BLOCK_DIGITS = 100, 2
"""So many trials are read at once, by the digits that their keys have in common."""
RUNNING, DONE, LEFT = "running", "done", "left"


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """One run."""

    id: str
    name: str
    owner: int
    agent: str
    models: tuple[str, ...]
    cases: int
    times: int
    state: str = RUNNING
    passed: int = 0
    failed: int = 0
    errors: int = 0
    started_us: int
    ended_us: int = 0

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Raises HistoryDamaged."""
        with decoding(STATE, str(value.get("id"))):
            texts = dict.fromkeys(("id", "name", "agent", "state"), str)
            numbers = dict.fromkeys(("owner", "cases", "times", "passed", "failed", "errors"), int)
            checked(value, **texts, **numbers, started_us=int, ended_us=int, models=list)
            return cls(**{**value, "models": tuple(map(str, value["models"]))})

    @property
    def trials(self) -> int:
        """How many there are when it is done."""
        return self.cases * self.times * len(self.models)

    def change(self) -> Change:
        return Change(state=STATE, key=f"run/{self.id}", value={**asdict(self), "models": [*self.models]})

    def counting(self, state: str) -> Self:
        """With one more trial."""
        name = {PASSED: "passed", FAILED: "failed"}.get(state, "errors")
        return replace(self, **{name: getattr(self, name) + 1})


class Evals:
    """The store of runs and ratings; it keeps nothing in memory."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._changing = asyncio.Lock()
        """Held from reading a row to storing it changed."""

    def record(self, run: str) -> EvalRecord:
        """Raises NotFound, HistoryDamaged."""
        return EvalRecord.from_dict(self._row(f"run/{run}", run))

    def definition(self, run: str) -> Any:
        """The cases of a run. Raises NotFound."""
        return self._row(f"cases/{run}", run).get("definition")

    def records(self) -> list[EvalRecord]:
        """All runs, the oldest first. Reads all of them; for a thread."""
        rows = self._history.queries.state(STATE, "run/").values()
        return sorted(map(EvalRecord.from_dict, rows), key=lambda one: one.started_us)

    def trials(self, run: str, first: int, limit: int) -> list[dict[str, Any]]:
        """The trials of a run, in their order, from a number on; for a thread. Raises NotFound."""
        found: list[dict[str, Any]] = []
        for block in range(max(0, first) // _BLOCK, self.record(run).trials // _BLOCK + 1):
            rows = self._history.queries.state(STATE, _key(run, block * _BLOCK)[:-_BLOCK_DIGITS])
            found += [value for _, value in sorted(rows.items()) if value["number"] >= first]
            if len(found) >= limit:
                break
        return found[:limit]

    async def begin(self, record: EvalRecord, definition: Any) -> EvalRecord:
        """Store a new run, under an id that it gets. Raises MessageTooLarge, LimitExceeded, StorageError."""
        if len(dump_json(definition)) > MOST_CASES_BYTES:
            raise MessageTooLarge(f"The cases of a run have {MOST_CASES_BYTES >> 20} MiB at most.")
        if record.trials > MOST_TRIALS:
            raise LimitExceeded(
                f"A run has {MOST_TRIALS} trials at most, and this one would have {record.trials}.",
                suggestion="Run fewer cases or models at once, or each less often.",
            )
        made = replace(record, id=new_id("eval"), started_us=_now_us())
        gone = await asyncio.to_thread(self._too_many, made.owner)
        cases = Change(state=STATE, key=f"cases/{made.id}", value={"id": made.id, "definition": definition})
        what = f"{made.trials} trials of {made.cases} cases"
        started = EvalStarted(
            message=f"{made.agent} with {', '.join(made.models)}: {what}.",
            run=made.id,
            models=[*made.models],
            cases=made.cases,
            trials=made.trials,
        )
        await self._append(made, started, made.change(), cases, *gone)
        return made

    async def add(self, run: str, trial: dict[str, Any]) -> None:
        """Store a trial, in place of one that said nothing about the agent. Raises NotFound, Conflict for one
        that passed or failed already, InvalidArgument for a number that the run does not have,
        MessageTooLarge, StorageError.
        """
        number = trial["number"]
        if len(dump_json(trial)) > MOST_TRIAL_BYTES:
            raise MessageTooLarge(f"A trial has {MOST_TRIAL_BYTES >> 10} KiB at most.")
        async with self._changing:
            record, key = self.record(run), _key(run, number)
            if number >= record.trials:
                raise InvalidArgument(f"The run {run} has no trial {number}.", field="trial")
            before = self._history.queries.state(STATE, key).get(key)
            if before is not None and before["state"] in (PASSED, FAILED):
                raise Conflict(f"The trial {number} of {run} is stored already.")
            counted = replace(record.counting(trial["state"]), state=RUNNING, ended_us=0)
            if before is not None:
                counted = replace(counted, errors=counted.errors - 1)
            message = f"{trial['case']} with {trial['model']}: {trial['state']}."
            about = {name: trial[name] for name in ("case", "model", "number", "state")}
            event = EvalTrial(message=message, run=run, **about)
            await self._append(counted, event, counted.change(), Change(state=STATE, key=key, value=trial))

    async def end(self, run: str) -> EvalRecord:
        """Store that a run is done, or that it was left before all trials were there. Raises NotFound."""
        async with self._changing:
            record = self.record(run)
            there = record.passed + record.failed + record.errors
            state = DONE if there >= record.trials else LEFT
            record = replace(record, state=state, ended_us=_now_us())
            ended = EvalEnded(
                message=f"{record.passed} of {there} trials passed.",
                run=run,
                state=state,
                passed=record.passed,
                failed=record.failed,
                errors=record.errors,
            )
            await self._append(record, ended, record.change())
            return record

    async def rate(self, trace_id: str, owner: int, rating: str, note: str) -> dict[str, Any]:
        """Store what a person said of an answer, in the context of its turn; it takes the place of what they
        said before. Raises StorageError.
        """
        with within(trace_id=trace_id) as context:
            note = self._history.redactor.text(note)
            value = {
                "trace_id": trace_id,
                "session": context.session,
                "agent": context.agent,
                "owner": owner,
                "rating": rating,
                "note": note,
                "time_us": _now_us(),
            }
            more = {"note": note} if note else {}
            change = Change(state=RATINGS, key=f"{trace_id}/{owner}", value=value)
            await self._history.append(AnswerRated(rating=rating, **more).event(), changes=[change])
        return value

    def ratings(self) -> list[dict[str, Any]]:
        """All ratings, the oldest first. Reads all of them; for a thread."""
        rows = self._history.queries.state(RATINGS).values()
        return sorted(rows, key=lambda one: int(one["time_us"]))

    def _row(self, key: str, run: str) -> dict[str, Any]:
        try:
            return self._history.queries.state_of(STATE, key)
        except NotFound:
            raise no_run(run) from None

    def _too_many(self, owner: int) -> list[Change]:
        """What removes the oldest runs of an owner, so that there is room for one more."""
        own = [one for one in self.records() if one.owner == owner]
        gone = own[: max(0, len(own) + 1 - MOST_RUNS)]
        keys = [key for one in gone for key in self._history.queries.state(STATE, f"trial/{one.id}/")]
        keys += [f"{kind}/{one.id}" for one in gone for kind in ("run", "cases")]
        return [Change(state=STATE, key=key, value=None) for key in keys]

    async def _append(self, record: EvalRecord, said: EventType, *changes: Change) -> None:
        """Store an event about a run, as one of its agent and its owner."""
        with within(agent=record.agent, owner=record.owner):
            await self._history.append(said.event(), changes=changes)


def _key(run: str, number: int) -> str:
    return f"trial/{run}/{number:06d}"


def stored(key: str, value: dict[str, Any]) -> None:
    """Read a row of the state `evals`. Raises HistoryDamaged, TypeError, ValueError, KeyError."""
    kind, _, of = key.partition("/")
    if kind == "run":
        if EvalRecord.from_dict(value).id != of:
            raise ValueError(f"it is about {value['id'][:100]!r}")
    elif kind == "trial":
        checked(value, number=int, case=str, model=str, state=str)
        if not of.endswith(f"/{value['number']:06d}"):
            raise ValueError("it is about another trial")
    elif kind != "cases" or value["id"] != of:
        raise ValueError("it is about something else")


def stored_rating(key: str, value: dict[str, Any]) -> None:
    """Read a row of the state `ratings`. Raises TypeError, ValueError, KeyError."""
    texts = dict.fromkeys(("trace_id", "session", "agent", "rating", "note"), str)
    checked(value, **texts, owner=int, time_us=int)
    if f"{value['trace_id']}/{value['owner']}" != key:
        raise ValueError("it is about another turn")


def _now_us() -> int:
    return time.time_ns() // 1000


def no_run(run: str) -> NotFound:
    """The error for a run that there is not, or that is not for who asks."""
    return NotFound(
        f"There is no run {run[:60]!r} of an assessment.", field="run", suggestion="See: lactl eval list"
    )
