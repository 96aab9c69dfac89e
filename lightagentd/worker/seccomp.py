"""The system call filter of confined workers that the daemon starts itself, made by libseccomp.

It is what `RestrictAddressFamilies=`, `RestrictNamespaces=` and a part of `SystemCallFilter=` are in the
worker units (systemd.exec(5)); see seccomp(2). Sockets exist only for the families that an effect needs.
AF_UNIX is not one of them: over a Unix socket, by path or abstract, another service could be made to change
things (where the bus is allowed, `busdoor` handles them). Pairs of connected sockets can be made, except
datagram ones, which can still send to anybody (the kernel treats SOCK_RAW as one, too). Other processes
cannot be slowed down or pinned, and no namespace can be made. Calls that tools do not need and that have a
history of vulnerabilities answer EPERM. io_uring is one of them, since it opens sockets past any filter of
socket(2). Calls of another architecture than the machine's own (a 32-bit program, x32) answer ENOSYS: to kill
would write the name of the process, which a command chooses, to the kernel's log.

libseccomp compares 64 bits, but the kernel uses only 32 bits of an int. So a rule that refuses one value
compares only these (`_is`). A rule that refuses all values but one compares all bits and refuses more.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
from collections.abc import Iterator, Sequence

from lightagentd.host import libc

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
OBSERVE_FAMILIES = (AF_NETLINK,)
REACH_FAMILIES = (AF_NETLINK, AF_INET, AF_INET6)
EPERM, EACCES, ENOSYS, ENOPROTOOPT, EPROTONOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT = 1, 13, 38, 92, 93, 95, 97
LIBRARY = "libseccomp.so.2"

_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 2, 3, 5, 0xF
_TCP, _UDP = 6, 17
_RAW_FOR_PING = {AF_INET: 1, AF_INET6: 58}
"""The protocol of ICMP in each family that has it."""
_NETLINK_ALLOWED = (0, 4, 15, 16)
"""NETLINK_ROUTE, SOCK_DIAG, KOBJECT_UEVENT and GENERIC, the highest: ip(8), ss(8), udevadm(8), iw(8)."""
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""

_REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("open_by_handle_at", "setns", "mount_setattr"),
    "io_setup",  # what all have of it together is bounded (fs.aio-max-nr), so one command could use it up
    # What they make belongs to no process, so it would outlive the call in its worker's IPC namespace.
    *("shmget", "msgget", "semget", "mq_open"),
    # Where they exist, their arguments lie in memory; libraries make the calls that are meant themselves.
    *("socketcall", "ipc"),
)
_TIMES = ("utimensat", "utimensat_time64", "futimesat")
_ATTRIBUTES = tuple(f"{prefix}{verb}xattr" for verb in ("set", "remove") for prefix in ("", "l", "f"))
_NEW_ATTRIBUTES = (463, 466, 469)
"""setxattrat, removexattrat and file_setattr, which libseccomp 2.5 does not know; alike on all processors."""
_LOCKS = tuple({fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, 6, 7})
"""Commands of fcntl(2) that lock; a 32-bit program without large files has the last two."""
_NETLINK_ADDRESS = 12
"""The size of struct sockaddr_nl; that of AF_INET is longer, and a shorter one is refused (EINVAL)."""
_ADDRESSES = {AF_INET: 16, AF_INET6: 28}
"""The sizes of their addresses. Those of the bus are longer."""
_IP_LEVEL, _IP_LOCAL_PORT_RANGE = 0, 51
_MAP_HUGETLB = 0x80000 if os.uname().machine.startswith(("mips", "parisc")) else 0x40000
_MFD_HUGETLB = 4
_WRITING_IOCTLS = (
    *(0x9401, 0x9417, 0x940E, 0x9418),  # Btrfs: make a snapshot or a subvolume,
    *(0x940F, 0x943F),  # remove one,
    *(0x9402, 0x9410, 0x9408),  # defragment a file, write all to the disk
    0x9436,  # FIDEDUPERANGE
    *(0x6602, 0x6685, 0x5820),  # FS_IOC_SETFLAGS, FS_IOC_ENABLE_VERITY, FS_IOC_FSSETXATTR
)
"""The kind and number of requests of ioctl(2) that change files, or folders, that were opened for reading."""
_IOCTL_KIND_AND_NUMBER = 0xFFFF
_ONLY_ONESELF = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")

_SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 2, 1, 8

# seccomp.h of libseccomp
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_ATTRIBUTE_BAD_ARCH, _ATTRIBUTE_OPTIMIZE = 2, 8
_BINARY_TREE = 2
"""How calls are looked up: the kernel runs a filter once for each call number when a process enters it."""
_NE, _LT, _EQ, _GT, _MASKED_EQ = 1, 2, 4, 6, 7
_UNKNOWN = -1
_LONGEST_BYTES = 8 * 4096
"""BPF_MAXINSNS of linux/bpf_common.h."""
_INT = 0xFFFFFFFF


class _Compared(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


_Rule = tuple[str | int, int, tuple[_Compared, ...]]
"""A call by name or number, the action, and what has to be so of its arguments."""


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


@functools.cache
def _library() -> ctypes.CDLL:
    """The library libseccomp. Raises OSError if it is not installed."""
    found = ctypes.CDLL(LIBRARY)
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = (ctypes.c_uint32,)
    found.seccomp_release.argtypes = (ctypes.c_void_p,)
    found.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    array = ctypes.POINTER(_Compared)
    found.seccomp_rule_add_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, array),
    )
    found.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    found.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    return found


@functools.cache
def missing() -> str:
    """Why no filter can be made here, as a sentence; empty if one can."""
    try:
        program(REACH_FAMILIES)
    except OSError as err:
        return f"The system call filter cannot be made: {err.strerror or err}."
    return ""


def supported() -> bool:
    """Whether filters can be made: libseccomp is installed, and knows this machine and its calls."""
    return not missing()


def number(name: str) -> int:
    """The number of a system call; negative if this machine does not have it.

    Raises OSError if libseccomp is missing or does not know the call.
    """
    found = int(_library().seccomp_syscall_resolve_name(name.encode()))
    if found == _UNKNOWN:
        raise OSError(ENOSYS, f"libseccomp does not know the system call {name}")
    return found


def enter(code: bytes) -> None:
    """Apply a filter of `program` to this thread and all that it starts. Raises OSError.

    If an older filter also answers a call with an error, the newer answer counts (seccomp(2)).
    """
    held = _Program(len(code) // 8, code)
    libc.forbid_new_privileges()
    libc.prctl(libc.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(held))


def listen(code: bytes) -> int:
    """As `enter`, with a filter made with `bus`; gives the descriptor for `busdoor`, which answers.

    Raises OSError: EBUSY if this process already has a filter with a listener.
    """
    held = _Program(len(code) // 8, code)
    libc.forbid_new_privileges()
    flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER
    return libc.syscall("seccomp", number("seccomp"), _SECCOMP_SET_MODE_FILTER, flags, ctypes.addressof(held))


def program(
    families: Sequence[int],
    *,
    refused: Sequence[str] = (),
    uid: int | None = None,
    bus: bool = False,
    reads_only: bool = True,
    serves: bool = False,
) -> bytes:
    """The filter in the form of bwrap's `--seccomp`: an array of `struct sock_filter`.

    `families` are the socket families that may be used, `refused` are further calls that answer EPERM. With
    `reads_only`, what Landlock leaves open is closed (`_reading_rules`); without `serves`, no port can be had
    (`_port_rules`). With `uid`, a program that drops privileges is told that it worked although nothing is
    done: ip(8) and ping(8) end when capset(2), or setuid(2) to their own user, fails. With `bus`, for
    `listen`, whoever listens answers for stream sockets of AF_UNIX, and for connecting to addresses that
    are not as long as those of AF_INET and AF_INET6. Raises OSError where libseccomp is missing, or does not
    know this machine or a call.
    """
    library = _library()
    made = library.seccomp_init(_ALLOW)
    if not made:
        raise OSError(ENOSYS, "libseccomp does not know this machine's processor")
    try:
        _check(library.seccomp_attr_set(made, _ATTRIBUTE_BAD_ARCH, _ERRNO | ENOSYS))
        _check(library.seccomp_attr_set(made, _ATTRIBUTE_OPTIMIZE, _BINARY_TREE))
        more = [*(_reading_rules() if reads_only else ()), *(() if serves else _port_rules())]
        for name, action, compared in (*_rules(families, refused, uid, bus=bus), *more):
            array = (_Compared * len(compared))(*compared)
            call = name if isinstance(name, int) else number(name)
            _check(library.seccomp_rule_add_array(made, action, call, len(compared), array))
        # Worker units may make no file in memory and no pipe (@ipc of systemd.exec(5)).
        to, back = socket.socketpair()
        with to, back:
            _check(library.seccomp_export_bpf(made, to.fileno()))
            return back.recv(_LONGEST_BYTES)
    finally:
        library.seccomp_release(made)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, f"libseccomp: {os.strerror(-result)}")


def _rules(families: Sequence[int], refused: Sequence[str], uid: int | None, *, bus: bool) -> Iterator[_Rule]:
    """The decisions about the filtered system calls."""
    refuse = _ERRNO | EPERM
    for name in (*_REFUSED, *refused):
        yield name, refuse, ()
    yield "clone3", _ERRNO | ENOSYS, ()  # its flags are in memory; libc falls back to clone
    for bit in (1 << shift for shift in range(32)):
        if bit & _NAMESPACES:
            flags = _Compared(1 if os.uname().machine.startswith("s390") else 0, _MASKED_EQ, bit, bit)
            yield "clone", refuse, (flags,)  # see clone(2), "C library/kernel differences"
            yield "unshare", refuse, (_Compared(0, _MASKED_EQ, bit, bit),)
    for name in _ONLY_ONESELF:
        yield name, refuse, (_Compared(0, _NE, 0),)
    for name, which in (("setpriority", _PRIO_PROCESS), ("ioprio_set", _IOPRIO_WHO_PROCESS)):
        yield name, refuse, (_Compared(0, _NE, which),)
        yield name, refuse, (_Compared(1, _NE, 0),)
    # The limits of others can be read, that is with no new ones.
    yield "prlimit64", refuse, (_Compared(0, _NE, 0), _Compared(2, _NE, 0))
    # The machine's huge pages are reserved for a service, and count for nobody's limits.
    for name in _mmap_calls():
        yield name, refuse, (_Compared(3, _MASKED_EQ, _MAP_HUGETLB, _MAP_HUGETLB),)
    yield "memfd_create", refuse, (_Compared(1, _MASKED_EQ, _MFD_HUGETLB, _MFD_HUGETLB),)
    for kind in range(_SOCK_TYPE_MASK + 1):
        if kind not in (_SOCK_STREAM, _SOCK_SEQPACKET):
            yield "socketpair", refuse, (_type(kind),)
    yield from _socket_rules(families, bus=bus)
    if uid is not None:
        yield "capset", _ERRNO, ()
        for name in ("setuid", "setuid32"):  # the second one on 32-bit machines
            yield name, refuse, (_Compared(0, _NE, uid),)
            yield name, _ERRNO, (_Compared(0, _EQ, uid),)


def _mmap_calls() -> Sequence[str]:
    """Those whose fourth argument are the flags: where mmap(2) is old, its arguments lie in memory."""
    machine = os.uname().machine
    if machine.startswith("s390"):
        return ()
    return ("mmap2",) if machine in ("i386", "i486", "i586", "i686", "m68k") else ("mmap", "mmap2")


def _reading_rules() -> Iterator[_Rule]:
    """What keeps a command from disturbing others through files that it may only read.

    A mount that came after its sandbox is not read-only, and Landlock covers neither times nor extended
    attributes, nor what ioctl(2) does to files and folders: with Btrfs it can make a folder. The times of an
    open file seem to be set: touch(1) and tar(1) would fail in the scratch folder otherwise. Locks seem to be
    taken: whoever may read a file can lock it, and keep a service waiting.
    """
    yield "flock", _ERRNO, ()
    for name in ("fcntl", "fcntl64"):
        for command in _LOCKS:
            yield name, _ERRNO, (_is(1, command),)
    for name in _TIMES:
        yield name, _ERRNO, (_Compared(1, _EQ, 0),)
        yield name, _ERRNO | EPERM, (_Compared(1, _NE, 0),)
    for name in ("utime", "utimes"):
        yield name, _ERRNO | EPERM, ()
    for name in _ATTRIBUTES:
        yield name, _ERRNO | EOPNOTSUPP, ()
    for numbered in _NEW_ATTRIBUTES:
        yield numbered, _ERRNO | EOPNOTSUPP, ()
    for request in _WRITING_IOCTLS:
        yield "ioctl", _ERRNO | EPERM, (_Compared(1, _MASKED_EQ, _IOCTL_KIND_AND_NUMBER, request),)


def _port_rules() -> Iterator[_Rule]:
    """What keeps a command from posing as a service that is down.

    bind(2) seems to work, for the sake of clients such as dig(1) that bind to no particular port: the kernel
    gives them one when they connect or send, and they cannot choose which. ip(8) binds netlink, which is told
    by the length of its address.
    """
    chosen = (_is(1, _IP_LEVEL), _is(2, _IP_LOCAL_PORT_RANGE))
    yield "setsockopt", _ERRNO | ENOPROTOOPT, chosen
    yield "bind", _ERRNO, (_Compared(2, _NE, _NETLINK_ADDRESS),)
    yield "listen", _ERRNO | EACCES, ()


def _socket_rules(families: Sequence[int], *, bus: bool) -> Iterator[_Rule]:
    unknown = _ERRNO | EAFNOSUPPORT
    known = {*families, AF_UNIX} if bus else set(families)
    highest = max(known, default=-1)
    yield "socket", unknown, (_Compared(0, _GT, highest),) if known else ()
    for family in set(range(highest)) - known:
        yield "socket", unknown, (_is(0, family),)
    if bus:
        for kind in range(_SOCK_TYPE_MASK + 1):
            yield "socket", _NOTIFY if kind == _SOCK_STREAM else unknown, (_is(0, AF_UNIX), _type(kind))
        others = {_ADDRESSES[family] for family in known & _ADDRESSES.keys()}
        yield "connect", _NOTIFY, (_Compared(2, _GT, max(others)),) if others else ()
        for length in set(range(max(others, default=0))) - others:
            yield "connect", _NOTIFY, (_Compared(2, _EQ, length),)
        known -= {AF_UNIX}
    # A raw socket would see what others send and receive, if it had the capability. Those of AF_NETLINK are
    # raw by nature.
    for family in known - {AF_NETLINK}:
        protocol = (_Compared(2, _NE, _RAW_FOR_PING[family]),) if family in _RAW_FOR_PING else ()
        yield "socket", _ERRNO | EPERM, (_is(0, family), _type(_SOCK_RAW), *protocol)
        if family in _RAW_FOR_PING:
            yield from _transport_rules(family)
    if AF_NETLINK in known:
        # With NETLINK_USERSOCK processes of two users could talk; others reach into netfilter and IPsec.
        refused = _ERRNO | EPROTONOSUPPORT
        yield "socket", refused, (_is(0, AF_NETLINK), _Compared(2, _GT, _NETLINK_ALLOWED[-1]))
        for protocol_number in set(range(_NETLINK_ALLOWED[-1])) - {*_NETLINK_ALLOWED}:
            yield "socket", refused, (_is(0, AF_NETLINK), _is(2, protocol_number))


def _transport_rules(family: int) -> Iterator[_Rule]:
    """TCP, UDP and ping alone: for any other transport the kernel loads a module (SCTP, DCCP, L2TP …)."""
    refused = _ERRNO | EPROTONOSUPPORT
    allowed = {0, _TCP, _UDP, _RAW_FOR_PING[family]}
    for kind in set(range(_SOCK_TYPE_MASK + 1)) - {_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW}:
        yield "socket", refused, (_is(0, family), _type(kind))
    for kind in (_SOCK_STREAM, _SOCK_DGRAM):
        yield "socket", refused, (_is(0, family), _type(kind), _Compared(2, _GT, max(allowed)))
        for protocol in set(range(max(allowed))) - allowed:
            yield "socket", refused, (_is(0, family), _type(kind), _is(2, protocol))


def _is(argument: int, value: int) -> _Compared:
    """Whether an argument, as an int, is this value."""
    return _Compared(argument, _MASKED_EQ, _INT, value)


def _type(kind: int) -> _Compared:
    """Whether the second argument is this type of socket."""
    return _Compared(1, _MASKED_EQ, _SOCK_TYPE_MASK, kind)
