"""Gives a confined command its only Unix socket: a connection to the filtered system bus.

With any other Unix socket a command could make another service act, and neither a mount nor a filter of
system calls can tell sockets apart by their paths. So a command's socket(2) goes to the worker through
seccomp_unotify(2), and returns one end of a pair whose other end is closed. Such a socket stays connected:
the kernel neither connects it to anything else nor lets it listen. When the command calls connect(2) with the
path of the system bus, the worker connects to the bus filter (`busproxy`) and replaces the socket by one that
leads there (`busrelay`). Any other path is refused.

The worker reads the path from the command's memory, which the command may change meanwhile. That is harmless:
the result is a connection to that one bus or none. An address without a Unix path is left to the kernel; it
cannot belong to an unconnected Unix socket, because none exists. Without an answer of the worker the calls
fail.

`process.run` owns a door for each command. Its thread ends with the command or when the door is closed. It is
a thread because a command can delay the delivery of an answer, which must not block the worker.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.worker import seccomp

if TYPE_CHECKING:
    from lightagentd.worker.busrelay import Relay

BUS_PATHS = (b"/run/dbus/system_bus_socket", b"/var/run/dbus/system_bus_socket")
CONNECTIONS = 2
"""How many connections to the bus the processes of one command may have at a time.

The bus lets 128 calls of each wait for an answer. With 16 connections each, the eight commands that one agent
runs at once for a person kept systemd and polkit from answering anybody for half a minute.
"""
BURST, PACE_S = 256, 0.001
"""How many calls of a command are answered without a pause, and the pause from then on."""

IMPOSSIBLE = (
    "Shell commands and skills cannot ask systemd: the kernel cannot hand their sockets to the worker (before"
    " Linux 5.9, or in a container that takes system calls over itself)."
)

_RECV, _SEND, _ADDFD = 0xC0502100, 0xC0182101, 0x40182103
"""SECCOMP_IOCTL_NOTIF_* of linux/seccomp.h."""
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; nr, arch, instruction_pointer, args
_RESPONSE = struct.Struct("=QqiI")  # id, val, error, flags
_ADDITION = struct.Struct("=QIIII")  # id, flags, srcfd, newfd, newfd_flags
_CONTINUE, _AT_THIS_NUMBER = 1, 1
_QUEUE_TIME, _NO_TIME = struct.pack("@ll", 1, 0), struct.pack("@ll", 0, 0)
"""How long it is waited for a place in the bus filter's queue (struct timeval); 0 is the socket's default."""
_ADDRESS_BYTES = 110  # sizeof(struct sockaddr_un)
_INT = 0xFFFFFFFF


class BusDoor:
    """The door of one command. The child calls `enter` between fork and exec; then the worker calls `open`.

    Its maker calls `close`.
    """

    def __init__(self, code: bytes) -> None:
        """`code` is the command's whole filter (`seccomp.program` with `bus`). Raises OSError."""
        self._code = code
        self._own, self._childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stop = -1
        self._listener = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches the listener, as long as no thread does."""
        self._given: dict[int, Relay] = {}
        """Connections that were handed out, by their inodes; those that are closed by now among them."""
        self._answered = 0

    def enter(self) -> None:
        """In the new process, as the last step: install the filter, and leave its listener to the worker.

        Only system calls: it runs between fork and exec. Raises OSError.
        """
        listener = seccomp.listen(self._code)
        rights = struct.pack("i", listener)
        self._childs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(listener)

    def open(self) -> None:
        """Answer the command's requests from the running loop on. Raises OSError."""
        self._childs.close()
        _, passed, _, _ = socket.recv_fds(self._own, 1, 1, socket.MSG_DONTWAIT)
        self._own.close()
        self._listener = passed[0]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._begin)

    def close(self) -> None:
        """Stop answering: remaining processes of the command get no socket (ENOSYS)."""
        self._own.close()
        self._childs.close()
        self._drop()
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _begin(self) -> None:
        """Start the thread at the command's first request; most commands never make one."""
        assert self._loop is not None
        self._loop.remove_reader(self._listener)
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        if any(event & select.POLLHUP for _, event in poller.poll(0)):  # it never asked, and is gone
            self._drop()
            return
        try:
            stopped, self._stop = os.pipe2(os.O_CLOEXEC)
        except OSError:  # no more descriptors
            self._drop()
            return
        try:
            threading.Thread(target=self._serve, args=(stopped,), name="bus-door", daemon=True).start()
        except RuntimeError:  # no more threads
            os.close(stopped)
            self._drop()
        self._loop = None

    def _drop(self) -> None:
        """Close the listener, unless the thread has it."""
        if self._loop is not None:
            self._loop.remove_reader(self._listener)
            self._loop = None
            os.close(self._listener)

    def _serve(self, stopped: int) -> None:
        """In the thread: answer until no process can ask any more, or the other end of `stopped` closes."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(stopped, 0)
        try:
            while True:
                ready = dict(poller.poll())
                if stopped in ready or not ready[self._listener] & select.POLLIN:
                    return
                self._answer()
                self._answered += 1
                if self._answered > BURST:
                    time.sleep(PACE_S)
        finally:
            os.close(self._listener)
            os.close(stopped)
            for relay in self._given.values():
                relay.close()

    def _answer(self) -> None:
        request = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECV, request)
        except OSError:  # the caller was interrupted or killed
            return
        number, pid, _, call, _, _, *arguments = _NOTIFICATION.unpack(request)
        result, error, flags = 0, 0, 0
        try:
            if call == seccomp.number("socket"):
                result = self._give_unconnected(number, arguments[1])
            elif (path := _unix_path(pid, arguments[1], arguments[2] & _INT)) is None:
                flags = _CONTINUE
            else:
                self._give_connection(number, pid, arguments[0] & _INT, path)
        except OSError as err:
            error = -(err.errno or errno.EIO)
        try:
            fcntl.ioctl(self._listener, _SEND, _RESPONSE.pack(number, result, error, flags))
        except OSError:  # gone meanwhile
            return

    def _give_unconnected(self, number: int, kind: int) -> int:
        """Give the caller an unusable socket at a number that the kernel chooses; returns the number."""
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(not kind & socket.SOCK_NONBLOCK)
            return self._add(number, one, cloexec=bool(kind & socket.SOCK_CLOEXEC))

    def _give_connection(self, number: int, pid: int, fd: int, path: bytes) -> None:
        """Replace the caller's descriptor `fd` by a connection to the bus."""
        if path not in BUS_PATHS:
            raise PermissionError(errno.EACCES, "no socket of another service")
        if len(self._given) >= CONNECTIONS:
            there = _open_inodes()
            self._given = {inode: relay for inode, relay in self._given.items() if inode in there}
            if len(self._given) >= CONNECTIONS:
                time.sleep(PACE_S)
                raise BlockingIOError(errno.EAGAIN, "too many connections")
        flags = _descriptor_flags(pid, fd)
        ours, theirs = socket.socketpair()
        with theirs:
            relay = _relay(ours)
            try:
                theirs.setblocking(not flags & os.O_NONBLOCK)
                self._add(number, theirs, at=fd, cloexec=bool(flags & os.O_CLOEXEC))
            except OSError:
                relay.close()
                raise
            self._given[os.fstat(theirs.fileno()).st_ino] = relay

    def _add(self, number: int, sock: socket.socket, *, at: int | None = None, cloexec: bool) -> int:
        """Give a descriptor to the asking process; without `at`, at a new number."""
        flags = 0 if at is None else _AT_THIS_NUMBER
        wanted = _ADDITION.pack(number, flags, sock.fileno(), at or 0, os.O_CLOEXEC if cloexec else 0)
        added: int = fcntl.ioctl(self._listener, _ADDFD, bytearray(wanted))
        return added


