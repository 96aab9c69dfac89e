"""Asks systemd for the units of a kind of service, such as all of PostgreSQL."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable
from dataclasses import dataclass

from commands import run

_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,UnitFileState,MainPID,Type,ConditionResult,"
    "StateChangeTimestamp,ExecMainStartTimestamp,ActiveEnterTimestamp,FragmentPath"
)


@dataclass(frozen=True)
class Unit:
    """What `systemctl show` says of one loaded unit; times are seconds since 1970, or None."""

    name: str
    active: str
    sub: str
    result: str
    file_state: str
    pid: int
    kind: str
    has_met_conditions: bool
    since: float | None
    """Since when it is in this state."""
    started: float | None
    path: str

    @property
    def is_running(self) -> bool:
        return self.active in ("active", "reloading")

    @property
    def is_wanted(self) -> bool:
        """Whether it should run: it is enabled, or it failed."""
        return self.file_state in ("enabled", "enabled-runtime") or self.active == "failed"


def units(*patterns: str) -> tuple[list[Unit], str]:
    """The loaded units of these names or patterns, and a sentence when systemd did not answer."""
    answer = run("systemctl", "show", f"--property={_PROPERTIES}", "--", *patterns, timeout_s=3)
    found = {}
    for block in answer.stdout.split("\n\n"):
        pairs = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if pairs.get("LoadState") in ("loaded", "masked", "error", "bad-setting"):
            found[pairs["Id"]] = _unit(pairs)
    return sorted(found.values(), key=lambda one: one.name), answer.problem if not found else ""


def running(all_units: Iterable[Unit]) -> list[Unit]:
    return [one for one in all_units if one.is_running]


def when(text: str) -> float | None:
    """Seconds since 1970 of a time as systemd shows it, such as `Mon 2026-11-23 23:44:23 UTC`."""
    words = text.split()
    if len(words) < 4:
        return None
    try:
        parsed = time.strptime(f"{words[1]} {words[2]}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return float(calendar.timegm(parsed)) if words[3] == "UTC" else time.mktime(parsed)


def _unit(pairs: dict[str, str]) -> Unit:
    return Unit(
        name=pairs["Id"],
        active=pairs.get("ActiveState", ""),
        sub=pairs.get("SubState", ""),
        result=pairs.get("Result", ""),
        file_state=pairs.get("UnitFileState", ""),
        pid=int(pairs.get("MainPID") or 0),
        kind=pairs.get("Type", ""),
        has_met_conditions=pairs.get("ConditionResult") != "no" or not pairs.get("ExecMainStartTimestamp"),
        since=when(pairs.get("StateChangeTimestamp", "")),
        started=when(pairs.get("ExecMainStartTimestamp", "")) or when(pairs.get("ActiveEnterTimestamp", "")),
        path=pairs.get("FragmentPath", ""),
    )
