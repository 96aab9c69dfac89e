"""The files of an MCP server: what an administrator wrote, and what they approved of its tools.

    mcp.d/NAME.toml       how the server is reached, and what its tools may do
    mcp.d/NAME.approved   the descriptions and schemas of its tools as they were looked at, as JSON

What a server says of itself is text from outside. So a model sees the approved text, and a tool that has
another one by now is held back. A file without an approval has no tools. In a kit the folder is `mcp`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError
from lightagentd.text.reason import reason
from lightagentd.text.strict_json import BadJson, decoded
from lightagentd.tool import Effect

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
MOST_TOOLS = 200
"""Of one server; more are chosen from with `only` and `exclude`."""
APPROVED_BYTES = 4 << 20
_TOLD = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What a server says of a tool, and what an approval is about."""

_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class Undo(Section):
    """What undoes a call: a tool of the same server. In its arguments `{NAME}` is an argument of the call,
    and `{result.NAME}` a value of its result.
    """

    tool: str
    arguments: dict[str, str | bool | int | float] = Field(default_factory=dict)


class ServerFile(Section):
    """One server."""

    command: list[str] = Field(default_factory=list)
    """The program and its arguments, for a server that speaks on its standard input and output."""
    url: str = ""
    """The endpoint of a server that speaks HTTP."""
    description: str = Field(default="", max_length=1000)
    """What a model reads of the tools together."""
    effect: Effect | None = None
    """The sandbox in which its tools are listed, and its resources and prompts are read."""
    tools: dict[str, Effect] = Field(default_factory=dict)
    """The effect of each tool, by the name that the server has for it; change for all others."""
    undo: dict[str, Undo] = Field(default_factory=dict)
    """What undoes a call of a tool, by the name that the server has for that."""
    only: list[str] = Field(default_factory=list)
    exclude: list[str] = Field(default_factory=list)
    agents: list[str] = Field(default_factory=list)
    """The agents that have its tools; all of them when there are none."""
    credentials: list[_Variable] = Field(default_factory=list)
    """Those of the daemon, `tool.NAME.CREDENTIAL`, that it gets in its environment or in `headers`."""
    environment: dict[_Variable, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    """Of each request; {CREDENTIAL} stands for that credential."""
    timeout_s: Seconds = 60.0

    @field_validator("command")
    @classmethod
    def _whole_path(cls, command: list[str]) -> list[str]:
        if command and not all(command):
            raise ValueError("a word of it is empty")
        return command

    @model_validator(mode="after")
    def _one_way(self) -> ServerFile:
        if bool(self.command) == bool(self.url):
            raise ValueError("it needs either a command or a url")
        if self.command:
            if self.headers:
                raise ValueError("headers go with a url")
            return self
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError("the url is not one of http or https, without a user")
        if parts.scheme == "http" and self.credentials and parts.hostname not in _LOOPBACK:
            raise ValueError("credentials go to an https url, or to this machine")
        if self.environment:
            raise ValueError("the environment goes with a command")
        if Effect.OBSERVE in (self.effect, *self.tools.values()):
            raise ValueError("what is behind a url cannot be observe: that has no network")
        return self

    @property
    def listed_in(self) -> Effect:
        return self.effect or (Effect.REACH if self.url else Effect.OBSERVE)

    def takes(self, tool: str) -> bool:
        """Whether a tool of the server is wanted."""
        return (not self.only or tool in self.only) and tool not in self.exclude

    def effect_of(self, tool: str) -> Effect:
        return self.tools.get(tool, Effect.CHANGE)


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_server(path: Path) -> ServerFile:
    """Raises ConfigError with the line, or the key."""
    if not NAME.fullmatch(path.stem):
        raise ConfigError("the name is not up to 32 of a-z, 0-9 and _, a letter first")
    try:
        return ServerFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}: {said}" if where else said) from None
    except (OSError, ValueError) as err:
        raise ConfigError(reason(err)) from None


def approved_path(path: Path) -> Path:
    """The approval that belongs to the file of a server."""
    return path.with_suffix(".approved")


def read_approved(path: Path) -> dict[str, Any] | None:
    """{tools, resources, prompts} as they were approved for this file; None without an approval.

    Raises ConfigError.
    """
    where = approved_path(path)
    try:
        if where.stat().st_size > APPROVED_BYTES:
            raise ConfigError(f"{where.name} is larger than {APPROVED_BYTES >> 20} MiB")
        found = decoded(where.read_bytes(), depth=100)
        tools = found["tools"]
        if not all(isinstance(one["name"], str) and isinstance(one["inputSchema"], dict) for one in tools):
            raise ConfigError(f"{where.name} has a tool without a name or a schema")
        return {"tools": tools, **{part: bool(found.get(part)) for part in ("resources", "prompts")}}
    except FileNotFoundError:
        return None
    except (BadJson, KeyError, TypeError) as err:
        raise ConfigError(f"{where.name} is not an approval: {reason(err)}") from None
    except OSError as err:
        raise ConfigError(reason(err, at=True)) from None


def told(tool: dict[str, Any]) -> dict[str, Any]:
    """What of a tool is approved, of all that the server lists."""
    return {key: tool[key] for key in _TOLD if tool.get(key) is not None}


def digest(value: Any) -> str:
    """SHA-256 of a tool, or of all that is approved, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
