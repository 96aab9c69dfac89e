"""Workers for tests, as processes that the prepared one forks: most of a worker's start is its imports, and a
worker's start is half of what a test of an agent costs.

`starting` takes the command line that the daemon would run, `choom ... bwrap ... setpriv ... keeper`, and has
a forked process do what those programs do: the same mounts, namespaces, capabilities, filter and user. Then
comes the keeper itself, which confines the worker as ever. A command line with anything else is started as it
is, and so is each one in the tests of the sandbox itself (`KEEP_REAL`).
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightagentd.host import libc
from lightagentd.host.process import clean_environment
from lightagentd.worker import seccomp
from tests.described import folder_of

Start = Callable[..., Awaitable[Any]]
KEEPER = "lightagentd.worker.keeper"
USED_LATER = (
    "encodings.ascii",
    "lightagentd.toolkit.files",
    "lightagentd.toolkit.journal",
    "lightagentd.toolkit.proc",
    "lightagentd.worker.busdoor",
    "lightagentd.worker.confine",
    "lightagentd.worker.program",
    "psutil",
    "pydantic.root_model",
)
"""What a worker imports after its keeper has begun, or with its first call."""
KEEP_REAL = ("tests/worker", "tests/attacks", "tests/doctor", "tests/agents/test_hooks.py")
"""The tests whose subject is how a worker is started, or that have short limits of time for one."""
_MOUNTS = dict.fromkeys(("--ro-bind", "--ro-bind-try", "--bind"), 2)
_MOUNTS |= dict.fromkeys(("--tmpfs", "--dir", "--remount-ro", "--dev"), 1)
"""The mounts that bwrap makes, and how many paths each has."""
_CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7}
_NEWNS, _NEWIPC = 0x20000, 0x8000000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE, _RECURSIVE, _CLOEXEC, _EMPTY_PATH, _FROM_EMPTY_PATH = 1, 0x8000, 0o2000000, 0x1000, 4
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_PRIVATE = 1 << 18
_AT_FDCWD = -100
_PR_CAPBSET_DROP = 24
_c = ctypes.CDLL(None, use_errno=True)


def read(argv: Sequence[str]) -> dict[str, Any] | None:
    """What a command line of a worker does before the keeper; None if there is anything else in it."""
    words = iter(argv)
    found: dict[str, Any] = {"mounts": [], "capabilities": [], "oom": None, "user": None, "filter": None}
    found |= {"ipc": False, "bwrap": False}
    shape: dict[str, str] = {}
    try:
        for word in words:
            if word == "choom":
                found["oom"] = (next(words), next(words), next(words))[1]
            elif word == "bwrap":
                found["bwrap"] = True
            elif word == "setpriv":
                found["user"] = _user(words)
                if found["user"] is None:
                    return None
            elif word == sys.executable:
                found["keeper"] = [*words]
                plain = found["keeper"][:2] == ["-m", KEEPER] and "--place" not in found["keeper"]
                # Outside of bwrap another user may not be able to read this interpreter's modules.
                reads = found["bwrap"] or found["user"] is None
                return found if plain and reads and os.geteuid() == 0 else None
            elif word in _MOUNTS:
                paths = [next(words) for _ in range(_MOUNTS[word])]
                found["mounts"].append((word, *paths, shape))
                shape = {}
            elif word in ("--perms", "--size"):
                shape[word] = next(words)
            elif word == "--seccomp":
                found["filter"] = int(next(words))
            elif word == "--cap-add":
                found["capabilities"].append(_CAPABILITIES[next(words)])
            elif word == "--unshare-ipc":
                found["ipc"] = True
            elif word == "--chdir":
                if next(words) != "/":
                    return None
            elif word != "--new-session":
                return None
    except (StopIteration, KeyError):
        pass
    return None


def _user(words: Any) -> dict[str, Any] | None:
    user: dict[str, Any] = {"groups": []}
    for word in words:
        name, _, value = word.partition("=")
        if word == "--":
            return user
        if name in ("--reuid", "--regid"):
            user[name[2:]] = int(value)
        elif name == "--groups":
            user["groups"] = [int(gid) for gid in value.split(",")]
        elif word not in ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"):
            return None
    return None


class Worker:
    """A forked worker, with the methods of `asyncio.subprocess.Process` that are used of it."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._socket = ended
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._loop.add_reader(ended, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._socket)
        self.returncode = int(self._socket.recv(64) or b"-9")
        self._socket.close()
        self._done.set_result(self.returncode)

    async def wait(self) -> int:
        return await asyncio.shield(self._done)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def address_of(pid: int) -> Path:
    """Where the prepared process of one that runs tests is asked for workers."""
    return folder_of(pid) / "workers"


def keeps_real(pid: int) -> Path:
    """While this file is there, workers are started as they are."""
    return folder_of(pid) / "real"


def starting(pid: int, start: Start, ready: Callable[[], object] = lambda: None) -> Start:
    """`lightagentd.host.process.start` for the daemons of a process that runs tests."""
    address, real = address_of(pid), keeps_real(pid)

    async def forked(
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        stderr: int | None = None,
    ) -> Any:
        steps = read(argv) if stderr is None and not real.exists() else None
        if steps is None:
            return await start(argv, env=env, pass_fds=pass_fds, stderr=stderr)
        ready()
        request = {"worker": steps, "env": clean_environment(env), "fds": list(pass_fds)}
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asked.connect(str(address))
            socket.send_fds(asked, [json.dumps(request).encode()], [2, *pass_fds])
            pid = int(asked.recv(64))
        except BaseException:
            asked.close()
            raise
        asked.setblocking(False)
        return Worker(pid, asked)

    return forked


