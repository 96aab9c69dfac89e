"""Ports for servers that have to be told theirs before they listen."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _EACH = 20_000, 1000
"""Below the ports that the kernel gives out, so that no server that takes any port takes one of these."""
_ports = itertools.count(_FIRST + _EACH * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens; no other process of the run is given it."""
    for port in _ports:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("it counts without an end")
