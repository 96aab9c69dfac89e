"""One memory: its fields, their limits, and a safe form of its text for one line of a prompt."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

from lightagentd.config.memory import Scope
from lightagentd.errors import InvalidArgument
from lightagentd.memory.ranking import words

MAX_CHARS = 2000
MAX_TAGS = 10
MAX_WHY_CHARS = 200
_ID = re.compile(r"mem_[0-9a-f]{16}")
_TAG = re.compile(r"[a-z0-9-]{1,32}")
_JOINERS = "\u200c\u200d"
"""Some scripts are wrong without these; all other characters that nobody sees are dropped."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that nobody sees either; U+FE0F, of emoji, may stay."""
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Categories of characters that steer a terminal, or that a model reads and a person does not see."""

State = Literal["kept", "candidate", "rejected"]
STATES: tuple[State, ...] = ("kept", "candidate", "rejected")
Source = Literal["person", "agent", "reflection", "tool", "import"]
SOURCES: tuple[Source, ...] = ("person", "agent", "reflection", "tool", "import")
OF_AGENTS: tuple[Source, ...] = ("agent", "reflection", "tool")
SCOPES: tuple[Scope, ...] = ("user", "agent", "session", "team", "machine")
MACHINE = (1 << 32) - 1
"""The owner of facts about the machine: (uid_t)-1, which no user has (credentials(7))."""
NOBODY = -1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One memory of one owner. `agent` is empty when it is for all agents; times are in UTC microseconds.

    A rejected one has no text, only the text's `fingerprint`.
    """

    id: str
    owner: int
    agent: str
    text: str
    tags: tuple[str, ...]
    source: Source
    state: State
    session: str
    trace_id: str
    created_us: int
    updated_us: int
    expires_us: int
    """When it is forgotten by itself; 0 for never."""
    confidence: float
    """How sure its source is, from 0 to 1."""
    fingerprint: str = ""
    scope: Scope = "user"
    """For whom it is: `user` for all agents of its owner, `agent` for one, `session` for one in one session,
    `team` for the agents that read the pool, `machine` for the agents of all users."""
    namespace: str = ""
    said_by: int = NOBODY
    """The uid of who said it, or in whose session it was said."""
    from_agent: str = ""
    """The agent that made it; empty when a person did."""
    proposed_why: str = ""
    """Why it was a candidate."""
    promoted_by: int = NOBODY
    promoted_us: int = 0
    promoted_why: str = ""
    """What the person said who promoted it."""

    @cached_property
    def words(self) -> Counter[str]:
        """The words for a search: a tag counts as much as three words of the text."""
        found = Counter(words(self.text))
        for tag in self.tags:
            found.update(dict.fromkeys(words(tag), 3))
        return found

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tags": list(self.tags)}

    def is_expired(self, now_us: int) -> bool:
        return 0 < self.expires_us <= now_us

    def is_for(self, agent: str) -> bool:
        """Whether an agent of this name gets to read it."""
        return self.agent in ("", agent)

    @property
    def is_of_person(self) -> bool:
        """Whether a person said or promoted it."""
        return self.source == "person" or self.promoted_by != NOBODY

    def line(self) -> str:
        """The memory as one line for a model, with the text in quotes that it cannot close."""
        when = time.strftime("%Y-%m-%d", time.gmtime(self.updated_us / 1e6))
        tags = f", {' '.join(self.tags)}" if self.tags else ""
        quoted = json.dumps(self.text, ensure_ascii=False)
        return f"- {self.id} ({when}, confidence {self.confidence:g}{tags}): {quoted}"


_TEXTS = ("namespace", "from_agent", "proposed_why", "promoted_why", "fingerprint")
_UIDS = ("said_by", "promoted_by")
_LATER: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_UIDS, NOBODY),
    "promoted_us": 0,
}
"""The fields that entries of version 0.1, and of a store that keeps no others, do not have."""


def _guessed(found: dict[str, Any]) -> dict[str, Any]:
    """What follows from the other fields of an entry of version 0.1."""
    of_agent = found.get("source") == "agent"
    return {
        "scope": "agent" if found.get("agent") else "user",
        "said_by": found.get("owner"),
        "from_agent": found.get("agent") if of_agent else "",
    }


