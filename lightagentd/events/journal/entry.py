"""The journal entry of a stored event. The event's type declares its sentence and its priority.

The journal gets actions (which tool did what, how that was decided and how it ended) and the event's hash,
but no arguments, and no content of prompts, output and messages: each reader of the journal, and so every
agent, would read everyone's. `journal_content` in the configuration adds both. Fields are described in
systemd.journal-fields(7); ours begin with LIGHTAGENT. The fields that describe a call are taken only from the
daemon's own events: a tool may put anything into its events.
"""

from __future__ import annotations

import re

from lightagentd.events.model import FROM_TOOL, Event, dump_json, message_id
from lightagentd.events.types.event_type import FIELD_MAX_BYTES, WARNING, EventType, shortened
from lightagentd.events.types.registry import type_of

GAP = ("daemon.journal", "gap")
"""Names the MESSAGE_ID of the entry that says which events the journal lacks; it is no event itself."""
GAP_CATALOG = """The journal lacks events of lightagentd
journald did not take @MISSING_COUNT@ events between the numbers @MISSING_FROM@ and @MISSING_TO@: it was not
running, or slower than they came. This entry stands where they are missing; it is no event itself.
> The history has them all: lactl events --since @MISSING_FROM@. That nobody changed it: lactl audit
verify. Why journald was away: journalctl -u systemd-journald"""

CONTENT_MAX_BYTES = 256 << 10
"""Of an event's data, where the configuration wants it in the journal."""

_CALL_FIELDS = ("tool", "action", "effect", "decision", "duration_ms", "result", "digest")
_CHECKPOINT_FIELDS = {
    "LIGHTAGENT_CHECKPOINT_SEQ": "seq",
    "LIGHTAGENT_CHECKPOINT_HASH": "hash",
    "LIGHTAGENT_CHECKPOINT_KEY": "fingerprint",
    "LIGHTAGENT_CHECKPOINT_PUBLIC_KEY": "public_key",
    "LIGHTAGENT_CHECKPOINT_SIGNATURE": "signature",
    "LIGHTAGENT_CHECKPOINT_ROWS": "rows_sha256",
}
"""What an auditor needs who has the journal alone, and where it is in the data of a checkpoint."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal or a reader could take for something else, and half characters."""


def journal_fields(event: Event, *, content: bool = False) -> dict[str, str]:
    """The fields of one event; with `content` also its whole data, and the arguments of a call."""
    data = event.data or {}
    own = event.source != FROM_TOOL
    declared = type_of(event) or EventType
    sentence = declared.sentence(event) if own else EventType.sentence(event)
    fields = {
        "MESSAGE": f"{event.agent}: {sentence}" if event.agent else sentence,
        "MESSAGE_ID": message_id(event.topic, event.type),
        "PRIORITY": declared.priority_of(event),
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
        if content and "args" in data:
            fields["LIGHTAGENT_ARGS"] = dump_json(data["args"]).decode()
    shown = {
        key: shortened(plain(value), 2 * FIELD_MAX_BYTES if key == "MESSAGE" else FIELD_MAX_BYTES)
        for key, value in fields.items()
        if value
    }
    if content and event.data is not None:
        shown["LIGHTAGENT_CONTENT"] = shortened(dump_json(event.data).decode(), CONTENT_MAX_BYTES)
    return shown


def gap_fields(first_seq: int, last_seq: int, count: int) -> dict[str, str]:
    """The fields of the entry that says which events the journal lacks."""
    lost = "1 event" if count == 1 else f"{count} events"
    return {
        "MESSAGE": f"the journal lacks {lost} from {first_seq} to {last_seq}; the history has them: "
        f"lactl events --since {first_seq}",
        "MESSAGE_ID": message_id(*GAP),
        "PRIORITY": WARNING,
        "SYSLOG_IDENTIFIER": "lightagentd",
        "LIGHTAGENT_MISSING_FROM": str(first_seq),
        "LIGHTAGENT_MISSING_TO": str(last_seq),
        "LIGHTAGENT_MISSING_COUNT": str(count),
    }


def plain(text: str, keep: str = "") -> str:
    """Text without control characters, in one line unless newlines are kept: journalctl(1) would hide a field
    with such characters.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
