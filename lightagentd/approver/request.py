"""A request and a leave, and what the daemon may put into them: it is not trusted with either.

All bounds on one request are here. Those on all of them together are in `requests`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from lightagentd.config.terms import COMMAND_CHARS, LONGEST_S, TERMS
from lightagentd.errors import Conflict, InvalidArgument, MessageTooLarge
from lightagentd.signed.statement import Statement, canonical
from lightagentd.text.agent_name import NAME

STATEMENT_CHARS, SAID_CHARS = 512 << 10, 192 << 10
"""The longest statement, and the longest text beside it, as JSON."""
FIELD_CHARS = 4096
"""The longest text in a field of a statement, but for those of the terms."""
LONGEST_ASK_S = 7 * 86_400.0
"""A request is over after that, whatever time the daemon asked for."""
AHEAD_S = 600.0
"""A request that was made so much later than now was made with another clock, and waits no more."""
LEAVE_S, LEAVE_USES = 86_400.0, 50
"""A leave ends after that time, and after so many calls."""
LEAVE_CHARS = 8 << 10
"""The longest arguments that a leave may have, as JSON."""
CHANGE, PERSON = "change", "person"
"""As `tool.Effect` and `policy.call` have them, which take more memory than all of the approver."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_AGENT = re.compile(rf"{NAME.pattern}(?:\.{NAME.pattern})?")

State = Literal["waiting", "granted", "denied", "expired", "lapsed"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """`said` is what the daemon says of the call beside the statement: preview, rule, reason, trace_id,
    tainted, chain, hidden. Nothing is decided by it, but that a tainted call needs a leave that says so. The
    answer is by a user, at a time in microseconds, with a note and from a seat, or by a leave.
    """

    id: str
    statement: Statement
    said: dict[str, Any]
    created_us: int
    expires_us: int
    state: State = "waiting"
    by: int | None = None
    answered_us: int = 0
    note: str = ""
    seat: dict[str, Any] = field(default_factory=dict)
    leave: str = ""
    grant: dict[str, str] | None = None

    @property
    def digest(self) -> str:
        return self.statement.digest

    @property
    def terms(self) -> dict[str, Any]:
        return {name: getattr(self.statement, name) for name in TERMS}

    @property
    def is_secret(self) -> bool:
        """Whether it is kept in memory alone: the daemon says that an argument is secret."""
        return bool(self.said.get("hidden"))

    @property
    def is_tainted(self) -> bool:
        return self.said.get("tainted") is not False

    def at(self, now_us: int) -> Request:
        """As it is now. Nothing is stored of its end, since the clock says it each time."""
        ahead_us = now_us + int(AHEAD_S * 1_000_000)
        if self.state == "waiting" and not (now_us < self.expires_us and self.created_us <= ahead_us):
            return replace(self, state="expired")
        return self

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "digest": self.digest}

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """From `asdict`. Raises TypeError, KeyError, InvalidArgument."""
        return cls(**{**found, "statement": Statement.of(found["statement"])})


@dataclass(frozen=True, kw_only=True)
class Leave:
    """A person's yes to one call for as long as its session goes on: to this statement, whose `call_id` is
    empty, on these terms. `tainted` says that it counts, too, when the daemon says that text from outside is
    there. `left` is for how many calls more. Session, trigger and taint are the daemon's word: with a lie
    about them it gets no other call than this one, and no more of them than that.
    """

    id: str
    statement: Statement
    terms: dict[str, Any]
    tainted: bool
    by: int
    created_us: int
    until_us: int
    left: int = LEAVE_USES

    @classmethod
    def given(cls, answered: Request, asked: Statement, *, tainted: bool, leave_id: str) -> Self:
        """By the answer to a request. Raises Conflict for a call that has to be asked about each time."""
        assert answered.by is not None
        if not asked.session or asked.trigger != PERSON:
            raise Conflict(
                "Only a call of a turn that a person began is allowed for a session.",
                suggestion="Allow it once.",
            )
        if answered.is_tainted and not tainted:
            raise Conflict(
                "Text from outside is in this session, and a leave does not count then.",
                suggestion="Allow it once; or say that this is meant: --session --tainted",
            )
        if answered.is_secret or len(canonical(asked.args)) > LEAVE_CHARS:
            raise Conflict(
                "A call that holds a secret, or is very long, is not allowed for a session.",
                suggestion="Allow it once.",
            )
        return cls(
            id=leave_id,
            statement=replace(asked, call_id=""),
            terms=answered.terms,
            tainted=tainted,
            by=answered.by,
            created_us=answered.answered_us,
            until_us=answered.answered_us + int(LEAVE_S * 1_000_000),
        )

    def is_for(self, request: Request) -> bool:
        """Whether it allows the call of a request now."""
        in_time = self.created_us <= request.created_us < self.until_us and self.left > 0
        same = replace(request.statement, call_id="") == self.statement
        return in_time and same and not request.is_secret and (self.tainted or not request.is_tainted)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """From `to_dict`. Raises TypeError, KeyError, InvalidArgument."""
        return cls(**{**found, "statement": Statement.of(found["statement"])})


def checked(
    request_id: str, statement: Any, said: Any, expires_us: int, *, now_us: int
) -> tuple[Statement, int]:
    """The statement of what the daemon asks for, and what the request takes in memory, in bytes. Raises
    MessageTooLarge and InvalidArgument.
    """
    if not _ID.fullmatch(request_id) or not isinstance(said, dict):
        raise InvalidArgument("It is no request.")
    try:
        texts = [canonical(one) for one in (statement, said)]
    except (TypeError, ValueError, RecursionError) as err:
        raise InvalidArgument("It holds what JSON cannot.") from err
    if len(texts[0]) > STATEMENT_CHARS or len(texts[1]) > SAID_CHARS:
        raise MessageTooLarge("The call is larger than what a person can be asked about.")
    if expires_us <= now_us:
        raise InvalidArgument("The time of the request is over already.", field="expires_us")
    made = Statement.of(statement)
    if (
        not (made.effect == CHANGE or made.uses_key)
        or not _AGENT.fullmatch(made.agent)
        or not 0 <= made.owner < 1 << 32
    ):
        raise InvalidArgument("The statement is not about a change of an agent for a user.")
    for name, value in made.to_dict().items():
        most = COMMAND_CHARS if name in TERMS else FIELD_CHARS
        if isinstance(value, str) and len(value) > most:
            raise InvalidArgument(f"The field {name} of the statement is too long.")
    if not (made.tool and made.action and made.call_id):
        raise InvalidArgument("The statement does not say which call it is about.")
    if not 0 <= made.confirm_within_s <= LONGEST_S:
        raise InvalidArgument("The terms of the statement are out of bounds.")
    return made, weight(made, said)


def weight(statement: Statement, said: dict[str, Any]) -> int:
    """What a request takes in memory, and at least its length as JSON, in bytes."""
    found: list[Any] = [statement.to_dict(), said]
    total = sum(len(json.dumps(one)) for one in found)
    while found:
        one = found.pop()
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            found += one
            found += one.values()
        elif isinstance(one, list):
            found += one
    return total
