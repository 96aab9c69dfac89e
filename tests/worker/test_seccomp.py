"""The system call filter, loaded into processes of their own. What it is for is in test_sandbox."""

from __future__ import annotations

import fcntl
import platform
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from lightagentd.worker import seccomp

REPOSITORY = Path(__file__).resolve().parents[2]
LOAD = """
import ctypes, os, resource, socket, subprocess, sys, threading
from lightagentd.worker import seccomp
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
code = seccomp.program(seccomp.OBSERVE_FAMILIES)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code))) == 0
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as err:
        return err.errno
    return 0
"""

pytestmark = pytest.mark.skipif(not seccomp.supported(), reason="no filter can be made here")


def filtered(code: str, *arguments: str, families: str = "OBSERVE_FAMILIES") -> str:
    load = LOAD.replace("OBSERVE_FAMILIES", families)
    done = subprocess.run(
        [sys.executable, "-c", load + code, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_and_processes_start_as_ever() -> None:
    said = filtered(
        """
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
sys.stdout.flush()
subprocess.run(["/bin/sh", "-c", "(echo $(echo process)) | cat"], check=True)
"""
    )
    assert said == "thread\nprocess\n"


def test_a_process_may_slow_itself_down_and_nobody_else() -> None:
    said = filtered(
        """
parent = os.getppid()
print(attempt(os.nice, 1), attempt(os.setpriority, os.PRIO_PROCESS, 0, 5))
print(attempt(os.setpriority, os.PRIO_PROCESS, parent, 5), attempt(os.setpriority, os.PRIO_PGRP, 0, 5))
affinity = os.sched_getaffinity(0)
print(attempt(os.sched_setaffinity, 0, affinity), attempt(os.sched_setaffinity, parent, affinity))
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
print(attempt(resource.setrlimit, resource.RLIMIT_NOFILE, limit))
print(attempt(resource.prlimit, parent, resource.RLIMIT_NOFILE))
print(attempt(resource.prlimit, parent, resource.RLIMIT_NOFILE, limit))
"""
    )
    assert said.split() == ["0", "0", "1", "1", "0", "1", "0", "0", "1"]


def test_sockets_come_as_netlink_or_as_connected_pairs() -> None:
    said = filtered(
        """
for family in (socket.AF_NETLINK, socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    print(attempt(lambda: socket.socket(family, socket.SOCK_DGRAM).close()))
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW):
    print(attempt(lambda: [one.close() for one in socket.socketpair(socket.AF_UNIX, kind)]))
"""
    )
    assert said.split() == ["0", "97", "97", "97", "0", "0", "1", "1"]


def test_netlink_speaks_of_devices_and_the_network_alone() -> None:
    said = filtered(
        """
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    print([n for n in range(40) if not attempt(lambda: socket.socket(16, kind, n).close())])
more = ctypes.c_long((1 << 32) | 2)  # the kernel takes the lower half, as NETLINK_USERSOCK
print(libc.syscall(41 if os.uname().machine == "x86_64" else 198, 16, 3, more))
"""
    )
    assert said.splitlines() == ["[0, 4, 15, 16]"] * 2 + ["-1"]


def test_no_namespace_can_be_made() -> None:
    said = filtered(
        """
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    ctypes.set_errno(0)
    print(libc.unshare(flag), ctypes.get_errno())
print(libc.unshare(0x400))
"""
    )
    assert said.split() == ["-1", "1"] * 8 + ["0"]


ATTRIBUTES = """
import shutil, sys
path = sys.argv[1]
before = os.stat(path).st_mtime_ns
fd = os.open(path, os.O_RDWR)
print([attempt(os.utime, one, (1, 1)) for one in (path, fd)], os.stat(path).st_mtime_ns == before)
at = ctypes.c_char_p(path.encode())
for name in ("utime", "utimes"):
    print(name, libc[name](at, None), ctypes.get_errno())
print([attempt(os.setxattr, one, "user.x", b"x") for one in (path, fd)], os.listxattr(path))
print(attempt(os.removexattr, path, "user.x"))
for number in (463, 466, 469):
    ctypes.set_errno(0)
    print(libc.syscall(number, -100, at, 0, None, None, 0), ctypes.get_errno())
"""


def test_no_times_and_no_attributes_of_files_can_be_set(tmp_path: Path) -> None:
    """What writes a file may set its times, as far as it can tell."""
    (tmp_path / "file").touch()
    said = filtered(ATTRIBUTES, str(tmp_path / "file"))
    assert said.splitlines() == [
        "[1, 0] True",
        *("utime -1 1", "utimes -1 1"),
        "[95, 95] []",
        "95",
        *["-1 95"] * 3,
    ]


LOCKS = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+")
print(attempt(fcntl.flock, file, fcntl.LOCK_EX), attempt(fcntl.lockf, file, fcntl.LOCK_EX, 1))
for at, command in enumerate((fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_SETLKW), 1):
    print(attempt(fcntl.fcntl, file, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, at, 1, 0)))
flags = fcntl.fcntl(file, fcntl.F_GETFD)
fcntl.fcntl(file, fcntl.F_SETFD, 0)
print(flags, fcntl.fcntl(file, fcntl.F_GETFD), flush=True)
sys.stdin.read()
"""


def test_locks_seem_to_be_taken_and_keep_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    argv = [sys.executable, "-c", LOAD + LOCKS, str(tmp_path / "file")]
    with (
        subprocess.Popen(argv, cwd=REPOSITORY, stdin=PIPE, stdout=PIPE, text=True) as held,
        (tmp_path / "file").open("r+") as file,
    ):
        assert held.stdout is not None
        assert [held.stdout.readline() for _ in range(5)] == ["0 0\n", "0\n", "0\n", "0\n", "1 0\n"]
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.communicate("")


def test_each_call_has_a_number_here() -> None:
    for name in ("ptrace", "mount_setattr", "socket", "clone3", "seccomp"):
        assert seccomp.number(name) >= 0
    with pytest.raises(OSError, match="does not know the system call"):
        seccomp.number("no_such_call")


def test_without_the_library_there_is_no_filter_and_it_is_said() -> None:
    code = """
from lightagentd.worker import lockdown, seccomp
seccomp.LIBRARY = "libnothing.so.2"
print(seccomp.supported(), lockdown.forbid_programs())
print(seccomp.missing())
seccomp.program(seccomp.OBSERVE_FAMILIES)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("False False\nThe system call filter cannot be made: libnothing.so.2")
    assert done.returncode == 1
    assert "OSError" in done.stderr


def test_a_filter_is_made_in_a_unit_that_allows_little() -> None:
    said = filtered(
        """
refused = ("seccomp", "memfd_create", "pipe", "pipe2")
seccomp.enter(seccomp.program((*seccomp.OBSERVE_FAMILIES, seccomp.AF_UNIX), refused=refused))
code = "from lightagentd.worker import lockdown; print(lockdown.forbid_programs())"
os.execv(sys.executable, [sys.executable, "-c", code])
"""
    )
    assert said == "True\n"


X32_AND_I386 = """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b814000000 cd80 5b c3"))  # getpid(2) of i386
code = ctypes.addressof(ctypes.c_char.from_buffer(page))
for call in (lambda: libc.syscall(0x40000000 | 39), ctypes.CFUNCTYPE(ctypes.c_int)(code)):
    if (child := os.fork()) == 0:
        os._exit(call() > 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only there are calls of x32 and i386")
def test_a_call_of_another_architecture_does_nothing_and_ends_no_process() -> None:
    assert filtered(X32_AND_I386) == "0\n0\n"


def test_program_that_drops_privileges_believes_that_it_did() -> None:
    said = filtered(
        """
before = open("/proc/self/status").read().split("CapEff:")[1].split()[0]
seccomp.enter(seccomp.program(seccomp.OBSERVE_FAMILIES, uid=1234))
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
print(libc.capset(header, data), attempt(os.setuid, 1234), attempt(os.setuid, 0))
print(os.getuid() == 1234, open("/proc/self/status").read().split("CapEff:")[1].split()[0] == before)
"""
    )
    assert said == "0 0 1\nFalse True\n"


def test_a_client_gets_a_port_and_a_server_none() -> None:
    said = filtered(
        """
with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
    low = int(file.read().split()[0])
listener = socket.socket()
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family) as sock:
        print(attempt(sock.bind, (host, low - 1)), sock.getsockname()[1], attempt(sock.listen))
