"""The journal: entries by unit, priority, time, field and text; values of fields; boots.

The reading is done by `lightagentd.toolkit.journal.reader`, a child process with a limit of time and memory,
which has systemd-python's Reader. LIGHTAGENT_JOURNAL names another folder of journal files than the system's.
Times are taken as the skills take them and shown in local time.
"""

import json
import os
import re
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from lightagentd.host.process import Completed, run
from lightagentd.host.users import called
from lightagentd.tool import Args, Context, InvalidArgument, Result, TimedOut, Tool, ToolError, action
from lightagentd.toolkit.journal import reader

PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
SYSTEM_FOLDERS = (Path("/var/log/journal"), Path("/run/log/journal"))
TYPES = "service|socket|timer|target|mount|automount|path|slice|scope|swap|device"
READ_S = 20.0
"""How long reading may take at most."""
FIELD_NAME = r"[A-Z_][A-Z0-9_]{0,63}"
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_TIMES = "boot, today, yesterday, 'yesterday 14:00', -30min, -2h, -7d or an ISO time such as 2025-01-31T14:00"


class QueryArgs(Args):
    units: list[str] = Field(default=[], max_length=20, description="Only of these units, such as nginx.")
    identifier: str = Field(default="", max_length=255, description="Only of this program, such as sshd.")
    priority: Literal["", "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"] = Field(
        default="", description="Only entries of this priority and more urgent ones."
    )
    since: str = Field(default="", max_length=64, description=f"From when on: {_TIMES}. Local time.")
    until: str = Field(default="", max_length=64, description="Until when, in the same words.")
    boot: str = Field(
        default="",
        pattern=r"^(-?0|-[1-9]\d{0,3}|[0-9a-f]{32})?$",
        description="Only of this boot: 0 is the newest, -1 the one before; or a boot's id.",
    )
    fields: dict[str, str] = Field(
        default={}, max_length=20, description="Only entries with these fields, such as {'_UID': '1000'}."
    )
    text: str = Field(default="", max_length=1000, description="Only entries whose message has this text.")
    regex: bool = Field(default=False, description="Take `text` as a Python regular expression.")
    ignore_case: bool = Field(default=False, description="Let `text` match upper and lower case alike.")
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which entries come first.")
    limit: int = Field(default=50, ge=1, le=1000, description="How many entries at most.")
    after_cursor: str = Field(
        default="", max_length=512, description="Go on behind this entry: `next_cursor` of the last answer."
    )

    @field_validator("boot", mode="before")
    @classmethod
    def _number(cls, boot: Any) -> Any:
        if isinstance(boot, int) and not isinstance(boot, bool):
            return str(boot)
        return boot.replace("-", "") if isinstance(boot, str) and len(boot) == 36 else boot

    @field_validator("units")
    @classmethod
    def _complete(cls, units: list[str]) -> list[str]:
        for unit in units:
            if not re.fullmatch(r"[A-Za-z0-9:_.\\@-]{1,255}", unit):
                raise ValueError(f"{unit!r} is not the name of a unit")
        return [unit if re.search(rf".\.({TYPES})$", unit) else f"{unit}.service" for unit in units]

    @field_validator("fields")
    @classmethod
    def _named(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if not re.fullmatch(FIELD_NAME, name):
                raise ValueError(f"{name!r} is not a field: capital letters, digits and _ are allowed")
        return fields


class FieldsArgs(Args):
    name: str = Field(
        default="",
        pattern=rf"^({FIELD_NAME})?$",
        description="A field such as _SYSTEMD_UNIT or SYSLOG_IDENTIFIER; without it the names of all fields.",
    )
    limit: int = Field(default=100, ge=1, le=1000, description="How many values at most.")


class BootsArgs(Args):
    limit: int = Field(default=20, ge=1, le=1000, description="How many boots, the newest.")


class Journal(Tool):
    """The journal of this machine: what services, programs and the kernel logged."""

    name = "journal"

    @action(taints=True)
    async def query(self, ctx: Context, args: QueryArgs) -> Result:
        """Show entries by unit, program, priority, time, boot, field and text of the message."""
        request = args.model_dump() | {
            "priority": PRIORITIES.index(args.priority) if args.priority else None,
            "since_us": _moment_us(args.since, "since"),
            "until_us": _moment_us(args.until, "until"),
        }
        rows, summary = await _read(ctx, "query", request)
        cursors = [row.pop("cursor") for row in rows]
        lines = [_line(row) for row in rows] or ["(no entry)"]
        at_end = not summary["stopped"] and args.order == "newest"
        cursor = summary["cursor"] or (cursors[-1] if cursors else args.after_cursor)
        zone = time.strftime("%Z", time.localtime(rows[0]["time_us"] / 1e6)) if rows else ""
        note = _stopped(summary, "go on with after_cursor=next_cursor, or narrow the query")
        lines.append(f"{_count(len(rows), 'entry', 'entries')}{f', times in {zone}' if zone else ''}.{note}")
        if not rows and not summary["stopped"]:
            lines.append(_partly_readable())
        entries = [{**row, "time": _when(row["time_us"])} for row in rows]
        return Result(
            output="\n".join(line for line in lines if line),
            metadata={
                "entries": entries,
                "count": len(entries),
                "scanned": summary["scanned"],
                "stopped": summary["stopped"],
                "next_cursor": "" if at_end else cursor,
            },
        )

    @action(taints=True)
    async def fields(self, ctx: Context, args: FieldsArgs) -> Result:
        """Show the values that a field has in the journal, or the names of all fields."""
        rows, summary = await _read(ctx, "fields", args.model_dump())
        values = [row["value"] for row in rows]
        total = summary.get("total", len(values))
        what = _count(total, f"value of {args.name}", f"values of {args.name}")
        lines = [*map(_visible, values), f"{what if args.name else _count(total, 'field', 'fields')}."]
        if total > len(values):
            lines[-1] += f" {total - len(values)} more are not shown."
        metadata = {"values": values, "total": total, "stopped": summary["stopped"]}
        return Result(output="\n".join(lines), metadata=metadata)

    @action(clean="ids of boots and times")
    async def boots(self, ctx: Context, args: BootsArgs) -> Result:
        """List the boots that the journal knows, with their first and last entry, the newest first."""
        rows, summary = await _read(ctx, "boots", args.model_dump())
        boots = [
            {
                "index": row["index"],
                "boot": row["boot"],
                "first": _when(row["first_us"]),
                "last": _when(row["last_us"]),
            }
            for row in rows
        ]
        lines = [f"{b['index']:>4} {_visible(b['boot'])}  {b['first']}  {b['last']}" for b in boots]
        total = summary.get("total", len(boots))
        lines.append(f"{_count(total, 'boot', 'boots')}.{_stopped(summary, 'raise the limit')}")
        metadata = {"boots": boots, "total": total, "stopped": summary["stopped"]}
        return Result(output="\n".join(lines), metadata=metadata)


async def _read(
    ctx: Context, mode: str, request: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the summary of the reader. Raises ToolError where there is nothing to read."""
    folder = os.environ.get("LIGHTAGENT_JOURNAL", "")
    _check_readable(folder)
    seconds = min(READ_S, ctx.timeout_s * 0.7)
    done = await run(
        [sys.executable, "-I", str(reader.__file__)],
        timeout_s=seconds + min(1.0, ctx.timeout_s * 0.1),
        stdin=json.dumps({**request, "mode": mode, "folder": folder, "seconds": seconds}).encode(),
        limit_bytes=4 * reader.ANSWER_LIMIT_BYTES,
    )
    whole, _, _ = done.stdout.text().rpartition("\n")  # a reader that was killed may have written half a line
    rows = [json.loads(line) for line in whole.splitlines()]
    if rows and "done" in rows[-1]:
        return rows[:-1], rows[-1]
    if rows and "error" in rows[-1]:
        error = rows[-1]
        if error["field"]:
            raise InvalidArgument(error["error"], field=error["field"])
        raise ToolError(error["error"], suggestion="Narrow the request.")
    if done.timed_out:
        return _cut(rows, mode, request, seconds)
    raise _broken(done)


def _cut(
    rows: list[dict[str, Any]], mode: str, request: dict[str, Any], seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a reader that had to be killed had found, if anything."""
    if not rows:
        what = "this regular expression" if request.get("regex") else f"the action {mode}"
        raise TimedOut(
            f"The journal was read for {seconds:g} s, and {what} found nothing until then.",
            suggestion="Narrow it by unit, since and until, or use plain text instead of an expression.",
        )
    return rows, {"stopped": "time", "scanned": len(rows), "cursor": rows[-1].get("cursor", "")}


def _broken(done: Completed) -> ToolError:
    if done.signal:
        return ToolError(
            f"The reader of the journal was ended by {done.signal}; a file of the journal may be damaged.",
            suggestion="Check the files with `journalctl --verify`, and narrow the request.",
        )
    last = done.stderr.text().strip().rpartition("\n")[2]
    return ToolError(
        f"The reader of the journal failed: {last[-300:] or f'status {done.status}'}.",
        suggestion="Check the files with `journalctl --verify`.",
    )


def _journal_files(folder: str) -> list[Path]:
    folders = (Path(folder),) if folder else SYSTEM_FOLDERS
    return [file for each in folders for glob in ("*.journal*", "*/*.journal*") for file in each.glob(glob)]


def _check_readable(folder: str) -> None:
    """Raise ToolError with what to do where this user can read no journal at all."""
    if folder and not Path(folder).is_dir():
        raise ToolError(
            f"There is no folder {folder}, which LIGHTAGENT_JOURNAL names.",
            suggestion="Correct the variable in the worker's unit, or take it away.",
        )
    files = _journal_files(folder)
    if any(os.access(file, os.R_OK) for file in files):
        return
    closed = [each for each in SYSTEM_FOLDERS if each.is_dir() and not os.access(each, os.R_OK | os.X_OK)]
    if files or (closed and not folder):
        raise ToolError(
            f"{called(os.getuid())} may not read the journal.",
            suggestion="Add the worker's user to the group systemd-journal, and start the worker again.",
        )
    where = folder or " and ".join(map(str, SYSTEM_FOLDERS))
    raise ToolError(
        f"There is no journal on this machine: no journal files in {where}.",
        suggestion="Check that systemd-journald runs; without it, read the log files below /var/log.",
    )


def _partly_readable() -> str:
    files = _journal_files(os.environ.get("LIGHTAGENT_JOURNAL", ""))
    hidden = sum(not os.access(file, os.R_OK) for file in files)
    if not hidden:
        return ""
    return (
        f"{hidden} of {len(files)} journal files may not be read by {called(os.getuid())};"
        " members of the group systemd-journal can."
    )


def _stopped(summary: dict[str, Any], advice: str) -> str:
    why = {
        "limit": "Stopped at the limit",
        "time": "Stopped when the time was up",
        "size": "Stopped because the answer is large enough",
    }.get(summary["stopped"])
    return f" {why}: {advice}." if why else ""


def _moment_us(value: str, field: str) -> int | None:
    """UTC microseconds of a time in the words of the skills; None for an empty one."""
    value = value.strip()
    if not value:
        return None
    if value == "boot":
        rows = Path("/proc/stat").read_text("ascii").splitlines()
        return next(int(row.split()[1]) for row in rows if row.startswith("btime ")) * 1_000_000
    if value == "now":
        return int(time.time() * 1e6)
    back = re.fullmatch(r"-?(\d{1,7})\s*([a-z]+)", value)
    if back and back[2] in _SECONDS:
        return max(0, int((time.time() - int(back[1]) * _SECONDS[back[2]]) * 1e6))
    day, _, clock = value.partition(" ")
    if day in ("today", "yesterday"):
        date = datetime.now().astimezone().date() - timedelta(days=day == "yesterday")
        value = f"{date.isoformat()} {clock}".strip()
    try:
        moment = datetime.fromisoformat(value).astimezone()  # without a zone it is local time
    except (ValueError, OverflowError) as err:
        raise InvalidArgument(f"{value!r} is no time.", suggestion=f"Give {_TIMES}.", field=field) from err
    return max(0, round(moment.timestamp() * 1e6))


def _line(row: dict[str, Any]) -> str:
    who = _visible(row["identifier"] or "?") + (f"[{_visible(row['pid'])}]" if row["pid"] else "")
    level = row["priority"]
    mark = f" <{PRIORITIES[level]}>" if level is not None and level <= 4 else ""
    message = "\n    ".join(map(_visible, row["message"].rstrip("\n").split("\n")))  # lines of its own
    return f"{_when(row['time_us'])[:19].replace('T', ' ')} {who}:{mark} {message}"


def _visible(text: str) -> str:
    """Control characters escaped, so that a message can neither make up lines nor drive a terminal."""
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def _when(time_us: int) -> str:
    """Local time with its offset from UTC, as ISO 8601."""
    return datetime.fromtimestamp(time_us / 1e6).astimezone().isoformat(timespec="milliseconds")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
