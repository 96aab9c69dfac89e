"""Reads the journal for the tool `journal`; runs as a child process of its own.

A regular expression can take exponential time on one message, libsystemd collects all unique values of a
field in one call, and a journal file that is cut while it is mapped ends its reader with SIGBUS. So reading
the journal is a process with a limit of memory that `lightagentd.host.process.run` kills when its time is
up; what it printed until then is kept.

It is started as `python -I journal_reader.py`, so it imports the standard library and systemd-python alone.
Standard input is one request as JSON, standard output one JSON object a line: what was found, then a summary
with `done`, or one object with `error`. API: sd-journal(3); fields: systemd.journal-fields(7).
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MESSAGE_CHARS = 2000
"""A longer message is shortened to this."""
VALUE_CHARS = 200
"""The same for a value of a field."""
SEARCHED_CHARS = 64 * 1024
"""How much of a message is searched for text."""
ANSWER_LIMIT_BYTES = 400 * 1024
"""What all results together may have; the reader stops there and says so."""
MEMORY_LIMIT_BYTES = 384 * 1024 * 1024
"""Of memory that is the reader's own; mapped journal files do not count."""
COREDUMP_MESSAGE = "fc2e22bc6ee647b6b90729ab34a250b1"
_TOO_LARGE = "(this entry is too large to be read)"

Entry = dict[str, Any]


class Unusable(Exception):
    """The request cannot be answered; the text is for the person, `field` names the argument at fault."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Search:
    """One request and the reader that answers it.

    The request has `mode` (`query`, `fields` or `boots`), `folder` (empty: the system's journal), `seconds`,
    `limit`, and for a query the names that `query` reads.
    """

    def __init__(self, request: dict[str, Any], reader: Any) -> None:
        self.request = request
        self.deadline = time.monotonic() + request["seconds"]
        self.reader = reader
        self.seen: dict[str, Any] = {"done": True, "stopped": "", "scanned": 0, "cursor": ""}
        self._bytes = 0

    def query(self) -> None:
        """Print the matching entries in the requested order, and where to continue."""
        wanted = _text_filter(self.request)
        self._match()
        limit, shown = self.request["limit"], 0
        for entry in self._entries():
            cursor = entry["__CURSOR"]
            self.seen["scanned"] += 1
            if wanted(plain(entry.get("MESSAGE", ""))[:SEARCHED_CHARS]):
                if not self._print({**_row(entry), "cursor": cursor}):
                    return
                shown += 1
            self.seen["cursor"] = cursor
            if shown == limit:
                self.seen["stopped"] = "limit"
                return
            if self._late():
                return

    def fields(self) -> None:
        """Print the values of a field, or without a name the names of all fields, sorted."""
        name = self.request["name"]
        found = self.reader.query_unique(name) if name else self.reader.enumerate_fields()
        values = sorted({shortened(plain(value), VALUE_CHARS) for value in found})
        self.seen["total"] = len(values)
        for value in values[: self.request["limit"]]:
            if not self._print({"value": value}):
                return
        if len(values) > self.request["limit"]:
            self.seen["stopped"] = "limit"

    def boots(self) -> None:
        """Print the boots, the newest first, each with its id and the times of its first and last entry."""
        boots = self.all_boots()
        self.seen["total"] = len(boots)
        for number, (first_us, last_us, boot) in enumerate(boots[: self.request["limit"]]):
            self._print({"index": -number, "boot": boot, "first_us": first_us, "last_us": last_us})
        if len(boots) > self.request["limit"] and not self.seen["stopped"]:
            self.seen["stopped"] = "limit"

    def all_boots(self) -> list[tuple[int, int, str]]:
        """First time, last time in UTC microseconds and id of each boot, the newest first."""
        found = []
        for boot in self.reader.query_unique("_BOOT_ID"):
            self.reader.flush_matches()
            self.reader.add_match(f"_BOOT_ID={plain(boot)}")
            self.reader.seek_head()
            first = self._step(forward=True)
            self.reader.seek_tail()
            last = self._step(forward=False)
            if first and last:
                found.append((first["__REALTIME_TIMESTAMP"], last["__REALTIME_TIMESTAMP"], plain(boot)))
            if self._late():
                break
        self.reader.flush_matches()
        return sorted(found, reverse=True)

    def _match(self) -> None:
        """Set the matches: terms of one condition are joined by `or`, the conditions by `and`."""
        request = self.request
        conditions: list[list[tuple[str, ...]]] = []
        conditions += [[(f"{name}={value}",)] for name, value in request["fields"].items()]
        if request["units"]:
            conditions.append([group for unit in request["units"] for group in _unit_groups(unit)])
        if request["identifier"]:
            conditions.append([(f"SYSLOG_IDENTIFIER={request['identifier']}",)])
        if request["priority"] is not None:
            conditions.append([(f"PRIORITY={level}",) for level in range(request["priority"] + 1)])
        if request["boot"]:
            conditions.append([(f"_BOOT_ID={self._boot(request['boot'])}",)])
        for number, groups in enumerate(conditions):
            if number:
                self.reader.add_conjunction()
            for at, group in enumerate(groups):
                if at:
                    self.reader.add_disjunction()
                for match in group:
                    self.reader.add_match(match)

    def _boot(self, boot: str) -> str:
        if len(boot) == 32:
            return boot
        boots = self.all_boots()
        if self.seen["stopped"]:
            raise Unusable(
                "The journal has too many boots to count them in time; give the boot's id.", "boot"
            )
        if -int(boot) >= len(boots):
            raise Unusable(f"The journal has no boot {boot}: it knows {len(boots)}.", "boot")
        return boots[-int(boot)][2]

    def _entries(self) -> Iterator[Entry]:
        """The entries that match between `since_us` and `until_us`, behind the cursor where one is given."""
        since_us, until_us = self.request["since_us"], self.request["until_us"]
        after, forward = self.request["after_cursor"], self.request["order"] == "oldest"
        self._seek(after, forward, since_us if forward else until_us)
        while entry := self._step(forward=forward):
            if after and entry["__CURSOR"] == after:
                continue
            at_us = entry["__REALTIME_TIMESTAMP"]
            too_early = since_us is not None and at_us < since_us
            too_late = until_us is not None and at_us > until_us
            if too_late if forward else too_early:
                return
            if not too_early and not too_late:
                yield entry
            elif self._late():
                return

    def _seek(self, after: str, forward: bool, at_us: int | None) -> None:
        if after:
            try:
                self.reader.seek_cursor(after)
            except (ValueError, OSError) as err:
                raise Unusable("after_cursor is not a cursor of the journal.", "after_cursor") from err
        elif at_us is not None:
            self.reader.seek_realtime(at_us)
        elif forward:
            self.reader.seek_head()
        else:
            self.reader.seek_tail()

    def _step(self, *, forward: bool) -> Entry:
        """The next entry in this direction; empty at the end. One that is too large has only its position."""
        try:
            entry: Entry = self.reader.get_next() if forward else self.reader.get_previous()
        except MemoryError:
            return {
                "__REALTIME_TIMESTAMP": self.reader._get_realtime(),
                "__CURSOR": self.reader._get_cursor(),
                "MESSAGE": _TOO_LARGE,
            }
        return entry

    def _print(self, row: dict[str, Any]) -> bool:
        line = json.dumps(row) + "\n"
        self._bytes += len(line)
        if self._bytes > ANSWER_LIMIT_BYTES:
            self.seen["stopped"] = "size"
            return False
        sys.stdout.write(line)
        sys.stdout.flush()  # what was found stays when the process is killed
        return True

    def _late(self) -> bool:
        if time.monotonic() > self.deadline:
            self.seen["stopped"] = "time"
        return bool(self.seen["stopped"] == "time")


def plain(value: Any) -> str:
    """A value as text; a field that an entry has several times has its values in a list."""
    if isinstance(value, list):
        return "\n".join(plain(item) for item in value)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def shortened(text: str, limit: int) -> str:
    """The head of a text that is longer than `limit`, and how much is missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} [... {len(text) - limit} more characters]"


