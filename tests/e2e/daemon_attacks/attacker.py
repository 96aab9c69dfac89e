"""The hands of the attacker: a program of the daemon's user that does what is asked of it on a socket.

    attacker.py PATH

Each connection carries one request {act, ...} as a line of JSON, and gets {"value": ...} or {"error": ...}.
In the place of the daemon it says that it is ready (sd_notify(3)). It uses the standard library alone.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIMIT_S = 20.0
_PIDFD_GETFD, _PTRACE_SEIZE = 438, 0x4206
_fakes: dict[str, socket.socket] = {}
_held: list[socket.socket] = []


def _connected(path: str, timeout_s: float = _LIMIT_S) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    sock.connect(path)
    return sock


def _replies(sock: socket.socket) -> list[Any]:
    """All replies to one call; the last one is None if the other end hung up before."""
    received, found = b"", list[Any]()
    while True:
        try:
            piece = sock.recv(1 << 16)
        except ConnectionResetError:
            piece = b""
        if not piece:
            return [*found, None]
        received += piece
        while b"\0" in received:
            message, _, received = received.partition(b"\0")
            found.append(json.loads(message))
            if not found[-1].get("continues"):
                return found


def varlink(path: str, method: str, parameters: Any, more: bool = False, limit_s: float = _LIMIT_S) -> Any:
    message = {"method": method, "parameters": parameters} | ({"more": True} if more else {})
    return send(path, json.dumps(message) + "\0", limit_s)


def send(path: str, text: str, limit_s: float = _LIMIT_S) -> Any:
    """What a message is answered with, whatever it is."""
    with _connected(path, limit_s) as sock:
        try:
            sock.sendall(text.encode("utf-8", "surrogatepass"))
        except (BrokenPipeError, ConnectionResetError):
            return [None]
        return _replies(sock)


def at_once(path: str, texts: list[str]) -> Any:
    """The answers to messages that are sent at the same time, each on its own connection."""
    socks = [_connected(path) for _ in texts]
    for sock, text in zip(socks, texts, strict=True):
        sock.sendall(text.encode())
    answers = [_replies(sock) for sock in socks]
    for sock in socks:
        sock.close()
    return answers


def hold(path: str, count: int, text: str = "") -> int:
    """Open connections that stay; gives how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    opened = 0
    for _ in range(count):
        try:
            sock = _connected(path, 2.0)
            sock.sendall(text.encode())
        except OSError:
            break
        _held.append(sock)
        opened += 1
    return opened


def let_go() -> None:
    for sock in _held:
        sock.close()
    _held.clear()


def call_os(name: str, args: list[Any]) -> Any:
    """A function of the module os, such as unlink, rename, symlink, mkdir, listdir, chmod."""
    return getattr(os, name)(*args)


def read(path: str) -> str:
    return Path(path).read_bytes().decode("latin-1")


def write(path: str, text: str, mode: int = 0o644) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    Path(path).chmod(mode)


