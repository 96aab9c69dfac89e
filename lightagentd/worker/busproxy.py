"""The system bus for confined workers: xdg-dbus-proxy, which forwards only calls that query.

A worker with access to the whole bus could make services act for it: systemd-resolved would look up names,
systemd would start units. So the sandbox gets a proxy's socket instead of the bus. The proxy forwards only
the calls listed here; of all other names it shows whose they are and no more. It runs as the worker's user,
since the bus learns the caller's identity from the kernel. Where xdg-dbus-proxy is missing, there is no bus
in the sandbox, and `doctor` says so. See xdg-dbus-proxy(1).

Each `lightagent-bus@.service` runs this program; `local_bus` starts the proxy where there are no units. It
imports next to nothing, since a worker waits for it.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightagentd.text.reason import reason

BUS_SOCKET = Path("/run/dbus/system_bus_socket")
BUS_POLICIES = (Path("/usr/share/dbus-1/system.d"), Path("/etc/dbus-1/system.d"))
"""They name who may own which name, and the system bus gives no other names away; see dbus-daemon(1)."""
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_-][\w-]*)+(\.\*)?", re.ASCII)
_OWN = re.compile(r'<allow\s[^>]*\bown(_prefix)?="([^"]*)"')
_START_TIMEOUT_S = 5.0

_READ_PROPERTIES = ("org.freedesktop.DBus.Properties.Get", "org.freedesktop.DBus.Properties.GetAll")
_COMMON = (
    *_READ_PROPERTIES,
    "org.freedesktop.DBus.Introspectable.Introspect",
    "org.freedesktop.DBus.Peer.Ping",
)
_SYSTEMD = "org.freedesktop.systemd1.Manager"
_LOGIND = "org.freedesktop.login1.Manager"

ALLOWED: dict[str, tuple[str, ...]] = {
    "org.freedesktop.systemd1": tuple(
        f"{_SYSTEMD}.{name}"
        for name in (
            "GetUnit",
            "GetUnitByPID",
            "LoadUnit",
            "GetUnitProcesses",
            "GetUnitFileState",
            "GetUnitFileLinks",
            "GetDefaultTarget",
            "GetJob",
            "ListJobs",
            "ListUnits",
            "ListUnitsFiltered",
            "ListUnitsByPatterns",
            "ListUnitsByNames",
            "ListUnitFiles",
            "ListUnitFilesByPatterns",
        )
    ),
    "org.freedesktop.login1": tuple(
        f"{_LOGIND}.{name}"
        for name in (
            "ListSessions",
            "ListSessionsEx",
            "ListUsers",
            "ListSeats",
            "ListInhibitors",
            "GetSession",
            "GetUser",
        )
    ),
    "org.freedesktop.hostname1": (),
    "org.freedesktop.timedate1": (),
    "org.freedesktop.locale1": (),
    "org.freedesktop.network1": (),
    "org.freedesktop.NetworkManager": (),
    "org.freedesktop.UDisks2": (),
    "org.freedesktop.UPower": (),
}
"""Bus name → the methods that may be called on it, beside reading properties and introspection."""


def argv_for(bus: Path, path: Path, *options: str, readable: Sequence[str] = ()) -> list[str]:
    """The command of a proxy to that bus, with its socket at `path`; `readable` are further names whose
    properties may be read.
    """
    argv = ["xdg-dbus-proxy", *options, f"unix:path={bus}", str(path), "--filter"]
    argv += [f"--see={name}" for name in sorted(set(_ownable()))]
    for name, methods in (ALLOWED | {name: () for name in readable if name not in ALLOWED}).items():
        argv += [f"--call={name}={method}" for method in (*_COMMON, *methods)]
    return argv


def _ownable() -> Iterator[str]:
    for folder in BUS_POLICIES:
        for path in folder.glob("*.conf"):
            text = path.read_text("utf-8", "replace") if os.access(path, os.R_OK) else ""
            for kind, name in _OWN.findall(text):
                yield from filter(_NAME.fullmatch, (name, f"{name}.*") if kind else (name,))


def _readable(folder: Path) -> list[str]:
    """`[worker] bus_names`, as `config.configuration` reads it; without pydantic, and mostly without TOML."""
    found: list[str] = []
    for path in (folder / "lightagentd.toml", *sorted((folder / "lightagentd.toml.d").glob("*.toml"))):
        try:
            text = path.read_text()
            if "bus_names" in text:
                import tomllib

                found = tomllib.loads(text).get("worker", {}).get("bus_names", found)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError) as err:
            sys.stderr.write(f"{path} cannot be read: {reason(err)}\n")
    return [name for name in found if _NAME.fullmatch(str(name))]


def main() -> None:
    """Become the proxy; the one argument is the path of its socket (`lightagent-bus@.service`)."""
    _, path = sys.argv
    Path(path).unlink(missing_ok=True)
    config = Path(os.environ.get("LIGHTAGENT_CONFIG_DIR", "/etc/lightagentd"))
    argv = argv_for(BUS_SOCKET, Path(path), readable=_readable(config))
    if address := os.environ.pop("NOTIFY_SOCKET", ""):
        _tell_when_listening(Path(path), address)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - it becomes the proxy
    except OSError as err:
        sys.exit(f"xdg-dbus-proxy cannot be started (package xdg-dbus-proxy): {reason(err)}")


def _tell_when_listening(path: Path, address: str) -> None:
    """Start a process that sends READY=1 to systemd when the proxy listens.

    The proxy cannot do so itself, and for ExecStartPost= systemd would set up the whole sandbox again.
    """
    if middle := os.fork():
        os.waitpid(middle, 0)
        return
    if os.fork() == 0:
        until = time.monotonic() + _START_TIMEOUT_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.005)
        if path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.sendto(b"READY=1", address.replace("@", "\0", 1) if address[0] == "@" else address)
            time.sleep(1)  # systemd looks up who said it
    os._exit(0)


if __name__ == "__main__":
    main()
