"""Makes spans of events, by the semantic conventions for generative AI.

A turn is one trace: the span `invoke_agent`, and below it one span for each model call, tool call, retry and
compaction. Each span comes from one event, and its ids from that event alone: a span that is sent twice has
the same ids, and nothing has to be remembered from one event to the next, nor over a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.telemetry.otlp import CLIENT, FAILED, INTERNAL, OK, Value, attributes, nanoseconds

KINDS = (
    *("agent.llm_response", "agent.error", "agent.retry/retry", "agent.tool_dispatch/refused"),
    *("session.turn/done", "session.compacted/compacted", "tool/invocation"),
)
"""What is followed."""
CHAT, CALL, TURN = "chat", "execute_tool", "invoke_agent"
RETRY, FALLBACK, COMPACTION = "retry", "fallback", "compaction"
_MOMENT = 0

Event = Mapping[str, Any]
"""A stored event as clients get it."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """Something that ended, as an event tells. Times are UTC microseconds."""

    operation: str
    name: str
    """Of the model or the tool, where there is one."""
    start_us: int
    end_us: int
    error: str = ""
    """The code of the error; empty when it went well."""
    message: str = ""
    tokens: tuple[int, int] | None = None
    """Those of the prompt and of the answer."""
    more: Mapping[str, Value]
    """Further attributes of its span."""


def done_of(event: Event) -> Done | None:
    """What an event tells of; None for one of which there is no span, or whose data was deleted."""
    data, topic, kind = event["data"], event["topic"], event["type"]
    if data is None:
        return None
    if topic == "agent.llm_response":
        return _model_call(event, data)
    if topic.startswith("tool."):
        return _tool_call(event, data) if kind == "invocation" else None
    if topic == "session.turn":
        return _turn(event, data) if kind == "done" else None
    match topic, kind:
        case "agent.tool_dispatch", "refused":
            return _tool_call(event, data)
        case "agent.retry", "retry":
            wait_us = round(float(data["wait_s"]) * 1e6)
            return _moment(event, RETRY, data, {"lightagent.tries": data["tries"]}, wait_us)
        case "agent.error", "fallback":
            return _moment(event, FALLBACK, data, {})
        case "agent.error", _:
            return _turn(event, data)
        case "session.compacted", "compacted":
            counts = {f"lightagent.{key}": data[key] for key in ("removed", "tokens_before", "tokens_after")}
            return _moment(event, COMPACTION, data, counts)
    return None


def _model_call(event: Event, data: Mapping[str, Any]) -> Done:
    start_us = data.get("started_us") or event["time"] - data["duration_ms"] * 1000
    provider, _, model = str(data["model"]).partition("/")
    tokens = int(data["prompt_tokens"]), int(data["completion_tokens"])
    return Done(
        operation=CHAT,
        name=data["model"],
        start_us=start_us,
        end_us=start_us + data["duration_ms"] * 1000,
        error=data["finish_reason"] if event["type"] == "failed" else "",
        tokens=tokens,
        more={
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model or provider,
            "gen_ai.response.finish_reasons": [str(data["finish_reason"])],
            "gen_ai.usage.input_tokens": tokens[0],
            "gen_ai.usage.output_tokens": tokens[1],
            "gen_ai.usage.cache_read.input_tokens": data["cached_tokens"],
            "lightagent.step": data.get("step") or None,
            "lightagent.summary": event["type"] == "summary" or None,
            "lightagent.counted": data["counted"],
            "lightagent.cost": data["cost"],
        },
    )


def _tool_call(event: Event, data: Mapping[str, Any]) -> Done:
    took_us = data.get("duration_ms", _MOMENT) * 1000
    start_us = data.get("started_us") or event["time"] - took_us
    name = f"{data['tool']}.{data['action']}" if data.get("tool") else data.get("function", "")
    result = data["result"]
    return Done(
        operation=CALL,
        name=name,
        start_us=start_us,
        end_us=start_us + took_us,
        error="" if result == "ok" else result,
        message=data.get("message", ""),
        more={
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": data["call_id"],
            "gen_ai.tool.type": "function",
            "lightagent.effect": data.get("effect"),
            "lightagent.refused": event["topic"] == "agent.tool_dispatch" or None,
        },
    )


def _turn(event: Event, data: Mapping[str, Any]) -> Done:
    start_us = event["time"] - data.get("duration_ms", _MOMENT) * 1000
    return Done(
        operation=TURN,
        name=event["agent"],
        start_us=start_us,
        end_us=event["time"],
        error=event["type"] if event["topic"] == "agent.error" else "",
        message=data.get("message", ""),
        more={
            "gen_ai.usage.input_tokens": data.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": data.get("completion_tokens"),
            "lightagent.steps": data.get("steps"),
            "lightagent.calls": data.get("calls"),
            "lightagent.cost": data.get("cost"),
            "lightagent.unattended": data.get("unattended") or None,
        },
    )


def _moment(
    event: Event, operation: str, data: Mapping[str, Any], more: Mapping[str, Value], took_us: int = _MOMENT
) -> Done:
    provider, _, model = str(data.get("model", "")).partition("/")
    return Done(
        operation=operation,
        name="",
        start_us=event["time"],
        end_us=event["time"] + took_us,
        error=str(data.get("code", "")),
        message=str(data.get("message", "")),
        more={"gen_ai.provider.name": provider, "gen_ai.request.model": model, **more},
    )


def trace_id(event: Event) -> str:
    """The trace of an event's turn; one of its own for what belongs to no turn."""
    return hashlib.sha256(f"trace:{event['trace_id'] or event['hash']}".encode()).hexdigest()[:32]


def root_id(event: Event) -> str:
    """The span of an event's turn; empty for what belongs to no turn."""
    return hashlib.sha256(f"turn:{event['trace_id']}".encode()).hexdigest()[:16] if event["trace_id"] else ""


def span(event: Event, done: Done, content: Mapping[str, Value] | None) -> dict[str, Any]:
    """The span of what ended, with `content` among its attributes. Without any, it has no message of an error
    either: that may quote what somebody asked for.
    """
    own = root_id(event) if done.operation == TURN else ""
    status: dict[str, Any] = {"code": FAILED if done.error else OK}
    if done.error:
        status["message"] = (done.message if content is not None else "") or done.error
    found: dict[str, Any] = {
        "traceId": trace_id(event),
        "spanId": own or event["hash"][:16],
        "name": f"{done.operation} {done.name}".strip(),
        "kind": CLIENT if done.operation == CHAT else INTERNAL,
        "startTimeUnixNano": nanoseconds(done.start_us),
        "endTimeUnixNano": nanoseconds(max(done.start_us, done.end_us)),
        "attributes": attributes({**_common(event, done), **done.more, **(content or {})}),
        "status": status,
    }
    if not own and (above := root_id(event)):
        found["parentSpanId"] = above
    return found


def _common(event: Event, done: Done) -> dict[str, Value]:
    named = done.operation in (CHAT, CALL, TURN)
    return {
        "gen_ai.operation.name": done.operation if named else None,
        "gen_ai.agent.name": event["agent"],
        "gen_ai.conversation.id": event["session"],
        "session.id": event["session"],
        "user.id": None if event["owner"] is None else str(event["owner"]),
        "error.type": done.error,
        "lightagent.trace_id": event["trace_id"],
        "lightagent.request_id": event["request_id"],
        "lightagent.seq": event["seq"],
    }
