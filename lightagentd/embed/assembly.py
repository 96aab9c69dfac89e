"""Assembles the agents of a program: the daemon's shared parts, without its sockets, bus and journal.

`Assembly` belongs to one `Agents`; it starts and stops in the order of the daemon.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from lightagentd import __version__
from lightagentd.agents.registry import Registry
from lightagentd.agents.turn import Turn
from lightagentd.config import configuration
from lightagentd.daemon.recovery import Recovery
from lightagentd.daemon.runtime import Now
from lightagentd.daemon.shared_parts import shared_parts
from lightagentd.errors import LightagentError, StorageError
from lightagentd.events.history import History
from lightagentd.events.types import daemon as kinds
from lightagentd.host import state_lock
from lightagentd.host.paths import Paths
from lightagentd.llm.environment import own_environment
from lightagentd.llm.in_force import in_force
from lightagentd.policy.panic import Panic
from lightagentd.redaction.credentials import daemon_redactor
from lightagentd.redaction.logs import take_redactor
from lightagentd.text.reason import reason
from lightagentd.worker.pool import Pool

_SOCKET_ROOM = 70
"""How long the path of the runtime folder may be, so that a socket below it has a name (unix(7))."""
ALWAYS_WEAKER = (
    "The program holds the agents' keys and their history, and can do all that they can: nothing stands"
    " between it and them, as a process and a user of its own do for the daemon.",
    "Nobody can be asked to allow a call: what policy would ask about is refused.",
    "The history is a chain of hashes that nobody signs, and nothing of it is in the journal.",
)


class Assembly:
    """Start with `start()`, end with `close()`."""

    def __init__(self, state: Path, config: Path | None) -> None:
        self._state, self._config = state.absolute(), config
        self._temporary: Path | None = None
        self._lock: int | None = None
        self._started = False
        self.registry: Registry
        self.config: configuration.Config

    async def start(self, more_prompt: Callable[[Turn], Awaitable[str]] | None) -> None:
        """Raises LightagentError, after undoing the steps already taken."""
        paths = self._folders()
        try:
            found = in_force(*configuration.load(paths.config), own_environment())
            self.config = found.config
            redactor = daemon_redactor(paths.state, found.config)
            for secret in found.secrets:
                redactor.add(secret)
            take_redactor(redactor)
            self._lock = state_lock.hold(paths.state)
        except BaseException:
            self._release()
            raise
        panic = Panic(paths.state)
        panic.load()
        self._history = History(paths.history, redactor=redactor, on_commit=lambda _: None)
        self._pool = Pool(found.config.worker, paths, panic)
        self._pool.kept.redactor = redactor
        parts = shared_parts(found.config, paths, self._history, self._pool, panic, lambda _: ())
        self.registry = Registry(replace(parts, more_prompt=more_prompt))
        self._recovery = Recovery(paths, self._history, Now(config=self.config, started_us=_now_us()))
        try:
            await self._recovery.open()
            await self._pool.start()
            await self._recovery.settle()
            starting = kinds.DaemonStarting(message=f"lightagentd {__version__}, in a program")
            await self._history.append(starting.event())
            await self.registry.start()
            await self._recovery.report(self.registry)
            ready = kinds.DaemonReady(message="the agents of a program are ready")
            await self._history.append(ready.event())
            self._started = True
        except BaseException:
            await self.close()
            raise

    def weaker(self) -> list[str]:
        """What is weaker than with the daemon, as sentences."""
        backend = self._pool.backend
        found = [*ALWAYS_WEAKER]
        if not backend.enforced:
            found.append(f"No sandbox enforces effects, so shell commands count as change: {backend.reason}")
        return [*found, *backend.limits]

    async def close(self) -> None:
        """Stop the agents, and release everything."""
        await self.registry.close()
        await self._pool.close()
        if self._started:
            try:
                await self._history.append(kinds.DaemonStopped().event())
            except LightagentError:
                self._recovery.doubt()
        else:
            self._recovery.doubt()
        await self._recovery.close()
        await self._history.close()
        self._release()

    def _folders(self) -> Paths:
        """Raises StorageError."""
        runtime = self._state / "run"
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            if len(os.fsencode(runtime)) > _SOCKET_ROOM:
                self._temporary = runtime = Path(tempfile.mkdtemp(prefix="lightagentd-"))
            runtime.mkdir(mode=0o700, exist_ok=True)
        except OSError as err:
            raise StorageError(
                f"The folder {self._state} cannot be used: {reason(err)}.",
                suggestion="Name one that the program can write.",
            ) from err
        config = self._config if self._config is not None else self._state / "config"
        return Paths(config=config.absolute(), state=self._state, runtime=runtime)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _now_us() -> int:
    return time.time_ns() // 1000
