"""What becomes of the questions that agents ask people."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Text


class InputRequested(Kind, topic="input.requested", type="requested"):
    """An agent asks a person."""

    input: Text
    call_id: Text
    question: Text
    choices: list[Text]
    expires_us: int


class InputAnswered(Kind, topic="input.answered", type="answered"):
    """A person answered."""

    input: Text
    call_id: Text
    answer: Text
    answered_by: int


class InputExpired(Kind, topic="input.expired", type="expired"):
    """Nobody answered in time."""

    input: Text
    call_id: Text


class InputLapsed(Kind, topic="input.lapsed", type="lapsed"):
    """Nobody waits for the answer any more."""

    input: Text
    call_id: Text
    note: Text
    """Why."""
