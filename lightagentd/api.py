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
class Status:
    """The daemon as a whole. `state` is one of running, draining; `problems` are sentences for people."""

    version: str
    pid: int
    state: str
    started_us: int
    uptime_s: float
    model: str
    agents_running: int
    agents_total: int
    sessions: int
    turns_running: int
    turns_queued: int
    sandbox: str
    journal: bool
    journal_dropped: int
    history: HistoryStatus
    workers: list[WorkerStatus]
    problems: list[str]


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
    """One conversation. `state`: idle, running, waiting."""

    id: str
    agent: str
    owner: int
    title: str
    state: str
    created_us: int
    updated_us: int
    turns: int
    queued: int


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
    code), text, metadata, duration_ms. usage: prompt_tokens, completion_tokens, cached_tokens. notice:
    code, message. done: text (the final answer), steps, duration_ms. error: code, message, suggestion,
    steps, duration_ms. A stream ends with exactly one done or error.
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
