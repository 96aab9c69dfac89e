"""The daemon as a whole: its state, its workers, what a doctor finds, an emergency stop."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One worker process. `enforced` says whether the kernel holds it to its effect. `unit` is its systemd
    unit, or empty.
    """

    agent: str
    owner: int
    effect: str
    unit: str
    backend: str
    enforced: bool
    pid: int
    busy: bool


@dataclass(frozen=True, kw_only=True)
class HistoryStatus:
    """The state of the history. `disk_low`: its reserve on disk could not be allocated. `examined_us`: when
    every page of its file was last looked at; 0 when that was never.
    """

    path: str
    events: int
    size_bytes: int
    disk_low: bool
    examined_us: int


@dataclass(frozen=True, kw_only=True)
class EmergencyStop:
    """An emergency stop. `by` is the uid that asked for it, null when a signal did."""

    since_us: int
    by: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What an emergency stop did: the turns and calls that it ended, queued ones too, and the workers that it
    killed. `problems` are sentences: what could not be stored.
    """

    panic: EmergencyStop
    turns: int
    workers: int
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class Status:
    """The daemon as a whole. `state` is one of running, draining, panicked; `panic` is the emergency stop
    that is on, if any; `problems` are sentences for people.
    """

    version: str
    pid: int
    state: str
    panic: EmergencyStop | None
    started_us: int
    uptime_s: float
    model: str
    agents_running: int
    agents_total: int
    sessions: int
    turns_running: int
    turns_queued: int
    turns_waiting: int
    sandbox: str
    journal: bool
    journal_dropped: int
    history: HistoryStatus
    workers: list[WorkerStatus]
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at. `status`: ok; not_held (something that is promised does not hold); wrong;
    not_tried (`detail` says why); note (nothing is promised about it). `group` is what it belongs to, such as
    units, and `remedy` what to do about it, as a sentence.
    """

    name: str
    status: str
    detail: str
    group: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What one agent's worker for one effect was held from when it tried."""

    agent: str
    effect: str
    backend: str
    enforced: bool
    reason: str
    findings: list[Finding]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was looked at; `ok` when all that is promised holds and nothing is wrong."""

    ok: bool
    workers: list[Examined]
    checks: list[Finding]


@dataclass(frozen=True, kw_only=True)
class Reloaded:
    """What a reload did: what is in force now, what waits for a restart, and what could not be read.

    `refused`: of that, what is broken as a whole, so that the old state stays in force.
    """

    applied: list[str]
    needs_restart: list[str]
    problems: list[str]
    refused: list[str]


@dataclass(frozen=True, kw_only=True)
class SnapshotSection:
    """One kind of thing in a state, such as `package`, and how many there are."""

    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A stored state of the machine."""

    seq: int
    taken_us: int
    sections: list[SnapshotSection]
