"""Keeps a conversation within the model's window by replacing its older part with a summary.

This happens inside a turn, before a model call, when the request is longer than `limits.compact_at` of the
window, or when the endpoint calls it too long. All messages stay in the history. The stored state
`compactions` holds for each session the first event that is still sent, and the summary of the earlier ones.
It commits with the event `session.compacted`. The system prompt and the functions are always sent in full;
`window.cut` decides which turns stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightagentd.agents.model_calls.call import Reply
from lightagentd.agents.model_calls.compaction.summary import (
    INSTRUCTION,
    message_of,
    transcript,
    without_model,
)
from lightagentd.agents.model_calls.compaction.window import (
    BYTES_PER_TOKEN,
    Gauge,
    cut,
    shorten,
    tokens_of,
)
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.retries import ModelCalls
from lightagentd.agents.tool_calls.results import Results
from lightagentd.api import turn_events
from lightagentd.errors import ContextFull, ModelError, ModelRejected, NotFound
from lightagentd.events.history import Change, History
from lightagentd.events.model import Event
from lightagentd.events.types.agent import ModelSummedUp
from lightagentd.events.types.session import SessionCompacted
from lightagentd.llm.protocol import Function, Message, ModelClient, Part, Request, TextDelta

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session

KEPT_PART = 0.4
"""How much of the window the messages may take that are kept beside the newest turn."""
SUMMARY_PART = 0.1
"""How much of it the summary may take."""
SUMMARY_MAX_BYTES = 12_000
_SUMMARY_MIN_BYTES = 600
DAEMON = "lightagentd"
"""Who wrote a summary that no model wrote."""
STATE = "compactions"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A stored conversation: the summary of its older part, and the messages that are sent."""

    summary: Message | None
    events: list[Event]

    @property
    def messages(self) -> list[Message]:
        sent = [Message.from_dict(event.data).for_model() for event in self.events if event.data]
        return sent if self.summary is None else [self.summary, *sent]


def stored_conversation(history: History, session: str) -> Stored:
    """The messages sent to a session's model, read from the history. Raises StorageError."""
    try:
        compacted = history.queries.state_of(STATE, session)
    except NotFound:
        return Stored(summary=None, events=history.queries.messages(session))
    return Stored(
        summary=message_of(str(compacted["summary"]), str(compacted["summarized_by"])),
        events=history.queries.messages(session, int(compacted["from_seq"])),
    )


