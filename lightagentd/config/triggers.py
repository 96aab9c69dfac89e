"""`triggers/NAME.toml`: when something happens, an agent is asked.

    on = "unit-failed"
    unit = "nginx*"
    agent = "ops"
    owner = "carol"
    prompt = "why did {unit} fail"

`KINDS` has one row for each `on`: which keys it takes, which names the prompt may have, and who follows it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lightagentd.config.configuration import load_one
from lightagentd.config.template import names_of
from lightagentd.config.unattended import (
    DEFAULTS,
    PROMPT_NAME,
    PROMPTS,
    SESSION_ID,
    TRIAGE,
    Handling,
    Line,
    Unattended,
    check,
    load,
    prompt_files,
)
from lightagentd.errors import ConfigError, LightagentError, NotFound
from lightagentd.text.reason import reason
from lightagentd.tool import Effect

TRIGGERS = "triggers"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_RESERVED = frozenset({"person", "unattended", "check", "context", "triage", "reflection"})
PROMPT = "prompt@"
"""What the name of a trigger begins with that is a prompt of a unit."""
Change = Literal["create", "delete", "modify", "close_write", "attrib", "move"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of trigger. `names` are those that its data have; None where they depend on what happened."""

    about: str
    followed_by: Literal["service", "daemon", "gateway", "unit"]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    coalesce_s: float = 2.0
    sample: Mapping[str, Any] = field(default_factory=dict)
    """What happened, for a test."""


KINDS: Mapping[str, Kind] = {
    "timer": Kind(
        about="a moment of a calendar, systemd.time(7)",
        followed_by="service",
        needs=("calendar",),
        names=("time", "calendar"),
        coalesce_s=0.0,
        sample={"time": "2026-01-01T00:00:00+00:00", "calendar": "daily"},
    ),
    "unit-failed": Kind(
        about="a unit of systemd that fails",
        followed_by="service",
        takes=("unit",),
        names=("unit", "result", "message", "time"),
        sample={"unit": "nginx.service", "result": "exit-code", "message": "nginx.service: Failed"},
    ),
    "journal": Kind(
        about="an entry of the journal",
        followed_by="service",
        takes=("match", "pattern"),
        sample={"MESSAGE": "oom-kill", "_SYSTEMD_UNIT": "nginx.service", "PRIORITY": "3"},
    ),
    "inotify": Kind(
        about="a change of a file or in a folder",
        followed_by="service",
        needs=("path",),
        takes=("changes", "include", "recursive"),
        names=("path", "kind", "kinds", "time", "count", "from", "to"),
        sample={"path": "/srv/in/new.csv", "kinds": ["close_write"], "kind": "close_write"},
    ),
    "udev": Kind(
        about="a device that comes, goes or changes",
        followed_by="service",
        takes=("subsystem", "action", "match"),
        sample={"action": "add", "subsystem": "block", "DEVNAME": "/dev/sdb1"},
    ),
    "webhook": Kind(
        about="a request that the gateway takes",
        followed_by="gateway",
        takes=("signed", "secret_file", "template", "match"),
        coalesce_s=0.0,
        sample={"text": "build 12 failed"},
    ),
    "event": Kind(
        about="an event of the history",
        followed_by="daemon",
        needs=("topic",),
        takes=("type", "match"),
        sample={"topic": "agent.error", "type": "timeout", "agent": "ops", "message": "It took too long."},
    ),
}
_OF_KINDS = frozenset(key for kind in KINDS.values() for key in (*kind.needs, *kind.takes))


