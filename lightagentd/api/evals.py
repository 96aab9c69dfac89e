"""Runs of assessments, their trials, and ratings."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EvalRun:
    """One run. `cases` is how many there are, of which each is asked `times` for each of `models`. `state`:
    running, done, or left (its client went away; it can go on). `errors` are the trials that say nothing
    about the agent, such as those whose model did not answer. Times are in microseconds UTC; `ended_us` is 0
    while it runs.
    """

    id: str
    name: str
    owner: int
    agent: str
    models: list[str]
    cases: int
    times: int
    state: str
    passed: int
    failed: int
    errors: int
    started_us: int
    ended_us: int


@dataclass(frozen=True, kw_only=True)
class EvalShown:
    """A run with its cases, as they were when it began."""

    run: EvalRun
    definition: Any


@dataclass(frozen=True, kw_only=True)
class EvalTrial:
    """One trial of a case with a model; `number` is its place in the run, from 0. `state`: passed, failed,
    judge_failed or error. `why` has the sentences that say what was wrong. `calls` are objects with tool,
    action, effect, args, result and text. `score` is a judge's, from 0 to 1, with its `reason`. `cost` is
    null without a price.
    """

    number: int
    case: str
    model: str
    state: str
    why: list[str]
    code: str
    answer: str
    calls: list[Any]
    score: float | None
    reason: str
    session: str
    trace_id: str
    steps: int
    total_tokens: int
    cost: float | None
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class Rating:
    """What a person said of an answer: good or bad, with a note."""

    trace_id: str
    session: str
    agent: str
    owner: int
    rating: str
    note: str
    time_us: int
