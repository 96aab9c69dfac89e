"""The daemon's own messages in the journal: tracebacks, and messages that are not events.

Standard error would work, but it is a stream that journald holds: after a stop of journald, messages are lost
until the daemon is restarted. journald's own protocol needs no such stream, and keeps the severity, and a
traceback as one entry.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from lightagentd.events.context import current_context
from lightagentd.events.journal.entry import plain
from lightagentd.events.journal.journal_socket import SOCKET, JournalSocket
from lightagentd.redaction.logs import RedactingFilter

_PRIORITIES = ((logging.CRITICAL, "2"), (logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6"))
"""Levels of logging, and what they are in syslog(3)."""


class JournalHandler(logging.Handler):
    """Sends each message as an entry. It never waits: messages to a stuck journal are lost."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self._journal = JournalSocket(path, blocking=False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._journal.send(
                {
                    "MESSAGE": plain(self.format(record), keep="\t\n"),
                    "PRIORITY": next((one for level, one in _PRIORITIES if record.levelno >= level), "7"),
                    "SYSLOG_IDENTIFIER": "lightagentd",
                    "CODE_FILE": record.pathname,
                    "CODE_LINE": str(record.lineno),
                    "CODE_FUNC": record.funcName or "",
                    **_whose(),
                }
            )
        except OSError:
            pass  # standard error would end in the same journal
        except Exception:  # noqa: BLE001 - logging's own way: a message must not end what it is about
            self.handleError(record)

    def close(self) -> None:
        self._journal.close()
        super().close()


def _whose() -> dict[str, str]:
    """On whose behalf the message was logged, in the same fields as events."""
    own = current_context()
    fields = {
        "LIGHTAGENT_AGENT": own.agent,
        "LIGHTAGENT_SESSION": own.session,
        "LIGHTAGENT_CALLER_UID": "" if own.caller is None else str(own.caller),
        "LIGHTAGENT_REQUEST_ID": own.request_id,
        "LIGHTAGENT_TRACE_ID": own.trace_id,
    }
    return {name: value for name, value in fields.items() if value}


def handler() -> logging.Handler:
    """For this process: the journal where standard error is journald's (systemd.exec(5), JOURNAL_STREAM),
    else standard error.
    """
    if _stderr_is_journal():
        found: logging.Handler = JournalHandler()
        found.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        found = logging.StreamHandler()
        found.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")
        )
    found.addFilter(RedactingFilter())
    return found


def _stderr_is_journal() -> bool:
    try:
        info = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{info.st_dev}:{info.st_ino}"
