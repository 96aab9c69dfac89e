"""The triggers: takes what happened, asks agents about it, and has their answers delivered.

Of each thing that happened exactly one of five counts goes up: an agent was asked (`fired`), it was put into
a question that waits (`coalesced`), it came too often (`limited`), it was `refused`, or nobody followed it
(`missed`). One question at a time is asked for each trigger. What was taken is stored before anybody is told
so, with how far the source was followed: nothing is lost or asked twice when the daemon is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.flows.as_turn import FlowTurn
from lightagentd.agents.triggers.asking import Asking, Question
from lightagentd.agents.triggers.outbox import Outbox, how_to_follow
from lightagentd.agents.triggers.records import STATE, Firing, Happening, Standing, small, stored
from lightagentd.agents.triggers.rounds import MOST_ROUNDS, Rounds
from lightagentd.agents.triggers.telling import ending, fired, held, missed_event
from lightagentd.agents.triggers.webhooks.webhooks import Webhooks
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.triggers import KINDS, TriggerFiles
from lightagentd.config.unattended import Handling
from lightagentd.errors import (
    Cancelled,
    LightagentError,
    NotFound,
    QueueFull,
    Refused,
    ShuttingDown,
    StorageError,
    TimedOut,
)
from lightagentd.events.context import own_task, within
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import new_id
from lightagentd.events.types import trigger as types

if TYPE_CHECKING:
    from lightagentd.agents.flows.flows import Flows
    from lightagentd.agents.registry import Registry
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.turn import Turn

_log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""How soon a question is asked again for which there was no room."""
PATIENCE_S = 30.0
"""How long a follower may take to come before that it is missing is a problem."""
_PAUSED = "It is paused."
_SECOND_US = 1_000_000


