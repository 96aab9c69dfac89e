"""What the programs of units write into the journal: one entry for an answer, with fields to find it by.

Answers come from models and from what they read, so they are made harmless here: secrets that look like
such are taken out, and control characters too, for which journalctl(1) would show no text at all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from lightagentd.events.journal.entry import message_id
from lightagentd.events.journal.journal_socket import SOCKET, JournalSocket
from lightagentd.redaction import Redactor
from lightagentd.unattended.asking import Answer

Kind = Literal["triage.answered", "triage.skipped", "triage.failed", "prompt.answered", "prompt.refused"]
"""Every kind of entry, each with its own MESSAGE_ID."""
MESSAGE_MAX = 48_000
"""Characters of an answer in the journal; the session has all of it."""
INFO, NOTICE, WARNING, ERROR = "6", "5", "4", "3"
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """The text without secrets and control characters."""
    return _CONTROL.sub("\ufffd", Redactor().text(text).replace("\r\n", "\n"))


def shortened(text: str) -> str:
    """The text, or its first MESSAGE_MAX characters and how many follow."""
    if len(text) <= MESSAGE_MAX:
        return text
    return text[:MESSAGE_MAX] + f"\n… ({len(text) - MESSAGE_MAX} more characters)"


def fields_of(agent: str, answer: Answer, correlation_id: str) -> dict[str, str]:
    """The fields by which the events of the same turn are found."""
    return {
        "LIGHTAGENT_AGENT": agent,
        "LIGHTAGENT_SESSION": answer.session,
        "LIGHTAGENT_TRACE_ID": answer.trace_id,
        "LIGHTAGENT_CORRELATION_ID": correlation_id,
        "LIGHTAGENT_DURATION_MS": str(answer.duration_ms),
    }


def enter(
    kind: Kind,
    message: str,
    *,
    priority: str = INFO,
    fields: Mapping[str, str] | None = None,
    socket: Path = SOCKET,
) -> None:
    """Write one entry; `kind` makes its MESSAGE_ID.

    Where there is no journald, the message goes to standard output.
    """
    topic, _, event_type = kind.rpartition(".")
    entry = {
        "MESSAGE": shortened(harmless(message)),
        "MESSAGE_ID": message_id(f"unattended.{topic}", event_type),
        "PRIORITY": priority,
        "SYSLOG_IDENTIFIER": f"lightagent-{topic}",
        **(fields or {}),
    }
    journal = JournalSocket(socket)
    try:
        journal.send({name: value for name, value in entry.items() if value})
    except OSError:
        sys.stdout.write(entry["MESSAGE"] + "\n")
    finally:
        journal.close()
