"""Takes times out of a prompt and normalizes them: `today`, `yesterday 14:00`, `-2h`, `boot` or a date.

Weekdays and months are counted back from `now`, local time. The shapes of the values are those of
`lightagentd.skills`.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from lightagentd.llm.runbook.placeholders import Extraction

_NUMBER_WORDS = {
    "a": 1,
    "an": 1,
    "one": 1,
    "two": 2,
    "couple of": 2,
    "a couple of": 2,
    "couple": 2,
    "a couple": 2,
    "three": 3,
    "few": 3,
    "a few": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "ten": 10,
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "": 1,
}
_SPANS = {
    "s": "s",
    "sec": "s",
    "second": "s",
    "m": "min",
    "min": "min",
    "minute": "min",
    "h": "h",
    "hr": "h",
    "hour": "h",
    "d": "d",
    "day": "d",
    "w": "w",
    "wk": "w",
    "week": "w",
    "month": "mo",
}
_COUNT = (
    r"(?P<n>\d{1,4}|(?:a )?couple(?: of)?|(?:a )?few|an?|one|two|three|four|five|six|seven|"
    r"eight|ten|twelve|fifteen|twenty|thirty)"
)
_SPAN = r"(?P<span>seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|wks?|w|months?)"
_CLOCK = (
    r"(?P<clock>(?:[01]?\d|2[0-3]):[0-5]\d ?(?:am|pm)?|1?\d ?(?:am|pm)|noon|midday|lunch(?:time)?|midnight)"
)
_SINCE = r"(?:(?:from|since|after|in|within|over|during|for|on|as of|starting|beginning)\s+)?(?:the\s+)?"
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)


def take_dates(found: Extraction) -> None:
    """Dates such as `2025-01-31 14:00`, which have a shape of their own."""
    found.take(
        rf"\b{_SINCE}(\d{{4}}-\d\d-\d\d)(?:[ T](?:at )?(\d\d:\d\d)(?::\d\d)?)?\b",
        "time",
        lambda m: f"{m[1]} {m[2]}" if m[2] else m[1],
    )


def take_times(found: Extraction, now: datetime) -> None:
    """Spans, days and boots; clock times are taken later, since bare numbers may be ports."""
    found.take(rf"\b{_SINCE}(?:last|past|previous|recent)\s+{_COUNT}[\s-]*{_SPAN}\b", "time", _span)
    found.take(rf"\b{_SINCE}{_COUNT}\s*{_SPAN}\s+ago\b", "time", _span)
    found.take(
        rf"\b{_SINCE}(?:(?:last|past)\s+)?(?:half an hour|half hour|half-hour)(?:\s+ago)?\b",
        "time",
        lambda _: "-30min",
    )
    found.take(
        (
            r"\b(?:in|within|over|during|from|for)?\s*(?:the\s+)?(?:last|past|"
            r"previous)\s+(?P<n>)(?P<span>second|minute|hour|day)\b"
        ),
        "time",
        _span,
    )
    found.take(
        (
            r"\b(?:(?:in|for|over|within|during)\s+)(?P<n>\d{1,4})\s*(?P<span>minutes?|mins?|hours?|"
            r"hrs?|h|days?|d)\b"
        ),
        "time",
        _span,
    )
    found.take(r"\b(?:last|past)?\s*(?P<n>24|48|72)\s*(?P<span>hours?|hrs?|h)\b", "time", _span)
    boots = r"(?:re)?boot(?:ed|ing)?|start ?up|restart(?:ed)?"
    found.take(
        (
            rf"\bsince\s+(?:the\s+|this\s+|it\s+|we\s+|i\s+|(?:last|latest|previous|most recent|"
            rf"machine|server|box|system|was)\s+)*(?:{boots})\b"
        ),
        "time",
        lambda _: "boot",
    )
    found.take(
        (
            r"\bsince (?:it|the (?:box|machine|server|system)) (?:came|went|"
            r"got) (?:back )?up\b|\b(?:this|current) boot\b"
        ),
        "time",
        lambda _: "boot",
    )
    found.take(r"\bafter (?:the )?(?:last )?(?P<keep>reboot|boot)\b", "time", lambda _: "boot")
    _take_days(found, now)


def _take_days(found: Extraction, now: datetime) -> None:
    """Days, weeks, months and dates, each with a clock time where one follows."""
    at = rf"(?:[ ,]+(?:at|around|from|since|after)?\s*{_CLOCK})?"
    before = rf"\b(?:since|from|after|around|at|about|as of)\s+(?:about\s+|around\s+)?{_CLOCK}"
    found.take(
        rf"{before}\s+(?:today|this (?:morning|afternoon|evening)|tonight)\b",
        "time",
        lambda m: _at("today", m),
    )
    found.take(rf"{before}\s+(?:yesterday|last night)\b", "time", lambda m: _at("yesterday", m))
    found.take(
        (
            rf"\b{_SINCE}(?:yesterday(?:'s)?(?:\s+(?:morning|afternoon|evening|night|noon))?|"
            rf"last night|overnight){at}(?!\w)"
        ),
        "time",
        lambda m: _at("yesterday", m),
    )
    found.take(
        rf"\b{_SINCE}(?:today(?:'s)?|this (?:morning|afternoon|evening)|tonight|midnight){at}(?!\w)",
        "time",
        lambda m: _at("today", m),
    )
    found.take(
        rf"\b{_SINCE}(?:this|last|past|previous|current)\s+week\b|\bthe week\b", "time", lambda _: "-7d"
    )
    found.take(rf"\b{_SINCE}(?:this|last|past|previous|current)\s+month\b", "time", lambda _: "-30d")
    found.take(
        rf"\b{_SINCE}(?:last\s+|this\s+|past\s+)?weekend\b", "time", lambda _: _weekday("saturday", now)
    )
    found.take(
        rf"\b(?:since|from|after|on|last|this)\s+(?:last\s+|this\s+)?({'|'.join(_DAYS)}){at}(?!\w)",
        "time",
        lambda m: _at(_weekday(m[1].lower(), now), m),
    )
    found.take(
        (
            rf"\b(?:since|from|after|on)\s+(?:the\s+)?{_MONTH}\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|"
            rf"th)?{at}(?!\w)"
        ),
        "time",
        lambda m: _date(m, now),
    )
    found.take(
        (
            rf"\b(?:since|from|after|on)\s+(?:the\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|"
            rf"th)?\.?(?:\s+of)?\s+{_MONTH}{at}(?!\w)"
        ),
        "time",
        lambda m: _date(m, now),
    )


def take_clock_times(found: Extraction) -> None:
    """Clock times without a day, `since 14:00`; after the spans, before bare numbers become ports."""
    found.take(
        rf"\b(?:since|after|from|around|at|about|as of)\s+(?:about\s+|around\s+)?{_CLOCK}(?!\w)",
        "time",
        lambda m: _at("today", m),
    )
    found.take(
        r"\b(?:since|after)\s+(\d{1,2})(?!\w|:)",
        "time",
        lambda m: f"today {int(m[1]):02}:00" if int(m[1]) < 24 else None,
    )


def _span(match: re.Match[str]) -> str | None:
    count = match["n"].lower()
    number = int(count) if count.isdigit() else _NUMBER_WORDS[count]
    words = match["span"].lower()
    span = _SPANS[words if words in _SPANS else words.rstrip("s")]
    if span in ("w", "mo"):
        number, span = number * (7 if span == "w" else 30), "d"
    return f"-{number}{span}" if number else None


def _at(day: str, match: re.Match[str]) -> str | None:
    clock = match.groupdict().get("clock")
    if not clock:
        return day
    text = clock.lower().replace(" ", "")
    if text == "midnight":
        return day
    if text in ("noon", "midday", "lunch", "lunchtime"):
        return f"{day} 12:00"
    hours, _, minutes = text.removesuffix("am").removesuffix("pm").partition(":")
    hour = int(hours)
    if text.endswith(("am", "pm")):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if text.endswith("pm") else 0)
    return f"{day} {hour:02}:{minutes or '00'}"


def _weekday(name: str, now: datetime) -> str:
    back = (now.weekday() - _DAYS.index(name)) % 7 or 7
    return (now - timedelta(days=back)).strftime("%Y-%m-%d")


def _date(match: re.Match[str], now: datetime) -> str | None:
    month = next(at for at, name in enumerate(_MONTHS, 1) if name.startswith(match["month"].lower()[:3]))
    try:
        day = now.replace(month=month, day=int(match["day"]))
        if day > now:
            day = day.replace(year=now.year - 1)
    except ValueError:
        return None
    return _at(day.strftime("%Y-%m-%d"), match)
