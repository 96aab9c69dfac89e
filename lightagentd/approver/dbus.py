"""The approver on the bus, for desktops and Cockpit: org.lightagent1.Approver at /org/lightagent1/Approver.

The bus says who calls, and polkit is asked about the caller's name there. The statement and what the daemon
says are JSON texts: the digest is that of the first one, so a client that shows it need not write it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from lightagentd.approver.answering import Answering
from lightagentd.approver.request import Request
from lightagentd.bus.connection import Bus, Call, Door, Entrance, Reply, Variant
from lightagentd.control.authz import Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.control.dbus.name import BusName
from lightagentd.control.dbus.peers import identify
from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, MethodNotFound, NotFound
from lightagentd.policy.panic import Panic
from lightagentd.signed.statement import canonical
from lightagentd.varlink.interaction import INTERACTION

NAME, PATH = "org.lightagent1.Approver", "/org/lightagent1/Approver"
CALLS, CALLS_OF_PEER, CALL_BYTES = 256, 4, 64 << 10
SIGNALS = 1000
"""So many wait for the bus; later ones are dropped, as for a client that does not listen."""
_FREEDESKTOP = "org.freedesktop.DBus"
_FACTS = ("agent", "tool", "action", "effect", "session", "owner")
_XML = """<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
<node>
  <interface name="org.lightagent1.Approver">
    <method name="List"><arg name="requests" type="aa{sv}" direction="out"/></method>
    <method name="Get">
      <arg name="approval" type="s" direction="in"/><arg name="request" type="a{sv}" direction="out"/>
    </method>
    <method name="Approve">
      <arg name="approval" type="s" direction="in"/><arg name="digest" type="s" direction="in"/>
      <arg name="options" type="a{sv}" direction="in"/><arg name="request" type="a{sv}" direction="out"/>
    </method>
    <method name="Deny">
      <arg name="approval" type="s" direction="in"/><arg name="options" type="a{sv}" direction="in"/>
      <arg name="request" type="a{sv}" direction="out"/>
    </method>
    <method name="Leaves"><arg name="leaves" type="aa{sv}" direction="out"/></method>
    <method name="Withdraw"><arg name="leave" type="s" direction="in"/></method>
    <property name="Panic" type="a{sv}" access="read">
      <annotation name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="false"/>
    </property>
    <signal name="Changed"><arg name="approval" type="s"/><arg name="state" type="s"/></signal>
  </interface>
  <interface name="org.freedesktop.DBus.Properties">
    <method name="Get">
      <arg name="interface" type="s" direction="in"/><arg name="property" type="s" direction="in"/>
      <arg name="value" type="v" direction="out"/>
    </method>
    <method name="GetAll">
      <arg name="interface" type="s" direction="in"/><arg name="properties" type="a{sv}" direction="out"/>
    </method>
  </interface>
  <interface name="org.freedesktop.DBus.Introspectable">
    <method name="Introspect"><arg name="xml_data" type="s" direction="out"/></method>
  </interface>
  <interface name="org.freedesktop.DBus.Peer"><method name="Ping"/></interface>
