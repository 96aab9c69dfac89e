"""Declares and loads the configuration: `lightagentd.toml` and `lightagentd.toml.d/*.toml`.

A later file overrides an earlier one key by key. An unknown key, a wrong type or a value out of range is
a ConfigError that names the file, the key and, for an unknown key, the nearest known one. Keys and
passwords never stand in these files: a provider names where its key is.
"""

from __future__ import annotations

import difflib
import errno
import json
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from lightagentd.config.gateway import Gateway
from lightagentd.config.memory import Memory, MemoryPolicy, MemoryStore
from lightagentd.config.models import (
    CREDENTIAL_NAMES,
    ModelFacts,
    Models,
    Price,
    Provider,
    api_key,
    read_key,
)
from lightagentd.config.notify import Notify
from lightagentd.config.section import Seconds, Section
from lightagentd.config.telemetry import Telemetry
from lightagentd.errors import ConfigError
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.text.reason import reason

__all__ = [
    "Budget",
    "Budgets",
    "Config",
    "Daemon",
    "Gateway",
    "History",
    "Limits",
    "Memory",
    "MemoryPolicy",
    "MemoryStore",
    "ModelFacts",
    "Models",
    "Notify",
    "OwnerLimits",
    "Price",
    "Provider",
    "Seconds",
    "Section",
    "Telemetry",
    "Worker",
    "api_key",
    "check_place",
    "files",
    "load",
    "load_one",
    "parse_toml",
    "place_of",
    "read_key",
    "read_text",
]

Url = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$", max_length=500)]
_Model = TypeVar("_Model", bound=BaseModel)
ETC = Path("/etc")
"""Below it only root may be able to write what the daemon reads."""


class Daemon(Section):
    """`[daemon]`"""

    socket_group: str = "lightagent"
    """The group that may connect to a system daemon's socket; without such a group only root may."""
    drain_timeout_s: Seconds = 30.0
    """How long running turns may go on after a stop was asked for; then they are cancelled."""
    max_connections: int = Field(default=1024, ge=1, le=65_536)
    """Connections to the control socket at once, of all users; the limit on open files may leave room for
    fewer. Root has 32 more to himself."""
    bus: str = Field(default="auto", pattern=r"^(auto|system|session|off|unix:\S+)$")
    """The D-Bus to serve `org.lightagent1` on. `auto` is the system bus for a system service, and the session
    bus for an ordinary user's own daemon; an address such as `unix:path=/run/bus` is that bus."""
    gateway_socket: str = Field(default="/run/lightagent-gateway/http.sock", pattern="^/")
    """The gateway's own socket: whoever connects to it needs no token, and counts as the user that the kernel
    says. Its folder and those above must be root's."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages of the daemon itself that the journal gets; events do not depend on it."""
    journal_content: bool = False
    """Whether the journal gets the arguments of calls and the content of prompts, output and messages too:
    whoever may read the journal, and every agent, then reads everyone's conversations."""


class OwnerLimits(Section):
    """`[limits.owner]`: what one user may have at once. Root, the daemon's own user and administrators are
    not held to it."""

    connections: int = Field(default=64, ge=1, le=65_536)
    """Connections to the control socket; each running call, attached session and watch holds one."""
    calls: int = Field(default=64, ge=1, le=1024)
    """Calls over D-Bus that wait for their answers."""
    waiting_bytes: int = Field(default=32 << 20, ge=MAX_MESSAGE_BYTES, le=1 << 40)
    """What is half sent, waits to be answered, or is not read, on the control socket and on D-Bus each."""
    sessions: int = Field(default=2000, ge=1, le=1_000_000)
    """Sessions at all agents together."""
    questions: int = Field(default=100, ge=1, le=1000)
    """Approvals that wait, and as many questions of agents."""
    changes_per_minute: int = Field(default=600, ge=1, le=1_000_000)
    """Calls that store something: prompts, new sessions, answers, renames, memories."""
    stored_bytes_per_day: int = Field(default=256 << 20, ge=1, le=1 << 50)
    """What is stored of a user's sessions in one day (UTC), about; then they get no new work until the next,
    so that nobody can have retention remove what others did."""


