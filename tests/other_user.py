"""A client with another uid: `python -m tests.other_user SOCKET UID`, started as root.

Each line on standard input is a JSON array `[method, parameters, more]`; for each it prints the replies
of the call as one JSON array.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

OUTSIDERS_GID = 65534
"""The group of every such client: the tests' daemons let it inspect and prompt."""


def _replies(sock: socket.socket, call: dict[str, Any]) -> list[dict[str, Any]]:
    sock.sendall(json.dumps(call).encode() + b"\0")
    found: list[dict[str, Any]] = []
    waiting = b""
    while not found or found[-1].get("continues"):
        data = sock.recv(1 << 16)
        if not data:
            raise SystemExit("the daemon hung up")
        *whole, waiting = (waiting + data).split(b"\0")
        found += [json.loads(reply) for reply in whole]
    return found


def main(path: Path, uid: int) -> None:
    os.setgroups([])
    os.setresgid(OUTSIDERS_GID, OUTSIDERS_GID, OUTSIDERS_GID)
    os.setresuid(uid, uid, uid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except OSError as err:
            print(json.dumps([{"error": type(err).__name__}]), flush=True)
            return
        for line in sys.stdin:
            method, parameters, more = json.loads(line)
            call = {"method": f"org.lightagent1.{method}", "parameters": parameters, "more": more}
            print(json.dumps(_replies(sock, call)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
