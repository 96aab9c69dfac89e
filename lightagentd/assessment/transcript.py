"""What a trial said and did, from the events of its turns.

A `Transcript` grows while the turns run, and is judged, stored and shown afterwards. Texts in it are cut to
bounds when it is stored, since a run may have thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightagentd.api import turn_events

MOST_ANSWER_CHARS = 16_000
MOST_RESULT_CHARS = 2_000
MOST_ARGS_CHARS = 2_000
MOST_CALLS = 15
"""Of so many calls the arguments and results are stored; of others what they were."""


@dataclass(kw_only=True)
class Call:
    """One call. `result` is ok or the code of an error; empty while it runs."""

    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    decision: str = ""
    result: str = ""
    text: str = ""
    stub: bool = False

    @property
    def name(self) -> str:
        return f"{self.tool}.{self.action}" if self.action else self.tool


@dataclass(kw_only=True)
class Transcript:
    """One trial. `code` and `message` are those of the error that ended its last turn, if one did."""

    session: str = ""
    trace_id: str = ""
    answer: str = ""
    data: Any = None
    code: str = ""
    message: str = ""
    suggestion: str = ""
    calls: list[Call] = field(default_factory=list)
    steps: int = 0
    total_tokens: int = 0
    cost: float | None = 0.0
    """None when the price of something is not known."""
    duration_ms: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event of a turn."""
        kind = event["type"]
        self.session, self.trace_id = event["session"] or self.session, event["trace_id"] or self.trace_id
        if kind == turn_events.ToolCallStarted.type:
            names = ("call_id", "tool", "action", "effect", "args", "decision")
            self.calls.append(Call(**{name: event[name] for name in names}))
        elif kind == turn_events.ToolResult.type:
            for call in self.calls:
                if call.call_id == event["call_id"]:
                    call.result, call.text = event["result"], event["text"]
                    call.stub = bool((event["metadata"] or {}).get("stub"))
        elif kind == turn_events.Used.type:
            self.total_tokens += event["total_tokens"]
            self.cost = None if self.cost is None or event["cost"] is None else self.cost + event["cost"]
        elif kind in turn_events.LAST_EVENTS:
            self._end(event)

    def _end(self, event: Mapping[str, Any]) -> None:
        self.steps += event["steps"]
        self.duration_ms += event["duration_ms"]
        if event["type"] == turn_events.Failed.type:
            self.answer, self.data = "", None
            self.code, self.message, self.suggestion = event["code"], event["message"], event["suggestion"]
        else:
            self.answer, self.data, self.code, self.message = event["text"], event.get("data"), "", ""

    def stored(self) -> dict[str, Any]:
        """As a trial is stored, without what judged it."""
        calls = [_stored_call(call, whole=at < MOST_CALLS) for at, call in enumerate(self.calls[:1000])]
        return {
            "code": self.code,
            "answer": cut(self.answer or self.message, MOST_ANSWER_CHARS),
            "calls": calls,
            "session": self.session,
            "trace_id": self.trace_id,
            "steps": self.steps,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
            "duration_ms": self.duration_ms,
        }


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a word about the rest."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def _stored_call(call: Call, *, whole: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tool": call.tool,
        "action": call.action,
        "effect": call.effect,
        "result": call.result,
        "stub": call.stub,
    }
    if whole:
        is_short = len(str(call.args)) <= MOST_ARGS_CHARS
        found |= {
            "args": call.args if is_short else cut(str(call.args), MOST_ARGS_CHARS),
            "text": cut(call.text, MOST_RESULT_CHARS),
        }
    return found
