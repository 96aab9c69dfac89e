"""The objects of the D-Bus plane: agents, sessions, approvals and turns, with properties and change signals.

The plane (`plane.py`) uses `Objects` like this:

- `call` answers `Properties`, `ObjectManager` and `Manager.Subscribe/Unsubscribe` on /org/lightagent1, and
  returns None for other calls there, which are the plane's own methods. It answers every call on paths below
  agents, sessions, approvals and turns, also with errors. It raises LightagentError.
- `introspect` returns the node of a path, None for an object that does not exist for this caller. The node of
  /org/lightagent1 is merged with the plane's own: its interface Manager holds the properties and the two
  methods. Raises PermissionDenied.
- `peer_left` is called with each unique name that left the bus, `bus_lost` when the connection ended (names
  start anew with the next connection), and `close` at the end.
- `emit` sends one signal to one peer. `prompt` begins a turn for `Agent.Prompt` and `Session.Prompt` with the
  arguments of `Sessions.Prompt` by name, and returns the reply `oo` of `Manager.Prompt`.

An object that a caller may not see gives the same error as a path that never existed. A peer that asks for
properties or for the list of all objects receives changes from then on (watchers.py), by signals to it alone.
While no peer watches, nothing is computed (changes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.bus.connection import Call, Reply
from lightagentd.control.authz import Caller
from lightagentd.control.dbus import replies
from lightagentd.control.dbus.changes import Changes
from lightagentd.control.dbus.methods import MANAGER as MANAGER_INTERFACE
from lightagentd.control.dbus.methods import Method, methods
from lightagentd.control.dbus.object_methods import PROMPT, argument_of, methods_of
from lightagentd.control.dbus.object_nodes import Node, interfaces_of, root_node
from lightagentd.control.dbus.properties import INTERFACE as PROPERTIES
from lightagentd.control.dbus.properties import properties, values
from lightagentd.control.dbus.types import ROOT
from lightagentd.control.dbus.views import (
    MANAGER,
    SESSION,
    Key,
    Views,
    key_of,
    kind_of_folder,
)
from lightagentd.control.dbus.watchers import OBJECT_MANAGER, Emit, Watcher, Watchers
from lightagentd.control.operations.service import Service
from lightagentd.errors import LimitExceeded, NotFound, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

Prompt = Callable[[Caller, dict[str, Any]], Awaitable[Reply]]
"""caller, arguments by name (`text`, and `agent` or `session`, and the options)."""
Answer = Callable[[Caller, Key, Call], Awaitable[Reply]]
_STANDARD = "org.freedesktop.DBus."


class Telling:
    """An answer about the present state, and the watcher that receives changes from then on, if any."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.watcher = watcher
        self.replied = False

    def reply(self, signature: str, *args: Any) -> Reply:
        """The answer. No signal is sent before it."""
        if self.watcher is None:
            return Reply(signature=signature, args=args)
        self.replied = True
        return Reply(signature=signature, args=args, after=self.watcher.answered)


