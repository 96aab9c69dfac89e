"""What agents ask people (`human.ask`): stored questions, their answers, found again after a restart.

`Inputs` owns the stored state `inputs`. A question commits together with its event (`input.requested`) and
with the turn that waits for it; its end with `input.answered`, `expired` or `lapsed`. In memory are those
whose call has no result yet, answered or not: so an answer that came while the daemon stopped reaches its
turn at the next start. Only `answer` answers, with a uid that the kernel named: no text of a model, a tool or
a file comes here. Times on the wall are compared, because a question outlives the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal, get_args

from lightagentd.errors import (
    Cancelled,
    InputClosed,
    InputNotFound,
    InvalidArgument,
    LimitExceeded,
    NotFound,
)
from lightagentd.events.history import Change, Event, History, NewEvent
from lightagentd.events.model import new_id, within
from lightagentd.events.types.input import InputAnswered, InputExpired, InputLapsed, InputRequested
from lightagentd.events.types.tool import CallEnded
from lightagentd.policy.questions.approval import now_us
from lightagentd.policy.questions.approvals import Suspended

_log = logging.getLogger(__name__)

INPUT_PREFIX = "inp_"
_ID = re.compile(r"inp_[0-9a-f]{16}")
TOOL, ACTION = "human", "ask"
"""The built-in action that asks."""
KEPT = 1000
"""Closed questions that are kept beside their events, which stay as long as the history does."""
OPEN_OF_OWNER, OPEN_IN_ALL = 100, 1000
"""Open questions that there may be: more could nobody answer, and each costs memory."""
ANSWER_MAX_BYTES = 16 << 10
ABANDONED = "Nobody waits for its answer any more."

InputState = Literal["waiting", "answered", "expired", "lapsed"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One question. The fields are those of `api.Input`."""

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    question: str
    choices: tuple[str, ...]
    created_us: int
    expires_us: int
    state: InputState = "waiting"
    answer: str = ""
    answered_by: int | None = None
    answered_us: int = 0

    def overdue(self) -> bool:
        """Whether it waits although its time is over."""
        return self.state == "waiting" and now_us() >= self.expires_us

    def now(self) -> Input:
        """As it is to be shown: one that nobody answered in time has expired, stored as such or not."""
        return replace(self, state="expired") if self.overdue() else self


