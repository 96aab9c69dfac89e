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
class Pruned:
    """What retention did, or with `dry_run` would do, about: how many events it removed, which sessions it
    deleted, how many bytes of the file that freed, how many are in use, and the number of the event at which
    the chain begins. `compacted`: the file was written anew, too.
    """

    removed: int
    sessions: list[str]
    freed_bytes: int
    live_bytes: int
    first_seq: int
    compacted: bool
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What writing the history's file anew came to, without the reserve."""

    bytes_before: int
    bytes_after: int


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
    """One conversation. `state`: idle, running, waiting (for the approval or the input `waits_for`). A paused
    one takes no prompts and begins no turn. `current`: its owner's prompts without a session go to it.
    `mode`: normal, or the phase of its plan (drafting, ready, applying). `tainted`: text from outside is in
    it, since the call `tainted_by`; `hosts` are those that it may reach again without a question.
    `interrupted` says what is known of a turn that the daemon stopped in the middle of, until the next turn
    is done.
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
    paused: bool
    current: bool
    mode: str
    waits_for: str
    forked_from: str
    interrupted: str
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
    approval_answered: approval, call_id, tool, action, state, answered_by, note. input_requested: input,
    call_id, question, choices, expires_us. input_answered: input, call_id, state (answered, expired or
    lapsed), answer, answered_by. usage: prompt_tokens, completion_tokens, cached_tokens, total_tokens, cost
    (null when no price is known). compacted: kept, removed (messages), tokens_before, tokens_after,
    summarized_by. plan: plan (an api.Plan), task (the id of the one that it is about, or empty). notice:
    code, message. done: text (the final answer), steps, duration_ms. error: code, message, suggestion,
    steps, duration_ms. A turn ends with exactly one done or error. Whoever watches a session also gets
    prompt: text, when one is taken, and session: session_info (an api.Session), when the session itself
    changed; null when it was deleted.
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
    input: str
    question: str
    choices: list[str]
    answer: str
    plan: Any
    task: str
    session_info: Any
    kept: int
    removed: int
    tokens_before: int
    tokens_after: int
    summarized_by: str
    total_tokens: int
    cost: float | None
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


class Attachment(TypedDict):
    """A file that goes with a prompt: its name, without a path, and its text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Export:
    """A session as text. `format`: markdown or jsonl; `name` is a file name for it."""

    session: str
    format: str
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PlanTask:
    """One task of a plan. `check` is a shell command that observes and must end with status 0, or empty.
    `state`: pending, running, done, failed, skipped; `note` says why it failed, `trace_id` is its last turn.
    """

    id: str
    text: str
    check: str
    state: str
    note: str
    trace_id: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a session. `phase`: off, drafting, ready, applying, completed. `stopped_at`: the task that
    failed, while it is applied; it goes on with retry, skip or abort. `note` is a sentence on how it stands.
    `digest` stands for the title and the tasks with their checks, whatever their states.
    """

    session: str
    phase: str
    title: str
    tasks: list[PlanTask]
    stopped_at: str
    note: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Input:
    """A question of an agent (`human.ask`), and its answer. `state`: waiting, answered, expired, lapsed.
    With `choices` the answer is one of them. `answered_by` is a uid.
    """

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    question: str
    choices: list[str]
    created_us: int
    expires_us: int
    state: str
    answer: str
    answered_by: int | None
    answered_us: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Something that an agent is to remember for one owner. `agent` is empty when it is for all agents.

    `state`: kept; candidate, when it comes from a conversation with text from outside in it, and a person has
    not promoted it yet; rejected. `source`: person, agent or import. `confidence` is from 0 to 1,
    `expires_us` is 0 when it does not expire.
    """

    id: str
    owner: int
    agent: str
    text: str
    tags: list[str]
    source: str
    state: str
    session: str
    trace_id: str
    created_us: int
    updated_us: int
    expires_us: int
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What was used in one scope. `scope`: turn, session, agent, owner, owner_day, day, all; `name` says
    which. `steps_without_usage`: the endpoint did not count; `steps_without_price`: no price was known, so
    they are not in `cost`. `wall_ms` is the time of turns without that which they waited for a person.
    """

    scope: str
    name: str
    turns: int
    steps: int
    steps_without_usage: int
    steps_without_price: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    cost: float
    wall_ms: int


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """One limit of the configuration, and how much of it is used. `what`: tokens, cost, steps, calls,
    wall_s.
    """

    scope: str
    name: str
    what: str
    used: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class ModelPrice:
    """What a million tokens cost: of prompts, of answers, of prompts that the endpoint had cached, and of
    those that it put into its cache; null for what is not known. `origin`: as `facts_from` of `Model`.
    """

    prompt: float
    completion: float
    cached: float | None
    cache_write: float | None
    origin: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model: who uses it, whether it can be used, and what is known of it; null and empty are what is not.

    `state`: ready, unusable (`problem` says why, `suggestion` what to do), paused (its endpoint failed too
    often), known (nobody uses it). `agents` may ask it. `input_tokens` is how long a prompt may be, where
    that is less than the window. `facts_from`, and with it where window and price are from: configuration,
    refreshed, shipped, local. `status`: alpha, beta, deprecated. `knowledge` and `released` are YYYY, YYYY-MM
    or YYYY-MM-DD.
    """

    model: str
    name: str
    provider: str
    state: str
    problem: str
    suggestion: str
    default: bool
    agents: list[str]
    context_tokens: int | None
    context_from: str
    input_tokens: int | None
    max_output_tokens: int | None
    tools: bool | None
    reasoning: bool | None
    attachments: bool | None
    price: ModelPrice | None
    knowledge: str
    released: str
    status: str
    facts_from: str


