"""Where triggers are fired from: calendars, the journal, files and devices. One row of SOURCES for each.

A source is an endless generator. It gives what happened in batches, each with how far it came in its own
words; with these it goes on after a break, and says what was missed meanwhile, as far as that can be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import importlib
import json
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lightagentd.config.triggers import TriggerFile
from lightagentd.errors import ConfigError, LightagentError, NotFound, Unavailable
from lightagentd.host.calendar import next_times
from lightagentd.text.reason import reason
from lightagentd.toolkit.watching.selection import OwnFolders, Selection
from lightagentd.toolkit.watching.watch import Order, Watch
from lightagentd.unattended.triage import is_own

UNIT_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
"""SD_MESSAGE_UNIT_FAILURE_RESULT of systemd's catalog: a unit ended with a failure."""
MOST_MISSED = 1000
BATCH = 200
_CHUNK_S = 60.0
"""How often a long wait looks at the clock, which may be set."""
_SINCE = "@"
_MOST_BYTES = 64 << 10
"""Of one field of an entry."""
_RECENT = 20
"""So many of the newest changes are known to have been told of."""
_GATHER_S = 0.2
"""How long what comes one by one is put together."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What happened: objects as `Triggers.Fire` takes them, and how far the source came with them."""

    happened: list[dict[str, Any]]
    position: str


Source = Callable[[TriggerFile, str], AsyncGenerator[Batch, None]]


