"""Good input to break: a store with events and states of every kind, and files as they are written."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.sessions.session import SessionRecord
from lightagentd.agents.sessions.transcript import FORMAT, VERSION
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import EventContext
from lightagentd.events.types.history import HistoryPruned
from lightagentd.policy.questions.approval import Approval

SESSION, TRACE, AGENT = "ses_00000000000000aa", "trace_00000000000000bb", "ops"
_NOW_US = 1_795_000_000_000_000
_LATER_US = 4_000_000_000_000_000
_CONTEXT = EventContext(agent=AGENT, session=SESSION, owner=0, caller=0, trace_id=TRACE)
_ABOUT = {"agent": AGENT, "session": SESSION, "owner": 0, "trace_id": TRACE}


def _approval() -> dict[str, Any]:
    made = Approval(
        id="apr_00000000000000cc",
        **{**_ABOUT, "owner": 0},  # type: ignore[arg-type]
        call_id="call_1",
        tool="file",
        action="write",
        effect="change",
        args={"path": "/tmp/x", "content": "x"},
        cwd="",
        digest="0" * 64,
        preview="+x",
        expected={},
        rule="ask-for-change",
        reason="It would change the system.",
        created_us=_NOW_US,
        expires_us=_LATER_US,
    )
    return made.to_dict()


def states() -> dict[str, dict[str, dict[str, Any]]]:
    """Stored states by name and key, as the daemon writes them."""
    record = SessionRecord(
        id=SESSION, agent=AGENT, owner=0, title="A talk", created_us=_NOW_US, updated_us=_NOW_US, turns=2
    )
    tasks = [
        {"id": "1", "text": "Look", "check": "true", "state": "running", "note": "", "trace_id": TRACE},
        {"id": "2", "text": "Tell", "check": "", "state": "pending", "note": "", "trace_id": ""},
    ]
    plan = {"session": SESSION, "phase": "applying", "title": "Look", "tasks": tasks, "stopped_at": ""}
    asked = {
        "call_id": "call_2",
        "question": "Which?",
        "choices": ["a", "b"],
        "answer": "",
        "answered_by": None,
    }
    times = {"created_us": _NOW_US, "expires_us": _LATER_US, "answered_us": 0}
    memory = {"text": "The disk is small.", "tags": ["disk"], "source": "agent", "state": "kept"}
    known = {"updated_us": _NOW_US, "created_us": _NOW_US, "expires_us": 0, "confidence": 0.8}
    waiting = {"state": "waiting", "approval": "apr_00000000000000cc", "steps": 1, "left_s": 60.0}
    return {
        "sessions": {SESSION: record.to_dict()},
        "turns": {
            TRACE: {"session": SESSION, "correlation_id": "", "request_id": "req_1", **waiting},
            "trace_00000000000000dd": {"session": SESSION, "state": "queued", "correlation_id": ""},
            "trace_00000000000000ee": {"session": SESSION, "state": "running", "correlation_id": ""},
        },
        "approvals": {"apr_00000000000000cc": _approval()},
        "inputs": {
            "inp_00000000000000ff": {
                "id": "inp_00000000000000ff",
                **_ABOUT,
                **asked,
                **times,
                "state": "waiting",
            }
        },
        "plans": {SESSION: {**Plan.from_dict({**plan, "problem": "", "caller": None}).change().value}},  # type: ignore[dict-item]
        "current": {f"{AGENT}/0": {"session": SESSION}},
        "memories": {
            "0/mem_0000000000000011": {
                "id": "mem_0000000000000011",
                **_ABOUT,
                **memory,
                **known,
                "fingerprint": "",
            }
        },
        "agents": {AGENT: {"model": "openai/x"}},
        "profiles": {"0": {"text": "I am the administrator.", "updated_us": _NOW_US}},
        "usage": {
            key: {"turns": 1, "steps": 2, "updated_us": _NOW_US} for key in ("all/all", f"agent/{AGENT}")
        },
        "compactions": {
            SESSION: {
                "summary": "They looked.",
                "from_seq": 3,
                "kept": 2,
                "removed": 1,
                "tokens_before": 9,
                "tokens_after": 5,
                "summarized_by": "openai/x",
            }
        },
        "watches": {"watch_1": _watch()},
        "prunings": {},
    }


def _watch() -> dict[str, Any]:
    return {
        "watch": "watch_1",
        **_ABOUT,
        "caller": 0,
        "correlation_id": "",
        "request_id": "",
        "args": {"path": "/tmp"},
        "path": "/tmp",
        "root": "/tmp",
        "only": "",
        "seen_us": _NOW_US,
    }


def events() -> list[NewEvent]:
    """Events of a turn, and some of the daemon's own."""

    def new(topic: str, type_: str, source: str = "agent", **data: Any) -> NewEvent:
        return NewEvent(topic=topic, type=type_, data=data, source=source, context=_CONTEXT, time_us=_NOW_US)

    return [
        new("daemon.state", "ready", "daemon", message="serving"),
        new("session.created", "created", "daemon", title="A talk"),
        new("agent.prompt", "prompt", text="check disk"),
        new("agent.message", "message", role="user", content="check disk"),
        new(
            "agent.message",
            "message",
            role="assistant",
            content="",
            tool_calls=[{"id": "call_1", "name": "file_stat", "arguments": "{}"}],
        ),
        new(
            "agent.tool_dispatch",
            "intent",
            call_id="call_1",
            tool="file",
            function="file_stat",
            effect="observe",
        ),
        new("tool.file", "invocation", "worker", call_id="call_1", tool="file", result="ok", duration_ms=3),
        new(
            "agent.message", "message", role="tool", content="12 GiB", tool_call_id="call_1", name="file_stat"
        ),
        new("approval.requested", "requested", "daemon", approval="apr_00000000000000cc", call_id="call_1"),
        new("daemon.checkpoint", "key", "daemon", key="ab", public_key="A" * 44, made=True),
        new("daemon.checkpoint", "signed", "daemon", seq=9, hash="0" * 64, key="ab", signature="A" * 88),
        HistoryPruned(
            first_seq=1, last_seq=0, last_hash="0" * 64, removed=0, kept=[(1, "0" * 64)], reason="age"
        ).event(),
        new("session.turn", "done", steps=2, duration_ms=9),
        new("agent.error", "interrupted", code="interrupted", message="It stopped."),
    ]


