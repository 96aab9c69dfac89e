"""The program of lightagent-approver.service. It serves the two sockets that systemd passes by name.

`approve` is open to everybody, and polkit decides; to `daemon` systemd lets the daemon's user alone. The key
is made at the first start, and its public half lies beside it for the workers for change to read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkInterface
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lightagentd.approver.answering import Answering
from lightagentd.approver.dbus import ApproverObject
from lightagentd.approver.records import Records
from lightagentd.approver.requests import Requests
from lightagentd.approver.varlink import ApproverInterface, RequestsInterface
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.control.polkit import Polkit
from lightagentd.control.seats import Seats
from lightagentd.errors import LightagentError
from lightagentd.events.journal.journal_socket import JournalSocket
from lightagentd.host import libc, systemd
from lightagentd.host.kept_key import kept_key
from lightagentd.policy.panic import Panic
from lightagentd.signed.public_keys import PUBLIC, publish
from lightagentd.varlink.bounds import Bounds
from lightagentd.varlink.server import Peer, VarlinkServer

_log = logging.getLogger(__name__)

KEY = "key"
DAEMON_USER = "lightagent"
_MIB = 1 << 20
PEOPLE = Bounds(
    connections_per_user=16,
    waiting_bytes=12 * _MIB,
    waiting_bytes_per_user=6 * _MIB,
    reserved_bytes=6 * _MIB,
    privileged=frozenset({0}),
)
"""A list of all that waits has 6 MiB at most (`requests.WEIGHT_BYTES`)."""


def of_daemon(users: frozenset[int]) -> Bounds:
    """The daemon waits for each request on a connection of its own, and answers to nobody else."""
    return Bounds(waiting_bytes=4 * _MIB, reserved_bytes=0, reserved_connections=0, privileged=users)


def signing_key(folder: Path) -> Ed25519PrivateKey:
    """The key of the approver: a credential, or a file of its state folder. Raises OSError, ValueError."""
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", ""), "lightagent-approver.key")
    raw = credential.read_bytes() if credential.is_absolute() and credential.exists() else None
    made = Ed25519PrivateKey.from_private_bytes(kept_key(folder / KEY) if raw is None else raw)
    public = made.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    publish(folder, public, mode=0o644)
    return made


async def serve(folder: Path, people: socket.socket, daemon: socket.socket, bus: str = "system") -> None:
    """Serve until SIGTERM. Without a `bus` there is no polkit, and /proc says where callers run; with another
    than the system's no journald is missed. Raises LightagentError, OSError.
    """
    key, panic = signing_key(folder), Panic(folder, mode=0o644)
    panic.load()
    requests = Requests(folder, key, panic)
    link, records = BusLink(bus), Records(key, JournalSocket(blocking=False))
    polkit = Polkit(link)
    answering = Answering(requests, Authority(polkit), Seats(link if bus else None), panic)
    on_bus = ApproverObject(link, answering, panic)
    link.on_connect(on_bus.connected)
    if requests.last is not None:
        records.write(requests.last)
    requests.heard += [records.write, on_bus.changed]

    def status() -> dict[str, Any]:
        problems = [on_bus.problem, records.problem if bus == "system" else ""]
        return {
            "panic": None if panic.stop is None else asdict(panic.stop),
            "waiting": len(requests.waiting()),
            "leaves": len(requests.leaves()),
            "public": (folder / PUBLIC).read_bytes().hex(),
            "problems": [one for one in problems if one],
        }

    def for_people(peer: Peer) -> list[VarlinkInterface]:
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, groups=peer.groups, process=peer.process)
        return [ApproverInterface(answering, caller, status)]

    mine = daemons()

    def for_daemon(peer: Peer) -> list[VarlinkInterface]:
        return [RequestsInterface(requests, panic)] if peer.uid in mine else []

    product = "lightagent-approver"
    servers = [
        VarlinkServer([people], for_people, product=product, max_connections=128, bounds=PEOPLE),
        VarlinkServer([daemon], for_daemon, product=product, max_connections=300, bounds=of_daemon(mine)),
    ]
    await link.start()
    signals = asyncio.create_task(on_bus.run(), name="bus signals")
    try:
        await _until_stopped(servers)
    finally:
        for server in servers:
            await server.close()
        signals.cancel()
        await asyncio.wait([signals])
        await polkit.close()
        await on_bus.close()
        await link.close()
        records.close()
        requests.close()


async def _until_stopped(servers: list[VarlinkServer]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    for server in servers:
        server.start()
    systemd.notify("READY=1")
    await stop.wait()


def daemons() -> frozenset[int]:
    """The users whose programs may ask: root and the daemon's."""
    try:
        return frozenset({0, pwd.getpwnam(DAEMON_USER).pw_uid})
    except KeyError:
        return frozenset({0})


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
        said = " ".join(filter(None, (str(err), getattr(err, "suggestion", ""))))
        systemd.notify(f"STATUS={said}")
        sys.exit(f"lightagent-approver: {said}")


if __name__ == "__main__":
    main()