class Triggers:
    """Start with `start()`, once the agents run; end with `close()`."""

    def __init__(self, registry: Registry, files: TriggerFiles, flows: Flows) -> None:
        self.files = files
        self._registry, self._history, self._panic = registry, registry.shared.history, registry.shared.panic
        self._asking, self._flows = Asking(registry, flows), flows
        self._rounds = Rounds(self._history, self._parent_of)
        self._standing: dict[str, Standing] = {}
        self._waiting: dict[str, Firing] = {}
        """The question of each trigger that waits; more of the same is put into it."""
        self.outbox = Outbox(self._history)
        self.webhooks = Webhooks(self, self._history)
        self._storing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held, for each trigger, while it is changed and stored."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._started_s = time.monotonic()

    async def start(self) -> None:
        """Go on with what was stored."""
        asked = []
        for key, value in self._history.queries.state(STATE).items():
            found = stored(key, value)
            if isinstance(found, Standing):
                self._standing[found.name] = found
            elif found.state == "waiting":
                self._waiting[found.trigger] = found
            elif found.state == "asked":
                asked.append(found)
            else:
                self.outbox.add(found)
        for firing in asked:
            self._tasks[firing.id] = own_task(self._join(firing), name=f"trigger-{firing.id}")
        for name in list(self._waiting):
            self._go_on(name)

    async def close(self) -> None:
        """What is asked or waits goes on with the next start."""
        self._closed = True
        self.outbox.close()
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def problems(self) -> list[str]:
        """The triggers that do not work, as sentences."""
        broken = [f"A trigger cannot be used: {err.message}" for err in self.files.broken.values()]
        stopped = [one for one in self._standing.values() if one.stopped and one.name in self.files.found]
        lost = [
            f"The trigger {name} is not followed: {problem}"
            for name, problem in self.outbox.problems.items()
            if problem and name in self.files.found
        ]
        return [*broken, *(one.stopped for one in stopped), *lost, *self._unfollowed()]

    def _unfollowed(self) -> list[str]:
        """That nobody follows what they wait for; not in the first moments, when the follower comes."""
        names = [
            name
            for name, file in self.files.found.items()
            if (kind := KINDS.get(file.handling().on)) is not None and kind.followed_by == "service"
        ]
        if not names or self.outbox.followed or time.monotonic() - self._started_s < PATIENCE_S:
            return []
        return [f"Nobody follows {len(names)} of the triggers. Run: {how_to_follow()}"]

    def standing(self, name: str) -> Standing:
        """How a trigger stands."""
        return self._standing.get(name) or Standing(name=name)

    def waits(self, name: str) -> int:
        """How many things are put into the question that waits."""
        return self._waiting[name].count if name in self._waiting else 0

    def names(self) -> list[str]:
        return sorted({*self.files.found, *self.files.broken})

    # What happened

    async def fire(
        self,
        name: str,
        happened: Sequence[Happening],
        position: str = "",
        *,
        told: Sequence[NewEvent] = (),
    ) -> dict[str, int]:
        """Take what happened; gives how many were asked about or wait (`fired`), and the other counts.
        `position` is how far the source was followed, and `told` are events that are stored with it. Raises
        NotFound, ShuttingDown, StorageError.
        """
        if name not in self.files.broken:
            self.files.get(name)
        if self._closed:
            raise ShuttingDown("The daemon stops; tell it again after the next start.")
        return await uninterrupted(self._take(name, happened, position, told))

    async def _take(
        self, name: str, happened: Sequence[Happening], position: str, told: Sequence[NewEvent]
    ) -> dict[str, int]:
        async with self._storing[name]:
            standing, waiting = self.standing(name).copy(), self._waiting.get(name)
            before, found, why = {**standing.counts}, dict.fromkeys((*standing.counts,), 0), ""
            missed = [one for one in happened if one.missed]
            how = None if name in self.files.broken else self.files.get(name).handling()
            for one in happened:
                if one.missed and not (how is not None and how.catch_up):
                    found["missed"] += 1
                    continue
                outcome, why_not = self._outcome(name, standing, waiting, how, missed=one.missed)
                why = why_not or why
                if outcome == "fired":
                    assert how is not None
                    waiting = self._new(name, one, how)
                elif outcome == "coalesced":
                    assert waiting is not None
                    waiting = waiting.with_more(replace(one, data=self._clean(one.data)))
                found[outcome] += 1
            for outcome in ("coalesced", "limited", "refused", "missed"):
                standing.counts[outcome] += found[outcome]
            standing.position = position or standing.position
            events = [*told, *held(name, found, why), *missed_event(name, missed, how)]
            if waiting is not None and waiting is not self._waiting.get(name):
                changes = [standing.change(), waiting.change()]
            else:
                changes = [standing.change()] if standing.counts != before or position else []
            if events or changes:
                await self._history.append(*events, changes=changes)
            self._standing[name] = standing
            if waiting is not None:
                self._waiting[name] = waiting
                self._go_on(name)
        return found

    def _outcome(
        self, name: str, standing: Standing, waiting: Firing | None, how: Handling | None, *, missed: bool
    ) -> tuple[str, str]:
        """Which count goes up, and why when it is not `fired`."""
        if how is None:
            return "refused", self.files.broken[name].message
        if blocked := _blocked(standing, stopped=self._panic.stop is not None):
            return "refused", blocked
        if waiting is not None:
            return "coalesced", "A question waits already."
        now = time.time_ns() // 1000
        standing.recent_us = [
            at for at in standing.recent_us if now - how.rate_period_s * _SECOND_US < at <= now
        ]
        if how.rate_limit and len(standing.recent_us) >= how.rate_limit and not missed:
            return "limited", f"The agent was asked {how.rate_limit} times in {how.rate_period_s:g} seconds."
        return "fired", ""

    def _new(self, name: str, one: Happening, how: Handling) -> Firing:
        now = time.time_ns() // 1000
        return Firing(
            id=new_id("fir"),
            trigger=name,
            data=(self._clean(one.data),),
            missed=int(one.missed),
            at_us=one.at_us,
            due_us=now + round(how.coalesce_s * _SECOND_US),
            cause=self._rounds.cause(one.data, one.at_us),
        )

    def _clean(self, data: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._history.redactor.value(small(data))
        return found

    # Asking

    def _go_on(self, name: str) -> None:
        task = self._tasks.get(name)
        if not self._closed and (task is None or task.done()):
            self._tasks[name] = own_task(self._work(name), name=f"trigger-{name}")

    async def _work(self, name: str) -> None:
        """Ask the questions of a trigger, one after the other."""
        while (waiting := self._waiting.get(name)) is not None:
            await asyncio.sleep(max(0.0, waiting.due_us / _SECOND_US - time.time()))
            try:
                turn = await uninterrupted(self._ask(name))
            except LightagentError as err:
                _log.warning("the trigger %s: %s", name, err.message)
                await asyncio.sleep(AGAIN_S)
                continue
            if turn is not None:
                await self._until_over(*turn)

    async def _ask(self, name: str) -> tuple[Firing, Turn] | None:
        """Ask what waits. Raises QueueFull, StorageError: it is tried again."""
        async with self._storing[name]:
            if name not in self._waiting:
                return None
            firing, standing = self._waiting[name], self.standing(name).copy()
            firing = replace(firing, round=await asyncio.to_thread(self._rounds.round_of, firing.cause))
            why = self._refusal(name, standing, firing)
            if why is not None:
                await self._drop(standing, firing, why)
                return None
            file = self.files.get(name)
            standing.counts["fired"] += 1
            standing.recent_us.append(time.time_ns() // 1000)
            begun: list[Firing] = []

            def stored_with(session: Session) -> tuple[Sequence[NewEvent], Sequence[Change]]:
                asked = _asked(firing, session)
                begun.append(asked)
                event = fired(asked, file)
                return [event], [standing.change(), asked.change()]

            question = Question(
                trigger=name,
                file=file,
                happened=firing.data,
                count=firing.count,
                missed=firing.missed,
                correlation_id=correlation(firing),
            )
            failure: LightagentError | None = None
            try:
                turn = await self._asking.ask(question, stored_with)
            except LightagentError as err:
                if isinstance(err, StorageError) or (not begun and isinstance(err, QueueFull)):
                    raise
                failure = err
            if begun:
                self._waiting.pop(name, None)
                self._standing[name] = standing
        if failure is None:
            self._rounds.begun(begun[0], turn)
            return replace(begun[0], trace_id=turn.trace_id), turn
        if not begun:
            async with self._storing[name]:
                await self._drop(self.standing(name).copy(), firing, failure.message)
        await self._settle(replace(begun[0] if begun else firing, agent=file.agent), failure)
        return None

    def _refusal(self, name: str, standing: Standing, firing: Firing) -> str | None:
        """Why what waits is not asked; None when it is."""
        if firing.round > MOST_ROUNDS:
            standing.stopped = (
                f"The trigger {name} is stopped: its own effects fired it {MOST_ROUNDS} times in a row."
            )
            return standing.stopped
        if name in self.files.broken:
            return self.files.broken[name].message
        if name not in self.files.found:
            return "Its file is gone."
        return _blocked(standing, stopped=self._panic.stop is not None) or None

    async def _drop(self, standing: Standing, firing: Firing, why: str) -> None:
        """Count what waits as refused."""
        stops = standing.stopped and not self.standing(firing.trigger).stopped
        standing.counts["refused"] += 1
        events = held(firing.trigger, {"refused": 1}, why)
        if stops:
            events.append(types.TriggerStopped(message=standing.stopped, trigger=firing.trigger).event())
            _log.warning("%s", standing.stopped)
        await self._history.append(*events, changes=[standing.change(), firing.change(there=False)])
        self._standing[firing.trigger] = standing
        self._waiting.pop(firing.trigger, None)

    async def _until_over(self, firing: Firing, turn: Turn) -> None:
        file = self.files.found.get(firing.trigger)
        timeout_s: float | None = 600.0 if file is None else file.timeout_s
        if isinstance(turn, FlowTurn):
            timeout_s = None  # a flow has its own, and may wait for a person
        try:
            async with asyncio.timeout(timeout_s):
                await turn.over.wait()
        except TimeoutError:
            turn.cancel(TimedOut(f"The agent {firing.agent} did not answer within {timeout_s:g} seconds."))
            await turn.over.wait()
        if turn.stays or (self._closed and isinstance(turn.failure, Cancelled | ShuttingDown)):
            return  # it goes on, or is found, at the next start
        refused = [f"{one['tool']}.{one['action']}" for one in turn.calls if one["result"] == "policy_denied"]
        await self._settle(
            replace(
                firing,
                text=turn.answer,
                refused=tuple(dict.fromkeys(refused)),
                duration_ms=turn.figures["duration_ms"],
            ),
            turn.failure,
        )

    async def _settle(self, firing: Firing, failure: LightagentError | None) -> None:
        """Store how a question ended, and have its answer delivered."""
        about = {"trigger": firing.trigger, "firing": firing.id}
        done = replace(firing, state="answered")
        event: NewEvent
        context = {"agent": firing.agent, "session": firing.session, "trace_id": firing.trace_id}
        with within(**context, owner=firing.owner, correlation_id=correlation(firing)):
            if failure is None:
                event = types.TriggerAnswered(message=f"{firing.trigger}: answered", **about).event()
            else:
                done = replace(done, text=str(failure), code=failure.code)
                message = f"{firing.trigger}: {failure.message}"
                event = types.TriggerFailed(code=failure.code, message=message, **about).event()
        while True:
            try:
                await self._store_end(done, event)
                break
            except StorageError as err:
                _log.warning("the trigger %s: %s", firing.trigger, err.message)
                await asyncio.sleep(AGAIN_S)
        self.outbox.add(done)

    async def _store_end(self, done: Firing, event: NewEvent) -> None:
        async with self._storing[done.trigger]:
            standing = self.standing(done.trigger).copy()
            if done.code:
                standing.failed += 1
            else:
                standing.answered += 1
            await self._history.append(event, changes=[standing.change(), done.change()])
            self._standing[done.trigger] = standing

    async def _join(self, firing: Firing) -> None:
        """Go on with a question that was asked before the daemon started."""
        try:
            _, session = self._registry.session(firing.session)
        except NotFound as err:
            await self._settle(firing, err)
            return
        if (run := self._flows.of_session(session)) is not None:
            await self._until_over(firing, FlowTurn(run))
            return
        wanted = correlation(firing)
        turns = [*([session.running] if session.running else []), *session.queue]
        turn = next((one for one in turns if one.correlation_id == wanted), None)
        if turn is not None:
            firing = replace(firing, trace_id=turn.trace_id)
            self._rounds.begun(firing, turn)
            await self._until_over(firing, turn)
            return
        text, failure, trace_id = await asyncio.to_thread(ending, self._history, firing.session, wanted)
        await self._settle(replace(firing, text=text, trace_id=trace_id), failure)

    def _parent_of(self, session: str) -> str:
        with contextlib.suppress(LightagentError):
            _, found = self._registry.session(session)
            return found.record.parent
        return ""

    # By hand

    async def run(
        self,
        name: str,
        data: Mapping[str, Any],
        *,
        agent: str = "",
        flow: str = "",
        owner: int | None = None,
        granted: bool = False,
        correlation_id: str = "",
    ) -> Turn:
        """Ask at once, for somebody who waits: a unit, or a person who tests. It takes no part of the rate
        limit of a trigger, and its answer is delivered by nobody. `owner` is in whose name, where that is not
        the file's owner; `granted`: whether it has the effects of the file without a person; `flow` runs in
        place of the question, with the data that it has inputs for. Raises what
        `Asking.ask` does, NotFound, ConfigError, Refused.
        """
        file = self.files.get(name)
        if flow:
            known = self._asking.inputs_of(flow)
            inputs = {key: f"{{{key}}}" for key in data if key in known}
            file = file.model_copy(update={"flow": flow, "inputs": inputs})
        is_unit = file.handling().on == "unit"
        standing = self.standing(name)
        if is_unit and standing.paused:
            async with self._storing[name]:
                standing = standing.copy()
                standing.counts["refused"] += 1
                told = held(name, {"refused": 1}, _PAUSED)
                await self._history.append(*told, changes=[standing.change()])
                self._standing[name] = standing
            raise Refused(f"The trigger {name} is paused.", suggestion=f"Run: lactl triggers resume {name}")
        now = time.time_ns() // 1000
        firing = Firing(
            id=new_id("fir"), trigger=name, data=(self._clean(data),), at_us=now, due_us=now, state="asked"
        )

        def stored_with(session: Session) -> tuple[Sequence[NewEvent], Sequence[Change]]:
            asked = _asked(firing, session)
            changes = []
            if is_unit:
                standing = self.standing(name).copy()
                standing.counts["fired"] += 1
                self._standing[name] = standing
                changes.append(standing.change())
            return [fired(asked, file, test=not is_unit)], changes

        question = Question(
            trigger=name,
            file=file,
            happened=firing.data,
            agent=agent,
            owner=owner,
            granted=granted,
            correlation_id=correlation_id or correlation(firing),
        )
        async with self._storing[name]:
            turn = await self._asking.ask(question, stored_with)
        self._rounds.begun(firing, turn)
        return turn

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause a trigger, or let a paused or stopped one go on. Raises NotFound, StorageError."""
        if name not in self.files.broken:
            self.files.get(name)
        async with self._storing[name]:
            standing = self.standing(name).copy()
            standing.paused, standing.stopped = paused, standing.stopped if paused else ""
            kind = types.TriggerPaused if paused else types.TriggerResumed
            said = f"{name} {'is paused' if paused else 'goes on'}."
            await self._history.append(kind(message=said, trigger=name).event(), changes=[standing.change()])
            self._standing[name] = standing


def correlation(firing: Firing) -> str:
    """By which the events of a question's turn are found."""
    return f"trigger:{firing.trigger}:{firing.id}"


def _asked(firing: Firing, session: Session) -> Firing:
    """The question, as it is asked in a session."""
    record = session.record
    return replace(firing, state="asked", agent=record.agent, session=session.id, owner=record.owner)


def _blocked(standing: Standing, *, stopped: bool) -> str:
    """Why a trigger asks nobody just now, as a sentence; `stopped` is whether everything is."""
    if standing.stopped or standing.paused:
        return standing.stopped or _PAUSED
    return "Everything is stopped: lactl panic --off" if stopped else ""
