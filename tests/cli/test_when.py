from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

import pytest

from lightagentd.cli.when import ago, duration, local, parse, size


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone whose offset changes, without the need for a zone database."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def now() -> datetime:
    return datetime(2026, 11, 21, 14, 30, tzinfo=UTC).astimezone()


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("now", "2026-11-21T14:30:00"),
        ("today", "2026-11-20T23:00:00"),
        ("yesterday", "2026-11-19T23:00:00"),
        ("-2h", "2026-11-21T12:30:00"),
        ("-90s", "2026-11-21T14:28:30"),
        ("-30m", "2026-11-21T14:00:00"),
        ("-30 min", "2026-11-21T14:00:00"),
        ("-1w", "2026-11-14T14:30:00"),
        ("9:05", "2026-11-21T08:05:00"),
        ("09:05:10", "2026-11-21T08:05:10"),
        ("2026-11-21", "2026-11-20T23:00:00"),
        ("2026-07-01", "2026-06-30T22:00:00"),
        ("2026-11-21 10:00", "2026-11-21T09:00:00"),
        ("2026-11-21T10:00:00Z", "2026-11-21T10:00:00"),
        ("2026-11-21T10:00:00+05:00", "2026-11-21T05:00:00"),
        ("2026-11-21 10:00:00 UTC", "2026-11-21T10:00:00"),
        ("@1795271400", "2026-11-21T14:30:00"),
        ("2 hours ago", "2026-11-21T12:30:00"),
        ("1h 30min ago", "2026-11-21T13:00:00"),
        ("an hour  ago", "2026-11-21T13:30:00"),
        ("1.5 Days Ago", "2026-11-20T02:30:00"),
        ("1 year ago", "2025-11-21T08:30:00"),
        ("last week", "2026-11-14T14:30:00"),
        ("in 5 min", "2026-11-21T14:35:00"),
        ("+2h", "2026-11-21T16:30:00"),
        ("tomorrow", "2026-11-21T23:00:00"),
        ("today 14:00", "2026-11-21T13:00:00"),
        ("yesterday at 9:05:10", "2026-11-20T08:05:10"),
        ("saturday", "2026-11-20T23:00:00"),
        ("last saturday", "2026-11-13T23:00:00"),
        ("Mon", "2026-11-15T23:00:00"),
        ("last friday 18:00", "2026-11-20T17:00:00"),
    ],
)
def test_parse_takes_what_people_write(text: str, utc: str) -> None:
    assert parse(text, now()) == datetime.fromisoformat(f"{utc}+00:00").timestamp() * 1_000_000


_NO_TIMES = ["2 weasels ago", "last today", "friday 25:00", "friday noon", "@x", "2 hours", "ago", "last ops"]


@pytest.mark.parametrize(
    "text", [*_NO_TIMES, "", "soon", "2h", "-2", "-2q", "2026-13-01", "25:00", "-99999999999d"]
)
def test_parse_refuses_what_is_no_time(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse(text, now())


def test_local_has_the_offset_of_the_zone() -> None:
    assert local(1_763_768_400_000_000) == "2025-11-22T00:40:00+01:00"
    assert local(1_763_768_400_123_000, "milliseconds") == "2025-11-22T00:40:00.123+01:00"


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0ms"), (0.4, "0ms"), (999, "999ms"), (1000, "1.0s"), (61_000, "1m01s"), (7_500_000, "2h05m")],
)
def test_duration_is_one_word(duration_ms: float, text: str) -> None:
    assert duration(duration_ms) == text
    assert duration(100 * 3_600_000) == "4d04h"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s ago"),
        (59, "59 s ago"),
        (130, "2 min ago"),
        (-130, "in 2 min"),
        (2 * 3600, "12:30"),
        (-7 * 3600, "21:30"),
        (24 * 3600, "yesterday 14:30"),
        (-24 * 3600, "tomorrow 14:30"),
        (72 * 3600, "11-18 14:30"),
    ],
)
def test_a_time_is_shown_in_words_that_are_taken_again(
    monkeypatch: pytest.MonkeyPatch, seconds: int, text: str
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime(2026, 11, 21, 14, 30, tzinfo=tz)

    monkeypatch.setattr("lightagentd.cli.when.datetime", Clock)
    monkeypatch.setattr("lightagentd.cli.when.is_terminal", lambda: True)
    now_s = Clock.now().timestamp()
    assert ago(int((now_s - seconds) * 1_000_000)) == text
    if seconds != 72 * 3600:
        assert abs(parse(text, Clock.now().astimezone()) / 1_000_000 - (now_s - seconds)) < 60


def test_size_is_one_word() -> None:
    assert [size(0), size(1023), size(1536), size(3 << 20), size(5 << 40)] == [
        "0B",
        "1023B",
        "1.5KiB",
        "3.0MiB",
        "5.0TiB",
    ]
