"""The daemon: assembles all parts, and owns start, reload, drain and stop.

Order of a start: configuration, history, workers' sandbox, agents, control socket, ready. Order of a stop, in
`close`: stop accepting, drain or cancel turns, close the connections, end the workers, flush history and
journal. `serving` runs between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time

from asyncvarlink import VarlinkInterface

from lightagentd import __version__, api
from lightagentd.agents.flows.files import FlowFiles
from lightagentd.agents.flows.flows import Flows
from lightagentd.agents.kits.store import recover
from lightagentd.agents.reflection import Reflections
from lightagentd.agents.registry import Registry
from lightagentd.agents.sessions.deletion import Deletion
from lightagentd.agents.triggers.sources import EventSources
from lightagentd.agents.triggers.triggers import Triggers
from lightagentd.bus.address import bus_of, is_system_service
from lightagentd.config import configuration, service_problem
from lightagentd.config.configuration import OwnerLimits
from lightagentd.config.triggers import TriggerFiles
from lightagentd.control.authz import Authority, Caller, Connection, GroupRule
from lightagentd.control.bus_link import BusLink
from lightagentd.control.dbus.plane import DBusPlane
from lightagentd.control.operations.service import Service
from lightagentd.control.outgoing import varlink_cleaner
from lightagentd.control.owners import Owners
from lightagentd.control.polkit import Polkit
from lightagentd.control.seats import Seats
from lightagentd.control.tokens import Tokens
from lightagentd.control.varlink.interfaces import INTERFACES, Errors
from lightagentd.daemon import control_socket
from lightagentd.daemon.recovery import Recovery
from lightagentd.daemon.runtime import Now, Runtime
from lightagentd.daemon.shared_parts import shared_parts
from lightagentd.daemon.upkeep import Upkeep
from lightagentd.doctor import REPORT_COMMANDS
from lightagentd.errors import ConfigError, HistoryDamaged, LightagentError, StorageError
from lightagentd.events.audit.checkpoints import Checkpoints
from lightagentd.events.audit.signing import signing_key
from lightagentd.events.backup import installing
from lightagentd.events.feed import Feed
from lightagentd.events.history import History
from lightagentd.events.journal.sink import JournaldSink
from lightagentd.events.model import Event
from lightagentd.events.subscriptions import Subscriptions
from lightagentd.events.types import daemon as kinds
from lightagentd.events.types.event_type import EventType
from lightagentd.events.types.history import HistoryInstallInterrupted
from lightagentd.host import state_lock
from lightagentd.host.paths import Paths
from lightagentd.host.systemd import extending, notify
from lightagentd.llm.environment import own_environment
from lightagentd.llm.in_force import InForce, in_force
from lightagentd.policy.panic import Panic
from lightagentd.redaction import Redactor
from lightagentd.redaction.credentials import daemon_redactor
from lightagentd.redaction.logs import take_redactor
from lightagentd.varlink.bounds import Bounds
from lightagentd.varlink.server import Peer, VarlinkServer
from lightagentd.worker.pool import Pool

_log = logging.getLogger("lightagentd.daemon")

TRY_AGAIN_S = 1.0
"""How often a daemon that found no room on its disk looks for some."""


class Daemon:
    """One daemon with its folders. `async with Daemon(paths)` starts it and, at the end, stops it."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._model_problems: tuple[str, ...] = ()
        """What is wrong with the models of the environment, as sentences."""
        self._server: VarlinkServer | None = None
        self._lock: int | None = None
        self._interrupted = ""
        """What the start found of an interrupted restore, as a sentence."""
        self._beginning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Daemon:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises LightagentError, after undoing the steps already taken."""
        started_us = time.time_ns() // 1000
        found = self._read_configuration()
        self.now, self._model_problems = Now(config=found.config, started_us=started_us), found.problems
        config = found.config
        logging.getLogger("lightagentd").setLevel(config.daemon.log_level.upper())
        self._make_folders()
        if "models.default" in found.origins:
            _log.info("the default model is %s (%s)", config.models.default, found.origins["models.default"])
        redactor = daemon_redactor(self.paths.state, config)
        for secret in found.secrets:
            redactor.add(secret)
        take_redactor(redactor)
        self._make_parts(redactor)
        self._lock = state_lock.hold(self.paths.state)
        try:
            listeners = control_socket.listen(self.paths, config.daemon.socket_group)
        except BaseException:
            self._unlock()
            raise
        try:
            self.panic.load()
            if JournaldSink.available():
                self.now.journal = JournaldSink(
                    content=config.daemon.journal_content,
                    gap_file=self.paths.state / "journal-gap.json",
                    mark_file=self.paths.state / "journal-sent",
                )
                self.now.journal.start()
            self._interrupted = await asyncio.to_thread(installing.settle, self.paths.state)
            async with extending():
                await self.recovery.open()
            await asyncio.to_thread(recover, self.paths.kits)
            await self.pool.start()
            self._server = VarlinkServer(
                listeners,
                self._interfaces_for,
                product="lightagentd",
                max_connections=min(config.daemon.max_connections, control_socket.room_for_connections()),
                bounds=_bounds(config.limits.owner),
                outgoing=varlink_cleaner(redactor),
            )
            begun = await self._begin()
            await self.bus_link.start()
            self._server.start()
            if begun:
                await self._ready()
            else:
                self._beginning = asyncio.create_task(self._begin_later(), name="begin-later")
        except BaseException as err:
            if isinstance(err, Exception) and not isinstance(err, ConfigError):
                self.recovery.doubt()
            for listener in listeners:
                listener.close()
            await self.close()
            raise

    async def _begin(self) -> bool:
        """All steps of the start that store something. False, and `waits` says why, when the disk takes
        nothing: then the daemon serves what is stored, and no agent runs. Raises LightagentError.
        """
        try:
            await self.recovery.settle()
        except HistoryDamaged:
            raise
        except StorageError as err:
            if not self.registry.waits:
                _log.error("no agent is started: %s", err.message)
            self.registry.waits = err.message
            return False
        if self._interrupted:
            _log.warning("%s", self._interrupted)
            await self._tell(HistoryInstallInterrupted(message=self._interrupted))
        await self._start_checkpoints()
        await self._tell(kinds.DaemonStarting(message=f"lightagentd {__version__}"))
        await self.tokens.start()
        await asyncio.to_thread(self.triggers.files.read)
        await self.registry.start()
        await asyncio.to_thread(self.flows.files.read)
        await self.flows.start()
        await self.triggers.start()
        self.event_sources.sync()
        await self.recovery.report(self.registry)
        await self._report_machine()
        self.registry.waits = ""
        return True

    async def _ready(self) -> None:
        self.upkeep.start()
        self.reflections.start()
        await self._tell(kinds.DaemonReady(message=f"serving on {self.paths.socket}"))
        self.recovery.serve()

    async def _begin_later(self) -> None:
        """Begin as soon as the disk takes writes."""
        begun = False
        try:
            while not begun:
                await asyncio.sleep(TRY_AGAIN_S)
                begun = await self._begin()
            await self._ready()
            _log.info("the disk takes writes again, and the agents are started")
        except LightagentError as err:
            self.registry.waits = f"{err.message} Restart the daemon: systemctl restart lightagentd"
            _log.exception("the start could not be finished")

    def _read_configuration(self) -> InForce:
        """What the files say, and under it the environment. Raises ConfigError."""
        return in_force(*configuration.load(self.paths.config), own_environment())

    def _make_parts(self, redactor: Redactor) -> None:
        """Make the parts that the daemon owns; none of them runs yet."""
        self.subscriptions = Subscriptions(asyncio.get_running_loop())
        self.feed = Feed(self.subscriptions)
        self.owners = Owners(self.now.config.limits.owner.model_dump())
        self.history = History(
            self.paths.history,
            redactor=redactor,
            on_commit=self._committed,
            progress=lambda text: notify(f"STATUS={text}"),
        )
        self.tokens = Tokens(self.history)
        self.recovery = Recovery(self.paths, self.history, self.now)
        self.panic = Panic(self.paths.state)
        self.pool = Pool(self.now.config.worker, self.paths, self.panic)
        self.pool.kept.redactor = redactor
        files = TriggerFiles(self.paths.config)
        parts = shared_parts(self.now.config, self.paths, self.history, self.pool, self.panic, files.granted)
        self.registry = Registry(parts)
        self.flows = Flows(self.registry, FlowFiles(self.paths.config, parts.content))
        self.triggers = Triggers(self.registry, files, self.flows)
        self.reflections = Reflections(self.registry, self.now.config.memory)
        self.event_sources = EventSources(self.triggers, self.history, self.feed)
        self.bus_link = BusLink(bus_of(self.now.config.daemon.bus))
        # On any other bus somebody else could own polkit's name.
        is_system = is_system_service() and self.bus_link.kind == "system"
        self.polkit = Polkit(self.bus_link) if is_system else None
        is_unit = is_system and "STATE_DIRECTORY" in os.environ  # systemd.exec(5)
        group_rule = GroupRule(self.now.config.daemon.socket_group)
        self.authority = Authority(*((self.polkit, group_rule) if self.polkit else (group_rule,)))
        registry = self.registry
        deletion = Deletion(
            self.history, parts.asked, parts.watches, parts.ledger, parts.memories, registry.children_of
        )
        self.upkeep = Upkeep(self.now, self.history, registry, deletion)
        runtime = Runtime(
            now=self.now,
            paths=self.paths,
            history=self.history,
            subscriptions=self.subscriptions,
            feed=self.feed,
            owners=self.owners,
            panic=self.panic,
            pool=self.pool,
            registry=registry,
            triggers=self.triggers,
            flows=self.flows,
            deletion=deletion,
            upkeep=self.upkeep,
            bus_link=self.bus_link,
            polkit=self.polkit,
            authority=self.authority,
            seats=Seats(self.bus_link if is_unit else None),
            tokens=self.tokens,
            problems=self.problems,
            reload=self.reload,
        )
        self.service = Service(runtime)
        self.dbus = DBusPlane(runtime, self.service)
        self.bus_link.on_connect(self.dbus.prepare)

    async def close(self) -> None:
        """Stop all work at once, and release everything. May be called after a failed start."""
        self.now.draining = True
        self.pool.source.leave()
        if self._server is not None:
            self._server.stop_listening()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        await self.upkeep.close()
        await self.reflections.close()
        await self.service.safety.close()
        await self.event_sources.close()
        await self.triggers.close()
        await self.flows.close()
        await self.registry.close()
        self.feed.close()
        if self._server is not None:
            await self._server.close()
            self._server = None
        await self.dbus.close()
        if self.polkit is not None:
            await self.polkit.close()
        await self.bus_link.close()
        await self.pool.close()
        self.tokens.close()
        with contextlib.suppress(LightagentError):
            await self._tell(kinds.DaemonStopped())
        if self.now.checkpoints is not None:
            await self.now.checkpoints.close()
        await self.recovery.close()
        await self.history.close()
        if self.now.journal is not None:
            await asyncio.to_thread(self.now.journal.close)
            self.now.journal = None
        self._unlock()

    async def drain(self) -> None:
        """Take no new work and let running turns end, for as long as the configuration says."""
        self.now.draining = True
        self.pool.source.leave()
        await self.reflections.close()
        await self.event_sources.close()
        await self.triggers.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.now.config.daemon.drain_timeout_s):
                await asyncio.gather(self.registry.drain(), self.flows.drain())

    async def reload(self) -> api.Reloaded:
        """Read configuration, agents, skills and tools again. A broken configuration changes nothing.

        Raises ConfigError; StorageError while no agent is started, because the disk takes no writes.
        """
        if self.registry.waits:
            raise StorageError(self.registry.waits)
        found = self._read_configuration()
        new = found.config
        waits = [
            f"{name} in the configuration"
            for name in ("daemon", "worker", "limits", "memory", "history")
            if getattr(new, name) != getattr(self.now.config, name)
        ]
        # Settings that need a restart keep their old values until then.
        self.now.config = self.now.config.model_copy(update={"models": new.models, "notify": new.notify})
        self._model_problems = found.problems
        for secret in found.secrets:
            self.history.redactor.add(secret)
        self.registry.shared.model_clients.take(new.models)
        self.registry.shared.ledger.take_budgets(new.budgets)
        await self.pool.end_idle_now()
        self.registry.shared.watches.renew()
        await self.registry.read_content()
        await asyncio.to_thread(self.triggers.files.read)
        await asyncio.to_thread(self.flows.files.read)
        self.event_sources.sync()
        self.triggers.outbox.ring()
        applied = ["agents, skills, tools, models and budgets were read again", *await self.registry.sync()]
        refused = [problem] if (problem := self.registry.shared.policy.problem) else []
        await self._tell(kinds.DaemonReloaded(message="; ".join([*applied, *refused])))
        return api.Reloaded(applied=applied, needs_restart=waits, problems=self.problems(), refused=refused)

    def problems(self) -> list[str]:
        """The present problems, as sentences."""
        found = [*self.registry.problems(), *self.triggers.problems(), *self.flows.files.problems()]
        if not self.pool.backend.enforced:
            found.append(
                f"No sandbox enforces effects, so shell commands count as change: {self.pool.backend.reason}"
            )
        found += self.pool.backend.limits
        found += self._model_problems
        if self.bus_link.problem:
            found.append(f"The daemon is not on the bus: {self.bus_link.problem}")
        if self.polkit is not None and self.polkit.problem:
            found.append(self.polkit.problem)
        if self.dbus.problem:
            found.append(self.dbus.problem)
        if self.now.journal is not None and (problem := self.now.journal.problem()):
            found.append(problem)
        if self.now.checkpoints is not None:
            found += self.now.checkpoints.problems()
        found += [*self.recovery.problems(), *service_problem.problems(self.paths.runtime)]
        if self.history.disk_low:
            found.append(
                f"The disk that holds {self.paths.history} is nearly full, so calls that change the system"
                " are refused."
            )
        found += [problem for problem in (self.history.problem, self.upkeep.problem) if problem]
        return found

    def _committed(self, events: list[Event]) -> None:
        """In the history's thread: events are on disk."""
        if self.now.journal is not None:
            for event in events:
                self.now.journal.send(event)
        if self.now.checkpoints is not None:
            self.now.checkpoints.committed(events)
        for event in events:
            if event.owner is not None:
                self.owners.store(event.owner, event.size_bytes)
        self.subscriptions.publish(events)

    def _make_folders(self) -> None:
        for folder in (self.paths.state, self.paths.runtime):
            try:
                folder.mkdir(mode=0o700 if folder == self.paths.state else 0o755, parents=True, exist_ok=True)
            except OSError as err:
                raise StorageError(
                    f"The folder {folder} cannot be made: {err.strerror}.",
                    suggestion="Make it, owned by the daemon's user; in a unit it needs ReadWritePaths=.",
                ) from err

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _interfaces_for(self, peer: Peer) -> list[VarlinkInterface]:
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, groups=peer.groups, process=peer.process)
        connection = Connection(caller, peer.passed)
        return [Errors(), *(interface(self.service, connection) for interface in INTERFACES)]

    async def _start_checkpoints(self) -> None:
        """Sign the history found at the start before anything is added. Raises ConfigError, StorageError."""
        key = await asyncio.to_thread(signing_key, self.paths.audit)
        settings = self.now.config.history
        self.now.checkpoints = Checkpoints(
            self.history,
            key,
            self.paths.audit,
            every_events=settings.checkpoint_events,
            every_s=settings.checkpoint_s,
        )
        await self.now.checkpoints.start()

    async def _report_machine(self) -> None:
        backend = self.pool.backend
        message = backend.reason or f"{backend.name} enforces effects"
        await self._tell(
            kinds.SandboxChosen(message=message, backend=backend.name, enforced=backend.enforced)
        )
        missing = [name for name in REPORT_COMMANDS if shutil.which(name) is None]
        if missing:
            message = f"not installed: {', '.join(missing)}"
            _log.warning("%s; reports say less without them", message)
            await self._tell(kinds.CommandsMissing(message=message, commands=missing))

    async def _tell(self, kind: EventType) -> None:
        await self.history.append(kind.event())


def _bounds(owner: OwnerLimits) -> Bounds:
    return Bounds(connections_per_user=owner.connections, waiting_bytes_per_user=owner.waiting_bytes)
