"""The operations on the daemon that callers may be allowed, with their polkit names."""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """The name of a polkit action without the prefix `org.lightagent1.`."""

    INSPECT = "inspect"
    PROMPT = "prompt"
    APPROVE = "approve"
    MANAGE_AGENTS = "manage-agents"
    ADMINISTER = "administer"
