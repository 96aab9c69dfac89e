"""Sends each stored event to journald, in a thread of its own, so that a stuck journal delays nobody.

The journal gets what happened (a tool call with its redacted arguments, as sudo logs its commands) and the
event's hash, but not the content of prompts, output and messages: whoever may read the journal would
read everyone's. Fields are described in systemd.journal-fields(7); ours begin with LIGHTAGENT. Those that
describe a call come from the daemon's own events alone: a tool may put what it likes into its events.
"""

from __future__ import annotations

import contextlib
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
FROM_TOOL = "tool"
"""The source of an event that a tool emitted."""


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
    own = event.source != FROM_TOOL
    for name in ("tool", "action", "effect", "decision", "duration_ms", "result"):
        if own and name in data:
            fields[f"LIGHTAGENT_{name.upper()}"] = _short(str(data[name]))
    if own and "args" in data:
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
    if event.source == FROM_TOOL:
        return f"{who}{event.topic} {_short(event.type)}"
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
        self._overflowed = 0  # written by whoever calls `send`
        self._failed = 0  # written by the sending thread
        self._abandoned = 0
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """How many events did not get through."""
        return self._overflowed + self._failed + self._abandoned

    @staticmethod
    def available() -> bool:
        """Whether journald runs here."""
        return JOURNAL_SOCKET.exists()

    def start(self, send: Callable[..., None] | None = None) -> None:
        """Start the thread. `send` takes the message and the fields, as `systemd.journal.send` does, which
        is what is called without one.
        """
        if send is None:
            from systemd import journal

            send = journal.send
        self._thread = threading.Thread(target=self._run, args=(send,), name="journald", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        """Queue an event. To be called by one thread only, the history's."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._overflowed += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, for a limited time."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                # The journal is stuck, and the thread with it, holding one event; the rest ends here.
                self._abandoned = 1 + self._drain()
                self._queue.put(None)
            self._thread = None

    def _drain(self) -> int:
        count = 0
        while True:
            try:
                count += self._queue.get_nowait() is not None
            except queue.Empty:
                return count

    def _run(self, send: Callable[..., None]) -> None:
        while (event := self._queue.get()) is not None:
            try:
                fields = journal_fields(event)
                send(fields.pop("MESSAGE"), **fields)
            except (OSError, ValueError) as err:
                self._failed += 1
                if self._failed == 1:
                    _log.warning("journald does not take events: %s", err)
