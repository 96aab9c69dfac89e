"""The client library: `Client` blocks; `aio.AsyncClient` is the same for asyncio.

    with Client() as client:
        status = client.manager_get_status()["status"]
        for reply in client.sessions_prompt(agent="ops", text="check disk"):
            print(reply["event"])

Both speak Varlink on the daemon's socket. A message is one JSON object and a NUL byte: calls are
`{method, parameters, more?}`, replies `{parameters, continues?, error?}` (https://varlink.org/Method-Call).
A client owns one connection, from entering it to leaving it, and makes one call at a time on it. A stream
that is left before its end closes the connection, which is how Varlink ends a stream.

`lactl` imports this module for its shortest command, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from lightagentd.errors import (
    DaemonUnreachable,
    InvalidArgument,
    LightagentError,
    MalformedMessage,
    MessageTooLarge,
    PermissionDenied,
    TimedOut,
    from_varlink,
)
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.text.reason import reason
from lightagentd.varlink.interaction import PARAMETER

if TYPE_CHECKING:
    from lightagentd.client.methods import Methods
    from lightagentd.client.remote import Remote, Tunnel
else:

    class Methods:
        """`sessions_list(agent="ops")` and so on, by name; `methods` has their types for type checkers."""

        def __getattr__(self, name):
            interface, _, method = name.partition("_")
            if not interface or not method:
                raise AttributeError(f"{type(self).__name__} has no {name}")
            called = f"{interface.capitalize()}.{method.title().replace('_', '')}"
            asked = self.stream if called in STREAMS else self.call
            return lambda **parameters: asked(called, **parameters)


__all__ = ["MAX_MESSAGE_BYTES", "SYSTEM_SOCKET", "Client", "socket_path"]

SYSTEM_SOCKET = "/run/lightagentd/control.sock"

STREAMS = {
    *("Sessions.Prompt", "Sessions.Watch", "Events.Subscribe", "Tools.Call", "Policy.Replay", "Undo.Run"),
    "Policy.ReplayTexts",
    *("Triggers.Run", "Triggers.Follow", "Flows.Follow", "Sessions.Replay"),
}
"""The methods that yield many replies."""

CHUNK_BYTES = 1 << 16
"""How much is read from the socket at once."""

_PREFIX = "org.lightagent1."

Reply = tuple[dict[str, Any], bool]
"""The parameters of a reply, and whether more replies follow."""


def socket_path() -> str:
    """The daemon's socket: `$LIGHTAGENT_SOCKET`, else that of the user's own daemon, else the system's."""
    named = os.environ.get("LIGHTAGENT_SOCKET")
    if named:
        return named
    uid = os.geteuid()
    if uid != 0:
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
        own = f"{runtime}/lightagentd/control.sock"
        if os.access(own, os.F_OK):
            return own
    return SYSTEM_SOCKET