class Limits(Section):
    """`[limits]`: what one turn, session or prompt may use, unless the agent's own limits say less."""

    max_steps: int = Field(default=40, ge=1, le=10_000)
    """Model calls of one turn, each with the tool calls that it asks for."""
    max_queue: int = Field(default=32, ge=1, le=10_000)
    """Prompts that may wait in one session."""
    max_prompt_bytes: int = Field(default=12 << 20, ge=1, le=MAX_MESSAGE_BYTES)
    """The largest prompt, with what was attached to it."""
    turn_timeout_s: Seconds = 3600.0
    """How long a turn may take; then it ends as an error."""
    call_timeout_s: Seconds = 600.0
    """The longest time that one tool call may ask for."""
    approval_timeout_s: Seconds = 3600.0
    """How long a call waits for a person to approve it; then it counts as denied. A turn that waits uses up
    nothing of its own time."""
    input_timeout_s: Seconds = 86_400.0
    """How long an agent's question (`human.ask`) waits for a person; then the agent is told that nobody
    answered. A turn that waits uses up nothing of its own time."""
    max_attachment_bytes: int = Field(default=1 << 20, ge=1, le=MAX_MESSAGE_BYTES // 4)
    """The largest file that may be attached to a prompt; all of one prompt together may have four times that.
    """
    max_kit_bytes: int = Field(default=50 << 20, ge=1, le=1 << 30)
    """How much a kit may have that is added at run time, unpacked."""
    max_kit_files: int = Field(default=2000, ge=1, le=10_000)
    """How many files it may have."""
    events_at_once: int = Field(default=16, ge=1, le=1000)
    """How many events are handled beside conversations, or wait for that; who sends more waits."""
    event_steps: int = Field(default=16, ge=1, le=10_000)
    """How many steps the turn of an event has, unless it says so itself."""
    messages: int = Field(default=16, ge=0, le=1000)
    """How many messages one turn may send to other agents."""
    messages_per_minute: int = Field(default=60, ge=0, le=10_000)
    """How many the agents of one user may send in a minute."""
    message_hops: int = Field(default=8, ge=0, le=100)
    """How many messages of agents may lead to each other without a person."""
    mailbox: int = Field(default=64, ge=1, le=1000)
    """How many may wait for one session."""
    max_tools: int = Field(default=96, ge=8, le=2000)
    """How many functions a model is offered at once, and fewer where they would take more than a third of its
    window. An agent that has more offers those that fit the prompt, those that its session used before, and a
    search for the others."""
    compact_at: float = Field(default=0.8, gt=0.1, le=0.95)
    """How full a model's window may be, as a part of it, before the conversation is compacted."""
    result_bytes: int = Field(default=64 << 10, ge=256, le=MAX_MESSAGE_BYTES // 4)
    """How much of a call's output a model gets to read."""
    child_depth: int = Field(default=4, ge=0, le=20)
    """How many agents may ask each other in a line below the one that was prompted; 0 for none at all."""
    children: int = Field(default=16, ge=1, le=1000)
    """How many child sessions one turn may make."""
    children_at_once: int = Field(default=4, ge=1, le=100)
    """How many children of one turn may work at once; another one waits until one of them is done."""
    owner: OwnerLimits = Field(default_factory=OwnerLimits)


class Budget(Section):
    """What may be used in one scope; 0 means that there is no limit."""

    tokens: int = Field(default=0, ge=0)
    """Tokens of prompts and answers together. Steps for which the endpoint reports no usage, such
    as cancelled ones, count as nothing here: limit the steps, too."""
    cost: float = Field(default=0.0, ge=0.0)
    """Money, in the currency of the prices; steps without a known price count as nothing."""
    steps: int = Field(default=0, ge=0)
    """Model calls."""
    calls: int = Field(default=0, ge=0)
    """Tool calls."""
    wall_s: float = Field(default=0.0, ge=0.0)
    """The time of turns, without that which they wait for a person."""


class Budgets(Section):
    """`[budgets.SCOPE]`: checked before each model call; a turn that used one up ends with exit status 79.
    What a call takes in tokens and money is known when it is over: calls that run at once may use more."""

    turn: Budget = Field(default_factory=Budget)
    """One turn."""
    session: Budget = Field(default_factory=Budget)
    """One session, over its whole life."""
    owner: Budget = Field(default_factory=Budget)
    """All sessions of one user, over their whole life."""
    owner_day: Budget = Field(default_factory=Budget)
    """All sessions of one user, on one day (UTC)."""
    day: Budget = Field(default_factory=Budget)
    """Everything that the daemon does, on one day (UTC)."""


class History(Section):
    """`[history]`"""

    max_age_days: float = Field(default=0.0, ge=0.0, le=100_000.0)
    """Older events are removed, but for the messages of sessions that still exist; 0 keeps them for ever."""
    max_bytes: int = Field(default=4 << 30, ge=0)
    """How large the history may be before the oldest events are removed; 0 for no limit."""
    session_max_idle_days: float = Field(default=0.0, ge=0.0, le=100_000.0)
    """Sessions that nobody used for so long are deleted; 0 keeps them for ever."""
    checkpoint_events: int = Field(default=1000, ge=1, le=1_000_000)
    """After so many events at the latest the daemon signs the history's head."""
    checkpoint_s: Seconds = 60.0
    """After so many seconds at the latest, when there are events that no checkpoint covers."""
    snapshots: bool = True
    """Whether the state of the machine (packages, units, ports, users, digests of /etc) is stored once a day,
    for `lactl changes`."""


class Worker(Section):
    """`[worker]`"""

    sandbox: Literal["auto", "systemd", "bwrap", "none"] = "auto"
    """`auto` takes the worker units where they work, else bwrap. `systemd` is the units or no start at all.
    `none` enforces nothing: shell commands then count as change."""
    web_allow: list[str] = Field(default_factory=list)
    """Hosts, HOST:PORT or networks that the tool web may reach although their addresses are private."""
    location_url: Url = "https://ipapi.co/json/"
    """The service that the tool location asks where this machine's address is. It answers a GET with JSON:
    `latitude` and `longitude`, or `lat` and `lon`, and maybe `city`, `region`, `country` and `timezone`."""
    places_url: Url = "https://geocoding-api.open-meteo.com/v1/search"
    """The service that the tool location asks where a town is, as Open-Meteo's geocoding."""
    weather_url: Url = "https://api.open-meteo.com/v1/forecast"
    """The service that the tool weather asks, with Open-Meteo's interface."""
    bus_names: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*(\.[A-Za-z_-][\w-]*)+$")]] = Field(
        default_factory=list
    )
    """Further services on the system bus that `observe` may introspect and whose properties it may read, such
    as `org.freedesktop.Accounts`. A read may start the service."""
    change_agents: list[str] = Field(default_factory=list)
    """Agents that get a worker for change, which runs as the daemon's own user, where systemd does not run
    the workers; where it does, `systemctl enable --now lightagent-change@AGENT.socket` says the same."""
    trust_daemon_taint: bool = False
    """Whether a worker for change takes the daemon's word that no text from outside is in a session. Without
    it a rule that allows a change needs `even_if_tainted`, or a person approves each. Where systemd runs the
    workers."""
    trust_daemon_keys: bool = False
    """Whether the key store signs whenever the daemon says so. Without it the use of a key needs a rule with
    `even_if_tainted`, or a person approves each. Where systemd runs the workers."""
    idle_timeout_s: Seconds = 300.0
    """A worker that has had nothing to do for so long ends, unless it holds a watch."""
    max_per_effect: int = Field(default=4, ge=1, le=64)
    """How many calls of one agent, owner and effect run at once."""
    max_workers: int = Field(default=24, ge=4, le=28)
    """How many workers there are at once. When another one is needed, an idle one of that person and effect
    goes to the agent that needs it, else the one that was idle longest ends.
    One owner gets at most half of those that others leave; for root there are two more."""
    start_timeout_s: Seconds = 20.0
    """How long a worker may take until it answers."""


class Config(Section):
    """The whole configuration."""

    daemon: Daemon = Field(default_factory=Daemon)
    limits: Limits = Field(default_factory=Limits)
    worker: Worker = Field(default_factory=Worker)
    models: Models = Field(default_factory=Models)
    budgets: Budgets = Field(default_factory=Budgets)
    memory: Memory = Field(default_factory=Memory)
    history: History = Field(default_factory=History)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    gateway: Gateway = Field(default_factory=Gateway)
    notify: Notify = Field(default_factory=Notify)


def files(folder: Path) -> list[Path]:
    """The configuration files of a folder that exist, in the order in which they apply."""
    main = folder / "lightagentd.toml"
    return [*([main] if main.exists() else []), *sorted((folder / "lightagentd.toml.d").glob("*.toml"))]


def load(folder: Path) -> tuple[Config, dict[str, Path]]:
    """The configuration of a folder, and which file each key that is set came from (`limits.max_steps`).

    Raises ConfigError. A folder or file that does not exist means the defaults.
    """
    found, origins, faults = _read_all(folder)
    if found is None:
        raise faults[0]
    return found, origins


def faults(folder: Path) -> list[ConfigError]:
    """All that is wrong with the configuration files of a folder."""
    return _read_all(folder)[2]


def _read_all(folder: Path) -> tuple[Config | None, dict[str, Path], list[ConfigError]]:
    merged: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    found: list[ConfigError] = []
    for path in files(folder):
        try:
            _merge(merged, _read(path), origins, path, "")
        except ConfigError as err:
            found.append(err)
    try:
        config = Config.model_validate(merged)
    except ValidationError as err:
        found += _explained(err, origins, Config)
        return None, origins, found
    return None if found else config, origins, found


def load_one(path: Path, model: type[_Model]) -> _Model:
    """A file of its own kind, such as one of `prompts/`, under the same rules. Raises ConfigError."""
    values, origins = _read(path), dict[str, Path]()
    _merge({}, values, origins, path, "")
    try:
        return model.model_validate(values)
    except ValidationError as err:
        raise _explained(err, origins, model, path)[0] from err


def _read(path: Path) -> dict[str, Any]:
    return parse_toml(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of a file. Raises ConfigError when it cannot be read, and as `check_place` does."""
    try:
        check_place(path)
        if path.is_fifo():  # nobody may ever write into it, and a thread that reads it could not be ended
            raise OSError(errno.EINVAL, "it is a pipe")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"{path} cannot be read: {reason(err)}.",
            suggestion="It must be UTF-8 text that the user of lightagentd can read.",
        ) from err


def check_place(path: Path) -> None:
    """Raises ConfigError for a file below /etc when others than root can write it, or a folder that it lies
    in; OSError when it is not there.
    """
    for place in (path, *path.parents):
        if ETC not in place.parents:
            return
        info = place.stat()
        if info.st_uid != 0 or stat.S_IMODE(info.st_mode) & 0o022:
            raise ConfigError(
                f"{place} can be written by others than root.",
                suggestion=f"chown root {place}; chmod go-w {place}",
            )


def parse_toml(text: str, name: Path | str) -> dict[str, Any]:
    """The tables in a text; `name` is what the error calls it. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as err:  # ValueError alone is about a number of too many digits
        raise ConfigError(
            f"{name} is not TOML: {err}", suggestion="Mend the file at the place named."
        ) from err


def _merge(
    into: dict[str, Any], new: dict[str, Any], origins: dict[str, Path], path: Path, prefix: str
) -> None:
    for key, value in new.items():
        name = f"{prefix}{key}"
        origins[name] = path
        if isinstance(value, dict) and isinstance(into.get(key, {}), dict):
            _merge(into.setdefault(key, {}), value, origins, path, f"{name}.")
        else:
            into[key] = value


def _known_keys(model: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    for part in where:
        found = model.model_fields.get(str(part))
        if found is None:
            continue  # a name in a table of sections
        for annotation in (found.annotation, *get_args(found.annotation)):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation
    return list(model.model_fields)


def _explained(
    err: ValidationError, origins: dict[str, Path], model: type[BaseModel], file: Path | None = None
) -> list[ConfigError]:
    return [
        _explain(one["type"], one["msg"], tuple(str(part) for part in one["loc"]), origins, model, file)
        for one in err.errors(include_url=False, include_input=False)
    ]


def _explain(
    kind: str,
    message: str,
    loc: tuple[str, ...],
    origins: dict[str, Path],
    model: type[BaseModel],
    file: Path | None,
) -> ConfigError:
    key = ".".join(loc)
    where = place_of(loc, origins, file)
    if kind == "missing":
        field = model.model_fields.get(key)
        example = (
            f", for example: {key} = {json.dumps(field.examples[0])}" if field and field.examples else ""
        )
        return ConfigError(f"{where}: the key {key!r} is missing.", suggestion=f"Add it{example}", field=key)
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(loc[-1], _known_keys(model, loc[:-1]), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Remove it; lactl config show lists what there is."
        if loc[:2] == ("models", "providers") and loc[-1].lower() in CREDENTIAL_NAMES:
            hint = "A key stands in a file of its own (chmod 600): name that with api_key_file."
        return ConfigError(f"{where}: the key {key!r} is not known.", suggestion=hint, field=key)
    said = message.removeprefix("Value error, ").rstrip(".")
    said = f"{key}: {said}" if key else said
    hint = 'Write a list: ["…"]' if kind == "list_type" else "Mend the file at the place named."
    return ConfigError(f"{where}: {said}.", suggestion=hint, field=key)


def place_of(loc: tuple[str, ...], origins: Mapping[str, Path], file: Path | None = None) -> str:
    """`FILE:LINE` of what set a key, or else the table around it; `file` is where it is when nothing else is
    known.
    """
    path = next((origins[name] for name in _from_longest(loc) if name in origins), file)
    return f"{path}{_line_of(path, loc)}" if path else "The configuration"


def _from_longest(loc: tuple[str, ...]) -> Iterator[str]:
    """The dotted name of a key, then those of the tables around it, from the inside out."""
    for end in range(len(loc), 0, -1):
        yield ".".join(loc[:end])


def _line_of(path: Path, loc: tuple[str, ...]) -> str:
    """`:LINE` of the line that sets a key; else of the innermost table or inline table around it that a line
    names, and empty when none does.
    """
    table: tuple[str, ...] = ()
    found: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if text.startswith("["):
            name = table = _key_path(text)
        elif "=" in text and not text.startswith("#"):
            name = (*table, *_key_path(text.partition("=")[0] + "= 0"))
        else:
            continue
        for end in range(1, len(name) + 1):
            found.setdefault(name[:end], number)
    return next((f":{found[loc[:end]]}" for end in range(len(loc), 0, -1) if loc[:end] in found), "")


def _key_path(text: str) -> tuple[str, ...]:
    """The key that one line of TOML is about; empty when the line is not a whole statement."""
    try:
        value: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        path.append(name)
    return tuple(path)
