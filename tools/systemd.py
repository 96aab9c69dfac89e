"""systemd's units over D-Bus: what runs, why not, and the jobs that change it. No command output is parsed.

Each call opens its own connection to the system bus (DBUS_SYSTEM_BUS_ADDRESS overrides it) and closes it.
dbus-next is imported when first used, since every worker loads every tool. The lines of a unit's log come
from `toolkit/journal/unit_log`. Interface: org.freedesktop.systemd1(5).
"""

import asyncio
import contextlib
import difflib
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from lightagentd.errors import NotFound, Unavailable
from lightagentd.tool import (
    Args,
    Context,
    Effect,
    InvalidArgument,
    Preview,
    Result,
    SystemdUnavailable,
    TimedOut,
    Tool,
    ToolError,
    action,
)
from lightagentd.toolkit.journal.unit_log import PRIORITIES, unit_lines

if TYPE_CHECKING:
    from lightagentd.bus.connection import Bus
    from lightagentd.bus.signals import Signals

SYSTEMD = "org.freedesktop.systemd1"
MANAGER = f"{SYSTEMD}.Manager"
ROOT = "/org/freedesktop/systemd1"
TYPES = (
    "service", "socket", "timer", "target", "mount", "automount", "path", "slice", "scope", "swap", "device",
)  # fmt: skip
UNKNOWN = 2**64 - 1
"""What systemd gives for a number that it does not have."""
FILE_LIMIT_BYTES = 64 * 1024
FAILURE_LINES = 10
STATUS_LINES = 10
NODES_LIMIT = 200
CHANGES = ("start", "stop", "restart", "reload", "enable", "disable")
FORWARD = ("Requires", "Requisite", "BindsTo", "Upholds", "Wants", "ConsistsOf")
REVERSE = ("RequiredBy", "RequisiteOf", "BoundBy", "UpheldBy", "WantedBy", "PartOf")
_NO_SYSTEMD = "Use the tool proc to see processes; units exist only where systemd is the init system."
_AGES = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


class UnitArgs(Args):
    unit: str = Field(description="The unit's name, such as nginx.service; without a type it is a service.")

    @field_validator("unit")
    @classmethod
    def _complete(cls, unit: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9:_.\\@-]{1,255}", unit):
            raise ValueError("not the name of a unit: letters, digits and :-_.\\@ are allowed")
        return unit if unit.rpartition(".")[2] in TYPES and "." in unit[1:] else f"{unit}.service"


class ListArgs(Args):
    state: str = Field(
        default="", pattern=r"^[a-z-]*$", description="Such as failed, active, running, exited."
    )
    type: Literal[(*TYPES, "")] = Field(default="", description="Only units of this type.")  # type: ignore[valid-type]  # one list of types
    pattern: str = Field(default="", max_length=255, description="A glob, or a part of the name.")
    limit: int = Field(default=100, ge=1, le=1000, description="How many are shown.")


class LogsArgs(UnitArgs):
    lines: int = Field(default=50, ge=1, le=1000, description="How many lines, the newest.")
    since: str = Field(
        default="", description="Such as 2h, 30min, 3d, or an ISO time (UTC if it has no zone)."
    )
    priority: Literal["", "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"] = Field(
        default="", description="Only lines of this priority and more urgent ones."
    )


class DependenciesArgs(UnitArgs):
    reverse: bool = Field(default=False, description="Show what needs this unit instead.")
    depth: int = Field(default=2, ge=1, le=5, description="How many levels are followed.")