class Client(Methods):
    """A blocking client, of the daemon on a socket, or on another machine (`client.remote.Remote`).

    `sessions_list(agent="ops")` is `call("Sessions.List", agent="ops")` with types, and so on; for a method
    that streams it is `stream`. Methods are named without `org.lightagent1.`, and parameters that are None
    are left out. `timeout_s` limits connecting, and in a `call` sending and each wait for the answer; a
    stream may be silent for any time. With `interactive`, polkit may ask a person whether a call is allowed,
    and the call waits for that; without, such a call fails with AuthorizationRequired.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Remote | None = None,
        *,
        timeout_s: float | None = None,
        interactive: bool = False,
    ) -> None:
        self.path, self._remote = placed(path)
        self.timeout_s = timeout_s
        self.interactive = interactive
        self._socket: socket.socket | None = None
        self._tunnel: Tunnel | None = None
        self._wire = Wire(self.path)

    def __enter__(self) -> Self:
        """Raises DaemonUnreachable, PermissionDenied, TimedOut; for another machine MalformedMessage, too."""
        if self._remote is None:
            self._socket = connected(self.path, self.timeout_s)
            self._wire = Wire(self.path)
            return self
        from lightagentd.client.remote import Tunnel

        self._tunnel = tunnel = Tunnel(self._remote)
        try:
            tunnel.wait(self.timeout_s)
        except BaseException:
            self.close()
            raise
        self._socket = tunnel.sock
        self._wire = Wire(self.path, tunnel.broken)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; unread messages of the daemon are lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Call a method and return the parameters of its reply.

        Raises the daemon's error; MessageTooLarge before anything is sent; TimedOut; DaemonUnreachable when
        the connection closes before the reply; MalformedMessage for what is not a reply.
        """
        self._send(method, parameters, more=False)
        return self._receive()[0]

    def stream(self, method: str, /, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Call a streaming method and yield the parameters of each reply. Raises the errors of `call`."""
        self._send(method, parameters, more=True)
        return self._replies()

    def quiet_until(self, fd: int, timeout_s: float | None = None) -> bool:
        """Wait, in the middle of a stream, until another descriptor is readable or the time is over; False
        when the daemon sends something before that.
        """
        sock = self._connection()
        if self._wire.has_bytes:
            return False
        ready, _, _ = select.select([fd, sock.fileno()], [], [], timeout_s)
        return sock.fileno() not in ready

    def has_reply(self, timeout_s: float) -> bool:
        """Wait, in the middle of a stream, until the daemon has sent something; False when the time is over.
        True at once when the stream has ended.
        """
        sock = self._connection()
        if timeout_s <= 0:
            return not self._wire.expecting
        if self._wire.has_bytes or not self._wire.expecting:
            return True
        return bool(select.select([sock.fileno()], [], [], timeout_s)[0])

    def _replies(self) -> Iterator[dict[str, Any]]:
        try:
            continues = True
            while continues:
                reply, continues = self._receive()
                yield reply
        finally:
            if self._wire.expecting:
                self.close()

    def _connection(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("the client is not connected: enter it with 'with' first")
        return self._socket

    def _send(self, method: str, parameters: dict[str, Any], *, more: bool) -> None:
        sock = self._connection()
        data = self._wire.call(method, with_interaction(parameters, self.interactive), more=more)
        sock.settimeout(None if more else self.timeout_s)
        try:
            # MSG_NOSIGNAL: lactl lets SIGPIPE end it when the reader of its output leaves, and only then.
            sock.sendall(data, socket.MSG_NOSIGNAL)
        except TimeoutError as err:
            self.close()
            raise connect_error(self.path, err) from err
        except (BrokenPipeError, ConnectionResetError):
            return  # the daemon may have sent the reason before it hung up, so read its answer anyway

    def _receive(self) -> Reply:
        sock = self._connection()
        try:
            while (reply := self._wire.reply()) is None:
                self._wire.feed(sock.recv(CHUNK_BYTES))
        except OSError as err:
            lost = self._wire.lost(err)
            self.close()
            raise lost from err
        except LightagentError:
            if self._wire.expecting:
                self.close()
            raise
        return reply


class Wire:
    """The protocol of one connection without its I/O: bytes in, replies out, and the reverse."""

    def __init__(self, path: str, broken: Callable[[], LightagentError] | None = None) -> None:
        """`broken` says why a connection ended, where the connection itself knows more."""
        self._path, self._broken = path, broken
        self._buffer = bytearray()
        self._searched = 0
        self._more = False
        self.expecting = False
        """A reply of the last call is still to come; after an error: the connection is of no more use."""

    def call(self, method: str, parameters: dict[str, Any], *, more: bool) -> bytes:
        """The bytes of a call. Raises MessageTooLarge."""
        if self.expecting:
            raise RuntimeError("the last call on this connection has not ended: use a second client")
        data = _encode_call(method, parameters, more=more)
        self.expecting, self._more = True, more
        return data

    @property
    def has_bytes(self) -> bool:
        """Whether there are received bytes that `reply` has not returned yet."""
        return bool(self._buffer)

    def feed(self, chunk: bytes) -> None:
        """Add received bytes; an empty chunk is the end. Raises DaemonUnreachable."""
        if not chunk:
            raise self.lost(None)
        self._buffer += chunk

    def reply(self) -> Reply | None:
        """The next reply, or None when more bytes are needed. Raises the errors of `Client.call`."""
        end = self._buffer.find(0, self._searched)
        self._searched = len(self._buffer) if end < 0 else 0
        if max(end, self._searched) >= MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"The daemon's answer is larger than {MAX_MESSAGE_BYTES} bytes.",
                suggestion="Ask for less at once.",
            )
        if end < 0:
            return None
        parameters, continues, error = _decode_reply(bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        if continues and not self._more:
            raise MalformedMessage("The daemon streams an answer to a call that asked for one reply.")
        self.expecting = continues and error is None
        if error is not None:
            raise error
        return parameters, continues

    def lost(self, err: OSError | None) -> LightagentError:
        """The error for a connection that ended or failed before the last reply."""
        if isinstance(err, TimeoutError):
            return connect_error(self._path, err)
        if self._broken is not None:
            return self._broken()
        return DaemonUnreachable(
            f"The daemon closed the connection on {self._path} before its answer was complete.",
            suggestion="Look at its journal: journalctl -u lightagentd",
        )


def _encode_call(method: str, parameters: dict[str, Any], *, more: bool) -> bytes:
    """The bytes of a call with its NUL. Raises MessageTooLarge."""
    call: dict[str, Any] = {
        "method": method if method.startswith("org.") else _PREFIX + method,
        "parameters": {name: value for name, value in parameters.items() if value is not None},
    }
    if more:
        call["more"] = True
    text = json.dumps(call, separators=(",", ":"), ensure_ascii=False)
    try:
        data = text.encode() + b"\0"
    except UnicodeEncodeError:  # lone surrogates: bytes that were not UTF-8, from argv or a file name
        data = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode() + b"\0"
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"The call of {method} is {len(data)} bytes as JSON, where quotes and controls take more; the"
            f" daemon takes at most {MAX_MESSAGE_BYTES}.",
            suggestion="Send less: the part that matters, or the name of a file that the agent can read.",
        )
    return data


def _decode_reply(message: bytes) -> tuple[dict[str, Any], bool, LightagentError | None]:
    """Parameters, whether more replies follow, and the error, if any. Raises MalformedMessage."""
    try:
        reply = json.loads(message)
    except (ValueError, RecursionError) as err:
        raise MalformedMessage(f"The daemon's answer is not JSON: {reason(err)}.") from err
    if not isinstance(reply, dict):
        raise MalformedMessage("The daemon's answer is not a JSON object.")
    parameters, name = reply.get("parameters") or {}, reply.get("error")
    if not isinstance(parameters, dict) or not isinstance(name, str | None):
        raise MalformedMessage("The daemon's answer is not a Varlink reply.")
    error = None if name is None else from_varlink(name, parameters)
    return parameters, reply.get("continues") is True, error


def with_interaction(parameters: dict[str, Any], allowed: bool) -> dict[str, Any]:
    """The parameters of a call, with the permission to ask a person whether it is allowed."""
    return {**parameters, PARAMETER: True} if allowed else parameters


def private_socket(path: str) -> str:
    """The socket beside a control socket that is private to root and the daemon's own user."""
    return f"{path.rpartition('/')[0]}/private.sock"


def connect_control(sock: socket.socket, path: str) -> None:
    """Connect to the private socket, so that nobody else keeps root waiting; to the control socket itself
    where that one is closed to us. Raises OSError.
    """
    if path.endswith("/control.sock"):
        try:
            sock.connect(private_socket(path))
        except BlockingIOError:
            raise
        except OSError:
            pass
        else:
            return
    sock.connect(path)


def placed(path: str | os.PathLike[str] | Remote | None) -> tuple[str, Remote | None]:
    """What messages call the place of a daemon, and the machine if it is another one."""
    if path is None or isinstance(path, str | os.PathLike):
        return (os.fspath(path) if path else socket_path()), None
    return path.host, path


def connected(path: str, timeout_s: float | None) -> socket.socket:
    """A socket that is connected to a daemon. Raises `connect_error`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(sock, path, timeout_s)
    except OSError as err:
        sock.close()
        raise connect_error(path, err) from err
    return sock


def _connect(sock: socket.socket, path: str, timeout_s: float | None) -> None:
    """Connect, and wait for room in a full queue of the listener. Raises OSError: EAGAIN for no room in time.

    It blocks, because the kernel then lets waiting callers in one by one; with O_NONBLOCK it refuses them at
    once (connect(2), EAGAIN).
    """
    seconds, rest = divmod(max(timeout_s, 1e-3), 1) if timeout_s is not None else (0, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(rest * 1e6)))
    connect_control(sock, path)
    sock.getpeername()  # a signal that came meanwhile has Python take the socket for a connected one
    sock.settimeout(timeout_s)


def connect_error(path: str, err: OSError) -> LightagentError:
    """The error for a socket that refuses connections, or does not answer in time, and for what is none."""
    if path.endswith("/approve.sock"):
        return DaemonUnreachable(
            f"The approver, which alone allows changes, does not answer on {path}: {reason(err)}.",
            suggestion="See why: systemctl status lightagent-approver.socket lightagent-approver.service",
        )
    if isinstance(err, BlockingIOError):
        return TimedOut(
            f"The daemon is busy: too many programs wait to connect to {path}.",
            suggestion="Try again. Whom it turned away stands in its journal: journalctl -u lightagentd",
        )
    if isinstance(err, TimeoutError):
        return TimedOut(
            f"The daemon did not answer on {path} in time.",
            suggestion="Look at its journal: journalctl -u lightagentd",
        )
    if isinstance(err, PermissionError):
        return PermissionDenied(f"You may not connect to {path}.", suggestion=_who_may(path))
    if isinstance(err, ConnectionRefusedError) and _is_other(path):
        return InvalidArgument(
            f"{path} is not a socket.", suggestion="Name the daemon's control.sock.", field="socket"
        )
    start = "lightagentd"
    if path == SYSTEM_SOCKET:
        own = "" if os.geteuid() == 0 else " (or a daemon of your own with: lightagentd)"
        start = f"systemctl start lightagentd{own}"
    if isinstance(err, FileNotFoundError | ConnectionRefusedError):
        message = f"Nothing answers on {path}: the daemon is not running."
    else:
        message = f"{path} cannot be connected to: {err.strerror or err}."
    return DaemonUnreachable(message, suggestion=f"Start it with: {start}")


def _is_other(path: str) -> bool:
    """Whether something else than a socket is there."""
    import stat

    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - pathlib is slow to import
    except OSError:
        return False


def _who_may(path: str) -> str:
    """The group that may use the socket, or the folder that hides it."""
    import grp
    import pwd

    for place in (path, path.rpartition("/")[0] or "."):
        try:
            group = grp.getgrgid(os.stat(place).st_gid).gr_name  # noqa: PTH116 - pathlib is slow to import
            user = pwd.getpwuid(os.geteuid()).pw_name
        except (OSError, KeyError):
            continue
        if group != "root":
            return (
                f"It is for the group {group}: run 'sudo usermod -aG {group} {user}' and log in again, "
                "or use sudo."
            )
    return "It is for root alone: use sudo."
