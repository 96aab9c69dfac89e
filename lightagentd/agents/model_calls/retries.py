"""Makes the model calls of one turn, and repeats a call whose failure may be temporary.

One attempt is one `model_call`: the budgets are checked, and it is counted if the endpoint received it.
`llm.retry` sets the wait between attempts. An endpoint that is down for everybody is skipped (`llm.circuit`).
A call is not repeated once `hear` got text, because the watchers have read it. Watchers are told of each
wait, and it is stored; it ends at once with its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lightagentd.agents.model_calls.call import Heard, Reply, model_call, store_failed
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.tool_calls.results import Results
from lightagentd.api import turn_events
from lightagentd.errors import ModelCircuitOpen, ModelEmpty, ModelError, ModelFiltered
from lightagentd.events.history import History
from lightagentd.events.types.agent import ModelTriedAgain
from lightagentd.llm.circuit import Circuit, Circuits
from lightagentd.llm.protocol import ModelClient, Part, Request, Usage
from lightagentd.llm.retry import Backoff, settings_of


class ModelCalls:
    """Makes the model calls of one turn, which owns it. `turn` tells its attempts from those of other turns.
    `left_s` gives the turn's remaining time, if it is limited. `tell_usage` is told what each attempt used,
    also one that broke off. `before` gives the request to make of each one (hooks).
    """

    def __init__(
        self,
        meter: Meter,
        results: Results,
        circuits: Circuits,
        history: History,
        *,
        turn: str,
        tell: Callable[[turn_events.Event], None],
        left_s: Callable[[], float | None],
        tell_usage: Callable[[str, Usage], None],
        before: Callable[[str, Request], Awaitable[Request]],
    ) -> None:
        self._meter = meter
        self._results = results
        self._circuits = circuits
        self._history = history
        self._turn = turn
        self._tell = tell
        self._left_s = left_s
        self._tell_usage = tell_usage
        self._before = before

    async def make(
        self, client: ModelClient, request: Request, hear: Callable[[Part], Awaitable[None]]
    ) -> Reply:
        """One call whose answer has text or tool calls; `Reply.stored` counts it.

        Raises ModelError with the number of attempts, BudgetExceeded, StorageError, and what `hear` raises.
        """
        request = await self._before(client.name, request)
        backoff, circuit = Backoff(settings_of(client)), self._circuits.of(client)
        failure: ModelError | None = None
        tries = 0
        while True:
            if circuit is not None:
                try:
                    circuit.enter(client.name, self._turn)
                except ModelCircuitOpen as err:
                    raise err if failure is None else _told(failure, tries, "") from None
            tries += 1
            heard = Heard(on_first=None if circuit is None else lambda: circuit.answered(self._turn))
            try:
                try:
                    reply = await model_call(client, request, meter=self._meter, hear=hear, heard=heard)
                finally:
                    if heard.counted is not None:
                        self._tell_usage(client.name, heard.counted)
                return self._with_something(reply)
            except ModelError as err:
                if circuit is not None:
                    circuit.failed(err, client.name, self._turn)
                wait_s = None if heard.has_text else self._wait_s(backoff, circuit, client.name, err)
                again_at_once = isinstance(err, ModelEmpty) and err.again and tries == 1
                if wait_s is None and not again_at_once:
                    _told(err, tries, backoff.gave_up)
                    raise
                failure = err
            finally:
                if circuit is not None:
                    circuit.leave(self._turn)
            await self._wait(client, failure, wait_s or 0.0, tries)

    def _wait_s(self, backoff: Backoff, circuit: Circuit | None, model: str, err: ModelError) -> float | None:
        """How long to wait before the next attempt; None to give up."""
        wait_s = backoff.wait_s(err, left_s=self._left_s())
        if wait_s is None or circuit is None or circuit.open_s(model) <= wait_s:
            return wait_s
        return None  # the endpoint is left alone for longer, so there is nothing to wait for

    async def _wait(self, client: ModelClient, err: ModelError, wait_s: float, tries: int) -> None:
        settings = settings_of(client)
        when = f"in {wait_s:.1f} s" if wait_s >= 0.05 else "now"
        most = settings.max_retries if err.transient else 1
        message = self._history.redactor.text(f"{err.message} Trying again {when} ({tries} of {most}).")
        await self._results.settle()
        self._tell(turn_events.Notice(code=err.code, message=message))
        tried_again = ModelTriedAgain(
            code=err.code, message=message, model=client.name, tries=tries, wait_s=round(wait_s, 3)
        )
        await self._history.append(tried_again.event())
        await asyncio.sleep(wait_s)

    def _with_something(self, reply: Reply) -> Reply:
        """The answer; an empty one is counted as a failed call.

        Raises ModelEmpty, ModelFiltered.
        """
        if reply.calls or reply.text.strip() or reply.finish.unread:
            return reply
        store_failed(reply, self._meter)
        name = reply.model
        if reply.finish.reason == "content_filter":
            raise ModelFiltered(
                f"The endpoint of {name} held the whole answer back: its rules for content forbid it.",
                suggestion="Ask in other words, or choose another model.",
                reached=True,
            )
        if reply.finish.reason == "length":
            raise ModelEmpty(
                f"The model {name} used up the length of its answer before it said anything.",
                suggestion="Raise max_output_tokens of the provider, or lower how much the model thinks.",
                reached=True,
            )
        empty = ModelEmpty(
            f"The model {name} answered with nothing: no text and no call"
            f" (finish reason {reply.finish.reason[:40]!r}).",
            suggestion="Try again, or choose another model.",
            reached=True,
        )
        empty.again = True
        raise empty


def _told(err: ModelError, tries: int, gave_up: str) -> ModelError:
    """The error, with the number of attempts."""
    if tries > 1:
        err.message = f"{err.message.rstrip('.')}; tried {tries} times."
    if gave_up:
        err.message = f"{err.message} {gave_up}"
    err.args = (err.message,)
    return err
