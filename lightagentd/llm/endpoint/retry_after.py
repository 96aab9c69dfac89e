"""Reads the header Retry-After, RFC 9110, section 10.2.3.

OpenAI and Azure also say it in milliseconds (`retry-after-ms`), which is the more exact of the two; Google
says it in the body (`google.rpc.RetryInfo`).
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

MOST_S = 7 * 86400.0
"""No endpoint means more than that; what to do with long times is up to who asks."""
_NUMBER = re.compile(r"\+?\d{1,12}(?:\.\d{0,9})?", re.ASCII)
_DELAY = re.compile(rb'"retryDelay"\s*:\s*"(\d{1,12}(?:\.\d{1,9})?)s"')


def retry_after(headers: Mapping[str, str], body: bytes = b"") -> float | None:
    """The seconds to wait; None when the endpoint gives no valid value."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, MOST_S)
    said = headers.get("retry-after", "")
    seconds = _seconds(said)
    if seconds is None:
        seconds = _until(said, headers.get("date", ""))
    if seconds is None and (delay := _DELAY.search(body)):
        seconds = float(delay[1])
    return None if seconds is None else min(seconds, MOST_S)


def _seconds(said: str) -> float | None:
    """A number, or the largest of several: a gateway may add a header to that of the endpoint."""
    found = [word.strip() for word in said.split(",")]
    if not all(_NUMBER.fullmatch(word) for word in found):
        return None
    return max(map(float, found))


def _until(said: str, date: str) -> float | None:
    """The seconds until a date, by the endpoint's clock if it sends the time: ours may be wrong."""
    then = _time(said)
    if then is None:
        return None
    now = _time(date) or datetime.now(UTC)
    seconds = (then - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _time(said: str) -> datetime | None:
    try:
        found = email.utils.parsedate_to_datetime(said)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
