"""The program of lightagent-approver.service. It serves the two sockets that systemd passes by name.

`approve` is open to everybody, and polkit decides; to `daemon` systemd lets the daemon's user alone. The key
is made at the first start, and its public half lies beside it for the workers for change to read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lightagentd.approver.answering import Answering
from lightagentd.approver.requests import Requests
from lightagentd.approver.varlink import ApproverInterface, RequestsInterface
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.control.polkit import Polkit
from lightagentd.control.seats import Seats
from lightagentd.errors import LightagentError
from lightagentd.host import libc, systemd
from lightagentd.host.atomic_file import write_whole
from lightagentd.host.kept_key import kept_key
from lightagentd.varlink.server import Peer, VarlinkServer

_log = logging.getLogger(__name__)

KEY, PUBLIC = "key", "public"


def signing_key(folder: Path) -> Ed25519PrivateKey:
    """The key of the approver: a credential, or a file of its state folder. Raises OSError, ValueError."""
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", ""), "lightagent-approver.key")
    raw = credential.read_bytes() if credential.is_absolute() and credential.exists() else None
    made = Ed25519PrivateKey.from_private_bytes(kept_key(folder / KEY) if raw is None else raw)
    public = made.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    if not (folder / PUBLIC).exists() or (folder / PUBLIC).read_bytes() != public:
        write_whole(folder / PUBLIC, public, mode=0o644)
    return made


async def serve(folder: Path, people: socket.socket, daemon: socket.socket, bus: str = "system") -> None:
    """Serve until SIGTERM. Raises LightagentError, OSError."""
    requests = Requests(folder, signing_key(folder))
    link = BusLink(bus)
    polkit = Polkit(link)
    answering = Answering(requests, Authority(polkit), Seats(link))

    def for_people(peer: Peer) -> list[ApproverInterface]:
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, groups=peer.groups, process=peer.process)
        return [ApproverInterface(answering, caller)]

    servers = [
        VarlinkServer([people], for_people, product="lightagent-approver"),
        VarlinkServer([daemon], lambda _: [RequestsInterface(requests)], product="lightagent-approver"),
    ]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await link.start()
    for server in servers:
        server.start()
    systemd.notify("READY=1")
    try:
        await stop.wait()
    finally:
        for server in servers:
            await server.close()
        await polkit.close()
        await link.close()
        requests.close()


def _sockets() -> dict[str, socket.socket]:
    """Those that systemd passed, by name (sd_listen_fds_with_names(3))."""
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    count = int(os.environ.pop("LISTEN_FDS", "0") or 0)
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()) or count != len(names):
        return {}
    found = {name: socket.socket(fileno=systemd.FIRST_FD + at) for at, name in enumerate(names)}
    for one in found.values():
        one.set_inheritable(False)
    return found


def main() -> None:
    """Be the approver until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    sockets, folder = _sockets(), os.environ.get("STATE_DIRECTORY", "")
    if {*sockets} != {"approve", "daemon"} or not folder:
        sys.exit("systemd starts it, with the sockets approve and daemon: lightagent-approver.socket")
    try:
        asyncio.run(serve(Path(folder), sockets["approve"], sockets["daemon"]))
    except (LightagentError, OSError, ValueError) as err:
        sys.exit(f"lightagent-approver: {err}")


if __name__ == "__main__":
    main()
