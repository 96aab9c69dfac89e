"""Runs one shell command in the sandbox of the effect that the call asks for.

The kernel decides what the command may do, so nothing here looks at its words. The command, and everything
that it started in its process group, is dead when the call ends. A failure that the sandbox probably caused
is explained, so that the caller can ask for the same command with another effect. A result holds the head and
the tail of a long output; the daemon keeps the output itself.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lightagentd.errors import NotFound
from lightagentd.host.process import TERM_GRACE_S, CappedOutput, Completed, LiveText, run
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Preview, Result, TimedOut, Tool, action
from lightagentd.toolkit.files import bound
from lightagentd.worker.outputs import CALL_LIMIT_BYTES, STREAMS

SHELLS = ("/bin/bash", "/bin/sh")
OPTIONS = {"/bin/bash": ("--noprofile", "--norc")}
COMMAND_LIMIT_BYTES = 128 * 1024 - 1
"""The longest single argument that execve(2) takes."""
KEEP_BEYOND_BYTES = 16 * 1024
"""An output longer than this can be read again: the result, or what the model sees of it, may be cut."""
TIMEOUT_TAIL_CHARS = 2000
"""How much of the output so far the error of a timeout shows."""

_NETWORK_SIGNS = (
    "network is unreachable",
    "could not resolve host",
    "unable to resolve host",
    "name or service not known",
    "temporary failure in name resolution",
    "address family not supported by protocol",
    "couldn't connect to server",
)
_WRITE_SIGNS = ("read-only file system",)
_EITHER_SIGNS = (
    "permission denied",
    "operation not permitted",
    "access denied",
    "must be superuser",
    "superuser privilege",
    "must be root",
    "are you root?",
    "interactive authentication required",
    "already connected",  # a Unix socket in reach (`worker.seccomp`)
)
"""What programs and the C library say in lower case, since not all write it alike."""
_HIDES_ERRORS = re.compile(r"2>\s*(/dev/null|&-)|&>|>&\s*/dev/null|\|\|\s*(true|:|exit 0|echo)")
_CLOSED = re.compile(
    r"(?<![\w.])(/var)?/run\b(?!/(udev|log/journal|systemd/(system|units|sessions|users|seats))\b)"
    r"|\.sock\b|(?<![\w.])/root\b|/etc/ssl/private\b|/var/lib/(lightagent|private)|/etc/credstore"
)
"""What a sandbox hides or closes, in a command's words."""


class ExecArgs(Args):
    command: str = Field(min_length=1, description="The command, as for `bash -c`.")
    cwd: str = Field(default="/", description="The folder to run it in: an absolute path.")
    effect: Effect = Field(
        default=Effect.OBSERVE,
        description="What it may do: observe reads, reach uses the network, change modifies the system.",
    )
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="How long it may take, in seconds."
    )


class ReadArgs(Args):
    handle: str = Field(
        pattern=r"^out_[0-9a-f]{16}$", description="The output's handle, such as out_0123...."
    )
    stream: Literal["stdout", "stderr"] = Field(default="stdout", description="Which of the two.")
    offset: int = Field(default=0, ge=0, le=1 << 40, description="The first byte to show, from 0 on.")
    limit: int = Field(default=32 * 1024, ge=16, le=60 * 1024, description="How many bytes to show.")


class _Whole:
    """The output of a command from its begin on, as far as it may be kept."""

    def __init__(self) -> None:
        self.data = {stream: bytearray() for stream in STREAMS}
        self.complete = True

    def feed(self, stream: str, data: bytes) -> None:
        room = CALL_LIMIT_BYTES - sum(map(len, self.data.values()))
        self.data[stream] += data[:room]
        self.complete = self.complete and len(data) <= room

    @property
    def described(self) -> str:
        return "All of it" if self.complete else f"The first {CALL_LIMIT_BYTES >> 20} MiB of it"

    def keep(self, ctx: Context, done: Completed) -> str:
        """Hand it to the daemon if it is long; gives its handle, or an empty string."""
        if sum(map(len, self.data.values())) <= KEEP_BEYOND_BYTES:
            return ""
        lengths = {"stdout": done.stdout.total_bytes, "stderr": done.stderr.total_bytes}
        handle = ""
        for stream, data in self.data.items():
            handle = ctx.keep(stream, bytes(data), lengths[stream])
        return handle