@dataclass(frozen=True, kw_only=True)
class ModelProvider:
    """An endpoint of models. `state`: ready, unusable, paused (as in `Model`), or found: a server on this
    machine that nobody uses, with the `models` that it has. `key`: present, missing, or not needed.
    `known_models`: of how many of its models something is known.
    """

    name: str
    kind: str
    base_url: str
    state: str
    problem: str
    suggestion: str
    key: str
    known_models: int
    models: list[str]


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """One thing that a test of a model looked for. `seen` is null where it could not be told."""

    name: str
    seen: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class ModelTest:
    """What one real call of a model showed. `cost` is null when no price is known, or nothing was counted."""

    model: str
    agent: str
    endpoint: str
    duration_ms: int
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    checks: list[ModelCheck]


@dataclass(frozen=True, kw_only=True)
class ModelsRefreshed:
    """What a new table of models came to. `changes` are sentences, about the models in use."""

    providers: int
    models: int
    changes: list[str]


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
class ToolChoice:
    """How one function fits a prompt. `why`: always, when every conversation needs it; fits, when it is
    offered for the prompt; left_out, when it fits less and is not offered. `words` are those of the prompt
    that it was found by. `effect` is empty where each call chooses.
    """

    function: str
    tool: str
    action: str
    effect: str
    description: str
    why: str
    score: float
    words: list[str]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a model is offered for a prompt: `offered` of the `functions` that its agent has. `all_offered`
    when they are no more than `max_tools`, so that nothing is left out; that is `limits.max_tools`, or fewer
    where the agent's model has a small window.
    """

    agent: str
    functions: int
    max_tools: int
    all_offered: bool
    offered: int
    choices: list[ToolChoice]


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
    caller: int | None
    request_id: str
    trace_id: str
    correlation_id: str
    data_sha256: str
    prev: str
    data: Any | None
    hash: str


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Events that a subscriber did not get: `count` of those from `first_seq` on. What is from `from_seq` on
    follows; of what is before it only messages of sessions that exist can be left.
    """

    count: int
    first_seq: int
    from_seq: int


class EventItem(TypedDict):
    """A part of the event stream: an event, or what was missed; at the end neither."""

    event: StoredEvent | None
    missed: Missed | None


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Some events, oldest first, and where to go on; `next_seq` is 0 when there is no more."""

    events: list[StoredEvent]
    next_seq: int


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
    """The result of walking the hash chain; `first_bad_seq` is 0 when all is well. `began` says how the event
    before `first_seq` is known: `start` (there is none), `anchor` (retention removed it), `checkpoint` (it
    is signed) or `word`. `key` is the fingerprint of the newest checkpoint's key, `covered_seq` the last
    event that one with a trusted key covers; `notes` are what is allowed and worth knowing.
    """

    ok: bool
    events: int
    first_bad_seq: int
    reason: str
    head_seq: int
    head_hash: str
    first_seq: int
    began: str
    kept: int
    erased: int
    checkpoints: int
    key: str
    trusted: bool
    covered_seq: int
    index_entries: int
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Reloaded:
    """What a reload did: what is in force now, what waits for a restart, and what could not be read."""

    applied: list[str]
    needs_restart: list[str]
    problems: list[str]
