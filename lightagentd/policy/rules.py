"""One rule of policy.d: its form in the file, and whether it matches a call.

    [[rule]]
    name = "restart-web"                    # unique over all files
    decision = "allow"                      # allow, ask, deny
    reason = "Restarting is harmless."      # shown to the model and to people
    even_if_tainted = false                 # for allow: also when text from outside is in the session
    agent = "ops"                           # all that follow are conditions, and each that is there must hold
    tool = "systemd"
    action = ["restart", "reload"]          # agent, tool, action, trigger: names or globs, one or several
    effect = "change"                       # the effect in force (see `decide`)
    trigger = "person"
    caller = ["alice", 1000, "group:adm"]   # whose session it is: users, uids, groups
    args = { unit = "nginx*.service" }      # see `arguments`
    exactly = { unit = "nginx.service" }    # for allow: all arguments, and no patterns
    confirm_within = "5m"                   # for allow and ask: how long its change stands unconfirmed
    check = "curl -sf http://localhost/"    # confirms it when it ends with 0
    inverse = "systemctl start nginx"       # takes it back, where what was changed does not say how
    match = [{ args = { unit = "nginx.service" } }]
    not_match = [{ args = { unit = "sshd.service" } }]

`match` and `not_match` are examples of calls, filled up from what the rule names without a glob. They are
checked when the file is loaded.

An undecidable condition (an unknown caller, a text that is too long) does not match in a rule that allows,
and matches in one that asks or denies.
"""

from __future__ import annotations

import fnmatch
import grp
import json
import math
import os
import pwd
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lightagentd.config.terms import Terms, terms_of
from lightagentd.policy.arguments import ArgumentCondition, implied_conditions, parse_condition
from lightagentd.policy.call import BUILT_IN_RULES, PERSON, Decision, PolicyCall
from lightagentd.policy.patterns import GLOB_CHARACTERS
from lightagentd.tool import Effect

_T = TypeVar("_T")
GROUP_PREFIX = "group:"


def _one_or_several(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _glob(allowed: str, such_as: str) -> AfterValidator:
    """A check that a glob can match at all: an impossible name would make a rule that is never used."""
    pattern = re.compile(allowed)

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} can match nothing; write a name or a glob, such as {such_as!r}")
        return text

    return AfterValidator(check)


def _uid_of(value: int | str) -> int | str:
    """The uid of a user's name; a group is unchanged. Raises ValueError for an unknown user or group."""
    try:
        if isinstance(value, int):
            return value
        if value.startswith(GROUP_PREFIX):
            grp.getgrnam(value.removeprefix(GROUP_PREFIX))
            return value
        return pwd.getpwnam(value).pw_uid
    except KeyError:
        raise ValueError(f"this machine has no user or group {value!r}") from None


Several = Annotated[tuple[_T, ...], BeforeValidator(_one_or_several), Field(min_length=1)]
AgentGlob = Annotated[StrictStr, _glob(r"[a-z0-9*?\[\]!-]+", "web-*")]
_NameGlob = Annotated[StrictStr, _glob(r"[a-z0-9_*?\[\]!-]+", "file")]
Uid = Annotated[StrictInt | StrictStr, AfterValidator(_uid_of)]


class Table(BaseModel):
    # What stands in a file may be anybody's business: an error names the key and what is wrong with it.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Example(Table):
    """`match` and `not_match`: a call; what it leaves out comes from the rule."""

    agent: StrictStr = ""
    tool: StrictStr = ""
    action: StrictStr = ""
    args: dict[str, Any] = Field(default_factory=dict)
    effect: Effect | None = None
    trigger: StrictStr = ""
    caller: Uid | None = None


