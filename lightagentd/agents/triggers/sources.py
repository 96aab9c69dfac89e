"""Follows the history for the triggers whose `on` is `event`; other programs follow everything else.

It goes on after the last event that was taken, so nothing is taken twice or passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from lightagentd.agents.triggers.records import Happening
from lightagentd.agents.triggers.triggers import Triggers
from lightagentd.config.triggers import TriggerFile
from lightagentd.errors import LightagentError
from lightagentd.events.context import own_task
from lightagentd.events.feed import Feed, Missed
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.model import Event

_log = logging.getLogger(__name__)

_AT_ONCE = 200
_AGAIN_S = 5.0


class EventSources:
    """`sync` after the files were read; end with `close()`."""

    def __init__(self, triggers: Triggers, history: History, feed: Feed) -> None:
        self._triggers, self._history, self._feed = triggers, history, feed
        self._tasks: dict[str, tuple[TriggerFile, asyncio.Task[None]]] = {}

    def sync(self) -> None:
        """Follow what the files say now."""
        wanted = {
            name: one
            for name, one in self._triggers.files.found.items()
            if isinstance(one, TriggerFile) and one.on == "event"
        }
        for name, (file, task) in list(self._tasks.items()):
            if wanted.get(name) != file:
                task.cancel()
                del self._tasks[name]
        for name, file in wanted.items():
            if name not in self._tasks:
                position = file.unmarked(self._triggers.standing(name).position)
                task = own_task(self._follow(name, file, position), name=f"trigger-events-{name}")
                self._tasks[name] = file, task

    async def close(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, name: str, file: TriggerFile, position: str) -> None:
        from_seq = int(position or self._history.head_seq) + 1
        if not position:
            await self._fire(name, [], file.marked(str(from_seq - 1)))
        while True:
            found: asyncio.Queue[tuple[int, Happening]] = asyncio.Queue(maxsize=_AT_ONCE)
            reading = asyncio.create_task(self._read(name, file, from_seq, found))
            try:
                while (first := await _next(found, reading)) is not None:
                    taken = [first]
                    while not found.empty() and len(taken) < _AT_ONCE:
                        taken.append(found.get_nowait())
                    await self._fire(name, [one for _, one in taken], file.marked(str(taken[-1][0])))
                    from_seq = taken[-1][0] + 1
                reading.result()  # the daemon stops
                return
            except LightagentError as err:
                _log.warning("the trigger %s: %s", name, err.message)
                await asyncio.sleep(_AGAIN_S)
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def _fire(self, name: str, happened: list[Happening], position: str) -> None:
        while True:
            try:
                await self._triggers.fire(name, happened, position)
            except LightagentError as err:  # nothing was stored, so it is taken again
                _log.warning("the trigger %s: %s", name, err.message)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _read(
        self, name: str, file: TriggerFile, from_seq: int, found: asyncio.Queue[tuple[int, Happening]]
    ) -> None:
        wanted = Filter(topic=file.topic or "", type=file.type or "")
        async with contextlib.aclosing(self._feed.follow(self._history, wanted, from_seq)) as items:
            async for item in items:
                if isinstance(item, Missed) or item.topic == "trigger.held":
                    continue
                data = data_of(item)
                is_own = item.topic.startswith("trigger.") and data.get("trigger") == name
                if not is_own and file.fits(data):
                    await found.put((item.seq, Happening(data=data, at_us=item.time_us)))


async def _next(
    found: asyncio.Queue[tuple[int, Happening]], reading: asyncio.Task[None]
) -> tuple[int, Happening] | None:
    """The next thing that was read; None once the reader has ended and all was taken."""
    getting = asyncio.ensure_future(found.get())
    try:
        await asyncio.wait([getting, reading], return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


def data_of(event: Event) -> dict[str, Any]:
    """What a trigger is told of an event."""
    about = {
        "topic": event.topic,
        "type": event.type,
        "agent": event.agent,
        "session": event.session,
        "trace_id": event.trace_id,
    }
    return {**(event.data or {}), **{name: one for name, one in about.items() if one}, "seq": event.seq}
