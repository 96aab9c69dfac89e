"""One tool call as the daemon sends it to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from lightagentd.errors import InvalidArgument
from lightagentd.tool import Effect, Place

GOES_ON = "goes_on"
"""What a verified call expects that goes on after a question: the `question` and the `answer`."""
OWN_PREVIEWS = frozenset({("file", "undo")})
"""Actions that look at what only the worker for change can read, to say what they would do."""


@dataclass(frozen=True, kw_only=True)
class Call:
    call_id: str
    tool: str
    action: str
    args: dict[str, Any]
    agent: str
    session: str
    effect: Effect
    timeout_s: float
    owner: int = 0
    """The uid on whose behalf it runs."""
    place: Place | None = None
    """Where it runs, which the worker knows of itself."""
    kit: str = ""
    """The folder of the agent's own tools."""
    expected: dict[str, Any] = field(default_factory=dict)
    """What an approved call's preview rested on."""
    given: dict[str, Any] = field(default_factory=dict)
    """What its tool gets beside that (`agents.tool_calls.given`)."""
    trigger: str = ""
    """What began the turn."""
    terms: dict[str, Any] = field(default_factory=dict)
    """How its change takes itself back, by the names of `config.terms.TERMS`."""
    above: list[str] = field(default_factory=list)
    """The agents that had this one called, the nearest first."""
    takes_back: str = ""
    """The call whose change it takes back, since nobody confirmed that in time."""
    signed: dict[str, str] = field(default_factory=dict)
    """The approver's signature (`signed.grant`); empty where a rule allows it."""
    resumed: dict[str, Any] | None = None
    """The state and the answer of a person with which it goes on: {state, answer}."""

    def to_wire(self, kit: str) -> dict[str, Any]:
        """The message to the worker."""
        return {**vars(self), "effect": self.effect.value, "place": None, "kit": kit}

    @classmethod
    def of(cls, found: Any) -> Self:
        """From `to_wire`. Raises InvalidArgument."""
        try:
            made = cls(**{**found, "effect": Effect(found["effect"])})
        except (TypeError, ValueError, KeyError) as err:
            raise InvalidArgument(f"It is no call: {err}.") from None
        for name, kinds in _KINDS.items():
            if type(getattr(made, name)) not in kinds:
                raise InvalidArgument(f"The field {name} of a call is not what it has to be.")
        return made


_TEXTS = ("call_id", "tool", "action", "agent", "session", "kit", "trigger", "takes_back")
_TABLES = ("args", "expected", "given", "terms", "signed")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_TABLES, (dict,)),
    "timeout_s": (int, float),
    "owner": (int,),
    "above": (list,),
    "resumed": (dict, type(None)),
    "place": (type(None),),
}
