"""What becomes of sessions and of their turns."""

from __future__ import annotations

from pydantic import Field

from lightagentd.events.types.event_type import NOTICE, EventType, Object, Text


class SessionCreated(EventType, topic="session.created", type="created"):
    """A session began."""

    catalog = """A session with @AGENT@ was made
    The user with uid @CALLER_UID@ began the session @SESSION@. They and administrators alone can see it."""
    title: Text
    parent: Text = ""
    """The session whose turn made it, if one did."""
    of_turn: Text = ""
    """The trace of that turn."""


class _ByPerson(EventType):
    by: int
    """The uid of who asked for it."""


class SessionSwitched(_ByPerson, topic="session.switched", type="switched"):
    """Its owner's prompts to its agent that name no session go to it from now on."""

    catalog = """Another session with @AGENT@ is the current one
    The user with uid @CALLER_UID@ made the session @SESSION@ the current one of its owner: prompts to the
    agent that name no session go to it from now on."""


class SessionRenamed(EventType, topic="session.renamed", type="renamed"):
    """It has another title."""

    catalog = """A session with @AGENT@ got another title
    The user with uid @CALLER_UID@ gave the session @SESSION@ another title. The title is in the history
    alone, unless journal_content is on."""
    title: Text
    by: int
    """The uid of who asked for it."""


class SessionModelSet(_ByPerson, topic="session.model", type="set"):
    """Its turns ask another model first from now on."""

    catalog = """A session with @AGENT@ asks another model
    The user with uid @CALLER_UID@ chose which of the agent's models the session @SESSION@ asks first. The
    history says which."""
    model: str
    """Empty for the agent's own."""


class LeaveGiven(EventType, topic="session.leave", type="given"):
    """Who may approve allowed an exact call for as long as the session is there."""

    priority = NOTICE
    catalog = """A call of @AGENT@ was allowed for a session: @TOOL@.@ACTION@
    The user with uid @CALLER_UID@ allowed exactly this call for as long as the session @SESSION@ is there.
    > To take that back: lactl sessions withdraw"""
    leave: Text
    approval: Text
    tool: Text
    action: Text
    effect: Text
    args: Object
    tainted: bool
    by: int


class LeaveWithdrawn(_ByPerson, topic="session.leave", type="withdrawn"):
    """A leave does not count any more."""

    catalog = """A leave of a session with @AGENT@ was withdrawn
    The user with uid @CALLER_UID@ withdrew what was allowed for the session @SESSION@."""
    leave: Text


class SessionPaused(_ByPerson, topic="session.paused", type="paused"):
    """It takes no prompts and begins no turn."""

    catalog = """A session with @AGENT@ was paused
    The user with uid @CALLER_UID@ paused the session @SESSION@. It takes no prompts and begins no turn; what
    runs goes on to its end, and what waits in its queue stays there.
    > To take it up again: lactl sessions resume @SESSION@"""


class SessionResumed(_ByPerson, topic="session.resumed", type="resumed"):
    """The opposite of a pause."""

    catalog = """A session with @AGENT@ was taken up again
    The user with uid @CALLER_UID@ took up the paused session @SESSION@ again. The prompts that waited in
    its queue are worked off now."""


class SessionForked(EventType, topic="session.forked", type="forked"):
    """A session began with the conversation of another one."""

    catalog = """A session with @AGENT@ was made from another one
    The user with uid @CALLER_UID@ began the session @SESSION@ with a copy of the conversation of another one,
    or of its first part. The history says which one that is.
    > To see it: lactl events --since @SEQ@"""
    title: Text
    forked_from: Text
    messages: int
    """How many messages were copied; each is an event of its own."""


class SessionImported(EventType, topic="session.imported", type="imported"):
    """A session began with a conversation from a file."""

    catalog = """A session with @AGENT@ was imported
    The user with uid @CALLER_UID@ began the session @SESSION@ with a conversation out of a file. Nobody
    knows who wrote it, so the session counts as one with text from outside in it."""
    title: Text
    source: Text
    """The session that it was exported from, if the file says so."""
    messages: int


class SessionDeleted(_ByPerson, topic="session.deleted", type="deleted"):
    """The data of its events is gone, and their headers stay."""

    priority = NOTICE
    catalog = """A session with @AGENT@ was deleted
    The user with uid @CALLER_UID@ deleted the session @SESSION@; where no uid stands here, retention did, as
    the configuration says of sessions that nobody used for long. What was said and done in it is gone out of
    the history; the headers of its events and their hashes stay, so the chain still verifies. How many events
    lost their data is in the history.
    > To see it: lactl events --since @SEQ@"""
    reason: str = ""
    """Why, when it was retention."""
    erased_events: int = 0
    """How many events had data; it is counted as that is taken away."""
    erased_rows: dict[str, int] = Field(default={})
    """How many rows of state went with it, by state."""


class SessionCompacted(EventType, topic="session.compacted", type="compacted", source="agent"):
    """A summary stands for the older messages in what the model is sent; the history keeps them."""

    catalog = """A conversation with @AGENT@ was shortened for the model
    The session @SESSION@ had nearly filled the model's window, or a person asked for it. From now on the
    model is sent a summary in place of its older messages. The history keeps those; the event says how many
    they are, how many tokens that saves, and who wrote the summary.
    > All of its messages: lactl sessions show @SESSION@"""
    summary: Text
    from_seq: int
    """The first message that is still sent as it is."""
    kept: int
    removed: int
    tokens_before: int
    tokens_after: int
    summarized_by: Text
    """The model, or `daemon` when none gave a summary of use."""


class SessionTransferred(EventType, topic="session.transferred", type="transferred"):
    """Another agent has the conversation from now on, or its own one again."""

    catalog = """A conversation with @AGENT@ was handed over
    Later prompts in the session @SESSION@ go to another agent of its team, until that one hands it back. It
    can do nothing that @AGENT@ could not do. The history says who has it now, and why.
    > To see it: lactl sessions show @SESSION@"""
    to_agent: Text
    note: Text = ""


class MessageSent(EventType, topic="session.mail", type="sent", source="agent"):
    """An agent sent a message to a session of the same owner with another agent."""

    catalog = """@AGENT@ sent a message to another agent
    A turn in the session @SESSION@ sent it; it waits for the other session's next step, or begins a turn
    there. The history says whom it is for, and what it says.
    > What was sent: lactl messages"""
    message_id: Text
    to_session: Text
    to_agent: Text
    text: Text
    hops: int
    """How many messages led to it without a person, with itself."""
    tainted: bool = False
    """Whether text from outside may be in it."""


class TurnStarted(EventType, topic="session.turn", type="started", source="agent"):
    """A turn began: its prompt is a message of the conversation now."""

    catalog = """A turn of @AGENT@ began
    The prompt was taken out of the queue of the session @SESSION@, and the model is asked.
    > How it goes on: lactl events --follow --session @SESSION@"""


class TurnDone(EventType, topic="session.turn", type="done", source="agent"):
    """A turn came to its answer; one that did not ends with an `agent.error`."""

    catalog = """A turn of @AGENT@ ended with an answer
    The turn @TRACE_ID@ in the session @SESSION@ is complete.
    > What was done: lactl trace show @TRACE_ID@"""
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
