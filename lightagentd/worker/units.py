"""The daemon's side of the worker units, for workers that systemd starts and confines.

A worker has a socket unit, such as `lightagent-observe@07.socket`; a connection makes systemd start the
service of that name. In observe and reach there is one for each agent and owner. Its number says which user
it runs as, and nobody else is that user meanwhile. The daemon takes a free number and starts the socket over
D-Bus at the first call (a polkit rule allows it); it stops the socket, and with it the service, when the
worker is idle. For change there is one for each agent, such as `lightagent-change@ops.socket`, which an
administrator enables. The daemon's own unit wants the units of the places that all agents share. The pool
needs only the socket's path from `socket_of`: `UnitChild.connect` starts a missing unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from lightagentd.bus import connection as bus
from lightagentd.errors import LightagentError, Unavailable, WorkerUnavailable
from lightagentd.text.reason import reason
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker import change_profiles, jobs, landlock
from lightagentd.worker.first_units import USER
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.proctree import stopped
from lightagentd.worker.sandbox import Backend
from lightagentd.worker.source import Child, Whom, greeted

_log = logging.getLogger(__name__)

SOCKETS = Path("/run/lightagent-workers")
"""Root's, so that nobody can put a symbolic link where systemd sets the owner of a socket."""
DESCRIBING = {Effect.OBSERVE: "00", Effect.REACH: "01"}
"""The workers that serve no agent: `first_units` has started them, and they describe the tools."""
NUMBERS = tuple(f"{number:02}" for number in range(2, 32))
"""Those of all other workers of observe and reach: the users of sysusers.d/lightagentd.conf."""
STARTED = (Effect.OBSERVE, Effect.REACH)
"""The effects whose units the daemon may start. It may stop and kill the workers of all three."""
LEAVING_S = 3.0
"""How long to wait for a worker while the daemon is being stopped: systemd starts no other one then."""

SIGNALS = (
    "A shell command can end the worker and the commands of other calls with the same effect, because the"
    " kernel cannot scope signals (Landlock ABI 6, Linux 6.12)."
)
NO_PING = (
    "ping does not work in reach: its users are not in net.ipv4.ping_group_range, which"
    " sysctl.d/50-lightagentd.conf sets. Load it: systemctl restart systemd-sysctl"
)


def name_of(where: Effect | Place, instance: str, kind: str) -> str:
    """The unit of a worker; `kind` is `socket` or `service`. The watcher runs in observe."""
    if where in MACHINE:
        return f"lightagent-{where}.{kind}"
    effect = where if isinstance(where, Effect) else Effect.OBSERVE
    return f"lightagent-{effect}@{instance}.{kind}"


def socket_of(where: Effect | Place, instance: str = "") -> Path:
    """The socket of that unit: `observe@07.sock`, `change@ops.sock`, `keys.sock`."""
    return SOCKETS / name_of(where, instance, "sock").removeprefix("lightagent-")


