"""The worker process: loads the tools and runs calls, inside the sandbox that its starter made.

It serves the Varlink interface `org.lightagent1.Worker` on the listening socket that it inherits as
systemd passes sockets (sd_listen_fds(3)). Only the daemon's user can connect to that. A call ends when
it is done, when its time is over, or when the daemon hangs up; then everything that it started is
killed, and its scratch folder is removed. A worker holds no key and knows no session.

A worker that the pool starts runs one call at a time (see `pool`), so that all leftover processes belong to
that call. In a worker unit each call has a cgroup, and several calls run at once. The result is sent only
after the leftover processes were killed. `keeper` calls `main` if the daemon starts the worker; in a worker
unit, `unit` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncvarlink import VarlinkInterface

from lightagentd.errors import (
    LightagentError,
    OutcomeUnknown,
    PermissionDenied,
    TimedOut,
    ToolError,
    ToolNotFound,
    WorkerUnavailable,
)
from lightagentd.events.context import EventContext, tell_whose, using
from lightagentd.host.kept_process import keep_apart, kept
from lightagentd.text.reason import reason
from lightagentd.tool import Action, Args, Effect, Place, Preview, Tool
from lightagentd.varlink.server import Peer, VarlinkServer
from lightagentd.worker import landlock
from lightagentd.worker.admission import Admission
from lightagentd.worker.calls import CallContext, result_event, run_action
from lightagentd.worker.cgroups import CallCgroup, CallCgroups
from lightagentd.worker.confine import only_writing_to
from lightagentd.worker.hooks import HooksInterface
from lightagentd.worker.interface import WorkerInterface
from lightagentd.worker.kit_tools import KitTools
from lightagentd.worker.leftovers import Ends, children, end_all, reap
from lightagentd.worker.loader import LoadedTool, ToolFiles
from lightagentd.worker.lockdown import MACHINE, forbid_programs, harden, serves
from lightagentd.worker.mcp_servers import ServersInterface
from lightagentd.worker.proof import prove
from lightagentd.worker.published import Published
from lightagentd.worker.removal import remove

if TYPE_CHECKING:
    from lightagentd.worker.verifying import Verifier

_log = logging.getLogger(__name__)

PREVIEW_LIMIT_S = 10.0
STOP_LOOK_S = 1.0
"""How soon a worker for change sees an emergency stop that the daemon does not tell it."""
_KILL_ROUNDS, _KILL_PAUSE_S = 400, 0.005
"""How often and how fast killed processes are checked for: they take a moment to go."""


class Worker:
    """Owns the tools' instances for the life of the process."""

    def __init__(
        self,
        tools: ToolFiles,
        *,
        scratch: Path | None,
        ends: Ends,
        place: Place | None = None,
        cgroups: CallCgroups | None = None,
        effect: Effect = Effect.OBSERVE,
        verifier: Verifier | None = None,
        admission: Admission | None = None,
    ) -> None:
        """`cgroups`, `effect` and `verifier` are of a worker's unit, `admission` is of that of a place."""
        self.tools = tools
        self.retired = asyncio.Event()
        """The worker is to exit."""
        self._cgroups = cgroups
        self._effect = effect
        self.verifier, self.admission = verifier, admission
        self._place = place
        self._own_scratch = scratch is not None
        self._scratch = scratch or Path(tempfile.gettempdir())
        self._ends = ends
        self._calls: dict[str, asyncio.Event] = {}
        """The calls that run, and what is set when each is over."""
        self.published = Published()
        self._previews = itertools.count(1)
        self._kit = KitTools()
        tools.ready = self._kit.ready = self._adopt

    def _adopt(self, tool: Tool) -> None:
        """Let a newly loaded tool publish through this worker."""
        tool.publish = self.published.publish

    @property
    def running(self) -> int:
        """The number of running calls."""
        return len(self._calls)

    def runs(self, call_id: str) -> bool:
        return call_id in self._calls

    def loaded(self, tool: str, kit: str, effect: Effect = Effect.OBSERVE) -> LoadedTool:
        """A tool, of the agent's kit if not of all. Raises ToolNotFound, PermissionDenied."""
        if kit and self._place in MACHINE:
            raise PermissionDenied(f"The worker for {self._place} loads no file of a kit.")
        change = Effect.CHANGE in (effect, self._effect)
        return self._kit.beside(self.tools, tool, kit, change=change)

    def find(self, tool: str, action: str, kit: str = "", effect: Effect = Effect.OBSERVE) -> Action:
        loaded = self.loaded(tool, kit, effect)
        if loaded.error:
            raise ToolNotFound(f"The tool {tool} is disabled: {loaded.error}")
        if (found := loaded.actions.get(action)) is None:
            raise ToolNotFound(f"The tool {tool} has no action {action!r}.")
        if not serves(self._place, found.place):
            here = f"the worker for {self._place}" if self._place else "the worker of an effect"
            raise PermissionDenied(f"{tool}.{action} does not run in {here}.")
        return found

    async def preview(
        self, action: Action, owning: Tool | None, args: Args, agent: str, session: str, owner: int
    ) -> Preview | None:
        """The tool's preview of a call; none without a tool. Raises the tool's errors."""
        if owning is None:
            return None
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
            async with asyncio.timeout(PREVIEW_LIMIT_S), self._held(call_id):
                return await owning.preview(context, action.name, args)
        except TimeoutError as err:
            raise TimedOut(f"{action.tool}.{action.name} could not say in time what it would do.") from err
        except LightagentError:
            raise
        except (Exception, SystemExit) as err:
            _log.exception("the preview of %s.%s failed", action.tool, action.name)
            raise ToolError(f"The preview of {action.tool}.{action.name} failed: {err}") from err
        finally:
            remove(context.scratch)

    def path_of(self, tool: str, kit: str) -> Path:
        """The file of a tool, loaded or not. Raises ToolNotFound, PermissionDenied."""
        found = self.tools.path(tool) if tool in [*self.tools] else self._kit.path(tool, kit)
        if found is None:
            raise ToolNotFound(f"There is no tool {tool!r}.")
        return found

    @contextlib.asynccontextmanager
    async def block(self) -> AsyncIterator[Path]:
        """A block with a scratch folder, that ends all processes started in it, if calls have cgroups."""
        call_id = f"look-{next(self._previews)}"
        folder = self.make_scratch(call_id)
        try:
            async with self._held(call_id):
                yield folder
        finally:
            remove(folder)

    async def prove(self) -> list[str]:
        """The forbidden things that a command can do. Raises WorkerUnavailable."""
        async with self._held(f"proof-{next(self._previews)}"):
            return await prove(self._effect)

    @contextlib.asynccontextmanager
    async def _held(self, call_id: str) -> AsyncIterator[None]:
        """A block that ends all processes started in it, if calls have cgroups."""
        cgroup = self._cgroup_of(call_id)
        try:
            with cgroup or contextlib.nullcontext():
                yield
        finally:
            if cgroup is not None:
                await self._end_cgroup(cgroup)

    async def _end_cgroup(self, cgroup: CallCgroup) -> None:
        """End a call's processes. Raises OutcomeUnknown if they stay; the worker then exits, and systemd ends
        the whole unit.
        """
        try:
            await cgroup.end()
        except OutcomeUnknown as err:
            _log.error("%s The worker exits, so that systemd ends what is left.", err.message)
            self.retired.set()
            raise

    def _cgroup_of(self, call_id: str) -> CallCgroup | None:
        """A new call's cgroup, if calls have cgroups. Raises WorkerUnavailable."""
        try:
            return self._cgroups.make(call_id) if self._cgroups is not None else None
        except OSError as err:
            raise WorkerUnavailable(
                f"The call {call_id} cannot get a cgroup: {reason(err, at=True)}.",
                suggestion="Ask for it again.",
            ) from err

    def make_scratch(self, call_id: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"lightagent-{call_id}-", dir=self._scratch))

    async def run(
        self, action: Action, args: Args, context: CallContext, whose: EventContext
    ) -> AsyncIterator[dict[str, Any]]:
        """The call's output and events as they arrive, then its result. Raises the action's errors."""
        try:
            cgroup = self._cgroup_of(context.call_id)
        except WorkerUnavailable:
            self._clear_scratch(context.scratch)
            raise
        over, forgotten = self._calls.setdefault(context.call_id, asyncio.Event()), False
        with cgroup or contextlib.nullcontext(), using(whose):
            task = asyncio.create_task(run_action(action, args, context))
        task.add_done_callback(lambda _: context.news.set())
        try:
            while not task.done() or context.events:
                context.news.clear()
                while context.events:
                    yield context.events.popleft()
                if not task.done():
                    await context.news.wait()
            await self._end_leftovers(cgroup)
            while context.kept:
                yield context.kept_event()
            if task.cancelled():
                raise ToolError(f"{action.tool}.{action.name} cancelled itself.")
            result = result_event(task.result(), context.left_out)
            forgotten = True
            self._forget(context, over)  # first: the next call may come over another connection
            yield result
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not forgotten:
                try:
                    await self._end_leftovers(cgroup)
                finally:
                    self._forget(context, over)

    def _forget(self, context: CallContext, over: asyncio.Event) -> None:
        """A call has ended, and nothing of it runs."""
        self._calls.pop(context.call_id, None)
        self._clear_scratch(context.scratch)
        over.set()

    async def settle(self, call_id: str) -> None:
        """Wait until this call has ended."""
        for _ in range(2):
            await asyncio.sleep(0)  # a call that came before on another connection begins in this time
        over = self._calls.get(call_id)
        if over is not None:
            await over.wait()

    def _clear_scratch(self, used: Path) -> None:
        """Remove a call's folder, and everything in the folder above if that belongs to this worker alone."""
        remove(used)
        if self._own_scratch and not self.running:
            homes = {one.home for one in kept()}
            for entry in self._scratch.iterdir():
                if entry not in homes:
                    remove(entry)

    async def _end_leftovers(self, cgroup: CallCgroup | None) -> None:
        """Kill the processes that an ended call left, and wait until they are gone."""
        if cgroup is not None:
            await self._end_cgroup(cgroup)
            return
        if self.running > 1 or kept():  # a worker with a server has no commands
            return
        for _ in range(_KILL_ROUNDS):
            if not end_all(self._ends):
                return
            reap()
            await asyncio.sleep(_KILL_PAUSE_S)
        _log.error("processes of an ended call cannot be killed: %s", children())

    async def close(self) -> None:
        """Make every tool release its resources."""
        for loaded in (*self.tools.loaded.values(), *self._kit.loaded().values()):
            if loaded.tool is None:
                continue
            try:
                await loaded.tool.close()
            except Exception:  # noqa: BLE001 - one tool must not keep the others from letting go
                _log.exception("the tool %s failed while it was closed", loaded.name)


