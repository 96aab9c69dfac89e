"""The system call filter of workers that the daemon starts itself, as a classic BPF program.

It is what `RestrictAddressFamilies=` and a part of `SystemCallFilter=` are in the worker units
(systemd.exec(5)): with effect observe, sockets exist only for the families that cannot leave the machine;
with every effect, calls that a tool has no use for and that have a history of holes answer EPERM.
io_uring is among them, since it opens sockets past any filter of socket(2). See seccomp(2).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence

AF_UNIX, AF_NETLINK = 1, 16
EPERM, EAFNOSUPPORT = 1, 97

_LD_W_ABS, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OFF_NR, _OFF_ARCH, _OFF_ARG0 = 0, 4, 16
_X32_BIT = 0x40000000

_NUMBERS: dict[str, tuple[int, dict[str, int]]] = {  # AUDIT_ARCH and the numbers; all but socket are denied
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            "ptrace": 101,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "io_uring_setup": 425,
            "io_uring_enter": 426,
            "io_uring_register": 427,
            "bpf": 321,
            "perf_event_open": 298,
            "userfaultfd": 323,
            "keyctl": 250,
            "add_key": 248,
            "request_key": 249,
            "kexec_load": 246,
            "open_by_handle_at": 304,
            "init_module": 175,
            "finit_module": 313,
            "delete_module": 176,
            "pidfd_getfd": 438,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198,
            "ptrace": 117,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "io_uring_setup": 425,
            "io_uring_enter": 426,
            "io_uring_register": 427,
            "bpf": 280,
            "perf_event_open": 241,
            "userfaultfd": 282,
            "keyctl": 219,
            "add_key": 217,
            "request_key": 218,
            "kexec_load": 104,
            "open_by_handle_at": 265,
            "init_module": 105,
            "finit_module": 273,
            "delete_module": 106,
            "pidfd_getfd": 438,
        },
    ),
}


def supported() -> bool:
    """Whether the filter knows this machine's system call numbers."""
    return platform.machine() in _NUMBERS


def program(families: Sequence[int] | None) -> bytes:
    """The filter as bwrap's `--seccomp` takes it: an array of `struct sock_filter`.

    `families` are the socket families that may be used; None means all. Another architecture than the
    machine's own (a 32-bit program) is killed, because its system calls have other numbers.
    Raises KeyError on a machine that is not `supported`.
    """
    arch, numbers = _NUMBERS[platform.machine()]
    code: list[tuple[int, int, int, int]] = [
        (_LD_W_ABS, 0, 0, _OFF_ARCH),
        (_JEQ, 1, 0, arch),
        (_RET, 0, 0, _KILL),
        (_LD_W_ABS, 0, 0, _OFF_NR),
        (_JGE, 0, 1, _X32_BIT),
        (_RET, 0, 0, _ERRNO | EPERM),
    ]
    for name, number in numbers.items():
        if name != "socket":
            code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _ERRNO | EPERM)]
    if families is not None:
        code += [(_JEQ, 1, 0, numbers["socket"]), (_RET, 0, 0, _ALLOW), (_LD_W_ABS, 0, 0, _OFF_ARG0)]
        for family in families:
            code += [(_JEQ, 0, 1, family), (_RET, 0, 0, _ALLOW)]
        code.append((_RET, 0, 0, _ERRNO | EAFNOSUPPORT))
    else:
        code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
