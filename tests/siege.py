"""A user who keeps a socket busy: `python -m tests.siege SOCKET UID COUNT`, started as root, until killed.

It holds COUNT connections that send calls and never read an answer, and makes a new one for each that ends.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys

from tests.other_user import OUTSIDERS_GID
from tests.raw_varlink import message

CALLS = 300
"""How many calls each connection sends at once."""


def main(path: str, uid: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64, count + 64))
    os.setgroups([])
    os.setresgid(OUTSIDERS_GID, OUTSIDERS_GID, OUTSIDERS_GID)
    os.setresuid(uid, uid, uid)
    ended = select.epoll()
    held: dict[int, socket.socket] = {}
    calls = (message("Tools.List") + b"\0") * CALLS
    while True:
        while len(held) < count and (sock := _connected(path)) is not None:
            sock.send(calls, socket.MSG_NOSIGNAL)
            ended.register(sock, select.EPOLLRDHUP)
            held[sock.fileno()] = sock
        sys.stdout.write(".\n")  # each line: as many connections are held as there is room for
        sys.stdout.flush()
        for descriptor, _ in ended.poll(0.005):
            held.pop(descriptor).close()


def _connected(path: str) -> socket.socket | None:
    """None while the queue is full."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(path)
    except BlockingIOError:
        sock.close()
        return None
    return sock


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
