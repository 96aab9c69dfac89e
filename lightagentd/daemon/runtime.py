"""The daemon's parts, and the few facts that change while it runs, for use by other parts.

The daemon makes one `Runtime` when it assembles its parts, and owns its content. The operations and the D-Bus
plane are made from it, and live as long as the daemon. This module imports no part at run time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightagentd import api
    from lightagentd.agents.flows.flows import Flows
    from lightagentd.agents.registry import Registry
    from lightagentd.agents.sessions.deletion import Deletion
    from lightagentd.agents.triggers.triggers import Triggers
    from lightagentd.config.configuration import Config
    from lightagentd.control.authz import Authority
    from lightagentd.control.bus_link import BusLink
    from lightagentd.control.owners import Owners
    from lightagentd.control.polkit import Polkit
    from lightagentd.control.seats import Seats
    from lightagentd.control.tokens import Tokens
    from lightagentd.daemon.upkeep import Upkeep
    from lightagentd.events.audit.checkpoints import Checkpoints
    from lightagentd.events.feed import Feed
    from lightagentd.events.history import History
    from lightagentd.events.journal.sink import JournaldSink
    from lightagentd.events.subscriptions import Subscriptions
    from lightagentd.host.paths import Paths
    from lightagentd.policy.panic import Panic
    from lightagentd.worker.pool import Pool


@dataclass(kw_only=True)
class Now:
    """Present facts that may change. Only the daemon changes them; read them again each time."""

    config: Config
    """The configuration in force."""
    started_us: int
    draining: bool = False
    """Whether the daemon takes no new work, because it stops."""
    journal: JournaldSink | None = None
    checkpoints: Checkpoints | None = None
    examined_us: int = 0
    """When the whole of the history's file was last examined, as far as is known."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of one daemon."""

    now: Now
    paths: Paths
    history: History
    subscriptions: Subscriptions
    feed: Feed
    owners: Owners
    panic: Panic
    pool: Pool
    registry: Registry
    triggers: Triggers
    flows: Flows
    deletion: Deletion
    upkeep: Upkeep
    bus_link: BusLink
    polkit: Polkit | None
    authority: Authority
    seats: Seats
    tokens: Tokens
    problems: Callable[[], list[str]]
    """What is wrong with the daemon, as sentences."""
    reload: Callable[[], Awaitable[api.Reloaded]]
    """Read configuration, agents, skills and tools again. Raises ConfigError."""
