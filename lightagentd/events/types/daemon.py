"""What becomes of the daemon, of its agents and of their sandboxes."""

from __future__ import annotations

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import ERROR, NOTICE, WARNING, Object, Reported, Text


class _Message(Reported):
    message: Text


class DaemonStarting(_Message, topic="daemon.state", type="starting"):
    """The history is open, and the daemon goes on to start."""

    catalog = """lightagentd starts
    The history is open. Agents, workers and sockets follow, then an entry 'ready'.
    > When that does not come: systemctl status lightagentd; lactl doctor"""


class DaemonReady(_Message, topic="daemon.state", type="ready"):
    """It serves its callers."""

    catalog = """lightagentd serves
    Clients can connect. Turns that ran when the daemon ended have been found again.
    > How it is: lactl status"""


class DaemonStopped(Reported, topic="daemon.state", type="stopped"):
    """The last event of a run that was stopped in order."""

    catalog = """lightagentd has stopped
    Turns have ended or were cancelled, questions that wait are stored, and the history is closed. When this
    entry is missing before a 'starting', the daemon was killed or crashed.
    > To start it: systemctl start lightagentd"""


class DaemonReloaded(_Message, topic="daemon.state", type="reloaded"):
    """Its files were read again."""

    catalog = """lightagentd read its files again
    Agents, skills, tools and rules are in force as their files are now; a file that is broken disables that
    one thing.
    > What is wrong, if anything: lactl status. What waits for a restart: the answer of lactl reload"""


class ModelsRefreshed(_Message, topic="daemon.state", type="models_refreshed"):
    """An administrator gave the daemon another table of what is known of models."""

    catalog = """What is known of language models was replaced
    The user with uid @CALLER_UID@ gave the daemon another table of the windows, prices and abilities of
    language models. Prices count from now on; an agent takes another window at the next 'lactl reload'.
    > To look at a model: lactl models show PROVIDER/MODEL. What stands in the configuration goes before
    the table."""
    by: int
    providers: int
    models: int


class SandboxChosen(_Message, topic="daemon.state", type="sandbox"):
    """What keeps workers to their effects."""

    catalog = """The sandbox of the workers is known
    The daemon has tried whether the workers can be held to their effects. When they cannot, this is a
    warning, and shell commands count as 'change': they are asked for, or refused.
    > To see what holds: lactl doctor. The units: systemd-analyze security lightagent-observe@07.service"""
    backend: Text
    enforced: bool

    @classmethod
    def priority_of(cls, event: Event) -> str:
        return WARNING if (event.data or {}).get("enforced") is False else cls.priority


class SnapshotTaken(Reported, topic="machine.state", type="snapshot"):
    """The state of the machine, to be compared with later."""

    catalog = """The state of the machine was stored
    Packages, units, ports, users, mounts and digests of the files in /etc stand in the history, so that what
    changed can be told later.
    > What changed since: lactl changes --since yesterday"""
    by: int
    counts: Object
    """How many names each section has."""
    state: Text
    """The state as JSON, compressed with zlib, in base85."""


class CommandsMissing(_Message, topic="daemon.state", type="commands_missing"):
    """Commands that reports use are not installed."""

    priority = NOTICE
    catalog = """Programs are not installed that skills use
    Some reports will say less than they could. The message names the programs.
    > Which packages have them: lactl doctor"""
    commands: list[Text]


class Panicked(Reported, topic="daemon.state", type="panic"):
    """The emergency stop: everything that ran was stopped."""

    priority = WARNING
    catalog = """Emergency stop: all turns and workers were ended
    Somebody said 'lactl panic', or the daemon got SIGUSR1. Every turn and every call ended, the workers were
    killed, approvals that waited are void. Nothing new runs, also after a restart, until that is taken back.
    > What ran: lactl history. What changed in files: lactl undo --list. When all is well again: lactl
    panic --off"""
    by: int | None
    """The uid; null when it was a signal."""
    message: Text
    turns: int
    workers: int


class PanicEnded(Reported, topic="daemon.state", type="panic_ended"):
    """Everything is allowed again."""

    priority = WARNING
    catalog = """The emergency stop was taken back
    The user with uid @CALLER_UID@ allowed turns and workers again. Turns that were ended stay ended;
    prompt again."""
    by: int


