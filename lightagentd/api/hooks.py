"""Results about hooks."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One file of hooks. `kit` is the agent whose kit it is in, empty for those of the configuration.

    `phases` are those that it has a function for, `agents` those that it is asked for (none: all). `on_error`
    is block or go on. With a `problem` it cannot be used, and its agents are blocked.
    """

    kit: str
    name: str
    path: str
    phases: list[str]
    agents: list[str]
    on_error: str
    timeout_s: float
    sha256: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class HookTest:
    """What hooks made of a payload. `decided` are objects {hook, decision, reason, keys, before, after}:
    decision is replaced, blocked, told or failed, before and after are SHA-256.
    """

    payload: Any
    decided: list[Any]
    blocked: bool
    asked: list[str]
    """The files that were asked, by their names."""
