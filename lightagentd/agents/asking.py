"""Asks the model for the next step of a turn: with what fits its window, and another model where one fails.

`Asking` belongs to one turn. A model that fails before it said anything gives way to the next for the rest of
the turn. A turn that used up a budget ends; no other model is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd.agents.compaction.compactor import Compactor
from lightagentd.agents.jsoncalls import call_in_text
from lightagentd.agents.metering.meter import Meter
from lightagentd.agents.modelcall import Reply, model_call
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.results import Results
from lightagentd.errors import ContextFull, ModelError, ModelRejected
from lightagentd.events.kinds.agent import FellBack
from lightagentd.llm.protocol import Function, ModelClient, Part, Request, TextDelta
from lightagentd.llm.toolong import says_too_long

if TYPE_CHECKING:
    from lightagentd.agents.turn import Turn


class Asking:
    """The model calls of one turn."""

    def __init__(self, turn: Turn, parts: AgentParts, meter: Meter, results: Results) -> None:
        self._clients = [*parts.clients]
        self._history = parts.history
        self._stream = turn.stream
        self._meter = meter
        self._results = results
        self._said = False
        self._compactor = Compactor(
            turn.session,
            meter,
            results,
            compact_at=parts.limits.compact_at,
            tell=turn.stream.event,
            tell_usage=self._tell_usage,
        )

    async def ask(self, system: str, functions: Sequence[Function]) -> Reply:
        """One model call. Raises ModelError, ContextFull, BudgetExceeded, StorageError."""
        refused = False
        while True:
            client = self._clients[0]
            self._said = False
            try:
                messages = await self._compactor.fit(client, system, functions, refused=refused)
                request = Request(system=system, messages=messages, functions=functions)
                try:
                    reply = await model_call(client, request, meter=self._meter, hear=self._hear)
                finally:
                    self._stream.end_text()
            except (ModelError, ContextFull) as err:
                await self._results.settle()
                if self._said:
                    raise
                if isinstance(err, ModelRejected) and says_too_long(err.message):
                    if not refused and client.context_tokens:
                        refused = True
                        continue
                    err = _context_full(err)
                if len(self._clients) == 1:
                    raise err from None
                self._clients.pop(0)
                await self._fall_back(err, self._clients[0])
                refused = False
                continue
            if reply.usage is not None:
                self._compactor.gauge.take_count(reply.usage.prompt_tokens)
            self._tell_usage(reply)
            if not reply.calls and (found := call_in_text(reply.text)):
                reply = replace(reply, calls=(found,))
            return replace(reply, text=self._history.redactor.text(reply.text))

    def close(self) -> None:
        """The turn is over."""
        self._compactor.close()

    async def _hear(self, part: Part) -> None:
        await self._results.settle()
        if isinstance(part, TextDelta):
            self._said = True
            self._stream.text(part.text)

    async def _fall_back(self, err: ModelError | ContextFull, client: ModelClient) -> None:
        message = f"{err.message} The turn goes on with {client.name}."
        self._stream.event("notice", code=err.code, message=message)
        await self._history.append(FellBack(code=err.code, message=message).event())

    def _tell_usage(self, reply: Reply) -> None:
        usage = reply.usage
        if usage is not None and (usage.prompt_tokens or usage.completion_tokens):
            self._stream.event(
                "usage",
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
                cost=self._meter.ledger.cost(reply.model, usage),
            )


def _context_full(err: ModelRejected) -> ContextFull:
    return ContextFull(
        err.message,
        suggestion="Begin a new session, or correct context_tokens of the provider in the configuration.",
    )