class TriggerFile(Unattended):
    """One trigger."""

    on: Literal["timer", "unit-failed", "journal", "inotify", "udev", "webhook", "event"] = Field(
        examples=["unit-failed"]
    )
    """What it waits for."""
    session: Annotated[str, Field(pattern=rf"^(aside|new|same|{SESSION_ID})$")] = "aside"
    """Where the agent is asked: `aside`, as an event beside the owner's conversation with it, which it can
    write a message into; in a `new` session each time; in the `same` one; or in one that goes on, by its id.
    """
    effects: tuple[Effect, ...] = Field(default=(Effect.OBSERVE,), min_length=1)
    """The effects that the agent may use, without a person being asked. Its data come from outside: whoever
    can write them may lead the agent to use what stands here.
    """
    tools: tuple[Line, ...] | None = None
    """The tools that it may use of the agent's, TOOL or TOOL.ACTION; all of them without."""
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    rate_limit: int = Field(default=12, ge=1, le=10_000)
    """How often the agent is asked within `rate_period_s` at most."""
    rate_period_s: float = Field(default=3600.0, ge=1, le=30 * 86_400)
    coalesce_s: float | None = Field(default=None, ge=0, le=86_400)
    """How long it waits for more of the same, which is put into one question; without it 2 seconds, and none
    for a timer and a webhook.
    """
    catch_up: bool = False
    """Whether the agent is asked once about what was missed while nobody followed it."""

    calendar: Line | None = Field(default=None, examples=["Mon *-*-* 06:00:00"])
    """As OnCalendar= of systemd.timer(5); see systemd-analyze(1), calendar."""
    unit: Line = "*"
    """The unit's name, or a glob."""
    match: dict[Line, Line] = Field(default_factory=dict, max_length=50)
    """Fields of an entry, properties of a device, or names of an event's data, each with its value or a glob.
    """
    pattern: str = Field(default="", max_length=1000)
    """A regular expression that is found in the entry's MESSAGE."""
    path: Path | None = Field(default=None, examples=["/srv/incoming"])
    changes: tuple[Change, ...] = Field(default=("create", "delete", "close_write", "move"), min_length=1)
    include: tuple[Line, ...] = Field(default=(), max_length=20)
    """Only files that match one of these globs."""
    recursive: bool = False
    """With all folders below."""
    subsystem: Line | None = None
    action: Literal["add", "remove", "change", "bind", "unbind", "move", "online", "offline"] | None = None
    topic: Line | None = Field(default=None, examples=["agent.error"])
    """An exact topic, or what it begins with before a dot."""
    type: Line | None = None
    signed: Literal["github", "stripe", "standard", "token"] | None = None
    """How a request shows that it knows the secret: as GitHub, Stripe or Standard Webhooks sign, or by a
    token in a header. Without it nobody but `lactl triggers test` fires it.
    """
    secret_file: Path | None = None
    """A file with the secret, which the daemon can read; a bare name is one of its credentials. Each line may
    have one: all of them count, until those who send know the new one."""
    template: Literal["json", "alertmanager", "grafana", "github"] = "json"
    """Which names are made of the body: its own (`json`), or those of a program's."""

    @model_validator(mode="after")
    def _as_its_kind(self) -> Self:
        kind = KINDS[self.on]
        given = self.model_fields_set & _OF_KINDS
        if wrong := sorted(given - {*kind.needs, *kind.takes}):
            raise ValueError(f'{", ".join(wrong)} does not go with on = "{self.on}"')
        if missing := [name for name in kind.needs if getattr(self, name) is None]:
            raise ValueError(f'on = "{self.on}" needs {", ".join(missing)}')
        if self.path is not None and not self.path.is_absolute():
            raise ValueError("path has to be absolute")
        if (self.signed is None) != (self.secret_file is None):
            raise ValueError("signed and secret_file go together")
        if self.on == "journal" and not (self.match or self.pattern):
            raise ValueError("an entry of the journal needs match, pattern or both")
        try:
            re.compile(self.pattern)
        except re.error as err:
            raise ValueError(f"pattern is no regular expression: {err}") from None
        texts = {"prompt": self.prompt, **{f"inputs.{key}": one for key, one in self.inputs.items()}}
        for key, text in texts.items():
            names = names_of(text) if isinstance(text, str) else []
            if unknown := [name for name in names if name not in (kind.names or (name,))]:
                known = ", ".join(kind.names or ())
                raise ValueError(f"{key}: {{{unknown[0]}}} is not known; there are {known}")
        return self

    def handling(self) -> Handling:
        found = {one.name: getattr(self, one.name) for one in fields(Handling)}
        wait_s = KINDS[self.on].coalesce_s if self.coalesce_s is None else self.coalesce_s
        return Handling(**found | {"coalesce_s": wait_s})

    def fits(self, data: Mapping[str, Any]) -> bool:
        """Whether each name in `match` has a value that its glob matches."""
        return all(fnmatch.fnmatchcase(str(data.get(name, "")), glob) for name, glob in self.match.items())

    @property
    def mark(self) -> str:
        """Stands for what it waits for: how far a source was followed says nothing once that has changed."""
        kind = KINDS[self.on]
        waits_for = {name: getattr(self, name) for name in ("on", *kind.needs, *kind.takes)}
        return hashlib.sha256(json.dumps(waits_for, default=str).encode()).hexdigest()[:12]

    def marked(self, position: str) -> str:
        """A position, as it is stored."""
        return f"{self.mark} {position}" if position else ""

    def unmarked(self, stored: str) -> str:
        """A stored position; empty where that is not one of what it waits for now."""
        mark, _, position = stored.partition(" ")
        return position if mark == self.mark else ""


