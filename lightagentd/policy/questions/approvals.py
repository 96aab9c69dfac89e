"""All approvals: asked for, answered, used once, and found again after a restart.

`Approvals` owns the stored state `approvals`. Each change of an approval commits together with its event
(`approval.requested`, `granted`, `denied`, `expired`, `used`, `lapsed`), and the use of one together with the
intent of its call, so that after a crash a call was either not begun or is known to have been. In memory are
the open ones; a volatile one has its arguments there and nowhere else, and lapses when the daemon ends.

Only `answer` and a call that its own approver makes grant, each with a uid that the kernel named: no text of
a model, a tool or a file comes here. Times on the wall are compared, because an approval outlives the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightagentd.errors import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalMismatch,
    ApprovalNotFound,
    ApprovalRequired,
    LimitExceeded,
    NotFound,
)
from lightagentd.events.history import Change, Event, History, NewEvent
from lightagentd.events.model import dump_json, new_id
from lightagentd.host.kept_key import KEY_BYTES, kept_key
from lightagentd.policy.questions import approval_events as told
from lightagentd.policy.questions.approval import Approval, Bound, State, now_us

_log = logging.getLogger(__name__)

_ID = re.compile(r"apr_[0-9a-f]{16}")
KEPT = 1000
"""Closed approvals that are kept beside their events, which stay as long as the history does."""
OPEN_OF_OWNER, OPEN_IN_ALL = 100, 1000
"""Open questions that there may be: more could nobody answer, and each costs memory."""
ARGS_CHARS = 256 << 10
"""The longest arguments, as JSON, that a person is asked about: nobody can judge more."""
PREVIEW_CHARS = 64 << 10
"""A preview is cut there, and says so; the arguments are never cut."""
RESTARTED = "It was kept in memory alone, because it holds a secret, and the daemon ended."
ABANDONED = "Nobody waits for its answer any more."


class Suspended(Exception):
    """The daemon stops while somebody waits for an answer. The question stays, for the next start."""


class Approvals:
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(self, history: History, *, timeout_s: float, key_file: Path) -> None:
        self._history = history
        self._timeout_us = int(timeout_s * 1_000_000)
        self._key_file = key_file
        self._key = b""
        self._volatile_key = secrets.token_bytes(KEY_BYTES)
        self._kept: deque[str] = deque()
        """The closed ones that are stored, the oldest first; about as many as may be kept."""
        self._open: dict[str, Approval] = {}
        self._storing: dict[str, asyncio.Future[list[Event]]] = {}
        """The approvals whose newest change is on its way to the disk."""
        self._asking: set[str] = set()
        """Those that are not on the disk at all yet."""
        self._changed: dict[str, asyncio.Event] = {}
        """Set, and then forgotten, when an approval that somebody waits for has changed."""
        self.suspended = False

    async def load(self) -> None:
        """Read what the last run left, and close what cannot be answered any more. Raises StorageError."""
        self._key = await asyncio.to_thread(kept_key, self._key_file)
        waiting = {str(turn.get("approval", "")) for turn in self._history.state("turns").values()}
        closed: list[Approval] = []
        for key, value in self._history.state("approvals").items():
            try:
                approval = Approval.from_dict(value)
            except (TypeError, KeyError, ValueError) as err:
                _log.error("the stored approval %s cannot be read and is dropped: %s", key, err)
                await self._history.append(changes=[Change(state="approvals", key=key, value=None)])
                continue
            if not approval.open:
                closed.append(approval)
                continue
            self._open[approval.id] = approval
            if approval.volatile:
                await self._close(approval, State.LAPSED, RESTARTED)
            elif approval.id not in waiting:
                await self._close(approval, State.LAPSED, ABANDONED)
            elif approval.overdue():
                await self._expire(approval)
        closed.sort(key=lambda approval: approval.created_us)
        self._kept.extendleft(one.id for one in reversed(closed))
        if old := self._too_old():
            await self._history.append(changes=old)

    # Asking

    def new(
        self,
        bound: Bound,
        *,
        owner: int,
        trace_id: str,
        call_id: str,
        preview: str,
        expected: dict[str, Any],
        rule: str,
        reason: str,
        hidden: Sequence[str] = (),
        granted: bool = False,
    ) -> Approval:
        """A question that is not stored yet. `hidden` are the arguments that nobody gets to see.

        With `granted` nobody has to read it, because its maker may approve it himself. Raises LimitExceeded
        when it is too large to be asked, or too many others are open.
        """
        self._check_room(bound, owner, granted=granted)
        if len(preview) > PREVIEW_CHARS:
            left = len(preview) - PREVIEW_CHARS
            preview = f"{preview[:PREVIEW_CHARS]}\n({left} more characters of this preview are left out)\n"
        secret = {"args": bound.args, "cwd": bound.cwd, "preview": preview, "expected": expected}
        volatile = bool(hidden) or not self._storable(secret)
        now = now_us()
        return Approval(
            id=new_id("apr"),
            **{name: getattr(bound, name) for name in Bound.__dataclass_fields__},
            owner=owner,
            trace_id=trace_id,
            call_id=call_id,
            digest=bound.digest(self._volatile_key if volatile else self._key),
            preview=preview,
            expected=expected,
            rule=rule,
            reason=reason,
            created_us=now,
            expires_us=now + self._timeout_us,
            volatile=volatile,
            hidden=tuple(hidden),
        )

    def _check_room(self, bound: Bound, owner: int, *, granted: bool) -> None:
        """Raises LimitExceeded."""
        name = f"{bound.tool}.{bound.action}"
        if not granted and len(json.dumps(bound.args)) > ARGS_CHARS:
            raise LimitExceeded(
                f"The arguments of {name} are longer than {ARGS_CHARS} characters: more than a person can be"
                " asked about.",
                suggestion="Ask for less at once.",
            )
        of_owner = sum(1 for one in self._open.values() if one.owner == owner)
        if of_owner >= OPEN_OF_OWNER or len(self._open) >= OPEN_IN_ALL:
            raise LimitExceeded(
                f"Too many questions are open already, {of_owner} of them of uid {owner}.",
                suggestion="They have to be answered first: lactl approvals",
            )

    async def request(
        self,
        approval: Approval,
        *before: NewEvent,
        changes: Sequence[Change] = (),
        granted_by: int | None = None,
    ) -> Approval:
        """Store a question, after other events and with other changes, in one transaction.

        `granted_by` is the person who made the call and may approve it: then it is granted at once.
        Raises StorageError.
        """
        events = [*before, told.requested(approval)]
        if granted_by is not None:
            approval = _answered(approval, State.GRANTED, granted_by, "")
            events.append(told.changed(approval))
        self._asking.add(approval.id)
        await asyncio.shield(self._store(None, approval, *events, changes=changes))
        return approval

    async def wait(self, approval_id: str) -> Approval:
        """Wait for the answer, and give the approval when it is granted.

        Raises ApprovalDenied, also when its time is over; ApprovalRequired when it lapsed; Suspended when
        the daemon stops meanwhile; StorageError.
        """
        while True:
            if storing := self._storing.get(approval_id):
                await asyncio.wait([storing])
                continue
            approval = self._open.get(approval_id)
            if approval is None or approval.state is not State.WAITING:
                return _granted(approval or self._closed(approval_id))
            if approval.overdue():
                await self._expire(approval)
                continue
            if self.suspended:
                raise Suspended
            changed = self._changed.setdefault(approval_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((approval.expires_us - now_us()) / 1_000_000):
                    await changed.wait()

    def suspend(self) -> None:
        """Have everybody who waits for an answer stop waiting: the daemon stops."""
        self.suspended = True
        for changed in self._changed.values():
            changed.set()
        self._changed.clear()

    # Answering

    async def answer(self, approval_id: str, *, grant: bool, uid: int, note: str = "") -> Approval:
        """Grant or deny, as the person with this uid, who may. Gives the approval as it is then.

        Raises ApprovalNotFound; ApprovalClosed when it is answered, used or over already; StorageError.
        """
        while storing := self._storing.get(approval_id):
            await asyncio.wait([storing])
        approval = self._any(approval_id)
        if approval.state is not State.WAITING:
            raise _no_answer(approval)
        if approval.overdue():
            await self._expire(approval)
            raise _no_answer(replace(approval, state=State.EXPIRED))
        note = self._history.redactor.text(note)
        answered = _answered(approval, State.GRANTED if grant else State.DENIED, uid, note)
        await asyncio.shield(self._store(approval, answered, told.changed(answered)))
        return answered

    def get(self, approval_id: str) -> Approval:
        """As it is to be shown. Raises ApprovalNotFound."""
        return self._any(approval_id).now()

    def _any(self, approval_id: str) -> Approval:
        found = self._open.get(approval_id)
        return found if found is not None else self._closed(approval_id)

    def find(self, approval_id: str) -> Approval | None:
        """As `get`; None for one that there is not."""
        try:
            return self.get(approval_id)
        except ApprovalNotFound:
            return None

    def is_open(self, approval_id: str) -> bool:
        """Whether its call can still come to run."""
        found = self._open.get(approval_id)
        return found is not None and found.now().open

    def open_ones(self) -> list[Approval]:
        """Those whose call can still come to run, the oldest first, without those not on disk yet."""
        found = [one for key, one in self._open.items() if key not in self._asking and one.now().open]
        return sorted(found, key=lambda approval: approval.created_us)

    async def expire(self) -> None:
        """Store of those whose time is over that they expired: somebody may not wait for each of them.

        Raises StorageError.
        """
        over = [one for key, one in self._open.items() if key not in self._storing and one.overdue()]
        for one in over:
            if self._open.get(one.id) is one:
                await self._expire(one)

    def all(self) -> list[Approval]:
        """Every approval that is kept, the oldest first. Reads them all, so it may run in a thread."""
        found = {key: one.now() for key, one in [*self._open.items()] if key not in self._asking}
        for key, value in self._history.state("approvals").items():
            if key not in self._open:
                with contextlib.suppress(TypeError, KeyError, ValueError):  # told by the next `load`
                    found[key] = Approval.from_dict(value)
        return sorted(found.values(), key=lambda approval: approval.created_us)

    @property
    def waiting(self) -> int:
        """How many wait for an answer."""
        return sum(1 for approval in self.open_ones() if approval.state is State.WAITING)

    # Using

    async def use(
        self, approval_id: str, bound: Bound, call_id: str, *events: NewEvent, changes: Sequence[Change] = ()
    ) -> None:
        """Store the events that begin a call, and that its approval is used, in one transaction.

        `bound` is what is about to run. It must be what was asked for, and so must the stored record.
        Raises ApprovalMismatch, ApprovalRequired when it is not granted (any more), ApprovalDenied when its
        time is over, StorageError.
        """
        approval = self._any(approval_id)
        if approval.state is not State.GRANTED or approval_id in self._storing:
            raise ApprovalRequired(f"The approval {approval_id} is {approval.state}: it cannot be used.")
        if approval.overdue():
            await self._expire(approval)
            raise _over(approval)
        stored = self._stored(approval_id)
        key = self._volatile_key if approval.volatile else self._key
        digests = [bound.digest(key), stored.digest, approval.digest, approval.bound.digest(key)]
        if not approval.volatile:
            digests.append(stored.bound.digest(key))
        if len(set(digests)) != 1 or approval.call_id != call_id or stored.state is not State.GRANTED:
            raise ApprovalMismatch(
                f"What is about to run is not what the approval {approval_id} was given for.",
                suggestion="Nothing was run. Ask for the call again.",
            )
        used = replace(approval, state=State.USED)
        await asyncio.shield(self._store(approval, used, *events, told.changed(used), changes=changes))

    def lapse(self, approval_id: str, why: str) -> tuple[list[NewEvent], list[Change]]:
        """Close an approval whose call will not run: what the caller has to store for it, if it was open."""
        approval = self._open.get(approval_id)
        if approval is None or not approval.open:
            return [], []
        lapsed = replace(approval, state=State.LAPSED, note=why)
        del self._open[approval_id]
        self._wake(approval_id)
        return [told.changed(lapsed)], self._changes(lapsed)

    # What is stored

    async def _close(self, approval: Approval, state: State, why: str) -> None:
        closed = replace(approval, state=state, note=why)
        await asyncio.shield(self._store(approval, closed, told.changed(closed)))

    async def _expire(self, approval: Approval) -> None:
        await self._close(approval, State.EXPIRED, "")

    def _store(
        self, old: Approval | None, new: Approval, *events: NewEvent, changes: Sequence[Change] = ()
    ) -> asyncio.Future[list[Event]]:
        """Take `new` for the truth at once, so that of two who change it only the first does."""
        done = self._history.append(*events, changes=[*self._changes(new), *changes])
        self._open[new.id] = new
        self._storing[new.id] = done
        done.add_done_callback(partial(self._is_stored, old, new))
        return done

    def _is_stored(self, old: Approval | None, new: Approval, done: asyncio.Future[list[Event]]) -> None:
        if self._storing.get(new.id) is done:
            del self._storing[new.id]
        self._asking.discard(new.id)
        failed = done.cancelled() or done.exception() is not None
        if self._open.get(new.id) is new:
            if failed and old is not None:
                self._open[new.id] = old
            elif failed or not new.open:
                del self._open[new.id]
        self._wake(new.id)

    def _changes(self, approval: Approval) -> list[Change]:
        """What to store of an approval, and with one that closes, which old one is dropped for it."""
        change = Change(state="approvals", key=approval.id, value=approval.to_dict())
        if approval.open:
            return [change]
        self._kept.append(approval.id)
        return [change, *self._too_old()]

    def _too_old(self) -> list[Change]:
        old = [self._kept.popleft() for _ in range(len(self._kept) - KEPT)]
        return [Change(state="approvals", key=key, value=None) for key in old]

    def _wake(self, approval_id: str) -> None:
        if changed := self._changed.pop(approval_id, None):
            changed.set()

    def _stored(self, approval_id: str) -> Approval:
        """The record as it lies on the disk. Raises ApprovalMismatch."""
        try:
            return Approval.from_dict(self._history.state_of("approvals", approval_id))
        except (NotFound, TypeError, KeyError, ValueError) as err:
            raise ApprovalMismatch(f"The stored record of the approval {approval_id} is broken.") from err

    def _closed(self, approval_id: str) -> Approval:
        if not _ID.fullmatch(approval_id):
            raise not_found(approval_id)
        try:
            found = Approval.from_dict(self._history.state_of("approvals", approval_id))
        except (NotFound, TypeError, KeyError, ValueError) as err:
            raise not_found(approval_id) from err
        # One that is open is in memory: this one was closed just now, and that is on its way to the disk.
        return replace(found, state=State.LAPSED) if found.open else found

    def _storable(self, value: dict[str, Any]) -> bool:
        """Whether the history stores this as it is, with nothing taken out."""
        try:
            return bool(json.loads(dump_json(self._history.redactor.value(value))) == value)
        except (TypeError, ValueError, RecursionError):
            return False


def not_found(approval_id: str) -> ApprovalNotFound:
    """What whoever asks for an approval that is not there gets, or that he may not know of."""
    return ApprovalNotFound(
        f"There is no approval {approval_id[:60]!r}.", suggestion="Run: lactl approvals", field="approval"
    )


def _answered(approval: Approval, state: State, uid: int, note: str) -> Approval:
    return replace(approval, state=state, answered_by=uid, answered_us=now_us(), note=note)


def _granted(approval: Approval) -> Approval:
    """The approval, if it is granted. Raises ApprovalDenied or ApprovalRequired."""
    if approval.state is State.GRANTED:
        return approval
    if approval.state is State.EXPIRED:
        raise _over(approval)
    if approval.state is State.DENIED:
        said = f" and said: {approval.note}" if approval.note else "."
        raise ApprovalDenied(
            f"The user with uid {approval.answered_by} did not allow {approval.name}{said}",
            suggestion="Do not ask for the same call again; say what you would have done.",
        )
    why = f" {approval.note}" if approval.note else ""
    raise ApprovalRequired(
        f"The approval of {approval.name} is {approval.state}.{why}",
        suggestion="The call was not run; ask for it again if it is still wanted.",
    )


def _over(approval: Approval) -> ApprovalDenied:
    return ApprovalDenied(
        f"The time to allow {approval.name} is over, which counts as no.",
        suggestion="Say what you would have done, and let the user ask again.",
    )


def _no_answer(approval: Approval) -> ApprovalClosed:
    words = {
        State.GRANTED: f"was granted already by uid {approval.answered_by}",
        State.DENIED: f"was denied already by uid {approval.answered_by}",
        State.EXPIRED: "has expired",
        State.USED: "was granted and used already",
        State.LAPSED: "has lapsed, because its call will not run",
    }
    return ApprovalClosed(
        f"The approval {approval.id} {words[approval.state]}.",
        suggestion="An approval counts for one call, once. Run: lactl approvals",
        field="approval",
    )
