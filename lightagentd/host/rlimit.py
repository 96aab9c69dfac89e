"""Resource limits (setrlimit(2)) of the calling process and of what it starts."""

from __future__ import annotations

import resource


def lower(limit: int, value: int) -> None:
    """Set a resource limit for good, unless it is lower already."""
    _, hard = resource.getrlimit(limit)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (bound, bound))
