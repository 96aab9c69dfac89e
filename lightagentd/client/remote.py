"""Reaches the daemon of another machine, through `ssh HOST lactl bridge --greet`.

    with Client(Remote(host="admin@web1")) as client:
        status = client.manager_get_status()["status"]

The bridge connects to the daemon's socket on that machine, so the daemon there sees who logged in, and its
own authorization counts. ssh(1) reads the configuration of whoever runs it. Each connection has an ssh
process of its own, whose standard input and output are one socket here; the client that opened it closes it.

The bridge speaks first, one JSON object and a NUL byte: `{"lightagent": 1, "version": …, "uid": …}`, or
`{"error": {code, message, suggestion}}`. What follows is the daemon's. Nothing that comes from there is
trusted: it has bounds, and nothing of it is run.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightagentd.errors import (
    DaemonUnreachable,
    LightagentError,
    MalformedMessage,
    PermissionDenied,
    TimedOut,
    from_dict,
)

if TYPE_CHECKING:
    import subprocess

GREETING = 1
"""The version of the greeting."""
MOST_GREETING_BYTES = 1 << 16
GREETING_S = 120.0
"""How long the bridge may take to speak where a call has no limit: people type passwords."""
_CONNECT_S = 10
"""How long ssh may take to reach a host where nobody watches: the kernel would try for two minutes."""
_END_S = 1.0
_STDERR_BYTES = 1 << 16
_SHOWN_CHARS = 300
_HOST = re.compile(r"(ssh://)?([A-Za-z0-9_][A-Za-z0-9_.+~@-]*@)?[A-Za-z0-9_\[:][A-Za-z0-9_.:%\]-]*")
_OPTIONS = (
    *("-T", "-a", "-x", "-e", "none"),
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
)
"""A pipe and nothing else, whatever the user's configuration adds for their own logins."""
_SSH_FAILED, _NOT_THERE, _USAGE = 255, 127, 2
_REFUSED = ("Permission denied", "Host key verification failed", "Too many authentication failures")
_left: list[subprocess.Popen[bytes]] = []
"""Processes that carry the connections of others (ssh_config(5), ControlMaster), and end with those."""


@dataclass(kw_only=True)
class Remote:
    """A machine: `host` as ssh(1) takes it, `socket` the daemon's there if it is not the usual one. `may_ask`
    says that ssh may ask for passwords on the terminal. `uid` is the user there, known once connected.
    """

    host: str
    socket: str = ""
    may_ask: bool = True
    uid: int | None = None

    def argv(self) -> list[str]:
        """The command that connects. Ctrl-C is for lactl, which may want to hear how a turn ends."""
        import shlex

        command = "lactl bridge --greet" + (f" --socket {shlex.quote(self.socket)}" if self.socket else "")
        batch = [] if self.may_ask else ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}"]
        return ["env", "--ignore-signal=INT", "ssh", *_OPTIONS, *batch, "--", self.host, command]


def wrong_host(host: str) -> str:
    """What is wrong with the name of a machine; empty if ssh may be given it."""
    if _HOST.fullmatch(host) and len(host) <= 255:
        return ""
    if host.startswith("@"):
        return f"{host[:60]!r} is a group of hosts, for prompt and status alone: --hosts {host[:60]}"
    return f"{host[:60]!r} is not a host: write HOST, USER@HOST or ssh://USER@HOST:PORT"


