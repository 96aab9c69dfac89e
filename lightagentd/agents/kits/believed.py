"""What the daemon believes of a worker's description of a kit's tool.

The worker has run the file that it describes, so its words are the file's: a file may have it say anything.
The daemon takes the names that it asked for, values of the right types, and places that a kit can have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightagentd.agents.tool_calls.described import ToolInfo
from lightagentd.agents.tool_calls.toolbox import toolbox_of

_TEXT_CHARS = 64 << 10
_MOST_ACTIONS = 200


class _Action(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)
    description: str = Field(max_length=_TEXT_CHARS)
    effect: Literal["", "observe", "reach", "change"]
    taints: bool
    timeout_s: float = Field(gt=0, lt=1e9, allow_inf_nan=False)
    place: Literal["", "watcher", "server", "remote"] = ""
    host: str = Field(default="", max_length=_TEXT_CHARS)
    parameters: dict[str, Any] = Field(alias="schema")
    plain: dict[str, Any] | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    description: str = Field(max_length=_TEXT_CHARS)
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    actions: list[_Action] = Field(min_length=1, max_length=_MOST_ACTIONS)


def believed(described: Any, name: str, path: Path) -> ToolInfo | str:
    """The tool of this file, or why the description of it cannot be one."""
    try:
        tool = _Tool.model_validate(described)
        if tool.name != name:
            return f"it says that it is the tool {tool.name[:60]!r}"
        whole = tool.model_dump(by_alias=True) | {"path": str(path), "problem": ""}
        found = toolbox_of([whole]).tools[name]
        for action in found.actions:
            _ = (action.hidden, action.offer)  # what a schema is used for later
            if len(action.function) > 64:
                return f"{action.function} is longer than the 64 characters of a function name"
            properties = action.schema.get("properties", {})
            if not isinstance(properties, dict) or not all(
                isinstance(one, dict) for one in properties.values()
            ):
                return f"the action {action.name} has a schema whose properties are none"
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"its description is not that of a tool: {where}: {first['msg']}"
    except (AttributeError, KeyError, LookupError, RecursionError, TypeError, ValueError) as err:
        return f"its schema cannot be used: {type(err).__name__}: {err}"
    return found
