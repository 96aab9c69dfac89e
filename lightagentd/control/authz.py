"""Who may call what. The caller comes from the kernel, never from an argument.

polkit decides in a later step; where it does not, the rule is: root and the daemon's own user may do
everything, and whoever could open the socket (group `lightagent`) may inspect and prompt.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from lightagentd.errors import PermissionDenied


class Operation(StrEnum):
    """What polkit calls an action, without the prefix `org.lightagent1.`."""

    INSPECT = "inspect"
    PROMPT = "prompt"
    APPROVE = "approve"
    MANAGE_AGENTS = "manage-agents"
    ADMINISTER = "administer"


_FOR_GROUP = frozenset({Operation.INSPECT, Operation.PROMPT})


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A peer, as the kernel named it when it connected."""

    uid: int
    gid: int
    pid: int

    @property
    def is_administrator(self) -> bool:
        return self.uid in (0, os.geteuid())

    @property
    def viewer(self) -> int | None:
        """The uid whose sessions this caller may see; None for all."""
        return None if self.is_administrator else self.uid


def check(caller: Caller, operation: Operation) -> None:
    """Raises PermissionDenied when the caller may not do this."""
    if not caller.is_administrator and operation not in _FOR_GROUP:
        raise PermissionDenied(
            f"The user with uid {caller.uid} may not do this (it needs org.lightagent1.{operation}).",
            suggestion="Ask an administrator, or run the command with sudo.",
        )
