"""The units of a kind of service, such as all of PostgreSQL, with what skills say of them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

import systemd_units
from systemd_units import moment


@dataclass(frozen=True)
class Unit:
    """One loaded unit; times are seconds since 1970, or None."""

    name: str
    active: str
    sub: str
    file_state: str
    pid: int
    has_met_conditions: bool
    since: float | None
    """Since when it is in this state."""
    started: float | None
    path: str

    @property
    def is_running(self) -> bool:
        return self.active in ("active", "reloading", "refreshing")

    @property
    def is_wanted(self) -> bool:
        """Whether it should run: it is enabled, or it failed."""
        return self.file_state in ("enabled", "enabled-runtime") or self.active == "failed"


def units(*patterns: str) -> list[Unit]:
    """The loaded units of these names or patterns. Raises CannotSee where systemd does not answer."""
    return [
        _unit(one)
        for name, one in sorted(systemd_units.loaded().items())
        if one["LoadState"] not in ("not-found", "stub")
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _unit(one: systemd_units.Unit) -> Unit:
    return Unit(
        name=one.name,
        active=one["ActiveState"],
        sub=one["SubState"],
        file_state=one["UnitFileState"],
        pid=max(0, one.number("MainPID")),
        has_met_conditions=one["ConditionResult"] != "no" or not one["ConditionTimestamp"],
        since=one.changed,
        started=moment(one["ActiveEnterTimestamp"]),
        path=one["FragmentPath"],
    )
