"""The worker process: loads the tools and runs calls, inside the sandbox that its starter made.

It serves the Varlink interface `org.lightagent1.Worker` on the listening socket that it inherits as
systemd passes sockets (sd_listen_fds(3)). Only the daemon's user can connect to that. A call ends when
it is done, when its time is over, or when the daemon hangs up; then everything that it started is
killed, and its scratch folder is removed. A worker holds no key and knows no session.

One worker runs one call at a time where the pool starts it (see `pool`), so that whatever is left over
when a call ends belongs to that call.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod
from pydantic import ValidationError

from lightagentd.errors import InvalidArgument, LightagentError, TimedOut, ToolError, ToolNotFound
from lightagentd.tool import Action, Args, Effect, Result
from lightagentd.varlink import Peer, VarlinkServer, error_reply
from lightagentd.worker.loader import LoadedTool, load_tools

_log = logging.getLogger(__name__)

OUTPUT_LIMIT_CHARS = 1 << 20
"""A result's text is cut here; the daemon cuts it further for a model."""
_PROGRESS_LIMIT = 256
"""Pieces of live output that may wait for a slow daemon; beyond it pieces are left out, and it is said."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


@dataclass(kw_only=True)
class CallContext:
    """What a running call gets (see `lightagentd.tool.Context`)."""

    call_id: str
    agent: str
    session: str
    effect: Effect
    scratch: Path
    timeout_s: float
    events: "asyncio.Queue[dict[str, Any]]" = field(default_factory=lambda: asyncio.Queue(_PROGRESS_LIMIT))
    left_out: int = 0

    def progress(self, text: str, stream: str = "stdout") -> None:
        self._put({"kind": "output", "stream": stream, "text": text})

    def emit(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        self._put({"kind": "event", "topic": topic, "type": event_type, "data": data})

    def _put(self, item: dict[str, Any]) -> None:
        try:
            self.events.put_nowait(item)
        except asyncio.QueueFull:
            self.left_out += 1


class WorkerInterface(VarlinkInterface, name="org.lightagent1.Worker"):
    """What the daemon asks a worker."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    @varlinkmethod(return_parameter="tools", allow_foreign=True)
    async def Describe(self) -> list[Any]:
        """The tools that were loaded, and the files that were not."""
        return [describe(loaded) for loaded in self._worker.tools.values()]

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Call(
        self,
        *,
        call_id: str,
        tool: str,
        action: str,
        args: Any,
        agent: str,
        session: str,
        effect: str,
        timeout_s: float,
    ) -> AsyncIterator[Any]:
        """Run one call. Streams objects whose kind is output or event; the last one's kind is result."""
        try:
            found = self._worker.find(tool, action)
            checked = check_args(found, args)
            context = CallContext(
                call_id=call_id,
                agent=agent,
                session=session,
                effect=Effect(effect),
                scratch=self._worker.make_scratch(call_id),
                timeout_s=timeout_s,
            )
            async for event in self._worker.run(found, checked, context):
                if event["kind"] == "result":
                    raise LastResult(event)
                yield event
        except LightagentError as err:
            raise error_reply(err) from err


def describe(loaded: LoadedTool) -> dict[str, Any]:
    """One tool as JSON."""
    return {
        "name": loaded.name,
        "description": (loaded.tool.__doc__ or "").strip() if loaded.tool else "",
        "path": str(loaded.path),
        "problem": loaded.error,
        "actions": [
            {
                "name": action.name,
                "description": action.description,
                "effect": action.effect.value if action.effect else "",
                "taints": action.taints,
                "timeout_s": action.timeout_s,
                "schema": action.args_model.model_json_schema(),
            }
            for action in loaded.actions.values()
        ],
    }


def check_args(action: Action, args: Any) -> Args:
    """The arguments as the action's model. Raises InvalidArgument that names the argument at fault."""
    try:
        return action.args_model.model_validate(args)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "args"
        known = ", ".join(action.args_model.model_fields) or "none"
        raise InvalidArgument(
            f"{action.tool}.{action.name}: {where}: {first['msg']}.",
            field=where,
            suggestion=f"The arguments are: {known}.",
        ) from err