def _relay(command: socket.socket) -> Relay:
    """A relay between a command's connection, which it owns, and a new one to the bus. Raises OSError."""
    from lightagentd.worker.busrelay import Relay  # few commands ask the bus

    with ExitStack() as unless_it_runs:
        unless_it_runs.enter_context(command)
        bus = unless_it_runs.enter_context(socket.socket(socket.AF_UNIX))
        bus.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _QUEUE_TIME)
        bus.connect(BUS_PATHS[0])
        bus.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_TIME)
        relay = Relay(command, bus)
        relay.start()
        unless_it_runs.pop_all()
    return relay


def _seen_as(pid: int) -> int:
    """A thread's number in /proc, which may be that of another PID namespace (`sandbox`). Raises OSError."""
    if os.readlink("/proc/self") == str(os.getpid()):  # noqa: PTH115 - a number, not a path
        return pid
    try:
        held = os.pidfd_open(pid, os.O_EXCL)  # PIDFD_THREAD
    except OSError:  # before Linux 6.9, where only a process' first thread can be found
        held = os.pidfd_open(pid)
    try:
        fields = Path(f"/proc/self/fdinfo/{held}").read_text().split()
    finally:
        os.close(held)
    return int(fields[fields.index("Pid:") + 1])


def _unix_path(pid: int, address: int, length: int) -> bytes | None:
    """The path in a process' memory; empty for an abstract name, None for another kind of address."""
    try:
        memory = os.open(f"/proc/{_seen_as(pid)}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(memory, min(length, _ADDRESS_BYTES), address)
        finally:
            os.close(memory)
    except (OSError, OverflowError):  # the kernel will find fault with the address, too
        return None
    if len(found) < 2 or struct.unpack_from("=H", found)[0] != socket.AF_UNIX:
        return None
    return found[2:].partition(b"\0")[0]


def _descriptor_flags(pid: int, fd: int) -> int:
    """The flags of a descriptor as for open(2), from proc_pid_fdinfo(5). Raises OSError."""
    for line in Path(f"/proc/{_seen_as(pid)}/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8)
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _open_inodes() -> set[int]:
    """The Unix sockets of this network namespace (proc_net(5)). Raises OSError."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    return {int(fields[6]) for line in lines if len(fields := line.split()) > 6}


def possible() -> bool:
    """Whether commands of this process can have a door. A child tries it.

    They cannot before Linux 5.9, nor if this process already has a filter with a listener, as in some
    containers: the kernel allows only one.
    """
    child = os.fork()
    if not child:
        try:
            seccomp.listen(seccomp.program(seccomp.OBSERVE_FAMILIES, bus=True))
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0


if __name__ == "__main__":
    sys.exit(0 if possible() else IMPOSSIBLE)
