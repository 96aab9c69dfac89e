"""What a stored event is in the journal: its fields, its sentence, its priority and its MESSAGE_ID.

The journal gets what happened (a tool call with its redacted arguments, as sudo logs its commands) and the
event's hash, but not the content of prompts, output and messages: whoever may read the journal would
read everyone's. `journal_content` in the configuration adds it. Fields are described in
systemd.journal-fields(7); ours begin with LIGHTAGENT. Those that describe a call come from the daemon's own
events alone: a tool may put what it likes into its events. The catalog in `packaging/journal` explains each
MESSAGE_ID.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Any

from lightagentd.events.model import FROM_TOOL, Event, dump_json

GAP = ("daemon.journal", "gap")
"""Names the MESSAGE_ID of the entry that says which events the journal lacks; it is no event itself."""

_NAMESPACE = uuid.UUID("6c1f6f3e-7f0a-4f43-9d5e-2a1b3a7d6a10")
_FIELD_MAX_BYTES = 4096
CONTENT_MAX_BYTES = 256 << 10
"""Of an event's data, where the configuration wants it in the journal."""

_ERROR, _WARNING, _NOTICE, _INFO = "3", "4", "5", "6"
_PRIORITIES = {
    ("agent.error", "cancelled"): _NOTICE,
    ("agent.error", "fallback"): _WARNING,
    ("agent.retry", "retry"): _WARNING,
    ("daemon.model", "circuit_opened"): _WARNING,
    ("agent.error", "interrupted"): _WARNING,
    ("agent.tool_dispatch", "refused"): _WARNING,
    ("approval.requested", "requested"): _NOTICE,
    ("approval.denied", "denied"): _WARNING,
    ("approval.expired", "expired"): _WARNING,
    ("approval.lapsed", "lapsed"): _WARNING,
    ("input.requested", "requested"): _NOTICE,
    ("input.expired", "expired"): _WARNING,
    ("input.lapsed", "lapsed"): _WARNING,
    ("budget.exceeded", "exceeded"): _NOTICE,
    ("daemon.agent", "failed"): _ERROR,
    ("daemon.checkpoint", "broken"): _ERROR,
    ("daemon.history", "set_aside"): _ERROR,
    ("daemon.history", "salvaged"): _NOTICE,
    ("daemon.history", "recovered"): _WARNING,
    ("daemon.state", "commands_missing"): _NOTICE,
    ("daemon.state", "panic"): _WARNING,
    ("daemon.state", "panic_ended"): _WARNING,
    ("policy.rules", "broken"): _ERROR,
    ("session.deleted", "deleted"): _NOTICE,
    ("tool.inotify", "gap"): _WARNING,
    ("tool.inotify.event", "overflow"): _WARNING,
}
"""By topic and type, as in syslog(3), where the priority is not that of information."""
_TOLD_IN_CONVERSATION = frozenset({"human", "memory", "plan"})
"""Built-in tools whose arguments are content of the conversation, unlike commands and paths."""
_CALL_FIELDS = ("tool", "action", "effect", "decision", "duration_ms", "result")
_CHECKPOINT_FIELDS = {
    "LIGHTAGENT_CHECKPOINT_SEQ": "seq",
    "LIGHTAGENT_CHECKPOINT_HASH": "hash",
    "LIGHTAGENT_CHECKPOINT_KEY": "fingerprint",
    "LIGHTAGENT_CHECKPOINT_PUBLIC_KEY": "public_key",
    "LIGHTAGENT_CHECKPOINT_SIGNATURE": "signature",
}
"""What an auditor needs who has the journal alone, and where it is in the data of a checkpoint."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal or a reader could take for something else, and half characters."""


def message_id(topic: str, event_type: str) -> str:
    """The MESSAGE_ID of a type of event: 32 hexadecimal digits, the same on every machine."""
    group = "tool" if topic.startswith("tool.") and event_type == "invocation" else topic
    return uuid.uuid5(_NAMESPACE, f"{group}/{event_type}").hex


