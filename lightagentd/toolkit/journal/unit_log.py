"""Reads the log lines of one unit, as `journalctl -u` finds them; for the tool systemd.

The journal's library is imported when it is first used, since every worker loads every tool.
LIGHTAGENT_JOURNAL names another folder of journal files, for tests.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightagentd.text.reason import reason

PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
LINE_CHARS = 2000
COREDUMP_MESSAGE = "fc2e22bc6ee647b6b90729ab34a250b1"


async def unit_lines(
    unit: str, count: int, since_us: int | None = None, level: int | None = None
) -> tuple[list[str], str]:
    """The newest lines of a unit, oldest first, and a note when there are none or some may be hidden."""
    try:
        lines = await asyncio.to_thread(_read, unit, count, since_us, level)
    except (OSError, ImportError) as err:
        return [], f"The journal cannot be read: {reason(err)}."
    note = "" if os.environ.get("LIGHTAGENT_JOURNAL") else await asyncio.to_thread(_journal_note)
    return lines, note or ("" if lines else f"The journal has no such lines of {unit}.")


def _journal_note() -> str:
    """Why lines may be missing: no journal on this machine, or not readable for this user."""
    folders = (Path("/var/log/journal"), Path("/run/log/journal"))
    files = [file for folder in folders for file in folder.glob("*/system*.journal")]
    if not files:
        return "This machine has no journal that this user can see."
    if not any(os.access(file, os.R_OK) for file in files):
        return "This user cannot read the system's journal; members of group systemd-journal can."
    return ""


_LEVELS = frozenset(str(level).encode() for level in range(8))


def _read(unit: str, count: int, since_us: int | None, level: int | None) -> list[str]:
    journal: Any = importlib.import_module("systemd.journal")  # this file has the name of that package
    folder = os.environ.get("LIGHTAGENT_JOURNAL")
    with journal.Reader(path=folder) if folder else journal.Reader() as reader:
        # The library's other converters raise on values out of range, which any local user can log.
        reader.converters = {
            "__REALTIME_TIMESTAMP": lambda us: datetime.fromtimestamp(int(us) / 1e6, tz=UTC),
            "__MONOTONIC_TIMESTAMP": lambda _: None,
            "__CURSOR": lambda _: None,
            "PRIORITY": lambda level: int(level) if level in _LEVELS else None,
        }
        groups = (
            (f"_SYSTEMD_UNIT={unit}",),
            (f"UNIT={unit}", "_PID=1"),
            (f"OBJECT_SYSTEMD_UNIT={unit}", "_UID=0"),
            (f"COREDUMP_UNIT={unit}", "_UID=0", f"MESSAGE_ID={COREDUMP_MESSAGE}"),
        )  # as journalctl -u does; with the trusted fields, so that nobody can write lines for another unit
        for number, group in enumerate(groups):
            if number:
                reader.add_disjunction()
            for match in group:
                reader.add_match(match)
        if level is not None:
            reader.add_conjunction()
            reader.log_level(level)
        reader.seek_tail()
        lines: list[str] = []
        while len(lines) < count and (entry := reader.get_previous()):
            moment = entry["__REALTIME_TIMESTAMP"]
            if since_us is not None and moment.timestamp() * 1e6 < since_us:
                break
            lines.append(_log_line(entry, moment))
    return lines[::-1]


def _log_line(entry: dict[str, Any], moment: datetime) -> str:
    message = entry.get("MESSAGE", "")
    text = message.decode("utf-8", "backslashreplace") if isinstance(message, bytes) else str(message)
    text = text[:LINE_CHARS].replace("\n", "\n    ")  # so that a message cannot make up lines of its own
    who = entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or "?"
    pid = entry.get("_PID")
    level = entry.get("PRIORITY")
    mark = f" <{PRIORITIES[level]}>" if isinstance(level, int) and level <= 4 else ""
    when = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{when} {who}{f'[{pid}]' if pid else ''}:{mark} {text}"