class Systemd(Tool):
    """Units of systemd: their state, logs, files and dependencies; start, stop and enable them."""

    name = "systemd"

    @action(taints=True)
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List the loaded units with their state, failed ones first."""
        pattern = args.pattern
        if pattern and not set(pattern) & set("*?["):
            pattern = f"*{pattern}*"
        async with _systemd() as bus:
            filters = [[args.state] if args.state else [], [pattern] if pattern else []]
            [found] = await _ask(bus, "ListUnitsByPatterns", "asas", filters)
        rows = [row for row in found if not args.type or row[0].endswith(f".{args.type}")]
        rows.sort(key=lambda row: (row[3] != "failed", row[0]))
        shown = rows[: args.limit]
        width = max((len(row[0]) for row in shown), default=0)
        lines = [f"{row[0]:<{width}}  {row[2]:<9} {row[3]:<8} {row[4]:<12} {row[1]}" for row in shown]
        failed = sum(row[3] == "failed" for row in rows)
        lines.append(f"{len(rows)} units, {failed} failed." + _left_out(len(rows) - len(shown)))
        keys = ("name", "description", "load", "active", "sub")
        units = [dict(zip(keys, row[:5], strict=True)) for row in shown]
        return Result(
            output="\n".join(lines), metadata={"units": units, "total": len(rows), "failed": failed}
        )

    @action(taints=True)
    async def status(self, ctx: Context, args: UnitArgs) -> Result:
        """Show one unit: state, result, process, resources, files, triggers and its last log lines."""
        async with _systemd() as bus:
            found = await _unit(bus, args.unit)
        lines, note = await unit_lines(args.unit, STATUS_LINES)
        text = "\n".join([*_status_lines(found), "", *(lines or [note])])
        return Result(output=text, metadata=_status_data(found))

    @action(taints=True)
    async def logs(self, ctx: Context, args: LogsArgs) -> Result:
        """Show a unit's newest log lines from the journal, oldest first; times are UTC."""
        since = _since_us(args.since)
        level = PRIORITIES.index(args.priority) if args.priority else None
        lines, note = await unit_lines(args.unit, args.lines, since, level)
        text = "\n".join([*lines, *([note] if note else [])])
        return Result(output=text, metadata={"unit": args.unit, "lines": len(lines), "note": note})

    @action(taints=True)
    async def cat(self, ctx: Context, args: UnitArgs) -> Result:
        """Show the text of a unit's file and of its drop-ins."""
        async with _systemd() as bus:
            found = await _unit(bus, args.unit)
        paths = [path for path in (found.get("FragmentPath"), *found.get("DropInPaths", [])) if path]
        if not paths:
            return Result(output=f"{args.unit} has no file: systemd made it itself.", metadata={"files": []})
        texts = await asyncio.to_thread(lambda: [f"# {path}\n{_file_text(path)}" for path in paths])
        if found.get("NeedDaemonReload"):
            texts.append(
                "# The files changed since systemd read them; `systemctl daemon-reload` makes them count."
            )
        return Result(output="\n\n".join(texts), metadata={"files": paths})

    @action(taints=True)
    async def dependencies(self, ctx: Context, args: DependenciesArgs) -> Result:
        """Show the units that a unit needs, or with reverse those that need it, as a tree with states."""
        kinds = REVERSE if args.reverse else FORWARD
        async with _systemd() as bus:
            top = await _unit(bus, args.unit)
            [rows] = await _ask(bus, "ListUnits")
            loaded = {row[0]: (row[3], row[6]) for row in rows}
            lines, seen, cut = [f"{args.unit}  {top['ActiveState']}"], {args.unit}, 0
            todo = [(name, 1) for name in reversed(_needs(top, kinds))]
            while todo:
                name, level = todo.pop()
                if len(lines) > NODES_LIMIT:
                    cut += 1
                    continue
                state, path = loaded.get(name, ("not loaded", ""))
                lines.append(f"{'  ' * level}{name}  {state}{'  (shown above)' if name in seen else ''}")
                if path and level < args.depth and name not in seen:
                    unit = await bus.properties(SYSTEMD, path, f"{SYSTEMD}.Unit")
                    todo += [(below, level + 1) for below in reversed(_needs(unit, kinds))]
                seen.add(name)
        if cut:
            lines.append(_left_out(cut).strip())
        return Result(
            output="\n".join(lines), metadata={"unit": args.unit, "units": len(seen) - 1, "left_out": cut}
        )

    @action(effect=Effect.CHANGE, timeout_s=120, clean="fixed words, and the unit that the call names")
    async def start(self, ctx: Context, args: UnitArgs) -> Result:
        """Start a unit and wait until that is done; a failure comes with the unit's last log lines."""
        return await _job(ctx, args.unit, "StartUnit", "start")

    @action(effect=Effect.CHANGE, timeout_s=120, clean="fixed words, and the unit that the call names")
    async def stop(self, ctx: Context, args: UnitArgs) -> Result:
        """Stop a unit and wait until that is done."""
        return await _job(ctx, args.unit, "StopUnit", "stop")

    @action(effect=Effect.CHANGE, timeout_s=120, clean="fixed words, and the unit that the call names")
    async def restart(self, ctx: Context, args: UnitArgs) -> Result:
        """Stop and start a unit and wait until that is done."""
        return await _job(ctx, args.unit, "RestartUnit", "restart")

    @action(effect=Effect.CHANGE, timeout_s=120, clean="fixed words, and the unit that the call names")
    async def reload(self, ctx: Context, args: UnitArgs) -> Result:
        """Have a running unit read its own configuration again."""
        return await _job(ctx, args.unit, "ReloadUnit", "reload")

    @action(effect=Effect.CHANGE, clean="links that root's unit files say")
    async def enable(self, ctx: Context, args: UnitArgs) -> Result:
        """Have a unit started at boot from now on; does not start it now."""
        async with _systemd() as bus:
            installs, changes = await _ask(bus, "EnableUnitFiles", "asbb", [[args.unit], False, False])
            await _ask(bus, "Reload")
        if not installs and not changes:
            raise ToolError(
                f"{args.unit} cannot be enabled: its file has no [Install] section.",
                suggestion="It is started by other units; start it directly, or enable those.",
            )
        return _changed(args.unit, "enabled", changes)

    @action(effect=Effect.CHANGE, clean="links that root's unit files say")
    async def disable(self, ctx: Context, args: UnitArgs) -> Result:
        """Have a unit no longer started at boot; does not stop it now."""
        async with _systemd() as bus:
            [changes] = await _ask(bus, "DisableUnitFiles", "asb", [[args.unit], False])
            await _ask(bus, "Reload")
        return _changed(args.unit, "disabled", changes)

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """The unit as it is now. Raises NotFound for one that does not exist."""
        if action not in CHANGES:
            return None
        what = f"{action.capitalize()} {args.unit}"
        try:
            async with _systemd() as bus:
                found = await _unit(bus, args.unit)
        except Unavailable as err:
            return Preview(text=f"{what}. Its present state cannot be seen: {err.message}\n")
        state = (
            f"it is {found['ActiveState']} ({found['SubState']}), {found.get('UnitFileState') or 'no file'}"
        )
        expected = {"active_state": found["ActiveState"], "unit_file_state": found.get("UnitFileState") or ""}
        return Preview(text=f"{what} ({found.get('Description', '')}); {state}.\n", expected=expected)


