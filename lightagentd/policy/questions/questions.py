"""The questions to people of one kind: durable, expiring, answered once, found after a restart.

`Approvals` and `Inputs` own one each, and make and answer its questions. Each change of a question commits
together with its event. Questions that calls still need are in memory, the others in `Records`. Times are
wall-clock times, because a question outlives the daemon.

Only `answer` of the owners answers, with a uid from the kernel: no text of a model, a tool or a file can
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from lightagentd.errors import LimitExceeded
from lightagentd.events.history import Change, Event, History, NewEvent
from lightagentd.events.model import new_id, within
from lightagentd.host.users import called
from lightagentd.policy.questions.question import Question, State, now_us
from lightagentd.policy.questions.records import Records

OPEN_OF_OWNER, OPEN_IN_ALL = 100, 1000
"""Open questions that there may be of a kind: nobody could answer more, and each costs memory."""
ABANDONED = "Nobody waits for its answer any more."

Stored = tuple[list[NewEvent], list[Change]]
"""What a caller has to store."""
T = TypeVar("T", bound=Question)


class Suspended(Exception):
    """The daemon stops while somebody waits for an answer. The question stays, for the next start."""


class Questions(Generic[T]):
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(
        self, history: History, kind: type[T], *, timeout_s: float, open_of_owner: int = OPEN_OF_OWNER
    ) -> None:
        self._history = history
        self._kind = kind
        self.records = Records(history, kind)
        self._timeout_s, self._open_of_owner = timeout_s, open_of_owner
        self._pending: dict[str, T] = {}
        """Those whose calls still need them, by id."""
        self._storing: dict[str, asyncio.Future[list[Event]]] = {}
        """Those whose newest change is on its way to the disk."""
        self._asking: set[str] = set()
        """Those that are not on the disk at all yet."""
        self._changed: dict[str, asyncio.Event] = {}
        """Set, and then forgotten, when a question that somebody waits for has changed."""
        self.suspended = False

    async def load(self) -> None:
        """Read the questions of the last run, and close those that cannot be answered any more. Raises
        StorageError.
        """
        waiting = waited_for(self._history)
        for found in await self.records.load():
            if found.open and (found.lost or found.id not in waiting):
                events, changes = self._lapse(found, found.lost or ABANDONED)
                await self._history.append(*events, changes=changes)
            elif found.pending and found.id in waiting:
                self._pending[found.id] = found
                if found.overdue():
                    await self.expire_one(found)

    # Asking

    def begun(self, owner: int, timeout_s: float | None = None, *, shown: bool = True) -> dict[str, Any]:
        """The common fields of a new question. `timeout_s` can only shorten its time. `shown`: a person gets
        to read it.

        Raises LimitExceeded when too many others are open, or lapsed in the last hour.
        """
        open_ones = [one for one in self._pending.values() if one.open]
        of_owner = sum(1 for one in open_ones if one.owner == owner)
        if of_owner >= self._open_of_owner or len(open_ones) >= OPEN_IN_ALL:
            raise LimitExceeded(
                f"Too many questions are open already, {of_owner} of them of {called(owner)}.",
                suggestion=f"They have to be answered first: lactl {self._kind.NOUN}s. "
                "The limit of a user is [limits.owner] questions.",
            )
        now = now_us()
        span_s = min(self._timeout_s, timeout_s or self._timeout_s)
        expires_us = now + int(span_s * 1_000_000)
        prefix = self._kind.PREFIX
        return {
            "id": self.records.recent.new_id(owner, expires_us=expires_us, now_us=now)
            if shown
            else new_id(prefix),
            "owner": owner,
            "created_us": now,
            "expires_us": expires_us,
        }

    async def ask(
        self,
        asked: T,
        *before: NewEvent,
        changes: Sequence[Change] = (),
        answered: T | None = None,
    ) -> T:
        """Store a question, after other events and with other changes, in one transaction.

        `answered` is the question with its answer, if known already. Raises StorageError.
        """
        events = [*before, _event(asked)]
        if answered is not None:
            events.append(_event(answered))
        self._asking.add(asked.id)
        await self._store(None, answered or asked, *events, changes=changes)
        return answered or asked

    async def wait(self, question_id: str) -> T:
        """Wait for the answer or the end of a question, and give its new state.

        Raises Suspended when the daemon stops meanwhile; the kind's NotFound; StorageError.
        """
        while True:
            if storing := self._storing.get(question_id):
                await asyncio.wait([storing])
                continue
            found = self.current(question_id)
            if found.state is not State.WAITING:
                return found
            if found.overdue():
                await self.expire_one(found)
                continue
            if self.suspended:
                raise Suspended
            changed = self._changed.setdefault(question_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((found.expires_us - now_us()) / 1_000_000):
                    await changed.wait()

    def suspend(self) -> None:
        """End all waiting for answers, because the daemon stops."""
        self.suspended = True
        for changed in self._changed.values():
            changed.set()
        self._changed.clear()

    # Answering

    async def answerable(self, question_id: str) -> T:
        """The question, if it waits for an answer. The caller must store the answer without an await in
        between, so that of concurrent answers the first counts.

        Raises the kind's NotFound, its refusal when it is closed, and StorageError.
        """
        while storing := self._storing.get(question_id):
            await asyncio.wait([storing])
        found = self.current(question_id)
        if found.state is State.WAITING and found.overdue():
            await self.expire_one(found)
            found = replace(found, state=State.EXPIRED)
        if found.state is not State.WAITING:
            raise found.refusal()
        return found

    async def change(self, old: T, new: T, *before: NewEvent, changes: Sequence[Change] = ()) -> T:
        """Store a change with its event, after other events. Raises StorageError."""
        await self._store(old, new, *before, _event(new), changes=changes)
        return new

    def get(self, question_id: str) -> T:
        """The question to show. Raises the kind's NotFound."""
        return self.current(question_id).now()

    def find(self, question_id: str) -> T | None:
        """As `get`; None for an unknown id."""
        try:
            return self.get(question_id)
        except self._kind.NOT_FOUND:
            return None

    def is_open(self, question_id: str) -> bool:
        """Whether its call still needs it; until then the waiting turn stays stored."""
        found = self._pending.get(question_id)
        return found is not None and found.now().pending

    def open_ones(self) -> list[T]:
        """The open questions that are on disk, oldest first."""
        found = [one for key, one in self._pending.items() if key not in self._asking and one.now().open]
        return sorted(found, key=lambda one: one.created_us)

    @property
    def waiting(self) -> int:
        """The number of questions that wait for an answer."""
        return sum(1 for one in self.open_ones() if one.state is State.WAITING)

    async def expire(self) -> None:
        """Store the expiry of questions whose time is over, in case that nobody waits for them.

        Raises StorageError.
        """
        over = [one for key, one in self._pending.items() if key not in self._storing and one.overdue()]
        for one in over:
            if self._pending.get(one.id) is one:
                await self.expire_one(one)

    async def expire_one(self, found: T) -> None:
        """Store the expiry of a question. Raises StorageError."""
        await self.change(found, found.ended(State.EXPIRED, ""))

    async def listed(self, *, closed: bool) -> list[T]:
        """The open questions, oldest first; with `closed` all that are stored. Raises StorageError."""
        await self.expire()
        return await asyncio.to_thread(self.all) if closed else self.open_ones()

    def all(self) -> list[T]:
        """All stored questions, oldest first. Reads all of them; may run in a thread."""
        found = {key: one.now() for key, one in [*self._pending.items()] if key not in self._asking}
        for one in self.records.all():
            if one.id not in found and one.id not in self._asking:
                found[one.id] = one.now()
        return sorted(found.values(), key=lambda one: one.created_us)

    # The end of the call

    def lapse(self, question_id: str, why: str) -> Stored:
        """Close a question whose call will not run, or ends; returns what the caller has to store."""
        found = self._pending.get(question_id)
        if found is None or not found.pending:
            return [], []
        del self._pending[question_id]
        return self._lapse(found, why) if found.open else ([], [])

    def of_session(self, session: str) -> list[str]:
        """The ids of a session's questions that calls still need."""
        return [one.id for one in self._pending.values() if one.session == session]

    # What is stored

    def current(self, question_id: str) -> T:
        """A question from memory, else from the store. Raises the kind's NotFound."""
        if (found := self._pending.get(question_id)) is not None:
            return found
        found = self.records.get(question_id)
        # One that is open is in memory: this one was closed just now, and that is on its way to the disk.
        return replace(found, state=State.LAPSED) if found.open else found

    def is_stored(self, question_id: str) -> bool:
        """Whether the disk has the newest change of a question."""
        return question_id not in self._storing

    def _lapse(self, found: T, why: str) -> Stored:
        lapsed = found.ended(State.LAPSED, why)
        self._wake(found.id)
        return [_event(lapsed, why)], self.records.changes(lapsed)

    async def _store(self, old: T | None, new: T, *events: NewEvent, changes: Sequence[Change] = ()) -> None:
        """Use `new` at once and store it, so that of concurrent changes only the first succeeds.

        A cancelled caller does not undo it. Raises StorageError.
        """
        done = self._history.append(*events, changes=[*self.records.changes(new), *changes])
        self._pending[new.id] = new
        self._storing[new.id] = done
        done.add_done_callback(partial(self._settle, old, new))
        await asyncio.shield(done)

    def _settle(self, old: T | None, new: T, done: asyncio.Future[list[Event]]) -> None:
        if self._storing.get(new.id) is done:
            del self._storing[new.id]
        self._asking.discard(new.id)
        failed = done.cancelled() or done.exception() is not None
        if self._pending.get(new.id) is new:
            if failed and old is not None:
                self._pending[new.id] = old
            elif failed or not new.pending:
                del self._pending[new.id]
        self._wake(new.id)

    def _wake(self, question_id: str) -> None:
        if changed := self._changed.pop(question_id, None):
            changed.set()


def waited_for(history: History) -> set[str]:
    """The ids of all questions for which stored turns wait, and steps of flows."""
    turns, steps = history.queries.state("turns").values(), history.queries.state("flow_steps").values()
    waiting = (step for step in steps if step.get("waits_for"))
    return {str(turn.get("approval", "")) for turn in turns} | {str(step["waits_for"]) for step in waiting}


def about(question: Question) -> contextlib.AbstractContextManager[Any]:
    """The event context of a question."""
    return within(
        agent=question.agent, session=question.session, owner=question.owner, trace_id=question.trace_id
    )


def _event(question: Question, why: str = "") -> NewEvent:
    """The event of the newest change. An expiry has no actor, whoever noticed it."""
    nobody = {"caller": None} if question.state is State.EXPIRED else {}
    with about(question), within(**nobody):
        return question.event(why).event()