def entry_of(value: object, owner: int) -> Entry:
    """The entry from a store's answer, a dict or an Entry. Raises ValueError unless it is a valid entry of
    this owner.
    """
    found = value.to_dict() if isinstance(value, Entry) else value
    if not isinstance(found, dict):
        raise ValueError("not an entry")  # noqa: TRY004 - as all else that a store may get wrong
    found = _LATER | _guessed(found) | found
    if found.keys() != {field.name for field in fields(Entry)}:
        raise ValueError("not the fields of an entry")
    texts = ("id", "agent", "text", "session", "trace_id", *_TEXTS)
    if not all(type(found[name]) is str and len(found[name]) <= MAX_CHARS for name in texts):
        raise ValueError("its text is invalid or too long")
    if not is_id(found["id"]) or type(found["owner"]) is not int or found["owner"] != owner:
        raise ValueError("its id is invalid, or it belongs to somebody else")
    if not all(type(found[name]) is int and NOBODY <= found[name] <= MACHINE for name in _UIDS):
        raise ValueError("an invalid uid")
    numbers = ("created_us", "updated_us", "expires_us", "promoted_us")
    if not all(type(found[name]) is int and 0 <= found[name] < 1 << 62 for name in numbers):
        raise ValueError("an invalid time")
    if found["source"] not in SOURCES or found["state"] not in STATES or found["scope"] not in SCOPES:
        raise ValueError("an unknown source, state or scope")
    if found["scope"] == "user" and found["agent"]:  # as a store says that keeps no scopes
        found["scope"] = "agent"
    if not isinstance(found["tags"], list | tuple):
        raise ValueError("invalid tags")  # noqa: TRY004 - as above
    if type(found["confidence"]) not in (int, float) or not 0 <= found["confidence"] <= 1:
        raise ValueError("an invalid confidence")
    if found["text"] != one_line(found["text"]) or (not found["text"] and found["state"] != "rejected"):
        raise ValueError("a text that is not one line, or empty")
    try:
        return Entry(**{**found, "tags": checked_tags(found["tags"])})
    except InvalidArgument as err:
        raise ValueError(err.message) from err


def is_id(text: str) -> bool:
    """Whether it could be the id of an entry."""
    return _ID.fullmatch(text) is not None


def one_line(text: str) -> str:
    """The text in one line, without invisible characters; runs of white space become one space.

    So a text cannot begin a new line, and looks the same to a person and to a model.
    """
    spaced = (" " if char.isspace() else char for char in text)
    seen = (char for char in spaced if char in _JOINERS or not _is_unseen(char))
    return " ".join("".join(seen).split())


def _is_unseen(char: str) -> bool:
    return unicodedata.category(char) in _UNSEEN or _BLANK.match(char) is not None


def checked_text(text: str) -> str:
    """The cleaned text. Raises InvalidArgument if it is empty or too long."""
    found = one_line(text[: 4 * MAX_CHARS])
    if not found:
        raise InvalidArgument("There is nothing to remember.", field="text", suggestion="Write a sentence.")
    if len(text) > 4 * MAX_CHARS or len(found) > MAX_CHARS:
        raise InvalidArgument(
            f"A memory has at most {MAX_CHARS} characters.",
            field="text",
            suggestion="Keep what matters, or keep several.",
        )
    return found


def checked_why(why: str) -> str:
    """What a person said of a promotion, in one line. Raises InvalidArgument if it is too long."""
    found = one_line(why[: 4 * MAX_WHY_CHARS])
    if len(why) > 4 * MAX_WHY_CHARS or len(found) > MAX_WHY_CHARS:
        raise InvalidArgument(f"A reason has at most {MAX_WHY_CHARS} characters.", field="why")
    return found


def checked_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """The tags, each once. Raises InvalidArgument."""
    found = tuple(dict.fromkeys(str(tag) for tag in tags))
    if len(found) > MAX_TAGS or not all(_TAG.fullmatch(tag) for tag in found):
        raise InvalidArgument(
            f"A memory has at most {MAX_TAGS} tags of 1 to 32 of a to z, 0 to 9 and -.", field="tags"
        )
    return found


def checked_confidence(value: float) -> float:
    """Raises InvalidArgument unless it is from 0 to 1."""
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise InvalidArgument("confidence must be from 0 to 1.", field="confidence")
    return round(float(value), 3)


def fingerprint(text: str) -> str:
    """The digest of a rejected text; capitals, spaces and punctuation do not change it."""
    return hashlib.sha256(" ".join(words(text)).encode("utf-8", "replace")).hexdigest()
