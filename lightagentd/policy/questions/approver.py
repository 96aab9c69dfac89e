"""The daemon's side of the approver, which alone answers for changes where systemd runs their workers.

The daemon registers a call there and waits for what became of it. A granted one comes with a signature, which
the worker for change looks at; to this daemon it means nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lightagentd.config.terms import Terms
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalNotFound,
    LightagentError,
    Unavailable,
    WorkerUnavailable,
)
from lightagentd.events.history import History
from lightagentd.host.seat import Seat
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.approvals import Approvals
from lightagentd.signed.statement import Statement
from lightagentd.text.reason import reason
from lightagentd.varlink.server import VarlinkConnection

_log = logging.getLogger(__name__)

SOCKET = Path("/run/lightagent-approver/daemon.sock")
ANSWER_S = 5.0
STOP_S = 2.0
AGAIN_S = 1.0
AT_ONCE_S = 0.1
"""So soon the approver answers by itself what a person allowed for a session."""
_INTERFACE = "org.lightagent1.ApproverRequests"
_FORGOTTEN = "The approver does not know it any more."


class ApproverLink:
    def __init__(self, approvals: Approvals, history: History, path: Path = SOCKET) -> None:
        self._approvals, self._history, self._path = approvals, history, path
        self._lapsing: set[asyncio.Task[None]] = set()

    async def register(
        self, approval_id: str, statement: Statement, said: dict[str, Any], expires_us: int
    ) -> str:
        """Register a call; gives the digest of its statement. Raises WorkerUnavailable, and what the approver
        says of a call that it does not take.
        """
        try:
            reply = await self._call(
                "Register",
                approval=approval_id,
                statement=statement.to_dict(),
                said=said,
                expires_us=expires_us,
            )
        except (OSError, Unavailable) as err:
            raise self._gone(err) from err
        return str(reply["digest"])

    async def at_once(self, asked: Approval) -> Approval | None:
        """A registered approval as the approver grants it by itself, since a person allowed the call for its
        session; None for one that waits for a person.
        """
        try:
            reply = await self._call("Wait", limit_s=AT_ONCE_S, approval=asked.id)
        except (OSError, LightagentError):
            return None
        answer = reply["answer"]
        if answer["state"] != "granted":
            return None
        return self._approvals.answered(asked, grant=True, **_answer_of(answer))

    @contextlib.asynccontextmanager
    async def following(self, asked: Approval | None) -> AsyncIterator[None]:
        """A block in which what the approver says becomes the answer of an approval that it has."""
        if asked is None or not asked.approver:
            yield
            return
        task = asyncio.create_task(self._follow(asked.id), name=f"approver-{asked.id}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            found = self._approvals.questions.find(asked.id)
            if not self._approvals.questions.suspended and (found is None or not found.pending):
                self._lapse(asked.id)

    async def signature(self, approval_id: str) -> dict[str, str]:
        """That of a granted approval, which its worker asks for. Raises WorkerUnavailable, and others."""
        try:
            reply = await self._call("Wait", approval=approval_id)
        except (OSError, Unavailable) as err:
            raise self._gone(err) from err
        return dict(reply["answer"]["grant"] or {})

    async def stop(self, why: str) -> list[str]:
        """Tell the approver to sign nothing any more; gives why that failed, if it did, as a sentence."""
        try:
            found = (await self._call("Panic", limit_s=STOP_S, reason=why))["panic"]
        except (OSError, LightagentError) as err:
            return [f"The approver was not told of the stop: {reason(err)}."]
        return [] if found["stored"] else ["The stop would not outlast a restart of the approver."]

    async def _follow(self, approval_id: str) -> None:
        while True:
            try:
                reply = await self._call("Wait", limit_s=None, approval=approval_id)
                if reply["answer"]["state"] == "lapsed":  # it made room for others
                    raise ApprovalNotFound(_FORGOTTEN)
                await self._take(approval_id, reply["answer"])
                return
            except ApprovalClosed:
                return
            except ApprovalNotFound:
                events, changes = self._approvals.questions.lapse(approval_id, _FORGOTTEN)
                await self._history.append(*events, changes=changes)
                return
            except (OSError, LightagentError) as err:
                _log.warning("the answer to %s cannot be had from the approver yet: %s", approval_id, err)
                await asyncio.sleep(AGAIN_S)

    async def _take(self, approval_id: str, answer: dict[str, Any]) -> None:
        state = answer["state"]
        if state not in ("granted", "denied"):
            return  # expired, which this side sees by itself
        await self._approvals.answer(approval_id, grant=state == "granted", **_answer_of(answer))

    @staticmethod
    def _gone(err: Exception) -> WorkerUnavailable:
        return WorkerUnavailable(
            f"The approver, which has to be asked about changes, cannot be reached: {reason(err)}.",
            suggestion="See why: systemctl status lightagent-approver.socket lightagent-approver.service",
        )

    def _lapse(self, approval_id: str) -> None:
        """Tell the approver, in the background, that nobody has to answer any more."""

        async def tell() -> None:
            with contextlib.suppress(OSError, LightagentError):
                await self._call("Lapse", approval=approval_id)

        task = asyncio.create_task(tell(), name=f"lapse-{approval_id}")
        self._lapsing.add(task)
        task.add_done_callback(self._lapsing.discard)

    async def _call(self, method: str, *, limit_s: float | None = ANSWER_S, **parameters: Any) -> Any:
        """Raises OSError, and the approver's errors."""
        async with asyncio.timeout(limit_s):
            connection = await VarlinkConnection.connect(self._path)
            try:
                return await connection.call(f"{_INTERFACE}.{method}", **parameters)
            finally:
                connection.close()


def _answer_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The uid, note, seat and terms of an answer of the approver."""
    return {
        "uid": int(answer["by"]),
        "note": str(answer["note"]),
        "seat": Seat(**answer["seat"]),
        "terms": Terms.of(answer["terms"]),
    }