def append(path: str, text: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


def bind(path: str) -> None:
    """A socket of its own at that place."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen()
    _held.append(sock)


def run(argv: list[str], input: str = "", limit_s: float = 10.0, env: Any = None) -> Any:  # noqa: A002
    try:
        done = subprocess.run(
            argv,
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired:
        return {"status": None, "out": "", "err": "took too long"}
    return {"status": done.returncode, "out": done.stdout[-20_000:], "err": done.stderr[-4000:]}


def descriptors_of(pid: int) -> list[str]:
    """What it gets at of another process: its memory, its files, its descriptors, its threads."""
    libc, got = ctypes.CDLL(None, use_errno=True), []
    for name in ("mem", "fd", "environ", "cwd", "root"):
        try:
            whole = f"/proc/{pid}/{name}"
            if name == "fd":
                [*Path(whole).iterdir()]
            elif name in ("cwd", "root"):
                Path(whole).readlink()
            else:
                os.close(os.open(whole, os.O_RDONLY))
            got.append(name)
        except OSError:
            pass
    pidfd = os.pidfd_open(pid)
    for number in range(12):
        got += [f"descriptor {number}"] * (libc.syscall(_PIDFD_GETFD, pidfd, number, 0) >= 0)
    if libc.ptrace(_PTRACE_SEIZE, pid, 0, 0) == 0:
        got.append("ptrace")
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        got.append("signal")
    except PermissionError:
        pass
    os.close(pidfd)
    return got


def take_over(path: str, text: str) -> Any:
    """Receive a connection that somebody passes at this place, and send a text on it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    Path(path).chmod(0o666)
    listening.listen()
    listening.settimeout(10)
    with listening, listening.accept()[0] as sock:
        fds = array.array("i")
        _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_LEN(fds.itemsize))
        for _, _, data in ancillary:
            fds.frombytes(data[: fds.itemsize])
    with socket.socket(fileno=fds[0]) as passed:
        passed.settimeout(10)
        passed.sendall(text.encode())
        return _replies(passed)


def as_setuid(path: str, text: str, argv: list[str]) -> str:
    """Send a text, and have the process become a program of root's before it is read."""
    parent, child = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        sock = _connected(path)
        sock.set_inheritable(True)
        os.dup2(child.fileno(), 0)
        sock.sendall(text.encode())
        os.execv(argv[0], argv)
    time.sleep(1.0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    parent.close()
    return "done"


def serve(path: str, answers: dict[str, list[Any]]) -> None:
    """Be the daemon for clients. An answer of a method is the next one of its list; the last one stays."""
    unserve(path)
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    Path(path).chmod(0o666)
    listening.listen(64)
    _fakes[path] = listening
    threading.Thread(target=_accept, args=(listening, answers), daemon=True).start()


def unserve(path: str) -> None:
    if path in _fakes:
        _fakes.pop(path).shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, answers: dict[str, list[Any]]) -> None:
    while True:
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(sock, answers), daemon=True).start()


def _answer(sock: socket.socket, answers: dict[str, list[Any]]) -> None:
    received = b""
    with sock:
        while piece := sock.recv(1 << 16):
            received += piece
            while b"\0" in received:
                message, _, received = received.partition(b"\0")
                asked = json.loads(message)
                name = asked["method"].removeprefix("org.lightagent1.")
                waiting = answers.get(name, [])
                answer = waiting.pop(0) if len(waiting) > 1 else waiting[0] if waiting else None
                reply: dict[str, Any] = {"parameters": answer}
                if answer is None:
                    missing = {"method": asked["method"]}
                    reply = {"error": "org.varlink.service.MethodNotFound", "parameters": missing}
                elif "error" in answer:
                    reply = answer
                for one in answer["stream"] if answer is not None and "stream" in answer else ():
                    sock.sendall(json.dumps({"parameters": one, "continues": True}).encode() + b"\0")
                if answer is not None and "stream" in answer:
                    continue  # it goes on, as a call that waits
                sock.sendall(json.dumps(reply).encode() + b"\0")


ACTS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        *(varlink, send, at_once, hold, let_go, call_os, read, write, append, bind, run),
        *(descriptors_of, take_over, as_setuid, serve, unserve),
    )
}


def _do(sock: socket.socket) -> None:
    with sock, sock.makefile("rw", encoding="utf-8") as file:
        asked = json.loads(file.readline())
        try:
            answer = {"value": ACTS[asked.pop("act")](**asked)}
        except Exception as err:  # noqa: BLE001 - what went wrong is the answer
            answer = {"error": f"{type(err).__name__}: {err}"}
        file.write(json.dumps(answer) + "\n")


def main() -> None:
    path = sys.argv[1]
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    if notify := os.environ.pop("NOTIFY_SOCKET", ""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(b"READY=1", notify.replace("@", "\0", 1))
    while True:
        sock, _ = listening.accept()
        threading.Thread(target=_do, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
