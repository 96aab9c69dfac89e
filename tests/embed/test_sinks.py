"""Sinks: what waits for one is bounded, and whatever it does stays its own affair."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from lightagentd.api import TurnEvent
from lightagentd.embed.sinks import (
    DROPPED,
    MOST_CHARS,
    MOST_EVENTS,
    Sink,
    sink_of,
    to_file,
    to_function,
    to_queue,
    to_sse,
)
from lightagentd.errors import CallbackFailed, InvalidArgument


def event(kind: str, number: int = 0, text: str = "") -> TurnEvent:
    return {"type": kind, "session": "s", "trace_id": "t", "position": number, "text": text}


def started(sink: Sink) -> tuple[Sink, list[CallbackFailed]]:
    failed: list[CallbackFailed] = []
    sink.start(failed.append)
    return sink, failed


class Blocked:
    """A function that takes one event and waits."""

    def __init__(self) -> None:
        self.got: list[TurnEvent] = []
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, event: TurnEvent) -> None:
        self.got.append(event)
        self.inside.set()
        self.go.wait()


async def blocked() -> tuple[Sink, Blocked]:
    function = Blocked()
    sink, _ = started(to_function(function))
    sink.put(event("queued"))
    await asyncio.to_thread(function.inside.wait)
    return sink, function


async def test_a_blocked_sink_keeps_the_newest_and_is_told_of_the_rest() -> None:
    sink, function = await blocked()
    for number in range(MOST_EVENTS + 500):
        sink.put(event("tool_call", number))
    for number in range(300):
        sink.put(event("text_delta", number))
    assert len(sink._waiting) == MOST_EVENTS
    assert sink.dropped == 800
    function.go.set()
    assert await sink.close()
    assert function.got[1] == {"type": DROPPED, "count": 800}
    assert [one["position"] for one in function.got[2:]] == [*range(500, MOST_EVENTS + 500)]


async def test_large_events_count_by_their_size() -> None:
    sink, function = await blocked()
    for number in range(40):
        sink.put(event("tool_result", number, "x" * (1 << 20)))
    assert sink._chars <= MOST_CHARS
    assert sink.dropped == 33
    sink.put(event("done", 1, "x" * (20 << 20)))  # larger than all: it is the last one, so it stays
    function.go.set()
    assert await sink.close()
    assert [one["type"] for one in function.got] == ["queued", DROPPED, "done"]


async def test_a_sink_that_never_goes_on_does_not_keep_the_end() -> None:
    sink, function = await blocked()
    assert not await sink.close(0.05)
    sink.put(event("done"))
    assert not sink._waiting
    function.go.set()


async def test_a_sink_that_raises_gets_nothing_more() -> None:
    got: list[TurnEvent] = []

    def fails(event: TurnEvent) -> None:
        got.append(event)
        raise OSError("no room")

    sink, failed = started(to_function(fails))
    sink.put(event("queued"))
    assert await sink.close()
    sink.put(event("done"))
    assert len(got) == 1
    assert [one.message for one in failed] == ["The sink fails failed: OSError: no room"]
    assert isinstance(failed[0].__cause__, OSError)


async def test_each_kind_gets_all_events_in_order(tmp_path: Path) -> None:
    plain: queue.Queue[TurnEvent] = queue.Queue()
    of_loop: asyncio.Queue[TurnEvent] = asyncio.Queue()
    lines: list[str] = []
    sinks = [to_queue(plain), to_queue(of_loop), to_file(tmp_path / "events"), to_sse(lines.append)]
    for sink in sinks:
        started(sink)
        for number in range(3):
            sink.put(event("text_delta", number, "ä\n"))
    for sink in sinks:
        assert await sink.close()
    wanted = [event("text_delta", number, "ä\n") for number in range(3)]
    assert [plain.get_nowait() for _ in range(3)] == wanted
    assert [of_loop.get_nowait() for _ in range(3)] == wanted
    assert [json.loads(one) for one in (tmp_path / "events").read_text().splitlines()] == wanted
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600
    for text, one in zip(lines, wanted, strict=True):
        head, data, *end = text.split("\n")
        assert (head, end) == ("event: text_delta", ["", ""])
        assert json.loads(data.removeprefix("data: ")) == one


@pytest.mark.parametrize("given", [7, None, ["x"]])
async def test_what_is_no_sink_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="a function, a queue or the path of a file"):
        sink_of(given)
