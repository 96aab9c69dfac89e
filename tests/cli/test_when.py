from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from lightagentd.cli.when import duration, local, parse, size


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
    ],
)
def test_parse_takes_what_people_write(text: str, utc: str) -> None:
    assert parse(text, now()) == datetime.fromisoformat(f"{utc}+00:00").timestamp() * 1_000_000


@pytest.mark.parametrize("text", ["", "soon", "2h", "-2", "-2y", "2026-13-01", "25:00", "-99999999999d"])
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


def test_size_is_one_word() -> None:
    assert [size(0), size(1023), size(1536), size(3 << 20), size(5 << 40)] == [
        "0B",
        "1023B",
        "1.5KiB",
        "3.0MiB",
        "5.0TiB",
    ]