class Compactor:
    """Fits the requests of one turn into the window; the turn makes it."""

    def __init__(
        self,
        session: Session,
        calls: ModelCalls,
        meter: Meter,
        results: Results,
        *,
        compact_at: float,
        tell: Callable[[turn_events.Event], None],
    ) -> None:
        self._session = session
        self._history = session.history
        self._calls = calls
        self._meter = meter
        self._results = results
        self._compact_at = compact_at
        self._tell = tell
        self.gauge = Gauge(session.counted)

    async def fit(
        self, client: ModelClient, system: str, functions: Sequence[Function], *, refused: bool = False
    ) -> Sequence[Message]:
        """The messages of the next request. `refused`: the endpoint called the last request too long.

        Raises ContextFull, BudgetExceeded, StorageError.
        """
        session, window = self._session, client.context_tokens
        if not window:
            return session.messages
        tokens = self.gauge.measure(system, functions, session.messages)
        if refused:  # its window is smaller than the configuration says
            window = min(window, tokens)
        most = round(window * self._compact_at)
        if tokens < most:
            return session.messages
        if start := cut(session.messages, self._room(window, most)):
            tokens = (await self._compact(client, start, window, tokens, system, functions)).tokens_after
        if tokens >= most:
            tokens = self._shorten(shorten(session.messages, tokens - most), system, functions)
        if tokens > window and (client.window_known or refused):
            without = shorten(session.messages, tokens - most, newest_too=True)
            tokens = self._shorten(without, system, functions)
        if tokens > window and client.window_known:
            fixed = round(self.gauge.fixed_bytes / BYTES_PER_TOKEN)
            raise ContextFull(
                f"The conversation needs about {tokens:,} tokens, and the window of {client.name} has"
                f" {window:,}; about {fixed:,} of them are the system prompt and the tools.",
                suggestion="Ask for less at once, give the agent fewer tools, or choose a model with a larger"
                " window.",
            )
        return session.messages

    async def now(
        self, client: ModelClient, system: str, functions: Sequence[Function]
    ) -> turn_events.Compacted:
        """Replace all turns but the newest, however full the window is; nothing without a window.

        Raises BudgetExceeded, StorageError.
        """
        messages, window = self._session.messages, client.context_tokens
        tokens = self.gauge.measure(system, functions, messages)
        if start := cut(messages, 0) if window else 0:
            return await self._compact(client, start, window, tokens, system, functions)
        return _nothing_done(len(messages), tokens)

    def _room(self, window: int, most: int) -> int:
        """How many tokens the kept messages may take, so that there is room to go on."""
        fixed = round(self.gauge.fixed_bytes / BYTES_PER_TOKEN)
        return max(0, round(min(window * KEPT_PART, most - fixed - window * SUMMARY_PART)))

    async def _compact(
        self,
        client: ModelClient,
        start: int,
        window: int,
        tokens_before: int,
        system: str,
        functions: Sequence[Function],
    ) -> turn_events.Compacted:
        """Replace the messages before one by a summary."""
        session = self._session
        await self._results.settle()
        stored = await asyncio.to_thread(stored_conversation, self._history, session.id)
        messages, had_summary = session.messages, stored.summary is not None
        if len(stored.messages) != len(messages):  # it is not in memory as it is stored
            messages = stored.messages
            session.take_messages(messages)
            start = cut(messages, round(window * KEPT_PART))
            if not start:
                self.gauge.forget()
                return _nothing_done(len(messages), self.gauge.measure(system, functions, messages))
        # What is summed up is what is stored: in memory there may be arguments that must not be.
        older, kept = stored.messages[:start], messages[start:]
        limit_bytes = round(
            min(max(window * SUMMARY_PART * BYTES_PER_TOKEN, _SUMMARY_MIN_BYTES), SUMMARY_MAX_BYTES)
        )
        reply, summary = await self._summary_of_model(client, older, window, limit_bytes)
        by = client.name if summary else DAEMON
        summary = summary or without_model(older, limit_bytes)
        session.take_messages([message_of(summary, by), *kept])
        self.gauge.forget()
        tokens = self.gauge.measure(system, functions, session.messages)
        compacted = turn_events.Compacted(
            kept=len(kept),
            removed=len(older) - had_summary,
            tokens_before=tokens_before,
            tokens_after=tokens,
            summarized_by=by,
        )
        what = {"from_seq": stored.events[start - had_summary].seq, **compacted.fields()}
        await self._store(what, summary, reply)
        self._tell(compacted)
        return compacted

    async def _store(self, what: dict[str, Any], summary: str, reply: Reply | None) -> None:
        """Store the summary, its event and its usage in one transaction."""
        events, changes = ([], []) if reply is None else reply.stored(self._meter, kind=ModelSummedUp)
        value = {"summary": summary, **what}
        compacted = SessionCompacted(**value).event()
        change = Change(state=STATE, key=self._session.id, value=value)
        try:
            await self._history.append(*events, compacted, changes=(*changes, change))
        except BaseException:
            self._session.forget_messages()
            raise

    async def _summary_of_model(
        self, client: ModelClient, older: Sequence[Message], window: int, limit_bytes: int
    ) -> tuple[Reply | None, str]:
        """The model's summary of the older part, and the call; empty when the summary is unusable.

        Raises BudgetExceeded, StorageError.
        """
        said = 0

        async def hear(part: Part) -> None:
            nonlocal said
            said += len(part.text.encode()) if isinstance(part, TextDelta) else 0
            if said > 2 * limit_bytes:
                raise ModelRejected("The summary does not come to an end.")

        text = transcript(older, round(window * 0.6 * BYTES_PER_TOKEN))
        request = Request(system=INSTRUCTION, messages=[Message(role="user", content=text)])
        try:
            reply = await self._calls.make(client, request, hear)
        except ModelError:
            return None, ""
        summary = self._history.redactor.text(reply.text).strip()
        whole = reply.finish.reason == "stop" and not reply.calls
        return reply, summary if whole and len(summary.encode()) <= limit_bytes else ""

    def _shorten(self, shortened: list[Message], system: str, functions: Sequence[Function]) -> int:
        """Use shortened results in memory: the model gets these until the turn ends."""
        session = self._session
        if tokens_of(shortened) < tokens_of(session.messages):
            session.take_messages(shortened)
            self._results_shortened = True
            self.gauge.forget()
        return self.gauge.measure(system, functions, session.messages)

    _results_shortened = False

    def close(self) -> None:
        """At the turn's end, drop the shortened results, so that the full ones are read again."""
        if self._results_shortened:
            self._session.forget_messages()
        self._session.counted = self.gauge.counted


def _nothing_done(kept: int, tokens: int) -> turn_events.Compacted:
    """There was nothing to summarize."""
    return turn_events.Compacted(
        kept=kept, removed=0, tokens_before=tokens, tokens_after=tokens, summarized_by=""
    )
