"""What becomes of memories and profiles; never their text."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Text


class MemoryChanged(Kind):
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


class MemoryRemembered(MemoryChanged, topic="memory.remembered", type="remembered"):
    """It is kept: agents read it."""


class MemoryProposed(MemoryChanged, topic="memory.proposed", type="proposed"):
    """It is a candidate: no agent reads it until its owner promotes it."""


class MemoryPromoted(MemoryChanged, topic="memory.promoted", type="promoted"):
    """Its owner had a candidate kept."""


class MemoryRejected(MemoryChanged, topic="memory.rejected", type="rejected"):
    """Its owner turned a candidate down."""


class MemoryForgotten(MemoryChanged, topic="memory.forgotten", type="forgotten"):
    """It was dropped on somebody's word."""


class MemoryExpired(MemoryChanged, topic="memory.expired", type="expired"):
    """Its time was over."""


class _Profile(Kind):
    chars: int
    by: int


class ProfileSet(_Profile, topic="memory.profile", type="set"):
    """A user said what every agent is to know of him."""


class ProfileRemoved(_Profile, topic="memory.profile", type="removed"):
    """He took it away."""