print(attempt(listener.listen), attempt(socket.socket(16, 3, 0).bind, (0, 0)))
with socket.socket(type=socket.SOCK_DGRAM) as client:
    client.bind(("127.0.0.1", 0))
    client.connect(("127.0.0.1", 9))
    print(client.getsockname()[1] >= low)
""",
        families="REACH_FAMILIES",
    )
    assert said.splitlines() == ["0 0 13", "0 0 13", "13 0", "True"]


def test_raw_sockets_are_for_ping_alone() -> None:
    said = filtered(
        """
seccomp.enter(seccomp.program((*seccomp.REACH_FAMILIES, seccomp.AF_UNIX)))
def answer(*how):
    return attempt(lambda: socket.socket(*how).close())
raw = socket.SOCK_RAW
print(answer(socket.AF_NETLINK, raw, 0), [answer(socket.AF_INET, raw, number) for number in (6, 17, 255)])
"""
    )
    assert said == "0 [1, 1, 1]\n"


def both(code: str) -> list[str]:
    """What the code prints under the filter of reach, and without one."""
    bare = LOAD.replace("assert libc.prctl(22", "assert 0 == 0 or libc.prctl(22")
    done = subprocess.run(
        [sys.executable, "-c", bare + code],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    return [filtered(code, families="REACH_FAMILIES"), done.stdout]


def test_reach_speaks_tcp_and_udp_alone() -> None:
    """For another transport the kernel would load a module, whoever asks."""
    held, bare = both(
        """