@contextlib.asynccontextmanager
async def _systemd() -> "AsyncIterator[Bus]":
    from lightagentd.bus import connection as bus

    if "DBUS_SYSTEM_BUS_ADDRESS" not in os.environ and not _booted():
        raise SystemdUnavailable("systemd is not running on this machine.", suggestion=_NO_SYSTEMD)
    async with contextlib.AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(bus.connect("system"))
        except Unavailable as err:
            raise SystemdUnavailable(
                f"systemd cannot be reached. {err.message}", suggestion=_NO_SYSTEMD
            ) from err
        yield connection


def _booted() -> bool:
    """As sd_booted(3)."""
    return Path("/run/systemd/system").is_dir()


async def _ask(bus: "Bus", method: str, signature: str = "", args: Any = ()) -> Any:
    return await bus.call(SYSTEMD, ROOT, MANAGER, method, signature, args)


async def _unit(bus: "Bus", name: str) -> dict[str, Any]:
    """The properties of a unit, those of its type too. Raises NotFound with the nearest names."""
    [path] = await _ask(bus, "LoadUnit", "s", [name])
    found = await bus.properties(SYSTEMD, path, f"{SYSTEMD}.Unit")
    if found.get("LoadState") == "not-found":
        [rows] = await _ask(bus, "ListUnits")
        near = difflib.get_close_matches(name, [row[0] for row in rows], 3)
        raise NotFound(
            f"There is no unit {name} on this machine.",
            suggestion=f"Did you mean {' or '.join(near)}?" if near else "List the units with systemd list.",
            field="unit",
        )
    kind = found["Id"].rpartition(".")[2]
    if kind not in ("target", "device"):
        found |= await bus.properties(SYSTEMD, path, f"{SYSTEMD}.{kind.capitalize()}")
    return found