async def serve(worker: Worker, sock: socket.socket, idle_timeout_s: float) -> None:
    """Serve until SIGTERM or `Retire`, or an idle time without a connection."""
    stop, loop = worker.retired, asyncio.get_running_loop()
    if os.getpid() != 1:  # an init without a handler gets no signal of its namespace (pid_namespaces(7))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)

    def interfaces(_peer: Peer) -> list[VarlinkInterface]:
        if worker.verifier is not None:
            from lightagentd.worker.change_interface import ChangeInterface  # only workers for change need it

            return [ChangeInterface(worker, worker.verifier)]
        if worker.admission is not None:
            return [WorkerInterface(worker)]
        servers = ServersInterface(worker.path_of, worker.block)
        return [WorkerInterface(worker), HooksInterface(worker.retired.set), servers]

    server = VarlinkServer([sock], interfaces, product="lightagent-worker")
    server.start()
    idle_since = loop.time()
    try:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(STOP_LOOK_S if worker.verifier else 5.0, idle_timeout_s)):
                    await stop.wait()
            if worker.verifier is not None and worker.running and worker.verifier.stopped:
                _log.error("An administrator has stopped everything: what runs here ends now.")
                break
            if server.connections:
                idle_since = loop.time()
            elif loop.time() - idle_since > idle_timeout_s:
                break
    finally:
        await server.close()
        await worker.close()
        for guard in (worker.verifier, worker.admission):
            if guard is not None:
                guard.close()


