"""One model call of any kind: checked against the budgets, counted, and stored.

A call that ends early is counted too, if the endpoint received it or the call was cancelled. It counts with
the tokens known until then, else as a step without usage, and its event is `failed`. `retries` repeats calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from lightagentd.agents.model_calls.compaction.window import BYTES_PER_TOKEN, bytes_of, bytes_of_function
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.errors import ModelError
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import Event
from lightagentd.events.types.agent import ModelAnswered, ModelBrokeOff, ModelDeliberated, ModelSummedUp
from lightagentd.llm.protocol import (
    Finish,
    Message,
    ModelClient,
    Part,
    Reasoning,
    Request,
    TextDelta,
    ToolCall,
    Usage,
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The result of one model call. `failed`: it ended early."""

    text: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    model: str
    duration_ms: int
    started_us: int = 0
    reasoning: tuple[Reasoning, ...] = ()
    failed: bool = False
    estimate: Usage | None = None
    """What the call used, about, if the endpoint did not count."""

    @property
    def usage(self) -> Usage | None:
        return self.finish.usage

    def stored(
        self,
        meter: Meter,
        *,
        counted_calls: int = 0,
        step: int = 0,
        kind: type[ModelAnswered | ModelSummedUp | ModelDeliberated] = ModelAnswered,
    ) -> tuple[list[NewEvent], list[Change]]:
        """Count the call, once; returns its event and the changes that must commit with it.

        `counted_calls` is the number of tool calls for which the budgets have room. `kind` says what the call
        was made for: the step `step` of a turn, or another thing.
        """
        known = self.usage is not None
        usage = self.usage or self.estimate
        changes = meter.count(self.model, usage, calls=counted_calls, known=known)
        cost = None if usage is None else meter.ledger.cost(self.model, usage)
        usage = usage or Usage()
        event = (ModelBrokeOff if self.failed else kind)(
            model=self.model,
            finish_reason=self.finish.reason,
            tool_calls=len(self.calls),
            text_chars=len(self.text),
            duration_ms=self.duration_ms,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            counted=known,
            cost=cost,
            started_us=self.started_us,
            step=step,
        ).event()
        return [event], changes


@dataclass(kw_only=True)
class Heard:
    """One answer as received so far. `on_first` is called when its first part arrives."""

    on_first: Callable[[], None] | None = None
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning: list[Reasoning] = field(default_factory=list)
    finish: Finish | None = None
    usage: Usage | None = None

    @property
    def has_text(self) -> bool:
        """Whether there was text to read."""
        return any(text.strip() for text in self.texts)

    @property
    def counted(self) -> Usage | None:
        """What the endpoint said that the call used."""
        return (self.finish.usage if self.finish is not None else None) or self.usage

    def take(self, part: Part) -> None:
        if self.on_first is not None:
            self.on_first()
            self.on_first = None
        if isinstance(part, TextDelta):
            self.texts.append(part.text)
        elif isinstance(part, ToolCall):
            self.calls.append(part)
        elif isinstance(part, Reasoning):
            self.reasoning.append(part)
        elif isinstance(part, Finish):
            self.finish = part

    def take_usage(self, usage: Usage) -> None:
        self.usage = usage


async def model_call(
    client: ModelClient,
    request: Request,
    *,
    meter: Meter,
    hear: Callable[[Part], Awaitable[None]],
    heard: Heard | None = None,
) -> Reply:
    """Make one call; `hear` gets each part. `Reply.stored` counts the reply.

    `heard` is filled in as the answer comes.

    Raises BudgetExceeded before the call, ModelError, StorageError, and what `hear` raises.
    """
    await meter.check()
    meter.asks = True
    started = time.monotonic()
    heard = heard or Heard()
    request = replace(request, on_usage=heard.take_usage)
    whole = left = False
    try:
        async with contextlib.aclosing(client.stream(request)) as answer:
            async for part in answer:
                heard.take(part)
                await hear(part)
        whole = True
    except asyncio.CancelledError:
        left = True  # the endpoint may have worked on it, whatever it said until then
        raise
    except ModelError as err:
        left = err.reached
        raise
    finally:
        if not whole and (left or heard.texts or heard.calls or heard.usage):
            store_failed(_reply(client, request, heard, started, failed=True), meter)
        meter.asks = whole
    return _reply(client, request, heard, started)


def _reply(
    client: ModelClient, request: Request, heard: Heard, started: float, *, failed: bool = False
) -> Reply:
    said = heard.texts or heard.calls or (heard.finish is not None and heard.finish.unread)
    duration_ms = round((time.monotonic() - started) * 1000)
    return Reply(
        text="".join(heard.texts),
        calls=tuple(heard.calls),
        finish=heard.finish or Finish(reason="failed" if failed else "stop", usage=heard.usage),
        model=client.name,
        duration_ms=duration_ms,
        started_us=time.time_ns() // 1000 - duration_ms * 1000,
        reasoning=tuple(heard.reasoning),
        failed=failed,
        estimate=_estimate(request, heard) if said and heard.counted is None else None,
    )


def _estimate(request: Request, heard: Heard) -> Usage:
    """About what a call used. A server that counts nothing must not make a budget endless."""
    asked = len(request.system.encode("utf-8", "replace"))
    asked += sum(map(bytes_of, request.messages)) + sum(map(bytes_of_function, request.functions))
    thoughts = "".join(block.text for block in heard.reasoning)
    said = bytes_of(
        Message(role="assistant", content="".join(heard.texts) + thoughts, tool_calls=tuple(heard.calls))
    )
    return Usage(
        prompt_tokens=round(asked / BYTES_PER_TOKEN), completion_tokens=round(said / BYTES_PER_TOKEN)
    )


def store_failed(reply: Reply, meter: Meter) -> None:
    """Count a call as failed. Later appends follow its event, and fail if it cannot be stored."""
    store_unwatched(meter.ledger.history, *replace(reply, failed=True).stored(meter))


def store_unwatched(history: History, events: Sequence[NewEvent], changes: Sequence[Change]) -> None:
    """Append without waiting. Raises StorageError when the history is closed."""
    if events:
        history.append(*events, changes=changes).add_done_callback(_seen)


def _seen(stored: asyncio.Future[list[Event]]) -> None:
    """The loop reports a failure that nobody looks at; the history has reported this one."""
    if not stored.cancelled():
        stored.exception()
