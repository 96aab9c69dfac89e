"""What the errors of D-Bus peers are called here: one table, used by `lightagentd/bus.py`."""

from __future__ import annotations

from lightagentd import errors
from lightagentd.errors import LightagentError

SYSTEMD_NAME = "org.freedesktop.systemd1"
"""Where nobody owns this name, the error is SystemdUnavailable, not just Unavailable."""

# D-Bus error name: our class. A name that ends in "." stands for all names that begin with it.
_ERRORS: dict[str, type[LightagentError]] = {
    "org.freedesktop.DBus.Error.AccessDenied": errors.PermissionDenied,
    "org.freedesktop.DBus.Error.AuthFailed": errors.PermissionDenied,
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired": errors.PermissionDenied,
    "org.freedesktop.PolicyKit1.Error.NotAuthorized": errors.PermissionDenied,
    "org.freedesktop.DBus.Error.ServiceUnknown": errors.Unavailable,
    "org.freedesktop.DBus.Error.NameHasNoOwner": errors.Unavailable,
    "org.freedesktop.DBus.Error.Spawn.": errors.Unavailable,
    "org.freedesktop.DBus.Error.NoServer": errors.Unavailable,
    "org.freedesktop.DBus.Error.Disconnected": errors.Unavailable,
    "org.freedesktop.DBus.Error.NoReply": errors.Unavailable,
    "org.freedesktop.DBus.Error.Timeout": errors.TimedOut,
    "org.freedesktop.DBus.Error.TimedOut": errors.TimedOut,
    "org.freedesktop.DBus.Error.UnknownMethod": errors.MethodNotFound,
    "org.freedesktop.DBus.Error.UnknownInterface": errors.MethodNotFound,
    "org.freedesktop.DBus.Error.UnknownObject": errors.NotFound,
    "org.freedesktop.DBus.Error.UnknownProperty": errors.NotFound,
    "org.freedesktop.DBus.Error.FileNotFound": errors.NotFound,
    "org.freedesktop.DBus.Error.InvalidArgs": errors.InvalidArgument,
    "org.freedesktop.DBus.Error.InvalidSignature": errors.InvalidArgument,
    "org.freedesktop.DBus.Error.PropertyReadOnly": errors.Conflict,
    "org.freedesktop.DBus.Error.LimitsExceeded": errors.LimitExceeded,
    "org.freedesktop.systemd1.NoSuchUnit": errors.NotFound,
    "org.freedesktop.systemd1.NoSuchJob": errors.NotFound,
    "org.freedesktop.systemd1.NoUnitForPID": errors.NotFound,
    "org.freedesktop.systemd1.UnitMasked": errors.Conflict,
    "org.freedesktop.systemd1.JobTypeNotApplicable": errors.Conflict,
    "org.freedesktop.systemd1.OnlyByDependency": errors.Conflict,
    "org.freedesktop.systemd1.TransactionIsDestructive": errors.Conflict,
    "org.freedesktop.systemd1.ShuttingDown": errors.Unavailable,
    **{row.dbus: row.cls for row in errors.table()},
}
_SUGGESTIONS: dict[type[LightagentError], str] = {
    errors.PermissionDenied: "polkit or the bus policy refused this user; ask an administrator to allow it.",
    errors.Unavailable: "Check that the service is installed and running, then try again.",
    errors.SystemdUnavailable: "Units can only be seen and changed where systemd is the running init system.",
    errors.MethodNotFound: "Introspect the object to see what it offers.",
}


def error_for(name: str, text: str, destination: str) -> LightagentError:
    """Our error for a D-Bus error reply; a name that the table does not know becomes a ToolError."""
    cls = next((c for n, c in _ERRORS.items() if name == n or (n.endswith(".") and name.startswith(n))), None)
    said = " ".join(text.split())[:600]
    if cls is None:
        return errors.ToolError(f"{destination} answered with the error {name}: {said}")
    if cls is errors.Unavailable and destination == SYSTEMD_NAME:
        cls = errors.SystemdUnavailable
        said = f"systemd does not answer on this bus: {said}"
    return cls(said or f"{destination} answered with {name}.", suggestion=_SUGGESTIONS.get(cls, ""))
