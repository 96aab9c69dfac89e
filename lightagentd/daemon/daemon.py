"""The daemon: puts everything together, and owns start, reload, drain and stop.

Order of a start: configuration, history, workers' sandbox, agents, control socket, ready. Order of a stop,
in `close`: stop accepting, drain or cancel turns, close the connections, end the workers, flush history
and journal. `serve` is what runs between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import grp
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from asyncvarlink import VarlinkInterface

from lightagentd import __version__, api
from lightagentd.agents.registry import Registry
from lightagentd.config import configuration
from lightagentd.control.authz import Authority, Caller, GroupRule
from lightagentd.control.bus_link import BusLink, bus_of, is_system_service
from lightagentd.control.dbus.plane import DBusPlane
from lightagentd.control.operations.service import Service
from lightagentd.control.outgoing import varlink_cleaner
from lightagentd.control.polkit import Polkit
from lightagentd.control.varlink.interfaces import INTERFACES, Errors
from lightagentd.daemon.recovery import Recovery
from lightagentd.daemon.shared_parts import shared_parts
from lightagentd.daemon.upkeep import Upkeep
from lightagentd.doctor import REPORT_COMMANDS
from lightagentd.errors import Conflict, LightagentError, StorageError
from lightagentd.events.audit.checkpoints import Checkpoints
from lightagentd.events.audit.signing import signing_key
from lightagentd.events.backup import installing
from lightagentd.events.feed import Feed
from lightagentd.events.history import History
from lightagentd.events.journal import log as journal_log
from lightagentd.events.journal.sink import JournaldSink
from lightagentd.events.model import Event
from lightagentd.events.subscriptions import Subscriptions
from lightagentd.events.types import daemon as kinds
from lightagentd.events.types.event_type import Kind
from lightagentd.events.types.history import HistoryInstallInterrupted
from lightagentd.host import state_lock
from lightagentd.host.paths import Paths, default_paths
from lightagentd.host.systemd import (
    extending,
    feeding_watchdog,
    keep_status,
    listening_socket,
    notify,
    notify_stopping,
    status_line,
)
from lightagentd.llm.environment import own_environment
from lightagentd.llm.in_force import InForce, in_force
from lightagentd.policy.panic import Panic
from lightagentd.redaction import Redactor
from lightagentd.redaction.credentials import daemon_redactor
from lightagentd.redaction.logs import take_redactor
from lightagentd.varlink.server import Peer, VarlinkServer
from lightagentd.worker.pool import Pool

_log = logging.getLogger("lightagentd.daemon")


_OWN_DESCRIPTORS = 256
"""Descriptors that are kept free for workers, models, files and the history."""


class Daemon:
    """One daemon with its folders. `async with Daemon(paths)` starts it and, at the end, stops it."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.draining = False
        self.started_us = 0
        self.journal: JournaldSink | None = None
        self.checkpoints: Checkpoints | None = None
        self._model_problems: tuple[str, ...] = ()
        """What is wrong with the models of the environment, as sentences."""
        self._server: VarlinkServer | None = None
        self._lock: int | None = None

    async def __aenter__(self) -> Daemon:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises LightagentError, after undoing what was begun."""
        self.started_us = time.time_ns() // 1000
        found = self._read_configuration()
        self.config, self._model_problems = found.config, found.problems
        logging.getLogger("lightagentd").setLevel(self.config.daemon.log_level.upper())
        self._make_folders()
        if "models.default" in found.origins:
            _log.info(
                "the default model is %s (%s)", self.config.models.default, found.origins["models.default"]
            )
        redactor = daemon_redactor(self.paths.state, self.config)
        for secret in found.secrets:
            redactor.add(secret)
        take_redactor(redactor)
        self._make_parts(redactor)
        self._lock = state_lock.hold(self.paths.state)
        try:
            listener = self._listener()
        except BaseException:
            self._unlock()
            raise
        try:
            self.panic.load()
            if JournaldSink.available():
                self.journal = JournaldSink(
                    content=self.config.daemon.journal_content,
                    gap_file=self.paths.state / "journal-gap.json",
                    mark_file=self.paths.state / "journal-sent",
                )
                self.journal.start()
            interrupted = await asyncio.to_thread(installing.settle, self.paths.state)
            async with extending():
                await self.recovery.open()
            if interrupted:
                _log.warning("%s", interrupted)
                await self._tell(HistoryInstallInterrupted(message=interrupted))
            await self.pool.start()
            await self._start_checkpoints()
            await self._tell(kinds.DaemonStarting(message=f"lightagentd {__version__}"))
            await self.registry.start()
            await self.recovery.report(self.registry)
            await self._report_machine()
            self._server = VarlinkServer(
                listener,
                self._interfaces_for,
                product="lightagentd",
                max_connections=min(self.config.daemon.max_connections, _room_for_connections()),
                outgoing=varlink_cleaner(redactor),
            )
            await self.bus_link.start()
            self._server.start()
            self.upkeep.start()
            await self._tell(kinds.DaemonReady(message=f"serving on {self.paths.socket}"))
            self.recovery.serve()
        except BaseException:
            listener.close()
            await self.close()
            raise

    def _read_configuration(self) -> InForce:
        """What the files say, and under it the environment. Raises ConfigError."""
        return in_force(*configuration.load(self.paths.config), own_environment())

    def _make_parts(self, redactor: Redactor) -> None:
        """What the daemon owns; nothing of it runs yet."""
        self.subscriptions = Subscriptions(asyncio.get_running_loop())
        self.feed = Feed(self.subscriptions)
        self.history = History(
            self.paths.history,
            redactor=redactor,
            on_commit=self._committed,
            progress=lambda text: notify(f"STATUS={text}"),
        )
        self.recovery = Recovery(self.paths, self.history)
        self.panic = Panic(self.paths.state)
        self.pool = Pool(self.config.worker, self.paths, self.panic)
        self.pool.kept.redactor = redactor
        parts = shared_parts(self.config, self.paths, self.history, self.pool, self.panic)
        self.registry = Registry(parts)
        self.bus_link = BusLink(bus_of(self.config.daemon.bus))
        # On any other bus somebody else could own polkit's name.
        asks_polkit = is_system_service() and self.bus_link.kind == "system"
        self.polkit = Polkit(self.bus_link) if asks_polkit else None
        group_rule = GroupRule(self.config.daemon.socket_group)
        self.authority = Authority(*((self.polkit, group_rule) if self.polkit else (group_rule,)))
        self.upkeep = Upkeep(self)
        self.service = Service(self)
        self.dbus = DBusPlane(self)
        self.bus_link.on_connect(self.dbus.prepare)

    async def close(self) -> None:
        """Stop at once what runs, and let go of everything. May be called after a failed start."""
        self.draining = True
        self.pool.source.leave()
        if self._server is not None:
            self._server.stop_listening()
        await self.upkeep.close()
        await self.service.close_safety()
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
        with contextlib.suppress(LightagentError):
            await self._tell(kinds.DaemonStopped())
        if self.checkpoints is not None:
            await self.checkpoints.close()
        await self.recovery.close()
        await self.history.close()
        if self.journal is not None:
            await asyncio.to_thread(self.journal.close)
            self.journal = None
        self._unlock()

    async def drain(self) -> None:
        """Take no new work and let running turns end, for as long as the configuration says."""
        self.draining = True
        self.pool.source.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.daemon.drain_timeout_s):
                await self.registry.drain()

    async def reload(self) -> api.Reloaded:
        """Read configuration, agents, skills and tools again. A broken configuration changes nothing.

        Raises ConfigError.
        """
        found = self._read_configuration()
        new = found.config
        waits = [
            f"{name} in the configuration"
            for name in ("daemon", "worker", "limits", "memory", "history")
            if getattr(new, name) != getattr(self.config, name)
        ]
        # What waits for a restart is in force until then.
        self.config = self.config.model_copy(update={"models": new.models})
        self._model_problems = found.problems
        for secret in found.secrets:
            self.history.redactor.add(secret)
        self.registry.model_clients.take(new.models)
        self.registry.ledger.take_budgets(new.budgets)
        await self.pool.end_idle_now()
        self.registry.watches.renew()
        await self.registry.read_content()
        applied = ["agents, skills, tools, models and budgets were read again", *await self.registry.sync()]
        await self._tell(kinds.DaemonReloaded(message="; ".join(applied)))
        return api.Reloaded(applied=applied, needs_restart=waits, problems=self.problems())

    def problems(self) -> list[str]:
        """What is wrong, as sentences."""
        found = self.registry.problems()
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
        if self.journal is not None and (problem := self.journal.problem()):
            found.append(problem)
        if self.checkpoints is not None and (problem := self.checkpoints.problem()):
            found.append(problem)
        found += self.recovery.problems()
        if self.history.disk_low:
            found.append(
                f"The disk that holds {self.paths.history} is nearly full, so calls that change the system"
                " are refused."
            )
        found += [problem for problem in (self.history.problem, self.upkeep.problem) if problem]
        return found

    def _committed(self, events: list[Event]) -> None:
        """In the history's thread: events are on disk."""
        if self.journal is not None:
            for event in events:
                self.journal.send(event)
        if self.checkpoints is not None:
            self.checkpoints.committed(events)
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

    def _listener(self) -> socket.socket:
        """The control socket: systemd's, or our own. Raises Conflict when another daemon has it."""
        passed = listening_socket()
        if passed is not None:
            return passed
        path = self.paths.socket
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            _clear_way(path)
        else:
            raise Conflict(
                f"Another daemon serves {path} already.", suggestion="Stop it first, or use other folders."
            )
        finally:
            probe.close()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
            listener.listen()  # who connects while the daemon starts waits, and a second daemon sees it
        finally:
            os.umask(old)
        with contextlib.suppress(KeyError, PermissionError):
            group = grp.getgrnam(self.config.daemon.socket_group).gr_gid
            if path.stat().st_gid != group:  # the unit's filter has no chown(2), and it need not
                os.chown(path, -1, group)
            path.chmod(0o660)
        return listener

    def _interfaces_for(self, peer: Peer) -> list[VarlinkInterface]:
        caller = Caller(uid=peer.uid, gid=peer.gid, pid=peer.pid, groups=peer.groups, process=peer.process)
        return [Errors(), *(interface(self.service, caller) for interface in INTERFACES)]

    async def _start_checkpoints(self) -> None:
        """Sign what the start found, before anything is added to it. Raises ConfigError, StorageError."""
        key = await asyncio.to_thread(signing_key, self.paths.audit)
        settings = self.config.history
        self.checkpoints = Checkpoints(
            self.history,
            key,
            self.paths.audit,
            every_events=settings.checkpoint_events,
            every_s=settings.checkpoint_s,
        )
        await self.checkpoints.start()

    async def _report_machine(self) -> None:
        backend = self.pool.backend
        message = backend.reason or f"{backend.name} enforces effects"
        await self._tell(
            kinds.SandboxChosen(message=message, backend=backend.name, enforced=backend.enforced)
        )
        missing = [name for name in REPORT_COMMANDS if shutil.which(name) is None]
        if missing:
            names = ", ".join(missing)
            await self._tell(kinds.CommandsMissing(message=f"not installed: {names}", commands=missing))

    async def _tell(self, kind: Kind) -> None:
        await self.history.append(kind.event())


