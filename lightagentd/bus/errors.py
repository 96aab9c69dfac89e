"""Maps the errors of D-Bus peers to ours, for `bus/connection.py`."""

from __future__ import annotations

from lightagentd import errors
from lightagentd.errors import LightagentError

SYSTEMD_NAME = "org.freedesktop.systemd1"
"""Where nobody owns this name, the error is SystemdUnavailable, not just Unavailable."""

_INTERACTION_REQUIRED = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"


class NoSuchName(errors.Unavailable):
    """Nobody owns the bus name, and nothing can be started for it."""


class NoAnswer(errors.Unavailable):
    """The bus or the service went away after the message was sent: it may have done what it says."""


class Masked(errors.Conflict):
    """The unit that would be started for the bus name is masked."""


# D-Bus error name: our class. A name that ends in "." stands for all names that begin with it.
_ERRORS: dict[str, type[LightagentError]] = {
    "org.freedesktop.DBus.Error.AccessDenied": errors.PermissionDenied,
    "org.freedesktop.DBus.Error.AuthFailed": errors.PermissionDenied,
    _INTERACTION_REQUIRED: errors.PermissionDenied,
    "org.freedesktop.PolicyKit1.Error.NotAuthorized": errors.PermissionDenied,
    "org.freedesktop.DBus.Error.ServiceUnknown": NoSuchName,
    "org.freedesktop.DBus.Error.NameHasNoOwner": NoSuchName,
    "org.freedesktop.DBus.Error.Spawn.": errors.Unavailable,
    "org.freedesktop.DBus.Error.NoServer": errors.Unavailable,
    "org.freedesktop.DBus.Error.Disconnected": NoAnswer,
    "org.freedesktop.DBus.Error.NoReply": NoAnswer,
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
    "org.freedesktop.systemd1.UnitMasked": Masked,
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
    if cls in (errors.Unavailable, NoSuchName) and destination == SYSTEMD_NAME:
        cls = errors.SystemdUnavailable
        said = f"systemd does not answer on this bus: {said}"
    suggestion = next((_SUGGESTIONS[base] for base in cls.__mro__ if base in _SUGGESTIONS), "")
    return cls(said or f"{destination} answered with {name}.", suggestion=suggestion)


def dbus_name_of(err: LightagentError) -> str:
    """The error name for a D-Bus client: that of `errors.table()`, or D-Bus' own where there is one.

    For AuthorizationRequired the specification has one, and clients that know it ask again with the flag.
    """
    if isinstance(err, errors.AuthorizationRequired):
        return _INTERACTION_REQUIRED
    return next(row.dbus for row in errors.table() if row.cls in type(err).__mro__ and row.code == err.code)