class Objects:
    """End with `close()`."""

    def __init__(self, runtime: Runtime, service: Service, emit: Emit, prompt: Prompt) -> None:
        self._service, self._subscriptions, self._prompt = service, runtime.subscriptions, prompt
        self._views = Views(service, runtime.registry)
        self.watchers = Watchers(self._views, runtime.authority, emit, self._end_changes)
        self.changes: Changes | None = None
        """There while somebody is told."""
        self._ending: set[asyncio.Task[None]] = set()
        self._of_objects: dict[tuple[str, str], tuple[str, Answer]] = {
            (PROPERTIES, "Get"): ("ss", self._get),
            (PROPERTIES, "GetAll"): ("s", self._get_all),
            (PROPERTIES, "Set"): ("ssv", self._set),
        }
        self._of_root: dict[tuple[str, str], tuple[str, Answer]] = {
            **self._of_objects,
            (OBJECT_MANAGER, "GetManagedObjects"): ("", self._managed_objects),
            (MANAGER_INTERFACE, "Subscribe"): ("", self._subscribe),
            (MANAGER_INTERFACE, "Unsubscribe"): ("", self._unsubscribe),
        }

    async def close(self) -> None:
        self._end_changes()
        await self.watchers.close()
        if self._ending:
            await asyncio.wait(self._ending)

    def peer_left(self, name: str) -> None:
        self.watchers.remove(name)

    def bus_lost(self) -> None:
        self.watchers.clear()

    # Calls

    async def call(self, caller: Caller, call: Call) -> Reply | None:
        key = key_of(call.path)
        if key is None:
            return await self._call_of_folder(call)
        table = self._of_root if key == MANAGER else self._of_objects
        for (interface, member), (signature, answer) in table.items():
            if member == call.member and call.interface in (interface, ""):
                if call.signature != signature:
                    return replies.invalid_args(call, signature, f"{interface}.{member}({signature})")
                return await self._for_object(key, answer(caller, key, call))
        if key == MANAGER:
            return None
        method = methods_of(key.kind).get(call.member)
        if method is not None and call.interface in (key.kind.interface, ""):
            return await self._for_object(key, self._call_method(caller, key, method, call))
        return await self._for_object(key, self._nothing_such(caller, key, call))

    async def _for_object(self, key: Key, answering: Awaitable[Reply]) -> Reply:
        """All calls on an object that does not exist for the caller get the same error."""
        try:
            return await answering
        except NotFound:
            return replies.unknown_object(key.path)

    async def _call_of_folder(self, call: Call) -> Reply:
        if kind_of_folder(call.path) is None:
            return replies.unknown_object(call.path)
        return replies.unknown_method(call)

    async def _nothing_such(self, caller: Caller, key: Key, call: Call) -> Reply:
        await self._views.get(caller, key)
        known = call.interface in (key.kind.interface, PROPERTIES, "") or call.interface.startswith(_STANDARD)
        return replies.unknown_method(call) if known else replies.unknown_interface(call)

    async def _call_method(self, caller: Caller, key: Key, method: Method, call: Call) -> Reply:
        own = {argument_of(key.kind, method): key.name}
        if method.name == PROMPT:
            args = method.parse(call)
            return args if isinstance(args, Reply) else await self._prompt(caller, args | own)

        def invoke(service: Service, caller: Caller, args: dict[str, Any]) -> Any:
            return method.invoke(service, caller, args | own)

        return await replace(method, invoke=invoke).call(self._service, caller, call)

    # Properties

    async def _get(self, caller: Caller, key: Key, call: Call) -> Reply:
        interface, name = call.args
        async with self._telling(caller, must=False) as told:
            view = await self._views.get(caller, key)
            if (missing := self._no_interface(key, interface, call)) is not None:
                return missing
            found = properties(key.kind).get(name) if interface in (key.kind.interface, "") else None
            if found is None:
                return replies.unknown_property(interface, name)
            return told.reply("v", found.of(view))

    async def _get_all(self, caller: Caller, key: Key, call: Call) -> Reply:
        [interface] = call.args
        async with self._telling(caller, must=False) as told:
            view = await self._views.get(caller, key)
            if (missing := self._no_interface(key, interface, call)) is not None:
                return missing
            found = values(key, view) if interface in (key.kind.interface, "") else {}
            return told.reply("a{sv}", found)

    async def _set(self, caller: Caller, key: Key, call: Call) -> Reply:
        interface, name, _ = call.args
        await self._views.get(caller, key)
        if (missing := self._no_interface(key, interface, call)) is not None:
            return missing
        if interface not in (key.kind.interface, "") or name not in properties(key.kind):
            return replies.unknown_property(interface, name)
        return replies.read_only(interface or key.kind.interface, name)

    @staticmethod
    def _no_interface(key: Key, interface: str, call: Call) -> Reply | None:
        """The error for an interface that the object does not have."""
        own = {"", key.kind.interface, PROPERTIES, f"{_STANDARD}Introspectable", f"{_STANDARD}Peer"}
        if key == MANAGER:
            own |= {OBJECT_MANAGER, *(method.interface for method in methods().values())}
        if interface in own:
            return None
        return replies.unknown_interface(replace(call, interface=interface))

    # Watching

    async def _managed_objects(self, caller: Caller, key: Key, call: Call) -> Reply:
        del key, call
        async with self._telling(caller, must=True) as told:
            watcher = told.watcher
            assert watcher is not None
            found = await self._views.everything(caller)
            with suppress(PermissionDenied):  # a person was asked, but only for this call
                await watcher.check_rights()
            known = self.changes.known if self.changes is not None else {}
            watcher.left_out = {one for one in known if one.kind is SESSION and one not in found}
            objects = {one.path: {one.kind.interface: values(one, view)} for one, view in found.items()}
            return told.reply("a{oa{sa{sv}}}", objects)

    async def _subscribe(self, caller: Caller, key: Key, call: Call) -> Reply:
        del call
        async with self._telling(caller, must=True) as told:
            watcher = told.watcher
            assert watcher is not None
            await self._views.get(caller, key)
            await watcher.check_rights()
            return told.reply("")

    async def _unsubscribe(self, caller: Caller, key: Key, call: Call) -> Reply:
        await self._views.get(caller, key)
        self.watchers.remove(call.sender)
        return Reply()

    @asynccontextmanager
    async def _telling(self, caller: Caller, *, must: bool) -> AsyncGenerator[Telling]:
        """A block that makes an answer. After it the caller receives changes, unless the block fails. When
        there is no room for another watcher there is none, or with `must` LimitExceeded is raised. What the
        block reads is not older than the state that changes are compared with, or some would be missed.
        """
        watcher, is_new = self.watchers.get(caller.bus_name), False
        try:
            if watcher is None:
                self.watchers.check_room(caller)
                self._begin_changes()
                assert self.changes is not None
                watcher, is_new = self.watchers.add(caller, self.changes.known), True
        except LimitExceeded:
            if must:
                raise
            yield Telling()
            return
        telling = Telling(watcher)
        watcher.asks()
        try:
            if self.changes is not None:
                await self.changes.ready()
            yield telling
        except BaseException:
            telling.replied = False
            raise
        finally:
            if not telling.replied:
                watcher.answered()
            if is_new and not telling.replied:
                self.watchers.remove(caller.bus_name)

    def _begin_changes(self) -> None:
        if self.changes is None:
            self.changes = Changes(self._views, self._subscriptions, self.watchers.tell)
            self.changes.start()

    def _end_changes(self) -> None:
        changes, self.changes = self.changes, None
        if changes is not None:
            task = asyncio.create_task(changes.stop(), name="dbus-changes-end")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    # Introspection

    async def introspect(self, caller: Caller, path: str) -> Node | None:
        if path == ROOT:
            return root_node()
        if (kind := kind_of_folder(path)) is not None:
            listed = await self._views.of_kind(caller, kind)
            return Node(children=[key.path.rpartition("/")[2] for key in listed])
        key = key_of(path)
        if key is None:
            return None
        with suppress(NotFound):
            await self._views.get(caller, key)
            return Node(interfaces=interfaces_of(key.kind))
        return None
