"""An agent's definition: `AGENT.md`, front matter and the system prompt as its body.

The keys of the front matter are all optional; an unknown key is refused by name:

    description: one sentence for lists
    role: default, sysadmin, or the name of another file below agent/roles
    model: runbook, or PROVIDER/MODEL, or with a base_url the model's name alone
    fallback: [models to try in turn when the first fails before it said anything]
    base_url, api_key_file: an endpoint of this agent's own, for its model and for fallbacks of its provider
    tools: [names of tools, or tool.action]; all when missing; `tools.search` comes with any of them
    skills: [names of skills]; all when missing
    agents: [names of agents that it may ask]; all others when missing
    effects: [observe, reach, change]; all when missing, where change takes a worker that allows it as well
    temperature: 0 to 2, for its model and its fallbacks
    extra_body: {more fields of each request to these}
    context_skill: the skill whose report is part of the system prompt at the beginning of each turn
    plan_tools: observe, or none when no call at all may run while a plan is drafted
    limits: {max_steps, turn_timeout_s, max_queue}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightagentd import frontmatter
from lightagentd.config.configuration import Seconds, check_place
from lightagentd.config.models import AGENTS_FIELDS, wrong_fields, wrong_model, wrong_url
from lightagentd.errors import ConfigError, InvalidArgument, StorageError
from lightagentd.host.atomic_file import write_whole
from lightagentd.llm.providers import RUNBOOK
from lightagentd.text.reason import reason
from lightagentd.tool import Effect

OWN_ENDPOINT = "endpoint"
"""The provider of a model that is named without one, at the agent's own base_url."""
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
"""An agent's name is also a systemd instance name and a D-Bus path element."""
_EXTRA_BODY_BYTES = 16 << 10
SEARCH = ("tools", "search")
"""The action that finds the others. It shows an agent what it may use and nothing else, so every agent that
has any tool has it, too."""
BUILT_IN = ("agent", "human", "memory", "plan", "tools")
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
    effects: list[Effect] = Field(default_factory=lambda: [*Effect])
    plan_tools: Literal["observe", "none"] = "observe"
    temperature: float | None = Field(default=None, ge=0, le=2, strict=True)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    context_skill: str = Field(default="", pattern=r"^[a-z0-9][a-z0-9_-]*$|^$", max_length=64)
    limits: AgentLimits = Field(default_factory=AgentLimits)

    @property
    def more_fields(self) -> dict[str, Any]:
        """What is added to each request to its models."""
        given = {} if self.temperature is None else {"temperature": self.temperature}
        return {**self.extra_body, **given}

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

    def offers(self, tool: str, action: str) -> bool:
        """Whether the agent may use this action at all."""
        allowed = self.front.tools
        if (tool, action) == SEARCH and allowed:
            return True
        return allowed is None or tool in allowed or f"{tool}.{action}" in allowed

    def problems(
        self, tools: Mapping[str, Collection[str]], skills: Collection[str], agents: Collection[str]
    ) -> list[str]:
        """What it names and cannot use, as sentences. `tools` are those that exist with their actions, with
        none where these are not known; empty if no tool is known.
        """
        listed = [name.partition(".") for name in (self.front.tools or ()) if tools]
        missing = [
            f"{tool}{dot}{action}"
            for tool, dot, action in listed
            if tool not in tools or (dot and tools[tool] and action not in tools[tool])
        ]
        told = f"names tools that do not exist: {', '.join(missing)}"
        found = [f"The agent {self.name} {told}."] if missing else []
        own = self.front.skills or ()
        if missing := [name for name in own if name not in skills]:
            found.append(f"The agent {self.name} names skills that do not exist: {', '.join(missing)}.")
        if missing := [name for name in self.front.agents or () if name not in agents]:
            found.append(f"The agent {self.name} names agents that do not exist: {', '.join(missing)}.")
        context = self.front.context_skill
        if context and context not in skills:
            found.append(f"The agent {self.name} names a context_skill that does not exist: {context}.")
        if own and not (self.offers("skill", "load") or self.offers("skill", "run")):
            found.append(
                f"The agent {self.name} has skills, but not the tool skill that reads and runs them."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """The usable definitions of the search path, and why the others are unusable."""

    agents: dict[str, AgentDefinition] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    masked: dict[str, Path] = field(default_factory=dict)
    """What keeps an agent off that another folder defines, by its name."""


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
            if entry.name not in found.paths and _is_mask(entry):
                found.masked.setdefault(entry.name, entry)
        for path in sorted(origin.glob("*/AGENT.md")):
            name = path.parent.name
            if name in found.paths or name in found.masked:
                continue
            found.paths[name] = path
            try:
                definition = load_definition(path)
                check_role(definition.front.role, roles, where=f"{path}: ")
                found.agents[name] = definition
            except ConfigError as err:
                found.broken[name] = err.message
    return found


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
    if line := content.lines.get("parallel"):
        raise ConfigError(f"{path}, line {line}: the key parallel: calls run one by one, so leave it out.")
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