class CircuitOpened(Reported, topic="daemon.model", type="circuit_opened"):
    """A model's endpoint failed so often that it is left alone for a while."""

    priority = WARNING
    catalog = """A model's endpoint is left alone for a while
    The endpoint that the message names failed several times in a row, in more than one turn. Until the time
    is over no request is made to it: turns go on with their fallback, or end with model_circuit_open. Then
    one call tries it again.
    > Look whether the endpoint runs and can be reached from here. Which ones are left alone: lactl status"""
    endpoint: Text
    failures: int
    open_s: float | int
    message: Text


class CircuitClosed(Reported, topic="daemon.model", type="circuit_closed"):
    """A model's endpoint that was left alone answers again."""

    catalog = """A model's endpoint answers again
    The endpoint that the message names had failed several times in a row and was left alone. It has answered
    now, and every call goes to it again.
    > Nothing is to be done."""
    endpoint: Text
    message: Text


class AgentStarted(Reported, topic="daemon.agent", type="started"):
    """An agent runs."""

    catalog = """The agent @AGENT@ runs
    It takes prompts, and goes on with turns that an earlier run of the daemon left.
    > Its definition: lactl agents show @AGENT@"""


class AgentStopped(Reported, topic="daemon.agent", type="stopped"):
    """An agent was stopped."""

    catalog = """The agent @AGENT@ does not run
    It was stopped, deleted, or the daemon stops. Turns that it had were cancelled, or wait for its next
    start.
    > To start it: lactl agents start @AGENT@"""


class AgentModelSet(Reported, topic="daemon.agent", type="model_set"):
    """An agent got another model in place of the one of its definition, or that was taken back."""

    priority = NOTICE
    catalog = """The agent @AGENT@ has another model
    The user with uid @CALLER_UID@ set the model that the agent asks first, or took that back. It counts from
    the next turn on, also after a restart. The definition of the agent is as it was.
    > Its model, and where it comes from: lactl agents show @AGENT@. To take it back: lactl agents set @AGENT@
    --model default"""
    model: Text
    """Empty when that of the definition counts again."""
    by: int


class AgentFailed(Reported, topic="daemon.agent", type="failed"):
    """An agent failed in a way that nobody expected; it is started again after a pause."""

    priority = ERROR
    catalog = """The agent @AGENT@ failed
    Something broke inside the daemon while it worked for this agent. The message says what, and the entries
    before have the traceback. The agent starts again by itself, after a pause that grows with each failure;
    other agents go on.
    > When it happens again, report it with the traceback and the output of lactl status --json. To end it:
    lactl agents stop @AGENT@"""
    message: Text
    pause_s: float | int


class AgentRestarted(Reported, topic="daemon.agent", type="restarted"):
    """An agent that had failed runs again."""

    catalog = """The agent @AGENT@ runs again
    It had failed, and was started again by itself. Its sessions are there.
    > What had happened: journalctl -u lightagentd LIGHTAGENT_AGENT=@AGENT@"""


class SandboxExamining(Reported, topic="daemon.doctor", type="begun"):
    """An administrator has a sandbox tried; what is denied from here on may be the attempt."""

    catalog = """An examination of the sandboxes began
    An administrator said 'lactl doctor'. Workers now try what their effect may not do: write files, reach
    the network, read secrets, touch other processes. Entries of other programs about such attempts come
    from here."""
    effect: Text
    by: int


class SandboxExamined(Reported, topic="daemon.doctor", type="examined"):
    """The attempts are over."""

    catalog = """A worker was examined
    The worker of the agent @AGENT@ for the effect '@EFFECT@' has tried to get out. When this is a warning,
    something was not held that is promised.
    > What: lactl doctor. Drop-ins that open the sandbox: systemctl cat 'lightagent-@EFFECT@@*'"""
    effect: Text
    by: int
    not_held: list[Text]
    """What the sandbox did not hold."""

    @classmethod
    def priority_of(cls, event: Event) -> str:
        return WARNING if (event.data or {}).get("not_held") else cls.priority
