"""What a model may try in a sandbox, and what there is outside for it to try it on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.worker.running import marker, wait_until

THROWAWAY_USER = "LIGHTAGENT_TESTS_RUN_AS_THROWAWAY_USER"
KILL_ALL = "kill -9 -1" if os.geteuid() == 0 or THROWAWAY_USER in os.environ else "true"
"""What would end the session of somebody who runs the tests with a sandbox that does not hold."""

WRITES = {
    "redirection": "echo x >$T/new; echo x >>$T/file",
    "python": "python3 -c 'import sys; open(sys.argv[1], \"w\")' $T/new; "
    'python3 -c \'import sys; open(sys.argv[1], "r+b").write(b"x")\' $T/file',
    "dd": "dd if=/dev/zero of=$T/new count=1; dd if=/dev/zero of=$T/file count=1 conv=notrunc",
    "links": "ln $T/file $T/new; ln -s /etc/passwd $T/soft; ln -sf /etc/passwd $T/file;"
    " ln $T/file $TMPDIR/out",
    "modes": "chmod 777 $T $T/file; touch -d 2001-01-01 $T $T/file; chown $(id -u) $T/file",
    "folders": "mkdir $T/new; mkfifo $T/fifo; mknod $T/node p; rmdir $T",
    "moving": "mv $T/file $T/new; mv $T/file $TMPDIR/; rm -f $T/file; cp /etc/passwd $T/",
    "other ways in": "for p in /proc/[0-9]*; do echo x >$p/root$T/new; echo x >>$p/cwd/new; done; "
    "mount -o remount,rw /; mount -t tmpfs tmpfs $T;"
    " unshare -Urm sh -c 'mount -o remount,rw / && echo x >$T/new'; "
    "nsenter -t 1 -m touch $T/new",
}


SEND = """
import socket, sys
for family, kind, address in [
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(sys.argv[1]))),
    (socket.AF_INET6, socket.SOCK_STREAM, ("::1", int(sys.argv[2]))),
    (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", int(sys.argv[3]))),
]:
    try:
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            sock.send(b"secret")
    except OSError as err:
        print(err)
"""


@contextlib.contextmanager
def listeners() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.socket(socket.AF_INET6) as six,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        try:
            six.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        six.listen()
        datagrams.bind(("127.0.0.1", 0))
        for sock in (four, six, datagrams):
            sock.setblocking(False)
        yield four, six, datagrams


def arrived(listener: socket.socket) -> bool:
    """Whether somebody connected, or a datagram came."""
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(100)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def send_command(four: int, six: int, datagrams: int) -> str:
    return (
        f"python3 -c '{SEND}' {four} {six} {datagrams}; echo x >/dev/tcp/127.0.0.1/{four};"
        f" echo x >/dev/tcp/::1/{six}; echo x >/dev/udp/127.0.0.1/{datagrams};"
        f" curl -s -m 2 --noproxy '*' http://127.0.0.1:{four}/ http://[::1]:{six}/"
    )


FAMILIES = """
import socket
for name in ("UNIX", "INET", "INET6", "NETLINK", "PACKET", "VSOCK", "ALG", "BLUETOOTH", "CAN", "KEY",
    "TIPC", "QIPCRTR"):
    family = getattr(socket, "AF_" + name, None)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
        except (OSError, TypeError):
            continue
        print(name)
        break
"""


UNIX = """
import socket, sys
stream, datagram, abstract = sys.argv[1:4]
def attempt(what):
    try:
        what()
    except OSError as err:
        print(err)
def to(kind, address):
    def connect():
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.connect(address)
            sock.send(b"x")
    return connect
def by_pair(kind, address):
    def send():
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        other.close()
        with one:
            attempt(lambda: one.sendto(b"x", address))
            one.connect(address)
            one.send(b"x")
    return send
for address in (stream, "\\0" + abstract):
    attempt(to(socket.SOCK_STREAM, address))
    attempt(by_pair(socket.SOCK_STREAM, address))
    attempt(by_pair(socket.SOCK_SEQPACKET, address))
