"""Finds the model calls of a session in its history: what was sent in each, and what was answered.

A call is one step of a turn, with the last of its attempts; calls that only shorten a conversation are none.
What was sent are the messages that are stored before the answer, after the compaction that was in force then.
Messages of a session that exists are never pruned, but the events about them are. Where these would be needed
to say what was sent, the call is `unknown`; nothing is guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightagentd.agents.model_calls.compaction.compactor import STATE, Stored
from lightagentd.agents.model_calls.compaction.summary import message_of
from lightagentd.agents.sessions.session import SessionRecord
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter, Queries
from lightagentd.events.types.agent import ModelAnswered, ModelBrokeOff, Said
from lightagentd.events.types.session import SessionCompacted, SessionTransferred
from lightagentd.llm.protocol import Message

_TOPICS = ",".join((ModelAnswered.topic, SessionCompacted.topic, SessionTransferred.topic))
_CALLS = (ModelAnswered.type, ModelBrokeOff.type)
_MOST_EVENTS = 1_000_000
_MOST_BYTES = 64 << 20
"""How much the messages of a session may have."""


@dataclass(frozen=True, kw_only=True)
class PastCall:
    """One call. `response` is the data of its event, empty where that was pruned; `answer_seq` is the number
    of the model's message, 0 where it broke off.
    """

    number: int
    turn: int
    """The turn of the session, from 1."""
    event: Event
    agent: str
    response: dict[str, Any]
    answer_seq: int
    summary: Message | None
    from_seq: int
    """The first message that was sent as it is; the last is the one before `event`."""
    message_count: int
    unknown: bool
    """Whether a summary stood for older messages is not known."""

    @property
    def model(self) -> str:
        """Empty where that is not known."""
        return str(self.response.get("model", ""))


@dataclass(frozen=True, kw_only=True)
class PastCalls:
    """All calls of a session, oldest first, without its messages, which are read for each. The history before
    `pruned_to` is pruned; 0 for none.
    """

    queries: Queries
    session: str
    calls: Sequence[PastCall]
    pruned_to: int

    def answer(self, call: PastCall) -> Message | None:
        """The model's message, if it is there."""
        found = self.queries.messages(self.session, call.answer_seq, to_seq=call.answer_seq)
        return Message.from_dict(found[0].data or {}) if found else None

    def sent(self, call: PastCall) -> list[Message]:
        """The messages that were sent in a call; with `unknown`, those that were said until then."""
        events = self.queries.messages(
            self.session, call.from_seq, to_seq=call.event.seq - 1, most_bytes=_MOST_BYTES
        )
        return Stored(summary=call.summary, events=events).messages


def past_calls(queries: Queries, record: SessionRecord) -> PastCalls:
    """Reads a lot, so run it in a thread. Raises MessageTooLarge, StorageError."""
    newest = queries.last()
    last = newest.seq if newest is not None else 0
    # The state first: a compaction that comes meanwhile is then among the events.
    stored = queries.state(STATE, record.id).get(record.id)
    messages = queries.messages(record.id, to_seq=last, most_bytes=_MOST_BYTES)
    about = queries.select(Filter(session=record.id, topic=_TOPICS), limit=_MOST_EVENTS)
    compacted = _Compactions(queries, stored, messages, about)
    found: dict[str, PastCall] = {}
    turns: dict[str, int] = {}
    holder, end = "", 0
    for event in sorted([*messages, *(one for one in about if one.seq <= last)], key=lambda one: one.seq):
        data = event.data or {}
        known = found.get(event.request_id)
        if event.topic == SessionTransferred.topic:
            holder = "" if data.get("to_agent") == record.agent else str(data.get("to_agent", ""))
        elif event.topic == Said.topic:
            if event.trace_id:
                turns.setdefault(event.trace_id, len(turns) + 1)
            if data["role"] == "assistant" and event.request_id:
                known = known or compacted.call(event, len(found) + 1, end)
                agent = str(data.get("speaker") or record.agent)
                found[event.request_id] = replace(known, agent=agent, answer_seq=event.seq)
            end += 1
        elif event.type in _CALLS and event.request_id and data:
            made = compacted.call(event, known.number if known is not None else len(found) + 1, end)
            found[event.request_id] = replace(made, response=data, agent=holder or record.agent)
    calls = [replace(one, turn=turns.get(one.event.trace_id, 0)) for one in found.values()]
    return PastCalls(queries=queries, session=record.id, calls=calls, pruned_to=compacted.pruned_to)


class _Compactions:
    """The compactions of a session, as far as the history has them."""

    def __init__(
        self,
        queries: Queries,
        stored: dict[str, Any] | None,
        messages: Sequence[Event],
        about: Sequence[Event],
    ) -> None:
        """`stored` is the state of the newest compaction, `about` are the events about calls."""
        self._seqs = [message.seq for message in messages]
        self._known = [
            (one.seq, one.data) for one in about if one.topic == SessionCompacted.topic and one.data
        ]
        self.pruned_to = queries.environment.anchor()[0]
        if not self._seqs or self._seqs[0] > self.pruned_to:
            self.pruned_to = 0  # nothing of this session
        self._unknown_to = 0
        if self._known:
            seq, first = self._known[0]
            # What it left out is all that was said before, unless there was a compaction before it.
            if first["removed"] != bisect_left(self._seqs, first["from_seq"]):
                self._unknown_to = seq
        elif stored is not None:  # its event is pruned, so it is the only one after that
            self._known = [(self.pruned_to, stored)]
            self._unknown_to = self.pruned_to

    def call(self, event: Event, number: int, end: int) -> PastCall:
        """The call that an event tells of, when so many messages were stored."""
        before = next(self._before(event.seq), None)
        summary, from_seq = None, 0
        if before is not None:
            summary = message_of(str(before["summary"]), str(before["summarized_by"]))
            from_seq = int(before["from_seq"])
        return PastCall(
            number=number,
            turn=0,
            event=event,
            agent="",
            response={},
            answer_seq=0,
            summary=summary,
            from_seq=from_seq,
            message_count=end - bisect_left(self._seqs, from_seq) + (summary is not None),
            unknown=event.seq <= self._unknown_to,
        )

    def _before(self, seq: int) -> Iterator[dict[str, Any]]:
        """The compactions before an event, the newest first."""
        return (data for at, data in reversed(self._known) if at < seq)
