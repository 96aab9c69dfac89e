"""Landlock: keeps the processes of a sandbox from signalling, tracing and calling those outside.

A process that enters a domain, and everything that it starts afterwards, is limited to that domain and those
nested in it: for signals, for connections over abstract Unix sockets, and for tracing or reading processes
(`/proc/PID/mem`, `environ`, `root`, `fd`). So no PID namespace is needed, `ps` and `top` work, and kill(2)
with the pid -1 reaches exactly the processes of the caller's domain.

The kernel's ABI level tells its features (landlock_create_ruleset(2)): 1 is Linux 5.13, with the rule for
tracing; 5 is Linux 6.10, with the rule for ioctl(2) on devices; 6 is Linux 6.12, with the scopes for signals
and abstract sockets. Below 6 `enter` uses the available ones. The structures and numbers are those of
linux/landlock.h; the calls have the same numbers on every architecture.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from lightagentd.host import libc

WRITABLE_DEVICES = (Path("/dev/null"), Path("/dev/zero"), Path("/dev/full"))
"""What a command that may change nothing may write to all the same."""

SCOPED_ABI = 6
"""The first ABI level that scopes signals and abstract sockets."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_FS_WRITE_FILE, _FS_MAKE_BLOCK, _FS_REFER, _FS_TRUNCATE = 1 << 1, 1 << 11, 1 << 13, 1 << 14
_FS_IOCTL_DEV = 1 << 15
_FS_CHANGES = _FS_WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Write to a file, remove a folder or file, make one of any kind."""
_FS_OF_FILES = _FS_WRITE_FILE | _FS_TRUNCATE | _FS_IOCTL_DEV
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1


def abi() -> int:
    """The kernel's ABI level; 0 if Landlock is missing or switched off."""
    try:
        return libc.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def scoped() -> bool:
    """Whether a domain confines signals and abstract sockets."""
    return abi() >= SCOPED_ABI


def ruleset(level: int, *, writable: Sequence[Path] | None = None) -> int:
    """A descriptor of the rules that ABI `level` can enforce; `enter` takes it. Raises OSError.

    With `writable`, only files at or below these paths can be changed, whatever the file modes allow; from
    level 5 on, ioctl(2) reaches no other device. Files that are already open are not affected.
    """
    if writable is not None:
        return _read_only(level, writable)
    # struct landlock_ruleset_attr { __u64 handled_access_fs; __u64 handled_access_net; __u64 scoped; };
    # an older kernel takes the longer structure as long as what it does not know is 0.
    if level >= SCOPED_ABI:
        return _create(struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL))
    # The rule for tracing comes with any domain, and a ruleset must handle something: block devices, which
    # nobody here can make anyway. From level 2 on, moving files between folders must be allowed by name.
    if level < 2:
        return _create(struct.pack("=QQQ", _FS_MAKE_BLOCK, 0, 0))
    made = _create(struct.pack("=QQQ", _FS_MAKE_BLOCK | _FS_REFER, 0, 0))
    _allow(made, Path("/"), _FS_REFER)
    return made


def _read_only(level: int, writable: Sequence[Path]) -> int:
    handled = _FS_CHANGES | (_FS_REFER if level >= 2 else 0) | (_FS_TRUNCATE if level >= 3 else 0)
    handled |= _FS_IOCTL_DEV if level >= 5 else 0
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if level >= SCOPED_ABI else 0
    made = _create(struct.pack("=QQQ", handled, 0, scoped))
    for path in writable:
        # What only folders have cannot be allowed on a file (EINVAL).
        _allow(made, path, handled if path.is_dir() else handled & _FS_OF_FILES)
    return made


def _allow(rules: int, path: Path, access: int) -> None:
    """Allow `access` to everything below `path`. On failure it closes the rules and raises OSError."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            # struct landlock_path_beneath_attr { __u64 allowed_access; __s32 parent_fd; }, packed
            rule = struct.pack("=Qi", access, parent)
            libc.syscall("landlock_add_rule", _ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(parent)
    except OSError:
        os.close(rules)
        raise


def enter(rules: int) -> None:
    """Put this thread, and all that it starts, into a new domain inside the current one. Raises OSError.

    It cannot be undone. A process can nest 16 domains.
    """
    libc.forbid_new_privileges()
    libc.syscall("landlock_restrict_self", _RESTRICT_SELF, rules, 0)


def _create(attributes: bytes) -> int:
    return libc.syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
