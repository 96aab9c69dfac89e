"""Runs of an assessment, their trials, and what people said of answers."""

from __future__ import annotations

from lightagentd.events.types.event_type import Reported, Text


class EvalStarted(Reported, topic="assessment.run", type="started"):
    """A run of an assessment begins."""

    catalog = """An assessment runs
    Somebody has an agent answer the cases of an assessment. Its calls get the results that the cases say;
    where they say none, only what observes runs.
    > How it stands: lactl eval list"""
    message: Text
    run: Text
    models: list[str]
    cases: int
    trials: int
    """How many there are in all."""


class EvalEnded(Reported, topic="assessment.run", type="ended"):
    """A run of an assessment is over, or was left."""

    catalog = """A run of an assessment is over
    The message says how many trials passed.
    > What failed, and why: lactl eval list, then lactl eval show RUN"""
    message: Text
    run: Text
    state: Text
    passed: int
    failed: int
    errors: int


class EvalTrial(Reported, topic="assessment.trial", type="trial"):
    """One trial of a case with a model was judged."""

    catalog = """A trial of an assessment was judged
    The agent @AGENT@ answered a case once, and the message says whether that passed. The run goes on.
    > What was wrong, and what it called: lactl eval list, then lactl eval show RUN"""
    message: Text
    run: Text
    case: Text
    model: Text
    number: int
    """Of the trial in its run, from 0."""
    state: Text


class AnswerRated(Reported, topic="assessment.rating", type="rated"):
    """A person said what an answer is worth; the turn's trace id is that of the event."""

    catalog = """A person rated an answer
    Somebody said whether an answer of the agent @AGENT@ is good or bad.
    > To make a case of an assessment from it: lactl eval add @TRACE_ID@"""
    rating: Text
    note: Text = ""
