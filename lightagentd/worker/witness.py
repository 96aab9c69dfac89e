"""What a worker for change writes to the journal itself: which call begins, how it ended, what it refused.

The daemon has no part in these records. They are signed with a key of the worker's own state folder, beside
which its public half lies. The record that a call begins is with journald before the call begins; without
that nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.errors import StorageError, WorkerUnavailable
from lightagentd.events.journal import signed_record
from lightagentd.events.journal.journal_socket import SOCKET, JournalSocket
from lightagentd.host.kept_key import kept_key
from lightagentd.signed.public_keys import publish
from lightagentd.text.reason import reason

KEY = "key"
PATIENCE_S = 2.0
"""How long a journald that has too much to do is waited for."""
_PAUSE_S = 0.02


class Witness:
    """That of one worker. Its owner calls `close`."""

    def __init__(self, agent: str, state: Path, journal: Path = SOCKET) -> None:
        """`state` is the worker's own folder, `journal` the socket of journald."""
        self._agent, self._state = agent, state
        self._journal = JournalSocket(journal, blocking=False)
        self._key: Ed25519PrivateKey | None = None

    async def tell(self, kind: str, message: str, **record: Any) -> None:
        """Write one record. Raises WorkerUnavailable where journald does not take it, StorageError where
        there is no key.
        """
        key = self._signing_key()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                signed_record.send(
                    self._journal, key, message, {"kind": kind, "agent": self._agent, **record}
                )
                return
            except BlockingIOError as err:
                if time.monotonic() > deadline:
                    raise _silent(err) from err
                await asyncio.sleep(_PAUSE_S)
            except OSError as err:
                raise _silent(err) from err

    async def tell_if_possible(self, kind: str, message: str, **record: Any) -> None:
        """As `tell`, of what has happened already."""
        with contextlib.suppress(WorkerUnavailable, StorageError):
            await self.tell(kind, message, **record)

    def close(self) -> None:
        self._journal.close()

    def _signing_key(self) -> Ed25519PrivateKey:
        """Raises StorageError."""
        if self._key is None:
            try:
                key = Ed25519PrivateKey.from_private_bytes(kept_key(self._state / KEY))
                publish(self._state, key.public_key().public_bytes_raw())
            except OSError as err:
                raise StorageError(
                    f"The key of this worker's records cannot be kept: {reason(err, at=True)}.",
                    suggestion="Nothing was run. Look at the disk and its room.",
                ) from err
            self._key = key
        return self._key


def _silent(err: OSError) -> WorkerUnavailable:
    why = reason(err) if err.errno else os.strerror(11)
    return WorkerUnavailable(
        f"The journal does not take the record that a change begins: {why}.",
        suggestion="Nothing was run. See: systemctl status systemd-journald.service",
    )