class Tunnel:
    """A running ssh, and `sock`, the way to it. Raises DaemonUnreachable where there is no ssh."""

    def __init__(self, remote: Remote) -> None:
        import shutil
        import subprocess

        self.remote = remote
        self.greeted, self._came = False, b""
        if shutil.which("ssh") is None:
            raise DaemonUnreachable(
                "Other machines are reached with ssh, which is not installed.",
                suggestion="Install it (in Debian the package openssh-client).",
            )
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                remote.argv(),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                bufsize=0,
            )

    def wait(self, timeout_s: float | None) -> None:
        """Block until the bridge has spoken. Raises as `take`; TimedOut."""
        end_s = time.monotonic() + (GREETING_S if timeout_s is None else timeout_s)
        while not self.greeted:
            if not select.select([self.sock], [], [], max(0.0, end_s - time.monotonic()))[0]:
                raise self.silent()
            self.take(self.sock.recv(MOST_GREETING_BYTES))

    def take(self, chunk: bytes) -> None:
        """Take received bytes until `greeted`; none is the end. Raises the error that the greeting tells,
        MalformedMessage, and as `broken`.
        """
        if not chunk:
            raise self.broken()
        self._came += chunk
        message, end, more = self._came.partition(b"\0")
        if self._came[:1] != b"{" or more or len(self._came) > MOST_GREETING_BYTES:
            raise self._garbled()
        if end:
            self._greet(message)

    def _greet(self, message: bytes) -> None:
        try:
            found = json.loads(message)
            if isinstance(error := found.get("error"), dict):
                told = from_dict(error)
                told.message = f"On {self.remote.host}: {told.message[:_SHOWN_CHARS]}"
                raise told
            version, uid = found["lightagent"], found["uid"]
        except (ValueError, RecursionError, LookupError) as err:
            raise self._garbled() from err
        if not isinstance(uid, int) or version != GREETING:
            raise self._garbled()
        self.remote.uid, self.greeted = uid, True

    def silent(self) -> LightagentError:
        """The error for a machine that takes too long."""
        host = self.remote.host
        return TimedOut(f"{host} did not answer in time.{self._said()}", suggestion=f"Try: ssh {host}")

    def broken(self) -> LightagentError:
        """The error for a connection that ended."""
        if self._came and not self.greeted:
            return self._garbled()
        host, status, line = self.remote.host, self._status(), self._said()
        if status == _SSH_FAILED:
            cls = PermissionDenied if any(one in line for one in _REFUSED) else DaemonUnreachable
            what = f"The connection to {host} broke." if self.greeted else f"{host} cannot be reached."
            return cls(f"{what}{line}", suggestion=f"Try: ssh {host}")
        if self.greeted:
            return DaemonUnreachable(
                f"The daemon on {host} closed the connection before its answer was complete.",
                suggestion="Look at its journal there: journalctl -u lightagentd",
            )
        if status == _NOT_THERE:
            return DaemonUnreachable(
                f"There is no lactl on {host}, or not where its shell looks for commands.",
                suggestion=f"Try: ssh {host} lactl --version",
            )
        if status == _USAGE:
            return DaemonUnreachable(
                f"The lactl on {host} is too old for this: it has no command 'bridge'.",
                suggestion="Install the version there that is here.",
            )
        return DaemonUnreachable(
            f"lactl did not run on {host}: it ended with status {status}.{line}",
            suggestion=f"Try: ssh {host} lactl --version",
        )

    def close(self) -> None:
        """Close the connection and wait for ssh to end; one that never got through is ended."""
        import subprocess

        self.sock.close()
        if not self.greeted:
            self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            if self.greeted:  # other logins of the user may go through it, so it ends when it wants
                _left.append(self._process)
            else:
                self._process.kill()
                self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _garbled(self) -> LightagentError:
        shown = self._came[:_SHOWN_CHARS].decode("utf-8", "replace").strip("\0\r\n ").partition("\n")[0]
        return MalformedMessage(
            f"What answers on {self.remote.host} is not lactl: {shown!r}.",
            suggestion=f"Its shell may print something at each login; nothing should come of: "
            f"ssh {self.remote.host} true",
        )

    def _status(self) -> int | None:
        """The exit status of ssh, which has closed its end already."""
        import subprocess

        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None

    def _said(self) -> str:
        """The last line that ssh wrote about itself, as the rest of a message."""
        assert self._process.stderr is not None
        fd = self._process.stderr.fileno()
        os.set_blocking(fd, False)
        try:
            text = os.read(fd, _STDERR_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ssh says: {lines[-1][:_SHOWN_CHARS]}" if lines else ""
