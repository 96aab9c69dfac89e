"""A client on a bus, with a uid of its own: a program for tests/prepared.py with the arguments ADDRESS UID.

Each line on standard input is a JSON array; for each it prints one JSON value:

- `["call", path, interface, member, signature, [args…]]`: the reply of org.lightagent1, or of the approver
  for its path, `{"reply": […]}` or `{"error": [name, text]}`; a dictionary of the type `a{sv}` is
  `{name: [signature, value]}`;
- `["match", rule]`: receive what fits from now on, or the error that says why not;
- `["wait", member, part, count]`: the signals that came so far, as soon as so many of these have the member
  and the text in them;
- `["signals"]`: the signals that came so far, `[path, interface, member, args]`;
- `["own", name]`: try to own a name;
- `["monitor"]`: try to become one who sees all that goes over the bus.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any, Self

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from lightagentd.bus.connection import plain
from tests.other_user import OUTSIDERS_GID
from tests.prepared import BUS_CLIENT, REPOSITORY, Forked, prepared

NAME = "org.lightagent1"
APPROVER, APPROVER_PATH = "org.lightagent1.Approver", "/org/lightagent1/Approver"
DAEMON = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
PATIENCE_S = 60.0


class RawBus:
    """One connection of the library's own, which keeps every signal, and gives errors with their names."""

    def __init__(self, address: str) -> None:
        made: Any = MessageBus
        self.bus = made(bus_address=address)
        self.signals: list[list[Any]] = []
        self.arrived = asyncio.Condition()
        self._notifying: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        await self.bus.connect()
        self.bus.add_message_handler(self._keep)

    def _keep(self, message: Any) -> None:
        """Signals that are not the bus' own."""
        if message.message_type is MessageType.SIGNAL and message.sender != DAEMON[0]:
            self.signals.append(
                [message.path, message.interface, message.member, [plain(one) for one in message.body]]
            )
            task = asyncio.get_running_loop().create_task(self._notify())
            self._notifying.add(task)
            task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def call(self, path: str, interface: str, member: str, signature: str, args: list[Any]) -> Any:
        values = [
            {name: Variant(*pair) for name, pair in arg.items()} if isinstance(arg, dict) else arg
            for arg in args
        ]
        if signature.endswith("v") and not signature.endswith("{sv}"):
            values[-1] = Variant(*values[-1])
        name = APPROVER if path.startswith(APPROVER_PATH) else NAME
        return await self.ask(name, path, interface, member, signature, values)

    async def ask(
        self, to: str, path: str, interface: str, member: str, signature: str, args: list[Any]
    ) -> Any:
        made: Any = Message
        message = made(
            destination=to, path=path, interface=interface, member=member, signature=signature, body=args
        )
        async with asyncio.timeout(PATIENCE_S):
            reply = await self.bus.call(message)
        if reply.message_type is MessageType.ERROR:
            return {"error": [reply.error_name, *reply.body]}
        return {"reply": [plain(value) for value in reply.body]}

    def having(self, member: str, part: str) -> list[list[Any]]:
        return [one for one in self.signals if one[2] == member and part in json.dumps(one)]

    async def wait(self, member: str, part: str, count: int) -> list[list[Any]]:
        async with asyncio.timeout(PATIENCE_S), self.arrived:
            await self.arrived.wait_for(lambda: len(self.having(member, part)) >= count)
        return self.signals

    async def answer(self, command: str, *args: Any) -> Any:
        if command == "call":
            return await self.call(*args)
        if command == "match":
            return await self.ask(*DAEMON, "AddMatch", "s", [*args])
        if command == "own":
            return await self.ask(*DAEMON, "RequestName", "su", [*args, 0])
        if command == "monitor":
            to, path, _ = DAEMON
            return await self.ask(
                to, path, "org.freedesktop.DBus.Monitoring", "BecomeMonitor", "asu", [[], 0]
            )
        return await self.wait(*args) if command == "wait" else self.signals


class BusClient:
    """The other end: such a client as a process, as an async context manager."""

    def __init__(self, address: str, uid: int) -> None:
        self._argv = [address, str(uid)]
        self._process: Forked
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            streams = (theirs.fileno(), theirs.fileno(), 2)
            env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
            self._process = prepared().fork(BUS_CLIENT, self._argv, env, REPOSITORY, streams)
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=64 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await asyncio.to_thread(self._process.wait, PATIENCE_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def do(self, *command: Any) -> Any:
        self._writer.write(json.dumps(command).encode() + b"\n")
        return json.loads(await self._reader.readline())

    async def call(self, path: str, method: str, signature: str = "", *args: Any) -> Any:
        """The values of the reply, or `{"error": […]}`."""
        interface, _, member = method.rpartition(".")
        answer = await self.do("call", path, interface, member, signature, args)
        return answer.get("reply", answer)

    async def get(self, path: str, interface: str, name: str) -> Any:
        found = await self.call(path, "org.freedesktop.DBus.Properties.Get", "ss", interface, name)
        return found[0] if isinstance(found, list) else found


async def serve(address: str) -> None:
    loop = asyncio.get_running_loop()
    raw = RawBus(address)
    await raw.connect()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    os.set_blocking(sys.stdin.fileno(), True)  # standard output is the same socket
    while line := await lines.readline():
        print(json.dumps(await raw.answer(*json.loads(line))), flush=True)


def become(uid: int) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(OUTSIDERS_GID, OUTSIDERS_GID, OUTSIDERS_GID)
        os.setresuid(uid, uid, uid)


def main() -> None:
    become(int(sys.argv[2]))
    asyncio.run(serve(sys.argv[1]))
