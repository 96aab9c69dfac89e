"""Objects on D-Bus: what there is, what it offers, its properties; and, as a change, any method call.

Each call opens its own connection through `bus.connection` and closes it. What only observes never starts
a service: it talks to the connection that owns the name now. Values of arguments are JSON, typed by a
signature (`toolkit/dbus/values.py`); `toolkit/dbus/introspection.py` reads what an object offers.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

import asyncio
import contextlib
import fnmatch
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from lightagentd.bus.errors import NoSuchName
from lightagentd.errors import LightagentError, OutcomeUnknown, PermissionDenied, Unavailable
from lightagentd.text.visible import visible
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Preview, Result, TimedOut, Tool, action
from lightagentd.toolkit.dbus.introspection import parsed
from lightagentd.toolkit.dbus.values import (
    OBJECT_PATH,
    VALUE_LIMIT_CHARS,
    limited,
    printable,
    typed_arguments,
    value_text,
)

if TYPE_CHECKING:
    from lightagentd.bus.connection import Bus

DAEMON = "org.freedesktop.DBus"
DAEMON_PATH = "/org/freedesktop/DBus"
PROPERTIES = f"{DAEMON}.Properties"
FILTERED = "org.freedesktop.DBus.Error.AccessDenied"
"""All that the bus filter says (`worker.busproxy`); services say why."""
LINES_LIMIT = 400
CHILDREN_LIMIT = 200
ASKED_AT_ONCE = 16
_ELEMENT = r"[A-Za-z_][A-Za-z0-9_]*"
_BUS_NAME = re.compile(
    r":[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+|[A-Za-z_-][A-Za-z0-9_-]*(\.[A-Za-z_-][A-Za-z0-9_-]*)+"
)


def _is_bus_name(text: str) -> str:
    if len(text) > 255 or not _BUS_NAME.fullmatch(text):
        raise ValueError("not a bus name, such as org.freedesktop.hostname1 or :1.5")
    return text


def _is_path(text: str) -> str:
    if not OBJECT_PATH.fullmatch(text):
        raise ValueError("not an object path, such as /org/freedesktop/hostname1")
    return text


def _is_interface(text: str) -> str:
    if text and (len(text) > 255 or not re.fullmatch(rf"{_ELEMENT}(\.{_ELEMENT})+", text)):
        raise ValueError("not an interface name, such as org.freedesktop.DBus.Peer")
    return text


def _is_member(text: str) -> str:
    if text and (len(text) > 255 or not re.fullmatch(_ELEMENT, text)):
        raise ValueError("not a member name: letters, digits and _ are allowed, a digit not first")
    return text


class BusArgs(Args):
    bus: Literal["system", "session"] = Field(default="system", description="Which bus.")


class ListArgs(BusArgs):
    pattern: str = Field(default="", max_length=255, description="A glob, or a part of the name.")
    unique: bool = Field(default=False, description="Show unique names (:1.5) too.")
    limit: int = Field(default=200, ge=1, le=1000, description="How many are shown.")


class ObjectArgs(BusArgs):
    service: Annotated[str, AfterValidator(_is_bus_name)] = Field(
        description="A bus name, such as org.freedesktop.hostname1."
    )
    path: Annotated[str, AfterValidator(_is_path)] = Field(description="An object path; / is the root.")


class IntrospectArgs(ObjectArgs):
    path: Annotated[str, AfterValidator(_is_path)] = Field(default="/", description="An object path.")
    interface: Annotated[str, AfterValidator(_is_interface)] = Field(
        default="", description="Only this interface."
    )


class PropertyArgs(ObjectArgs):
    interface: Annotated[str, AfterValidator(_is_interface)] = Field(
        min_length=3, description="The interface that the property belongs to."
    )
    name: Annotated[str, AfterValidator(_is_member)] = Field(
        default="", description="One property; all of the interface if left out."
    )


class CallArgs(ObjectArgs):
    interface: Annotated[str, AfterValidator(_is_interface)] = Field(
        min_length=3, description="The interface that the method belongs to."
    )
    member: Annotated[str, AfterValidator(_is_member)] = Field(min_length=1, description="The method's name.")
    signature: str = Field(
        default="", max_length=255, description="The types of the arguments, such as sa{sv}."
    )
    args: list[Any] = Field(
        default_factory=list,
        description="Structs and arrays are lists, dictionaries are objects, bytes (ay) are base64,"
        ' a variant is {"signature": "s", "value": "text"}.',
    )


class Dbus(Tool):
    """Services on D-Bus: names, objects, interfaces and properties; call methods."""

    name = "dbus"

    @action(taints=True)
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List the names on a bus with the process and unit that own them, and those that can be started."""
        async with _connect(args.bus) as bus:
            [running] = await _ask_daemon(bus, "ListNames")
            [startable] = await _ask_daemon(bus, "ListActivatableNames")
            names = {name for name in {*running, *startable} if args.unique or not name.startswith(":")}
            names -= {bus.unique_name}
            if args.pattern:
                glob = args.pattern if set(args.pattern) & set("*?[") else f"*{args.pattern}*"
                names = {name for name in names if fnmatch.fnmatchcase(name, glob)}
            shown = sorted(names, key=lambda name: (name.startswith(":"), name))[: args.limit]
            owners = await _owners(bus, [name for name in shown if name in running])
        rows = [
            {
                "name": name,
                "activatable": name in startable,
                "running": name in owners,
                **owners.get(name, {}),
            }
            for name in shown
        ]
        lines = [_name_line(row) for row in rows]
        more = f" {len(names) - len(shown)} more are not shown." if len(names) > len(shown) else ""
        lines.append(f"{len(names)} names.{more}")
        return Result(output="\n".join(lines), metadata={"names": rows, "total": len(names)})

    @action(taints=True)
    async def introspect(self, ctx: Context, args: IntrospectArgs) -> Result:
        """Show what an object offers: interfaces with methods, properties and signals, and its children."""
        async with _connect(args.bus) as bus, _running(bus, args.service) as owner:
            interface = f"{DAEMON}.Introspectable"
            answer = await bus.call(owner, args.path, interface, "Introspect")
        found = parsed(answer[0] if answer else "", args.path, args.service)
        interfaces = [each for each in found.interfaces if args.interface in ("", each["name"])]
        if args.interface and not interfaces:
            raise InvalidArgument(
                f"{args.path} of {args.service} has no interface {args.interface}.",
                field="interface",
                suggestion=f"It has: {', '.join(each['name'] for each in found.interfaces[:20]) or 'none'}.",
            )
        lines = [f"{args.service} {args.path}"]
        for each in interfaces:
            lines.append(f"interface {each['name']}")
            lines += [f"  {member}" for kind in ("methods", "properties", "signals") for member in each[kind]]
        if len(lines) > LINES_LIMIT:
            cut = len(lines) - LINES_LIMIT
            lines[LINES_LIMIT:] = [f"{cut} more lines are not shown: name an interface."]
        if not interfaces:
            lines.append("It has no interfaces.")
        children = found.children[:CHILDREN_LIMIT]
        if children:
            more = len(found.children) - len(children)
            lines.append(f"children: {', '.join(children)}" + (f" and {more} more" if more else ""))
        facts = {
            "interfaces": limited([each["name"] for each in found.interfaces])[0],
            "members": limited(interfaces)[0],
            "children": children,
            "children_total": len(found.children),
        }
        return Result(output="\n".join(lines), metadata=facts)

    @action(taints=True)
    async def get_property(self, ctx: Context, args: PropertyArgs) -> Result:
        """Read one property of an object, or all of one interface."""
        async with _connect(args.bus) as bus, _running(bus, args.service) as owner:
            if not args.name:
                found = await bus.properties(owner, args.path, args.interface)
            else:
                asked = [args.interface, args.name]
                [value] = await bus.call(owner, args.path, PROPERTIES, "Get", "ss", asked)
                found = {args.name: value}
        lines, values, left_out = [], {}, 0
        for name, value in sorted(found.items())[:LINES_LIMIT]:
            text, values[name], cut = value_text(value)
            left_out += cut
            lines.append(f"{printable(name)} = {text}")
        text = "\n".join(lines) or f"{args.path} has no properties of {args.interface}."
        if len(text) > VALUE_LIMIT_CHARS:
            text = f"{text[:VALUE_LIMIT_CHARS]}\n(The rest is not shown: ask for one property by its name.)"
            values = {}
        return Result(output=text, metadata={"properties": values, "left_out": left_out})

    @action(effect=Effect.CHANGE, taints=True, timeout_s=60)
    async def call(self, ctx: Context, args: CallArgs) -> Result:
        """Call a method; the arguments are checked against the signature. It may start the service."""
        values = typed_arguments(args.signature, args.args)
        limit_s = ctx.timeout_s - min(2.0, ctx.timeout_s * 0.1)
        what = f"{args.interface}.{args.member} of {args.service}"
        async with _connect(args.bus) as bus:
            try:
                answer = await bus.call(
                    args.service, args.path, args.interface, args.member, args.signature, values, limit_s
                )
            except TimedOut as err:
                raise OutcomeUnknown(
                    f"{what} was called and did not answer within {limit_s:g} s; it may still take effect.",
                    suggestion="Look at the object's state before calling again.",
                ) from err
        if not answer:
            return Result(output=f"{what} is done; it gives nothing back.", metadata={"values": []})
        shown = [value_text(value) for value in answer]
        text = "\n".join(each[0] for each in shown)[:VALUE_LIMIT_CHARS]
        left_out = sum(each[2] for each in shown)
        return Result(output=text, metadata={"values": [each[1] for each in shown], "left_out": left_out})

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """The method with its typed arguments, and who would get the call now."""
        if action != "call":
            return None
        typed_arguments(args.signature, args.args)
        values = printable(json.dumps(args.args, ensure_ascii=False))
        text = f"On the {args.bus} bus, call {args.interface}.{args.member}({values}) of {args.path}.\n"
        try:
            async with _connect(args.bus) as bus:
                owner = (await _owners(bus, [args.service])).get(args.service)
        except Unavailable as err:
            return Preview(text=f"{text}Who is {args.service} cannot be seen: {err.message}\n")
        if owner is None:
            return Preview(text=f"{text}{args.service} does not run now; the call may start it.\n")
        row = {"name": args.service, "running": True, "activatable": False, **owner}
        return Preview(text=f"{text}It goes to {_name_line(row)}.\n")