class Worker:
    """Owns the tools' instances for the life of the process."""

    def __init__(self, tools: dict[str, LoadedTool], *, scratch: Path, own_pid_namespace: bool) -> None:
        self.tools = tools
        self._scratch = scratch
        self._own_pid_namespace = own_pid_namespace
        self.running = 0

    def find(self, tool: str, action: str) -> Action:
        loaded = self.tools.get(tool)
        if loaded is None:
            raise ToolNotFound(f"There is no tool {tool!r}.")
        if loaded.error:
            raise ToolNotFound(f"The tool {tool} is disabled: {loaded.error}")
        found = loaded.actions.get(action)
        if found is None:
            raise ToolNotFound(f"The tool {tool} has no action {action!r}.")
        return found

    def make_scratch(self, call_id: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"lightagent-{call_id}-", dir=self._scratch))

    async def run(self, action: Action, args: Args, context: CallContext) -> AsyncIterator[dict[str, Any]]:
        """The call's output and events as they come, then its result. Raises what the action raised."""
        self.running += 1
        task = asyncio.create_task(_bounded(action, args, context))
        try:
            while not task.done() or not context.events.empty():
                getter = asyncio.create_task(context.events.get())
                try:
                    await asyncio.wait([task, getter], return_when=asyncio.FIRST_COMPLETED)
                    if getter.done():
                        yield getter.result()
                finally:
                    getter.cancel()
            yield _result(task.result(), context.left_out)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.running -= 1
            shutil.rmtree(context.scratch, ignore_errors=True)
            if self.running == 0:
                await self._kill_leftovers()

    async def _kill_leftovers(self) -> None:
        """Kill what the ended call left behind, whatever group or session it fled to."""
        if self._own_pid_namespace:
            # Every process of the namespace but its init and this one (kill(2), pid -1).
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for _ in range(100):
            children = _children()
            if not children:
                return
            for pid in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # noqa: ASYNC222 - WNOHANG does not wait
                    pass
        _log.error("processes of an ended call cannot be killed: %s", _children())

    async def close(self) -> None:
        for loaded in self.tools.values():
            if loaded.tool is not None:
                await loaded.tool.close()


async def _bounded(action: Action, args: Args, context: CallContext) -> Result:
    try:
        async with asyncio.timeout(context.timeout_s):
            return await action.method(context, args)
    except TimeoutError as err:
        raise TimedOut(
            f"{action.tool}.{action.name} did not end within {context.timeout_s:g} seconds.",
            suggestion="Ask for less at once, or for a longer time.",
        ) from err
    except LightagentError:
        raise
    except Exception as err:
        _log.exception("%s.%s failed in a way that nobody expected", action.tool, action.name)
        raise ToolError(f"{action.tool}.{action.name} failed: {type(err).__name__}: {err}") from err


def _result(result: Result, left_out: int) -> dict[str, Any]:
    output, metadata = result.output, dict(result.metadata)
    if len(output) > OUTPUT_LIMIT_CHARS:
        half = OUTPUT_LIMIT_CHARS // 2
        cut = len(output) - 2 * half
        output = f"{output[:half]}\n[... {cut} characters left out ...]\n{output[-half:]}"
        metadata["left_out_chars"] = cut
    if left_out:
        metadata["live_output_left_out"] = left_out
    return {"kind": "result", "output": output, "metadata": metadata}


def _children() -> list[int]:
    """The children of this process, adopted ones too (proc_pid_task(5), `children`)."""
    found: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return found


def _harden(*, own_pid_namespace: bool, parent: int) -> None:
    """No core or /proc/PID/mem of this process for the shells that it runs, and no life without a daemon."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if not own_pid_namespace:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if parent:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if not own_pid_namespace and os.getppid() != parent:
            sys.exit("the daemon that started this worker is gone")


async def serve(worker: Worker, sock: socket.socket, idle_timeout_s: float) -> None:
    """Serve until SIGTERM, or until nobody was connected for a while."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)

    def interfaces(_peer: Peer) -> list[VarlinkInterface]:
        return [WorkerInterface(worker)]

    server = VarlinkServer(sock, interfaces, product="lightagent-worker")
    server.start()
    idle_since = loop.time()
    try:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(5.0, idle_timeout_s)):
                    await stop.wait()
            if server.connections:
                idle_since = loop.time()
            elif loop.time() - idle_since > idle_timeout_s:
                break
    finally:
        await server.close()
        await worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-worker", description="Runs the tool calls of one agent and effect."
    )
    parser.add_argument("--tools", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("--scratch", type=Path, metavar="DIR")
    parser.add_argument("--listen-fd", default=3, type=int, metavar="FD")
    parser.add_argument("--own-pid-namespace", action="store_true")
    parser.add_argument("--parent", default=0, type=int, metavar="PID")
    parser.add_argument("--idle-timeout", default=300.0, type=float, metavar="SECONDS")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _harden(own_pid_namespace=options.own_pid_namespace, parent=options.parent)
    try:
        sock = socket.socket(fileno=options.listen_fd)
    except OSError:
        sys.exit("the worker needs a listening socket: it is started by systemd or by lightagentd")
    sock.set_inheritable(False)
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    scratch = options.scratch or Path(tempfile.gettempdir())
    worker = Worker(load_tools(options.tools), scratch=scratch, own_pid_namespace=options.own_pid_namespace)
    asyncio.run(serve(worker, sock, options.idle_timeout))


if __name__ == "__main__":
    main()
