"""A notification server: `python -m tests.desktop.notification_server ADDRESS CAPABILITY…`.

It is made with the service layer of dbus-next alone, so nothing of the product answers to itself. Signatures
are those of https://specifications.freedesktop.org/notification-spec/latest/. Each call becomes a line of
JSON on standard output. Each line on standard input is an order: `["click", ID, KEY]` presses a button, as a
server does that then closes the notification, `["close", ID, REASON]` closes one, `["refuse", TRUE]` has it
answer with errors.
"""

# No `from __future__ import annotations`: dbus-next reads the annotations as D-Bus signatures, which are no types.
# mypy: disable-error-code="attr-defined, name-defined, no-untyped-call, no-untyped-def, untyped-decorator, valid-type"
# ruff: noqa: E501, F722, F821
import asyncio
import json
import sys
from typing import Any

from dbus_next.aio import MessageBus
from dbus_next.errors import DBusError
from dbus_next.service import ServiceInterface, method, signal

NAME = "org.freedesktop.Notifications"


def say(what: str, **data: Any) -> None:
    print(json.dumps({"what": what, **data}), flush=True)


class Notifications(ServiceInterface):
    """The interface, with a screen that is a dictionary."""

    def __init__(self, capabilities: list[str]) -> None:
        super().__init__(NAME)
        self.capabilities = capabilities
        self.on_screen: dict[int, str] = {}
        self.last = 0
        self.refuses = False

    @method()
    def GetCapabilities(self) -> "as":
        return self.capabilities

    @method()
    def GetServerInformation(self) -> "ssss":
        return ["test", "test", "1", "1.2"]

    @method()
    def Notify(
        self,
        app_name: "s",
        replaces_id: "u",
        app_icon: "s",
        summary: "s",
        body: "s",
        actions: "as",
        hints: "a{sv}",
        expire_timeout: "i",
    ) -> "u":
        if self.refuses:
            raise DBusError(f"{NAME}.Error.ExcessNotificationGeneration", "too many")
        self.last += 1
        self.on_screen[self.last] = summary
        say(
            "notify",
            id=self.last,
            replaces=replaces_id,
            app=app_name,
            icon=app_icon,
            summary=summary,
            body=body,
            actions=actions,
            hints={name: variant.value for name, variant in hints.items()},
            expires_ms=expire_timeout,
        )
        return self.last

    @method()
    def CloseNotification(self, number: "u"):
        if number not in self.on_screen:
            raise DBusError("org.freedesktop.DBus.Error.InvalidArgs", "there is no such notification")
        del self.on_screen[number]
        say("closed", id=number)
        self.NotificationClosed(number, 3)

    @signal()
    def ActionInvoked(self, number, key) -> "us":
        return [number, key]

    @signal()
    def NotificationClosed(self, number, reason) -> "uu":
        return [number, reason]


async def main(address: str, capabilities: list[str]) -> None:
    bus = await MessageBus(bus_address=address).connect()
    served = Notifications(capabilities)
    bus.export("/org/freedesktop/Notifications", served)
    await bus.request_name(NAME)
    say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, *rest = json.loads(line)
        if order == "click":
            served.ActionInvoked(*rest)
            if served.on_screen.pop(rest[0], None) is not None:
                served.NotificationClosed(rest[0], 2)
        elif order == "close":
            served.on_screen.pop(rest[0], None)
            served.NotificationClosed(*rest)
        elif order == "refuse":
            [served.refuses] = rest
        say("done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
