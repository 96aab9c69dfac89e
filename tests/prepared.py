"""Daemons for tests, as processes that a prepared one forks: it has imported the daemon's modules once.

Importing them is half of what the start of a daemon takes, and tests start some hundred. A forked daemon is a
process as any other, with standard streams, working folder and signals of its own. It differs in two things:
it is a grandchild, so its end is told through a socket, and /proc shows the environment and the arguments of
the prepared process. `serve` is that process, one for each process that runs tests. `Forked` is what a test
holds of a daemon, with the methods of `subprocess.Popen`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.left import keep

_REQUEST_BYTES = 1 << 16


class Forked:
    """A daemon that the prepared process has forked."""

    def __init__(self, pid: int, ended: socket.socket, argv: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._argv = argv

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._argv, timeout or 0)
            self.returncode = int(self._ended.recv(64) or b"-9")
            self._ended.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Prepared:
    """The prepared process, which begins with this object and ends with it or with this process."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prepared", str(theirs.fileno())],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": os.environ.get("HOME", "/")},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._socket = ours
        keep(self._process.pid, ours.fileno())

    def fork(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, output: int) -> Forked:
        """Start a daemon with these arguments; standard output and error go to `output`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": str(cwd)})
            socket.send_fds(self._socket, [request.encode()], [output, theirs.fileno()])
        return Forked(int(ours.recv(64)), ours, argv)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)


_made: list[Prepared] = []


def prepared() -> Prepared:
    """The prepared process of this one, made at the first call."""
    if not _made:
        _made.append(Prepared(Path(__file__).parents[1]))
    return _made[0]


def close() -> None:
    """End the prepared process, if there is one."""
    while _made:
        _made.pop().close()


def serve(requests: socket.socket) -> None:
    """Fork a daemon for each request, and tell of its end, until the other side is closed."""
    from lightagentd.daemon import serving

    running: dict[int, socket.socket] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests, after its daemons
    watched: list[Any] = [requests, wake]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake in ready:
            os.read(wake, 4096)
            for pid, status in _ended():
                with running.pop(pid) as ended, contextlib.suppress(OSError):
                    ended.send(str(status).encode())
        if requests in ready:
            data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
            if not data:
                return
            output, told = descriptors
            pid = os.fork()
            if pid == 0:
                _become(serving.main, json.loads(data), output)
            os.close(output)
            running[pid] = socket.socket(fileno=told)
            running[pid].send(str(pid).encode())


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


def _become(main: Callable[[], None], request: dict[str, Any], output: int) -> NoReturn:
    """Be the daemon that was asked for; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["lightagentd", *request["argv"]]
        main()
        status = 0
    except SystemExit as err:
        status = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 255)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