class Bash(Tool):
    """Runs shell commands, confined to what their effect allows."""

    name = "bash"
    shells: ClassVar[tuple[str, ...]] = SHELLS

    @action(effect=None, taints=True, timeout_s=120)
    async def exec(self, ctx: Context, args: ExecArgs) -> Result:
        """Run a command with bash and give its output and exit status.

        Everything it starts ends with it, so start services with the tool systemd. HOME and TMPDIR
        are an empty folder that is removed after the call. A command that is refused because of its effect
        can be asked for again with another one.
        """
        shell = self._shell()
        _check(args)
        bound_s = _bound_s(ctx, args)
        live, whole = LiveText(ctx.progress), _Whole()

        def take(stream: str, data: bytes) -> None:
            live.feed(stream, data)
            whole.feed(stream, data)

        with _checked_folder(ctx, args.cwd) as folder:
            done = await run(
                [shell, *OPTIONS.get(shell, ()), "-c", "--", args.command],
                timeout_s=bound_s,
                cwd=folder,
                env={"HOME": str(ctx.scratch), "TMPDIR": str(ctx.scratch)},
                on_output=take,
            )
        live.finish()
        handle = whole.keep(ctx, done)
        note = f"{whole.described} can be read again with bash read_output, handle {handle}" if handle else ""
        if done.timed_out:
            message = _timeout_message(done, bound_s)
            if note:
                message += f"\n{note}."
            raise TimedOut(message, suggestion="Ask for less, or with a longer timeout_s.")
        metadata = _metadata(done, shell)
        hint = sandbox_hint(ctx.effect, done) or silence_hint(ctx.effect, args.command)
        if hint:
            metadata["sandbox_hint"] = hint
        if handle:
            metadata["output_handle"] = handle
            metadata["kept_bytes"] = {stream: len(data) for stream, data in whole.data.items()}
            metadata["kept_whole"] = whole.complete
        return Result(output=_report(done, hint, note), metadata=metadata)

    @action(taints=True)
    async def read_output(self, ctx: Context, args: ReadArgs) -> Result:
        """Read a part of a long output of an earlier command, by the handle that its result gave."""
        # The daemon keeps the outputs of all workers and answers this itself (`lightagentd.worker.kept`).
        raise NotFound(f"This worker keeps no output; the daemon answers for {args.handle}.", field="handle")

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """The command as the shell would get it."""
        if action != "exec":
            return None
        _check(args)
        said, expected = await asyncio.to_thread(bound.facts, args.command, args.cwd, ctx.owner)
        text = f"In {args.cwd}, with {self._shell()}:\n{args.command}\n{said}"
        return Preview(text=text, expected=expected)

    def _shell(self) -> str:
        for shell in self.shells:
            if Path(shell).exists():
                return shell
        return self.shells[-1]


@contextlib.contextmanager
def _checked_folder(ctx: Context, cwd: str) -> Iterator[Path]:
    """The folder to run in: for an approved command the very one that is compared. Raises Conflict."""
    if not ctx.expected:
        yield Path(cwd)
        return
    try:
        fd = os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise NotFound(f"The folder {cwd} is not there any more: {err.strerror}.", field="cwd") from err
    try:
        bound.check(ctx.expected, fd)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _check(args: ExecArgs) -> None:
    if "\0" in args.command:
        raise InvalidArgument("The command contains a NUL byte, which no command can have.", field="command")
    if len(args.command.encode()) > COMMAND_LIMIT_BYTES:
        raise InvalidArgument(
            f"The command is longer than {COMMAND_LIMIT_BYTES} bytes.",
            field="command",
            suggestion="Write it to a file and run that.",
        )
    if not args.cwd.startswith("/") or "\0" in args.cwd:
        raise InvalidArgument(f"The folder {args.cwd!r} is not an absolute path.", field="cwd")


