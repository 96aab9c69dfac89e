"""What a hook file uses: the phases in which hooks are asked, and their answers.

    from lightagentd.toolkit.hook import block, replace

    def before_tool_call(payload):
        if payload["args"].get("host") == "old.example":
            return replace(payload | {"args": payload["args"] | {"host": "new.example"}})

A file may set `on_error = "go on"`, `timeout_s` (of each call) and `agents` (the names of those that it is
asked for).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PHASES: Mapping[str, tuple[str, ...]] = {
    "before_turn": ("prompt",),
    "before_model_request": ("system", "messages"),
    "after_model_response": ("text", "calls"),
    "before_tool_call": ("args",),
    "after_tool_result": ("text",),
    "before_memory_write": ("text", "tags"),
    "after_memory_write": (),
    "before_flow_step": (),
    "after_flow_step": ("output",),
    "on_approval_required": (),
    "on_resume": (),
    "on_rerun": (),
    "after_turn": (),
}
"""The phases, each with the keys of its payload that a hook may replace."""
TOLD = frozenset({"after_memory_write", "after_turn"})
"""The phases in which what they are about is done already: nothing is left to block."""


@dataclass(frozen=True)
class Replace:
    """Go on with another payload."""

    payload: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Do not go on."""

    reason: str


def replace(payload: dict[str, Any]) -> Replace:
    """Go on with this payload. Keys that it leaves out stay; those that a phase keeps must stay the same."""
    return Replace(payload)


def block(reason: str) -> Block:
    """Refuse to go on, for this reason, which the person or the model reads."""
    return Block(reason)