@contextlib.asynccontextmanager
async def _connect(kind: str) -> "AsyncIterator[Bus]":
    from lightagentd.bus import connection as bus

    async with bus.connect(kind) as connection:
        yield connection


async def _ask_daemon(bus: "Bus", member: str, signature: str = "", args: Any = ()) -> Any:
    return await bus.call(DAEMON, DAEMON_PATH, DAEMON, member, signature, args)


@contextlib.asynccontextmanager
async def _running(bus: "Bus", service: str) -> AsyncIterator[str]:
    """The connection that owns the name now, so that no message starts a service; errors keep the name."""
    try:
        [owner] = await _ask_daemon(bus, "GetNameOwner", "s", [service])
    except NoSuchName as err:
        [startable] = await _ask_daemon(bus, "ListActivatableNames")
        hint = "A method call would start it." if service in startable else "List the names on the bus."
        raise Unavailable(
            f"Nobody owns the bus name {service} now, as far as observe can see.", suggestion=hint
        ) from err
    try:
        yield owner
    except PermissionDenied as err:
        if err.message != FILTERED:
            raise
        raise PermissionDenied(
            f"{service} is on the bus, but not visible to observe.",
            suggestion="An administrator can add the name to bus_names in [worker] of lightagentd.toml.",
        ) from err
    except LightagentError as err:
        err.message = err.message.replace(owner, service)
        raise