def become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Be the worker; called in the forked process, whose other descriptors may all be closed."""
    steps = request["worker"]
    os.setsid()
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, 3000 + place) for place, number in enumerate(descriptors)]
    os.closerange(3, 3000)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    for source, target in zip(high, (2, *request["fds"]), strict=True):
        os.dup2(source, target)
    os.closerange(3000, 3000 + len(high))
    if nothing not in request["fds"]:
        os.close(nothing)
    if steps["oom"] is not None:
        Path("/proc/self/oom_score_adj").write_text(steps["oom"])
    os.chdir("/")
    if steps["bwrap"]:
        _call("unshare", _c.unshare(_NEWNS | (_NEWIPC if steps["ipc"] else 0)))
        umask = os.umask(0o022)  # the prepared process may have begun in a test with another one
        _mount_all(steps["mounts"])
        os.umask(umask)
        os.chdir("/")
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if capability not in steps["capabilities"]:
                libc.prctl(_PR_CAPBSET_DROP, capability)
        libc.forbid_new_privileges()
    if steps["filter"] is not None:
        code = os.pread(steps["filter"], 1 << 20, 0)
        seccomp.enter(code)
        os.close(steps["filter"])
    if (user := steps["user"]) is not None:
        os.setgroups(user["groups"])
        os.setresgid(user["regid"], user["regid"], user["regid"])
        os.setresuid(user["reuid"], user["reuid"], user["reuid"])
        libc.forbid_new_privileges()
    sys.argv = [KEEPER, *steps["keeper"][2:]]
    sys.modules[KEEPER].main()


def _mount_all(mounts: Sequence[Sequence[Any]]) -> None:
    """What bwrap mounts. Its binds are of what was there before it mounted anything."""
    _call("mount", _c.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE | 0x4000), None))
    trees = [
        _tree(source) if "bind" in kind and source != "/" and _is_there(kind, source) else None
        for kind, source, *_ in mounts
    ]
    devices = {name: _tree(f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")}
    for tree, (kind, source, *rest) in zip(trees, mounts, strict=True):
        shape = rest[-1]
        flags = _NOSUID | _NODEV | (0 if kind == "--bind" else _RDONLY)
        if kind == "--ro-bind" and source == "/":
            _set(_AT_FDCWD, b"/", flags, _RECURSIVE)
        elif tree is not None:
            target = rest[0]
            if not os.path.lexists(target):
                _place_for(target, is_folder=stat.S_ISDIR(os.fstat(tree).st_mode))
            _set(tree, b"", flags, _EMPTY_PATH | _RECURSIVE)
            _move(tree, target)
        elif "bind" in kind:
            continue
        elif kind == "--tmpfs":
            _tmpfs(source, shape.get("--perms", "0755"), shape.get("--size"))
        elif kind == "--dir":
            os.makedirs(source, int(shape.get("--perms", "0755"), 8), exist_ok=True)  # noqa: PTH103
        elif kind == "--remount-ro":
            _set(_AT_FDCWD, os.fsencode(source), _RDONLY, 0)
        else:
            _tmpfs(source, "0755", None)
            for name, device in devices.items():
                _place_for(f"{source}/{name}", is_folder=False)
                _set(device, b"", _NOSUID, _EMPTY_PATH)
                _move(device, f"{source}/{name}")
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                os.symlink(f"/proc/self/fd/{number}", f"{source}/{name}")  # noqa: PTH211
            os.symlink("/proc/self/fd", f"{source}/fd")  # noqa: PTH211
            os.mkdir(f"{source}/shm", 0o755)  # noqa: PTH102
            os.mkdir(f"{source}/pts", 0o755)  # noqa: PTH102
            options = b"newinstance,ptmxmode=0666,mode=620"
            pts, alone = os.fsencode(f"{source}/pts"), ctypes.c_ulong(_NOSUID | _NOEXEC)
            _call("mount", _c.mount(b"devpts", pts, b"devpts", alone, options))
            os.symlink("pts/ptmx", f"{source}/ptmx")  # noqa: PTH211


def _is_there(kind: str, source: str) -> bool:
    return kind != "--ro-bind-try" or os.path.exists(source)  # noqa: PTH110


def _tree(path: str) -> int:
    flags = _CLONE | _RECURSIVE | _CLOEXEC
    return libc.syscall("open_tree", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def _set(folder: int, path: bytes, flags: int, how: int) -> None:
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    libc.syscall("mount_setattr", _MOUNT_SETATTR, folder, path, how, attributes, len(attributes))


def _move(tree: int, target: str) -> None:
    libc.syscall(
        f"move_mount to {target}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH
    )
    os.close(tree)


def _place_for(target: str, *, is_folder: bool) -> None:
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if not is_folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))


def _tmpfs(path: str, perms: str, size: str | None) -> None:
    options = f"mode={perms}" + (f",size={size}" if size else "")
    os.makedirs(path, exist_ok=True)  # noqa: PTH103
    flags = ctypes.c_ulong(_NOSUID | _NODEV)
    _call("mount", _c.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options.encode()))


def _call(name: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
