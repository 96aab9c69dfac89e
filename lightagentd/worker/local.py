"""Workers that the daemon itself starts where systemd does not: one process each, with its own socket.

The pool owns one `LocalWorkers` and ends the workers that it opens; `LocalWorkers` owns the bus proxy.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from lightagentd.config import configuration
from lightagentd.errors import Unavailable, WorkerUnavailable
from lightagentd.host.paths import Paths, content_folders, tool_folders
from lightagentd.text.reason import reason
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker import busdoor, places, sandbox
from lightagentd.worker.local_bus import BusProxy
from lightagentd.worker.proctree import stopped, tree
from lightagentd.worker.source import Child, Whom, greeted


class LocalChild:
    """A worker that the daemon started, and the path of its socket, which is removed with it."""

    service = ""

    def __init__(self, held: sandbox.Child, path: Path, start_timeout_s: float, agent: str) -> None:
        self.agent = agent
        self.backend = held.backend
        self.lock = asyncio.Lock()
        self.outdated = False
        self.held = held
        self._path = path
        self._start_timeout_s = start_timeout_s

    @property
    def pid(self) -> int:
        return self.held.process.pid

    @property
    def runs(self) -> bool:
        return self.held.process.returncode is None

    def answers(self, _connection: VarlinkConnection) -> bool:
        """Whether it gets calls: not when its keeper is gone, even if it still runs."""
        return self.runs

    @property
    def stopped(self) -> bool:
        """Its keeper or a command of its one call counts, too."""
        return any(stopped(pid) for pid in tree(self.pid))

    async def connect(self) -> VarlinkConnection:
        """Connect; the socket listens before the program runs."""
        try:
            async with asyncio.timeout(self._start_timeout_s):
                return await greeted(self._path)
        except (OSError, TimeoutError, Unavailable) as err:
            raise WorkerUnavailable(
                f"A worker ended with status {self.held.process.returncode} before it answered: {err}",
                suggestion="The daemon's log has what the worker said.",
            ) from err

    async def discard(self, *, at_once: bool) -> None:
        await (self.kill() if at_once else self.end())

    async def end(self) -> None:
        await self.held.end()
        self._path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """As `end`, but without the time for anything to end by itself."""
        await self.held.kill()
        self._path.unlink(missing_ok=True)

    end_hung = kill


class LocalWorkers:
    """Starts workers. Start with `start()`, end with `close()`."""

    shares = False
    verifies = False

    def __init__(
        self, settings: configuration.Worker, paths: Paths, kits: Callable[[], list[str]] = list
    ) -> None:
        """`kits` gives the folders of the agents' kits."""
        self._kits = kits
        self.backend = sandbox.Backend(name="none", enforced=False, reason="The pool is not started.")
        self.bus = BusProxy(paths.runtime / "bus")
        self._settings = settings
        self._paths = paths
        self._numbers = itertools.count(1)
        self._children: set[LocalChild] = set()
        """Every worker that was started, also those that serve nobody yet or no more."""

    async def start(self, problem: str) -> None:
        """Find out which sandbox works here. `problem` says why the expected units are missing, if so."""
        found = await sandbox.choose(self._settings.sandbox, self._paths)
        limits = [*found.limits, *places.limits(found), *([problem] if problem else [])]
        self.backend = found
        if found.name == "bwrap":
            await self.bus.start(sandbox.switch_user_argv(), readable=self._settings.bus_names)
            limits += [self.bus.problem] if self.bus.problem else []
            if self.bus.path is not None and not await sandbox.has_bus_door():
                limits.append(busdoor.IMPOSSIBLE)
        self.backend = replace(found, limits=tuple(limits))

    def has(self, agent: str, where: Effect | Place) -> bool:
        if where is Place.INSPECT:
            return places.has_inspect(self.backend)
        return where is not Effect.CHANGE or agent in self._settings.change_agents

    def how_to_give_change(self, _agent: str) -> str:
        return "An administrator adds it to change_agents in [worker] of the configuration."

    def holds_change(self, _agent: str) -> tuple[str, str]:
        return "the daemon's own user", ""

    async def open(self, whom: Whom) -> LocalChild:
        """Start a worker; it listens, but may not answer yet. Raises WorkerUnavailable."""
        path = self._paths.workers / f"{next(self._numbers)}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        skills = content_folders("skills", self._paths)
        where = whom.where
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(8)
            wanted = sandbox.Wanted(
                where=where,
                backend=self.backend,
                paths=self._paths,
                listen_fd=listener.fileno(),
                tools=tool_folders(self._paths),
                extra=[*skills, *self._kit_folders()],
                bus=self.bus.path,
                env=self._environment(whom.agent, where, skills),
            )
            held = await places.spawn(wanted)
        except BaseException as err:
            path.unlink(missing_ok=True)
            if not isinstance(err, OSError):
                raise
            raise WorkerUnavailable(
                f"A worker for {where} cannot be started: {reason(err, at=True)}.",
                suggestion="lactl status says more.",
            ) from err
        finally:
            listener.close()
        child = LocalChild(held, path, self._settings.start_timeout_s, whom.agent)
        self._children = {one for one in self._children if one.runs} | {child}
        return child

    def _kit_folders(self) -> list[Path]:
        """Those of the kits that were added, and of the others."""
        found = [self._paths.kits, *map(Path, self._kits())]
        return [folder for folder in found if folder.is_dir()]

    def _environment(self, agent: str, where: Effect | Place, skills: Sequence[Path]) -> dict[str, str]:
        """The environment of tools, in addition to `clean_environment`."""
        undo = {"LIGHTAGENT_UNDO": str(self._paths.undo(agent))} if where is Effect.CHANGE else {}
        env = undo | {
            "LIGHTAGENT_SKILLS": ":".join(str(folder) for folder in skills),
            "LIGHTAGENT_WEB_ALLOW": ",".join(self._settings.web_allow),
            "LIGHTAGENT_LOCATION_URL": self._settings.location_url,
            "LIGHTAGENT_PLACES_URL": self._settings.places_url,
            "LIGHTAGENT_WEATHER_URL": self._settings.weather_url,
            "LIGHTAGENT_OWN_FOLDERS": f"{self._paths.state}:{self._paths.runtime}",
        }
        # Where an administrator keeps their own certificates (ssl(3ssl)).
        return env | {
            name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ
        }

    def holds(self, _whom: Whom) -> bool:
        return False

    def hand_over(self, child: Child, whom: Whom) -> None:
        child.agent = whom.agent

    async def end_agent(self, agent: str) -> None:
        """Nothing to do: the pool has ended its workers."""

    async def end_unconnected(self, connected: Callable[[], Collection[Child]]) -> None:
        """Nothing to do: a worker ends with its last connection."""

    async def kill_all(self, _connected: Collection[Child]) -> tuple[int, list[str]]:
        killed = [child for child in self._children if child.runs]
        for child in killed:
            child.held.tell_at_once()
        await asyncio.gather(*(child.kill() for child in killed))
        return len(killed), []

    def leave(self) -> None:
        """The workers stay until the pool ends them."""

    async def close(self) -> None:
        await self.bus.close()


def clear_folder(folder: Path) -> None:
    """Make the folder of the workers' sockets, and remove leftovers of an earlier daemon."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()  # planted: what lies behind a link is not ours to clear
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in folder.iterdir():
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink()
