"""What the service manager and the daemon say to each other: sd_notify(3) and sd_listen_fds(3)."""

from __future__ import annotations

import os
import socket

from lightagentd.errors import ConfigError

FIRST_FD = 3


def notify(*assignments: str) -> bool:
    """Tell systemd the state of the service; False when it is not systemd that started the process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect(address)
            sock.sendall("\n".join(assignments).encode())
        except OSError:
            return False
    return True


def listening_socket() -> socket.socket | None:
    """The one socket that systemd passed to this process, or None when it passed none.

    Raises ConfigError when it passed several: to serve one of them would leave the others' clients waiting.
    """
    try:
        count, pid = int(os.environ["LISTEN_FDS"]), int(os.environ["LISTEN_PID"])
    except (KeyError, ValueError):
        return None
    if pid != os.getpid() or count == 0:
        return None
    if count != 1:
        raise ConfigError(
            f"systemd passed {count} sockets to lightagentd, which serves one.",
            suggestion="Keep one ListenStream= line: systemctl edit lightagentd.socket",
        )
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    passed = socket.socket(fileno=FIRST_FD)
    passed.set_inheritable(False)
    return passed
