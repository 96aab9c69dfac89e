"""Converts the times that skills take (`boot`, `today 14:00`, `-2h`, `2025-01-31`), and formats those in
reports.
"""

from __future__ import annotations

import re
import time

from commands import read
from report import refuse

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DAY = 86400.0


def boot_time() -> float:
    """The time of the kernel's start, in seconds since 1970."""
    for line in (read("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    uptime = read("/proc/uptime")
    return time.time() - float(uptime.split()[0]) if uptime else 0.0


def since(value: str) -> float:
    """Seconds since 1970; an invalid value ends the script with status 2."""
    if value == "boot":
        return boot_time()
    back = re.fullmatch(r"-(\d+)(s|min|h|d)", value)
    if back:
        return time.time() - int(back[1]) * _SECONDS[back[2]]
    day, _, clock = value.partition(" ")
    if day in ("today", "yesterday"):
        day = time.strftime("%Y-%m-%d", time.localtime(time.time() - (0 if day == "today" else _DAY)))
    try:
        return time.mktime(time.strptime(f"{day} {clock or '00:00'}", "%Y-%m-%d %H:%M"))
    except (ValueError, OverflowError):
        refuse(
            f"{value!r} is not a time. Give boot, today, 'yesterday 14:00', -30min, -2h, -7d or "
            "'2025-01-31 14:00'."
        )
    return 0.0


def show(seconds: float) -> str:
    """`2025-01-31 14:00:05`, local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
