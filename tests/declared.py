"""Whether all that a test's daemon stored is of a declared kind of event, with the data that it declares."""

from __future__ import annotations

import lmdb

from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.events.types.registry import check

MOST = 2000
"""So many of the newest events are looked at: some tests store very many that are all alike."""


def undeclared(daemon: Daemon) -> list[str]:
    """What is wrong with the stored events, one by one; nothing where the history cannot be read, as in a
    test that damaged it or did not come to open it.
    """
    try:
        events = daemon.history.queries.newest(Filter(), MOST)
    except (AttributeError, ValueError, LightagentError, lmdb.Error):
        return []
    return [problem for event in events if (problem := _problem(event))]


def _problem(event: Event) -> str:
    try:
        check(event)
    except ValueError as err:
        return f"event {event.seq}, {event.topic} {event.type} of {event.source}: {err}\n{event.data}"
    return ""
