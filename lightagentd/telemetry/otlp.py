"""The JSON encoding of OTLP (https://opentelemetry.io/docs/specs/otlp/): ids are hexadecimal, enumerations
numbers, integers of 64 bits strings.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightagentd import __version__

Signal = Literal["traces", "metrics"]
INTERNAL, CLIENT = 1, 3
"""SpanKind."""
OK, FAILED = 1, 2
"""Status.code."""
DELTA = 1
"""AggregationTemporality: a point counts what happened since the one before, so that a restart of the sender
resets nothing.
"""
_SCOPE = {"name": "lightagentd", "version": __version__}

Value = str | bool | int | float | Sequence[str] | None


def attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    """A list of KeyValue; what is None or an empty text is left out."""
    return [
        {"key": name, "value": _any(value)}
        for name, value in values.items()
        if value is not None and value != ""
    ]


def _any(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [{"stringValue": one} for one in value or ()]}}


def nanoseconds(time_us: int) -> str:
    """A time in UTC microseconds as OTLP has it."""
    return str(time_us * 1000)


def request(signal: Signal, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An ExportTraceServiceRequest of spans, or an ExportMetricsServiceRequest of metrics."""
    resource = attributes(
        {"service.name": "lightagentd", "service.version": __version__, "host.name": platform.node()}
    )
    outer, inner, name = {
        "traces": ("resourceSpans", "scopeSpans", "spans"),
        "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    }[signal]
    scoped = {"scope": _SCOPE, name: list(items)}
    return {outer: [{"resource": {"attributes": resource}, inner: [scoped]}]}