def _clear_way(path: Path) -> None:
    """Remove what lies where a socket is to be, if that loses nothing. Raises Conflict."""
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise Conflict(
            f"{path}, where the control socket is to be, cannot be removed: {err.strerror}.",
            suggestion=f"Look at it, and then: rm -r {path}",
        ) from err


def _room_for_connections() -> int:
    """How many connections the limit on open files leaves room for, beside what the daemon itself opens."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS)


async def serve(paths: Paths) -> None:
    """Run a daemon until SIGTERM or SIGINT; SIGHUP reloads, SIGUSR1 is an emergency stop."""
    loop = asyncio.get_running_loop()
    stop, hangup, alarm = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, alarm.set)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with feeding_watchdog(), Daemon(paths) as daemon:

        def line() -> str:
            return status_line(len(daemon.registry.agents), daemon.problems())

        notify("READY=1", f"STATUS={line()}")
        _log.info("ready: %s", paths.socket)
        async with asyncio.TaskGroup() as tasks:
            panicker = tasks.create_task(_panic_on(alarm, daemon))
            reloader = tasks.create_task(_reload_on(hangup, daemon))
            reporter = tasks.create_task(keep_status(line))
            await stop.wait()
            reloader.cancel()
            reporter.cancel()
            notify_stopping(daemon.config.daemon.drain_timeout_s)
            await daemon.drain()
            panicker.cancel()


async def _panic_on(alarm: asyncio.Event, daemon: Daemon) -> None:
    """Stop everything when SIGUSR1 comes: the way in when the control socket answers nobody."""
    while True:
        await alarm.wait()
        alarm.clear()
        await daemon.service.stop_everything(None, "The daemon got SIGUSR1.")


async def _reload_on(hangup: asyncio.Event, daemon: Daemon) -> None:
    while True:
        await hangup.wait()
        hangup.clear()
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            done = await daemon.service.reload_content()
            _log.info("reloaded: %s", "; ".join([*done.applied, *done.needs_restart]))
        except LightagentError as err:
            _log.error("the reload changed nothing: %s", err.message)
        notify("READY=1")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagentd",
        description="The agent daemon for Linux.",
        epilog="It runs in the foreground, as systemd wants it. Talk to it with lactl. SIGHUP has it read "
        "its files again, SIGUSR1 is the emergency stop of 'lactl panic'.",
    )
    parser.add_argument("--version", action="version", version=f"lightagentd {__version__}")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="instead of /var/lib/lightagentd")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="instead of /run/lightagentd")
    options = parser.parse_args()
    defaults = default_paths()
    paths = Paths(
        config=(options.config_dir or defaults.config).absolute(),
        state=(options.state_dir or defaults.state).absolute(),
        runtime=(options.runtime_dir or defaults.runtime).absolute(),
    )
    logging.basicConfig(level=logging.INFO, handlers=[journal_log.handler()])
    # Where the loop hung, when the watchdog of the service manager sends SIGABRT. The loop's thread alone: to
    # walk the frames of threads that run meanwhile can end in SIGSEGV.
    faulthandler.enable(all_threads=False)
    try:
        asyncio.run(serve(paths))
    except (LightagentError, OSError) as err:
        suggestion = getattr(err, "suggestion", "")
        said = f"{err}{' ' + suggestion if suggestion else ''}"
        notify(f"STATUS=ended: {' '.join(said.split())}")
        sys.stderr.write(f"lightagentd: {said}\n")
        sys.exit(getattr(err, "exit_status", 1))
