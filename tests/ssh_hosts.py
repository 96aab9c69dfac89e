"""Other machines for tests of `lactl --host`: network namespaces with a real sshd, and a wrapper of ssh.

Whoever logs in finds the daemon on the socket that the host was given, and this checkout's lactl. ssh runs in
a namespace, too, so that the routes of this machine stay as they are: other tests look at them. Nothing is
left behind: a namespace ends with its processes, and the links to it, too. The wrapper is there because ssh
looks for its configuration in the home of the user, whatever $HOME says.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from tests.prepared import REPOSITORY

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_START_S = 30.0
_CLONE_NEWNET = 0x40000000  # setns(2)
T = TypeVar("T")


def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    wanted = {"sshd": SSHD, **{name: shutil.which(name) for name in ("ssh", "ssh-keygen", "ip", "unshare")}}
    return " ".join(f"{name} is not installed." for name, path in wanted.items() if path is None)


class SshHosts:
    """The hosts by name with the sockets of their daemons; runs from entering it to leaving it. `stranger` is
    the first one with a key that it does not take. `network_of` is a process in whose network namespace they
    are, in place of new ones.
    """

    def __init__(self, folder: Path, sockets: Mapping[str, Path], *, network_of: int = 0) -> None:
        self._folder, self._sockets, self._network_of = folder, dict(sockets), network_of
        self._clients: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str] = {}
        self._running: list[subprocess.Popen[bytes]] = []
        self.bin = folder / "bin"
        """Has the wrapper: put it into $PATH first."""

    @property
    def env(self) -> dict[str, str]:
        """The environment of a lactl that can reach the hosts, and no daemon of this machine."""
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self._folder),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "LIGHTAGENT_SOCKET": "/nonexistent/control.sock",
            "XDG_CONFIG_HOME": str(self._folder / "config"),
        }

    def __enter__(self) -> Self:
        self.bin.mkdir(parents=True)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks itself in
        for name in ("user", "host"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        there = self._folder / "there"
        there.mkdir()
        lactl = there / "lactl"
        lactl.write_text(
            f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m lightagentd.cli.main "$@"\n'
        )
        lactl.chmod(0o755)
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self._clients = subprocess.Popen(["unshare", "--net", "sleep", "inf"], stdin=subprocess.DEVNULL)
            _wait_for_namespace(self._clients)
            hosts = [self._start(*one, there) for one in enumerate(self._sockets.items())]
            failed.pop_all()
        self._client(hosts)
        return self

    def _start(self, number: int, host: tuple[str, Path], there: Path) -> tuple[str, str]:
        """Start a host; its name and its address."""
        name, daemon = host
        block = (os.getpid() * len(self._sockets) + number) % 32_000 * 4  # addresses for benchmarks
        network = ipaddress.ip_network("198.18.0.0/15")
        here, address = (str(network[block + offset]) for offset in (1, 2))
        config = self._folder / f"{name}.conf"
        config.write_text(
            f"HostKey {self._folder / 'host'}\nAuthorizedKeysFile {self._folder / 'user'}.pub\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\n"
            f"SetEnv LIGHTAGENT_SOCKET={daemon} PATH={there}:/usr/bin:/bin LANG=C.UTF-8\n"
        )
        assert SSHD is not None
        inside_of = ["unshare", "--net"]
        if self._network_of:
            inside_of = ["nsenter", f"--net=/proc/{self._network_of}/ns/net"]
        with (self._folder / f"{name}.log").open("wb") as log:
            sshd = subprocess.Popen(
                [*inside_of, SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running.append(sshd)
        _wait_for_namespace(sshd)
        link, client = f"la{number}", self._client_pid
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(sshd.pid), of=client)
        self.addresses[name] = address
        _ip("addr", "add", f"{here}/30", "dev", link, of=client)
        _ip("link", "set", link, "up", of=client)
        _ip("addr", "add", f"{address}/30", "dev", "eth0", of=sshd.pid)
        _ip("link", "set", "eth0", "up", of=sshd.pid)
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s:
            if self.answers(name):
                return name, address
            time.sleep(0.01)
        raise AssertionError((self._folder / f"{name}.log").read_text())

    @property
    def _client_pid(self) -> int:
        assert self._clients is not None
        return self._clients.pid

    def answers(self, name: str) -> bool:
        """Whether a new connection to a host is answered."""
        line = in_network(self._client_pid, socket.socket)
        with line, contextlib.suppress(OSError):
            line.settimeout(1.0)
            line.connect((self.addresses[name], 22))
            return line.recv(4) == b"SSH-"
        return False

    def _client(self, hosts: list[tuple[str, str]]) -> None:
        key = " ".join((self._folder / "host.pub").read_text().split()[:2])
        (self._folder / "known_hosts").write_text("".join(f"{address} {key}\n" for _, address in hosts))
        config = self._folder / "ssh_config"
        keys = [(name, address, "user") for name, address in hosts] + [("stranger", hosts[0][1], "host")]
        config.write_text(
            "".join(
                f"Host {name}\n  HostName {address}\n  IdentityFile {self._folder / key}\n"
                for name, address, key in keys
            )
            + f"Host *\n  User {getpass.getuser()}\n  IdentitiesOnly yes\n  ConnectTimeout 5\n"
            f"  UserKnownHostsFile {self._folder / 'known_hosts'}\n  GlobalKnownHostsFile none\n"
        )
        wrapper = self.bin / "ssh"
        enter = f"nsenter --net=/proc/{self._client_pid}/ns/net"
        wrapper.write_text(f'#!/bin/sh\nexec {enter} {shutil.which("ssh")} -F {config} "$@"\n')
        wrapper.chmod(0o755)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for process in [*self._running, *([self._clients] if self._clients is not None else [])]:
            process.terminate()
            process.wait()


def in_network(pid: int, made: Callable[[], T]) -> T:
    """What is made, such as a socket, in the network namespace of a process."""

    def there() -> T:
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return made()

    with ThreadPoolExecutor(1) as thread:  # of its own: the namespace is that of a thread
        return thread.submit(there).result()


def _wait_for_namespace(process: subprocess.Popen[bytes]) -> None:
    end_s, own = time.monotonic() + _START_S, Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{process.pid}/ns/net").readlink() == own:
        assert time.monotonic() < end_s
        time.sleep(0.005)


def _ip(*arguments: str, of: int) -> None:
    enter = ["nsenter", f"--net=/proc/{of}/ns/net"]
    subprocess.run([*enter, "ip", *arguments], check=True, stdin=subprocess.DEVNULL)
