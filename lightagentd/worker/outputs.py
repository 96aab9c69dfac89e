"""The definitions for kept outputs that worker and daemon share (`kept`)."""

from __future__ import annotations

import re

STREAMS = ("stdout", "stderr")
CALL_LIMIT_BYTES = 16 << 20
"""How much of one call's output is kept, both streams together."""
_CALL_ID = re.compile(r"call_([0-9a-f]{16})")


def handle_of(call_id: str) -> str:
    """The handle of a call's output; empty for an id that is not one of the daemon's calls."""
    found = _CALL_ID.fullmatch(call_id)
    return f"out_{found[1]}" if found else ""
