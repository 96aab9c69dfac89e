"""What becomes of memories and profiles; never their text."""

from __future__ import annotations

from lightagentd.events.types.event_type import EventType, Text


class MemoryChanged(EventType):
    """What all that happens to a memory has in common."""

    memory: Text
    for_agent: Text
    """Empty when it is for all agents of its owner."""
    source: Text
    """Whose word it is: `agent` or `person`."""
    state: Text
    from_session: Text
    confidence: float | int
    expires_us: int
    chars: int
    """How long its text is."""
    scope: Text | None = None
    """For whom it is, where neither one agent nor all of its owner's are."""
    said_by: int | None = None
    promoted_by: int | None = None


class ReflectionBegun(EventType, topic="memory.reflection", type="begun"):
    """A turn begins that proposes what to learn from a conversation, in the session of the event."""

    catalog = """The agent @AGENT@ reflects on a conversation
    A conversation was idle, and the definition of the agent says that it learns. A turn in a session of its
    own, which has the memory tool alone, may propose memories. They stay candidates until the user with uid
    @CALLER_UID@ promotes them.
    > That user can: lactl memory candidates"""
    of_session: Text
    """The conversation."""
    turns: int
    """How many turns it had."""


class MemoryRemembered(MemoryChanged, topic="memory.remembered", type="remembered"):
    """It is kept: agents read it."""

    catalog = """Something is remembered for the user with uid @CALLER_UID@
    From now on it stands in the system prompts of that user's agents, or of the one agent that the event
    names. They wrote it themselves, or an agent kept it from a conversation without text from outside. What
    it says is not in the journal.
    > What is remembered, for that user: lactl memory list"""


class MemoryProposed(MemoryChanged, topic="memory.proposed", type="proposed"):
    """It is a candidate: no agent reads it until its owner promotes it."""

    catalog = """The agent @AGENT@ wants something to be remembered
    It comes from the session @SESSION@, in which there is text from outside, or which nobody watched, or it
    is meant for all agents. So no agent reads it before the user with uid @CALLER_UID@ has promoted it.
    > That user can: lactl memory candidates"""


class MemoryPromoted(MemoryChanged, topic="memory.promoted", type="promoted"):
    """Its owner had a candidate kept."""

    catalog = """The user with uid @CALLER_UID@ promoted a memory
    What an agent had proposed is kept now, because its user said so: it stands in the system prompts of their
    agents from the next turn on.
    > Taking it back, for that user: lactl memory forget ID"""


class MemoryRejected(MemoryChanged, topic="memory.rejected", type="rejected"):
    """Its owner turned a candidate down."""

    catalog = """The user with uid @CALLER_UID@ turned a memory down
    What an agent had proposed is not kept. Its text is dropped, and only a fingerprint of it stays, so that
    the same is not proposed again.
    > What was turned down, for that user: lactl memory list --state=rejected"""


class MemoryRefused(EventType, topic="memory.refused", type="refused"):
    """The policy refused to keep something."""

    for_agent: Text
    source: Text
    scope: Text
    key: Text
    """The key of the policy that refused it."""
    reason: Text
    chars: int
    catalog = """The agent @AGENT@ wanted to keep what the policy of memory refuses
    The message names the key of [memory.policy] in lightagentd.toml(5), or of memory in the agent's AGENT.md.
    Nothing was kept. What the text says is not in the journal.
    > The policy in force: lactl config show"""


class MemoryForgotten(MemoryChanged, topic="memory.forgotten", type="forgotten"):
    """It was dropped on somebody's word."""

    catalog = """A memory of the user with uid @CALLER_UID@ is dropped
    The user forgot it, or an agent did that had kept or proposed it itself. It is in no system prompt from
    the next turn on. Conversations in which it was said keep what was said until their sessions are deleted.
    > What is left, for that user: lactl memory list"""


class MemoryExpired(MemoryChanged, topic="memory.expired", type="expired"):
    """Its time was over."""

    catalog = """A memory of the user with uid @CALLER_UID@ has expired
    It was to be remembered up to a certain time, which is over. It was in no system prompt from that time on,
    and is dropped now that somebody looked.
    > What is left, for that user: lactl memory list"""


class _Profile(EventType):
    chars: int
    by: int


class ProfileSet(_Profile, topic="memory.profile", type="set"):
    """A user said what every agent is to know of them."""

    catalog = """The user with uid @CALLER_UID@ wrote their profile
    The profile says what a user wants every agent to know of them. It stands in the system prompts of their
    own sessions alone, from the next turn on. What it says is not in the journal.
    > The profile, for that user: lactl memory profile"""


class ProfileRemoved(_Profile, topic="memory.profile", type="removed"):
    """They took it away."""

    catalog = """The user with uid @CALLER_UID@ took their profile away
    What that user wanted every agent to know of them is dropped, and stands in no system prompt from the next
    turn on.
    > Writing a new one, for that user: lactl memory profile --edit"""
