"""Sends each stored event to journald, in a thread of its own, so that a stuck journal delays nobody.

The journal gets what happened (a tool call with its redacted arguments, as sudo logs its commands) and the
event's hash, but not the content of prompts, output and messages: whoever may read the journal would
read everyone's. Fields are described in systemd.journal-fields(7); ours begin with LIGHTAGENT.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightagentd.events.model import Event, dump_json

_log = logging.getLogger(__name__)

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
QUEUE_LIMIT = 10_000
"""Events that may wait; beyond it the newest are dropped here and counted (the history has them)."""
_FIELD_MAX_BYTES = 4096
_NAMESPACE = uuid.UUID("6c1f6f3e-7f0a-4f43-9d5e-2a1b3a7d6a10")

_ERRORS = ("agent.error", "daemon.error")


def message_id(topic: str, event_type: str) -> str:
    """The MESSAGE_ID of a type of event: 32 hexadecimal digits, the same on every machine."""
    group = "tool" if topic.startswith("tool.") and event_type == "invocation" else topic
    return uuid.uuid5(_NAMESPACE, f"{group}/{event_type}").hex


def journal_fields(event: Event) -> dict[str, str]:
    """The fields of one event, without its content."""
    data = event.data or {}
    fields = {
        "MESSAGE": _sentence(event, data),
        "MESSAGE_ID": message_id(event.topic, event.type),
        "PRIORITY": "3" if event.topic in _ERRORS else "6",
        "SYSLOG_IDENTIFIER": "lightagentd",
        "LIGHTAGENT_SEQ": str(event.seq),
        "LIGHTAGENT_HASH": event.hash,
        "LIGHTAGENT_TOPIC": event.topic,
        "LIGHTAGENT_TYPE": event.type,
        "LIGHTAGENT_AGENT": event.agent,
        "LIGHTAGENT_SESSION": event.session,
        "LIGHTAGENT_CALLER_UID": "" if event.owner is None else str(event.owner),
        "LIGHTAGENT_REQUEST_ID": event.request_id,
        "LIGHTAGENT_TRACE_ID": event.trace_id,
    }
    for name in ("tool", "action", "effect", "decision", "duration_ms", "result"):
        if name in data:
            fields[f"LIGHTAGENT_{name.upper()}"] = str(data[name])
    if "args" in data:
        fields["LIGHTAGENT_ARGS"] = _short(dump_json(data["args"]).decode())
    return {key: value for key, value in fields.items() if value}


def _short(text: str) -> str:
    raw = text.encode()
    if len(raw) <= _FIELD_MAX_BYTES:
        return text
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: _FIELD_MAX_BYTES - 64].decode(errors="ignore") + f"… ({len(raw)} bytes, sha256 {digest})"


def _sentence(event: Event, data: dict[str, Any]) -> str:
    who = f"{event.agent}: " if event.agent else ""
    if "tool" in data and "action" in data:
        call = f"{data['tool']}.{data['action']}"
        what = f"{event.type} {call}"
        if event.type == "invocation":
            what = f"{call} {data.get('result', '')} in {data.get('duration_ms', '?')} ms"
        elif "args" in data:
            what = f"{event.type} {call} {_short(dump_json(data['args']).decode())}"
        return who + what
    if event.topic in _ERRORS or event.topic.startswith("daemon."):
        return who + _short(f"{event.type}: {data.get('message', '')}".rstrip(": "))
    return f"{who}{event.topic} {event.type}"


class JournaldSink:
    """Owns the sending thread. `send` never blocks; `dropped` counts what did not get through."""

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None

    @staticmethod
    def available() -> bool:
        return JOURNAL_SOCKET.exists()

    def start(self) -> None:
        from systemd import journal

        self._thread = threading.Thread(target=self._run, args=(journal.send,), name="journald", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, for a limited time."""
        if self._thread is not None:
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:
                self.dropped += self._queue.qsize()
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self, send: Callable[..., None]) -> None:
        while (event := self._queue.get()) is not None:
            try:
                fields = journal_fields(event)
                send(fields.pop("MESSAGE"), **fields)
            except (OSError, ValueError) as err:
                self.dropped += 1
                if self.dropped == 1:
                    _log.warning("journald does not take events: %s", err)