async def _owners(bus: "Bus", names: list[str]) -> dict[str, dict[str, Any]]:
    """Process id, user id, command and unit of the connections that own the names, where they are known."""
    limit = asyncio.Semaphore(ASKED_AT_ONCE)  # dbus-daemon bounds the replies that a connection waits for

    async def of(name: str) -> tuple[str, dict[str, Any] | None]:
        async with limit:
            try:
                [found] = await _ask_daemon(bus, "GetConnectionCredentials", "s", [name])
            except Unavailable:
                return name, None  # it has left meanwhile
            except LightagentError:
                return name, {}
        pid, uid = found.get("ProcessID"), found.get("UnixUserID")
        return name, {"pid": pid, "uid": uid, **(_process(pid) if pid else {})}

    rows = await asyncio.gather(*(of(name) for name in names))
    return {name: row for name, row in rows if row is not None}


def _process(pid: int) -> dict[str, str]:
    """From /proc, as far as this user may see it; the unit is the last one in the path of its cgroup."""
    found = {"process": "", "unit": ""}
    with contextlib.suppress(OSError):
        found["process"] = visible(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n"))
    with contextlib.suppress(OSError):
        parts = re.split(r"[/\n]", Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace"))
        units = [part for part in parts if part.endswith((".service", ".scope"))]
        found["unit"] = printable(units[-1]) if units else ""
    return found


def _name_line(row: dict[str, Any]) -> str:
    if not row["running"]:
        return f"{row['name']}  (not running, can be started)"
    facts = [f"{key} {row[key]}" for key in ("pid", "uid") if row.get(key) is not None]
    facts += [str(row[key]) for key in ("process", "unit") if row.get(key)]
    return f"{row['name']}  {', '.join(facts)}{', activatable' if row['activatable'] else ''}"
