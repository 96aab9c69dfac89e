"""One watch of the tool inotify: an engine in a thread, a buffer to poll, and events for the bus.

The tool owns its watches; each owns one task, which ends with `stop` or with an error that is published like
a stop. The reader is taken off the loop while the engine works, so one step is under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.watching.changes import Buffer, Change, Page, Pending, Record
from lightagentd.toolkit.watching.engine import Engine
from lightagentd.toolkit.watching.outbox import Outbox
from lightagentd.toolkit.watching.selection import OwnFolders, Selection

_log = logging.getLogger(__name__)

TOPIC, EVENT_TOPIC = "tool.inotify", "tool.inotify.event"

Publish = Callable[[str, str, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """The requested watch and its owner. `path` is the caller's path with links resolved."""

    id: str
    agent: str
    session: str
    owner: int
    call_id: str
    path: str
    root: str
    """The folder that is watched: `path`, or the one that it lies in when it is a file."""
    selection: Selection
    buffer: int
    args: dict[str, Any]
    """The arguments of the call, with which the watch can be made again."""


@dataclass(eq=False)
class Watch:
    """Start with `start`, end with `stop`."""

    order: Order
    publish: Publish
    engine: Engine
    buffer: Buffer
    pending: Pending = field(default_factory=Pending)
    problem: str = ""
    """Why it ended, if that was an error."""
    last_event: str = ""
    _outbox: Outbox = field(default_factory=lambda: Outbox(time.monotonic()))
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _readable: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _finished: bool = False
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "watch"))
    _told_of_loss: int = -1
    """What `buffer.asked` was when a loss was told last."""

    @staticmethod
    def of(order: Order, own: OwnFolders, publish: Publish) -> Watch:
        """Raises LimitExceeded, ToolError."""
        engine = Engine(order.root, order.selection, own)
        buffer = Buffer(run=f"{time.time_ns() // 1000:x}", size=order.buffer)
        return Watch(order=order, publish=publish, engine=engine, buffer=buffer)

    async def start(self, *, since_us: int | None = None) -> int:
        """Begin to watch; gives how many changes since then were found. Raises what `begin` raises."""
        since_ns = None if since_us is None else since_us * 1000
        beginning = self._in_thread(partial(self.engine.begin, since_ns=since_ns))
        try:
            found = await asyncio.shield(beginning)
        except BaseException:
            self.engine.tree.stopping = True
            await asyncio.wait([beginning])
            beginning.exception()
            self._finish()
            raise
        self._take(found)
        self._task = asyncio.create_task(self._run(), name=f"watch-{self.order.id}")
        return sum(change.found_by == "gap" for change in found)

    async def stop(self) -> None:
        """End the watch, after publishing the changes seen so far."""
        task, self._task = self._task, None
        if task is None:
            return
        self.engine.tree.stopping = True
        task.cancel()
        await asyncio.wait([task])
        self._finish()  # a task that is cancelled before its first step does not do it

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def poll(self, cursor: str, limit: int, wait_s: float) -> Page:
        """The records after a cursor; waits for the first one when there is none. Raises ValueError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.running:
                    self._news.clear()
                    if self.buffer.newest > self.buffer.position(cursor)[0]:
                        break
                    await self._news.wait()
        after, other_run = self.buffer.position(cursor)
        return self.buffer.page(after, limit, other_run=other_run)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wait(loop)
                working = self._in_thread(self.engine.step)
                try:
                    found = await asyncio.shield(working)
                except asyncio.CancelledError:
                    await asyncio.wait([working])
                    if working.exception() is None:
                        self._take(working.result())
                    raise
                self._take(found)
                self._flush()
        except asyncio.CancelledError:
            raise
        except Exception as err:  # noqa: BLE001 - the boundary of a watch: it ends, and says so
            _log.exception("the watch %s failed", self.order.id)
            self.problem = f"{type(err).__name__}: {err}"
            self.publish(TOPIC, "watch_stopped", {**self.facts(), "reason": self.problem})
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._flush(last=True)
        self._news.set()
        self.engine.close()
        self._thread.shutdown(wait=False)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until there is something to read, or something is due."""
        due = [self.engine.due, self.pending.due, self._outbox.due]
        delay = min(one for one in due if one is not None) - time.monotonic()
        self._readable.clear()
        loop.add_reader(self.engine.fd, self._readable.set)
        try:
            async with asyncio.timeout(max(0.0, delay)):
                await self._readable.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self.engine.fd)

    def _in_thread(self, work: Callable[[], list[Change]]) -> asyncio.Future[list[Change]]:
        """In the watch's own thread: a file system that hangs holds up no other watch."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _take(self, found: Iterable[Change]) -> None:
        self.pending.add(found)

    def _flush(self, *, last: bool = False) -> None:
        """Move what was collected to the buffer and the outbox, and publish what is due there."""
        now = time.monotonic()
        until_us = self.engine.seen_us
        if self.pending.due is not None and (last or self.pending.due <= now):
            self._keep(self.pending.take(), now)
        due = self._outbox.due
        if due is not None and (last or due <= now):
            data = self.facts() | self._outbox.take(now) | {"until_us": until_us}
            self.publish(EVENT_TOPIC, "fs_event", data)

    def _keep(self, records: list[Record], now: float) -> None:
        lost = self.buffer.add(records)
        told: list[Record] = []
        for record in records:
            if record.kinds[0] == "overflow":
                self.publish(EVENT_TOPIC, "overflow", self.facts() | (record.detail or {}))
            told.append(record)
        if lost and self._told_of_loss != self.buffer.asked:
            self._told_of_loss = self.buffer.asked
            self.publish(EVENT_TOPIC, "overflow", self.facts() | {"where": "buffer", "lost": lost})
        self._outbox.add(told, now)
        if records:
            self.last_event = records[-1].line()
        self._news.set()

    def facts(self) -> dict[str, Any]:
        """The facts about the watch in each event and answer."""
        return {
            "watch": self.order.id,
            "session": self.order.session,
            "owner": self.order.owner,
            "path": shown(self.order.path),
            "whole": self.engine.whole and self.running,
        }

    def state(self) -> dict[str, Any]:
        """The state of the watch, for `list`."""
        tree = self.engine.tree
        return self.facts() | {
            "running": self.running,
            "problem": self.problem,
            "waiting_for_root": tree.root is None,
            "recursive": self.order.selection.recursive,
            "folders": len(tree.by_wd),
            "left_out": len(tree.left_out),
            "not_watched_count": tree.not_watched_count,
            "not_watched": [
                {"path": shown(path), "why": why} for path, why in [*tree.not_watched.items()][:20]
            ],
            "unread": self.buffer.newest - self.buffer.asked,
            "dropped": self.buffer.dropped,
            "overflows": self.engine.overflows,
            "rescans": self.engine.rescans,
        }
