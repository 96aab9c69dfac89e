"""What becomes of the daemon, of its agents and of their sandboxes."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Text


class _Message(Kind):
    message: Text


class DaemonStarting(_Message, topic="daemon.state", type="starting"):
    """The history is open, and the daemon goes on to start."""


class DaemonReady(_Message, topic="daemon.state", type="ready"):
    """It serves its callers."""


class DaemonStopped(Kind, topic="daemon.state", type="stopped"):
    """The last event of a run that was stopped in order."""


class DaemonReloaded(_Message, topic="daemon.state", type="reloaded"):
    """Its files were read again."""


class ModelsRefreshed(_Message, topic="daemon.state", type="models_refreshed"):
    """An administrator gave the daemon another table of what is known of models."""

    by: int
    providers: int
    models: int


class SandboxChosen(_Message, topic="daemon.state", type="sandbox"):
    """What keeps workers to their effects."""

    backend: Text
    enforced: bool


class CommandsMissing(_Message, topic="daemon.state", type="commands_missing"):
    """Commands that reports use are not installed."""

    commands: list[Text]


class Panicked(Kind, topic="daemon.state", type="panic"):
    """The emergency stop: everything that ran was stopped."""

    by: int | None
    """The uid; null when it was a signal."""
    message: Text
    turns: int
    workers: int


class PanicEnded(Kind, topic="daemon.state", type="panic_ended"):
    """Everything is allowed again."""

    by: int


class CircuitOpened(Kind, topic="daemon.model", type="circuit_opened"):
    """A model's endpoint failed so often that it is left alone for a while."""

    endpoint: Text
    failures: int
    open_s: float | int
    message: Text


class CircuitClosed(Kind, topic="daemon.model", type="circuit_closed"):
    """A model's endpoint that was left alone answers again."""

    endpoint: Text
    message: Text


class AgentStarted(Kind, topic="daemon.agent", type="started"):
    """An agent runs."""


class AgentStopped(Kind, topic="daemon.agent", type="stopped"):
    """An agent was stopped."""


class AgentFailed(Kind, topic="daemon.agent", type="failed"):
    """An agent failed in a way that nobody expected; it is started again after a pause."""

    message: Text
    pause_s: float | int


class AgentRestarted(Kind, topic="daemon.agent", type="restarted"):
    """An agent that had failed runs again."""


class SandboxExamining(Kind, topic="daemon.doctor", type="begun"):
    """An administrator has a sandbox tried; what is denied from here on may be the attempt."""

    effect: Text
    by: int


class SandboxExamined(Kind, topic="daemon.doctor", type="examined"):
    """The attempts are over."""

    effect: Text
    by: int
    not_held: list[Text]
    """What the sandbox did not hold."""
