"""Makes metrics of what ended, by the semantic conventions for generative AI.

Each batch of events gives points of its own (delta temporality) for exactly these events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from lightagentd.telemetry.otlp import DELTA, Value, attributes, nanoseconds
from lightagentd.telemetry.spans import CALL, CHAT, COMPACTION, RETRY, TURN, Done, Event

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
"""The limits that the conventions advise for durations and for tokens."""
_DURATION, _USAGE = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
_COUNTED = {RETRY: "lightagent.model.retries", COMPACTION: "lightagent.compactions"}
_ABOUT = {
    _DURATION: ("s", "How long model calls, tool calls and turns took."),
    _USAGE: ("{token}", "The tokens of model calls."),
    _COUNTED[RETRY]: ("{retry}", "Model calls that were made again."),
    _COUNTED[COMPACTION]: ("{compaction}", "Conversations that were shortened for a model."),
}
_KEPT = ("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.tool.name", "lightagent.effect")
"""What tells the points of a metric apart, beside the operation, the agent and the error."""

Key = tuple[tuple[str, Value], ...]


def metrics(ended: Iterable[tuple[Event, Done]]) -> list[dict[str, Any]]:
    """The metrics of some events."""
    durations: dict[Key, list[float]] = {}
    tokens: dict[Key, list[float]] = {}
    counts: dict[str, dict[Key, int]] = {}
    times: list[int] = []
    for event, done in ended:
        times.append(event["time"])
        key = _key(event, done)
        if done.operation in (CHAT, CALL, TURN):
            durations.setdefault(key, []).append(max(0, done.end_us - done.start_us) / 1e6)
        elif name := _COUNTED.get(done.operation):
            of_name = counts.setdefault(name, {})
            of_name[key] = of_name.get(key, 0) + 1
        if done.tokens is not None:
            for kind, number in zip(("input", "output"), done.tokens, strict=True):
                tokens.setdefault((*key, ("gen_ai.token.type", kind)), []).append(float(number))
    if not times:
        return []
    span = {"startTimeUnixNano": nanoseconds(min(times)), "timeUnixNano": nanoseconds(max(times))}
    found = [_histogram(_DURATION, durations, _SECONDS, span), _histogram(_USAGE, tokens, _TOKENS, span)]
    found += [_sum(name, points, span) for name, points in counts.items()]
    return [one for one in found if one is not None]


def _key(event: Event, done: Done) -> Key:
    named = done.operation in (CHAT, CALL, TURN)
    values: dict[str, Value] = {
        "gen_ai.operation.name": done.operation if named else None,
        "gen_ai.agent.name": event["agent"],
        **{name: done.more.get(name) for name in _KEPT},
        "error.type": done.error,
    }
    return tuple(values.items())


def _histogram(
    name: str, points: Mapping[Key, list[float]], limits: tuple[float, ...], span: Mapping[str, str]
) -> dict[str, Any] | None:
    made = []
    for key, values in points.items():
        buckets = [0] * (len(limits) + 1)
        for value in values:
            buckets[bisect_left(limits, value)] += 1
        made.append(
            {
                "attributes": attributes(dict(key)),
                **span,
                "count": str(len(values)),
                "sum": sum(values),
                "min": min(values),
                "max": max(values),
                "explicitBounds": list(limits),
                "bucketCounts": [str(number) for number in buckets],
            }
        )
    return _metric(name, "histogram", {"dataPoints": made, "aggregationTemporality": DELTA}) if made else None


def _sum(name: str, points: Mapping[Key, int], span: Mapping[str, str]) -> dict[str, Any]:
    made = [
        {"attributes": attributes(dict(key)), **span, "asInt": str(number)} for key, number in points.items()
    ]
    return _metric(name, "sum", {"dataPoints": made, "aggregationTemporality": DELTA, "isMonotonic": True})


def _metric(name: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    unit, description = _ABOUT[name]
    return {"name": name, "unit": unit, "description": description, kind: data}