attempt(to(socket.SOCK_DGRAM, datagram))
attempt(by_pair(socket.SOCK_DGRAM, datagram))
attempt(by_pair(socket.SOCK_RAW, datagram))
"""


SYSCALLS = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
for name, number, arguments in [
    ("io_setup", 0 if arm else 206, (8, ctypes.byref(ctypes.c_ulong()))),
    ("io_uring_setup", 425, (8, ctypes.create_string_buffer(120))),
    ("bpf", 280 if arm else 321, (0, None, 0)),
    ("unshare", 97 if arm else 272, (0x10000000,)),
    ("setns", 268 if arm else 308, (0, 0)),
    ("clone", 220 if arm else 56, (0x10000000 | 17, None, None, None, None)),
    ("keyctl", 219 if arm else 250, (0, -3, 1)),
    ("shmget", 194 if arm else 29, (1234, 4096, 0o1600)),
    ("msgget", 186 if arm else 68, (1234, 0o1600)),
    ("semget", 190 if arm else 64, (1234, 1, 0o1600)),
    ("mq_open", 180 if arm else 240, (b"left", 0o102, 0o600, None)),
]:
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    if result == 0 and name == "clone":
        libc._exit(0)
    print(name, result, errno.errorcode.get(ctypes.get_errno()))
"""


INTERFERE = """
import ctypes, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
def attempt(what, *arguments):
    try:
        return what(*arguments)
    except OSError as err:
        return None
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
    attempt(os.kill, pid, number)
    attempt(os.killpg, pid, number)
    attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
    attempt(lambda: signal.pidfd_send_signal(os.open(f"/proc/{pid}", os.O_RDONLY), number))
attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
attempt(os.setpriority, os.PRIO_USER, 0, 19)
attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
attempt(os.sched_setaffinity, pid, {0})
attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
attempt(resource.prlimit, pid, resource.RLIMIT_NOFILE, (7, 7))
libc.ptrace(16, pid, None, None)
libc.ptrace(0x4206, pid, None, None)
for name in ("environ", "mem", "maps", "auxv", "syscall"):
    attempt(lambda: print(open(f"/proc/{pid}/{name}", "rb").read(4096)))
attempt(lambda: print(os.listdir(f"/proc/{pid}/root"), os.listdir(f"/proc/{pid}/fd")))
attempt(lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"))
"""


LEAVERS = {
    "background": "sleep {} & sleep {} >/dev/null 2>&1 &",
    "setsid": "setsid sleep {} >/dev/null 2>&1 & setsid setsid sleep {} </dev/null >/dev/null 2>&1 &"
    " sleep 0.05",
    "double fork": "(setsid sh -c '(sleep {} & sleep {}) >/dev/null 2>&1 &' &)",
    "nohup": "nohup sleep {} >/dev/null 2>&1 & disown; trap '' TERM HUP; (sleep {}) >/dev/null 2>&1 &",
}


@dataclass(frozen=True)
class Seen:
    """What can be compared of one file."""

    mode: int
    uid: int
    links: int
    mtime_ns: int
    content: str


def look(folder: Path, *, apart_from: Path | None = None) -> dict[str, Seen]:
    """Each file below a folder, but for what is in `apart_from`."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        if apart_from is not None and path.is_relative_to(apart_from):
            continue
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(info.st_mode) else ""
        found[str(path)] = Seen(info.st_mode, info.st_uid, info.st_nlink, info.st_mtime_ns, content)
    return found


@contextlib.contextmanager
def bystander(*, nobody: bool) -> Iterator[psutil.Process]:
    """A process that has nothing to do with the worker, with a secret in its environment."""
    argv = ["sleep", marker()]
    if nobody:
        uid = pwd.getpwnam("nobody").pw_uid
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", *argv]
    process = subprocess.Popen(argv, env={"PATH": os.environ["PATH"], "SECRET": "s3cr3t-in-environment"})
    wait_until(lambda: psutil.Process(process.pid).name() == "sleep", "the bystander does not start")
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
