"""Finds the addresses of the D-Bus daemons and opens a socket to one, for `bus/connection.py`."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import quote, unquote

from lightagentd import errors


def address_of(kind: str) -> str:
    """The address of `system` or `session`, from the environment as libdbus has it; an address is its own."""
    if kind == "system":
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or "unix:path=/run/dbus/system_bus_socket"
    if kind == "session":
        folder = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
        found = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
        return found or "unix:path=" + quote(f"{folder}/bus", safe="/-_.").replace("~", "%7E")
    return kind


def _socket_paths(address: str) -> list[str]:
    """The paths of the Unix sockets in an address, in order; an abstract one begins with a NUL."""
    found = []
    for part in filter(None, address.split(";")):
        transport, _, options = part.partition(":")
        pairs = dict(option.partition("=")[::2] for option in options.split(","))
        if transport == "unix" and "path" in pairs:
            found.append(unquote(pairs["path"]))
        elif transport == "unix" and "abstract" in pairs:
            found.append("\0" + unquote(pairs["abstract"]))
    if not found:
        raise errors.InvalidArgument(
            f"The D-Bus address {address!r} names no Unix socket.",
            suggestion="Use an address such as unix:path=/run/dbus/system_bus_socket.",
        )
    return found


async def open_bus_socket(
    address: str, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first socket of the address that answers. Raises Unavailable, PermissionDenied."""
    failed: OSError | None = None
    for path in _socket_paths(address):
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.open_unix_connection(path)
        except OSError as err:  # TimeoutError is one too
            failed = err
    if isinstance(failed, PermissionError):
        raise errors.PermissionDenied(f"This process may not open the D-Bus socket at {address}.") from failed
    raise errors.Unavailable(
        f"No D-Bus daemon answers at {address}: {failed}",
        suggestion="Start it with: systemctl start dbus.socket",
    ) from failed
