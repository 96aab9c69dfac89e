"""What both ends of a worker know of outputs that are kept to be read again (`kept`)."""

from __future__ import annotations

import re

STREAMS = ("stdout", "stderr")
CALL_LIMIT_BYTES = 16 << 20
"""How much of one call's output is kept, both streams together."""
_CALL_ID = re.compile(r"call_([0-9a-f]{16})")


def handle_of(call_id: str) -> str:
    """The handle of a call's output; an empty string for what is no call of the daemon's."""
    found = _CALL_ID.fullmatch(call_id)
    return f"out_{found[1]}" if found else ""