def _needs(unit: dict[str, Any], kinds: tuple[str, ...]) -> list[str]:
    return sorted({name for kind in kinds for name in unit.get(kind, [])})


def _left_out(count: int) -> str:
    return f" {count} more are not shown." if count else ""


def _changed(unit: str, verb: str, changes: list[list[str]]) -> Result:
    lines = [f"{unit} is {verb}." if changes else f"{unit} was {verb} already."]
    lines += [f"{kind}: {path}" + (f" -> {target}" if target else "") for kind, path, target in changes]
    return Result(output="\n".join(lines), metadata={"unit": unit, "changes": changes})


async def _job(ctx: Context, name: str, method: str, verb: str) -> Result:
    """Queue a job, wait for the signal JobRemoved with its result, and look at the unit again."""
    async with _systemd() as bus:
        before = await _unit(bus, name)
        await _ask(bus, "Subscribe")
        async with bus.signals(sender=SYSTEMD, path=ROOT, interface=MANAGER, member="JobRemoved") as removed:
            [job] = await _ask(bus, method, "ss", [name, "replace"])
            try:
                async with asyncio.timeout(max(1.0, ctx.timeout_s - 2)):
                    result = await _result_of(removed, job)
            except TimeoutError as err:
                raise TimedOut(
                    f"systemd still works on the {verb} of {name}; the job goes on.",
                    suggestion="Ask for the unit's status in a while.",
                ) from err
        after = await _unit(bus, name)
    data = {"job_result": result, "before": before["ActiveState"], **_status_data(after)}
    broken = after["ActiveState"] == "failed" or after.get("SubState") == "auto-restart"
    if result != "done" or (broken and verb != "stop"):
        lines, note = await unit_lines(name, FAILURE_LINES)
        said = f"its result is {after.get('Result') or 'unknown'}{_exit_text(after)}"
        raise ToolError(
            "\n".join(
                [
                    f"The {verb} of {name} failed (job: {result}); {said}. Its last log lines:",
                    *(lines or [note]),
                ]
            ),
            suggestion=f"Read more with systemd logs {name} and systemd status {name}.",
        )
    state = f"{after['ActiveState']} ({after['SubState']})"
    text = f"The {verb} of {name} is done: it was {before['ActiveState']} and is {state}."
    if broken:
        text += f" It did not end cleanly: result {after.get('Result')}{_exit_text(after)}."
    return Result(output=text, metadata=data)


async def _result_of(removed: "Signals", job: str) -> str:
    async for signal in removed:
        if signal.args[1] == job:
            return str(signal.args[3])
    raise AssertionError("subscriptions end with an exception")


def _exit_text(unit: dict[str, Any]) -> str:
    if not unit.get("ExecMainExitTimestamp"):
        return ""
    how = {1: "exit status", 2: "killed by signal", 3: "dumped core by signal"}.get(
        unit.get("ExecMainCode", 0)
    )
    return f", {how} {unit.get('ExecMainStatus')}" if how else ""


