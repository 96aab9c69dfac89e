"""Asks the kernel which file a Unix socket is bound to (sock_diag(7)).

The name of a socket (getsockname(2)) is what its process said to bind(2), in that process's view of the file
system; the file is the one that was made. An accepted socket has the file of its listener.
"""

from __future__ import annotations

import os
import socket
import struct

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_SHOW_VFS, _VFS = 2, 1
_HEADER, _REQUEST, _MESSAGE, _ATTRIBUTE = (
    struct.Struct(one) for one in ("=IHHII", "=BBHIIIII", "=BBBBIII", "=HH")
)
_REPLY_BYTES = 8192
_KERNEL_MINOR_BITS = 20


def bound_file(sock: socket.socket) -> tuple[int, int, int] | None:
    """Major and minor number of the file system, and the lower 32 bits of the file's inode number; None for a
    socket that is bound to no file. Raises OSError, also where the kernel does not say.
    """
    number = os.fstat(sock.fileno()).st_ino
    asked = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFF_FFFF, number, _SHOW_VFS, 0xFFFF_FFFF, 0xFFFF_FFFF)
    header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as asking:
        asking.sendto(header + asked, (0, 0))
        reply = asking.recv(_REPLY_BYTES)
    length, kind, *_ = _HEADER.unpack_from(reply)
    if kind == _NLMSG_ERROR:
        error = -struct.unpack_from("=i", reply, _HEADER.size)[0]
        raise OSError(error, os.strerror(error))
    at = _HEADER.size + _MESSAGE.size
    while at + _ATTRIBUTE.size <= length:
        size, attribute = _ATTRIBUTE.unpack_from(reply, at)
        if attribute == _VFS:
            inode, device = struct.unpack_from("=II", reply, at + _ATTRIBUTE.size)
            return device >> _KERNEL_MINOR_BITS, device & (1 << _KERNEL_MINOR_BITS) - 1, inode
        at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return None


def file_of(path: os.PathLike[str]) -> tuple[int, int, int]:
    """The same of a file with a name. Raises OSError."""
    found = os.lstat(path)
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino & 0xFFFF_FFFF
