"""Rules of policy, and what they would decide."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """One rule of policy.d. `conditions` are those that it has, as in its file; `origin` is FILE:LINE."""

    name: str
    decision: str
    reason: str
    even_if_tainted: bool
    conditions: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class PolicyExplanation:
    """What policy would say to a call, and why.

    `rule` decided; its `origin` is FILE:LINE, or empty for a built-in rule. `effect` is the one in force.
    `message` and `suggestion` are what a refused call gets. `matched` are all rules of policy.d that are
    about the call, `notes` sentences on what else had a part in the decision.
    """

    decision: str
    rule: str
    origin: str
    reason: str
    effect: str
    message: str
    suggestion: str
    matched: list[PolicyRule]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class PolicyChange:
    """A stored call that other rules would decide otherwise. `seq` is the event that tells of it."""

    seq: int
    time_us: int
    agent: str
    session: str
    owner: int | None
    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    before: str
    before_rule: str
    after: str
    after_rule: str


@dataclass(frozen=True, kw_only=True)
class RuleProposal:
    """A rule that would allow exactly the call of an approval: the `text` of its file at `path`, and in
    `words` what it lets through. `past` are the newest of the `allowed` past calls that it would have
    allowed, of the `judged` newest ones of the agent and the tool.
    """

    approval: str
    name: str
    path: str
    text: str
    sha256: str
    words: str
    judged: int
    allowed: int
    past: list[PolicyChange]


@dataclass(frozen=True, kw_only=True)
class PolicyReplay:
    """One answer of a replay: a call whose decision would change, and the counts so far; the last has none.

    `judged` counts calls that policy had decided, `skipped` those of which the history does not hold enough.
    """

    judged: int
    changed: int
    skipped: int
    change: PolicyChange | None


@dataclass(frozen=True, kw_only=True)
class PolicyGuard:
    """One guard of policy.d: a rule for text. `match` are classes of text, `conditions` an object with its
    agents and callers; `origin` is FILE:LINE.
    """

    name: str
    on: list[str]
    action: str
    match: list[str]
    pattern: list[str]
    reason: str
    conditions: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class PolicyGuardHit:
    """A guard that found something in a text, and how often. `unsure`: a pattern took too long, so that the
    whole text counts as a match.
    """

    name: str
    action: str
    origin: str
    count: int
    unsure: bool


@dataclass(frozen=True, kw_only=True)
class PolicyTextExplanation:
    """What guards would do to a text. `action` is the strictest, or pass; `text` is what would be left of it,
    empty when it is blocked.
    """

    action: str
    text: str
    hits: list[PolicyGuardHit]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class PolicyTextChange:
    """A stored text to which other guards would do something. `seq` is the event that has it."""

    seq: int
    time_us: int
    agent: str
    session: str
    owner: int | None
    on: str
    action: str
    hits: list[PolicyGuardHit]


@dataclass(frozen=True, kw_only=True)
class PolicyTextReplay:
    """One answer of a replay of texts: a text that guards would act on, and the counts so far; the last has
    none.
    """

    judged: int
    changed: int
    change: PolicyTextChange | None