def journal_fields(event: Event, *, content: bool = False) -> dict[str, str]:
    """The fields of one event; with `content`, everything that the event holds is one of them."""
    data = event.data or {}
    own = event.source != FROM_TOOL
    fields = {
        "MESSAGE": _sentence(event, data),
        "MESSAGE_ID": message_id(event.topic, event.type),
        "PRIORITY": _priority(event, data),
        "SYSLOG_IDENTIFIER": "lightagentd",
        "LIGHTAGENT_SEQ": str(event.seq),
        "LIGHTAGENT_HASH": event.hash,
        "LIGHTAGENT_TOPIC": event.topic,
        "LIGHTAGENT_TYPE": event.type,
        "LIGHTAGENT_AGENT": event.agent,
        "LIGHTAGENT_SESSION": event.session,
        "LIGHTAGENT_CALLER_UID": "" if event.caller is None else str(event.caller),
        "LIGHTAGENT_REQUEST_ID": event.request_id,
        "LIGHTAGENT_TRACE_ID": event.trace_id,
    }
    if own:
        fields |= {f"LIGHTAGENT_{name.upper()}": str(data[name]) for name in _CALL_FIELDS if name in data}
        if event.topic == "daemon.checkpoint":
            fields |= {name: str(data[key]) for name, key in _CHECKPOINT_FIELDS.items() if key in data}
        if event.topic == "agent.error":
            fields["LIGHTAGENT_RESULT"] = str(data.get("code", event.type))
        if _shows_args(data):
            fields["LIGHTAGENT_ARGS"] = dump_json(data["args"]).decode()
    shown = {
        key: _short(plain(value), 2 * _FIELD_MAX_BYTES if key == "MESSAGE" else _FIELD_MAX_BYTES)
        for key, value in fields.items()
        if value
    }
    if content and event.data is not None:
        shown["LIGHTAGENT_CONTENT"] = _short(dump_json(event.data).decode(), CONTENT_MAX_BYTES)
    return shown


def gap_fields(first_seq: int, last_seq: int, count: int) -> dict[str, str]:
    """The fields of the entry that says which events the journal lacks."""
    lost = "1 event" if count == 1 else f"{count} events"
    return {
        "MESSAGE": f"the journal lacks {lost} from {first_seq} to {last_seq}; the history has them: "
        f"lactl events --since {first_seq}",
        "MESSAGE_ID": message_id(*GAP),
        "PRIORITY": _WARNING,
        "SYSLOG_IDENTIFIER": "lightagentd",
        "LIGHTAGENT_MISSING_FROM": str(first_seq),
        "LIGHTAGENT_MISSING_TO": str(last_seq),
        "LIGHTAGENT_MISSING_COUNT": str(count),
    }


def _priority(event: Event, data: Mapping[str, Any]) -> str:
    kind = (event.topic, event.type)
    if event.source != FROM_TOOL:
        if event.topic in ("agent.error", "daemon.error") and kind not in _PRIORITIES:
            return _ERROR
        # Failed calls, sandboxes that do not hold: these have the kind of what went well.
        failed = event.type == "invocation" and data.get("result") != "ok"
        leaky = kind == ("daemon.doctor", "examined") and data.get("not_held")
        if failed or leaky or (kind == ("daemon.state", "sandbox") and data.get("enforced") is False):
            return _WARNING
    return _PRIORITIES.get(kind, _INFO)


def plain(text: str, keep: str = "") -> str:
    """Text without what steers a terminal, in one line unless newlines are to be kept: journalctl(1) would
    hide a field that has such characters.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _short(text: str, most: int = _FIELD_MAX_BYTES) -> str:
    raw = text.encode()
    if len(raw) <= most:
        return text
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: most - 64].decode(errors="ignore") + f"… ({len(raw)} bytes, sha256 {digest})"


def _sentence(event: Event, data: Mapping[str, Any]) -> str:
    who = f"{event.agent}: " if event.agent else ""
    if event.source == FROM_TOOL:
        return f"{who}{event.topic} {event.type}"
    if "tool" in data and "action" in data:
        return who + _sentence_of_call(event, data)
    if event.topic == "plan.task":
        return f"{who}plan: task {data.get('task', '')} {data.get('state', '')}"
    if event.topic.startswith("input."):
        return f"{who}input {data.get('input', '')}: {event.type}"
    if event.topic == "daemon.checkpoint" and "fingerprint" in data:
        return _sentence_of_checkpoint(event, data)
    if event.topic.startswith(("agent.error", "agent.retry", "budget.", "daemon.", "policy.")):
        return who + f"{event.type}: {data.get('message', '')}".rstrip(": ")
    return f"{who}{event.topic} {event.type}"


def _sentence_of_checkpoint(event: Event, data: Mapping[str, Any]) -> str:
    key = str(data["fingerprint"])[:16]
    if event.type == "key":
        return f"key: {key} signs the history from now on"
    return f"signed: the history up to event {data.get('seq', '?')}, with the key {key}"


def _shows_args(data: Mapping[str, Any]) -> bool:
    return "args" in data and data.get("tool") not in _TOLD_IN_CONVERSATION


def _sentence_of_call(event: Event, data: Mapping[str, Any]) -> str:
    call = f"{data['tool']}.{data['action']}"
    if event.topic.startswith("approval."):
        call = f"approval {data.get('approval', '')}: {call}"
    if event.type == "invocation":
        return f"{call} {data.get('result', '')} in {data.get('duration_ms', '?')} ms"
    args = f" {_short(dump_json(data['args']).decode())}" if _shows_args(data) else ""
    return f"{event.type} {call}{args}"
