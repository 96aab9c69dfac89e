"""Calls of the C library and the kernel that Python does not have. Each raises OSError when it fails.

It takes some time to import ctypes, so programs that must start fast import this where they call it. The
programs that `worker/proof` and `doctor/sandbox_probe` run as text have only the standard library.
"""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 4, 22, 36
_PR_SET_NO_NEW_PRIVS = 38
_AT_FDCWD = -100
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 1 << 18
_TIMEX_BYTES = 512
"""More than a struct timex has."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """See prctl(2)."""
    return _checked(_libc.prctl(option, first, second, 0, 0), "prctl")


def forbid_new_privileges() -> None:
    """Have this thread, and all that it starts, gain no privileges: PR_SET_NO_NEW_PRIVS of prctl(2)."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """The system call with this number, as syscall(2) makes it. `name` is for the error."""
    words = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    return _checked(_libc.syscall(ctypes.c_long(number), *words), name)


def renameat2(source: str | os.PathLike[str], target: str | os.PathLike[str], flags: int) -> None:
    """See renameat2(2)."""
    names = os.fsencode(source), os.fsencode(target)
    _checked(_libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(flags)), "renameat2")


def return_large_buffers() -> None:
    """Have the C library map each buffer of `_MAPPED_BYTES` by itself, so that freeing it gives it back
    to the kernel: mallopt(3). Left alone, glibc raises that size to 32 MiB, and keeps what is freed below it.
    A C library without mallopt(3) is left as it is.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def timex() -> bytes:
    """The struct timex of the kernel, as adjtimex(2) gives it; nothing is set."""
    answer = ctypes.create_string_buffer(_TIMEX_BYTES)
    _checked(_libc.adjtimex(answer), "adjtimex")
    return answer.raw


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
