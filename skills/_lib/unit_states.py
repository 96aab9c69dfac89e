"""The units of a kind of service, such as all of PostgreSQL, with what skills say of them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

import systemd_units
from systemd_units import moment

_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


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
    """The units of these names or patterns; those that are not loaded only by name, where they have a file.

    Raises CannotSee where systemd does not answer.
    """
    loaded = systemd_units.loaded()
    missing = [name for name in patterns if name not in loaded and _has_file(name)]
    chosen = [
        one for name, one in loaded.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    chosen += systemd_units.named(*missing)
    found = {one.name: _unit(one) for one in chosen if one["LoadState"] not in ("not-found", "stub")}
    return [found[name] for name in sorted(found)]


def _has_file(name: str) -> bool:
    return any(Path(folder, name).exists() for folder in _FOLDERS)


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
