"""What is asked when nobody is there: files with a question, its owner, and where the answer goes.

`prompts/NAME.toml` is asked by a unit, lightagent-prompt@NAME.service; `triggers/NAME.toml` (see `triggers`)
when something happens.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightagentd.config.configuration import load_one
from lightagentd.config.template import fill
from lightagentd.errors import ConfigError, NotFound
from lightagentd.tool import Effect

PROMPTS = "prompts"
PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,99}\Z")
Line = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
_OF_AGENT = frozenset({"agent", "prompt", "session", "tools", "max_steps"})
SESSION_ID = "ses_[0-9a-f]{1,64}"


@dataclass(frozen=True, kw_only=True)
class Handling:
    """How what happens is handled; by default, as for a prompt that a unit asks."""

    on: str = "unit"
    effects: tuple[Effect, ...] | None = None
    """The effects that a turn may use, and has without a person; None for those that policy gives it."""
    tools: tuple[str, ...] | None = None
    max_steps: int | None = None
    rate_limit: int = 0
    """How often the agent is asked within `rate_period_s`; 0 for no limit."""
    rate_period_s: float = 3600.0
    coalesce_s: float = 0.0
    catch_up: bool = False


class Unattended(BaseModel):
    """What every such file says."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    fills: ClassVar[bool] = True
    """Whether names in braces stand for what happened."""

    agent: Line = Field(default="", examples=["ops"])
    prompt: str = Field(default="", min_length=1, max_length=1 << 20, examples=["check disk"])
    flow: Line | None = None
    """In place of an agent and a prompt: the flow that runs."""
    inputs: dict[Line, str | int | float | bool] = Field(default_factory=dict, max_length=100)
    """The inputs of the flow; in a trigger, names in braces stand for what happened, as in a prompt."""
    owner: Line = Field(examples=["carol"])
    """The user whose session it is."""
    session: str = "new"
    timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long to wait for the answer; then the turn is cancelled."""
    answer: Literal["journal", "file", "mail", "command", "desktop"] = "journal"
    """Where the answer goes."""
    file: Path | None = None
    append: bool = False
    """Whether the answer is added to the file; else it takes the place of what is there."""
    mail_to: str = Field(default="", pattern=r"^([A-Za-z0-9._+][A-Za-z0-9._+@-]{0,253})?$")
    """The address; empty for the owner."""
    command: tuple[Line, ...] = Field(default=(), max_length=100)
    """A program and its arguments; it gets the answer as its standard input."""

    @model_validator(mode="after")
    def _whom(self) -> Self:
        if self.flow is None:
            if missing := [name for name in ("agent", "prompt") if not getattr(self, name)]:
                raise ValueError(f"the key {missing[0]!r} is missing")
            if self.inputs:
                raise ValueError("inputs go with flow")
        elif wrong := sorted(self.model_fields_set & _OF_AGENT):
            raise ValueError(f"{', '.join(wrong)} does not go with flow")
        return self

    @model_validator(mode="after")
    def _place_of_the_answer(self) -> Self:
        if (self.answer == "file") != (self.file is not None):
            raise ValueError('answer = "file" and file = "/a/path" go together')
        if self.file is not None and not self.file.is_absolute():
            raise ValueError("file has to be an absolute path")
        if self.append and self.file is None:
            raise ValueError("append is about a file")
        if self.mail_to and self.answer != "mail":
            raise ValueError('mail_to goes with answer = "mail"')
        if (self.answer == "command") != bool(self.command):
            raise ValueError('answer = "command" and command = ["/a/program"] go together')
        if self.command and not Path(self.command[0]).is_absolute():
            raise ValueError("command begins with the absolute path of a program")
        return self

    def account(self, path: Path) -> pwd.struct_passwd:
        """The owner. Raises ConfigError when there is no such user."""
        try:
            return pwd.getpwnam(self.owner)
        except KeyError:
            raise ConfigError(
                f"{path}: owner: there is no user {self.owner[:60]!r}.",
                suggestion="Name a user of this machine.",
            ) from None

    def handling(self) -> Handling:
        """How what happens is handled."""
        return Handling()

    def question(self, data: Mapping[str, Any]) -> str:
        """What is asked, given what happened."""
        return fill(self.prompt, data) if self.fills else self.prompt

    def inputs_for(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of the flow, given what happened."""
        return {
            key: fill(one, data) if self.fills and isinstance(one, str) else one
            for key, one in self.inputs.items()
        }

    @property
    def whom(self) -> str:
        """The agent, or the flow, for a message."""
        return self.agent or f"the flow {self.flow}"


class PromptFile(Unattended):
    """One prompt on a calendar."""

    fills = False

    session: Annotated[str, Field(pattern=rf"^(new|same|{SESSION_ID})$")] = "new"
    """`new` each time, the `same` one each time, or the id of a session of the owner's that goes on."""


class TriagePrompt(Unattended):
    """What lightagent-triage@.service asks about a unit that failed."""

    session: str = "new"


DEFAULTS = {"health": PromptFile(agent="ops", prompt="health check", owner="root")}
"""What counts where there is no such file: lightagent-health.timer needs none."""
TRIAGE = TriagePrompt(agent="ops", prompt="why did {unit} fail", owner="root")


def prompt_files(folder: Path) -> list[Path]:
    """The prompt files below a configuration folder."""
    return sorted((folder / PROMPTS).glob("*.toml"))


def load(folder: Path, name: str) -> PromptFile:
    """The prompt `name` of a configuration folder. Raises ConfigError, NotFound."""
    if not PROMPT_NAME.match(name):
        raise ConfigError(
            f"{name[:60]!r} cannot be the name of a prompt.",
            suggestion="Letters, digits and any of : _ . - make one, as in lightagent-prompt@daily-disk.",
        )
    path = folder / PROMPTS / f"{name}.toml"
    if not path.exists():
        if name in DEFAULTS:
            return DEFAULTS[name]
        raise NotFound(
            f"There is no {path}.",
            suggestion="Copy one of /usr/share/doc/lightagentd/examples/prompts/, see lightagentd(8).",
        )
    return check(path)


def check(path: Path) -> PromptFile:
    """Check a prompt file, as far as possible without the daemon. Raises ConfigError."""
    if not PROMPT_NAME.match(path.stem):
        raise ConfigError(
            f"{path} has a name that no unit can have.",
            suggestion="Letters, digits and any of : _ . - make one.",
        )
    found = load_one(path, PromptFile)
    found.account(path)
    return found
