"""Starts processes. No other module does.

A process gets an argv list (never a shell string), an environment built up from nothing, no standard
input unless bytes are given, and a session of its own. Its output is capped while it is read: the head
and the tail are kept and the middle is counted, so endless output costs a bounded amount of memory.
Whoever calls `run` owns the process: it is dead and reaped when `run` returns or raises.

`run` is built on asyncio's transports and not on `asyncio.subprocess.Process`, whose `wait()` returns only
when the last holder of the output pipes is gone: a command that leaves a child in the background would then
take until its timeout.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.errors import ToolError
from lightagentd.text.reason import reason

if TYPE_CHECKING:
    from lightagentd.worker.busdoor import BusDoor

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OUTPUT_LIMIT_BYTES = 64 * 1024
"""How much of each stream is kept: half from its head, half from its tail."""
_LINE_BYTES = 1024
"""A longer line is cut where the output is."""
TERM_GRACE_S = 2.0
"""How long a process group has between SIGTERM and SIGKILL."""
KILL_WAIT_S = 5.0
"""How long SIGKILL may take; what is there still is stuck in the kernel, and reaped when it comes back."""
DRAIN_S = 0.2
"""How long output is still read after the process has ended, while a child of it holds the pipe."""
_POLL_S = 0.02

_before_exec: Callable[[], None] | None = None
_make_door: Callable[[], BusDoor] | None = None


def before_exec(prepare: Callable[[], None] | None, door: Callable[[], BusDoor] | None = None) -> None:
    """Make every command that `run` starts call `prepare` between fork and exec; None ends that.

    A worker confines its commands further than itself with that. What `prepare` raises is a ToolError. `door`
    makes the bus door of one command, whose filter is entered after `prepare`.
    """
    global _before_exec, _make_door
    _before_exec, _make_door = prepare, door


class CappedOutput:
    """Bytes of one stream: the first and the last half of `limit_bytes`, and the count of those between."""

    def __init__(self, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-self._half :]
            if len(self._tail) > self._half:
                del self._tail[: len(self._tail) - self._half]

    @property
    def omitted_bytes(self) -> int:
        return self.total_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        """The kept bytes as text; bytes that are not UTF-8 become U+FFFD, the gap a line that says so.

        The partial lines at both ends of the gap are left out too, because no pattern finds half of a secret.
        """
        head, tail = bytes(self._head), bytes(self._tail)
        if not self.omitted_bytes:
            return (head + tail).decode("utf-8", "replace")
        if (end := head.rfind(b"\n", -_LINE_BYTES)) > 0:
            head = head[:end]
        if 0 <= (start := tail.find(b"\n", 0, _LINE_BYTES)) < len(tail) - 1:
            tail = tail[start + 1 :]
        left_out = self.total_bytes - len(head) - len(tail)
        gap = f"\n[... {left_out} bytes left out ...]\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")


class LiveText:
    """Shows output as text (`feed` is an `on_output`); a character cut in two waits for its rest."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def feed(self, stream: str, data: bytes) -> None:
        if text := self._decoders[stream].decode(data):
            self._show(text, stream)

    def finish(self) -> None:
        """Show what the last pieces left undecoded."""
        for stream, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                self._show(text, stream)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The end of a process, and its output."""

    argv: tuple[str, ...]
    status: int
    """The exit status, or 128 plus the signal's number as a shell counts it."""
    signal: str
    """The name of the signal that ended it, such as SIGKILL, or an empty string."""
    stdout: CappedOutput
    stderr: CappedOutput
    timed_out: bool
    duration_s: float


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment built from nothing: search path, locale, a home that exists, plus `extra`."""
    return {
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        "TERM": "dumb",
        "PAGER": "cat",
        "SYSTEMD_PAGER": "",
        **(extra or {}),
    }


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    limit_bytes: int = OUTPUT_LIMIT_BYTES,
    on_output: Callable[[str, bytes], None] | None = None,
) -> Completed:
    """Run one command to its end.

    `env` is added to `clean_environment()`. `on_output(stream, data)` is called with every piece as it
    arrives, before the cap; what it raises ends the process and is raised here. After `timeout_s` the process
    group gets SIGTERM, then SIGKILL, and the result says `timed_out`; the same happens when the caller is
    cancelled, which then still raises. When the process ends by itself, what it left running in its group is
    killed. Raises ToolError when the command cannot be started.
    """
    started = time.monotonic()
    out, err = CappedOutput(limit_bytes), CappedOutput(limit_bytes)
    door = open_door(argv[0])
    try:
        transport, child = await _start(argv, cwd, env, stdin, _Child({1: out, 2: err}, on_output), door)
    except BaseException:
        if door is not None:
            door.close()
        raise
    timed_out = False
    try:
        answer(door, argv[0])
        try:
            async with asyncio.timeout(timeout_s):
                await child.ended.wait()
        except TimeoutError:
            timed_out = True
            await end_group(transport.get_pid(), child.exited.is_set)
        await _within(DRAIN_S, child.drained)
    finally:
        if door is not None:
            door.close()
        await end_group(transport.get_pid(), child.exited.is_set)
        await _within(DRAIN_S, child.drained)  # all is in the pipe already, unless somebody left the group
        code = transport.get_returncode()
        transport.close()
        await _within(DRAIN_S, child.closed)
    if child.failure is not None:
        raise child.failure
    if code is None:
        code = -signal.SIGKILL
    return Completed(
        argv=tuple(argv),
        status=code if code >= 0 else 128 - code,
        signal=signal_name(-code) if code < 0 else "",
        stdout=out,
        stderr=err,
        timed_out=timed_out,
        duration_s=time.monotonic() - started,
    )


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the real-time signals, most of which have no name of their own, as `SIGRTMIN+3`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class _Child(asyncio.SubprocessProtocol):
    """Receives what the event loop reports about one process."""

    def __init__(
        self, outputs: Mapping[int, CappedOutput], on_output: Callable[[str, bytes], None] | None
    ) -> None:
        self._outputs = outputs
        self._on_output = on_output
        self._open = set(outputs)
        self.exited = asyncio.Event()
        """The process has ended and is reaped."""
        self.ended = asyncio.Event()
        """There is nothing more to wait for: the process has exited, or `failure` is set."""
        self.drained = asyncio.Event()
        """Both outputs are read to their end."""
        self.closed = asyncio.Event()
        """Every descriptor is closed."""
        self.failure: Exception | None = None

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].feed(data)
        if self._on_output is None or self.failure is not None:
            return
        try:
            self._on_output("stdout" if fd == 1 else "stderr", data)
        except Exception as err:  # noqa: BLE001 - the loop would only log it; run raises it
            self.failure = err
            self.ended.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's call
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's call
        self.closed.set()


async def _start(
    argv: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
    child: _Child,
    door: BusDoor | None,
) -> tuple[asyncio.SubprocessTransport, _Child]:
    starting = asyncio.get_running_loop().subprocess_exec(
        lambda: child,
        *argv,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=clean_environment(env),
        start_new_session=True,
        preexec_fn=preparation(door),
    )
    try:
        transport = await _started(starting, child)
    except (OSError, ValueError, subprocess.SubprocessError) as err:
        raise not_started(argv[0], cwd, err) from err
    pipe = transport.get_pipe_transport(0)
    if stdin is not None and isinstance(pipe, asyncio.WriteTransport):
        pipe.write(stdin)
        pipe.close()  # after what is written has gone out
    return transport, child


async def _started(
    starting: Coroutine[Any, Any, tuple[asyncio.SubprocessTransport, asyncio.SubprocessProtocol]],
    child: _Child,
) -> asyncio.SubprocessTransport:
    """The transport of the new process. A cancel waits until there is one, and ends the whole group: the loop
    would kill the leader alone, and what that has started meanwhile would go on.
    """
    task = asyncio.ensure_future(starting)
    try:
        transport, _ = await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.exception() is None:
            transport, _ = task.result()
            await end_group(transport.get_pid(), child.exited.is_set)
            transport.close()
            await _within(DRAIN_S, child.closed)
        raise
    return transport


def open_door(program: str) -> BusDoor | None:
    try:
        return _make_door() if _make_door is not None else None
    except OSError as err:
        raise not_started(program, None, err) from err


def answer(door: BusDoor | None, program: str) -> None:
    try:
        if door is not None:
            door.open()
    except OSError as err:
        raise not_started(program, None, err) from err


def preparation(door: BusDoor | None, narrow: Callable[[], None] | None = None) -> Callable[[], None] | None:
    """The functions that are called in the new process before the command; `narrow` is one more of them."""
    prepare = _before_exec
    if door is None and narrow is None:
        return prepare

    def prepare_and_enter() -> None:
        if prepare is not None:
            prepare()
        if narrow is not None:
            narrow()
        if door is not None:
            door.enter()

    return prepare_and_enter


def not_started(program: str, cwd: Path | None, err: Exception) -> ToolError:
    if cwd is not None and not cwd.is_dir():
        return ToolError(
            f"{program} cannot be started in {cwd}: there is no such folder.",
            suggestion="Name a folder that exists.",
        )
    if isinstance(err, FileNotFoundError):
        return ToolError(f"{program} does not exist on this machine.", suggestion="Use another command.")
    return ToolError(
        f"{program} cannot be started: {reason(err)}.", suggestion="Use another command or other arguments."
    )


async def end_group(pid: int, exited: Callable[[], bool], grace_s: float = TERM_GRACE_S) -> None:
    """End the group that `pid` leads: SIGTERM, a grace time, SIGKILL. `exited` says if the leader is gone.

    A cancel during the grace time skips it. What left the group with setsid(2) is the sandbox's to end.
    """
    if exited():
        _signal_group(pid, signal.SIGKILL)
        return
    _signal_group(pid, signal.SIGTERM)
    try:
        await until(exited, grace_s)
    finally:
        _signal_group(pid, signal.SIGKILL)
        await until(exited, KILL_WAIT_S)


def _signal_group(pgid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Poll, in the rare case that a process does not end by itself: `Process` has no event for that."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_POLL_S)


async def _within(limit_s: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


async def start(
    argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), stderr: int | None = None
) -> asyncio.subprocess.Process:
    """Start a long-lived child (a worker) and leave it to the caller, who must end and reap it.

    Its standard error is the daemon's own unless `stderr` says otherwise. Raises OSError.
    """
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=stderr,
        cwd="/",
        env=clean_environment(env),
        pass_fds=pass_fds,
        start_new_session=True,
    )
