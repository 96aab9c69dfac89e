"""The standard error replies of D-Bus, with the same wording for existing and unknown objects.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html#standard-interfaces
"""

from __future__ import annotations

from lightagentd.bus.connection import Call, Reply

_STANDARD = "org.freedesktop.DBus.Error."


def unknown_object(path: str) -> Reply:
    """The same error for objects that the caller may not see and for paths that never existed."""
    return Reply(error=_STANDARD + "UnknownObject", args=[f"There is no object {path}."])


def unknown_interface(call: Call) -> Reply:
    text = f"The object {call.path} has no interface {call.interface}. Introspect it to see what it has."
    return Reply(error=_STANDARD + "UnknownInterface", args=[text])


def unknown_method(call: Call) -> Reply:
    of = f"{call.interface}.{call.member}" if call.interface else call.member
    text = f"The object {call.path} has no method {of}. Introspect it to see what it has."
    return Reply(error=_STANDARD + "UnknownMethod", args=[text])


def invalid_args(call: Call, expected: str, usage: str) -> Reply:
    """The error for a call with another signature than `expected`. `usage` shows the arguments with their
    names.
    """
    text = (
        f"{call.member} takes the signature '{expected}', and the call has '{call.signature}'. "
        f"Call it as {usage}."
    )
    return Reply(error=_STANDARD + "InvalidArgs", args=[text])


def unknown_property(interface: str, name: str) -> Reply:
    text = f"The interface {interface} has no property {name}."
    return Reply(error=_STANDARD + "UnknownProperty", args=[text])


def read_only(interface: str, name: str) -> Reply:
    text = f"The property {interface}.{name} can only be read."
    return Reply(error=_STANDARD + "PropertyReadOnly", args=[text])