class Rule(Table):
    """`[[rule]]`"""

    name: StrictStr = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    decision: Decision
    reason: StrictStr = Field(default="", max_length=500)
    even_if_tainted: StrictBool = False
    agent: Several[AgentGlob] | None = None
    tool: Several[_NameGlob] | None = None
    action: Several[_NameGlob] | None = None
    effect: Several[Effect] | None = None
    trigger: Several[_NameGlob] | None = None
    caller: Several[Uid] | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    exactly: dict[str, Any] | None = None
    confirm_within: StrictStr = ""
    check: StrictStr = ""
    inverse: StrictStr = ""
    match: list[Example] = Field(default_factory=list)
    not_match: list[Example] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, name: str) -> str:
        if name in BUILT_IN_RULES:
            raise ValueError(f"{name} is the name of a built-in rule")
        return name

    @field_validator("even_if_tainted")
    @classmethod
    def _only_allows(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("decision") is not Decision.ALLOW:
            raise ValueError("it belongs to rules that allow")
        return value

    @field_validator("args")
    @classmethod
    def _are_patterns(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        _conditions(value, info.data.get("decision"))
        return value

    @model_validator(mode="after")
    def _keys_fit(self) -> Rule:
        if self.terms() is not None and self.decision is Decision.DENY:
            raise ValueError("confirm_within belongs to rules that allow or ask")
        if self.exactly is not None and (self.args or self.decision is not Decision.ALLOW):
            raise ValueError("exactly belongs to rules that allow, in the place of args")
        return self

    @model_validator(mode="after")
    def _has_conditions(self) -> Rule:
        if self.decision is Decision.ALLOW and not self.conditions():
            raise ValueError("a rule that allows needs a condition, or it would allow everything")
        return self

    def terms(self) -> Terms | None:
        """As which a change has to be confirmed."""
        return terms_of(self.confirm_within, self.check, self.inverse)

    def conditions(self) -> dict[str, Any]:
        """The rule's conditions, as JSON values."""
        names = {"agent", "tool", "action", "effect", "trigger", "caller", "args", "exactly"}
        found = self.model_dump(mode="json", include=names, exclude_none=True)
        return {name: value for name, value in found.items() if value or name == "exactly"}

    def arguments(self) -> tuple[ArgumentCondition, ...]:
        """The conditions on arguments."""
        return _conditions(self.args, self.decision)


def _conditions(args: dict[str, Any], decision: Decision | None) -> tuple[ArgumentCondition, ...]:
    """Raises ValueError."""
    strict = decision is Decision.ALLOW
    flat = _flat(args)
    named = tuple(parse_condition(name, values, strict=strict) for name, values in flat.items())
    return (*named, *implied_conditions(flat)) if strict else named


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{a: {b: X}}` as `{a.b: X}`. Raises ValueError for an invalid pattern."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if not value:
                raise ValueError(f"{name} has no pattern")
            found |= _flat(value, f"{name}.")
        elif all(isinstance(item, bool | int | float | str) for item in _one_or_several(value)):
            found[name] = value
        else:
            raise ValueError(f"{name} is not a pattern: text, a number, true, false, or a list of those")
    return found


@dataclass(frozen=True, kw_only=True)
class LoadedRule:
    """A rule, its place in the files, and its conditions on arguments."""

    rule: Rule
    file: str
    line: int
    arguments: tuple[ArgumentCondition, ...]
    terms: Terms | None = None

    @property
    def name(self) -> str:
        return self.rule.name

    def needs_no_word(self, *, trusts_taint: bool) -> bool:
        """Whether it allows whoever asks, whatever began the turn, and whatever the session has seen."""
        rule = self.rule
        return (rule.even_if_tainted or trusts_taint) and rule.caller is None and rule.trigger is None

    @property
    def origin(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def label(self) -> str:
        """The rule's name in events and refusals."""
        return f"{self.name} ({self.file.rpartition('/')[2]})"

    def matches(self, call: PolicyCall, until_s: float = math.inf, *, any_trigger: bool = False) -> bool:
        """Whether the rule matches this call, or with `any_trigger` could. Never raises.

        When `time.thread_time` has passed `until_s`, the conditions on arguments count as undecided.
        """
        rule = self.rule
        return (
            _any_glob(rule.agent, call.agent)
            and _any_glob(rule.tool, call.tool)
            and _any_glob(rule.action, call.action)
            and (any_trigger or _any_glob(rule.trigger, call.trigger))
            and (rule.effect is None or call.effect in rule.effect)
            and (
                rule.caller is None
                or is_caller(rule.caller, call.caller, doubt=rule.decision is not Decision.ALLOW)
            )
            and (rule.exactly is None or _same(rule.exactly, call.args))
            and all(self._holds(condition, call.args, until_s) for condition in self.arguments)
        )

    def always_denies(self, agent: str, tool: str, action: str, effects: Collection[Effect]) -> bool:
        """Whether it denies each call of this action with one of these effects, whoever asks for what."""
        rule = self.rule
        return (
            rule.decision is Decision.DENY
            and not (rule.args or rule.caller or rule.trigger)
            and _any_glob(rule.agent, agent)
            and _any_glob(rule.tool, tool)
            and _any_glob(rule.action, action)
            and (rule.effect is None or {*effects} <= {*rule.effect})
        )

    def _holds(self, condition: ArgumentCondition, args: dict[str, Any], until_s: float) -> bool:
        if time.thread_time() > until_s:
            return self.rule.decision is not Decision.ALLOW
        return condition.holds(args)

    def check_examples(self, until_s: float) -> None:
        """Raises ValueError that names the first example that fails, or at which `time.thread_time` passed
        `until_s`.
        """
        for kind, wanted, examples in (
            ("match", True, self.rule.match),
            ("not_match", False, self.rule.not_match),
        ):
            for number, example in enumerate(examples, 1):
                try:
                    matches = self.matches(self._filled_up(example), until_s)
                except ValueError as err:
                    raise ValueError(f"{kind}, example {number}: {err}") from None
                if time.thread_time() > until_s:
                    raise ValueError(f"{kind}, example {number}: the examples up to here take too long")
                if matches is not wanted:
                    says = "matches" if matches else "does not match"
                    raise ValueError(f"{kind}, example {number}: the rule {says} this call")

    def _filled_up(self, example: Example) -> PolicyCall:
        rule = self.rule
        args = {
            condition.name: condition.patterns[0].value
            for condition in self.arguments
            if condition.patterns[0].literal and "." not in condition.name
        } | (rule.exactly or {})
        uids = [caller for caller in rule.caller or () if isinstance(caller, int)]
        caller = example.caller if isinstance(example.caller, int) else (uids[0] if uids else None)
        if rule.caller and caller is None:
            raise ValueError("it must name a user as caller, since the rule names only groups")
        return PolicyCall(
            agent=example.agent or _literal("agent", rule.agent, "any"),
            tool=example.tool or _literal("tool", rule.tool, "any"),
            action=example.action or _literal("action", rule.action, "any"),
            args=args | example.args,
            effect=example.effect or (rule.effect[0] if rule.effect else Effect.OBSERVE),
            agent_effects=tuple(Effect),
            offered=True,
            agent_skills=None,
            caller=caller,
            trigger=example.trigger or _literal("trigger", rule.trigger, PERSON),
            tainted=False,
            host="",
            known_host=False,
            change_enabled=True,
            plan="",
        )


def without_nulls(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are given: a file of rules has no null."""
    return {name: value for name, value in args.items() if value is not None}


def _same(exactly: dict[str, Any], args: dict[str, Any]) -> bool:
    """Whether arguments are these and no others, compared as JSON: 1 is neither true nor 1.0."""
    try:
        wanted, given = (json.dumps(without_nulls(one), sort_keys=True) for one in (exactly, args))
    except (ValueError, TypeError, RecursionError):
        return False
    return wanted == given


def is_caller(wanted: Sequence[int | str], uid: int | None, *, doubt: bool) -> bool:
    """Whether a user is one of those wanted, uids and `group:NAME`; `doubt` where that cannot be told."""
    if uid is None:
        return doubt
    if uid in wanted:
        return True
    groups = [name.removeprefix(GROUP_PREFIX) for name in wanted if isinstance(name, str)]
    if not groups:
        return False
    try:
        user = pwd.getpwuid(uid)
        member_of = os.getgrouplist(user.pw_name, user.pw_gid)
        return any(grp.getgrnam(name).gr_gid in member_of for name in groups)
    except (KeyError, OSError):
        return doubt


def _any_glob(globs: Sequence[str] | None, text: str) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def _literal(name: str, globs: Sequence[str] | None, default: str) -> str:
    """The value for a field that an example leaves out. Raises ValueError when the rule has only globs."""
    if globs is None:
        return default
    for glob in globs:
        if GLOB_CHARACTERS.isdisjoint(glob):
            return glob
    raise ValueError(f"it must name {name}, since the rule has only a pattern for it")


def load_rule(rule: Rule, file: str, line: int, until_s: float) -> LoadedRule:
    """The rule ready for use, with its examples checked (`check_examples`). Raises ValueError."""
    loaded = LoadedRule(rule=rule, file=file, line=line, arguments=rule.arguments(), terms=rule.terms())
    loaded.check_examples(until_s)
    return loaded
