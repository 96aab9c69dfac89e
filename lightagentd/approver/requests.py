"""The requests that the daemon has registered, their answers, and the numbers of the grants.

All of it is in one log (`signed.keeping`): what was said is on the disk before anybody hears of it, so that a
kill or a power cut forgets nothing. A request never changes: a person's answer is to what was shown. One that
is over stays until its time has passed, for a daemon that was away meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.config.terms import Terms
from lightagentd.errors import ApprovalClosed, ApprovalNotFound, Conflict, LimitExceeded
from lightagentd.host.users import called
from lightagentd.signed.grant import FRESH_S, Grant
from lightagentd.signed.keeping import Log
from lightagentd.signed.statement import Statement

FILE = "requests"
OPEN_IN_ALL, OPEN_OF_OWNER = 1000, 100
STATEMENT_CHARS, SAID_CHARS = 512 << 10, 128 << 10
"""The longest statement, and the longest text beside it, as JSON."""
LONGEST_S = 7 * 86_400.0
"""A request is over after that, whatever time the daemon asked for."""
KEPT_S = 86_400.0
"""An answer stays for so long after the time of its question."""
_REWRITE_BYTES = 16 << 20

State = Literal["waiting", "granted", "denied", "expired", "lapsed"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """`said` is what the daemon says of the call beside the statement: preview, rule, reason, trace_id,
    tainted, hidden. The answer is by a user, at a time in microseconds, with a note and from a seat.
    """

    id: str
    statement: Statement
    said: dict[str, Any]
    created_us: int
    expires_us: int
    state: State = "waiting"
    by: int | None = None
    answered_us: int = 0
    note: str = ""
    seat: dict[str, Any] = field(default_factory=dict)
    grant: dict[str, str] | None = None

    @property
    def digest(self) -> str:
        return self.statement.digest

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "digest": self.digest}


class Requests:
    """Those of the machine. Its owner calls `close`."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey) -> None:
        """Raises StorageError."""
        self._key = key
        self._log = Log(folder / FILE)
        self._all: dict[str, Request] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._series, self._number = secrets.token_hex(8), 0
        begun = bool(self._log.records)
        for one in self._log.records:
            self._take(one)
        self._log.records.clear()
        if not begun:
            self._log.add({"series": self._series, "number": 0})

    def _take(self, record: dict[str, Any]) -> None:
        if "series" in record:
            self._series, self._number = record["series"], max(self._number, record["number"])
            return
        fields = {name: one for name, one in record.items() if name not in ("number", "statement")}
        made = Request(statement=Statement.of(record["statement"]), **fields)
        self._all[made.id] = made
        self._number = max(self._number, record["number"])

    def add(self, request_id: str, statement: Statement, said: dict[str, Any], expires_us: int) -> Request:
        """Register a request, or find the one that is registered already. Raises Conflict for another one
        with this id, LimitExceeded, StorageError.
        """
        if (found := self._all.get(request_id)) is not None:
            same = replace(found.statement, **_terms_of(statement)) == statement
            if not same or (found.state == "waiting" and found.statement != statement):
                raise Conflict(f"{request_id} is registered for another call.")
            return found
        waiting = self.waiting()
        of_owner = sum(one.statement.owner == statement.owner for one in waiting)
        if len(waiting) >= OPEN_IN_ALL or of_owner >= OPEN_OF_OWNER:
            raise LimitExceeded(
                f"{len(waiting)} requests wait at the approver, {of_owner} of {called(statement.owner)}."
            )
        now_us = time.time_ns() // 1000
        latest_us = now_us + int(LONGEST_S * 1_000_000)
        made = Request(
            id=request_id,
            statement=statement,
            said=said,
            created_us=now_us,
            expires_us=min(expires_us, latest_us),
        )
        self._store(made)
        return made

    def get(self, request_id: str) -> Request:
        """Raises ApprovalNotFound."""
        if (found := self._all.get(request_id)) is None:
            raise ApprovalNotFound(
                f"The approver has no request {request_id[:60]!r}.",
                suggestion="lactl approvals lists those that wait.",
                field="approval",
            )
        return self._expired(found)

    def waiting(self) -> list[Request]:
        """The oldest first."""
        return [one for one in map(self._expired, [*self._all.values()]) if one.state == "waiting"]

    def answer(
        self,
        found: Request,
        *,
        grant: bool,
        by: int,
        note: str = "",
        seat: dict[str, Any] | None = None,
        terms: Terms | None = None,
    ) -> Request:
        """Store the answer of a person, who must be authorized, and sign it if it is a yes, on their terms.
        Raises ApprovalClosed, StorageError.
        """
        found = self.get(found.id)
        if found.state != "waiting":
            raise ApprovalClosed(f"{found.id} is {found.state} already.", field="approval")
        now_us = time.time_ns() // 1000
        answered = replace(
            found,
            state="granted" if grant else "denied",
            by=by,
            answered_us=now_us,
            note=note,
            seat=seat or {},
        )
        if grant:
            if terms is not None:
                answered = replace(answered, statement=found.statement.on_terms(terms.fields()))
            self._number += 1
            signed = Grant(
                digest=answered.digest,
                agent=answered.statement.agent,
                effect=answered.statement.effect,
                owner=answered.statement.owner,
                by=by,
                series=self._series,
                number=self._number,
                expires_us=now_us + int(FRESH_S * 1_000_000),
            )
            answered = replace(answered, grant=signed.signed(self._key))
        self._store(answered)
        return answered

    def lapse(self, request_id: str) -> None:
        """The call of a request will not run. Raises ApprovalNotFound, StorageError."""
        found = self.get(request_id)
        if found.state == "waiting":
            self._store(replace(found, state="lapsed", answered_us=time.time_ns() // 1000))

    async def answered(self, request_id: str) -> Request:
        """Wait until a request waits no more. Raises ApprovalNotFound."""
        while (found := self.get(request_id)).state == "waiting":
            changed = self._changed.setdefault(request_id, asyncio.Event())
            left_s = (found.expires_us - time.time_ns() // 1000) / 1e6
            try:
                async with asyncio.timeout(min(60.0, max(0.01, left_s))):
                    await changed.wait()
            except TimeoutError:
                continue
        return found

    def close(self) -> None:
        self._log.close()

    def _expired(self, found: Request) -> Request:
        """Its time is over when the clock says so; nothing is stored of that, since it is said each time."""
        if found.state == "waiting" and time.time_ns() // 1000 >= found.expires_us:
            return replace(found, state="expired")
        return found

    def _store(self, request: Request) -> None:
        """Raises StorageError: then nothing has changed here, and the program has to be started again."""
        if self._log.size_bytes > _REWRITE_BYTES:
            self._rewrite()
        self._log.add({**asdict(request), "number": self._number})
        self._all[request.id] = request
        if (changed := self._changed.pop(request.id, None)) is not None:
            changed.set()

    def _rewrite(self) -> None:
        before_us = time.time_ns() // 1000 - int(KEPT_S * 1_000_000)
        self._all = {key: one for key, one in self._all.items() if one.expires_us > before_us}
        self._log.rewrite(self._records())

    def _records(self) -> Iterator[dict[str, Any]]:
        yield {"series": self._series, "number": self._number}
        for one in self._all.values():
            yield {**asdict(one), "number": self._number}


def _terms_of(statement: Statement) -> dict[str, Any]:
    return {name: getattr(statement, name) for name in ("confirm_within_s", "check", "inverse")}