def _status_lines(unit: dict[str, Any]) -> list[str]:
    since = unit.get("StateChangeTimestamp", 0)
    lines = [
        f"{unit['Id']} - {unit.get('Description', '')}",
        f"Active: {unit['ActiveState']} ({unit['SubState']})" + (f" since {_when(since)}" if since else ""),
        f"Loaded: {unit['LoadState']}, {unit.get('UnitFileState') or 'no unit file'}",
    ]
    load_error = unit.get("LoadError") or ["", ""]
    data = _status_data(unit)
    exited = _exit_text(unit).lstrip(", ")
    rows = {
        "Load error": load_error[1],
        "Result": f"{unit.get('Result', '')}{', ' + exited if exited else ''}",
        "Restarts": unit.get("NRestarts", 0),
        "Main pid": data["main_pid"],
        "Tasks": data["tasks"],
        "Memory": _size(data["memory_bytes"]),
        "CPU": None if data["cpu_s"] is None else f"{data['cpu_s']:.1f} s",
        "Next run": _when(unit.get("NextElapseUSecRealtime", 0)),
        "Last run": _when(unit.get("LastTriggerUSec", 0)),
        "Triggered by": ", ".join(unit.get("TriggeredBy", [])),
        "Triggers": ", ".join(unit.get("Triggers", [])),
        "File": unit.get("FragmentPath"),
        "Drop-ins": ", ".join(unit.get("DropInPaths", [])),
        "Documentation": ", ".join(unit.get("Documentation", [])),
    }
    lines += [f"{key}: {value}" for key, value in rows.items() if value]
    if unit.get("NeedDaemonReload"):
        lines.append("The unit's files changed since systemd read them: `systemctl daemon-reload` is due.")
    return lines


def _status_data(unit: dict[str, Any]) -> dict[str, Any]:
    def known(key: str) -> int | None:
        value = unit.get(key, UNKNOWN)
        return None if value == UNKNOWN else int(value)

    cpu = known("CPUUsageNSec")
    return {
        "unit": unit["Id"],
        "load": unit["LoadState"],
        "active": unit["ActiveState"],
        "sub": unit["SubState"],
        "enabled": unit.get("UnitFileState", ""),
        "result": unit.get("Result", ""),
        "main_exit_status": unit.get("ExecMainStatus"),  # a stop that went well may leave 15 there
        "main_pid": unit.get("MainPID") or None,
        "memory_bytes": known("MemoryCurrent"),
        "cpu_s": None if cpu is None else cpu / 1e9,
        "tasks": known("TasksCurrent"),
        "restarts": unit.get("NRestarts"),
    }


def _when(time_us: int) -> str:
    if not time_us or time_us == UNKNOWN:
        return ""
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**20:.1f} MiB"


def _file_text(path: str) -> str:
    """The text of a unit's file, capped; a masked unit's file is /dev/null."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123  # it is a descriptor
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return "# (not a regular file: the unit is masked or empty)"
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as err:
        return f"# (cannot be read: {err.strerror})"
    text = data[:FILE_LIMIT_BYTES].decode("utf-8", "replace").rstrip()
    return text + ("\n# (the rest is left out)" if len(data) > FILE_LIMIT_BYTES else "")


def _since_us(since: str) -> int | None:
    if not since:
        return None
    age = re.fullmatch(r"(\d{1,6})\s*([a-z]+)", since.strip())
    if age and age[2] in _AGES:
        return int((time.time() - int(age[1]) * _AGES[age[2]]) * 1e6)
    try:
        moment = datetime.fromisoformat(since.strip())
    except ValueError as err:
        raise InvalidArgument(
            f"{since!r} is no time.", suggestion="Give 30min, 2h, 3d or an ISO time.", field="since"
        ) from err
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
