"""Writes what was asked and answered to the journal, signed, as it comes from the requests.

The journal can be away, or full. What it does not take waits here and is sent later; the log of the requests
has it meanwhile. After a start the last request of the log is written once more, since a kill may have come
between the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.approver.request import Request
from lightagentd.events.journal import signed_record
from lightagentd.events.journal.journal_socket import JournalSocket
from lightagentd.host.users import called
from lightagentd.text.reason import reason

MOST_WAITING = 2000
AGAIN_S = 1.0
_KINDS = {"waiting": "asked", "granted": "granted", "denied": "denied"}
_log = logging.getLogger(__name__)


class Records:
    """In a running event loop. Its owner calls `close`."""

    def __init__(self, key: Ed25519PrivateKey, journal: JournalSocket) -> None:
        """`journal` does not block."""
        self._key, self._journal = key, journal
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._again: asyncio.TimerHandle | None = None
        self.lost = 0
        """How many could not wait any longer."""

    @property
    def problem(self) -> str:
        """What the journal has not taken, as a sentence; empty when it has all."""
        if not self.lost and self._again is None:
            return ""
        return f"{len(self._waiting)} records wait for journald, and {self.lost} are lost."

    def write(self, request: Request) -> None:
        """What a request that is new or has changed says."""
        if (kind := _KINDS.get(request.state)) is None:
            return
        statement = request.statement
        record: dict[str, Any] = {"kind": kind, "approval": request.id, "digest": request.digest}
        names = ("call_id", "agent", "owner", "session", "tool", "action")
        record |= {name: getattr(statement, name) for name in names}
        who = f"agent {statement.agent}"
        if kind != "asked":
            who = called(request.by or 0)
            record |= {"by": request.by, "answered_us": request.answered_us, "leave": request.leave}
        if request.grant is not None:
            record["grant"] = request.grant["grant"]
        self._waiting.append((f"{kind} by {who}: {request.id}", record))
        if self._again is None:
            self._send()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._journal.close()

    def _send(self) -> None:
        self._again = None
        while self._waiting:
            try:
                signed_record.send(self._journal, self._key, *self._waiting[0])
            except OSError as err:
                _log.info("the journal takes no record: %s", reason(err))
                while len(self._waiting) > MOST_WAITING:
                    self._waiting.popleft()
                    self.lost += 1
                self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._send)
                return
            self._waiting.popleft()
