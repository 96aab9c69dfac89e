"""Checks the history: intact, signed, within its limits, and whether a damaged one was set aside.

`of_files` needs no daemon; `of_running` checks the open history of the running daemon.
"""

from __future__ import annotations

import os
import time

from lightagentd.api import Finding
from lightagentd.config.configuration import History as Limits
from lightagentd.doctor.finding import not_tried, note, ok, where_logs_are, wrong
from lightagentd.errors import LightagentError
from lightagentd.events.audit.checkpoints import TOPIC as CHECKPOINT
from lightagentd.events.audit.verification import verify_tail
from lightagentd.events.corruption.examination import DATA, TAIL_EVENTS, export_of, left_aside
from lightagentd.events.history import History
from lightagentd.host.paths import Paths

GROUP = "history"
_FUTURE_US = 300 * 1_000_000
_LATE = 3
"""A checkpoint is late when it is so many times as old as it may get."""
_NEARLY = 0.9
_ALTERED = "Find out who could write the file, and look at all of it: lactl audit verify"


def of_files(paths: Paths) -> list[Finding]:
    """Check for stores that were set aside, and the size of the current one."""
    file = paths.history / DATA
    try:
        os.listdir(paths.state)  # noqa: PTH208 - Path.iterdir is lazy, and fails later
        size_bytes = file.stat().st_blocks * 512
    except FileNotFoundError:
        found = [ok(GROUP, "file", "there is no history yet")]
    except OSError as err:
        return [not_tried(GROUP, name, f"{paths.state}: {err.strerror}") for name in ("set aside", "file")]
    else:
        found = [ok(GROUP, "file", f"{file} takes {size_bytes >> 20} MiB of the disk")]
    aside = left_aside(paths.history)
    if not aside:
        return [*found, ok(GROUP, "set aside", "no damaged history")]
    for path in aside:
        export = export_of(path)
        there = f"; what could be read of it is in {export}" if export.exists() else ""
        remedy = (
            "Restore a backup (lactl history restore) if you need what is missing; then move it away, and the"
            f" file beside it: mv {path}* /somewhere/else/"
        )
        found.append(wrong(GROUP, f"set aside {path.name}", f"a damaged history lies there{there}", remedy))
    return found


def of_running(history: History, limits: Limits) -> list[Finding]:
    """Check the content of the current store. Reads parts of it, so run it in a thread."""
    try:
        return [_tail(history), _size(history, limits), _signed(history, limits), _examined(history)]
    except LightagentError as err:
        return [wrong(GROUP, "history", err.message, err.suggestion or "lactl audit verify")]


def _tail(history: History) -> Finding:
    """Whether the newest events can be read and are chained."""
    found = verify_tail(history.environment, TAIL_EVENTS)
    if not found.ok:
        return wrong(GROUP, "history", f"altered at event {found.first_bad_seq}: {found.reason}", _ALTERED)
    last = history.queries.last()
    if last is not None and last.time_us > time.time_ns() // 1000 + _FUTURE_US:
        detail = f"event {last.seq} is in the future: the clock was set back"
        return wrong(GROUP, "history", detail, "Set the clock right; times of events before are wrong.")
    return ok(GROUP, "history", f"the newest {found.events} events are intact; lactl audit verify walks all")


def _size(history: History, limits: Limits) -> Finding:
    head_seq, first_seq = history.head_seq, history.environment.anchor()[0] + 1
    used_bytes = history.environment.used_bytes()
    detail = f"events {first_seq} to {head_seq} in {used_bytes >> 20} MiB"
    if limits.max_bytes and used_bytes > limits.max_bytes * _NEARLY:
        remedy = "The oldest events go when it is full. To keep more, raise max_bytes in [history]."
        return note(GROUP, "size", f"{detail} of at most {limits.max_bytes >> 20} MiB", remedy)
    return ok(GROUP, "size", detail)


def _signed(history: History, limits: Limits) -> Finding:
    """How old the newest checkpoint is, if events came after it."""
    newest = history.queries.find_in_topic(CHECKPOINT, lambda event: event.type == "signed")
    after = history.queries.range(newest.seq + 1 if newest is not None else 1, 1)
    now_us = time.time_ns() // 1000
    detail = "nothing is signed yet"
    if newest is not None:
        detail = f"event {newest.seq}, {max(0, now_us - newest.time_us) // 1_000_000} seconds ago"
    if after and (now_us - after[0].time_us) / 1e6 > _LATE * limits.checkpoint_s + 60:
        remedy = f"The daemon's log says why it signs no more: {where_logs_are()}"
        return wrong(
            GROUP, "checkpoint", f"{detail}; {history.head_seq - after[0].seq + 1} events are not", remedy
        )
    return ok(GROUP, "checkpoint", detail)


def _examined(history: History) -> Finding:
    """When every page of the file was last looked at, and the result."""
    newest = history.queries.find_in_topic("daemon.history", lambda event: event.type == "examined")
    if newest is None:
        return ok(GROUP, "examined", "not yet: once a week, and after a run that did not stop in order")
    days = max(0, time.time_ns() // 1000 - newest.time_us) // 86_400_000_000
    if problem := (newest.data or {}).get("problem"):
        remedy = "Restart the daemon, which moves it away: systemctl restart lightagentd"
        return wrong(GROUP, "examined", f"the file is damaged: {problem}", remedy)
    return ok(GROUP, "examined", f"every page was sound {days} days ago")
