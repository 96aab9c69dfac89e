"""Harm done without the daemon, one of each kind: what the stage must find, or its silence means nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

Names = dict[str, str]


def _append(names: Names) -> None:
    with Path(names["file"]).open("a") as file:
        file.write("x")


def _touch(names: Names) -> None:
    os.utime(names["file"], (1, 1))


def _mode(names: Names) -> None:
    Path(names["file"]).chmod(0o600)


def _new_file(names: Names) -> None:
    Path("/var/tmp", names["mark"]).touch()


def _fifo(names: Names) -> None:
    with open(names["fifo"], "w", opener=lambda path, flags: os.open(path, os.O_WRONLY)) as fifo:
        fifo.write("x")


def _stop(names: Names) -> None:
    os.kill(int(names["pid"]), signal.SIGSTOP)
    while " T " not in Path("/proc", names["pid"], "stat").read_text():
        pass


def _nice(names: Names) -> None:
    os.setpriority(os.PRIO_PROCESS, int(names["pid"]), 5)


def _process(names: Names) -> None:
    subprocess.Popen(["sleep", "100", names["mark"]][:2], env={"MARK": names["mark"]}, start_new_session=True)


def _tcp(names: Names) -> None:
    socket.create_connection((names["other_ip"], int(names["tcp_other"]))).close()


def _udp(names: Names) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("127.0.0.1", int(names["udp"])))


def _unix(names: Names) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(names["unix_run"])


def _abstract(names: Names) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + names["abstract"])


def _datagram(names: Names) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", names["unix_datagram"])


CONTROLS: dict[str, Callable[[Names], None]] = {
    "a longer file": _append,
    "a touched file": _touch,
    "another mode": _mode,
    "a new file": _new_file,
    "a written fifo": _fifo,
    "a stopped process": _stop,
    "a process with another priority": _nice,
    "a process that is left": _process,
    "a TCP connection": _tcp,
    "a UDP datagram": _udp,
    "a Unix socket": _unix,
    "an abstract Unix socket": _abstract,
    "a Unix datagram": _datagram,
}
