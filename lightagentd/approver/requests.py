"""The requests that the daemon has registered, their answers, the leaves, and the numbers of the grants.

All of it is in one log (`signed.keeping`): what was said is on the disk before anybody hears of it, so that a
kill or a power cut forgets nothing. A request never changes: a person's answer is to what was shown. One that
is over stays for a while, for a daemon that was away meanwhile. Requests with a secret are in memory alone.

The daemon may be anybody's, also only for a while. So what it registers is bounded, and when there is no room
the oldest question of the owner who has most makes room for a new one: no flood keeps a question from being
asked, and one that is pushed out has to be asked again. A flood is slowed down, too, since each request is a
record of the journal.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.approver.request import LONGEST_ASK_S, Leave, Request, checked, weight
from lightagentd.config.terms import Terms
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalNotFound,
    Conflict,
    LightagentError,
    LimitExceeded,
    NotFound,
    StorageError,
)
from lightagentd.policy.panic import Panic
from lightagentd.signed.grant import FRESH_S, Grant
from lightagentd.signed.keeping import Log
from lightagentd.signed.statement import Statement

FILE = "requests"
OPEN_IN_ALL, OPEN_OF_OWNER, LEAVES_OF_OWNER = 256, 100, 50
OVER = 256
"""So many requests that are over are kept."""
WEIGHT_BYTES = 6 << 20
"""What all requests take in memory together."""
BURST, EACH_S = 300, 0.2
"""So many registrations at once, and after them one in each such time."""
KEPT_S = 86_400.0
"""An answer stays for so long after the time of its question."""
PUSHED_OUT = "It made room for newer questions."
_REWRITE_BYTES = 4 << 20

Heard = Callable[[Request], None]


class Requests:
    """Those of the machine. Its owner calls `close`."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey, panic: Panic) -> None:
        """Raises StorageError."""
        self._folder, self._key, self._panic = folder, key, panic
        self.heard: list[Heard] = []
        """Called with each request that is new or has changed, once it is on the disk."""
        self._changed: dict[str, asyncio.Event] = {}
        self._series, self._number = "", 0
        """Of the last grant that was signed."""
        self._allowance, self._counted_at = float(BURST), time.monotonic()
        self.last: Request | None = None
        """The last one in the log: nobody may have heard of it before a kill."""
        self._all: dict[str, Request] = {}
        self._leaves: dict[str, Leave] = {}
        self._weights: dict[str, int] = {}
        try:
            self._log = Log(folder / FILE)
            for one in self._log.records:
                self._take(one)
        except StorageError as err:
            raise (_damaged(folder / FILE) if isinstance(err.__cause__, ValueError) else err) from err
        except (TypeError, KeyError, LightagentError) as err:
            raise _damaged(folder / FILE) from err
        self._failed = False
        self._rewrite_at = max(_REWRITE_BYTES, self._log.size_bytes)
        self._log.records.clear()
        if not self._series:
            self._series = secrets.token_hex(8)
            self._log.add(self._numbered())

    def _take(self, record: dict[str, Any]) -> None:
        self._series, self._number = record["series"], max(self._number, record["number"])
        if found := record.get("leave"):
            self._leaves[found["id"]] = Leave.of(found)
        self._leaves.pop(record.get("withdrawn", ""), None)
        if found := record.get("request"):
            self.last = self._all[found["id"]] = Request.of(found)
            self._weights[found["id"]] = weight(self.last.statement, self.last.said)

    def add(self, request_id: str, statement: Any, said: Any, expires_us: int) -> Request:
        """Register a request, or find the one that is registered already. Where a leave allows it, it is
        granted at once. Raises Conflict for another one with this id, LimitExceeded, StorageError, and what
        `request.checked` raises.
        """
        now_us = _now_us()
        made, weight_bytes = checked(request_id, statement, said, expires_us, now_us=now_us)
        if (found := self._all.get(request_id)) is not None:
            same = replace(found.statement, **_terms(made)) == made
            if not same or (found.state == "waiting" and found.statement != made):
                raise Conflict(f"{request_id} is registered for another call.")
            return found
        self._count()
        self._make_room(made.owner, weight_bytes)
        request = Request(
            id=request_id,
            statement=made,
            said=said,
            created_us=now_us,
            expires_us=min(expires_us, now_us + int(LONGEST_ASK_S * 1_000_000)),
        )
        self._weights[request_id] = weight_bytes
        self._store(request)
        leave = next((one for one in self._leaves.values() if one.is_for(request)), None)
        if leave is None or self._panic.on:
            return request
        leave = replace(leave, left=leave.left - 1)
        granted = replace(request, leave=leave.id)
        return self._grant(granted, by=leave.by, terms=leave.terms, leave=leave)

    def get(self, request_id: str) -> Request:
        """Raises ApprovalNotFound."""
        if (found := self._all.get(request_id)) is None:
            raise ApprovalNotFound(
                f"The approver has no request {request_id[:80]!r}.",
                suggestion="lactl approvals lists those that wait.",
                field="approval",
            )
        return found.at(_now_us())

    def waiting(self) -> list[Request]:
        """The oldest first."""
        now_us = _now_us()
        return [one for one in self._all.values() if one.at(now_us).state == "waiting"]

    def leaves(self) -> list[Leave]:
        """Those that count, the oldest first."""
        now_us = _now_us()
        return [one for one in self._leaves.values() if one.left > 0 and one.until_us > now_us]

    def answer(
        self,
        found: Request,
        *,
        grant: bool,
        by: int,
        note: str = "",
        seat: dict[str, Any] | None = None,
        terms: Terms | None = None,
        leave_tainted: bool | None = None,
    ) -> Request:
        """Store the answer of a person, who must be authorized, and sign it if it is a yes, on their terms.
        With `leave_tainted` they allow the same call for its session, too. Raises ApprovalClosed, Conflict,
        Panicked, StorageError.
        """
        there = self.get(found.id)
        if there.state != "waiting":
            raise ApprovalClosed(f"{found.id} is {there.state} already.", field="approval")
        if there != found:  # it was asked for anew, while polkit was asked about the answer
            raise ApprovalClosed(f"{found.id} is another question by now.", field="approval")
        answered = replace(found, by=by, answered_us=_now_us(), note=note, seat=seat or {})
        if not grant:
            return self._store(replace(answered, state="denied"))
        self._panic.check()
        signed_on = found.terms if terms is None else terms.fields()
        leave = None
        if leave_tainted is not None:
            leave = Leave.given(
                replace(answered, statement=found.statement.on_terms(signed_on)),
                found.statement,
                tainted=leave_tainted,
                leave_id=f"leave_{secrets.token_hex(10)}",
            )
            if sum(one.statement.owner == found.statement.owner for one in self.leaves()) >= LEAVES_OF_OWNER:
                raise LimitExceeded(
                    f"{LEAVES_OF_OWNER} leaves are in force for this owner already.",
                    suggestion="Withdraw one, or allow the call once.",
                )
        return self._grant(answered, by=by, terms=signed_on, leave=leave)

    def lapse(self, request_id: str, why: str = "") -> None:
        """The call of a request will not run. Raises ApprovalNotFound, StorageError."""
        found = self.get(request_id)
        if found.state == "waiting":
            self._store(replace(found, state="lapsed", answered_us=_now_us(), note=why))

    def leave(self, leave_id: str) -> Leave:
        """Raises NotFound."""
        if (found := next((one for one in self.leaves() if one.id == leave_id), None)) is None:
            raise NotFound(f"There is no leave {leave_id[:80]!r}.", field="leave")
        return found

    def withdraw(self, leave_id: str) -> None:
        """Raises StorageError."""
        self._write(withdrawn=leave_id)
        self._leaves.pop(leave_id, None)

    async def answered(self, request_id: str) -> Request:
        """Wait until a request waits no more. Raises ApprovalNotFound."""
        while (found := self.get(request_id)).state == "waiting":
            changed = self._changed.setdefault(request_id, asyncio.Event())
            left_s = (found.expires_us - _now_us()) / 1e6
            try:
                async with asyncio.timeout(min(60.0, max(0.01, left_s))):
                    await changed.wait()
            except TimeoutError:
                continue
        return found

    def close(self) -> None:
        self._log.close()

    # The bounds of all requests together

    def _count(self) -> None:
        """Raises LimitExceeded."""
        now = time.monotonic()
        self._allowance = min(float(BURST), self._allowance + (now - self._counted_at) / EACH_S)
        self._counted_at = now
        if self._allowance < 1:
            raise LimitExceeded(
                "Too many changes were asked for in a short time.",
                suggestion="Wait a moment, then try again.",
            )
        self._allowance -= 1

    def _make_room(self, owner: int, weight_bytes: int) -> None:
        """Raises StorageError."""
        now_us = _now_us()
        before_us = now_us - int(KEPT_S * 1_000_000)
        over = [one for one in self._all.values() if one.at(now_us).state != "waiting"]
        fresh_us = now_us - int(FRESH_S * 1_000_000)
        over.sort(key=lambda one: (one.state == "granted" and one.answered_us > fresh_us, one.answered_us))
        for number, one in enumerate(over):
            if one.expires_us < before_us or len(over) - number > OVER or self._is_full(weight_bytes):
                self._drop(one.id)
        while waiting := self.waiting():
            of_owner = Counter(one.statement.owner for one in waiting)
            whose = of_owner.most_common(1)[0][0]
            if of_owner[owner] >= OPEN_OF_OWNER:
                whose = owner
            elif len(waiting) < OPEN_IN_ALL and not self._is_full(weight_bytes):
                return
            oldest = next(one for one in waiting if one.statement.owner == whose)
            self.lapse(oldest.id, PUSHED_OUT)
            if self._is_full(weight_bytes):
                self._drop(oldest.id)

    def _is_full(self, weight_bytes: int) -> bool:
        return sum(self._weights.values()) + weight_bytes > WEIGHT_BYTES

    def _drop(self, request_id: str) -> None:
        """Forget one that is over; those who wait for it hear that it is not there."""
        del self._all[request_id], self._weights[request_id]
        if (changed := self._changed.pop(request_id, None)) is not None:
            changed.set()

    # What is on the disk

    def _grant(self, answered: Request, *, by: int, terms: dict[str, Any], leave: Leave | None) -> Request:
        """Raises StorageError."""
        now_us = _now_us()
        granted = replace(
            answered,
            statement=answered.statement.on_terms(terms),
            state="granted",
            by=by,
            answered_us=now_us,
        )
        self._number += 1
        signed = Grant(
            digest=granted.digest,
            agent=granted.statement.agent,
            effect=granted.statement.effect,
            owner=granted.statement.owner,
            by=by,
            series=self._series,
            number=self._number,
            expires_us=now_us + int(FRESH_S * 1_000_000),
        )
        return self._store(replace(granted, grant=signed.signed(self._key)), leave)

    def _store(self, request: Request, leave: Leave | None = None) -> Request:
        """Raises StorageError."""
        more = {} if leave is None else {"leave": leave.to_dict()}
        self._write(**({} if request.is_secret else {"request": asdict(request)}), **more)
        self._all[request.id] = request
        if leave is not None:
            self._leaves[leave.id] = leave
        for tell in self.heard:
            tell(request)
        if (changed := self._changed.pop(request.id, None)) is not None:
            changed.set()
        return request

    def _write(self, **record: Any) -> None:
        """Raises StorageError: then nothing has changed, also where the record is on the disk by now."""
        try:
            if self._failed:
                self._log = Log(self._folder / FILE)
            if self._failed or self._log.size_bytes > self._rewrite_at:
                self._log.rewrite(self._records())
                self._rewrite_at = max(_REWRITE_BYTES, 2 * self._log.size_bytes)
            self._failed = False
            self._log.add({**self._numbered(), **record})
        except StorageError:
            self._log.close()
            self._failed = True
            raise

    def _numbered(self) -> dict[str, Any]:
        return {"series": self._series, "number": self._number}

    def _records(self) -> Iterator[dict[str, Any]]:
        yield self._numbered()
        for leave in self.leaves():
            yield {**self._numbered(), "leave": leave.to_dict()}
        for one in self._all.values():
            if not one.is_secret:
                yield {**self._numbered(), "request": asdict(one)}


def _now_us() -> int:
    return time.time_ns() // 1000


def _terms(statement: Statement) -> dict[str, Any]:
    return {name: getattr(statement, name) for name in ("confirm_within_s", "check", "inverse")}


def _damaged(path: Path) -> StorageError:
    return StorageError(
        f"{path} is damaged, or of a newer version.",
        suggestion="Look at the disk. To begin anew, so that all that waits has to be asked for again:"
        f" mv {path} {path}.damaged; systemctl restart lightagent-approver.service",
    )