def _bound_s(ctx: Context, args: ExecArgs) -> float:
    """The smaller of both times; some of the worker's own is left to end the command and to report it."""
    reserve_s = min(TERM_GRACE_S + 0.5, ctx.timeout_s / 10)
    return min(args.timeout_s or ctx.timeout_s, ctx.timeout_s - reserve_s)


def sandbox_hint(effect: Effect, done: Completed) -> str:
    """A sentence for a failure that the sandbox probably caused, or an empty string."""
    if done.status == 0 or effect is Effect.CHANGE:
        return ""
    errors = done.stderr.text().lower()
    network = effect is Effect.OBSERVE and any(sign in errors for sign in _NETWORK_SIGNS)
    write = any(sign in errors for sign in _WRITE_SIGNS)
    either = any(sign in errors for sign in _EITHER_SIGNS)
    ways = []
    if network or (either and effect is Effect.OBSERVE):
        ways.append("as 'reach' if it needs the network")
    if write or either:
        ways.append("as 'change' if it must write or needs more rights")
    if not ways:
        return ""
    return f"The command ran with the effect '{effect}'; it can be asked for again {', or '.join(ways)}."


def silence_hint(effect: Effect, command: str) -> str:
    """A sentence for a command that hides its errors and names what is closed to it, or an empty string."""
    named = _CLOSED.search(command)
    if effect is Effect.CHANGE or named is None or not _HIDES_ERRORS.search(command):
        return ""
    return (
        f"The command hides its errors and names {named[0]}. With the effect '{effect}', most of /run,"
        " sockets of services and closed folders are out of reach:"
        " finding nothing there does not mean that nothing is there."
    )


def _metadata(done: Completed, shell: str) -> dict[str, object]:
    metadata: dict[str, object] = {
        "exit_status": done.status,
        "signal": done.signal,
        "timed_out": done.timed_out,
        "duration_ms": round(done.duration_s * 1000),
        "stdout_bytes": done.stdout.total_bytes,
        "stderr_bytes": done.stderr.total_bytes,
        "stdout_omitted_bytes": done.stdout.omitted_bytes,
        "stderr_omitted_bytes": done.stderr.omitted_bytes,
        "shell": shell,
    }
    if shell != SHELLS[0]:
        metadata["note"] = f"{SHELLS[0]} does not exist here, so {shell} ran the command."
    return metadata


def _report(done: Completed, hint: str, note: str) -> str:
    """What a model reads: the output, the errors if there are any, and how it ended if not well."""
    parts = []
    if done.stdout.total_bytes:
        parts.append(_ended(done.stdout))
    if done.stderr.total_bytes:
        parts.append("stderr:\n" + _ended(done.stderr))
    if done.signal:
        memory = " (as the kernel does when memory runs out)" if done.signal == "SIGKILL" else ""
        parts.append(f"ended by {done.signal}{memory}\n")
    elif done.status:
        parts.append(f"exit status {done.status}\n")
    at = len(parts) - bool(done.signal or done.status)
    if hint:
        parts.insert(at, hint + "\n")
    if note:
        parts.insert(at, f"({note})\n")
    return "".join(parts) or "(no output)\n"


def _ended(output: CappedOutput) -> str:
    text = output.text()
    return text if text.endswith("\n") else text + "\n"


def _timeout_message(done: Completed, bound_s: float) -> str:
    message = f"The command did not end within {bound_s:g} s and was ended."
    for name, output in (("output", done.stdout), ("stderr", done.stderr)):
        tail = output.text()[-TIMEOUT_TAIL_CHARS:].strip()
        if tail:
            message += f" Its {name} so far ends with:\n{tail}"
    return message
