"""Changes that take themselves back: waits for what confirms them, and has the others taken back.

A change is stored with the intent of its call, and its deadline begins anew when the call has ended. Without
a confirmation the call that takes it back is made as the person who approved the change, through policy,
worker and history as `lactl undo`; no client has to be there. Its result and the new state commit together,
so that what was taken back is not taken back again. What was stopped in the middle is tried once more, what
failed after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.confirming.records import STATE, Confirmation, begun, of_another_store
from lightagentd.agents.flows.step_turn import failure_of
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.agents.tool_calls.results import Before, Outcome
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.terms import Terms
from lightagentd.errors import (
    Conflict,
    LightagentError,
    NotFound,
    OutcomeUnknown,
    Panicked,
    WorkerUnavailable,
)
from lightagentd.events.context import own_task, within
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.types import confirmation as types
from lightagentd.host.seat import Seat
from lightagentd.host.users import called
from lightagentd.policy.questions.approval import Approval
from lightagentd.text.readable import visible
from lightagentd.tool import Effect
from lightagentd.toolkit.files.undo import nothing_kept

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.tool_calls.calls import Ready
    from lightagentd.agents.tool_calls.origin import Origin

_log = logging.getLogger(__name__)

TICK_S = 1.0
"""How often the deadlines are looked at while there are any: a clock may be set."""
AGAIN_S = 5.0
"""How soon it is tried again where nothing could be begun."""
PATIENCE_S = 5.0
"""How long a stop waits for what is being taken back."""
TRIES = 2
KEPT = 200
"""Changes that are over and stay listed; the history has all."""
OPEN_IN_ALL, OPEN_OF_OWNER = 200, 50
WHAT_CHARS = 300
_ROOT = 0
"""As whom a file is put back, as an administrator does with `lactl undo`."""
_NOT_BEGUN = frozenset({WorkerUnavailable.code, Panicked.code})
"""Results of calls that did nothing, and may do something later."""
_RESTORED = "Another history was put in place meanwhile, so nobody knows whether the change still stands."
_UNDECIDED = frozenset({"cancelled", OutcomeUnknown.code})
Stored = tuple[Sequence[NewEvent], Sequence[Change]]


class Confirmations:
    """Start with `start()`, once the agents run; end with `close()`."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._agent: Callable[[str], Agent] | None = None
        self._all: dict[str, Confirmation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The checks (`check:ID`), what takes changes back (by id), what tells workers that they stay
        (`keep:ID`), and the clock (empty)."""
        self._later: dict[str, tuple[float, str]] = {}
        """When it is tried again what could not be begun, and why not."""
        self._closed = False

    def bind(self, agent: Callable[[str], Agent]) -> None:
        """`agent` gives an agent by its name, and raises LightagentError."""
        self._agent = agent

    async def start(self) -> None:
        """Go on with what was stored. Raises StorageError."""
        rows = self._history.queries.state(STATE)
        old = (
            await asyncio.to_thread(of_another_store, self._history.queries, [*rows]) if rows else set[str]()
        )
        for key, value in rows.items():
            self._all[key] = found = Confirmation.from_dict(value)
            if found.open and key in old:
                await self._move(
                    replace(found, state="failed", tries=TRIES, why=_RESTORED), types.NotTakenBack
                )
                continue
            if found.state in ("running", "waiting"):
                cut = found.cut or found.state == "running"
                self._all[key] = replace(found.of_this_boot(), state="waiting", cut=cut)
            elif found.state in ("taking_back", "failed") and found.tries < TRIES:
                self._all[key] = replace(found, state="waiting", due_us=0)
            elif found.state == "taking_back":
                why = "The daemon was stopped in the middle, twice."
                await self._move(replace(found, state="failed", why=why), types.NotTakenBack)
                continue
            if self._all[key] != found:
                await self._history.append(changes=[self._all[key].change()])
        for one in self._all.values():
            self._watch(one)

    async def close(self) -> None:
        """What waits goes on with the next start; what is being taken back may end."""
        self._closed = True
        if taking := [task for key, task in self._tasks.items() if key in self._all]:
            await asyncio.wait(taking, timeout=PATIENCE_S)
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def problems(self) -> list[str]:
        """The changes that could not be taken back, as sentences."""
        failed = [one for one in self._all.values() if one.state == "failed"]
        found = [
            f"{_named(one)} was not confirmed and could not be taken back: {one.why} Mend it by hand, then:"
            f" lactl confirm {one.id}"
            for one in failed
        ]
        late = [(self._all[key], why) for key, (_, why) in self._later.items() if key in self._all]
        return found + [
            f"{_named(one)} is not taken back yet: {why} To keep it: lactl confirm {one.id}"
            for one, why in late
        ]

    async def settle(self) -> None:
        """Wait for what is on its way to the disk: nobody is told what a kill could undo."""
        with contextlib.suppress(LightagentError):
            await self._history.append()

    def listed(self) -> list[Confirmation]:
        """All that are kept, oldest first."""
        return sorted(self._all.values(), key=lambda one: one.begun_us)

    def get(self, call_id: str) -> Confirmation:
        """Raises NotFound."""
        if (found := self._all.get(call_id)) is None:
            raise not_found(call_id)
        return found

    # The call

    def check_room(self, owner: int) -> None:
        """Raises Conflict when too many changes wait, of a user or in all."""
        owners = [one.owner for one in self._all.values() if one.open]
        if len(owners) >= OPEN_IN_ALL or owners.count(owner) >= OPEN_OF_OWNER:
            raise Conflict("Too many changes wait to be confirmed already.", suggestion="lactl confirm")

    def begin(
        self, ready: Ready, origin: Origin, terms: Terms, back: dict[str, Any], granted: Approval | None
    ) -> Stored:
        """What has to be stored with the intent of a call that takes itself back."""
        shown = json.dumps({name: one for name, one in ready.what["args"].items() if one not in (None, "")})
        seat = {} if granted is None else {name: getattr(granted, name) for name in Seat.__dataclass_fields__}
        found = begun(
            terms,
            back,
            id=ready.call_id,
            agent=origin.agent.name,
            session=origin.session_id,
            owner=origin.owner,
            tool=ready.action.tool,
            action=ready.action.name,
            what=visible(self._history.redactor.text(shown))[:WHAT_CHARS],
            approval=granted.id if granted is not None else "",
            approved_by=granted.answered_by if granted is not None else None,
            seat=seat,
        )
        self._all[found.id] = found
        pending = types.ChangePending(
            call_id=found.id,
            tool=found.tool,
            action=found.action,
            within_s=terms.within_s,
            due_us=found.due_us,
            check=terms.check,
            inverse=terms.inverse,
            approval=found.approval,
        )
        return [pending.event()], [found.change()]

    def left(self, call_id: str) -> None:
        """A call is over, and nothing was stored of how it ended; or it did not begin."""
        found = self._all.get(call_id)
        if found is None or found.state != "running":
            return
        try:
            self._history.queries.state_of(STATE, call_id)
        except LightagentError:
            del self._all[call_id]
        else:
            self._all[call_id] = replace(found, state="waiting")
            self._watch(self._all[call_id])

    def ended(self, call_id: str, outcome: Outcome) -> Stored:
        """What has to be stored with the end of a call; the time begins now."""
        found = self._all.get(call_id)
        if found is None or found.state != "running":
            return (), ()
        failed = outcome.result not in ("ok", *_UNDECIDED)
        nothing = (
            found.tool == "file"
            and not found.inverse
            and (failed or outcome.metadata.get("changed") is False)
        )
        if nothing or (failed and outcome.result in _NOT_BEGUN):
            return self._unchanged(found)
        waiting = replace(found.armed(), state="waiting")
        self._all[call_id] = waiting
        self._watch(waiting)
        return (), [waiting.change()]

    def _unchanged(self, found: Confirmation) -> Stored:
        over = replace(found, state="unchanged", ended_us=time.time_ns() // 1000)
        return self._stored(over, types.ChangeConfirmed, "The call changed nothing.")

    # Confirming

    async def confirm(self, call_id: str, by: int | None) -> Confirmation:
        """Keep a change, in the name of a uid, or because its check passed. Raises NotFound; Conflict for one
        that is over, with what became of it; StorageError.
        """
        found = self.get(call_id)
        if found.state == "running":
            raise Conflict(f"The call {call_id} still runs.", suggestion="Confirm it once it has ended.")
        late = found.state == "waiting" and not found.left_s and call_id not in self._later
        if late or found.state == "taking_back":
            raise Conflict(f"The time is over, and {_named(found)} is being taken back.")
        if found.state not in ("waiting", "failed"):
            raise Conflict(f"{_named(found)} {outcome_words(found)}.")
        done = replace(found, state="confirmed", by=by, ended_us=time.time_ns() // 1000)
        await self._move(done, types.ChangeConfirmed, **({} if by is None else {"by": by}))
        self._begin(f"keep:{call_id}", _keep(done, self._agent))
        return done

    def _stored(
        self, found: Confirmation, kind: type[types._Confirmation], message: str = "", **more: Any
    ) -> Stored:
        """Take a new state at once; gives what has to be stored."""
        self._all[found.id] = found
        self._later.pop(found.id, None)
        check = self._tasks.get(f"check:{found.id}")
        if check is not None and check is not asyncio.current_task():
            check.cancel()
        about = {"call_id": found.id, "tool": found.tool, "action": found.action}
        with within(agent=found.agent, session=found.session, owner=found.owner):
            event = kind(**about, **({"message": message} if message else {}), **more).event()
        over = [one for one in self.listed() if not one.open and one.state != "failed" and one.id != found.id]
        old = over[: max(0, len(over) - KEPT)]
        for one in old:
            del self._all[one.id]
        return [event], [found.change(), *(one.change(there=False) for one in old)]

    async def _move(self, found: Confirmation, kind: type[types._Confirmation], **more: Any) -> None:
        before = self._all[found.id]
        events, changes = self._stored(found, kind, message=found.why, **more)
        try:
            await uninterrupted(self._history.append(*events, changes=changes))
        except LightagentError:
            self._all[found.id] = before
            self._watch(before)
            raise

    # The deadline

    def _watch(self, found: Confirmation) -> None:
        """Look after a change that waits."""
        if found.state != "waiting" or self._closed:
            return
        if found.check:
            self._begin(f"check:{found.id}", self._checking(found))
        self._begin("", self._look())

    def _begin(self, key: str, work: Any) -> None:
        if key in self._tasks:
            work.close()
            return
        task = self._tasks[key] = own_task(work, name=f"confirmation-{key}")
        task.add_done_callback(lambda _: self._tasks.get(key) is task and self._tasks.pop(key))

    async def _look(self) -> None:
        """Until nothing waits, have what is overdue taken back."""
        while waiting := [one for one in self._all.values() if one.state == "waiting"]:
            now_s = time.monotonic()
            for one in waiting:
                if not (one.left_s or self._closed) and now_s >= self._later.get(one.id, (0.0, ""))[0]:
                    self._begin(one.id, self._take_back(one))
            left_s = min((one.left_s for one in waiting if one.left_s), default=TICK_S)
            await asyncio.sleep(max(0.02, min(TICK_S, left_s)))
        self._tasks.pop("", None)  # here, so that what waits from now on begins anew

    async def _checking(self, found: Confirmation) -> None:
        """Run the check of a change until it passes, or the time is over."""
        args = {"command": found.check}
        while self._all[found.id].state == "waiting":
            with contextlib.suppress(LightagentError, TimeoutError):
                agent = self._agent_of(found)
                has_reach = Effect.REACH in agent.running_parts().definition.front.effects
                args["effect"] = (Effect.REACH if has_reach else Effect.OBSERVE).value
                verdicts: list[str] = []

                def ended(outcome: Outcome) -> Stored:
                    verdicts.append(failure_of(outcome)[0])  # noqa: B023 - it is called in this round
                    return (), ()

                called_ = call_as_person(agent, found.owner, "bash", "exec", args, own="confirm", ended=ended)
                async with asyncio.timeout(max(1.0, found.left_s)), aclosing(called_) as events:
                    async for _ in events:
                        pass
                if verdicts == [""]:
                    await self.confirm(found.id, None)
                    return
            await asyncio.sleep(max(1.0, found.within_s / 50))

    def _agent_of(self, found: Confirmation) -> Agent:
        """Raises LightagentError for an agent that cannot do anything now."""
        assert self._agent is not None
        agent = self._agent(found.agent)
        agent.panic.check()
        return agent

    async def _take_back(self, found: Confirmation) -> None:
        try:
            await self._undo(found)
        except LightagentError as err:
            if self._all[found.id].state in ("taking_back", "waiting"):
                self._put_off(found, err.message)

    def _put_off(self, found: Confirmation, why: str) -> None:
        """Try again later: nothing was begun."""
        if self._later.get(found.id, (0.0, ""))[1] != why:
            _log.error("%s is not taken back yet: %s", _named(found), why)
        self._all[found.id] = found
        self._later[found.id] = (time.monotonic() + AGAIN_S, why)
        self._watch(found)

    async def _undo(self, found: Confirmation) -> None:
        """Raises LightagentError where it could not be begun."""
        agent = self._agent_of(found)
        agent.running_parts()
        taking = replace(found, state="taking_back", tries=found.tries + 1)
        events, changes = self._stored(taking, types.TakingBack, tries=taking.tries)
        last: dict[str, Any] = {}

        def ended(outcome: Outcome) -> Stored:
            code, message = failure_of(outcome)
            if code in _UNDECIDED:
                return (), ()
            if code in _NOT_BEGUN:
                self._put_off(found, message)
                return (), [found.change()]
            return self._over(taking, code, message)

        made = call_as_person(
            agent,
            found.taken_back_by,
            **found.back,
            approver=Seat(**found.seat),
            for_owner=_ROOT if found.back["tool"] == "file" else None,
            before=Before([*events], [*changes]),
            takes_back=found.id,
            ended=ended,
        )
        async with aclosing(made) as told:
            async for event in told:
                last = dict(event)
        if self._all[found.id].state != "taking_back" or self._closed:
            return
        code, why = last.get("code"), str(last.get("message", ""))
        if self._history.queries.state_of(STATE, found.id)["state"] != "taking_back":
            self._put_off(found, why)  # it could not be stored, so nothing was begun
        elif code in _NOT_BEGUN:
            self._put_off(found, why)
            await self._history.append(changes=[found.change()])
        elif code in _UNDECIDED and taking.tries < TRIES:
            self._put_off(replace(found, tries=taking.tries), why)
        else:
            events, changes = self._over(taking, str(code), why)
            await uninterrupted(self._history.append(*events, changes=changes))

    def _over(self, taking: Confirmation, code: str, why: str) -> Stored:
        """What has to be stored of the end of taking a change back; `code` is empty where it went well."""
        now_us = time.time_ns() // 1000
        if not code:
            return self._stored(replace(taking, state="taken_back", ended_us=now_us), types.TakenBack)
        if taking.cut and why.startswith(nothing_kept(taking.id).message):  # it keeps first, and changes then
            return self._unchanged(taking)
        _log.error("%s could not be taken back: %s", _named(taking), why)
        failed = replace(taking, state="failed", ended_us=now_us, why=why)
        return self._stored(failed, types.NotTakenBack, why)


async def _keep(found: Confirmation, agent: Callable[[str], Agent] | None) -> None:
    """Have the worker that made a change forget how to take it back."""
    assert agent is not None
    try:
        await agent(found.agent).running_parts().dispatcher.pool.keep_change(found.agent, found.id)
    except LightagentError as err:
        _log.warning("%s stays, and its worker was not told: %s", _named(found), err.message)


def not_found(call_id: str) -> NotFound:
    return NotFound(
        f"No change of the call {call_id[:60]!r} waits to be confirmed.",
        suggestion="lactl confirm lists those that do.",
        field="call_id",
    )


def _named(found: Confirmation) -> str:
    return f"The change {found.id} ({found.name} of {found.agent})"


def outcome_words(found: Confirmation) -> str:
    """What became of a change that is over."""
    if found.state == "confirmed":
        return f"was confirmed already by {'its check' if found.by is None else called(found.by)}"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.ended_us / 1_000_000))
    if found.state == "taken_back":
        return f"was not confirmed in time, and was taken back at {when}"
    return "changed nothing, so there is nothing to confirm"
