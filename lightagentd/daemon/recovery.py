"""Handles the state that the previous run left: a sound history, one that a crash ended, or a damaged one.

The daemon owns one `Recovery` and calls it in the order of a start: `open` instead of `History.start`,
`settle` before anything else is stored, `report` once all agents are up, `serve` when the daemon is ready,
and `close` before the history is closed. A damaged store is set aside (see `events.corruption`), and its
readable part is written beside it while the daemon serves. Nothing here ends a daemon that could serve:
faults are listed in `problems`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from lightagentd.agents.sessions.open_calls import close_open_calls
from lightagentd.daemon.state_rows import take_out
from lightagentd.errors import HistoryDamaged, LightagentError, StorageError
from lightagentd.events.audit.checkpoints import HEAD_FILE, KeptHead
from lightagentd.events.audit.verification import Verification, verify_tail
from lightagentd.events.corruption import examination as damage
from lightagentd.events.corruption.runs import Run, Runs
from lightagentd.events.corruption.whole import examine_whole
from lightagentd.events.history import History, NewEvent
from lightagentd.events.store.exchange import finish_exchange
from lightagentd.events.store.layout import EVENTS, Environment
from lightagentd.events.store.room import try_writing
from lightagentd.events.types.history import (
    HistoryExamined,
    HistoryRecovered,
    HistorySalvaged,
    HistorySetAside,
)
from lightagentd.host.paths import Paths
from lightagentd.host.systemd import notify

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry
    from lightagentd.daemon.runtime import Now
    from lightagentd.events.corruption.salvage import Salvaged

_log = logging.getLogger(__name__)

PAUSE_S = 3600.0
"""The least time between two examinations of the whole file while the daemon runs."""
LOOK_S = 60.0
"""How often the newest event is noted, and whether the file should be examined."""
EXAMINE_US = 7 * 86_400_000_000
"""How long after an examination of the whole file the next one is made while the daemon runs."""


class Recovery:
    """One start's check of the stored state."""

    def __init__(self, paths: Paths, history: History, now: Now) -> None:
        self._folder = paths.history
        self._now = now
        self._history = history
        self._kept_head = paths.audit / HEAD_FILE
        self._runs = Runs(paths.state / "last-run.json")
        self._opened = False
        self._note: damage.Note | None = None
        """About a store that this start, or a killed one before it, set aside."""
        self._tail: Verification | None = None
        self._crashed_at = 0
        """The newest event of a run that ended without a stop; 0 after any other."""
        self._closed_calls = 0
        self._taken_out: list[str] = []
        """Sentences about the rows of state that this start removed."""
        self._salvage_problem = ""
        self._examined: HistoryExamined | None = None
        """This start's examination of the whole file, until it is stored."""
        self._damage = ""
        """What an examination found while the daemon ran."""
        self._doubtful = False
        """Whether the next start should examine the whole file, however this run ends."""
        self._looking: asyncio.Task[None] | None = None
        self._salvaging: asyncio.Task[None] | None = None
        self._stopping = threading.Event()

    async def open(self) -> None:
        """Examine the store, set it aside if it is damaged, and start the history. Stores nothing.

        Raises StorageError when it cannot be used but is not damaged.
        """
        run = await asyncio.to_thread(self._runs.begin)
        try:
            await self._examine(run)
            try:
                await self._start()
            except HistoryDamaged as err:  # LMDB sees more
                await self._begin_anew(err)
        except BaseException:
            await asyncio.to_thread(self._runs.forget)
            raise
        self._opened = True

    async def settle(self) -> None:
        """Store what a start has to say of the last run, before anything else. Raises StorageError, first of
        all when the disk takes nothing; then it can be called again.
        """
        try:
            await self._settle()
        except HistoryDamaged as err:
            await self._begin_anew(err)
            await self._settle()

    async def _begin_anew(self, err: HistoryDamaged) -> None:
        _log.error("%s", err.message)
        await self._history.close()
        await asyncio.to_thread(self._set_aside, self._runs.last, err.message)
        await self._start()

    async def _settle(self) -> None:
        await self._history.exclusively(partial(try_writing, self._history.environment))
        if (note := self._note) is not None:
            if self._history.head_seq == note.seq:
                aside = HistorySetAside(
                    message=note.message, path=note.path, last_seq=note.seq, last_hash=note.hash
                )
                await self._history.append(aside.event())
            await asyncio.to_thread(damage.forget_note, self._folder)
            self._note = None
        if self._examined is not None:
            await self._history.append(self._examined.event())
            self._examined = None
        self._taken_out = await take_out(self._history)
        await self._look_back()

    async def report(self, registry: Registry) -> None:
        """Store one event about the last run, if it ended without a stop. Raises StorageError."""
        tail = self._tail
        if tail is None or (not self._crashed_at and tail.ok):
            return
        left = [agent.left for agent in registry.agents.values()]
        asked = registry.shared.asked
        waiting, waiting_inputs = asked.approvals.questions.waiting, asked.inputs.questions.waiting
        interrupted = sum(each.interrupted for each in left) + registry.ended_turns
        recovered = HistoryRecovered(
            message=self._sentence(tail, interrupted, waiting, waiting_inputs),
            tail_events=tail.events,
            interrupted_turns=interrupted,
            unknown_calls=self._closed_calls,
            requeued_turns=sum(each.requeued for each in left),
            waiting_turns=sum(each.waiting for each in left),
            approvals=waiting,
            inputs=waiting_inputs,
            watches=len(registry.shared.watches.records),
        )
        await self._history.append(recovered.event())

    def serve(self) -> None:
        """From now on, in the background: write the readable parts of damaged stores to files, and examine
        the file now and then.
        """
        self._looking = asyncio.create_task(self._look_now_and_then(), name="recovery-look")
        self._salvaging = asyncio.create_task(self._salvage_all(), name="recovery-salvage")

    def doubt(self) -> None:
        """A start failed for a reason that may lie in the file: let the next one examine all of it."""
        self._doubtful = True

    async def close(self) -> None:
        """The daemon stops. Called while the history is still open, if it was opened."""
        self._stopping.set()
        if self._looking is not None:
            self._looking.cancel()
        if tasks := [task for task in (self._looking, self._salvaging) if task is not None]:
            await asyncio.wait(tasks)
        self._looking = self._salvaging = None
        if self._opened and not self._doubtful and not self._history.environment.doubtful:
            await asyncio.to_thread(self._runs.stop, *self._history.head)

    def problems(self) -> list[str]:
        """The problems that an administrator has to look at, as sentences."""
        found = []
        if self._tail is not None and not self._tail.ok:
            found.append(
                f"The history was altered or damaged: {self._tail.reason} (event {self._tail.first_bad_seq})."
                " Find out who could write it, and look at all of it: lactl audit verify"
            )
        found += [aside_sentence(path) for path in damage.left_aside(self._folder)]
        if self._damage:
            found.append(
                f"The history is damaged: {self._damage}. Restart the daemon: it moves the file away, exports"
                " its readable part and goes on in a new one."
            )
        found += [*self._taken_out, self._salvage_problem, self._runs.problem()]
        return [problem for problem in found if problem]

    # The store

    async def _examine(self, run: Run) -> None:
        """Raises StorageError."""
        await asyncio.to_thread(finish_exchange, self._folder)
        # The last start may have been killed while setting a store aside; then there may be no store.
        known = run.seq > 0 and damage.pending_note(self._folder) is None
        if run.stopped:
            found = await asyncio.to_thread(damage.examine, self._folder, seconds=damage.QUICK_S, known=known)
        else:
            notify("STATUS=examining the history: the last run did not stop in order")
            begun = time.monotonic()
            found = await examine_whole(self._folder, known=known)
            if found.seq and not found.problem:
                self._examined = _examined(found, begun)
        if not found.problem:
            await asyncio.to_thread(damage.clear_lock, self._folder)
        else:
            message = f"The history in {self._folder} is damaged: {found.problem}."
            await asyncio.to_thread(self._set_aside, run, message)

    def _set_aside(self, run: Run, message: str) -> None:
        """In a thread. Raises StorageError."""
        from lightagentd.events.corruption.salvage import last_known  # few starts need it

        known = [last_known(self._folder), (run.seq, run.hash)]
        try:
            if kept := KeptHead.read(self._kept_head):
                known.append((kept.seq, kept.hash))
        except (OSError, ValueError) as err:
            _log.warning("what was signed last is not known: %s", err)
        seq, head_hash = max(known)
        note = damage.set_aside(self._folder, message, seq, head_hash)
        _log.error("%s It was moved to %s.", message, note.path)

    async def _start(self) -> None:
        """Start the history. A new one in place of a damaged one continues its numbers."""
        self._note = note = await asyncio.to_thread(damage.pending_note, self._folder)
        if note is not None:
            await asyncio.to_thread(_begin_behind, self._folder, note.seq, note.hash)
        await self._history.start()

    async def _look_back(self) -> None:
        """Verify the newest events, and find out how the last run ended. Raises StorageError."""
        environment = self._history.environment
        examined = self._history.queries.find_in_topic(
            "daemon.history", lambda event: event.type == "examined"
        )
        self._now.examined_us = examined.time_us if examined is not None else 0
        self._tail = await asyncio.to_thread(verify_tail, environment, damage.TAIL_EVENTS)
        if not self._tail.ok:
            _log.error(
                "the history does not verify at event %d: %s", self._tail.first_bad_seq, self._tail.reason
            )
        newest = self._history.queries.find_in_topic("daemon.state", lambda _: True)
        if newest is not None and newest.type != "stopped":
            head_seq = self._history.head_seq
            self._closed_calls = await close_open_calls(self._history)
            placed = self._history.queries.find_in_topic(
                "daemon.history", lambda event: event.type == "installed"
            )
            if placed is None or placed.seq < newest.seq:  # a backup of a running daemon has no stop either
                self._crashed_at = head_seq

    def _sentence(self, tail: Verification, interrupted: int, approvals: int, inputs: int) -> str:
        parts = []
        if self._crashed_at:
            parts.append(f"the last run ended without a stop at event {self._crashed_at}")
        if not tail.ok:
            parts.append(f"the history does not verify at event {tail.first_bad_seq}: {tail.reason}")
        said = [
            _counted(interrupted, "turn was interrupted", "turns were interrupted"),
            _counted(self._closed_calls, "call of unknown outcome", "calls of unknown outcome"),
            _counted(approvals, "approval waits", "approvals wait"),
            _counted(inputs, "question waits", "questions wait"),
        ]
        return "; ".join([*parts, ", ".join(part for part in said if part) or "nothing was under way"])

    # In the background

    async def _look_now_and_then(self) -> None:
        told, not_before_s = 0, 0.0
        while True:
            if told != self._history.head_seq:
                told = self._history.head_seq
                await asyncio.to_thread(self._runs.known, *self._history.head)
            await asyncio.sleep(LOOK_S)
            due = self._now.examined_us + EXAMINE_US < time.time_ns() // 1000
            wanted = not self._damage and (due or self._history.environment.doubtful)
            if wanted and time.monotonic() >= not_before_s:
                await self._examine_live()
                not_before_s = time.monotonic() + PAUSE_S

    async def _examine_live(self) -> None:
        """Examine the whole file while it is in use, and store the result."""
        begun = time.monotonic()
        try:
            found = await examine_whole(self._folder, live=True)
            self._history.environment.doubtful = False
            self._now.examined_us = time.time_ns() // 1000
            if found.problem:
                self._damage, self._doubtful = found.problem, True
                _log.error("the history is damaged: %s", found.problem)
            await self._history.append(_examined(found, begun).event())
        except LightagentError as err:
            _log.error("%s", err.message)

    async def _salvage_all(self) -> None:
        """Write the readable part of each store that was set aside to a file, unless that exists."""
        aside = damage.left_aside(self._folder)
        for path in [each for each in aside if not damage.export_of(each).exists()]:
            try:
                await self._salvage(path)
            except LightagentError as err:
                _log.error("%s", err.message)
                self._salvage_problem = f"{err.message} {err.suggestion}".strip()
            except Exception:  # noqa: BLE001 - whatever a damaged file does: recorded, and the daemon goes on
                _log.exception("the damaged history in %s could not be read", path)
                self._salvage_problem = f"What can be read of {path} could not be written: see the log."

    async def _salvage(self, path: Path) -> None:
        """Raises StorageError."""
        from lightagentd.events.corruption.salvage import Stopped, salvage  # few starts need it

        target = damage.export_of(path)
        try:
            done = await asyncio.to_thread(salvage, path, target, self._stopping.is_set)
        except Stopped:
            return
        await self._history.append(_salvaged(path, target, done))


