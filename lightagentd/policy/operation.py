"""What callers may be allowed to do to the daemon, as polkit names it."""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """What polkit calls an action, without the prefix `org.lightagent1.`."""

    INSPECT = "inspect"
    PROMPT = "prompt"
    APPROVE = "approve"
    MANAGE_AGENTS = "manage-agents"
    ADMINISTER = "administer"
