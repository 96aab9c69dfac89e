"""An agent's definition: `AGENT.md`, front matter and the system prompt as its body.

The keys of the front matter are all optional; an unknown key is refused by name:

    description: one sentence for lists
    role: default, sysadmin, or the name of another file below agent/roles
    model: runbook, or PROVIDER/MODEL, or with a base_url the model's name alone
    fallback: [models to try in turn when the first fails before it said anything]
    base_url, api_key_file: an endpoint of this agent's own, for its model and for fallbacks of its provider
    tools: [names of tools, or tool.action]; all when missing; `tools.search` comes with any of them
    skills: [names of skills]; all when missing
    agents: [names of agents that it may ask]; all others when missing, but no member of another agent's kit
    effects: [observe, reach, change]; all when missing, where change takes a worker that allows it as well
    parallel: true when calls of one answer that observe, or ask other agents, run at once
    temperature: 0 to 2, for its model and its fallbacks
    extra_body: {more fields of each request to these}
    context_skill: the skill whose report is part of the system prompt at the beginning of each turn
    plan_tools: observe, or none when no call at all may run while a plan is drafted
    deliberate: {breadth, depth, judge, when}: drafts of a plan before a turn, see `agents.deliberating`
    learn: true when it reflects on conversations that are idle, and proposes memories
    limits: {max_steps, turn_timeout_s, max_queue}
    memory: {the keys of [memory.policy], which they narrow: scopes, allowed_sources, store, ...}
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightagentd import frontmatter
from lightagentd.agents.deliberating import Deliberate
from lightagentd.agents.kits.folder import AGENTS, check_above, check_owned, folders_in, is_kit
from lightagentd.config.configuration import Seconds, check_place
from lightagentd.config.memory import MemoryPolicy
from lightagentd.config.models import AGENTS_FIELDS, wrong_fields, wrong_model, wrong_url
from lightagentd.errors import ConfigError, InvalidArgument, StorageError
from lightagentd.host.atomic_file import write_whole
from lightagentd.llm.providers import RUNBOOK
from lightagentd.text.agent_name import NAME
from lightagentd.text.reason import reason
from lightagentd.tool import Effect

OWN_ENDPOINT = "endpoint"
"""The provider of a model that is named without one, at the agent's own base_url."""
_EXTRA_BODY_BYTES = 16 << 10
SEARCH = ("tools", "search")
"""The action that finds the others. It shows an agent what it may use and nothing else, so every agent that
has any tool has it, too."""
TO_PARENT = ("message", "parent")
"""The action with which a child session writes into the conversation above it: each of them has it."""
BUILT_IN = ("agent", "flows", "human", "memory", "message", "plan", "tools")
"""The tools that no file has (`agents.builtin`)."""