class Inputs:
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(self, history: History, *, timeout_s: float) -> None:
        self._history = history
        self._timeout_s = timeout_s
        self._pending: dict[str, Input] = {}
        """Those whose call has no result yet, whether they are answered or not."""
        self._storing: dict[str, asyncio.Future[list[Event]]] = {}
        """Those whose newest change is on its way to the disk."""
        self._asking: set[str] = set()
        """Those that are not on the disk at all yet."""
        self._changed: dict[str, asyncio.Event] = {}
        """Set, and then forgotten, when a question that somebody waits for has changed."""
        self._kept: deque[str] = deque()
        """The closed ones that are stored, the oldest first; about as many as may be kept."""
        self.suspended = False

    async def load(self) -> None:
        """Read what the last run left, and close what cannot be answered any more. Raises StorageError."""
        asking = {str(turn.get("approval", "")) for turn in self._history.state("turns").values()}
        closed: list[Input] = []
        for key, value in self._history.state("inputs").items():
            try:
                found = input_of(value, key=key)
            except (TypeError, KeyError, ValueError) as err:
                _log.error("the stored input %s cannot be read and is dropped: %s", key, err)
                await self._history.append(changes=[Change(state="inputs", key=key, value=None)])
                continue
            if found.state != "waiting":
                closed.append(found)
            if found.id in asking:
                self._pending[found.id] = found
                if found.overdue():
                    await self._expire(found)
            elif found.state == "waiting":
                events, changes = self._abandoned(found, ABANDONED)
                await self._history.append(*events, changes=changes)
        closed.sort(key=lambda one: one.created_us)
        self._kept.extendleft(one.id for one in reversed(closed))
        if old := self._too_old():
            await self._history.append(changes=old)

    # Asking

    def new(
        self,
        *,
        agent: str,
        session: str,
        owner: int,
        trace_id: str,
        call_id: str,
        question: str,
        choices: Sequence[str],
        timeout_s: float | None,
    ) -> Input:
        """A question that is not stored yet. `timeout_s` can only make its time shorter.

        Raises LimitExceeded when too many others are open.
        """
        waiting = [one for one in self._pending.values() if one.state == "waiting"]
        of_owner = sum(1 for one in waiting if one.owner == owner)
        if of_owner >= OPEN_OF_OWNER or len(waiting) >= OPEN_IN_ALL:
            raise LimitExceeded(
                f"Too many questions are open already, {of_owner} of them to uid {owner}.",
                suggestion="They have to be answered first: lactl inputs",
            )
        now = now_us()
        span_s = min(self._timeout_s, timeout_s or self._timeout_s)
        return Input(
            id=new_id("inp"),
            agent=agent,
            session=session,
            owner=owner,
            trace_id=trace_id,
            call_id=call_id,
            question=self._history.redactor.text(question),
            choices=tuple(map(self._history.redactor.text, choices)),
            created_us=now,
            expires_us=now + int(span_s * 1_000_000),
        )

    async def ask(self, asked: Input, *, changes: Sequence[Change] = ()) -> None:
        """Store a question, with the changes that go with it. Raises StorageError."""
        self._asking.add(asked.id)
        await asyncio.shield(self._store(None, asked, _requested(asked), changes=changes))

    async def wait(self, input_id: str) -> Input:
        """Wait until it is answered, expired or lapsed. Raises Suspended, InputNotFound, StorageError."""
        while True:
            if storing := self._storing.get(input_id):
                await asyncio.wait([storing])
                continue
            found = self._any(input_id)
            if found.state != "waiting":
                return found
            if found.overdue():
                await self._expire(found)
                continue
            if self.suspended:
                raise Suspended
            changed = self._changed.setdefault(input_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((found.expires_us - now_us()) / 1_000_000):
                    await changed.wait()

    def suspend(self) -> None:
        """Have everybody who waits for an answer stop waiting: the daemon stops."""
        self.suspended = True
        for changed in self._changed.values():
            changed.set()
        self._changed.clear()

    # Answering

    async def answer(self, input_id: str, text: str, *, uid: int) -> Input:
        """Answer as the person with this uid, who may; of two answers at once the first counts.

        Where there are choices, `text` is one of them, or its number from 1 on; the text goes before the
        number. Raises InputNotFound, InputClosed, InvalidArgument, StorageError.
        """
        while storing := self._storing.get(input_id):
            await asyncio.wait([storing])
        found = self._any(input_id)
        if found.state == "waiting" and found.overdue():
            await self._expire(found)
            found = replace(found, state="expired")
        if found.state != "waiting":
            raise _no_answer(found)
        said = _picked(found, self._history.redactor.text(text))
        answered = replace(found, state="answered", answer=said, answered_by=uid, answered_us=now_us())
        await asyncio.shield(self._store(found, answered, _answered(answered, uid)))
        return answered

    def get(self, input_id: str) -> Input:
        """As it is to be shown. Raises InputNotFound."""
        return self._any(input_id).now()

    def is_open(self, input_id: str) -> bool:
        """Whether the call that asked it has no result yet: what waits for it stays stored until it has."""
        return input_id in self._pending

    def open_ones(self) -> list[Input]:
        """Those that wait for an answer, the oldest first, without those not on disk yet."""
        found = [one for key, one in self._pending.items() if key not in self._asking]
        waiting = [one for one in found if one.now().state == "waiting"]
        return sorted(waiting, key=lambda one: one.created_us)

    async def expire(self) -> None:
        """Store of those whose time is over that they expired: somebody may not wait for each of them.

        Raises StorageError.
        """
        over = [one for key, one in self._pending.items() if key not in self._storing and one.overdue()]
        for one in over:
            if self._pending.get(one.id) is one:
                await self._expire(one)

    def all(self) -> list[Input]:
        """Every question that is kept, the oldest first. Reads them all, so it may run in a thread."""
        found = {key: one.now() for key, one in [*self._pending.items()] if key not in self._asking}
        for key, value in self._history.state("inputs").items():
            if key not in found and key not in self._asking:
                with contextlib.suppress(TypeError, KeyError, ValueError):  # told by the next `load`
                    found[key] = input_of(value, key=key).now()
        return sorted(found.values(), key=lambda one: one.created_us)

    # The end of the call

    def taken(self, input_id: str) -> tuple[list[NewEvent], list[Change]]:
        """The call that asked has its result: what to store with that."""
        found = self._pending.pop(input_id, None)
        if found is None or found.state != "waiting":
            return [], []
        return self._abandoned(found, ABANDONED)

    def lapse(self, input_id: str, why: str) -> tuple[list[NewEvent], list[Change]]:
        """Close one whose turn ends: what the caller has to store for it, if its call had no result yet. The
        call's end is part of that.
        """
        found = self._pending.pop(input_id, None)
        if found is None:
            return [], []
        events, changes = self._abandoned(found, why) if found.state == "waiting" else ([], [])
        return [*events, _call_ended(found)], changes

    def unsettled(self, session: str) -> list[Input]:
        """Those of a session whose call has no result yet, answered or not."""
        return [one for one in self._pending.values() if one.session == session]

    # What is stored

    def _any(self, input_id: str) -> Input:
        found = self._pending.get(input_id)
        if found is not None:
            return found
        if not _ID.fullmatch(input_id):
            raise not_found(input_id)
        try:
            found = input_of(self._history.state_of("inputs", input_id), key=input_id)
        except (NotFound, TypeError, KeyError, ValueError) as err:
            raise not_found(input_id) from err
        # One that waits is in memory: this one was closed just now, and that is on its way to the disk.
        return replace(found, state="lapsed") if found.state == "waiting" else found

    async def _expire(self, found: Input) -> None:
        expired = replace(found, state="expired")
        await asyncio.shield(self._store(found, expired, _expired(expired)))

    def _abandoned(self, found: Input, why: str) -> tuple[list[NewEvent], list[Change]]:
        lapsed = replace(found, state="lapsed")
        self._wake(found.id)
        return [_lapsed(lapsed, why)], self._changes(lapsed)

    def _store(
        self, old: Input | None, new: Input, *events: NewEvent, changes: Sequence[Change] = ()
    ) -> asyncio.Future[list[Event]]:
        """Take `new` for the truth at once, so that of two who change it only the first does."""
        done = self._history.append(*events, changes=[*self._changes(new), *changes])
        self._pending[new.id] = new
        self._storing[new.id] = done
        done.add_done_callback(partial(self._is_stored, old, new))
        return done

    def _is_stored(self, old: Input | None, new: Input, done: asyncio.Future[list[Event]]) -> None:
        if self._storing.get(new.id) is done:
            del self._storing[new.id]
        self._asking.discard(new.id)
        failed = done.cancelled() or done.exception() is not None
        if failed and self._pending.get(new.id) is new:
            if old is not None:
                self._pending[new.id] = old
            else:
                del self._pending[new.id]
        self._wake(new.id)

    def _changes(self, found: Input) -> list[Change]:
        """What to store of a question, and with one that closes, which old one is dropped for it."""
        change = Change(state="inputs", key=found.id, value={**asdict(found), "choices": [*found.choices]})
        if found.state == "waiting":
            return [change]
        self._kept.append(found.id)
        return [change, *self._too_old()]

    def _too_old(self) -> list[Change]:
        old = [self._kept.popleft() for _ in range(len(self._kept) - KEPT)]
        return [Change(state="inputs", key=key, value=None) for key in old]

    def _wake(self, input_id: str) -> None:
        if changed := self._changed.pop(input_id, None):
            changed.set()


def input_of(value: dict[str, Any], *, key: str) -> Input:
    """The question that was stored under a key. Raises TypeError, KeyError or ValueError when it is none."""
    found = Input(**{**value, "choices": tuple(value["choices"])})
    for field in fields(found):
        held = getattr(found, field.name)
        fits = {
            "answered_by": held is None or type(held) is int,
            "choices": all(isinstance(one, str) for one in found.choices),
        }.get(field.name, type(held) is (int if field.name.endswith("_us") or field.name == "owner" else str))
        if not fits:
            raise ValueError(f"{field.name} is a {type(held).__name__}")
    if found.id != key or not _ID.fullmatch(key) or found.state not in get_args(InputState):
        raise ValueError("its id or its state is none")
    return found


def not_found(input_id: str) -> InputNotFound:
    """What whoever asks for a question that is not there gets, or that he may not know of."""
    return InputNotFound(
        f"There is no input {input_id[:60]!r}.", suggestion="Run: lactl inputs", field="input"
    )


def check_answer(text: str) -> None:
    """Raises InvalidArgument for an answer that is empty, too long or holds a NUL byte."""
    if not text.strip():
        raise InvalidArgument("The answer is empty.", field="text", suggestion="Say something.")
    if "\0" in text:
        raise InvalidArgument("The answer holds a NUL byte.", field="text", suggestion="Remove it.")
    if len(text.encode("utf-8", "replace")) > ANSWER_MAX_BYTES:
        raise InvalidArgument(
            f"The answer is larger than {ANSWER_MAX_BYTES} bytes.",
            field="text",
            suggestion="Answer in fewer words, or name a file that holds the rest.",
        )


def _picked(found: Input, text: str) -> str:
    """The answer that a text means. Raises InvalidArgument when it is none of the choices."""
    if not found.choices:
        return text
    word = text.strip()
    if word in found.choices:
        return word
    if word.isascii() and word.isdigit() and len(word) < 4 and 1 <= int(word) <= len(found.choices):
        return found.choices[int(word) - 1]
    listed = ", ".join(f"{number} ({choice})" for number, choice in enumerate(found.choices, 1))
    raise InvalidArgument(
        f"{word[:60]!r} is none of the choices of {found.id}.",
        field="text",
        suggestion=f"Answer with one of them, or with its number: {listed}",
    )


def _no_answer(found: Input) -> InputClosed:
    words = {
        "answered": f"was answered already by uid {found.answered_by}",
        "expired": "has expired: its agent was told that nobody answered",
        "lapsed": "has lapsed, because its turn is over",
    }
    return InputClosed(
        f"The input {found.id} {words[found.state]}.",
        suggestion="To tell the agent something all the same, prompt its session: "
        f"lactl prompt --session {found.session}",
        field="input",
    )


def _requested(found: Input) -> NewEvent:
    with _about(found):
        return InputRequested(
            input=found.id,
            call_id=found.call_id,
            question=found.question,
            choices=[*found.choices],
            expires_us=found.expires_us,
        ).event()


def _answered(found: Input, uid: int) -> NewEvent:
    with _about(found):
        return InputAnswered(
            input=found.id, call_id=found.call_id, answer=found.answer, answered_by=uid
        ).event()


def _expired(found: Input) -> NewEvent:
    with _about(found), within(caller=None):  # nobody's word, whoever happened to notice
        return InputExpired(input=found.id, call_id=found.call_id).event()


def _lapsed(found: Input, why: str) -> NewEvent:
    with _about(found):
        return InputLapsed(input=found.id, call_id=found.call_id, note=why).event()


def _call_ended(found: Input) -> NewEvent:
    """The end of a call whose turn ended while it waited: its intent is stored, so this is, too."""
    with _about(found):
        return CallEnded(
            call_id=found.call_id,
            tool=TOOL,
            action=ACTION,
            effect="observe",
            result=Cancelled.code,
            duration_ms=max(0, now_us() - found.created_us) // 1000,
            output_chars=0,
            taints=False,
            metadata={"input": found.id},
        ).event(source="daemon")


def _about(found: Input) -> contextlib.AbstractContextManager[Any]:
    """The event context of a question, whoever does something with it."""
    return within(agent=found.agent, session=found.session, owner=found.owner, trace_id=found.trace_id)
