"""The journal entries of the programs of units: one entry for an answer, with fields to find it by.

Answers come from models and the texts they read, so they are cleaned here: apparent secrets are removed, and
control characters too, for which journalctl(1) would show no text at all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from lightagentd.events.journal.journal_socket import SOCKET, JournalSocket
from lightagentd.events.model import message_id
from lightagentd.redaction import Redactor
from lightagentd.unattended.asking import Answer

Kind = Literal[
    "triage.answered",
    "triage.skipped",
    "triage.failed",
    "prompt.answered",
    "prompt.refused",
    "trigger.answered",
    "trigger.refused",
    "trigger.failed",
]
"""Every kind of entry, each with its own MESSAGE_ID."""
CATALOG: Mapping[Kind, str] = {
    "triage.answered": """An agent looked into a unit that failed
    The unit has OnFailure=lightagent-triage@%n.service, and failed. The message is the agent's diagnosis. It
    was written by a model or a skill from what the machine's logs say: check it before you act on it.
    > To ask on: lactl sessions show @SESSION@""",
    "triage.skipped": """A unit failed and was not looked into
    The message says why: the unit belongs to lightagentd, it had its diagnosis a short time ago, too many
    units failed at once, or the daemon does not run.
    > To ask by hand: lactl prompt ops "why did UNIT fail\"""",
    "triage.failed": """A unit failed, and no agent could say why
    The daemon was asked for a diagnosis, and that went wrong; the message says how.
    > How the daemon is: lactl status; lactl doctor""",
    "prompt.answered": """A prompt on a calendar was answered
    lightagent-prompt@@PROMPT@.service asked the agent @AGENT@. The message has the answer, or says where it
    went.
    > To go on: lactl sessions show @SESSION@. The file: /etc/lightagentd/prompts/@PROMPT@.toml""",
    "prompt.refused": """A prompt on a calendar wanted what nobody was there to allow
    Nobody can be asked while a prompt runs unattended, so the calls that the message names were refused.
    > To let them run from now on, write a rule for trigger and caller into /etc/lightagentd/policy.d; what
    it would do: lactl policy explain. What was refused: lactl trace show @TRACE_ID@""",
    "trigger.answered": """A trigger's agent @AGENT@ answered
    Something happened that /etc/lightagentd/triggers/@TRIGGER@.toml waits for, and the agent was asked. The
    message has the answer, or says where it went. It was written by a model or a skill from what happened:
    check it before you act on it.
    > To go on: lactl sessions show @SESSION@. What else happened: lactl triggers log @TRIGGER@""",
    "trigger.refused": """A trigger's agent @AGENT@ wanted what nobody was there to allow
    Nobody can be asked while a trigger's agent works, so the calls that the message names were refused.
    > To let them run from now on, name their effect in effects of
    /etc/lightagentd/triggers/@TRIGGER@.toml, or write a rule for the trigger @TRIGGER@ into
    /etc/lightagentd/policy.d. What was refused: lactl trace show @TRACE_ID@""",
    "trigger.failed": """A trigger's agent @AGENT@ came to no answer
    Something happened that /etc/lightagentd/triggers/@TRIGGER@.toml waits for, the agent was asked, and that
    went wrong; the message says how.
    > What it did: lactl trace show @TRACE_ID@. To try it by hand: lactl triggers test @TRIGGER@""",
}
"""What `journalctl -x` explains, as in the event types."""
MESSAGE_MAX = 48_000
"""Characters of an answer in the journal; the session has all of it."""
_LATE_S = 5.0
"""How long a journald that is late is waited for."""
INFO, NOTICE, WARNING, ERROR = "6", "5", "4", "3"
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """The text without secrets and control characters."""
    return _CONTROL.sub("\ufffd", Redactor().text(text).replace("\r\n", "\n"))


def shortened(text: str) -> str:
    """The text, or its first MESSAGE_MAX characters and the number of omitted ones."""
    if len(text) <= MESSAGE_MAX:
        return text
    return text[:MESSAGE_MAX] + f"\n… ({len(text) - MESSAGE_MAX} more characters)"


def fields_of(agent: str, answer: Answer, correlation_id: str) -> dict[str, str]:
    """The fields that find the events of the same turn."""
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
    """Write one entry; `kind` determines its MESSAGE_ID.

    Without journald, the message goes to standard output.
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
        journal.wait_read(_LATE_S)  # this program may end now
    except OSError:
        sys.stdout.write(entry["MESSAGE"] + "\n")
    finally:
        journal.close()
