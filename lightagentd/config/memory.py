"""`[memory]`: what agents remember, the policy of what may be kept and read, and further stores."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lightagentd.config.models import CREDENTIAL_NAMES
from lightagentd.config.section import Seconds, Section
from lightagentd.text.patterns import parse_pattern

PolicySource = Literal["user", "agent", "reflection", "tool", "import"]
Scope = Literal["user", "agent", "session", "team", "machine"]
Trust = Literal["any", "person"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]


class MemoryPolicy(Section):
    """`[memory.policy]`, and `memory` in an AGENT.md: what agents may keep and read. What an agent says can
    only narrow what stands here: lists are those that both name, the stricter number counts, and patterns add
    up. A write that it refuses is an error that names the key, and the event `memory.refused`.
    """

    namespace: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]{0,30})?$")
    """Agents read what agents of the same namespace kept, and what a person wrote for none. The name in an
    AGENT.md goes before the one here."""
    allowed_sources: list[PolicySource] = Field(default_factory=list)
    """Whose words may be kept and read: `user` (a person, shown as `person`), `agent`, `reflection`, `tool`
    (what an agent keeps in a conversation with text from outside) and `import`. Empty for all."""
    scopes: list[Scope] = Field(default_factory=list)
    """For whom something may be kept, and what is read: `user` (all agents of its user), `agent` (one of
    them), `session` (one conversation; it goes with it), `team` (the pool of those agents of one user that
    name this scope) and `machine` (facts for the agents of all users, which only an administrator keeps).
    Empty for all but `team`."""
    agents: list[str] = Field(default_factory=list)
    """The agents whose memories are read, beside those of people. Empty for all."""
    trust: Trust = "any"
    """`person` reads only what a person said or promoted."""
    min_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """What is less sure than that is neither kept nor read."""
    default_ttl_s: float = Field(default=0.0, ge=0.0, le=3.2e9)
    """When something is forgotten that is kept without saying when, in seconds; 0 for never."""
    enforce_expires_at: bool = False
    """Keep and read only what has a time to be forgotten at."""
    min_write_length: int = Field(default=0, ge=0, le=2000)
    """The fewest characters that a text may have."""
    reject_write_patterns: list[str] = Field(default_factory=list, max_length=100)
    """Texts that are not kept, as patterns over the whole text, such as `*system prompt*` or `re:...`, as in
    lightagent-policy(5); also tried on the text in small letters. A text for which one takes too long is not
    kept either."""
    reject_duplicate_writes: bool = False
    """Refuse a text that an agent has kept or proposed before; else it is the same memory again."""
    max_entries: int = Field(default=0, ge=0, le=100_000)
    """How many memories one agent may have made for one user; 0 for `memory.max_entries` alone."""
    store: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]{0,30})?$")
    """A store of `[memory.stores.NAME]`, which finds what is asked for besides the daemon's own search. The
    name in an AGENT.md goes before the one here."""

    @field_validator("reject_write_patterns")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        for one in value:
            parse_pattern(one, strict=False)
        return value


class MemoryStore(Section):
    """`[memory.stores.NAME]`: a further store that finds memories. It gets the texts of what is kept; what it
    gives back counts only where the daemon keeps the same for the same user."""

    kind: str = Field(pattern=r"^(mem0|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$", examples=["mem0"])
    """`mem0` for the package mem0ai, or a class of your own, `module:Class`, with the methods
    `store(data, user_id)` and `retrieve(query, user_id)`."""
    timeout_s: float = Field(default=5.0, gt=0.0, le=60.0)
    """How long one call may take; then the daemon's own search alone answers."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments by name with which the class is made; for mem0 `config` (as in its documentation) and
    `infer`. Keys do not stand here: mem0 takes them from variables such as OPENAI_API_KEY."""

    @field_validator("settings")
    @classmethod
    def _no_keys(cls, value: dict[str, Any]) -> dict[str, Any]:
        if name := _key_in(value):
            raise ValueError(f"a key stands in {name}; set it in /etc/lightagentd/environment (chmod 600)")
        return value


def _key_in(value: object) -> str:
    """The name of what holds a key; `none` is what servers take that want none."""
    if isinstance(value, list):
        return next(filter(None, map(_key_in, value)), "")
    if not isinstance(value, dict):
        return ""
    own = (str(name) for name, one in value.items() if _is_key(name) and one not in ("", "none"))
    return next(own, "") or next(filter(None, map(_key_in, value.values())), "")


def _is_key(name: object) -> bool:
    return str(name).lower() in CREDENTIAL_NAMES


class Memory(Section):
    """`[memory]`: what agents remember of and for each user."""

    store: str = Field(default="", pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$")
    """A store of your own, `module:Class` (see `lightagentd.memory.store`); empty for the history."""
    max_entries: int = Field(default=1000, ge=1, le=100_000)
    """How many memories one user may have, candidates among them."""
    prompt_chars: int = Field(default=4000, ge=0, le=100_000)
    """How much of an owner's memories stands in the system prompt, the surest and newest first."""
    learn_idle_s: Seconds = 600.0
    """How long nothing happens in a conversation before an agent with `learn: true` reflects on it."""
    learn_steps: int = Field(default=4, ge=1, le=100)
    """How many steps such a turn has at most."""
    learn_tokens: int = Field(default=200_000, ge=0)
    """How many tokens reflection may use for one user in a day (UTC); none begins after that."""
    policy: MemoryPolicy = Field(default_factory=MemoryPolicy)
    stores: dict[Name, MemoryStore] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _store_of_policy(self) -> Memory:
        if self.policy.store and self.policy.store not in self.stores:
            raise ValueError(f"policy.store names {self.policy.store!r}, which is not in [memory.stores]")
        return self
