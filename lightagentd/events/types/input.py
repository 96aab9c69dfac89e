"""What becomes of the questions that agents ask people."""

from __future__ import annotations

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import NOTICE, WARNING, EventType, Text


class _Input(EventType):
    input: Text
    call_id: Text

    @classmethod
    def sentence(cls, event: Event) -> str:
        return f"input {(event.data or {}).get('input', '')}: {event.type}"


class InputRequested(_Input, topic="input.requested", type="requested"):
    """An agent asks a person."""

    priority = NOTICE
    catalog = """@AGENT@ asks a person something
    The agent asked a question in the middle of a turn, with the tool human, and the turn waits for the
    answer. Its time stands still, and it goes on waiting when the daemon is started again.
    > To read the question and to answer: lactl inputs; then lactl answer with its id. The owner of the
    session may answer, and administrators."""
    question: Text
    choices: list[Text]
    expires_us: int


class InputAnswered(_Input, topic="input.answered", type="answered"):
    """A person answered."""

    catalog = """A question of @AGENT@ was answered
    The user with uid @CALLER_UID@ answered, and the turn goes on. The first answer counts; the model reads it
    with the uid.
    > What the agent did with it: lactl trace show @TRACE_ID@"""
    answer: Text
    answered_by: int


class InputUsed(_Input, topic="input.used", type="used"):
    """A call of an own tool, which had asked, goes on with the answer; from now on it runs again."""

    catalog = """A call of @AGENT@ goes on with the answer of a person
    A tool had asked a person, and policy has decided again that its call may run. When no later entry of the
    same trace says how the call ended, whether it took effect is not known.
    > The whole turn: lactl trace show @TRACE_ID@"""
    tool: Text
    action: Text
    effect: Text
    decision: Text
    rule: Text


class InputExpired(_Input, topic="input.expired", type="expired"):
    """Nobody answered in time."""

    priority = WARNING
    catalog = """Nobody answered a question of @AGENT@ in time
    The agent was told that there is no answer, and its turn goes on without one.
    > How long questions wait: input_timeout_s in lightagentd.toml(5), or less where the agent asked for
    less. Prompts that run when nobody is there are better made with --unattended: then the agent cannot
    ask."""


class InputLapsed(_Input, topic="input.lapsed", type="lapsed"):
    """Nobody waits for the answer any more."""

    priority = WARNING
    catalog = """A question of @AGENT@ has lapsed
    The turn that asked is over: it was cancelled, its agent was stopped, its session was deleted, or
    everything was stopped with lactl panic. Nobody needs to answer any more, and nobody can.
    > How the turn ended: lactl trace show @TRACE_ID@"""
    note: Text
    """Why."""
