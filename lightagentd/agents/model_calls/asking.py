"""Asks the model for the next step of a turn; keeps within its window and falls back to other models.

`Asking` belongs to one turn. A model that fails before it produced text, even after retries, is replaced for
the rest of the turn. First the agent's own fallbacks are tried. If the failed model is down, the fallbacks of
the configuration follow; the runbook is used there only if it knows the prompt. Otherwise the turn ends with
the error. Notices name the replacement model, and say if the answer was cut. A turn that used up a budget
ends; no other model is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lightagentd.agents import hook_phases
from lightagentd.agents.guarding import answer_guard, guard_reply
from lightagentd.agents.model_calls.call import Reply
from lightagentd.agents.model_calls.compaction.compactor import Compactor
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.retries import ModelCalls
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.tool_calls.results import Results
from lightagentd.api import turn_events
from lightagentd.errors import (
    ContextFull,
    LightagentError,
    ModelError,
    ModelPromptTooLong,
    ModelRejected,
)
from lightagentd.events.types.agent import FellBack
from lightagentd.llm.circuit import is_down
from lightagentd.llm.json_calls import call_in_text
from lightagentd.llm.protocol import (
    Finish,
    Function,
    Message,
    ModelClient,
    Part,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)
from lightagentd.llm.providers import RUNBOOK
from lightagentd.llm.runbook.client import RunbookClient
from lightagentd.llm.toolong import says_too_long
from lightagentd.redaction import Redactor, off_loop

if TYPE_CHECKING:
    from lightagentd.agents.turn import Turn

_CUT = {
    "length": ("answer_cut", "{} may not say more at once."),
    "content_filter": ("model_filtered", "the endpoint of {} does not allow what came next."),
}
"""By the reason of the end: the code of the notice, and why the answer is not whole."""


class Asking:
    """The model calls of one turn."""

    def __init__(self, turn: Turn, parts: AgentParts, meter: Meter, results: Results) -> None:
        model, self._schema = turn.choice.model or turn.session.record.model, turn.choice.schema
        self._clients = parts.clients_for(model, schema=self._schema is not None)
        self._last_resort = [
            client
            for client in parts.last_resort
            if client not in self._clients and (self._schema is None or client.name != RUNBOOK)
        ]
        if turn.choice.stubs is not None:  # an assessment is of one model
            self._clients, self._last_resort = self._clients[:1], []
        self._turn, self._parts = turn, parts
        self._agent, self._hooks = parts.definition.name, parts.shared.hooks
        self._held = self._hooks.has("after_model_response", self._agent)
        """Whether the answer is shown when it is whole: hooks may replace it."""
        self._first_error: ModelError | ContextFull | None = None
        """Why the first model does not answer in this turn."""
        self._history = parts.history
        self._session = turn.session
        self._stream = turn.stream
        self.meter = self._meter = meter
        self._results = results
        self._said = turn.said
        self._calls = ModelCalls(
            meter,
            results,
            parts.shared.circuits,
            parts.history,
            turn=turn.trace_id,
            tell=turn.stream.emit,
            left_s=turn.left_s,
            tell_usage=self._tell_usage,
            before=partial(hook_phases.before_request, self._hooks, self._agent),
        )
        self._compactor = Compactor(
            turn.session,
            self._calls,
            meter,
            results,
            compact_at=parts.limits.compact_at,
            tell=turn.stream.emit,
        )

    async def ask(self, system: str, functions: Sequence[Function]) -> Reply:
        """One model call. Raises ModelError, ContextFull, BudgetExceeded, StorageError."""
        too_long: ModelError | ContextFull | None = None
        sent: Sequence[Message] = ()
        while True:
            client = self._clients[0]
            self._said.clear()
            try:
                refused = too_long is not None
                messages = await self._compactor.fit(client, system, functions, refused=refused)
                if too_long is not None and messages is sent:
                    raise too_long  # it cannot be made shorter
                sent = messages
                request = Request(
                    system=system,
                    messages=messages,
                    functions=functions,
                    schema=self._schema,
                    must_answer=self._turn.repaired,
                )
                guard = self._stream.guard = answer_guard(self._parts, self._session)
                try:
                    reply = await self._calls.make(client, request, self._hear)
                finally:
                    self._stream.end_text()
            except (ModelError, ContextFull) as err:
                await self._results.settle()
                if any(text.strip() for text in self._said):
                    raise
                if _too_long(err):
                    if too_long is None and client.context_tokens:
                        too_long = err
                        continue
                    err = _context_full(err)
                await self._fall_back(err, system, functions)
                too_long = None
                continue
            if reply.usage is not None:
                self._compactor.gauge.take_count(reply.usage.prompt_tokens)
            native = reply.calls
            reply = await understood(reply, functions, self._schema, self._history.redactor)
            if self._held:
                reply = await hook_phases.after_response(self._hooks, self._agent, reply, self._meter)
                native = native and reply.calls
            if guard is not None:
                reply = await guard_reply(guard, self._history, reply, native)
            if self._held:
                self._show(reply.text)
            if not reply.calls and (why := _CUT.get(reply.finish.reason)):
                code, words = why
                message = f"The answer was cut: {words.format(reply.model)}"
                self._stream.emit(turn_events.Notice(code=code, message=message))
            return reply

    @property
    def client(self) -> ModelClient:
        """The model that is asked now."""
        return self._clients[0]

    async def aside(
        self, client: ModelClient, request: Request, hear: Callable[[Part], Awaitable[None]]
    ) -> Reply:
        """A call that is no step of the turn, and that nobody watches; whoever makes it counts the reply.

        Raises ModelError, BudgetExceeded, StorageError, and what `hear` raises.
        """
        return await self._calls.make(client, request, hear)

    def close(self) -> None:
        """The turn is over."""
        self._compactor.close()

    async def _hear(self, part: Part) -> None:
        if self._results.waiting and not isinstance(part, ToolCall | Finish):  # of which nothing is shown yet
            await self._results.settle()
        if self._held:
            return
        if isinstance(part, TextDelta):
            self._said.append(part.text)
            self._stream.text(part.text)
        elif isinstance(part, ReasoningDelta):
            self._stream.text(part.text, thought=True)

    def _show(self, text: str) -> None:
        """Show an answer that was held."""
        self._said.append(text)
        self._stream.text(text)
        self._stream.end_text()

    async def _fall_back(
        self, err: ModelError | ContextFull, system: str, functions: Sequence[Function]
    ) -> None:
        """Switch to the next available model. Raises the error when there is none; that of the first model
        where the conversation just does not fit into the window of a fallback.
        """
        first = self._first_error = self._first_error or err
        if isinstance(err, ContextFull):
            err = first
        rest = self._clients[1:]
        while not rest and self._last_resort and is_down(err):
            client = self._last_resort.pop(0)
            request = Request(system=system, messages=self._session.messages, functions=functions)
            if not isinstance(client, RunbookClient) or await client.knows(request):
                rest = [client]
        if not rest:
            raise err from None
        self._clients, client = rest, rest[0]
        message = f"{err.message} The turn goes on with {client.name}."
        self._stream.emit(turn_events.Notice(code=err.code, message=message))
        await self._history.append(FellBack(code=err.code, message=message).event())

    def _tell_usage(self, model: str, usage: Usage) -> None:
        if usage.prompt_tokens or usage.completion_tokens:
            self._stream.end_text()
            used = turn_events.Used(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
                cost=self._meter.ledger.cost(model, usage),
            )
            self._results.tell(used)


async def understood(
    reply: Reply, functions: Sequence[Function], schema: dict[str, Any] | None, redactor: Redactor
) -> Reply:
    """The reply with the call that its text is, if it is one, and without secrets in its text."""
    if not reply.calls and (found := _call_in(reply.text, functions, schema)):
        reply = replace(reply, calls=(found,))
    return replace(reply, text=await off_loop(redactor.text, reply.text))


def _call_in(text: str, functions: Sequence[Function], schema: dict[str, Any] | None) -> ToolCall | None:
    """The call that the text is; an answer that has to be JSON may look like one."""
    found = call_in_text(text)
    if found is not None and schema is not None:
        return found if any(found.name == one.name for one in functions) else None
    return found


def _too_long(err: BaseException) -> bool:
    """Whether the endpoint refused a request for its length; not every client has its own error for that."""
    return isinstance(err, ModelPromptTooLong) or (
        isinstance(err, ModelRejected) and says_too_long(err.message)
    )


def _context_full(err: LightagentError) -> ContextFull:
    return ContextFull(
        err.message,
        suggestion="Begin a new session, or correct context_tokens of the provider in the configuration.",
    )
