"""How a call of an MCP server's tool is undone: by another tool of the server, as an administrator wrote.

Nothing is undone by itself. The person who approves the call reads it, and the call's event has it in its
metadata, as `undo`: action and args, which `lactl undo CALL` shows as a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import ConfigError
from lightagentd.text.strict_json import BadJson, decoded
from lightagentd.toolkit.mcp.results import clean
from lightagentd.toolkit.mcp.server_file import ServerFile

_PART = re.compile(r"\{([^{}]{1,200})\}")
_MOST_CHARS = 500
"""The longest value that is taken from a call or its result."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A tool of the server here: its action, and the action's arguments by the server's names of them."""

    action: str
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Undoing:
    """`of` is undone by the action `action` with `args`, whose texts may have parts in braces."""

    of: Function
    action: str
    args: Mapping[str, Any]

    @property
    def needs_result(self) -> bool:
        """Whether it is not known before the call."""
        return any(isinstance(one, str) and "{result." in one for one in self.args.values())

    def told(
        self, given: Mapping[str, Any], result: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """{action, args} for a call with the arguments `given`, by the server's names. None where something
        is missing in them or in the result; without a result its parts stay.
        """
        args = {}

        def part(found: re.Match[str]) -> Any:
            name = found[1]
            if not name.startswith("result."):
                return _plain(given[name])
            return found[0] if result is None else _plain(_in(result, name.split(".")[1:]))

        try:
            for name, value in self.args.items():
                whole = _PART.fullmatch(value) if isinstance(value, str) else None
                if whole is not None:
                    args[name] = part(whole)
                else:
                    args[name] = (
                        _PART.sub(lambda found: str(part(found)), value) if isinstance(value, str) else value
                    )
        except (LookupError, TypeError, ValueError):
            return None
        return {"action": self.action, "args": args}


def undoings(server: ServerFile, functions: Mapping[str, Function]) -> dict[str, Undoing]:
    """By the tools that are undone; `functions` are the approved tools. Raises ConfigError."""
    found = {}
    for tool, undo in server.undo.items():
        if missing := [one for one in (tool, undo.tool) if one not in functions]:
            raise ConfigError(f"undo.{tool}: {missing[0]!r} is none of its approved tools")
        names = functions[undo.tool].names
        if unknown := [one for one in undo.arguments if one not in names]:
            raise ConfigError(f"undo.{tool}: {undo.tool} has no argument {unknown[0]!r}")
        parts = [part for value in undo.arguments.values() for part in _PART.findall(str(value))]
        if unknown := [
            one for one in parts if not (one.startswith("result.") or one in functions[tool].names)
        ]:
            raise ConfigError(f"undo.{tool}: {tool} has no argument {unknown[0]!r}")
        args = {names[one]: value for one, value in undo.arguments.items()}
        found[tool] = Undoing(of=functions[tool], action=functions[undo.tool].action, args=args)
    return found


def result_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a result of `tools/call`: its structured content, or its text where that is JSON."""
    value = found.get("structuredContent")
    try:
        value = decoded(found["content"][0]["text"].encode(), depth=100) if value is None else value
    except (BadJson, LookupError, TypeError, AttributeError):
        return {}
    return value if isinstance(value, dict) else {}


def _in(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value[int(key) if isinstance(value, list) else key]
    return value


def _plain(value: Any) -> Any:
    """Raises ValueError for what is no text, number or truth value, or long."""
    if not isinstance(value, str | int | float) or len(str(value)) > _MOST_CHARS:
        raise ValueError("no plain value")
    return clean(value) if isinstance(value, str) else value
