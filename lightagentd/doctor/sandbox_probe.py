"""Tries, inside a worker's sandbox, what an effect may not do, and reports what worked.

`doctor/sandbox` has a worker's shell run this text with one JSON object as its argument, which names the
targets. It prints one JSON object: a list of what worked for each probe. It imports the standard library
alone, and takes back at once whatever it was able to do.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
TIMEOUT_S = 2.0

libc = ctypes.CDLL(None, use_errno=True)


def writes(targets: dict[str, Any]) -> list[str]:
    """The folders in which a file could be made, and the files that could be opened for writing."""
    found = []
    for folder in targets["folders"]:
        path = os.path.join(folder, targets["token"])  # noqa: PTH118 - a small program without pathlib
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(path)  # noqa: PTH108
            found.append(folder)
    for path in targets["files"]:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            found.append(path)
    return found


def scratch(targets: dict[str, Any]) -> list[str]:
    """Whether the one folder that is for writing can be written to."""
    return writes({**targets, "folders": [os.environ.get("TMPDIR", "/nonexistent")], "files": []})


def network(targets: dict[str, Any]) -> list[str]:
    """The addresses that could be sent to; the daemon listens on each."""
    found = []
    for kind, host, port in targets["addresses"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, getattr(socket, kind)) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect((host, port))
            sock.send(targets["token"].encode())
            found.append(f"{host} by {'TCP' if kind == 'SOCK_STREAM' else 'UDP'}")
    return found


def resolvers(targets: dict[str, Any]) -> list[str]:
    """The ways to a resolver on this machine that are open: UDP, and the sockets of those that run."""
    found = [f"DNS ({way})" for way in network(targets) if way.endswith("UDP")]
    return found + unix_sockets({"sockets": targets["resolvers"], "token": targets["token"]})


def unix_sockets(targets: dict[str, Any]) -> list[str]:
    """The sockets that took a connection."""
    found = []
    for path in targets["sockets"]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect("\0" + path[1:] if path.startswith("@") else path)
            found.append(path)
    return found


def secrets(targets: dict[str, Any]) -> list[str]:
    """The files that could be read from, and the folders that have something in them."""
    found = []
    for path in targets["secrets"]:
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116
                seen = bool(os.listdir(path))  # noqa: PTH208
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    seen = bool(file.read(1))
            if seen:
                found.append(path)
    return found


def processes(targets: dict[str, Any]) -> list[str]:
    """What could be done to processes that are not the probe's own: the worker, the daemon and a victim."""
    found = []
    known = [("its worker", os.getppid()), ("the daemon", targets["daemon"])]
    known += [("another process of its user", pid) for pid in targets["victims"]]
    for name, pid in known:
        for what, attempt in _INTERFERENCE:
            with contextlib.suppress(OSError):
                if attempt(pid):
                    found.append(f"{what} {name}")
    return found


def _signals(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def _traces(pid: int) -> bool:
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        return False
    libc.ptrace(PTRACE_DETACH, pid, None, None)
    return True


def _reads_memory(pid: int) -> bool:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    return True


def _reads_environment(pid: int) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        return bool(file.read(1))


_INTERFERENCE: list[tuple[str, Callable[[int], bool]]] = [
    ("signal", _signals),
    ("trace", _traces),
    ("read the memory of", _reads_memory),
    ("read the environment of", _reads_environment),
]


def privileges(targets: dict[str, Any]) -> list[str]:
    """The ways to more rights that are open; each is tried in a process of its own."""
    found = []
    capabilities = int(_status("CapEff") or "0", 16) & ~targets["capabilities"]
    if capabilities:
        found.append(f"capabilities {capabilities:#x}")
    if _status("NoNewPrivs") != "1":
        found.append("set-user-ID programs")
    for name, attempt in (
        ("setuid(0)", _becomes_root),
        ("a user namespace", lambda: libc.unshare(CLONE_NEWUSER) == 0),
        ("a mount namespace", lambda: libc.unshare(CLONE_NEWNS) == 0),
        ("mount", _mounts),
    ):
        if _in_child(attempt):
            found.append(name)
    return found


def _becomes_root() -> bool:
    before = os.getuid()
    os.setuid(0)
    return before != 0


def _mounts() -> bool:
    folder = os.fsencode(os.environ.get("TMPDIR", "/nonexistent"))
    return bool(libc.mount(b"none", folder, b"tmpfs", 0, None) == 0 and libc.umount(folder) == 0)


def devices(targets: dict[str, Any]) -> list[str]:
    """Whether a device can be made, and which disks can be opened."""
    found = []
    for folder in ("/dev", os.environ.get("TMPDIR", "/tmp")):  # noqa: S108 - it is only tried
        path = os.path.join(folder, targets["token"])  # noqa: PTH118
        with contextlib.suppress(OSError):
            os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 0))
            os.unlink(path)  # noqa: PTH108
            found.append(f"mknod in {folder}")
    for path in targets["devices"]:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            found.append(path)
    return found


def bus(targets: dict[str, Any]) -> list[str]:
    """The calls over the system bus that reached the service they are not for."""
    found = []
    for destination, path, interface, method, *arguments in targets["bus_calls"]:
        command = ["busctl", "--timeout=2", "call", destination, path, interface, method, *arguments]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, timeout=5, check=False)
            said = done.stderr.decode(errors="replace")
            if done.returncode == 0 or any(name in said for name in targets["bus_reached"]):
                found.append(f"{destination} {method}")
    return found


def others(targets: dict[str, Any]) -> list[str]:
    """Whether the processes of the machine can be seen, which is for looking."""
    own = {os.getpid(), os.getppid()}
    seen = {int(name) for name in os.listdir("/proc") if name.isdigit()} - own  # noqa: PTH208
    return ["the daemon"] if targets["daemon"] in seen else []


def _status(name: str) -> str:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(name + ":"):
                return line.split()[1]
    return ""


def _in_child(attempt: Callable[[], Any]) -> bool:
    pid = os.fork()
    if pid == 0:
        worked = False
        with contextlib.suppress(OSError):
            worked = bool(attempt())
        os._exit(7 if worked else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


PROBES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "writes": writes,
    "scratch": scratch,
    "network": network,
    "resolvers": resolvers,
    "unix_sockets": unix_sockets,
    "bus": bus,
    "secrets": secrets,
    "processes": processes,
    "privileges": privileges,
    "devices": devices,
    "others": others,
}


def main() -> None:
    signal.alarm(30)  # nothing here may outlast its caller's patience
    targets = json.loads(sys.argv[1])
    found: dict[str, Any] = {}
    for name in targets["probes"]:
        try:
            found[name] = PROBES[name](targets)
        except Exception as err:  # noqa: BLE001 - one probe that breaks must not hide the others
            found[name] = {"error": f"{type(err).__name__}: {err}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
