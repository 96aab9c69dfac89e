"""The base of all questions to a person about a call: states, times, and the stored form.

`Approval` asks whether a call may run, `Input` is a question of an agent (`human.ask`). Both are immutable: a
change makes a new one, which `Questions` stores.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from types import NoneType
from typing import Any, ClassVar, Self

from lightagentd.api import turn_events
from lightagentd.errors import LightagentError
from lightagentd.events.types.event_type import EventType


class State(StrEnum):
    """The state of a question. Only the first two can still change."""

    WAITING = "waiting"
    GRANTED = "granted"
    ANSWERED = "answered"
    DENIED = "denied"
    EXPIRED = "expired"
    USED = "used"
    LAPSED = "lapsed"


OPEN = frozenset({State.WAITING, State.GRANTED})

_TYPES: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, NoneType),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (tuple,),
    "State": (State,),
}
"""By the annotation of a field, the types that a stored value may have; a bool is no int."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Times are UTC in microseconds; `answered_by` is a uid."""

    NOUN: ClassVar[str]
    """What people call it. The stored state and the command that lists it are named by its plural."""
    PREFIX: ClassVar[str]
    """How its id begins."""
    STATES: ClassVar[frozenset[State]]
    """The states that its kind has."""
    NOT_FOUND: ClassVar[type[LightagentError]]
    """What is raised for one that does not exist."""

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    created_us: int
    expires_us: int
    state: State = State.WAITING
    answered_by: int | None = None
    answered_us: int = 0

    @property
    def open(self) -> bool:
        """Whether its state can still change."""
        return self.state in OPEN

    @property
    def pending(self) -> bool:
        """Whether its call still needs it, as far as the question itself shows."""
        return self.open

    @property
    def lost(self) -> str:
        """Why no later run of the daemon can continue with it; empty when one can."""
        return ""

    def overdue(self) -> bool:
        """Whether it is open but its time is over."""
        return self.open and now_us() >= self.expires_us

    def now(self) -> Self:
        """The question to show: expired when its time is over, even if that is not stored yet."""
        return replace(self, state=State.EXPIRED) if self.overdue() else self

    def ended(self, state: State, _why: str) -> Self:
        """The question closed without an answer."""
        return replace(self, state=state)

    def event(self, _why: str) -> EventType:
        """The event of its newest change; the argument is the reason of a lapse."""
        raise NotImplementedError

    def request(self) -> turn_events.Event:
        """The turn event that asks for an answer, with everything that the deciding person must see."""
        raise NotImplementedError

    def outcome(self) -> turn_events.Event:
        """The turn event for the end of the question."""
        raise NotImplementedError

    def refusal(self) -> LightagentError:
        """The error for an answer to a question that no longer waits."""
        raise NotImplementedError

    def _fields(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The stored form."""
        stored = {name: [*held] if isinstance(held, tuple) else held for name, held in asdict(self).items()}
        return stored | {"state": self.state.value}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read a stored question. Raises TypeError, KeyError or ValueError for an invalid record."""
        state = State(value["state"])
        lists = {name: tuple(held) for name, held in value.items() if isinstance(held, list)}
        found = cls(**{**value, **lists, "state": state})
        for field in fields(found):
            held = getattr(found, field.name)
            if type(held) not in _TYPES[field.type]:
                raise TypeError(f"{field.name} is a {type(held).__name__}")
            if isinstance(held, tuple) and not all(isinstance(one, str) for one in held):
                raise TypeError(f"{field.name} holds something else than text")
        if state not in cls.STATES:
            raise ValueError(f"its state is {state}")
        return found

    @classmethod
    def not_found(cls, question_id: str) -> LightagentError:
        """The error for a question that does not exist, or that the caller may not know of."""
        return cls.NOT_FOUND(
            f"There is no {cls.NOUN} {question_id[:60]!r}.",
            suggestion=f"Run: lactl {cls.NOUN}s",
            field=cls.NOUN,
        )


def now_us() -> int:
    return time.time_ns() // 1000
