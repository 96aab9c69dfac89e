"""An approval: one stored question about one call, and the digest that binds it to that call.

The digest is an HMAC-SHA-256, not a plain SHA-256, over the canonical JSON of everything that decides what
runs. The digest is in events that others can read; with a plain one they could test guesses about arguments
that are not stored. The key also prevents that somebody who can write only the stored record makes a matching
digest. The key lies in the state folder; the key of a volatile approval is never stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

from lightagentd.api import turn_events
from lightagentd.config.terms import TERMS, Terms
from lightagentd.errors import ApprovalClosed, ApprovalNotFound
from lightagentd.events.types import approval as kinds
from lightagentd.events.types.event_type import EventType
from lightagentd.host.users import called
from lightagentd.policy.questions.question import Question, State

_DOMAIN = b"lightagentd approval 1\0"
CLOSED_CHARS = 32 << 10
"""Arguments and previews that are longer do not stay with an approval that is over."""
LEFT_OUT = "(The arguments are too long to be kept here; the event that asked for the approval has them.)"
HIDDEN = "[removed: write-only]"
"""Stands in place of an argument that is for the tool alone."""
RESTARTED = "It was kept in memory alone, because it holds a secret, and the daemon ended."
_ENDED: dict[State, type[kinds.ApprovalChanged]] = {
    State.GRANTED: kinds.ApprovalGranted,
    State.DENIED: kinds.ApprovalDenied,
    State.EXPIRED: kinds.ApprovalExpired,
    State.USED: kinds.ApprovalUsed,
    State.LAPSED: kinds.ApprovalLapsed,
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The approved facts: this call of this agent in this session, in the working directory `cwd`, and the
    terms on which its change takes itself back (`config.terms.Terms`).
    """

    agent: str
    session: str
    tool: str
    action: str
    effect: str
    args: dict[str, Any]
    cwd: str
    confirm_within_s: int = 0
    check: str = ""
    inverse: str = ""

    def digest(self, key: bytes) -> str:
        """The keyed digest. Raises ValueError for arguments that JSON cannot represent."""
        facts = asdict(self)
        if not self.confirm_within_s:  # as it was before there were terms
            facts = {name: one for name, one in facts.items() if name not in TERMS}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hmac.new(key, _DOMAIN + text.encode(), hashlib.sha256).hexdigest()


def working_directory(args: dict[str, Any]) -> str:
    """The working directory named in a call's arguments; empty if none."""
    found = args.get("cwd", "")
    return found if isinstance(found, str) else ""


@dataclass(frozen=True, kw_only=True)
class Approval(Question):
    """One approval.

    A volatile approval has its full arguments, preview and expected state only in memory; the stored ones are
    without secrets. The person who decides sees the full ones: a removed part that looks like a secret could
    be the part of a command that they would refuse.
    """

    NOUN: ClassVar[str] = "approval"
    PREFIX: ClassVar[str] = "apr"
    STATES: ClassVar[frozenset[State]] = frozenset({State.WAITING, *_ENDED})
    NOT_FOUND: ClassVar[type[ApprovalNotFound]] = ApprovalNotFound

    tool: str
    action: str
    effect: str
    args: dict[str, Any]
    cwd: str
    digest: str
    preview: str
    expected: dict[str, Any]
    rule: str
    reason: str
    volatile: bool = False
    confirm_within_s: int = 0
    """How long its change stands without a confirmation; 0 where it needs none."""
    check: str = ""
    inverse: str = ""
    hidden: tuple[str, ...] = ()
    """The names of the arguments that nobody gets to see, such as keys."""
    approver: str = ""
    """The digest of its statement at the approver, which then answers it; empty where the daemon does."""
    signed: dict[str, Any] = field(default_factory=dict)
    """The approver's signature (`signed.grant`), which is not stored: the approver keeps it."""
    note: str = ""
    """What the person who answered said, or why it lapsed."""
    unit: str = ""
    """Where it was granted from; the four are those of `host.seat.Seat`."""
    tty: str = ""
    login_uid: int | None = None
    login_session: int | None = None

    @property
    def bound(self) -> Bound:
        return Bound(**self._fields(*Bound.__dataclass_fields__))

    def on_terms_of(self, bound: Bound) -> Bound:
        """This call on the terms of the approval, which a call that goes on after a question has already."""
        return replace(bound, **self._fields(*TERMS))

    def with_terms(self, terms: Terms, key: bytes) -> Self:
        """On these terms, and with the digest of that."""
        changed = replace(self, **terms.fields())
        return replace(changed, digest=changed.bound.digest(key))

    @property
    def name(self) -> str:
        return f"{self.tool}.{self.action}"

    @property
    def terms(self) -> Terms | None:
        return Terms.of(self._fields(*TERMS))

    @property
    def lost(self) -> str:
        return RESTARTED if self.volatile else ""

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments without the hidden ones."""
        return hide(self.args, self.hidden)

    def ended(self, state: State, why: str) -> Self:
        return replace(self, state=state, note=why)

    def event(self, _why: str) -> EventType:
        call = {"approval": self.id, **self._fields("call_id", "tool", "action", "effect")}
        call |= {"note": self.note} if self.note else {}
        if self.state is not State.WAITING:
            by: dict[str, Any] = {} if self.answered_by is None else {"answered_by": self.answered_by}
            if self.state is State.GRANTED:
                seat = self._fields("unit", "tty", "login_uid", "login_session")
                seat |= self._fields(*TERMS)
                by |= {name: value for name, value in seat.items() if value not in ("", None, 0)}
            return _ENDED[self.state](**call, **by)
        asked = self._fields("cwd", "digest", "rule", "reason", "expires_us", "volatile")
        return kinds.ApprovalRequested(args=self.shown, **call, **asked)

    def request(self) -> turn_events.ApprovalRequested:
        call = self._fields("call_id", "tool", "action", "effect", "cwd")
        why = self._fields("preview", "rule", "reason", "expires_us", "volatile", "digest", "approver")
        why |= self._fields(*TERMS)
        return turn_events.ApprovalRequested(approval=self.id, args=self.shown, **call, **why)

    def outcome(self) -> turn_events.ApprovalAnswered:
        answer = self._fields("call_id", "tool", "action", "answered_by", "note")
        return turn_events.ApprovalAnswered(approval=self.id, state=self.state.value, **answer)

    def refusal(self) -> ApprovalClosed:
        words = {
            State.GRANTED: f"was granted already by {called(self.answered_by or 0)}",
            State.DENIED: f"was denied already by {called(self.answered_by or 0)}",
            State.EXPIRED: "has expired",
            State.USED: "was granted and used already",
            State.LAPSED: "has lapsed, because its call will not run",
        }
        return ApprovalClosed(
            f"The approval {self.id} {words[self.state]}.",
            suggestion="An approval counts for one call, once. Run: lactl approvals",
            field="approval",
        )

    def to_dict(self) -> dict[str, Any]:
        """The stored form: without the hidden arguments, and without a tool's output made from them. The
        history removes other secrets.
        """
        stored = super().to_dict() | {"args": self.shown, "signed": {}}
        if not self.open and len(self.preview) + len(str(self.args)) > CLOSED_CHARS:
            stored |= {"args": {}, "preview": LEFT_OUT, "expected": {}}
        return stored | ({"preview": "", "expected": {}} if self.volatile else {})


def hide(args: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """The arguments without the values of the hidden ones."""
    return {name: HIDDEN if name in hidden else value for name, value in args.items()}
