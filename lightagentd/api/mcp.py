"""Results about MCP servers."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """One server file. `kit` is the agent whose kit it is in, empty for those of the configuration.

    `reached` is its command or URL; `agents` are those that have it (none: all); `functions` how many
    functions it makes. With a `problem` it makes none: its file is wrong, or nobody has approved its tools.
    """

    kit: str
    name: str
    path: str
    reached: str
    agents: list[str]
    functions: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class McpTool:
    """One tool as a server offers it now. `state` is approved, changed, new, gone or unwanted.

    `told` is what it says of itself, `approved` what was approved of that (null: nothing); `effect` is that
    of its calls, by the server's file.
    """

    name: str
    effect: str
    state: str
    told: Any
    approved: Any


@dataclass(frozen=True, kw_only=True)
class McpOffers:
    """What a server offers now. `version` is that of the protocol, `server` what it calls itself.

    `approval` is what its approval would be, and `digest` the SHA-256 of that; `in_force`: that one is.
    """

    name: str
    path: str
    version: str
    server: str
    tools: list[McpTool]
    resources: bool
    prompts: bool
    approval: Any
    digest: str
    in_force: bool
