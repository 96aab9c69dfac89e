"""Watches a turn for a limited time. Afterwards lactl ends, and the turn goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from lightagentd.client.blocking import Client
from lightagentd.errors import TimedOut


class _Seconds(click.FloatRange):
    """A number of seconds; `nan`, which every range contains, is invalid."""

    name = noun = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return found


SECONDS = _Seconds(0, 86_400, min_open=True)
"""What an option in seconds takes; the daemon waits for a day at most."""


TICK_S = 0.2


def within(
    client: Client,
    replies: Iterator[dict[str, Any]],
    timeout_s: float | None,
    tick: Callable[[], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """The replies of a stream of turn events, for so long after the first one, when the prompt is stored.
    While none comes `tick` is called now and then. Raises TimedOut.
    """
    end_s = math.inf
    for reply in replies:
        yield reply
        if timeout_s is not None and end_s == math.inf:
            end_s = time.monotonic() + timeout_s
        if timeout_s is None and tick is None:
            continue
        while not client.has_reply(min(TICK_S, end_s - time.monotonic())):
            if timeout_s is not None and time.monotonic() >= end_s:
                raise goes_on(reply["event"]["session"], timeout_s)
            if tick is not None:
                tick()


def goes_on(session: str, timeout_s: float) -> TimedOut:
    """The error when the time is over."""
    return TimedOut(
        f"The turn did not end within {timeout_s:g} seconds; it goes on in {session}.",
        suggestion=f"Wait for it with 'lactl wait {session}', or end it with 'lactl cancel {session}'.",
    )
