"""What becomes of sessions and of their turns."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Text


class SessionCreated(Kind, topic="session.created", type="created"):
    """A session began."""

    title: Text


class _ByPerson(Kind):
    by: int
    """The uid of who asked for it."""


class SessionSwitched(_ByPerson, topic="session.switched", type="switched"):
    """Its owner's prompts to its agent that name no session go to it from now on."""


class SessionRenamed(Kind, topic="session.renamed", type="renamed"):
    """It has another title."""

    title: Text
    by: int
    """The uid of who asked for it."""


class SessionPaused(_ByPerson, topic="session.paused", type="paused"):
    """It takes no prompts and begins no turn."""


class SessionResumed(_ByPerson, topic="session.resumed", type="resumed"):
    """The opposite of a pause."""


class SessionForked(Kind, topic="session.forked", type="forked"):
    """A session began with the conversation of another one."""

    title: Text
    forked_from: Text
    messages: int
    """How many messages were copied; each is an event of its own."""


class SessionImported(Kind, topic="session.imported", type="imported"):
    """A session began with a conversation from a file."""

    title: Text
    source: Text
    """The session that it was exported from, if the file says so."""
    messages: int


class SessionDeleted(_ByPerson, topic="session.deleted", type="deleted"):
    """The data of its events is gone, and their headers stay."""

    reason: str = ""
    """Why, when it was retention."""
    erased_events: int = 0
    """How many events had data; it is counted as that is taken away."""


class SessionCompacted(Kind, topic="session.compacted", type="compacted", source="agent"):
    """A summary stands for the older messages in what the model is sent; the history keeps them."""

    summary: Text
    from_seq: int
    """The first message that is still sent as it is."""
    kept: int
    removed: int
    tokens_before: int
    tokens_after: int
    summarized_by: Text
    """The model, or `daemon` when none gave a summary of use."""


class TurnStarted(Kind, topic="session.turn", type="started", source="agent"):
    """A turn began: its prompt is a message of the conversation now."""


class TurnDone(Kind, topic="session.turn", type="done", source="agent"):
    """A turn came to its answer; one that did not ends with an `agent.error`."""

    steps: int
    duration_ms: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0
    cost: float | int | None = None
    """Null when a model has no price."""
    calls: int = 0
    unattended: bool = False
    """Nobody was there to be asked."""