def fill(folder: Path) -> None:
    """Make a store of them."""

    async def write() -> None:
        history = History(folder)
        await history.start()
        try:
            changes = [
                Change(state=name, key=key, value=value)
                for name, entries in states().items()
                for key, value in entries.items()
            ]
            await history.append(*events(), changes=changes)
        finally:
            await history.close()

    asyncio.run(write())


def rechained(stored: list[tuple[dict[str, Any], bytes]]) -> list[bytes]:
    """Records of headers and data lines with hashes that fit, as somebody who knows how could write them."""
    prev, found = "0" * 64, list[bytes]()
    for header, data in stored:
        header = {**header, "data_sha256": hashlib.sha256(data).hexdigest(), "prev": prev}
        line = json.dumps(header, separators=(",", ":")).encode()
        prev = hashlib.sha256(line).hexdigest()
        found.append(line + b"\n" + data)
    return found


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "check disk"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "df", "arguments": "{}"}]},
    {"role": "tool", "content": "12 GiB", "tool_call_id": "c1", "name": "df"},
    {"role": "assistant", "content": "There is room.\n```sh\ndf\n```"},
]
SESSION_LINES = b"".join(
    json.dumps(line).encode() + b"\n"
    for line in (
        {"format": FORMAT, "version": VERSION, "id": SESSION, "title": "A talk", "messages": len(MESSAGES)},
        *MESSAGES,
    )
)
SESSION_MARKDOWN = (
    b"# A talk\n\n```python\nx = 1\n```\n\n~~~json\n"
    + json.dumps({"session_id": "a", "updated_at": 1.5, "history": MESSAGES}, indent=1).encode()
    + b"\n~~~\n"
)
CALLS: list[dict[str, Any]] = [
    {"method": "org.lightagent1.Manager.GetStatus", "parameters": {}},
    {"method": "org.varlink.service.GetInfo"},
    {"method": "org.varlink.service.GetInterfaceDescription", "parameters": {"interface": "org.lightagent1"}},
    {"method": "org.lightagent1.Sessions.Create", "parameters": {"agent": AGENT, "title": "x"}},
    {"method": "org.lightagent1.Sessions.List", "parameters": {"agent": AGENT}},
    {"method": "org.lightagent1.Sessions.Get", "parameters": {"session": SESSION}},
    {"method": "org.lightagent1.Sessions.Messages", "parameters": {"session": SESSION, "limit": 5}},
    {"method": "org.lightagent1.Sessions.Import", "parameters": {"agent": AGENT, "text": "{}", "title": "x"}},
    {
        "method": "org.lightagent1.Events.Subscribe",
        "parameters": {"from_seq": 1, "topic": "agent", "follow": False},
        "more": True,
    },
    {"method": "org.lightagent1.History.Query", "parameters": {"topic": "agent", "since_us": 5, "limit": 9}},
    {"method": "org.lightagent1.History.Verify", "parameters": {}},
    {
        "method": "org.lightagent1.Plans.Set",
        "parameters": {"session": SESSION, "plan": {"title": "", "tasks": []}},
    },
    {"method": "org.lightagent1.Memory.List", "parameters": {"state": "all", "limit": 10}},
    {"method": "org.lightagent1.Memory.Search", "parameters": {"query": "disk", "limit": 3}},
    {"method": "org.lightagent1.Approvals.List", "parameters": {"all": True}},
    {"method": "org.lightagent1.Inputs.Answer", "parameters": {"input": "inp_1", "text": "yes"}},
    {
        "method": "org.lightagent1.Policy.Explain",
        "parameters": {"agent": AGENT, "tool": "file", "action": "stat", "args": {"path": "/"}},
    },
    {"method": "org.lightagent1.Usage.List", "parameters": {}, "oneway": True},
]
