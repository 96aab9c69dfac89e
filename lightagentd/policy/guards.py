"""One guard of policy.d: a rule for text, beside the rules for calls.

    [[guard]]
    name = "no-cards"                       # unique over all files, also among rules
    on = ["prompt", "tool_result"]          # one or several of `On`
    match = ["payment-card", "iban"]        # classes of text (`text_classes`), one or several
    pattern = ["project falcon", "re:KX-\\d{4}"]  # and words or regular expressions, in each line
    action = "redact"                       # block, redact, ask, tag
    reason = "No card leaves this machine." # shown to people and to the model
    agent = "web-*"                         # conditions, as in a rule: names or globs, one or several
    caller = ["alice", "group:adm"]
    tag = "personal-data"                   # for tag: the word in the event; by default the guard's name
    examples.match = ["4111 1111 1111 1111"]
    examples.not_match = ["4111 1111 1111 1112"]

Words are found whatever their case. The examples are checked when the file is loaded. What cannot be decided
(an unknown caller, a pattern that takes too long) counts as a match: a guard can only narrow.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, StrictStr, ValidationInfo, field_validator, model_validator

from lightagentd.policy.patterns import PATTERN_MAX_CHARS, REGEX_PREFIX
from lightagentd.policy.rules import AgentGlob, Several, Table, Uid, is_caller
from lightagentd.policy.text_classes import CLASSES, SECRET

_NAMES = (*CLASSES, SECRET)


class On(StrEnum):
    """What a guard looks at."""

    PROMPT = "prompt"
    ATTACHMENT = "attachment"
    ANSWER = "answer"
    TOOL_RESULT = "tool_result"
    MEMORY = "memory"
    EVENT = "event"


class GuardAction(StrEnum):
    """What happens with a match, the strictest first."""

    BLOCK = "block"
    ASK = "ask"
    REDACT = "redact"
    TAG = "tag"


CAN_ASK = frozenset({On.TOOL_RESULT})
"""Where a person can be asked: there a turn runs that can wait. A prompt is the person's own word, an answer
is on its way to them, and with an event or a memory nobody is there.
"""


class Examples(Table):
    """`examples`: texts that the guard has to find something in, and texts that it must not."""

    match: list[StrictStr] = Field(default_factory=list)
    not_match: list[StrictStr] = Field(default_factory=list)


class Guard(Table):
    """`[[guard]]`"""

    name: StrictStr = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    on: Several[On]
    action: GuardAction
    match: Several[StrictStr] | None = None
    pattern: Several[StrictStr] | None = None
    reason: StrictStr = Field(default="", max_length=500)
    agent: Several[AgentGlob] | None = None
    caller: Several[Uid] | None = None
    tag: StrictStr = Field(default="", pattern=r"^([a-z0-9][a-z0-9_-]{0,63})?$")
    examples: Examples = Field(default_factory=Examples)

    @field_validator("action")
    @classmethod
    def _can_be_taken(cls, value: GuardAction, info: ValidationInfo) -> GuardAction:
        others = [on for on in info.data.get("on", ()) if on not in CAN_ASK]
        if value is GuardAction.ASK and others:
            can = ", ".join(sorted(CAN_ASK))
            raise ValueError(f"nobody can be asked on {others[0]}, only on {can}")
        return value

    @field_validator("tag")
    @classmethod
    def _is_of_tag(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("action") is not GuardAction.TAG:
            raise ValueError("it belongs to guards whose action is tag")
        return value

    @field_validator("match")
    @classmethod
    def _are_classes(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if name not in _NAMES:
                raise ValueError(f"{name!r} is no class of text; there are {', '.join(_NAMES)}")
        return value

    @field_validator("pattern")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        compiled(value or ())
        return value

    @model_validator(mode="after")
    def _fits(self) -> Guard:
        if not (self.match or self.pattern):
            raise ValueError("match, or pattern, has to say what the guard looks for")
        return self


@dataclass(frozen=True, kw_only=True)
class LoadedGuard:
    """A guard, its place in the files, and its patterns."""

    guard: Guard
    file: str
    line: int
    patterns: tuple[re.Pattern[str], ...]

    @property
    def name(self) -> str:
        return self.guard.name

    @property
    def origin(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def label(self) -> str:
        """The guard's name in events and refusals."""
        return f"{self.name} ({self.file.rpartition('/')[2]})"

    @property
    def tag(self) -> str:
        """The word in its events."""
        return self.guard.tag or self.name

    def covers(self, on: On, agent: str, caller: int | None) -> bool:
        """Whether it looks at such texts of this agent, empty for all of them, for this user."""
        guard = self.guard
        return (
            on in guard.on
            and (
                guard.agent is None
                or not agent
                or any(fnmatch.fnmatchcase(agent, glob) for glob in guard.agent)
            )
            and (guard.caller is None or is_caller(guard.caller, caller, doubt=True))
        )


Guards = tuple[LoadedGuard, ...]


def covering(guards: Guards, on: On, agent: str, caller: int | None) -> Guards:
    """Those of the guards that look at such texts."""
    return tuple(one for one in guards if one.covers(on, agent, caller))


def compiled(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Raises ValueError."""
    return tuple(map(_compile, patterns))


def _compile(text: str) -> re.Pattern[str]:
    if len(text) > PATTERN_MAX_CHARS:
        raise ValueError(f"a pattern is longer than {PATTERN_MAX_CHARS} characters")
    expression = text.removeprefix(REGEX_PREFIX)
    try:
        found = re.compile(expression) if text != expression else re.compile(re.escape(text), re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as err:
        raise ValueError(f"{expression!r} is not a regular expression: {err}") from err
    if not expression or found.match(""):
        raise ValueError("a pattern matches the empty text, and so every text")
    return found
