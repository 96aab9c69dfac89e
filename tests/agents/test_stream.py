"""The streams of a turn: joined text, bounded memory, nothing else left out."""

from __future__ import annotations

import asyncio

import pytest

from lightagentd.agents import stream as stream_module
from lightagentd.agents.stream import SessionStream, TurnStream, Watcher
from lightagentd.api import TurnEvent, turn_events
from lightagentd.errors import LimitExceeded
from lightagentd.redaction import Redactor


async def read(watcher: Watcher) -> list[TurnEvent]:
    return [event async for event in watcher.events()]


def end(stream: TurnStream) -> None:
    stream.emit(turn_events.Done(text="", steps=1, duration_ms=0))


def call_of(call_id: str, args: dict[str, str] | None = None) -> turn_events.ToolCallStarted:
    return turn_events.ToolCallStarted(
        call_id=call_id, tool="bash", action="run", effect="change", decision="allow", args=args or {}
    )


def output(text: str) -> turn_events.ToolOutput:
    return turn_events.ToolOutput(call_id="c", stream="stdout", text=text)


RESULT = turn_events.ToolResult(
    call_id="c", tool="bash", action="run", result="ok", text="", metadata={}, duration_ms=0
)


async def test_deltas_of_twenty_milliseconds_are_one_event() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    events = stream.watch().events()
    for piece in "Hello ":
        stream.text(piece)
    first = await anext(events)
    assert first == {"type": "text_delta", "session": "ses", "trace_id": "trace", "text": "Hello "}
    stream.text("!\n")
    assert (await anext(events))["text"] == "!\n"
    end(stream)
    assert (await anext(events))["type"] == "done"
    await events.aclose()


async def test_text_comes_before_the_event_that_follows_it() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    watcher = stream.watch()
    stream.text("a ")
    stream.emit(turn_events.Notice(code="x", message="y"))
    stream.text("b")
    end(stream)
    assert [event["type"] for event in await read(watcher)] == ["text_delta", "notice", "text_delta", "done"]


async def test_thoughts_and_text_keep_their_order() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    watcher = stream.watch()
    for piece in ("Hm", ", ", "well."):
        stream.text(piece, thought=True)
    stream.text("Yes.")
    stream.text("But", thought=True)
    end(stream)
    told = [(event["type"], event["text"]) for event in (await read(watcher))[:-1]]
    assert told == [("reasoning_delta", "Hm, well."), ("text_delta", "Yes."), ("reasoning_delta", "But")]


async def test_a_slow_watcher_gets_joined_text_and_every_other_event() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    slow, quick = stream.watch(), stream.watch()
    reading = asyncio.create_task(read(quick))
    for number in range(50):
        stream.text(f"{number} ")
        stream.flush()
        await asyncio.sleep(0)
        if number % 10 == 9:
            stream.emit(call_of(str(number)))
    end(stream)
    events = await read(slow)
    assert [event["type"] for event in events] == ["text_delta", "tool_call"] * 5 + ["done"]
    said = "".join(event.get("text", "") for event in events)
    assert said == "".join(f"{number} " for number in range(50))
    heard = await reading
    assert len(heard) > len(events)
    assert "".join(event.get("text", "") for event in heard) == said


async def test_live_output_that_nobody_reads_is_bounded_and_other_events_are_not() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    watcher = stream.watch()
    for _ in range(3000):
        stream.emit(output("x"))
    stream.emit(RESULT)
    end(stream)
    events = await read(watcher)
    assert len(events) == stream_module._MAX_WAITING + 2
    assert [event["type"] for event in events[-2:]] == ["tool_result", "done"]


async def test_live_output_is_bounded_by_its_size_too_and_goes_on_once_it_was_read() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    watcher = stream.watch()
    piece = "x" * (1 << 20)
    for _ in range(20):
        stream.emit(output(piece))
    events = watcher.events()
    for _ in range(4):
        await anext(events)
    stream.emit(output("more"))
    assert (await anext(events))["text"] == "more"
    await events.aclose()


