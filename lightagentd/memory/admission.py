"""The policy of memory: what may be kept, and what an agent gets to read (`config.memory.MemoryPolicy`).

`Rules` are the policy of the configuration, narrowed by what an agent's definition says. All that is kept
goes through `breach`, and all that an agent reads through `lets_through`.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lightagentd.config.memory import MemoryPolicy
from lightagentd.errors import PolicyDenied
from lightagentd.memory.entries import Entry, fingerprint
from lightagentd.text.bounded import TakesTooLongError, bounded
from lightagentd.text.patterns import Pattern, parse_pattern

_SCOPES = frozenset({"user", "agent", "session", "machine"})
"""Those of an agent whose policy names none."""


@dataclass(frozen=True)
class Breach:
    """Why the policy refuses a write: the key of the policy, and a sentence's part."""

    key: str
    why: str

    def error(self) -> PolicyDenied:
        return PolicyDenied(
            f"The policy of memory refuses this: {self.why}.",
            suggestion=f"The key is {self.key} in [memory.policy], or in memory of the agent's AGENT.md.",
            field=self.key,
        )


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The policy for one agent. None stands for all."""

    namespace: str = ""
    sources: frozenset[str] | None = None
    scopes: frozenset[str] = _SCOPES
    agents: frozenset[str] | None = None
    of_people: bool = False
    """Whether only what a person said or promoted is read."""
    min_confidence: float = 0.0
    ttl_us: int = 0
    with_expiry: bool = False
    min_length: int = 0
    patterns: tuple[Pattern, ...] = ()
    no_duplicates: bool = False
    max_entries: int = 0
    store: str = ""

    def lets_through(self, entry: Entry, agent: str, session: str) -> bool:
        """Whether this agent may read the entry in this session."""
        if entry.scope not in self.scopes or not entry.is_for(agent):
            return False
        if entry.scope == "session" and entry.session != session:
            return False
        if self is OPEN:
            return True
        by_person = entry.source == "person"
        return (
            (entry.namespace == self.namespace or (not entry.namespace and entry.is_of_person))
            and _among(_source(entry.source), self.sources)
            and (by_person or _among(entry.from_agent, self.agents))
            and (entry.is_of_person or not self.of_people)
            and entry.confidence >= self.min_confidence
            and (bool(entry.expires_us) or not self.with_expiry)
        )

    def breach(self, entry: Entry, have: Sequence[Entry], same: Entry | None) -> Breach | None:
        """Why an entry may not be kept or proposed; None when it may. `have` are those of its owner, `same`
        is that with the same text.
        """
        scoped = entry.scope in self.scopes or (entry.source == "person" and entry.scope == "team")
        if self is OPEN and scoped:
            return None
        source, made = _source(entry.source), 0
        if self.max_entries and same is None and entry.from_agent:
            made = sum(one.from_agent == entry.from_agent and one.state != "rejected" for one in have)
        rules = (
            ("allowed_sources", not _among(source, self.sources), f"nothing is kept of the source {source}"),
            ("scopes", not scoped, f"nothing is kept for the scope {entry.scope}"),
            (
                "min_confidence",
                entry.confidence < self.min_confidence,
                f"a confidence of {entry.confidence:g} is too little",
            ),
            (
                "enforce_expires_at",
                self.with_expiry and not entry.expires_us,
                "it has no time at which it is forgotten",
            ),
            (
                "min_write_length",
                len(entry.text) < self.min_length,
                f"it has fewer than {self.min_length} characters",
            ),
            (
                "max_entries",
                0 < self.max_entries <= made,
                f"the agent made {made} memories for this user already",
            ),
            (
                "reject_duplicate_writes",
                self.no_duplicates and (same is not None or _is_there(entry, have)),
                "the same is kept or proposed already",
            ),
        )
        found = next((Breach(key, why) for key, broken, why in rules if broken), None)
        return found or self._fitting(entry.text)

    def _fitting(self, text: str) -> Breach | None:
        small = text.casefold()
        for pattern in self.patterns:
            why = f"it fits the pattern {pattern.value!r}"
            try:
                with bounded():
                    found = pattern.matches(text) is not False or pattern.matches(small) is not False
            except TakesTooLongError:
                found, why = True, f"the pattern {pattern.value!r} takes too long on it"
            if found:
                return Breach("reject_write_patterns", why)
        return None


OPEN = Rules()
"""Those where neither the configuration nor the agent says anything."""
_NOTHING = MemoryPolicy()


@lru_cache(maxsize=64)
def _patterns(texts: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(parse_pattern(one, strict=False) for one in texts)


def rules_of(own: MemoryPolicy, agents: MemoryPolicy | None) -> Rules:
    """The policy of the configuration, narrowed by an agent's own."""
    one, other = own, agents or _NOTHING
    if one == other == _NOTHING:
        return OPEN
    ttls = [ttl for ttl in (one.default_ttl_s, other.default_ttl_s) if ttl]
    most = [number for number in (one.max_entries, other.max_entries) if number]
    scopes = _both(one.scopes, other.scopes)
    return Rules(
        namespace=other.namespace or one.namespace,
        sources=_both(one.allowed_sources, other.allowed_sources),
        scopes=_SCOPES if scopes is None else scopes,
        agents=_both(one.agents, other.agents),
        of_people="person" in (one.trust, other.trust),
        min_confidence=max(one.min_confidence, other.min_confidence),
        ttl_us=int(min(ttls, default=0) * 1e6),
        with_expiry=one.enforce_expires_at or other.enforce_expires_at,
        min_length=max(one.min_write_length, other.min_write_length),
        patterns=_patterns((*one.reject_write_patterns, *other.reject_write_patterns)),
        no_duplicates=one.reject_duplicate_writes or other.reject_duplicate_writes,
        max_entries=min(most, default=0),
        store=other.store or one.store,
    )


def _both(one: Collection[str], other: Collection[str]) -> frozenset[str] | None:
    """The names that both lists allow; an empty list allows all."""
    lists = [frozenset(names) for names in (one, other) if names]
    return frozenset.intersection(*lists) if lists else None


def _among(name: str, names: frozenset[str] | None) -> bool:
    return names is None or name in names


def _source(source: str) -> str:
    """A source as the policy calls it."""
    return "user" if source == "person" else source


def _is_there(entry: Entry, have: Sequence[Entry]) -> bool:
    """Whether the agents that would read the entry have one that says the same in the same words."""
    mark = fingerprint(entry.text)
    return any(
        fingerprint(one.text) == mark
        for one in have
        if one.state != "rejected" and one.agent in ("", entry.agent)
    )


_IDS = re.compile(r"\b(?:mem|ses)_[0-9a-f]{16}\b")
_PLACES = re.compile(r"/home/[^\s/]+|/root\b|(?<!\S)~[a-z_][\w-]*|\buid \d+")
_PEOPLE = range(1000, 60_000)
"""The uids of people on Linux distributions (login.defs(5))."""


def data_of_user(text: str) -> str:
    """What a text names that belongs to one user: their name, their home, their memories or sessions. Empty
    for nothing. Asks for all users of the machine, so run it in a thread.
    """
    small = text.casefold()
    for pattern in (_IDS, _PLACES):
        if found := pattern.search(small):
            return found[0]
    spoken = {word.strip("-") for word in re.findall(r"[\w-]+", small)}
    people = (one for one in pwd.getpwall() if one.pw_uid in _PEOPLE)
    return next((f"the user {one.pw_name}" for one in people if one.pw_name.casefold() in spoken), "")
