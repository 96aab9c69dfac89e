"""Tests a model with one real call: `lactl models test`.

The model is asked for a sentence and a function call, which is not run. The call is checked against the
budgets, counted and stored like every other model call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from lightagentd.agents.model_calls.call import Reply, model_call
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.errors import ModelError
from lightagentd.llm.json_calls import call_in_text
from lightagentd.llm.protocol import (
    Function,
    Message,
    ModelClient,
    Part,
    Reasoning,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
)

_WORD, _NUMBER = "lantern", 7
_FUNCTION = Function(
    name="report_word",
    description="Report a word and a number. This is a test: nothing is done with them.",
    parameters={
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "The word."},
            "number": {"type": "integer", "description": "The number."},
        },
        "required": ["word", "number"],
        "additionalProperties": False,
    },
)
_SYSTEM = "This is a test of a connection. Do what the user asks for, and nothing else."
_PROMPT = (
    "Write one short sentence about light, and then call the function report_word"
    f' with the word "{_WORD}" and the number {_NUMBER}.'
)
_SHOWN_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Check:
    """One tested ability; `seen` is None if unknown."""

    name: str
    seen: bool | None
    detail: str


@dataclass(kw_only=True)
class Seen:
    """The results of the call."""

    reply: Reply
    conceded: str
    """What the endpoint said against a first request, before a smaller second one; often empty."""
    first_ms: int
    """After how long the first piece came."""
    text_deltas: int
    reasoned: bool

    def checks(self) -> Iterator[Check]:
        reply = self.reply
        yield Check(name="reachable", seen=True, detail=f"answered in {reply.duration_ms / 1000:.2f} s")
        if self.conceded:
            yield Check(name="request", seen=False, detail=_shown(self.conceded))
        yield self._streaming()
        yield _tool_call(reply)
        yield self._usage()
        cached = reply.usage.cached_tokens if reply.usage else 0
        said = f"{cached:,} tokens of the prompt" if cached else "nothing of this prompt was in its cache"
        yield Check(name="cached", seen=bool(cached) or None, detail=said)
        said = "it thinks before it answers" if self.reasoned else "none was shown"
        yield Check(name="reasoning", seen=self.reasoned or None, detail=said)
        yield Check(name="finish", seen=True, detail=reply.finish.reason)

    def _streaming(self) -> Check:
        if self.text_deltas > 1:
            said = f"{self.text_deltas} pieces of text, the first after {self.first_ms / 1000:.2f} s"
            return Check(name="streaming", seen=True, detail=said)
        said = "its text came in one piece" if self.text_deltas else "it wrote no text before its call"
        return Check(name="streaming", seen=None, detail=said)

    def _usage(self) -> Check:
        usage = self.reply.usage
        if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
            said = "it does not say how many tokens it took, so budgets in tokens and money do not count it"
            return Check(name="usage", seen=False, detail=said)
        said = f"{usage.prompt_tokens:,} tokens of the prompt, {usage.completion_tokens:,} of the answer"
        return Check(name="usage", seen=True, detail=said)


@dataclass(kw_only=True)
class _Ear:
    """Hears the parts of the answer."""

    began: float = field(default_factory=time.monotonic)
    first_ms: int = 0
    text_deltas: int = 0
    reasoned: bool = False

    async def hear(self, part: Part) -> None:
        if not self.first_ms:
            self.first_ms = max(1, round((time.monotonic() - self.began) * 1000))
        self.text_deltas += isinstance(part, TextDelta)
        self.reasoned = self.reasoned or isinstance(part, Reasoning | ReasoningDelta)


async def try_model(client: ModelClient, meter: Meter) -> Seen:
    """Make the call. Raises ModelError, BudgetExceeded, StorageError."""
    request = Request(system=_SYSTEM, messages=[Message(role="user", content=_PROMPT)], functions=[_FUNCTION])
    ear = _Ear()
    meter.run()
    conceded = ""
    try:
        try:
            reply = await model_call(client, request, meter=meter, hear=ear.hear)
        except ModelError as err:
            if not err.transient or err.retry_after_s != 0.0:
                raise
            # The client leaves out of its next request what this endpoint does not take.
            conceded, ear = err.message, _Ear()
            reply = await model_call(client, request, meter=meter, hear=ear.hear)
        events, changes = reply.stored(meter)
        await meter.ledger.history.append(*events, changes=changes)
    finally:
        meter.stop()
    return Seen(
        conceded=conceded,
        reply=reply,
        first_ms=ear.first_ms,
        text_deltas=ear.text_deltas,
        reasoned=ear.reasoned,
    )


def _tool_call(reply: Reply) -> Check:
    written = None if reply.calls else call_in_text(reply.text)
    if not reply.calls and written is None:
        said = "it called nothing, so agents can do little with it"
        if reply.finish.unread:
            said = f"it wrote a call into its text that cannot be read: {reply.finish.unread}"
        return Check(name="tool call", seen=False, detail=said)
    call = written or reply.calls[0]
    if wrong := _wrong(call):
        return Check(name="tool call", seen=False, detail=wrong)
    how = ", written as JSON in its text" if written else ""
    return Check(name="tool call", seen=True, detail=f"{call.name} {_shown(call.arguments)}{how}")


def _wrong(call: ToolCall) -> str:
    """What is wrong with a call; empty when it is as requested."""
    if call.name != _FUNCTION.name:
        return f"it called {_shown(call.name)}, which was not offered"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return f"its arguments are not JSON: {_shown(call.arguments)}"
    if arguments != {"word": _WORD, "number": _NUMBER}:
        return f"its arguments are not those that it was told: {_shown(call.arguments)}"
    return ""


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"
