"""A session: its record, its messages in memory and on disk, its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightagentd.agents.sessions.checks import check_prompt
from lightagentd.agents.sessions.session import Session, new_record, title_from
from lightagentd.agents.turn import Asked, Turn
from lightagentd.errors import InvalidArgument, QueueFull, StorageError
from lightagentd.events.history import History, NewEvent
from lightagentd.events.journal.entry import plain
from lightagentd.events.queries import Filter
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.quoted import Prompt
from tests.agents.scripted import check_conversation

DONE = NewEvent(topic="session.turn", type="done", data={})
FAILED = NewEvent(topic="agent.error", type="cancelled", data={"code": "cancelled", "message": "It was."})


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[History]:
    opened = History(tmp_path / "history")
    await opened.start()
    yield opened
    await opened.close()


def new_session(history: History) -> Session:
    return Session(new_record("ops", 1000, ""), history)


async def queued(session: Session, text: str = "go", max_queue: int = 9) -> Turn:
    return await session.enqueue(Asked(prompt=Prompt(text), correlation_id="ticket"), max_queue=max_queue)


async def begun(session: Session, text: str) -> Turn:
    turn = await queued(session, text)
    session.queue.remove(turn)
    with session.context(turn):
        await session.begin(turn)
    return turn


def contents(session: Session) -> list[str]:
    return [message.content for message in session.messages]


async def test_a_prompt_is_stored_before_it_is_acknowledged(history: History) -> None:
    session = new_session(history)
    turn = await queued(session, "  how\nare   you?  ")
    prompt = history.queries.select(Filter(trace=turn.trace_id))[0]
    assert (prompt.topic, prompt.owner, prompt.session) == ("agent.prompt", 1000, session.id)
    assert (prompt.correlation_id, prompt.data) == ("ticket", {"text": "  how\nare   you?  "})
    assert history.queries.state("turns")[turn.trace_id]["state"] == "queued"
    assert history.queries.state("sessions")[session.id]["title"] == "how are you?"
    assert history.queries.state("sessions")[session.id]["turns"] == 1


async def test_the_prompt_of_a_turn_is_in_the_conversation_once(history: History) -> None:
    session = new_session(history)
    await begun(session, "one")
    assert contents(session) == ["one"]
    session.forget_messages()
    await begun(session, "two")
    assert contents(session) == ["one", "two"]
    session.forget_messages()
    assert contents(session) == ["one", "two"]


async def test_a_turn_is_in_the_queue_only_when_its_prompt_is_stored(history: History) -> None:
    session = new_session(history)
    storing = [asyncio.create_task(queued(session, text)) for text in ("one", "two")]
    while len(session.storing) < 2:
        await asyncio.sleep(0)
    assert not session.queue
    with pytest.raises(QueueFull):
        await queued(session, max_queue=2)
    await asyncio.gather(*storing)
    assert [turn.prompt.text for turn in session.queue] == ["one", "two"]
    assert not session.storing


async def test_a_full_queue_refuses(history: History) -> None:
    session = new_session(history)
    await queued(session, max_queue=1)
    with pytest.raises(QueueFull):
        await queued(session, max_queue=1)
    assert len(session.queue) == 1


async def test_a_prompt_that_cannot_be_stored_is_not_queued(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    await history.start()
    session = new_session(history)
    await history.close()
    with pytest.raises(StorageError):
        await queued(session)
    assert not session.queue


async def test_calls_without_a_result_get_one_when_the_turn_fails(history: History) -> None:
    session = new_session(history)
    turn = await begun(session, "go")
    with session.context(turn):
        _unanswered(history)  # as after a cancel: nobody waited for it
        await session.end(turn, FAILED)
    check_conversation(session.messages)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert history.queries.state("turns") == {}


async def test_calls_that_an_earlier_turn_left_open_are_answered_before_the_next_prompt(
    history: History,
) -> None:
    session = new_session(history)
    turn = await begun(session, "one")
    with session.context(turn):
        _unanswered(history)
        await session.end(turn, DONE)
    session.forget_messages()
    await begun(session, "two")
    check_conversation(session.messages)
    assert contents(session)[-1] == "two"


def _unanswered(history: History) -> None:
    call = ToolCall(id="c", name="f_g", arguments="{}")
    message = Message(role="assistant", content="", tool_calls=(call,))
    history.append(NewEvent(topic="agent.message", type="message", data=message.to_dict()))


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", "x" * 101, "ä" * 51])
def test_prompts_that_cannot_be_stored_or_asked_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_prompt(text, 100)
    assert caught.value.field == "text"
    assert caught.value.suggestion


@pytest.mark.parametrize("text", ["x" * 100, "ä" * 50, "\ud800"])
def test_other_prompts_are_taken(text: str) -> None:
    check_prompt(text, 100)


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", content="x"),
        Message(role="assistant", content="", tool_calls=(ToolCall(id="a", name="f", arguments="{"),)),
        Message(role="tool", content="ok", tool_call_id="a", name="f"),
    ],
)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert Message.from_dict(message.to_dict()) == message


def test_a_title_is_made_of_the_beginning_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(text: str) -> str:
        lengths.append(len(text))
        return plain(text)

    monkeypatch.setattr("lightagentd.agents.sessions.session.plain", counted)
    assert title_from("\n" * 100_000 + "check\n\tthe\x1b disk " + "\u2028x" * 1_000_000).startswith(
        "check the\\x1b disk"
    )
    assert max(lengths) <= 1000, "a text of millions of characters would hold the event loop"