def main(
    arguments: Sequence[str] | None = None,
    *,
    ends: Ends = Ends.CHILDREN,
    cgroups: CallCgroups | None = None,
    effect: Effect = Effect.OBSERVE,
    verifier: Verifier | None = None,
    admission: Admission | None = None,
) -> None:
    """Run as a worker until it is no longer needed; `ends` says how a call's leftovers are killed.

    `cgroups`, `effect` and `verifier` are those of a worker unit, `admission` that of a place's unit.
    """
    parser = argparse.ArgumentParser(
        prog="lightagent-worker", description="Runs the tool calls of one agent and effect."
    )
    parser.add_argument("--tools", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder for this worker alone")
    parser.add_argument("--listen-fd", default=3, type=int, metavar="FD")
    parser.add_argument("--place", type=Place, choices=MACHINE, help="serve only the actions of this place")
    parser.add_argument("--idle-timeout", default=300.0, type=float, metavar="SECONDS")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s%(whose)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(tell_whose)
    harden(ends)
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
    narrow = options.scratch is not None and effect is not Effect.CHANGE and landlock.abi() > 0
    keep_apart(cgroups.make if cgroups is not None else None, only_writing_to if narrow else None)
    worker = Worker(
        ToolFiles(options.tools),
        scratch=options.scratch,
        ends=ends,
        place=options.place,
        cgroups=cgroups,
        effect=effect,
        verifier=verifier,
        admission=admission,
    )
    if options.place is not None and not forbid_programs():
        _log.warning("no filter of system calls can be made here: only the sandbox keeps programs out")
    asyncio.run(serve(worker, sock, options.idle_timeout))


if __name__ == "__main__":
    main()
