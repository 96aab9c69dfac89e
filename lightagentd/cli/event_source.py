"""Fetches events for the commands that list them: pages of stored ones, and the stream of new ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from lightagentd.cli.options import Settings
from lightagentd.cli.output import print_json_line, warn
from lightagentd.errors import DaemonUnreachable, ShuttingDown

PAGE = 1000
"""The most that the daemon gives at once (`operations.MAX_LIMIT`)."""
_RETRY_S = 0.5

Event = dict[str, Any]


def newest(settings: Settings, which: dict[str, Any], limit: int) -> list[Event]:
    """The newest matching events, oldest of them first."""
    found: list[Event] = []
    position: int | None = None
    with settings.client() as client:
        while len(found) < limit:
            page = client.call("History.Page", **which, to_seq=position, limit=min(PAGE, limit - len(found)))[
                "page"
            ]
            found = page["events"] + found
            position = page["next_seq"]
            if not position:
                break
    return found


def oldest_first(settings: Settings, which: dict[str, Any], position: int = 1) -> Iterator[Event]:
    """The stored matching events from a number on."""
    with settings.client() as client:
        while position:
            page = client.call("History.Page", **which, from_seq=position, oldest_first=True, limit=PAGE)
            yield from page["page"]["events"]
            position = page["page"]["next_seq"]


def head(settings: Settings) -> int:
    """The number of the newest event that the caller may see; 0 without one."""
    found = newest(settings, {}, 1)
    return int(found[-1]["seq"]) if found else 0


def subscribe(settings: Settings, which: dict[str, Any], position: int, *, follow: bool) -> Iterator[Event]:
    """The events from a number on, and with `follow` the new ones until the daemon stops."""
    with settings.client() as client:
        for reply in client.stream("Events.Subscribe", from_seq=position, follow=follow, **which):
            if (missed := reply.get("missed")) is not None:
                _tell_missed(missed, json=settings.json)
            if reply.get("event") is not None:  # the last reply has none
                yield reply["event"]


def follow(settings: Settings, which: dict[str, Any], position: int) -> Iterator[Event]:
    """Follow events without end. When the daemon stops, or the stream breaks, it connects again."""
    waiting = False
    while True:
        try:
            for event in subscribe(settings, which, position, follow=True):
                position = event["seq"] + 1
                waiting = False
                yield event
        except (DaemonUnreachable, ShuttingDown):
            pass
        if not waiting:
            warn("The daemon has stopped; waiting for it to come back.")
            waiting = True
        time.sleep(_RETRY_S)


def _tell_missed(missed: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json_line({"missed": missed})
    else:
        count, first, last = missed["count"], missed["first_seq"], missed["from_seq"] - 1
        events = "event is" if count == 1 else "events are"
        warn(f"{count} {events} left out of those from {first} to {last}: removed, or too far behind.")