def open_reader(folder: str) -> Any:
    """A reader that converts nothing: the library's own converters raise on times out of range, which any
    local user can log.
    """
    journal: Any = importlib.import_module("systemd.journal")
    reader = journal.Reader(path=folder) if folder else journal.Reader()
    reader.data_threshold = SEARCHED_CHARS
    reader.converters = {
        "__REALTIME_TIMESTAMP": int,
        "__MONOTONIC_TIMESTAMP": lambda moment: moment[0],
        "__CURSOR": str,
    }
    return reader


def _unit_groups(unit: str) -> list[tuple[str, ...]]:
    """As `journalctl --unit`; with the trusted fields, so that nobody can write lines for another unit."""
    return [
        (f"_SYSTEMD_UNIT={unit}",),
        (f"UNIT={unit}", "_PID=1"),
        (f"OBJECT_SYSTEMD_UNIT={unit}", "_UID=0"),
        (f"COREDUMP_UNIT={unit}", "_UID=0", f"MESSAGE_ID={COREDUMP_MESSAGE}"),
    ]


def _row(entry: Entry) -> dict[str, Any]:
    def first(*names: str) -> str:
        return next((shortened(plain(entry[name]), VALUE_CHARS) for name in names if name in entry), "")

    priority = first("PRIORITY")
    return {
        "time_us": entry["__REALTIME_TIMESTAMP"],
        "identifier": first("SYSLOG_IDENTIFIER", "_COMM"),
        "pid": first("_PID", "SYSLOG_PID"),
        "unit": first("_SYSTEMD_UNIT"),
        "priority": int(priority) if priority in tuple("01234567") else None,
        "message": shortened(plain(entry.get("MESSAGE", "")), MESSAGE_CHARS),
    }


def _text_filter(request: dict[str, Any]) -> Callable[[str], object]:
    text, ignore_case = request["text"], request["ignore_case"]
    if not text:
        return lambda _: True
    if not request["regex"]:
        lower = text.lower()
        return (
            (lambda message: lower in message.lower()) if ignore_case else (lambda message: text in message)
        )
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0).search
    except (re.error, RecursionError, OverflowError) as err:
        raise Unusable(f"The text is not a regular expression: {err}.", "text") from err


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    try:
        with open_reader(request["folder"]) as reader:
            search = Search(request, reader)
            {"query": search.query, "fields": search.fields, "boots": search.boots}[request["mode"]]()
        answer = search.seen
    except Unusable as err:
        answer = {"error": str(err), "field": err.field}
    except MemoryError:
        answer = {"error": "The values need more memory than a reader of the journal may have.", "field": ""}
    except ImportError as err:
        answer = {"error": f"The journal's library is missing: {err}.", "field": ""}
    except OSError as err:
        answer = {"error": f"The journal cannot be read: {err.strerror or err}.", "field": ""}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