def there(path: Path) -> bool:
    """Whether a unit listens at this path and this process may connect."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode) and os.access(path, os.W_OK)
    except OSError:
        return False


class UnitChild:
    """The worker of one unit, running or not, since its socket starts it.

    Several lanes may share it.
    """

    def __init__(self, units: UnitWorkers, whom: Whom, backend: Backend) -> None:
        self._units = units
        self._where = whom.where
        self.agent = whom.agent
        self.instance = "" if self.startable else whom.agent
        """A number in observe and reach, taken when it starts; the agent for change."""
        self.backend = backend
        self.lock = asyncio.Lock()
        self.outdated = False
        self._pid = 0

    @property
    def service(self) -> str:
        return name_of(self._where, self.instance, "service")

    @property
    def socket(self) -> str:
        return name_of(self._where, self.instance, "socket")

    @property
    def path(self) -> Path:
        return socket_of(self._where, self.instance)

    @property
    def pid(self) -> int:
        """The worker's process when it was last connected to."""
        return self._pid

    @property
    def stopped(self) -> bool:
        return stopped(self._pid)

    @property
    def startable(self) -> bool:
        """Whether the daemon may start it."""
        return self._where in STARTED or self._where is Place.WATCHER

    @property
    def stoppable(self) -> bool:
        """Whether the daemon may stop and kill it: agents' workers, but not the machine's places."""
        return self.startable or self._where is Effect.CHANGE

    def answers(self, connection: VarlinkConnection) -> bool:
        return not connection.closed

    async def connect(self) -> VarlinkConnection:
        """Start its socket if necessary, and connect."""
        timeout_s = self._units.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if not self.instance and self.startable:
                    await self._take_number()
                if not there(self.path):
                    await self._start_socket()
                try:
                    connection = await greeted(self.path)
                except (OSError, Unavailable):
                    # It left at this moment because it was idle, or its socket has failed: once more.
                    await self._start_socket()
                    connection = await greeted(self.path)
        except TimeoutError as err:
            raise self._unavailable(f"it did not answer within {timeout_s:g} s") from err
        except (OSError, Unavailable) as err:
            raise self._unavailable(reason(err)) from err
        if not self._pid or not Path("/proc", str(self._pid)).exists():
            self._pid = await jobs.main_pid(self.service)
        return connection

    async def _take_number(self) -> None:
        """Take a free number, and end a worker that still has it, such as one of an earlier daemon."""
        if not self.agent and isinstance(self._where, Effect):
            self.instance = DESCRIBING[self._where]
            return
        self.instance = self._units.free_number()
        try:
            for effect in STARTED:
                if there(socket_of(effect, self.instance)):
                    await jobs.job("StopUnit", name_of(effect, self.instance, "socket"))
        except BaseException:
            self.instance = ""
            raise

    async def _start_socket(self) -> None:
        if self.startable:
            await jobs.job("StartUnit", self.socket)

    def _unavailable(self, reason: str) -> WorkerUnavailable:
        reason = reason.rstrip(".")
        if self._where is Effect.CHANGE and not there(self.path):
            return WorkerUnavailable(
                f"The worker for change cannot be reached: {reason}.",
                suggestion=f"An administrator enables it: systemctl enable --now {self.socket}",
            )
        return WorkerUnavailable(
            f"{self.service} cannot be reached: {reason}.",
            suggestion=f"See why: systemctl status {self.service}",
        )

    async def discard(self, *, at_once: bool) -> None:
        if at_once or not self.startable:
            return  # `kill_all` has ended it, or the unit stays
        async with self.lock:
            await self.end()

    async def end(self) -> None:
        """Stop the worker; the next connection starts it again.

        At the daemon's own stop, systemd stops its workers (PartOf=), and would not do it earlier.
        """
        if not self._units.leaving:
            await self._stop()

    async def _stop(self) -> None:
        """Stop the worker; one that only an administrator may stop is asked to exit."""
        self.outdated = False
        try:
            if self.startable and self.agent:
                if self.instance:
                    await jobs.job("StopUnit", self.socket)  # and the service, which requires it
                self.instance, self._pid = "", 0
            elif self.stoppable:
                await jobs.job("StopUnit", self.service)
            elif there(self.path):
                await self._ask_to_leave()
        except LightagentError as err:
            _log.warning("%s cannot be stopped: %s", self.service, err)

    async def end_hung(self) -> None:
        """Kill the worker, even if it hangs or a command has stopped it (SIGSTOP)."""
        if not self.stoppable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jobs.KILL_TIMEOUT_S):
                    await self._stop()
            return
        self.outdated = False
        try:
            await jobs.kill(self.service)
        except LightagentError as err:
            _log.warning("%s cannot be killed: %s", self.service, err)
        if self.startable:
            async with self.lock:
                await self._stop()

    async def _ask_to_leave(self) -> None:
        try:
            async with asyncio.timeout(jobs.JOB_TIMEOUT_S):
                connection = await VarlinkConnection.connect(self.path)
                try:
                    await connection.call("org.lightagent1.Worker.Retire")
                except Unavailable:
                    pass  # it left before its answer was out
                finally:
                    connection.close()
        except OSError as err:
            raise WorkerUnavailable(f"It does not answer: {reason(err)}.") from err


