"""The worker process: loads the tools and runs calls, inside the sandbox that its starter made.

It serves the Varlink interface `org.lightagent1.Worker` on the listening socket that it inherits as
systemd passes sockets (sd_listen_fds(3)). Only the daemon's user can connect to that. A call ends when
it is done, when its time is over, or when the daemon hangs up; then everything that it started is
killed, and its scratch folder is removed. A worker holds no key and knows no session.

One worker runs one call at a time where the pool starts it (see `pool`), so that whatever is left over
when a call ends belongs to that call. The result goes out when that is killed, not before.
Where the daemon starts the worker, `keeper` comes first and calls `main`; a worker unit runs this module.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod
from pydantic import ValidationError

from lightagentd.errors import InvalidArgument, LightagentError, TimedOut, ToolError, ToolNotFound
from lightagentd.tool import Action, Args, Effect, Preview, Result
from lightagentd.varlink import Peer, VarlinkServer, error_reply
from lightagentd.worker.leftovers import Ends, children, end_all, reap
from lightagentd.worker.loader import LoadedTool, load_tools

_log = logging.getLogger(__name__)

OUTPUT_LIMIT_CHARS = 1 << 20
"""A result's text is cut here; the daemon cuts it further for a model."""
METADATA_LIMIT_CHARS = 1 << 20
_PROGRESS_LIMIT = 256
"""Pieces of live output that may wait for a slow daemon; beyond it pieces are left out, and it is said."""
_PIECE_CHARS = 64 << 10
_PUBLISHED_LIMIT = 4096
"""Events outside of calls that may wait for the daemon."""
PREVIEW_LIMIT_S = 10.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_KILL_ROUNDS, _KILL_PAUSE_S = 400, 0.005
"""How often and how fast it is looked after processes that were killed: they take a moment to go."""


@dataclass(kw_only=True)
class CallContext:
    """What a running call gets (see `lightagentd.tool.Context`)."""

    call_id: str
    agent: str
    session: str
    owner: int
    effect: Effect
    scratch: Path
    timeout_s: float
    expected: dict[str, Any] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=deque)
    """What waits to be sent; at most `_PROGRESS_LIMIT`."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """There is something in `events`, or the call is done."""
    left_out: int = 0

    def progress(self, text: str, stream: str = "stdout") -> None:
        for start in range(0, len(text), _PIECE_CHARS):
            self._put({"kind": "output", "stream": stream, "text": text[start : start + _PIECE_CHARS]})

    def emit(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        json.dumps(data, allow_nan=False)  # what cannot be sent is the tool's error, here and now
        self._put({"kind": "event", "topic": topic, "type": event_type, "data": data})

    def _put(self, item: dict[str, Any]) -> None:
        if len(self.events) >= _PROGRESS_LIMIT:
            self.left_out += 1
            return
        self.events.append(item)
        self.news.set()


class WorkerInterface(VarlinkInterface, name="org.lightagent1.Worker"):
    """What the daemon asks a worker."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    @varlinkmethod(return_parameter="tools", allow_foreign=True)
    async def Describe(self) -> list[Any]:
        """The tools that were loaded, and the files that were not."""
        return [describe(loaded) for loaded in self._worker.tools.values()]

    @varlinkmethod(allow_foreign=True)
    async def Settle(self, *, call_id: str) -> None:
        """Answer when this call runs no more: after a hang-up, when what it ended is gone."""
        await self._worker.settle(call_id)

    @varlinkmethod(return_parameter="checked", allow_foreign=True)
    async def Check(
        self, *, tool: str, action: str, args: Any, agent: str, session: str, owner: int, preview: bool
    ) -> Any:
        """The arguments as the action would get them, and, when asked for, what the call would do."""
        try:
            found = self._worker.find(tool, action)
            checked = check_args(found, args)
            seen = await self._worker.preview(found, checked, agent, session, owner) if preview else None
        except LightagentError as err:
            raise error_reply(err) from err
        return {
            "args": checked.model_dump(mode="json"),
            "preview": seen.text if seen else "",
            "expected": seen.expected if seen else {},
        }

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Follow(self) -> AsyncIterator[Any]:
        """What tools publish outside of calls, as it comes and without an end.

        Objects {kind: event, topic, type, data}, and {kind: lost, count} where the daemon was too slow.
        """
        async for event in self._worker.follow():
            yield event

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
        owner: int,
        effect: str,
        timeout_s: float,
        expected: Any,
    ) -> AsyncIterator[Any]:
        """Run one call. Streams objects whose kind is output or event; the last one's kind is result."""
        try:
            found = self._worker.find(tool, action)
            checked = check_args(found, args)
            context = CallContext(
                call_id=call_id,
                agent=agent,
                session=session,
                owner=owner,
                effect=Effect(effect),
                scratch=self._worker.make_scratch(call_id),
                timeout_s=timeout_s,
                expected=expected,
            )
            async for event in self._worker.run(found, checked, context):
                if event["kind"] == "result":
                    raise LastResult(event)
                yield event
        except LightagentError as err:
            raise error_reply(err) from err


