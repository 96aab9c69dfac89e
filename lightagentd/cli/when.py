"""Times as people write and read them; the daemon's are UTC in microseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from lightagentd.cli.terminal import is_terminal

_AGO = re.compile(r"-(\d+)\s*(s|min|m|h|d|w)")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?")
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
FORMS = "a time such as 2026-11-21T14:30, 14:30, today, yesterday, now, -90s, -30m, -2h, -3d"


def local(time_us: int, timespec: str = "seconds") -> str:
    """A time in the zone of this machine, in ISO 8601 with the offset."""
    return datetime.fromtimestamp(time_us / 1_000_000).astimezone().isoformat(timespec=timespec)


def moment(time_us: int) -> str:
    """A time for a list: on a terminal as short as it can be understood, in a pipe as `local`."""
    if not is_terminal():
        return local(time_us)
    when, now = datetime.fromtimestamp(time_us / 1_000_000).astimezone(), datetime.now().astimezone()
    if when.date() == now.date():
        return f"{when:%H:%M:%S}"
    return f"{when:%m-%d %H:%M}" if when.year == now.year else f"{when:%Y-%m-%d}"


def duration(duration_ms: float) -> str:
    """A duration as one word: 340ms, 2.1s, 3m05s, 2h05m, 4d02h."""
    if duration_ms < 1000:
        return f"{round(duration_ms)}ms"
    if duration_ms < 60_000:
        return f"{int(duration_ms) / 1000:.1f}s"
    minutes, seconds = divmod(int(duration_ms) // 1000, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def size(size_bytes: int) -> str:
    """A size as one word, in the units of 1024: 512B, 1.5KiB."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f}B" if unit == "B" else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}TiB"


def parse(text: str, now: datetime) -> int:
    """The time that a person wrote, in microseconds; `now` is aware. Raises ValueError."""
    word = text.strip().lower()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    ago = _AGO.fullmatch(word)
    if word == "now":
        when = now
    elif ago:
        when = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    elif word == "today":
        when = midnight
    elif word == "yesterday":
        when = midnight - timedelta(days=1)
    elif _CLOCK.fullmatch(word):
        when = datetime.fromisoformat(f"{midnight:%Y-%m-%d}T{word if word[1] != ':' else '0' + word}")
    else:
        when = datetime.fromisoformat(text.strip())
    if when.tzinfo is None:
        when = when.astimezone()  # with the offset that this machine's zone has then
    return int(when.timestamp() * 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where to begin reading: at a time, or at the number of an event."""

    time_us: int = 0
    seq: int = 0


def since_time(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of an option that takes a time; gives microseconds."""
    if value is None:
        return None
    try:
        return parse(value, datetime.now().astimezone())
    except (ValueError, OverflowError) as err:
        raise click.BadParameter(f"{value!r} is not {FORMS}.", context, parameter) from err


def since_start(context: click.Context, parameter: click.Parameter, value: str | None) -> Start | None:
    """The callback of an option that takes a time or the number of an event."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return Start(seq=max(1, int(value)))
    return Start(time_us=since_time(context, parameter, value) or 0)