class AgentLimits(BaseModel):
    """Limits of this agent; those that are missing come from the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_steps: int | None = Field(default=None, ge=1, le=10_000)
    turn_timeout_s: Seconds | None = None
    max_queue: int | None = Field(default=None, ge=1, le=10_000)


class AgentFrontMatter(BaseModel):
    """The YAML at the top of an AGENT.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    role: str = Field(default="default", pattern=r"^[a-z][a-z0-9-]{0,30}$")
    model: str = ""
    fallback: list[str] = Field(default_factory=list)
    base_url: str = ""
    api_key_file: Path | None = None
    tools: list[str] | None = None
    skills: list[str] | None = None
    agents: list[str] | None = None
    flows: list[str] = Field(default_factory=list)
    effects: list[Effect] = Field(default_factory=lambda: [*Effect])
    parallel: bool = False
    plan_tools: Literal["observe", "none"] = "observe"
    temperature: float | None = Field(default=None, ge=0, le=2, strict=True)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    context_skill: str = Field(default="", pattern=r"^[a-z0-9][a-z0-9_-]*$|^$", max_length=64)
    deliberate: Deliberate | None = None
    learn: bool = False
    limits: AgentLimits = Field(default_factory=AgentLimits)
    memory: MemoryPolicy = Field(default_factory=MemoryPolicy)

    @property
    def more_fields(self) -> dict[str, Any]:
        """What is added to each request to its models."""
        given = {} if self.temperature is None else {"temperature": self.temperature}
        return {**self.extra_body, **given}

    @property
    def judge_models(self) -> list[str]:
        """The model that judges its drafts of plans, if that is one of its own."""
        judge = self.deliberate.judge_model if self.deliberate is not None else ""
        return [judge] if judge else []

    @model_validator(mode="before")
    @classmethod
    def _at_own_endpoint(cls, given: Any) -> Any:
        """At an endpoint of its own a model needs no provider's name."""

        def named(model: object) -> object:
            alone = isinstance(model, str) and model not in ("", RUNBOOK) and "/" not in model
            return f"{OWN_ENDPOINT}/{model}" if alone else model

        if not isinstance(given, dict) or not given.get("base_url"):
            return given
        models = {"model": named(given.get("model", ""))}
        if isinstance(fallback := given.get("fallback"), list):
            models["fallback"] = [named(one) for one in fallback]
        return given | models

    @field_validator("base_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        if value and (why := wrong_url(value, with_password=True)):
            raise ValueError(why)
        return value

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        check_model(value)
        return value

    @field_validator("extra_body")
    @classmethod
    def _extra_body(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if why := wrong_fields(fields, AGENTS_FIELDS):
            raise ValueError(why)
        try:
            size_bytes = len(json.dumps(fields, allow_nan=False).encode())
        except (TypeError, ValueError, RecursionError) as err:
            raise ValueError(f"it holds what JSON has no value for: {reason(err)}") from None
        if size_bytes > _EXTRA_BODY_BYTES:
            raise ValueError(f"it has {size_bytes} bytes as JSON, and may have {_EXTRA_BODY_BYTES}")
        return fields

    @field_validator("tools", "skills", "agents", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if value is None:
            raise ValueError("it is empty: write [] for none, or leave the key out for all")
        return value

    @field_validator("fallback")
    @classmethod
    def _fallback(cls, value: list[str]) -> list[str]:
        for model in value:
            check_model(model)
        return value


@dataclass(frozen=True, kw_only=True)
class AgentDefinition:
    """One agent as it is defined."""

    name: str
    front: AgentFrontMatter
    prompt: str
    path: Path
    kit: str = ""
    """The agent to whose kit it belongs, as a member of it; empty for an agent that others may ask."""

    alone: bool = False
    """Whether it has nothing but the actions that `tools` names: for a turn of the daemon's own."""

    @property
    def folder(self) -> Path:
        """The folder of its definition, and of its kit."""
        return self.path.parent

    def offers(self, tool: str, action: str) -> bool:
        """Whether the agent may use this action at all."""
        allowed = self.front.tools
        if self.alone:
            return f"{tool}.{action}" in (allowed or ())
        if (tool, action) == TO_PARENT or ((tool, action) == SEARCH and allowed):
            return True
        if tool == "flows":
            return bool(self.front.flows)
        return allowed is None or tool in allowed or f"{tool}.{action}" in allowed

    def problems(
        self, tools: Mapping[str, Collection[str]], skills: Collection[str], agents: Collection[str]
    ) -> list[str]:
        """What it names and cannot use, as sentences. `tools` are those that exist with their actions, with
        none where these are not known; empty if no tool is known. `agents` are those that it could ask.
        """
        listed = [name.partition(".") for name in (self.front.tools or ()) if tools]
        missing = [
            f"{tool}{dot}{action}"
            for tool, dot, action in listed
            if tool not in tools or (dot and tools[tool] and action not in tools[tool])
        ]
        actions = [f"{tool}.{action}" for tool, found in tools.items() for action in found]
        own = self.front.skills or ()
        asked = [name for name in self.front.agents or () if name not in agents]
        context = self.front.context_skill
        found = [
            *self._missing("tools", missing, [*tools, *actions]),
            *self._missing("skills", [name for name in own if name not in skills], skills),
            *self._missing("agents", asked, agents),
        ]
        if self.front.learn and not self.offers("memory", "remember"):
            found.append(f"The agent {self.name} is to learn, but has not the tool memory.remember.")
        if context and context not in skills:
            found.append(f"The agent {self.name} names a context_skill that does not exist: {context}.")
        if own and not (self.offers("skill", "load") or self.offers("skill", "run")):
            found.append(
                f"The agent {self.name} has skills, but not the tool skill that reads and runs them."
            )
        return found

    def _missing(self, kind: str, missing: Sequence[str], known: Collection[str]) -> list[str]:
        if not missing:
            return []
        near = [one for name in missing for one in difflib.get_close_matches(name[:100], known, 1)]
        meant = f" Did you mean {', '.join(dict.fromkeys(near))}?" if near else ""
        return [f"The agent {self.name} names {kind} that do not exist: {', '.join(missing)}.{meant}"]


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """The usable definitions of the search path, and why the others are unusable."""

    agents: dict[str, AgentDefinition] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    masked: dict[str, Path] = field(default_factory=dict)
    """What keeps an agent off that another folder defines, by its name."""

    def members(self, name: str) -> list[str]:
        """The members of an agent's kit, broken ones too."""
        return [one for one in self.paths if one.startswith(f"{name}.")]

    def askable(self, who: AgentDefinition) -> dict[str, str]:
        """The agents that this one could ask: the names that it may write, with the names that these have.

        Those of its own kit come by their short names, too, and win. Members of other kits are not among
        them.
        """
        kit = who.kit or who.name
        found = {name: name for name, one in self.agents.items() if one.kit in ("", kit)}
        own = {name.partition(".")[2]: name for name, one in self.agents.items() if one.kit == kit}
        return {short: name for short, name in (found | own).items() if name != who.name}


def check_model(model: str) -> None:
    """Raises ValueError unless it is `runbook` or `PROVIDER/MODEL` (or empty: the default)."""
    if model and (why := wrong_model(model)):
        raise ValueError(f"{why}, or with a base_url its name alone")


def check_name(name: str) -> None:
    """Raises InvalidArgument for an invalid agent name."""
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:60]!r} is not an agent's name.",
            field="name",
            suggestion="Use a to z, 0 to 9 and -, beginning with a letter, at most 31 characters.",
        )