async def test_a_secret_in_pieces_reaches_no_watcher() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor(["correct-horse-battery"])))
    watcher = stream.watch()
    pieces = ("It is corr", "ect-ho", "rse-battery, ", "and PASS", "WORD=hun", "ter2")
    for piece in pieces:
        stream.text(piece, thought=True)
        stream.flush()
    for piece in pieces:
        stream.text(piece)
        stream.flush()
        stream.output("c", "stdout", piece)
        stream.output("c", "stderr", piece.upper())
    late = stream.watch()
    stream.end_output("c")
    end(stream)
    for events in (await read(watcher), await read(late)):
        for said in (
            "".join(each.get("text", "") for each in events if each["type"] == kind)
            for kind in ("reasoning_delta", "text_delta", "tool_output")
        ):
            assert "hunter2" not in said.lower()
            assert "battery" not in said
    assert "[removed: password]" in str(events)


async def test_text_is_the_same_wherever_it_is_cut_and_flushed() -> None:
    redactor = Redactor(["correct-horse-battery"])
    said = "It is correct-horse-battery,\nand PASSWORD=hunter2 ok; token: ghp_" + "a1B2" * 9 + "\nfine. "
    for size in (1, 2, 3, 5, 8, 13, len(said)):
        for flush_each in (1, 2, 3, 7, len(said)):
            stream = TurnStream("trace", SessionStream("ses", redactor))
            watcher = stream.watch()
            for number, at in enumerate(range(0, len(said), size), start=1):
                stream.text(said[at : at + size])
                if number % flush_each == 0:
                    stream.flush()
            end(stream)
            events = await read(watcher)
            assert "".join(each.get("text", "") for each in events) == redactor.text(said)


async def test_an_event_is_without_secrets_but_for_whoever_decides() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor(["correct-horse-battery"])))
    watcher = stream.watch()
    args = {"command": "x correct-horse-battery", "password": "hunter2"}
    stream.emit(call_of("c", args))
    stream.emit(
        turn_events.ApprovalRequested(
            approval="a",
            call_id="c",
            tool="bash",
            action="run",
            effect="change",
            args=args,
            cwd="/",
            preview="",
            rule="r",
            reason="",
            expires_us=0,
            volatile=True,
            digest="",
        )
    )
    end(stream)
    call, asked, _ = await read(watcher)
    assert call["args"] == {"command": "x [removed: credential]", "password": "[removed: password]"}
    assert asked["args"] == args


async def test_a_late_watcher_hears_that_the_prompt_waits_or_that_the_turn_is_over() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    stream.emit(turn_events.Queued(position=0))
    first = stream.watch()
    stream.emit(turn_events.Started(model="m"))
    end(stream)
    assert [event["type"] for event in await read(first)] == ["queued", "started", "done"]
    assert [event["type"] for event in await read(stream.watch())] == ["done"]


async def test_a_watcher_that_left_costs_nothing() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    watcher = stream.watch()
    events = watcher.events()
    stream.emit(turn_events.Queued(position=0))
    await anext(events)
    await events.aclose()
    stream.emit(turn_events.Started(model="m"))
    assert not watcher._waiting
    stream.text("to nobody at all")
    assert not stream._text


async def test_a_watcher_cannot_change_what_others_hear() -> None:
    stream = TurnStream("trace", SessionStream("ses", Redactor()))
    one, two = stream.watch(), stream.watch()
    stream.text("a")
    end(stream)
    (await read(one))[0]["text"] = "changed"
    assert (await read(two))[0]["text"] == "a"


async def test_what_a_watcher_has_read_or_was_not_told_does_not_count_as_waiting() -> None:
    stream = SessionStream("ses", Redactor())
    watcher = stream.watch()
    events = watcher.events(of_session=True)
    for _ in range(100):
        for _ in range(1000):
            stream.emit(turn_events.TextDelta(text="x"))
        assert (await anext(events))["text"] == "x" * 1000
    assert watcher._chars == 0
    piece = "x" * (1 << 20)
    for _ in range(100):  # most of it is left out
        stream.emit(output(piece))
    stream.emit(RESULT)
    while (event := await anext(events))["type"] != "tool_result":
        assert event["text"] == piece
    assert watcher._chars == 0
    await events.aclose()


async def test_plans_that_nobody_reads_are_bounded_by_their_size() -> None:
    stream = SessionStream("ses", Redactor())
    watcher = stream.watch()
    plan = {"tasks": [{"id": str(number), "text": "x" * 4000} for number in range(100)]}
    for _ in range(100):  # of 400 KB each: more than what may wait
        stream.emit(turn_events.PlanChanged(plan=plan, task=""))
    with pytest.raises(LimitExceeded, match="waited to be read"):
        await anext(watcher.events(of_session=True))
    assert stream.watchers == []
