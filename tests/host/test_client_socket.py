"""A passed connection proves who its client is only where it was accepted on the one socket: what a process
that was taken over would pass instead is refused, though the kernel says root of it.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightagentd.host.client_socket import NotAClient, client_of

TRUSTED = frozenset({0, os.geteuid()})
NAMESPACE = """
import ctypes, os, socket, sys
fd, path, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
newuser, newns, private = 0x10000000, 0x20000, 1 << 18 | 1 << 14
if libc.unshare(newns if os.geteuid() == 0 else newns | newuser):
    sys.exit(77)
if libc.mount(b"none", b"/", None, private, None) or libc.mount(
    b"tmpfs", os.path.dirname(path).encode(), b"tmpfs", 0, None
):
    sys.exit(77)
with socket.socket(socket.AF_UNIX) as forged, socket.socket(fileno=fd) as back:
    forged.bind(path)
    forged.connect("\\0" + name)
    socket.send_fds(back, [b"x"], [forged.fileno()])
"""
"""A process that sees a folder of its own where the socket's is binds the same name there, and connects to a
listener of another user's.
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="la-") as name:
        yield Path(name)


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listener(keep: ExitStack, address: Path | str) -> socket.socket:
    made = keep.enter_context(socket.socket(socket.AF_UNIX))
    made.bind(os.fspath(address))
    made.listen()
    return made


def connected(keep: ExitStack, server: socket.socket, name: str = "") -> tuple[socket.socket, socket.socket]:
    """The client's end, and the accepted one."""
    client = keep.enter_context(socket.socket(socket.AF_UNIX))
    if name:
        client.bind(name)
    client.connect(server.getsockname())
    return client, keep.enter_context(server.accept()[0])


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def refusal(fd: int, path: Path) -> str:
    """Why a copy of a descriptor is refused. Nothing of it stays open."""
    before = descriptors()
    with pytest.raises(NotAClient) as caught:
        client_of(os.dup(fd), path, trusted=TRUSTED)
    assert descriptors() == before
    return str(caught.value)


def test_who_is_at_the_other_end(folder: Path, keep: ExitStack) -> None:
    server = listener(keep, folder / "http.sock")
    _, accepted = connected(keep, server)
    peer = client_of(os.dup(accepted.fileno()), folder / "http.sock", trusted=TRUSTED)
    assert peer.process is not None
    assert (peer.uid, peer.gid, peer.pid) == (os.geteuid(), os.getegid(), os.getpid())
    assert not peer.process.has_ended()
    os.close(peer.process.open_pidfd())
    peer.process.close()
    assert peer.process.has_ended()


def test_what_else_a_process_can_pass_is_refused(
    folder: Path, keep: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "http.sock"
    server = listener(keep, path)
    elsewhere = f"it was not accepted on {path}"

    client, accepted = connected(keep, server)
    assert refusal(client.fileno(), path) == elsewhere, "the end of a client"
    assert refusal(server.fileno(), path) == "it listens itself", "whoever made it listen is its peer"
    other = listener(keep, folder / "other.sock")
    for name in ("", "\0" + os.fspath(folder), os.fspath(folder / "mine")):
        assert refusal(connected(keep, other, name)[0].fileno(), path) == elsewhere, name
    assert refusal(connected(keep, other)[1].fileno(), path) == elsewhere
    hidden = listener(keep, "\0" + os.fspath(path))
    assert refusal(connected(keep, hidden)[1].fileno(), path) == elsewhere, "an abstract name"
    monkeypatch.chdir(folder)
    path.rename(folder / "moved")
    named = listener(keep, "http.sock")
    assert refusal(connected(keep, named)[1].fileno(), path) == elsewhere, "a relative name"
    path.unlink()
    (folder / "moved").rename(path)

    pair = [keep.enter_context(one) for one in socket.socketpair()]
    assert refusal(pair[0].fileno(), path) == elsewhere
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.create_connection(tcp.getsockname()) as one:
        assert refusal(one.fileno(), path) == "it is no Unix socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        assert refusal(datagrams.fileno(), path) == "it is no stream socket"
    pidfd = os.pidfd_open(os.getpid())
    assert refusal(pidfd, path) == "it is no socket"
    os.close(pidfd)

    client.close()
    assert refusal(accepted.fileno(), path) == "the client has hung up"


def test_the_folder_must_be_roots_alone(folder: Path, keep: ExitStack) -> None:
    _, accepted = connected(keep, listener(keep, folder / "http.sock"))
    folder.chmod(0o777)
    assert refusal(accepted.fileno(), folder / "http.sock") == f"{folder} is not root's alone"


def test_the_same_name_in_another_namespace_is_refused(folder: Path, keep: ExitStack) -> None:
    path, name = folder / "http.sock", f"roots-{os.getpid()}"
    listener(keep, path)
    victim = listener(keep, "\0" + name)
    ours, theirs = (keep.enter_context(one) for one in socket.socketpair())
    command = [sys.executable, "-c", NAMESPACE, str(theirs.fileno()), str(path), name]
    done = subprocess.run(command, pass_fds=[theirs.fileno()], check=False)
    if done.returncode == 77:
        pytest.skip("no namespace of mounts can be made here")
    assert done.returncode == 0
    _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=fd) as forged, victim.accept()[0]:
        said = forged.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert (forged.getsockname(), struct.unpack("3i", said)[1]) == (str(path), os.geteuid())
        assert refusal(forged.fileno(), path) == f"it was not accepted on {path}"
