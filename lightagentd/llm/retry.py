"""Decides whether a failed model call is retried, and how long to wait before.

Nothing here waits or calls: the code that makes a call has a `Backoff` for it and asks it after each failure.
Waits have "full jitter": a random time up to a limit that doubles, so that many agents do not return to an
endpoint at the same moment. A client's attribute `retry` limits the retries of its calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lightagentd.errors import ModelError, ModelRejected
from lightagentd.llm.protocol import ModelClient

_dice = random.Random()  # noqa: S311 - spreads calls, guards nothing


@dataclass(frozen=True, kw_only=True)
class RetrySettings:
    """The limits of retries of a failed call."""

    max_retries: int = 4
    max_retry_s: float = 60.0
    """How long all waiting of one call may take."""
    base_s: float = 0.5
    """The longest first wait; each later one may be twice as long as the one before."""
    cap_s: float = 20.0
    """The longest wait of all, unless the endpoint asks for a longer one."""


DEFAULT = RetrySettings()
NEVER = RetrySettings(max_retries=0)


def settings_of(client: ModelClient) -> RetrySettings:
    """The attribute `retry` of a client, or the default."""
    found = getattr(client, "retry", None)
    return found if isinstance(found, RetrySettings) else DEFAULT


_MOST_AT_ONCE = 8
"""So often a call is made again in other words, whatever the settings: a client has few of them."""


class Backoff:
    """The waits of one call."""

    def __init__(self, settings: RetrySettings, dice: random.Random = _dice) -> None:
        self._settings = settings
        self._dice = dice
        self.retries = 0
        """The number of waits so far."""
        self._at_once = 0
        self._left_s = settings.max_retry_s
        self.gave_up = ""
        """Why there was no further wait although the error may pass, as a sentence; else empty."""

    def wait_s(self, err: ModelError, *, left_s: float | None = None) -> float | None:
        """How long to wait after this error before a retry; None for no retry. `left_s` is the
        remaining time of the caller.
        """
        if err.transient and isinstance(err, ModelRejected) and self._at_once < _MOST_AT_ONCE:
            self._at_once += 1  # the next request is another one, without what this one was refused for
            return 0.0
        if not err.transient or self.retries >= self._settings.max_retries:
            return None
        wanted_s = err.retry_after_s or 0.0
        if wanted_s > self._left_s:
            self.gave_up = (
                f"The endpoint wants to be left alone for {wanted_s:,.0f} s, which is longer than calls wait."
            )
            return None
        highest_s = min(self._settings.cap_s, self._settings.base_s * 2.0**self.retries)
        # Divide the remaining time between the remaining retries, so that each of them is made.
        highest_s = min(highest_s, self._left_s / (self._settings.max_retries - self.retries))
        wait_s = max(wanted_s, self._dice.uniform(0.0, highest_s))
        if left_s is not None and wait_s >= left_s:
            self.gave_up = "The turn's time would be over before the next try."
            return None
        self.retries += 1
        self._left_s -= wait_s
        return wait_s