class UnitWorkers:
    """The pool's view of worker units. Connects to the bus only for the length of a request."""

    shares = True
    verifies = True

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._children: dict[Whom, UnitChild] = {}
        self.backend = _backend()
        self.leaving = False
        """The daemon is being stopped, and its units after it."""

    async def problem(self) -> str:
        """Why these units are unusable or do not enforce effects, found by trying; empty if they are good.

        The daemon is the system's own (`expected`) when this is asked.
        """
        if not landlock.abi():
            return "The kernel has no Landlock (Linux 5.13)."
        try:
            missing = await self._not_installed()
            if missing:
                return f"systemd has no unit {', '.join(missing)}."
            for effect, possible in zip(
                STARTED, await asyncio.gather(*(self._prove(effect) for effect in STARTED)), strict=True
            ):
                if possible:
                    return f"A command of {effect} can {', '.join(possible)}."
            # That of observe is asked next what tools there are.
            await self.child(Whom("", Effect.REACH)).end()
        except LightagentError as err:
            return err.message
        return ""

    def child(self, whom: Whom) -> UnitChild:
        """The worker that serves them; the watcher is that of observe."""
        return self._children.setdefault(whom.unit, UnitChild(self, whom.unit, self.backend))

    def holds(self, whom: Whom) -> bool:
        return whom.unit in self._children and self._children[whom.unit].instance != ""

    def hand_over(self, child: Child, whom: Whom) -> None:
        assert isinstance(child, UnitChild)
        self._children = {key: one for key, one in self._children.items() if one is not child}
        child.agent = whom.agent
        self._children[whom.unit] = child

    def free_number(self) -> str:
        """A number that no worker has. Raises WorkerUnavailable."""
        taken = {child.instance for child in self._children.values()}
        found = next((number for number in NUMBERS if number not in taken), "")
        if not found:
            raise WorkerUnavailable(f"All {len(NUMBERS)} users for workers are taken.")
        return found

    async def open(self, whom: Whom) -> UnitChild:
        return self.child(whom)

    def has(self, agent: str, where: Effect | Place) -> bool:
        return there(socket_of(where, agent))

    def how_to_give_change(self, agent: str) -> str:
        enable = f"systemctl enable --now {name_of(Effect.CHANGE, agent, 'socket')}"
        return f"An administrator can give it one: {enable}"

    def holds_change(self, agent: str) -> tuple[str, str]:
        unit = name_of(Effect.CHANGE, agent, "service")
        try:
            profile = change_profiles.chosen(agent)
        except OSError:
            profile = ""
        narrowed = f"Its profile is {profile} (lactl change). " if profile else ""
        return "systemd", f"{narrowed}It may do what {unit} leaves it: systemd-analyze security {unit}"

    @property
    def connect_timeout_s(self) -> float:
        return min(self._start_timeout_s, LEAVING_S) if self.leaving else self._start_timeout_s

    def leave(self) -> None:
        self.leaving = True

    async def close(self) -> None:
        """Nothing to do: nothing is held open."""

    async def end_agent(self, agent: str) -> None:
        """Stop an agent's sockets and services of observe and reach."""
        own = {whom: child for whom, child in self._children.items() if whom.agent == agent}
        for whom, child in own.items():
            if child.startable:
                async with child.lock:
                    await child.end()
                self._children.pop(whom, None)

    async def end_unconnected(self, connected: Callable[[], Collection[Child]]) -> None:
        """End them even at a start: systemd restarts running workers before it restarts the daemon."""
        try:
            names = await self._running()
        except LightagentError as err:
            _log.warning("systemd cannot be asked which workers run: %s", err)
            return
        await asyncio.gather(*(self._end_unconnected(name, connected) for name in names))

    async def _end_unconnected(self, service: str, connected: Callable[[], Collection[Child]]) -> None:
        child = next((one for one in self._children.values() if one.service == service), None)
        async with child.lock if child is not None else contextlib.nullcontext():
            if service in {one.service for one in connected() if isinstance(one, UnitChild)}:
                return
            if child is not None:
                await child.end()
                return
            try:
                await jobs.job("StopUnit", service)
            except LightagentError as err:
                _log.warning("%s cannot be stopped: %s", service, err)

    async def _running(self) -> list[str]:
        """The services of agents' workers that run or are starting. Raises the errors of the bus."""
        patterns = [f"lightagent-{effect}@*.service" for effect in Effect]
        async with bus.connect("system") as system:
            [found] = await system.call(
                *jobs.SYSTEMD, "ListUnitsByPatterns", "asas", [jobs.RUNNING, patterns]
            )
        return [str(unit[0]) for unit in found]

    async def kill_all(self, connected: Collection[Child]) -> tuple[int, list[str]]:
        """Kill all workers, even those started by others; the machine's places are asked to exit."""
        places = [one for one in self._children.values() if one in connected and not one.stoppable]
        asking = asyncio.gather(*(child.end_hung() for child in places))
        killed = await self._kill_running()
        await asking
        for child in self._children.values():
            if child.startable:
                child.instance = ""
        return killed

    async def _kill_running(self) -> tuple[int, list[str]]:
        try:
            names = await self._running()
        except LightagentError as err:
            return 0, [f"systemd cannot be asked which workers run: {err.message}"]
        problems = await asyncio.gather(*(self._killed(name) for name in names))
        return len(names), [problem for problem in problems if problem]

    async def _killed(self, service: str) -> str:
        try:
            await jobs.kill(service)
        except LightagentError as err:
            return f"{service} may still run: {err.message}"
        return ""

    async def _not_installed(self) -> Sequence[str]:
        found = []
        async with bus.connect("system") as system:
            kinds = ("socket", "service")
            wanted = [name_of(effect, DESCRIBING[effect], kind) for effect in STARTED for kind in kinds]
            for name in wanted:
                [path] = await system.call(*jobs.SYSTEMD, "LoadUnit", "s", [name])
                if await jobs.unit_property(system, path, jobs.UNIT, "LoadState") != "loaded":
                    found.append(name)
        return found

    async def _prove(self, effect: Effect) -> Sequence[str]:
        """The forbidden things that a command of that effect can do, tried in the agentless instance."""
        child = self.child(Whom("", effect))
        async with child.lock:
            connection = await child.connect()
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    reply = await connection.call("org.lightagent1.Worker.Prove")
            except TimeoutError as err:
                raise WorkerUnavailable(f"{child.service} did not answer in time.") from err
            finally:
                connection.close()
        possible: list[str] = reply["possible"]
        return possible


def _backend() -> Backend:
    level = landlock.abi()
    limits = [] if level >= landlock.SCOPED_ABI else [SIGNALS]
    limits += [] if _can_ping() else [NO_PING]
    return Backend(name="systemd", enforced=True, ends=Ends.CGROUP, landlock_abi=level, limits=tuple(limits))


def _can_ping() -> bool:
    """Whether the user of the reach workers may send echo requests without privileges (icmp(7))."""
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ping_group_range").read_text().split())
        return first <= grp.getgrnam(f"{USER}-{Effect.REACH}").gr_gid <= last
    except (OSError, KeyError, ValueError):
        return False