async def timer(file: TriggerFile, position: str) -> AsyncGenerator[Batch, None]:
    """The times of a calendar; the position is the last one. Raises ConfigError, ToolError."""
    calendar = str(file.calendar)
    begun_us = time.time_ns() // 1000
    late = await _passed(calendar, int(position), begun_us) if position else []
    last_us = late[-1] if late else int(position or begun_us)
    happened = [_moment(calendar, at_us) | {"missed": True} for at_us in late]
    yield Batch(happened=happened, position=str(last_us))
    last_us = max(last_us, begun_us)
    while True:
        following = await next_times(calendar, last_us)
        if not following:
            raise ConfigError(f"The calendar {calendar!r} has no time any more.", field="calendar")
        while (left_s := following[0] / 1e6 - time.time()) > 0:  # noqa: ASYNC110 - a clock tells nobody
            await asyncio.sleep(min(left_s, _CHUNK_S))
        due = following
        if left_s < -_CHUNK_S:  # the machine slept, or its clock was set
            due += await _passed(calendar, following[0], time.time_ns() // 1000)
        happened = [_moment(calendar, at_us) | {"missed": at_us != due[-1]} for at_us in due]
        last_us = due[-1]
        yield Batch(happened=happened, position=str(last_us))


async def _passed(calendar: str, since_us: int, until_us: int) -> list[int]:
    """The times between two moments, the newest last."""
    found = await next_times(calendar, since_us, MOST_MISSED)
    return [at_us for at_us in found if at_us <= until_us]


def _moment(calendar: str, at_us: int) -> dict[str, Any]:
    return {"data": {"time": _when(at_us), "calendar": calendar}, "at_us": at_us}


async def journal(file: TriggerFile, position: str) -> AsyncGenerator[Batch, None]:
    """The entries that fit; the position is a cursor, or `@` and a time before there was one. Raises
    Unavailable.
    """
    pattern = re.compile(file.pattern)
    exact = {name: value for name, value in file.match.items() if not set(value) & set("*?[")}

    def wanted(entry: Mapping[str, str]) -> dict[str, Any] | None:
        if not file.fits(entry) or not pattern.search(entry.get("MESSAGE", "")):
            return None
        unit = entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or ""
        return {"message": entry.get("MESSAGE", ""), "unit": unit, **entry}

    async for batch in _entries(exact, wanted, position):
        yield batch


async def unit_failed(file: TriggerFile, position: str) -> AsyncGenerator[Batch, None]:
    """Units that failed, as the service manager says in the journal; whose own entries nobody can forge.
    Raises Unavailable.
    """
    if os.geteuid() == 0:
        whose, of_unit = {"_PID": "1"}, "UNIT"
    else:
        whose, of_unit = {"_COMM": "systemd", "_UID": str(os.geteuid())}, "USER_UNIT"

    def wanted(entry: Mapping[str, str]) -> dict[str, Any] | None:
        unit = entry.get(of_unit, "")
        if not fnmatch.fnmatchcase(unit, file.unit) or is_own(unit):
            return None
        names = {"result": "UNIT_RESULT", "message": "MESSAGE", "invocation": "INVOCATION_ID"}
        about = {name: entry[key] for name, key in names.items() if key in entry}
        return {"unit": unit, **about, "time": entry["__TIME"]}

    async for batch in _entries({"MESSAGE_ID": UNIT_FAILED, **whose}, wanted, position):
        yield batch


async def _entries(
    exact: Mapping[str, str], wanted: Callable[[Mapping[str, str]], dict[str, Any] | None], position: str
) -> AsyncGenerator[Batch, None]:
    with _journal(exact) as reader:
        begun_us = time.time_ns() // 1000
        cursor, first = position, None
        if position.startswith(_SINCE):
            reader.seek_realtime(int(position.removeprefix(_SINCE)))
        elif position:
            reader.seek_cursor(position)
            first = reader.get_next()
            if first and first["__CURSOR"] == position:
                first = None  # it is told of; another one there is the next after entries that are gone
        else:
            reader.seek_tail()
            if last := reader.get_previous():
                cursor = str(last["__CURSOR"])
            else:  # after the tail of nothing, libsystemd finds nothing new
                reader.seek_realtime(begun_us)
                cursor = f"{_SINCE}{begun_us}"
            yield Batch(happened=[], position=cursor)
        while True:
            happened: list[dict[str, Any]] = []
            read = 0
            while read < BATCH and (entry := first or reader.get_next()):
                read, first = read + 1, None
                plain, at_us, cursor = _plain(entry)
                if (data := wanted(plain)) is not None:
                    missed = bool(position) and at_us < begun_us
                    happened.append({"data": data, "at_us": at_us, "missed": missed})
            if happened:
                yield Batch(happened=happened, position=cursor)
            if read < BATCH:
                await _readable(reader.fileno())
                await asyncio.sleep(_GATHER_S)
                reader.process()


@contextlib.contextmanager
def _journal(exact: Mapping[str, str]) -> Iterator[Any]:
    """A reader of the entries with these fields. Raises Unavailable."""
    folder = os.environ.get("LIGHTAGENT_JOURNAL", "")
    try:
        library = importlib.import_module("systemd.journal")
        reader = library.Reader(path=folder or None)
        reader.data_threshold = _MOST_BYTES
        reader.converters = {"__REALTIME_TIMESTAMP": int, "__MONOTONIC_TIMESTAMP": str, "__CURSOR": str}
    except (ImportError, OSError) as err:
        raise Unavailable(f"The journal cannot be read: {reason(err)}.") from err
    try:
        for name, value in exact.items():
            try:
                reader.add_match(f"{name}={value}")
            except (OSError, ValueError) as err:
                raise ConfigError(f"match: {name[:60]!r} is no field of the journal.", field="match") from err
        yield reader
    except OSError as err:
        raise Unavailable(f"The journal cannot be read: {reason(err)}.") from err
    finally:
        reader.close()


def _plain(entry: Mapping[str, Any]) -> tuple[dict[str, str], int, str]:
    """The fields of an entry as text, its time and its cursor."""
    at_us = int(entry["__REALTIME_TIMESTAMP"])
    found = {name: _text(value) for name, value in entry.items() if not name.startswith("__")}
    found["__TIME"] = _when(at_us)
    return found, at_us, str(entry["__CURSOR"])


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _when(at_us: int) -> str:
    """Local time with its offset from UTC."""
    return datetime.fromtimestamp(at_us / 1e6).astimezone().isoformat(timespec="seconds")


async def inotify(file: TriggerFile, position: str) -> AsyncGenerator[Batch, None]:
    """What changes in a folder or of a file; the position is a time up to which everything was told, and what
    was told of after it. Raises NotFound, ToolError.
    """
    seen_us, _, told = position.partition(" ")
    earlier: dict[str, int] = json.loads(told or "{}")
    path = Path(str(file.path))
    if not path.exists():
        raise NotFound(f"There is no {path} to watch.", suggestion="Watch the folder that it is made in.")
    root, only = (path, "") if path.is_dir() else (path.parent, path.name)
    order = Order(
        id="trigger",
        agent="",
        session="",
        owner=0,
        call_id="",
        path=os.path.join(os.path.realpath(root), only) if only else os.path.realpath(root),  # noqa: PTH118
        root=os.path.realpath(root),
        selection=Selection(
            kinds=frozenset(file.changes),
            include=file.include,
            recursive=file.recursive and not only,
            only=only,
        ),
        buffer=5000,
        args={},
    )
    watch = Watch.of(order, OwnFolders.from_environment(), lambda *_: None)
    await watch.start(since_us=int(seen_us) if seen_us else None)
    try:
        if not position:
            yield Batch(happened=[], position=str(watch.engine.seen_us))
        cursor, recent = "", dict[str, int]()
        while True:
            page = await watch.poll(cursor, BATCH, _CHUNK_S)
            cursor = page.cursor
            happened = [_change(record.to_dict()) for record in page.records if not record.is_marker]
            happened = [one for one in happened if not (one["missed"] and _is_told(one, earlier))]
            if happened:
                seen = watch.engine.seen_us
                recent |= {one["data"]["path"]: one["at_us"] for one in happened}
                recent = {path: at_us for path, at_us in recent.items() if at_us >= seen}
                newest = dict(sorted(recent.items(), key=lambda item: -item[1])[:_RECENT])
                yield Batch(happened=happened, position=f"{seen} {json.dumps(newest)}")
            if not watch.running:
                raise Unavailable(f"{path} is watched no more: {watch.problem or 'it ended'}.")
    finally:
        await watch.stop()


def _is_told(one: dict[str, Any], earlier: Mapping[str, int]) -> bool:
    """Whether an earlier follower told of a change already."""
    try:
        changed_us = Path(one["data"]["path"]).lstat().st_mtime_ns // 1000
    except OSError:
        return False
    return changed_us <= earlier.get(one["data"]["path"], 0)


def _change(record: dict[str, Any]) -> dict[str, Any]:
    at_us, kinds = int(record.pop("time_us")), record.pop("events")
    missed = record.pop("found_by", "") == "gap"
    data = {"path": record.pop("path"), "kind": kinds[-1], "kinds": kinds, "time": _when(at_us), **record}
    return {"data": data, "at_us": at_us, "missed": missed}


async def udev(file: TriggerFile, position: str) -> AsyncGenerator[Batch, None]:  # noqa: ARG001 - devices
    # of before cannot be known
    """Devices that come, go and change. Raises Unavailable."""
    try:
        pyudev = importlib.import_module("pyudev")
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), "udev")
        if file.subsystem:
            monitor.filter_by(file.subsystem)
        monitor.start()
    except (ImportError, OSError) as err:
        raise Unavailable(f"Devices cannot be followed: {reason(err)}.") from err
    try:
        while True:
            await _readable(monitor.fileno())
            await asyncio.sleep(_GATHER_S)
            happened: list[dict[str, Any]] = []
            read = 0
            while read < BATCH and (device := monitor.poll(0)) is not None:
                read += 1
                data = {**device.properties, "action": str(device.action), "subsystem": device.subsystem}
                if file.fits(data) and file.action in (None, device.action):
                    happened.append({"data": data, "at_us": time.time_ns() // 1000, "missed": False})
            if happened:
                yield Batch(happened=happened, position="")
    except OSError as err:
        raise Unavailable(f"Events of devices were lost: {reason(err)}.") from err


async def _readable(fd: int) -> None:
    """Wait until there is something to read, at most _CHUNK_S. Nobody looks at it in between: a busy journal
    is readable all the time.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(_CHUNK_S):
            await ready.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(fd)


SOURCES: Mapping[str, Source] = {
    "timer": timer,
    "unit-failed": unit_failed,
    "journal": journal,
    "inotify": inotify,
    "udev": udev,
}
"""By `on`."""


async def check(file: TriggerFile) -> None:
    """What only the source itself can say of a file. Raises ConfigError, ToolError."""
    if file.calendar is not None:
        await next_times(file.calendar, time.time_ns() // 1000)


def problem_of(err: LightagentError) -> str:
    """Why a source cannot be followed, as sentences."""
    return f"{err.message} {err.suggestion}".strip()