def _examined(found: damage.Examined, begun: float) -> HistoryExamined:
    duration_ms = round((time.monotonic() - begun) * 1000)
    message = f"the file is damaged: {found.problem}" if found.problem else "every page is sound"
    return HistoryExamined(message=message, seq=found.seq, problem=found.problem, duration_ms=duration_ms)


def aside_sentence(path: Path) -> str:
    """The sentence for an administrator about a store that was set aside."""
    export = damage.export_of(path)
    what, how = "", "restore a backup with lactl history restore"
    if export.exists():
        from lightagentd.events.corruption.salvage import is_whole, missing_in

        gaps = missing_in(export)
        what = f"; what could be read of it is in {export}{f' ({gaps})' if gaps else ''}"
        if is_whole(export):
            how = f"stop the daemon and run: lactl history import {export}"
            what = f"; all of it could be read, and is in {export}"
    return (
        f"A damaged history was set aside: {path}{what}. The history goes on in a new store. To have the old"
        f" one back, {how}. Then, or else, keep what you need and move it away."
    )


def _salvaged(path: Path, target: Path, done: Salvaged) -> NewEvent:
    from lightagentd.events.corruption.salvage import missing_sentence

    left = f", {missing_sentence(done.missing, done.ranges)}" if done.missing else ""
    count = _counted(done.events, "event", "events") or "no event"
    return HistorySalvaged(
        message=f"{count} of the damaged history could be read{left}"
        if not done.whole
        else "all of the damaged history could be read",
        path=str(path),
        export=str(target),
        events=done.events,
        missing=done.missing,
        ranges=done.ranges,
        without_data=done.without_data,
        states=done.states,
    ).event()


def _begin_behind(folder: Path, seq: int, head_hash: str) -> None:
    """Make the empty store in a folder continue after an event. Raises StorageError."""
    environment = Environment(folder)
    try:
        with environment.env.begin(write=True) as txn:
            if not txn.stat(environment.db[EVENTS])["entries"]:
                environment.set_anchor(txn, seq, head_hash)
    except lmdb.Error as err:
        raise StorageError(f"The history in {folder} cannot be begun: {err}.") from err
    finally:
        environment.close()


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}" if count else ""
