"""What the operations of the `Service` give back: plain data, the same on every control plane.

The Varlink interface descriptions are generated from these classes, so a change here is a change of the
public interface; `tests/control/test_interfaces.py` freezes them. Times are UTC in microseconds.
"""

# No `from __future__ import annotations` here: the Varlink library reads these annotations at run time.
from dataclasses import dataclass
from typing import Any, TypedDict


@dataclass(frozen=True, kw_only=True)
class HistoryStatus:
    """The state of the history. `disk_low`: its reserve on disk could not be allocated."""

    path: str
    events: int
    size_bytes: int
    disk_low: bool


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One worker process. `enforced` says whether the kernel holds it to its effect."""

    agent: str
    effect: str
    backend: str
    enforced: bool
    pid: int
    busy: bool


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
class Change:
    """A change of a file that was kept. `undone_by` is the call that took it back, empty while it stands;
    taking back an `undo` makes the change again.
    """

    call_id: str
    agent: str
    owner: int
    action: str
    path: str
    time_us: int
    undone_by: str


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
class Agent:
    """A definition and its running instance. `state`: running, stopped, failed (being restarted), broken."""

    name: str
    description: str
    role: str
    model: str
    fallback: list[str]
    tools: list[str]
    skills: list[str]
    effects: list[str]
    max_steps: int
    origin: str
    state: str
    restarts: int
    sessions: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One conversation. `state`: idle, running, waiting (for an approval). `tainted`: text from outside is in
    it, since the call `tainted_by`; `hosts` are those that it may reach again without a question.
    """

    id: str
    agent: str
    owner: int
    title: str
    state: str
    created_us: int
    updated_us: int
    turns: int
    queued: int
    tainted: bool
    tainted_by: str
    hosts: list[str]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One entry of a conversation. `tool_calls` are `{id, name, arguments}` objects."""

    seq: int
    time_us: int
    role: str
    content: str
    name: str
    tool_call_id: str
    tool_calls: list[Any]


class _EveryTurnEvent(TypedDict):
    type: str
    session: str
    trace_id: str


class TurnEvent(_EveryTurnEvent, total=False):
    """What happens in a turn, as it happens. The fields beside `type`, `session` and `trace_id` go with it:

    queued: position. started: model. text_delta: text. tool_call: call_id, tool, action, effect, decision,
    args. tool_output: call_id, stream, text. tool_result: call_id, tool, action, result (ok or an error
    code), text, metadata, duration_ms. approval_requested: approval, call_id, tool, action, effect, args,
    cwd, preview, rule, reason, expires_us, volatile, may_answer (whether whoever reads this may approve).
    approval_answered: approval, call_id, tool, action, state, answered_by, note. usage: prompt_tokens,
    completion_tokens, cached_tokens. notice: code, message. done: text (the final answer), steps,
    duration_ms. error: code, message, suggestion, steps, duration_ms. A stream ends with exactly one done
    or error.
    """

    text: str
    position: int
    model: str
    call_id: str
    tool: str
    action: str
    effect: str
    decision: str
    args: Any
    stream: str
    result: str
    metadata: Any
    approval: str
    cwd: str
    preview: str
    rule: str
    reason: str
    expires_us: int
    volatile: bool
    may_answer: bool
    state: str
    answered_by: int | None
    note: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    code: str
    message: str
    suggestion: str
    steps: int
    duration_ms: int


LAST_EVENTS = ("done", "error")
"""The types of turn event that end a stream."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of a turn for a caller who did not watch it."""

    text: str
    session: str
    trace_id: str
    steps: int
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A question about one call, and its answer. `state`: waiting, granted, denied, expired, used, lapsed.

    `args` are what runs, without those that are secret by their nature; `preview` is what the call would do,
    and `rule` and `reason` say why it is asked. `answered_by` is a uid, `note` what that person said, or why
    it lapsed. `volatile`: the daemon keeps it in memory alone, because it holds a secret; it ends with the
    daemon. `may_answer`: whether the caller may approve it.
    """

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    cwd: str
    digest: str
    preview: str
    rule: str
    reason: str
    created_us: int
    expires_us: int
    state: str
    answered_by: int | None
    answered_us: int
    note: str
    volatile: bool
    may_answer: bool


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action of a tool. `effect` is empty where each call chooses; `schema` is that of its arguments."""

    name: str
    description: str
    effect: str
    taints: bool
    timeout_s: float
    schema: Any


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool file. `problem` says why it is disabled, if it is."""

    name: str
    description: str
    origin: str
    actions: list[Action]
    problem: str


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One skill. `body` is empty in lists."""

    name: str
    description: str
    prompts: list[str]
    args: list[str]
    effect: str
    runbook: bool
    origin: str
    problem: str
    body: str


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """One event of the history: the header, `data` (null when it was deleted) and `hash`."""

    seq: int
    time: int
    topic: str
    type: str
    source: str
    agent: str
    session: str
    owner: int | None
    request_id: str
    trace_id: str
    correlation_id: str
    data_sha256: str
    prev: str
    data: Any | None
    hash: str


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """One rule of policy.d. `conditions` are those that it has, as in its file; `origin` is FILE:LINE."""

    name: str
    decision: str
    reason: str
    even_if_tainted: bool
    conditions: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class PolicyExplanation:
    """What policy would say to a call, and why.

    `rule` decided; its `origin` is FILE:LINE, or empty for a built-in rule. `effect` is the one in force.
    `message` and `suggestion` are what a refused call gets. `matched` are all rules of policy.d that are
    about the call, `notes` sentences on what else had a part in the decision.
    """

    decision: str
    rule: str
    origin: str
    reason: str
    effect: str
    message: str
    suggestion: str
    matched: list[PolicyRule]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class PolicyChange:
    """A stored call that other rules would decide otherwise. `seq` is the event that tells of it."""

    seq: int
    time_us: int
    agent: str
    session: str
    owner: int | None
    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    before: str
    before_rule: str
    after: str
    after_rule: str


@dataclass(frozen=True, kw_only=True)
class PolicyReplay:
    """One answer of a replay: a call whose decision would change, and the counts so far; the last has none.

    `judged` counts calls that policy had decided, `skipped` those of which the history does not hold enough.
    """

    judged: int
    changed: int
    skipped: int
    change: PolicyChange | None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of walking the hash chain; `first_bad_seq` is 0 when all is well."""

    ok: bool
    events: int
    first_bad_seq: int
    reason: str
    head_hash: str


@dataclass(frozen=True, kw_only=True)
class Reloaded:
    """What a reload did: what is in force now, what waits for a restart, and what could not be read."""

    applied: list[str]
    needs_restart: list[str]
    problems: list[str]