def check_role(role: str, roles: Mapping[str, Path], *, where: str = "") -> None:
    """Raises ConfigError unless there is such a role."""
    if role not in roles:
        raise ConfigError(
            f"{where}there is no role {role!r}; there are: {', '.join(sorted(roles)) or 'none'}.",
            suggestion=f"Choose one of them, or write roles/{role}.md.",
            field="role",
        )


def load_definitions(folders: Sequence[Path]) -> Definitions:
    """All agents of the search path; the first folder with a name wins, even if its definition is broken.

    A link to /dev/null or an empty file in the place of an agent's folder keeps the agent off, as with units.
    """
    found = Definitions()
    roles = roles_in(folders)
    for origin in folders:
        for entry in origin.glob("*"):
            if entry.name in found.paths:
                continue
            if _is_mask(entry):
                found.masked.setdefault(entry.name, entry)
            elif entry.is_symlink() and not entry.exists() and NAME.fullmatch(entry.name):
                found.paths[entry.name] = entry / "AGENT.md"
                found.broken[entry.name] = f"{entry} leads to {entry.readlink()}, which is not there."
        for path in sorted(origin.glob("*/AGENT.md")):
            if path.parent.name not in found.paths and path.parent.name not in found.masked:
                take_agent(found, path, roles)
    return found


def take_agent(found: Definitions, path: Path, roles: Mapping[str, Path], *, name: str = "") -> None:
    """Add one agent, and the members of its kit. `name` is that of its folder unless given."""
    name = name or path.parent.name
    if not _take(found, name, path, roles):
        return
    folder = path.parent / AGENTS
    for short in folders_in(folder):
        _take(found, f"{name}.{short}", folder / short / "AGENT.md", roles, kit=name)


def _take(found: Definitions, name: str, path: Path, roles: Mapping[str, Path], *, kit: str = "") -> bool:
    found.paths[name] = path
    try:
        definition = replace(load_definition(path), name=name, kit=kit)
        check_role(definition.front.role, roles, where=f"{path}: ")
        if is_kit(path.parent):
            check_owned(path.parent.resolve())
            if path.parent.is_symlink():
                check_above(path.parent.resolve())
        if kit and (path.parent / AGENTS).exists():
            raise ConfigError(f"{path.parent / AGENTS}: a member of a kit has no agents of its own.")
    except ConfigError as err:
        found.broken[name] = err.message
        return False
    found.agents[name] = definition
    return True


def _is_mask(entry: Path) -> bool:
    if os.path.realpath(entry) == os.devnull:
        return True
    return entry.is_file() and entry.stat().st_size == 0 and NAME.fullmatch(entry.name) is not None


def load_definition(path: Path) -> AgentDefinition:
    """One AGENT.md. Raises ConfigError that names the file, the line and the key."""
    name = path.parent.name
    if not NAME.fullmatch(name):
        raise ConfigError(f"{path}: the folder's name {name!r} cannot be an agent's name.")
    content = frontmatter.read(path)
    check_place(path)
    return AgentDefinition(name=name, front=content.parse(AgentFrontMatter), prompt=content.body, path=path)


def write_definition(folder: Path, name: str, front: AgentFrontMatter, prompt: str) -> AgentDefinition:
    """Write the AGENT.md of an agent that is made at run time. Raises StorageError."""
    target = folder / name
    data = front.model_dump(mode="json", exclude_defaults=True)
    text = f"---\n{yaml.safe_dump(data, allow_unicode=True) if data else ''}---\n{prompt}\n"
    path = target / "AGENT.md"
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8", "replace"), draft=target / "AGENT.md.new")
    except OSError as err:
        raise StorageError(f"{path} cannot be written: {reason(err)}.") from err
    return load_definition(path)


def roles_in(folders: Sequence[Path]) -> dict[str, Path]:
    """The role prompts on the search path, by name."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((folder / "roles").glob("*.md")):
            found.setdefault(path.stem, path)
    return found
