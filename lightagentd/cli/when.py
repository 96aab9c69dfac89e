"""Times as people write and read them; the daemon's are UTC in microseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click

from lightagentd.cli.terminal import is_terminal

_UNITS_S = {
    "s sec secs second seconds": 1,
    "m min mins minute minutes": 60,
    "h hr hour hours": 3600,
    "d day days": 86_400,
    "w week weeks": 604_800,
    "month months": 2_629_800,
    "y year years": 31_557_600,
}
"""The units of systemd.time(7), where M is a month; here case does not count, and m is a minute."""
_SECONDS = {word: seconds for words, seconds in _UNITS_S.items() for word in words.split()}
_SPAN = re.compile(r"(an?(?=\s)|\d+(?:\.\d+)?)\s*([a-z]+)")
_AGO = re.compile(rf"-\s*({_SPAN.pattern})|({_SPAN.pattern}(?:\s+{_SPAN.pattern})*)\s+ago")
_AHEAD = re.compile(rf"(?:\+\s*|in\s+)({_SPAN.pattern}(?:\s+{_SPAN.pattern})*)")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?")
_DAY = re.compile(r"(last\s+)?([a-z]+)(?:\s+(?:at\s+)?(\S+))?")
_DAYS = {"today": 0, "yesterday": -1, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
FORMS = "a time such as 2026-11-21T14:30, 14:30, now, -90s, -2h, '2 hours ago', yesterday, 'friday 9:00'"


_NEAR_S = 3600
"""What is nearer than that is told as a span."""


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


def ago(time_us: int) -> str:
    """A time for a list, in words on a terminal: `2 min ago`, `14:02`, `yesterday 14:02`, `in 5 min`, else as
    `moment`; `parse` takes them. In a pipe as `local`.
    """
    if not is_terminal():
        return local(time_us)
    when, now = datetime.fromtimestamp(time_us / 1_000_000).astimezone(), datetime.now().astimezone()
    seconds = round((now - when).total_seconds())
    if abs(seconds) < _NEAR_S:
        near = f"{abs(seconds)} s" if abs(seconds) < 60 else f"{abs(seconds) // 60} min"
        return f"{near} ago" if seconds >= 0 else f"in {near}"
    days = (when.date() - now.date()).days
    named = {0: "", -1: "yesterday ", 1: "tomorrow "}
    return f"{named[days]}{when:%H:%M}" if days in named else moment(time_us)


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
    word = " ".join(text.lower().split())
    day = _DAY.fullmatch(word)
    if word == "now":
        when = now
    elif word[:1] == "@":
        when = datetime.fromtimestamp(float(word[1:]), UTC)
    elif _AGO.fullmatch(word):
        when = now - _span(word.removesuffix(" ago"))
    elif _AHEAD.fullmatch(word):
        when = now + _span(word)
    elif word in ("last hour", "last week", "last month", "last year"):
        when = now - timedelta(seconds=_SECONDS[word.removeprefix("last ")])
    elif _CLOCK.fullmatch(word):
        when = _at(now, word)
    elif day and (back := _days_back(day[2], now, before_today=bool(day[1]))) is not None:
        when = _at(now - timedelta(days=back), day[3] or "0:00")
    else:
        when = datetime.fromisoformat(re.sub(r"\s+utc$", "+00:00", text.strip(), flags=re.IGNORECASE))
    if when.tzinfo is None:
        when = when.astimezone()  # with the offset that this machine's zone has then
    return int(when.timestamp() * 1_000_000)


def _span(text: str) -> timedelta:
    """The sum of spans such as `1h 30min`, or `an hour`. Raises ValueError."""
    seconds = 0.0
    for many, unit in _SPAN.findall(text):
        if unit not in _SECONDS:
            raise ValueError(f"{unit} is no unit of time")
        seconds += _SECONDS[unit] * (1 if many in ("a", "an") else float(many))
    return timedelta(seconds=seconds)


def _days_back(word: str, now: datetime, *, before_today: bool) -> int | None:
    """How many days ago a named day was; a weekday is the latest one, `before_today` not today. None for
    another word.
    """
    if word in _DAYS:
        return None if before_today else -_DAYS[word]
    for number, name in enumerate(_WEEKDAYS):
        if word in (name, name[:3]):
            return (now.weekday() - number) % 7 or (7 if before_today else 0)
    return None


def _at(day: datetime, clock: str) -> datetime:
    """That day at a time of its clock, in no zone yet. Raises ValueError."""
    if not _CLOCK.fullmatch(clock):
        raise ValueError(f"{clock} is no time of a day")
    return datetime.fromisoformat(f"{day:%Y-%m-%d}T{clock.rjust(5 if len(clock) < 6 else 8, '0')}")


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