def describe(loaded: LoadedTool) -> dict[str, Any]:
    """One tool as JSON."""
    problem = loaded.error
    actions: list[dict[str, Any]] = []
    try:
        actions = [_describe_action(action) for action in loaded.actions.values()]
    except Exception as err:  # noqa: BLE001 - pydantic raises many kinds for types without a JSON Schema
        problem = f"{type(err).__name__}: {err}"
    return {
        "name": loaded.name,
        "description": (loaded.tool.__doc__ or "").strip() if loaded.tool else "",
        "path": str(loaded.path),
        "problem": problem,
        "actions": actions,
    }


def _describe_action(action: Action) -> dict[str, Any]:
    return {
        "name": action.name,
        "description": action.description,
        "effect": action.effect.value if action.effect else "",
        "taints": action.taints,
        "timeout_s": action.timeout_s,
        "place": action.place.value if action.place else "",
        "host": action.host,
        "schema": action.args_model.model_json_schema(),
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

    def __init__(self, tools: dict[str, LoadedTool], *, scratch: Path | None, ends: Ends) -> None:
        self.tools = tools
        self._own_scratch = scratch is not None
        self._scratch = scratch or Path(tempfile.gettempdir())
        self._ends = ends
        self._calls: dict[str, asyncio.Event] = {}
        """The calls that run, and what is set when each is over."""
        self._published: deque[dict[str, Any]] = deque()
        """What waits for the daemon; at most `_PUBLISHED_LIMIT`."""
        self._publishing = asyncio.Event()
        self._lost = 0
        self._previews = itertools.count(1)
        for loaded in tools.values():
            if loaded.tool is not None:
                loaded.tool.publish = self.publish

    @property
    def running(self) -> int:
        """How many calls run."""
        return len(self._calls)

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

    def publish(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        """Keep an event of a tool's for the daemon; beyond the limit it is counted and left out."""
        json.dumps(data, allow_nan=False)
        if len(self._published) >= _PUBLISHED_LIMIT:
            self._lost += 1
        else:
            self._published.append({"kind": "event", "topic": topic, "type": event_type, "data": data})
        self._publishing.set()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """What tools publish, as it comes."""
        while True:
            self._publishing.clear()
            while self._published:
                yield self._published.popleft()
            if self._lost:
                lost, self._lost = self._lost, 0
                yield {"kind": "lost", "count": lost}
            if not self._published:
                await self._publishing.wait()

    async def preview(
        self, action: Action, args: Args, agent: str, session: str, owner: int
    ) -> Preview | None:
        """What a call would do, as its tool says it. Raises what the tool raises."""
        owning = self.tools[action.tool].tool
        assert owning is not None
        call_id = f"preview-{next(self._previews)}"
        context = CallContext(
            call_id=call_id,
            agent=agent,
            session=session,
            owner=owner,
            effect=Effect.OBSERVE,
            scratch=self.make_scratch(call_id),
            timeout_s=PREVIEW_LIMIT_S,
        )
        try:
            async with asyncio.timeout(PREVIEW_LIMIT_S):
                return await owning.preview(context, action.name, args)
        except TimeoutError as err:
            raise TimedOut(f"{action.tool}.{action.name} could not say in time what it would do.") from err
        except LightagentError:
            raise
        except (Exception, SystemExit) as err:
            _log.exception("the preview of %s.%s failed", action.tool, action.name)
            raise ToolError(f"The preview of {action.tool}.{action.name} failed: {err}") from err
        finally:
            _remove(context.scratch)

    def make_scratch(self, call_id: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"lightagent-{call_id}-", dir=self._scratch))

    async def run(self, action: Action, args: Args, context: CallContext) -> AsyncIterator[dict[str, Any]]:
        """The call's output and events as they come, then its result. Raises what the action raised."""
        over = self._calls.setdefault(context.call_id, asyncio.Event())
        task = asyncio.create_task(_bounded(action, args, context))
        task.add_done_callback(lambda _: context.news.set())
        try:
            while not task.done() or context.events:
                context.news.clear()
                while context.events:
                    yield context.events.popleft()
                if not task.done():
                    await context.news.wait()
            await self._end_leftovers()
            if task.cancelled():
                raise ToolError(f"{action.tool}.{action.name} cancelled itself.")
            yield _result(task.result(), context.left_out)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self._end_leftovers()
            self._calls.pop(context.call_id, None)
            self._clear_scratch(context.scratch)
            over.set()

    async def settle(self, call_id: str) -> None:
        """Wait until this call does not run."""
        for _ in range(2):
            await asyncio.sleep(0)  # a call that came before on another connection begins in this time
        over = self._calls.get(call_id)
        if over is not None:
            await over.wait()

    def _clear_scratch(self, used: Path) -> None:
        """Remove a call's folder, and where the folder above it is the worker's alone, everything in that."""
        _remove(used)
        if self._own_scratch and not self.running:
            for entry in self._scratch.iterdir():
                _remove(entry)

    async def _end_leftovers(self) -> None:
        """Kill what the ended call left behind, and wait until it is gone."""
        if self.running > 1:
            return
        for _ in range(_KILL_ROUNDS):
            if not end_all(self._ends):
                return
            reap()
            await asyncio.sleep(_KILL_PAUSE_S)
        _log.error("processes of an ended call cannot be killed: %s", children())

    async def close(self) -> None:
        """Let every tool let go of what it holds."""
        for loaded in self.tools.values():
            if loaded.tool is None:
                continue
            try:
                await loaded.tool.close()
            except Exception:  # noqa: BLE001 - one tool must not keep the others from letting go
                _log.exception("the tool %s failed while it was closed", loaded.name)


async def _bounded(action: Action, args: Args, context: CallContext) -> Result:
    try:
        async with asyncio.timeout(context.timeout_s):
            result = await action.method(context, args)
        return _checked(result)
    except TimeoutError as err:
        raise TimedOut(
            f"{action.tool}.{action.name} did not end within {context.timeout_s:g} seconds.",
            suggestion="Ask for less at once, or for a longer time.",
        ) from err
    except LightagentError:
        raise
    except (Exception, SystemExit) as err:
        _log.exception("%s.%s failed in a way that nobody expected", action.tool, action.name)
        raise ToolError(f"{action.tool}.{action.name} failed: {type(err).__name__}: {err}") from err


def _checked(result: Any) -> Result:
    """What a tool gave back, if it is what a tool may give back. Raises TypeError or ValueError."""
    if not isinstance(result, Result) or not isinstance(result.output, str):
        raise TypeError("the tool must give a Result with a text as its output")
    size = len(json.dumps(result.metadata, allow_nan=False))
    if size > METADATA_LIMIT_CHARS:
        raise ValueError(f"the metadata have {size} characters as JSON, more than {METADATA_LIMIT_CHARS}")
    return result


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


def _remove(path: Path) -> None:
    """Remove a file or a whole folder, even one with folders in it that were made unreadable."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = Path(folder, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _harden() -> None:
    """No core and no /proc/PID/mem of this process for the shells it runs; what they leave comes to it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def serve(worker: Worker, sock: socket.socket, idle_timeout_s: float) -> None:
    """Serve until SIGTERM, or until nobody was connected for a while."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if os.getpid() != 1:  # an init without a handler gets no signal of its namespace (pid_namespaces(7))
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


def main(arguments: Sequence[str] | None = None, *, ends: Ends = Ends.CHILDREN) -> None:
    """Be a worker until there is nothing to do for it; `ends` says how the rest of a call is killed."""
    parser = argparse.ArgumentParser(
        prog="lightagent-worker", description="Runs the tool calls of one agent and effect."
    )
    parser.add_argument("--tools", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder for this worker alone")
    parser.add_argument("--listen-fd", default=3, type=int, metavar="FD")
    parser.add_argument("--idle-timeout", default=300.0, type=float, metavar="SECONDS")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _harden()
    try:
        sock = socket.socket(fileno=options.listen_fd)
    except OSError:
        sys.exit("the worker needs a listening socket: it is started by systemd or by lightagentd")
    sock.set_inheritable(False)
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if sys.version_info < (3, 12):
        # The default makes a thread for each command, which a limit on processes can refuse.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    worker = Worker(load_tools(options.tools), scratch=options.scratch, ends=ends)
    asyncio.run(serve(worker, sock, options.idle_timeout))


if __name__ == "__main__":
    main()
