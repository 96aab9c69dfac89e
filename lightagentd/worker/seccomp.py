"""The system call filter of confined workers that the daemon starts itself, as a classic BPF program.

It is what `RestrictAddressFamilies=`, `RestrictNamespaces=` and a part of `SystemCallFilter=` are in the
worker units (systemd.exec(5)); see seccomp(2). Sockets exist only for the families that an effect needs, and
AF_UNIX is not one of them: a socket of another service, in whatever folder or abstract, would be a way to
change things (where the bus is let in, `busdoor` answers for them). Pairs of connected sockets can be made,
except datagram ones, which can still send to anybody (the kernel takes SOCK_RAW for one, too). Other
processes cannot be slowed down or pinned, and no namespace can be made. Calls that a tool has no use for and
that have a history of holes answer EPERM; io_uring is among them, since it opens sockets past any filter of
socket(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
OBSERVE_FAMILIES = (AF_NETLINK,)
REACH_FAMILIES = (AF_NETLINK, AF_INET, AF_INET6)
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

_SOCK_STREAM, _SOCK_RAW, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 3, 5, 0xF
_IPPROTO_ICMP, _IPPROTO_ICMPV6 = 1, 58
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""

_LD_W_ABS, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO, _KILL, _ASK = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
_OFF_NR, _OFF_ARCH, _OFF_ARGS = 0, 4, 16
_X32_BIT = 0x40000000

_Code = list[tuple[int, int, int, int]]
"""Instructions of struct sock_filter: code, jump if true, jump if false, operand."""

_REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("open_by_handle_at", "setns", "mount_setattr"),
    # What they make belongs to no process, so it would outlive the call in its worker's IPC namespace.
    *("shmget", "msgget", "semget", "mq_open"),
)
_LONGEST_OTHER_ADDRESS = 28
"""The size of struct sockaddr_in6; those of AF_INET and AF_NETLINK are shorter, the bus' path is longer."""
_ONLY_ONESELF = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_libc = ctypes.CDLL(None, use_errno=True)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS: dict[str, tuple[int, int]] = {  # on x86_64 and on aarch64
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount_setattr": (442, 442),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def supported() -> bool:
    """Whether the filter knows this machine's system call numbers."""
    return platform.machine() in _AUDIT_ARCH


def number(name: str) -> int:
    """The number of a system call of `NUMBERS` on this machine."""
    return NUMBERS[name][platform.machine() == "aarch64"]


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def enter(code: bytes) -> None:
    """Put this thread, and all that it starts, under a filter as `program` makes it. Raises OSError.

    Where an older filter answers a call with an error too, the answer is that of the newer one (seccomp(2)).
    """
    held = _Program(len(code) // 8, code)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(held), 0, 0),
    ):
        if _libc.prctl(*call) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")


def listen(code: bytes) -> int:
    """As `enter`, with a filter that was made with `bus`; gives the descriptor for who answers (`busdoor`).

    Raises OSError, EBUSY where this process is under another filter with a listener already.
    """
    held = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER
        made = _libc.syscall(number("seccomp"), _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(held))
        if made >= 0:
            return int(made)
    error = ctypes.get_errno()
    raise OSError(error, f"seccomp: {os.strerror(error)}")


def program(
    families: Sequence[int], *, refused: Sequence[str] = (), uid: int | None = None, bus: bool = False
) -> bytes:
    """The filter as bwrap's `--seccomp` takes it: an array of `struct sock_filter`.

    `families` are the socket families that may be used, `refused` are further calls of `NUMBERS` that answer
    EPERM. With `uid`, a program that drops privileges is told that it worked although nothing is done: ip(8)
    and ping(8) end when capset(2), or setuid(2) to their own user, fails. With `bus`, for `listen`, whoever
    listens answers for stream sockets of AF_UNIX, and for connecting to what may be the path of one. Another
    architecture than the machine's own (a 32-bit program) is killed, because its system calls have other
    numbers. Raises KeyError on a machine that is not `supported`.
    """
    machine = platform.machine()
    code: _Code = [
        (_LD_W_ABS, 0, 0, _OFF_ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RET, 0, 0, _KILL),
        (_LD_W_ABS, 0, 0, _OFF_NR),
        (_JGE, 0, 1, _X32_BIT),
        (_RET, 0, 0, _ERRNO | EPERM),
    ]
    refuse: _Code = [(_RET, 0, 0, _ERRNO | EPERM)]
    rules = [*_rules(families, bus=bus).items(), *((name, refuse) for name in refused)]
    if uid is not None:
        feign: _Code = [(_RET, 0, 0, _ERRNO)]
        rules += [("capset", feign), ("setuid", [*_unless({0: (uid,)}, EPERM)[:-1], *feign])]
    for name, body in rules:
        # Each body ends in a return, whatever it finds: the number in the accumulator may be overwritten.
        code += [(_JEQ, 0, len(body), number(name)), *body]
    code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _rules(families: Sequence[int], *, bus: bool) -> dict[str, _Code]:
    """What is decided about each system call that is looked at."""
    refuse: _Code = [(_RET, 0, 0, _ERRNO | EPERM)]
    allow: _Code = [(_RET, 0, 0, _ALLOW)]
    no_namespace: _Code = [*_argument(0), (_JSET, 0, 1, _NAMESPACES), *refuse, *allow]
    rules = dict.fromkeys(_REFUSED, refuse)
    rules |= dict.fromkeys(_ONLY_ONESELF, _unless({0: (0,)}, EPERM))
    ask: _Code = [
        *_argument(0),
        (_JEQ, 0, 5, AF_UNIX),
        *_argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_JEQ, 0, 1, _SOCK_STREAM),
        (_RET, 0, 0, _ASK),
        (_RET, 0, 0, _ERRNO | EAFNOSUPPORT),
    ]
    if bus:
        rules["connect"] = [
            *_argument(2),
            (_JGE, 1, 0, _LONGEST_OTHER_ADDRESS + 1),
            *allow,
            (_RET, 0, 0, _ASK),
        ]
    rules["socket"] = [
        *(ask if bus else []),
        *_unless({0: families}, EAFNOSUPPORT)[:-1],
        *_argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_JEQ, 0, 6, _SOCK_RAW),
        *_argument(0),
        (_JEQ, 4, 0, AF_NETLINK),  # whose sockets are raw by nature
        *_argument(2),
        (_JEQ, 2, 0, _IPPROTO_ICMP),
        (_JEQ, 1, 0, _IPPROTO_ICMPV6),
        *refuse,  # it would see what others send and receive, if it had the capability
        *allow,
    ]
    rules["socketpair"] = [
        *_argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_JEQ, 1, 0, _SOCK_STREAM),
        (_JEQ, 0, 1, _SOCK_SEQPACKET),
        *allow,
        *refuse,
    ]
    rules["clone"] = rules["unshare"] = no_namespace
    rules["clone3"] = [(_RET, 0, 0, _ERRNO | ENOSYS)]  # its flags are in memory; libc falls back to clone
    rules["setpriority"] = _unless({0: (_PRIO_PROCESS,), 1: (0,)}, EPERM)
    rules["ioprio_set"] = _unless({0: (_IOPRIO_WHO_PROCESS,), 1: (0,)}, EPERM)
    # The limits of others can be read, that is with no new ones (argument 2, a pointer of two words).
    rules["prlimit64"] = [
        *_argument(0),
        (_JEQ, 0, 1, 0),
        *allow,
        *_argument(2),
        (_JEQ, 0, 3, 0),
        *_argument(2, high=True),
        (_JEQ, 0, 1, 0),
        *allow,
        *refuse,
    ]
    return rules


def _argument(index: int, *, high: bool = False) -> _Code:
    """Load an argument's low or high word (both machines are little-endian)."""
    return [(_LD_W_ABS, 0, 0, _OFF_ARGS + 8 * index + 4 * high)]


def _unless(wanted: dict[int, Sequence[int]], error: int) -> _Code:
    """Allow when each argument of `wanted` has one of its values, else fail with `error`."""
    code: _Code = []
    for index, values in wanted.items():
        code += _argument(index)
        for position, value in enumerate(values):
            code.append((_JEQ, len(values) - position, 0, value))
        code.append((_RET, 0, 0, _ERRNO | error))
    return [*code, (_RET, 0, 0, _ALLOW)]
