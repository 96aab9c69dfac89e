"""The drafts of a plan before the first step of a turn, their scores, and the one that was taken."""

from __future__ import annotations

from lightagentd.events.types.event_type import EventType, Objects, Text


class PlanDrafted(EventType, topic="agent.deliberation", type="draft", source="agent"):
    """A model drafted a plan for a turn, without tools."""

    catalog = """A plan for a turn of @AGENT@ was drafted
    Before the turn @TRACE_ID@ began, a model wrote a draft of how to go about it. Drafts are weighed up, and
    one of them is shown to the model in the turn; a draft calls nothing and allows nothing.
    > All drafts and their scores: lactl trace show @TRACE_ID@"""
    draft: int
    """Its number in the turn, from 1."""
    refines: int
    """The draft that it improves on; 0 for none."""
    faults: Text
    """What the daemon found wrong with it: calls that do not exist, or that policy would deny."""
    text: Text


class DraftsJudged(EventType, topic="agent.deliberation", type="judged", source="agent"):
    """Drafts were compared; without scores the judge said nothing that could be used."""

    catalog = """The drafts of a plan for a turn of @AGENT@ were judged
    The judge that the definition of the agent names compared the drafts for the turn @TRACE_ID@. Where its
    answer could not be used the first draft was taken.
    > All drafts and their scores: lactl trace show @TRACE_ID@"""
    judge: Text
    """The model, or `checks`."""
    scores: Objects
    """For each draft its number, its score from 0 to 1, and the judge's reason."""
    message: Text
    """Why there are no scores; empty when there are."""


class PlanTaken(EventType, topic="agent.deliberation", type="taken", source="agent"):
    """One of the drafts is the plan of the turn: it is part of the turn's system prompt."""

    catalog = """A plan for a turn of @AGENT@ was taken
    It stands in the system prompt of the turn @TRACE_ID@. It allows nothing by itself: each call is decided
    on like every other.
    > The plan, and what it was chosen from: lactl trace show @TRACE_ID@"""
    draft: int
    score: float | int | None
    """Null when nothing was judged."""
    text: Text