def trigger_files(folder: Path) -> list[Path]:
    """The files of triggers below a configuration folder."""
    return sorted((folder / TRIGGERS).glob("*.toml"))


def check_trigger(path: Path) -> TriggerFile:
    """Check the file of a trigger, as far as possible without the daemon. Raises ConfigError."""
    if not NAME.match(path.stem) or path.stem in _RESERVED:
        why = "means something else" if path.stem in _RESERVED else "can be the name of no trigger"
        raise ConfigError(
            f"{path}: {path.stem[:60]!r} {why}.",
            suggestion="Small letters, digits, - and _ make a name, which rules of policy know it by.",
        )
    found = load_one(path, TriggerFile)
    found.account(path)
    return found


class TriggerFiles:
    """The triggers of a configuration folder, and the prompts of units, which are triggers too."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.found: dict[str, Unattended] = {}
        self.broken: dict[str, ConfigError] = {}
        """Those whose file cannot be used, and why."""

    def read(self) -> None:
        """Read all files again. What is wrong with one stands in `broken`."""
        found: dict[str, Unattended] = {PROMPT + name: one for name, one in DEFAULTS.items()}
        found["triage"] = TRIAGE
        broken: dict[str, ConfigError] = {}
        triggers = trigger_files(self.config)
        rows = [(PROMPT + path.stem, path, check) for path in prompt_files(self.config)]
        for name, path, read in [*rows, *((path.stem, path, check_trigger) for path in triggers)]:
            try:
                found[name] = read(path)
            except (OSError, LightagentError) as err:
                broken[name] = _broken(path, err)
        for name in broken:
            found.pop(name, None)
        self.found, self.broken = found, broken

    def read_prompt(self, name: str) -> None:
        """Read the file of a prompt of a unit again, which may be new: its unit needs no reload."""
        stem = name.removeprefix(PROMPT)
        if not name.startswith(PROMPT) or not PROMPT_NAME.match(stem):
            return
        found = {one: file for one, file in self.found.items() if one != name}
        broken = {one: err for one, err in self.broken.items() if one != name}
        try:
            found[name] = load(self.config, stem)
        except NotFound:
            pass
        except (OSError, ConfigError) as err:
            broken[name] = _broken(self.config / PROMPTS / f"{stem}.toml", err)
        self.found, self.broken = found, broken  # others may be in the middle of the former ones

    def get(self, name: str) -> Unattended:
        """Raises ConfigError for a broken one, NotFound."""
        if name in self.broken:
            raise self.broken[name]
        if name not in self.found:
            raise NotFound(
                f"There is no trigger {name[:80]!r}.",
                field="name",
                suggestion="See: lactl triggers list. A new file is read by: lactl reload",
            )
        return self.found[name]

    def granted(self, name: str) -> tuple[Effect, ...]:
        """The effects that the turns of a trigger have without a person; none for what is no trigger."""
        found = self.found.get(name)
        return (found.handling().effects or ()) if found is not None else ()


def _broken(path: Path, err: OSError | LightagentError) -> ConfigError:
    if isinstance(err, ConfigError):
        return err
    return ConfigError(f"{path}: {reason(err)}.", suggestion="Mend the file.")
