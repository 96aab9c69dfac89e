"""Reads units from systemd: the properties of all loaded ones with one call, and of others by name.

Properties are those of systemctl(1) `show` and org.freedesktop.systemd1(5), as text. What was read is kept
for as long as the script runs.
"""

from __future__ import annotations

import functools
import re
import threading
import time

from checks import CannotSee
from commands import run, systemd_problem

COMMANDS = (
    "ExecCondition",
    "ExecStartPre",
    "ExecStart",
    "ExecStartPost",
    "ExecReload",
    "ExecStop",
    "ExecStopPost",
    "ExecMount",
    "ExecActivate",
)
_PROPERTIES = (
    "Id,Names,Description,LoadState,LoadError,ActiveState,SubState,UnitFileState,FragmentPath,DropInPaths,SourcePath,Result,"
    "ExecMainStatus,ExecMainCode,ExecMainPID,MainPID,NRestarts,InvocationID,StateChangeTimestamp,"
    "ActiveEnterTimestamp,InactiveEnterTimestamp,InactiveExitTimestamp,ConditionResult,ConditionTimestamp,"
    "AssertResult,AssertTimestamp,NeedDaemonReload,Requires,Requisite,BindsTo,PartOf,Conflicts,ConflictedBy,WantedBy,RequiredBy,"
    "UpheldBy,Triggers,TriggeredBy,Type,Restart,RestartUSec,WatchdogUSec,RemainAfterExit,TimeoutStartUSec,TimeoutStopUSec,BusName,"
    "Job,User,Group,WorkingDirectory,EnvironmentFiles,"
    "TasksCurrent,TasksMax,MemoryMax,MemoryCurrent,ProtectSystem,ReadOnlyPaths,ReadWritePaths,ControlGroup,"
    "StatusText,StatusErrno,Where,What,LastTriggerUSec,NextElapseUSecRealtime,NextElapseUSecMonotonic,"
    "NAccepted,Listen,RefuseManualStart," + ",".join(COMMANDS)
)
_RAN = re.compile(
    r"argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=(?P<flags>\S*) ;.* pid=(?P<pid>\d+) ; "
    r"code=(?P<code>\S+) ; status=(?P<status>\d+)(?:/(?P<word>\S+))? }"
)
_SPAN_S = {
    "y": 31557600.0,
    "month": 2629800.0,
    "w": 604800.0,
    "d": 86400.0,
    "h": 3600.0,
    "min": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
}
_SUFFIX = re.compile(
    r"\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope|snapshot)$"
)
_reading = threading.Lock()


class Unit:
    """One unit's properties: `unit["Result"]`, an empty string where it has none."""

    def __init__(self, properties: dict[str, str], commands: list[tuple[str, str]]) -> None:
        self._properties = properties
        self._commands = commands

    def __getitem__(self, name: str) -> str:
        return self._properties.get(name, "")

    @property
    def name(self) -> str:
        return self["Id"]

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_active(self) -> bool:
        return self["ActiveState"] in ("active", "reloading", "refreshing")

    @property
    def restarts_itself(self) -> bool:
        """Whether it waits for its next automatic start, which is how a crash loop looks."""
        return "auto-restart" in self["SubState"]

    @property
    def changed(self) -> float | None:
        """Since when it is in its state, in seconds since 1970."""
        return moment(self["StateChangeTimestamp"])

    def number(self, name: str) -> int:
        """A property that is a number; -1 where it has none, or where it is infinite."""
        return int(self[name]) if self[name].isdigit() else -1

    def needs(self) -> list[str]:
        """The units without which it cannot run."""
        return sorted({other for key in ("Requires", "Requisite", "BindsTo") for other in self[key].split()})

    def runs(self) -> list[tuple[str, re.Match[str]]]:
        """How each of its commands last ran: (`ExecStartPre`, its argv, flags, pid, code, status)."""
        found = ((name, _RAN.search(text)) for name, text in self._commands)
        return [(name, match) for name, match in found if match]


def moment(text: str) -> float | None:
    """Seconds since 1970 of `Mon 2026-11-23 23:44:05 UTC`, which is local time; None for an empty one."""
    try:
        return time.mktime(time.strptime(text[4:23], "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def seconds(text: str) -> float | None:
    """Seconds of `1min 30s`; None for `infinity` and what is not a time span."""
    parts = re.findall(r"([\d.]+)(y|month|w|d|h|min|ms|us|s)\b", text)
    if not parts:
        return 0.0 if text == "0" else None
    return sum(float(number) * _SPAN_S[unit] for number, unit in parts)


def parsed(text: str) -> list[Unit]:
    """The units in the output of `systemctl show`: blocks of `Key=value`, with an empty line between them."""
    found: list[Unit] = []
    pairs: list[tuple[str, str]] = []
    for block in re.split(r"\n\n+", text.strip()):
        for line in block.splitlines():
            key, _, value = line.partition("=")
            if re.fullmatch(r"[A-Z][A-Za-z]+", key):
                pairs.append((key, value))
            elif pairs:  # the arguments of a command may have several lines, and empty ones
                pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {line}")
        if any(key == "Id" for key, _ in pairs):
            found.append(Unit(dict(pairs), [pair for pair in pairs if pair[0] in COMMANDS]))
            pairs = []
    return found


def named(*names: str) -> list[Unit]:
    """These units, loaded for it where they are not; one that does not exist has LoadState `not-found`."""
    if not names:
        return []
    return parsed(run("systemctl", "show", f"--property={_PROPERTIES}", "--", *names).stdout)


def loaded() -> dict[str, Unit]:
    """All units that systemd has loaded, by name. Raises CannotSee where systemd does not answer."""
    with _reading:
        return _loaded()


@functools.lru_cache(maxsize=1)
def _loaded() -> dict[str, Unit]:
    if problem := systemd_problem():
        raise CannotSee(problem)
    answer = run("systemctl", "show", "--all", f"--property={_PROPERTIES}", "--", "*")
    if not answer.stdout:
        raise CannotSee(answer.problem or "systemctl shows no units.")
    return {unit.name: unit for unit in parsed(answer.stdout)}


def enabled() -> list[Unit]:
    """The units that are set to start at boot, also those that systemd has not loaded; no templates."""
    with _reading:
        return list(_enabled())


@functools.lru_cache(maxsize=1)
def _enabled() -> tuple[Unit, ...]:
    answer = run(
        "systemctl",
        "list-unit-files",
        "--state=enabled,enabled-runtime",
        "--no-legend",
        "--no-pager",
        "--plain",
    )
    if answer.problem:
        raise CannotSee(answer.problem)
    names = [line.split()[0] for line in answer.stdout.splitlines() if line.split()]
    there = _loaded()
    missing = [name for name in names if name not in there and "@." not in name]
    found = {
        unit.name: unit for unit in (*named(*missing), *(there[name] for name in names if name in there))
    }
    instances = (unit for unit in there.values() if "@" in unit.name and unit["UnitFileState"] == "enabled")
    return tuple(found.values()) + tuple(unit for unit in instances if unit.name not in found)


def unit_name(name: str) -> str:
    """A unit's name with its suffix: `nginx` is `nginx.service`, as systemctl(1) takes it."""
    return name if _SUFFIX.search(name) else f"{name}.service"