</node>
"""


class ApproverObject:
    """The one object. It serves each connection that its link makes."""

    def __init__(self, link: BusLink, answering: Answering, panic: Panic) -> None:
        self._link, self._answering, self._panic = link, answering, panic
        self._name: BusName | None = None
        self._signals: asyncio.Queue[tuple[str, str]] = asyncio.Queue(SIGNALS)
        self._methods: dict[str, tuple[str, Callable[[Caller, list[Any]], Awaitable[Reply]]]] = {
            "List": ("", self._list),
            "Get": ("s", self._get),
            "Approve": ("ssa{sv}", self._approve),
            "Deny": ("sa{sv}", self._deny),
            "Leaves": ("", self._leaves),
            "Withdraw": ("s", self._withdraw),
        }

    @property
    def problem(self) -> str:
        """Why it has no name on the bus, as a sentence; empty when it has."""
        return self._link.problem or (self._name.problem if self._name is not None else "")

    async def connected(self, bus: Bus) -> None:
        """Serve a new connection."""
        await self.close()
        bus.serve(lambda call: self._answer(bus, call), CALLS, _FewCalls())
        self._name = BusName(bus, NAME)
        await self._name.acquire()

    async def close(self) -> None:
        if self._name is not None:
            await self._name.close()

    def changed(self, request: Request) -> None:
        """Tell whoever listens that a request is new, or was answered."""
        if self._link.bus is not None and not self._signals.full():
            self._signals.put_nowait((request.id, request.state))

    async def run(self) -> None:
        """Send the signals. Never returns."""
        while True:
            args = await self._signals.get()
            with contextlib.suppress(LightagentError):
                if (bus := self._link.bus) is not None:
                    await bus.emit(PATH, NAME, "Changed", "ss", args)

    async def _answer(self, bus: Bus, call: Call) -> Reply:
        """Raises LightagentError."""
        match call.interface, call.member:
            case "org.freedesktop.DBus.Peer", "Ping":
                return Reply()
            case "org.freedesktop.DBus.Introspectable", "Introspect":
                return Reply(signature="s", args=[_XML if call.path == PATH else _above(call.path)])
        if call.path != PATH:
            raise NotFound(f"There is no object {call.path}.")
        if call.interface == f"{_FREEDESKTOP}.Properties":
            return self._property(call)
        signature, method = self._methods.get(call.member, ("", None))
        if method is None or call.interface not in ("", NAME):
            raise MethodNotFound(f"There is no method {call.interface}.{call.member}.")
        if call.signature != signature:
            raise InvalidArgument(f"{call.member} takes ({signature}) and not ({call.signature}).")
        INTERACTION.set(call.interactive)
        return await method(await identify(bus, call.sender), call.args)

    def _property(self, call: Call) -> Reply:
        if call.args[:1] != [NAME] or (call.member == "Get" and call.args[1:] != ["Panic"]):
            raise NotFound("There is no such property.")
        stop = self._panic.stop
        found = {} if stop is None else _variants(asdict(stop))
        if call.member == "Get":
            return Reply(signature="v", args=[Variant("a{sv}", found)])
        if call.member == "GetAll":
            return Reply(signature="a{sv}", args=[{"Panic": Variant("a{sv}", found)}])
        raise MethodNotFound(f"There is no method {call.member}.")

    async def _list(self, caller: Caller, args: list[Any]) -> Reply:  # noqa: ARG002
        found = await self._answering.listed(caller)
        return Reply(signature="aa{sv}", args=[[_entry(one) for one in found]])

    async def _get(self, caller: Caller, args: list[Any]) -> Reply:
        found = await self._answering.get(caller, args[0])
        texts = {"statement": canonical(found["statement"]).decode(), "said": json.dumps(found["said"])}
        return Reply(signature="a{sv}", args=[_entry(found) | _variants(texts)])

    async def _approve(self, caller: Caller, args: list[Any]) -> Reply:
        found = await self._answering.approve(caller, *args)
        return Reply(signature="a{sv}", args=[_entry(found)])

    async def _deny(self, caller: Caller, args: list[Any]) -> Reply:
        note = args[1].get("note", "")
        if args[1].keys() - {"note"} or not isinstance(note, str):
            raise InvalidArgument("Deny has one option, the text note.")
        found = await self._answering.deny(caller, args[0], note=note)
        return Reply(signature="a{sv}", args=[_entry(found)])

    async def _leaves(self, caller: Caller, args: list[Any]) -> Reply:  # noqa: ARG002
        found = await self._answering.leaves(caller)
        return Reply(signature="aa{sv}", args=[[_leave(one) for one in found]])

    async def _withdraw(self, caller: Caller, args: list[Any]) -> Reply:
        await self._answering.withdraw(caller, args[0])
        return Reply()


def _entry(request: Mapping[str, Any]) -> dict[str, Variant]:
    facts = {name: request[name] for name in ("id", "state", "digest", "created_us", "expires_us", "note")}
    return _variants(facts | {name: request["statement"][name] for name in _FACTS} | {"by": request["by"]})


def _leave(found: Mapping[str, Any]) -> dict[str, Variant]:
    names = ("id", "tainted", "by", "created_us", "until_us", "left")
    statement = found["statement"]
    facts = {name: statement[name] for name in _FACTS}
    texts = {"statement": canonical(statement).decode(), "terms": json.dumps(found["terms"])}
    return _variants({name: found[name] for name in names} | facts | texts)


def _variants(found: Mapping[str, Any]) -> dict[str, Variant]:
    """What is None is left out."""
    types = {bool: "b", int: "x", str: "s"}
    return {name: Variant(types[type(one)], one) for name, one in found.items() if one is not None}


def _above(path: str) -> str:
    """The introspection of an object above the one that there is."""
    rest = PATH.removeprefix(path.rstrip("/") + "/").split("/")
    child = f'<node name="{rest[0]}"/>' if rest[0] and PATH.startswith(path.rstrip("/") + "/") else ""
    return f"<node>{child}</node>"


class _FewCalls(Door):
    """Few and small calls of each program on the bus at a time."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()

    def enter(self, call: Call, body_bytes: int) -> Entrance:
        if body_bytes > CALL_BYTES or self.running[call.sender] >= CALLS_OF_PEER:
            raise LimitExceeded(
                "Calls are too large, or too many at once.", suggestion="Wait for the answers."
            )
        return _One(self.running, call.sender)


class _One(Entrance):
    def __init__(self, running: Counter[str], sender: str) -> None:
        self._running, self._sender = running, sender
        running[sender] += 1

    def left(self) -> None:
        self._running[self._sender] -= 1
        if not self._running[self._sender]:
            del self._running[self._sender]