for family in (socket.AF_INET, socket.AF_INET6):
    print([(kind, number) for kind in (1, 2, 4, 5, 6) for number in (*range(60), 115, 132, 136, 143, 262)
           if attempt(lambda: socket.socket(family, kind, number).close()) not in (93, 94)])
"""
    )
    open_ones = "[(1, 0), (1, 6), (2, 0), (2, {}), (2, {})]"
    assert held.splitlines() == [open_ones.format(1, 17), open_ones.format(17, 58)]
    assert {"(1, 262)", "(2, 136)"} & {*re.findall(r"\(\d, \d+\)", bare)}, "a kernel without MPTCP, UDP-Lite"


def test_no_port_can_be_chosen() -> None:
    held, bare = both(
        """
with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
    port = int(file.read().split()[0]) + 4711
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        wanted = (port << 16 | port).to_bytes(4, sys.byteorder)
        print(attempt(sock.setsockopt, socket.IPPROTO_IP, 51, wanted), end=" ")
"""
    )
    assert held.split() == ["92", "92"]
    assert bare.split() == ["0", "0"]


def test_no_huge_page_can_be_had() -> None:
    """All have them together: who reserves them keeps a database from starting."""
    held, bare = both(
        """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for flags in (0x22, 0x21):
    ctypes.set_errno(0)
    libc.mmap(None, 1 << 21, 3, flags | seccomp._MAP_HUGETLB, -1, 0)
    print(ctypes.get_errno(), end=" ")
print(attempt(lambda: os.memfd_create("x", 4)), attempt(lambda: os.memfd_create("x")))
"""
    )
    assert held == "1 1 1 0\n"
    assert "1 " not in bare


def test_no_file_that_was_opened_for_reading_is_changed_by_a_request(tmp_path: Path) -> None:
    held, bare = both(
        f"""
import fcntl
os.chdir({str(tmp_path)!r})
found = []
for path in (".", "file"):
    open("file", "a").close()
    opened = os.open(path, os.O_RDONLY)
    for request in (0x50009401, 0x50009417, 0x5000940E, 0x50009418, 0x5000940F, 0x5000943F, 0x50009402,
                    0x40309410, 0x9408, 0xC0189436, 0x40086602, 0x40086685, 0x401C5820):
        found.append(attempt(fcntl.ioctl, opened, request, bytes(1024)))
    found.append(attempt(fcntl.ioctl, opened, 0x80086601, bytes(8)))  # FS_IOC_GETFLAGS
print(*found)
"""
    )
    answers = held.split()
    assert set(answers[:13] + answers[14:27]) == {"1"}
    assert "1" not in bare.split()
    assert (answers[13], answers[27]) == (bare.split()[13], bare.split()[27])
