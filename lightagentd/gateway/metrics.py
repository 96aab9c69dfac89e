"""`/metrics`: the figures of the gateway, and those of the daemon that the asking client may see, for
Prometheus. `/healthz`: whether the daemon answers, and nothing more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.responses import JSONResponse, Response

from lightagentd.errors import LightagentError
from lightagentd.gateway.refusals import NoToken

if TYPE_CHECKING:
    from lightagentd.gateway.asked import Asked

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HEALTH_S = 1.0
"""How long an answer about the daemon's health is believed."""
_STATUS = {
    "agents_total": "Agents that are defined",
    "agents_running": "Agents that run",
    "sessions": "Sessions that the client may see",
    "turns_running": "Turns that run",
    "turns_queued": "Turns that wait for earlier ones of their session",
    "turns_waiting": "Turns that wait for a person",
    "uptime_s": "Seconds since the daemon started",
}


class Metrics:
    """The gateway's own figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "lightagent_gateway_requests", "Requests that were answered", ["path", "method", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.turns = Gauge("lightagent_gateway_turns", "Turns that run for clients", registry=self.registry)
        self.chunks = Counter("lightagent_gateway_chunks", "Pieces of streams", registry=self.registry)
        self.gone = Counter("lightagent_gateway_gone", "Clients that hung up early", registry=self.registry)
        self.connections = Gauge("lightagent_gateway_connections", "HTTP connections", registry=self.registry)
        self.turned_away = Gauge(
            "lightagent_gateway_turned_away",
            "Connections for which there was no room",
            registry=self.registry,
        )
        self.wrong_tokens = Gauge(
            "lightagent_gateway_wrong_tokens", "Tokens that the daemon did not know", registry=self.registry
        )
        self.health = (0.0, False)


async def metrics(asked: Asked) -> Response:
    """GET /metrics."""
    shared = asked.shared
    shared.metrics.connections.set(len(shared.connections()))
    shared.metrics.turned_away.set(shared.connections().turned_away)
    shared.metrics.wrong_tokens.set(shared.callers.wrong_tokens)
    text = generate_latest(shared.metrics.registry)
    try:
        async with asked.caller() as caller:
            status = (await caller.client.call("Manager.GetStatus"))["status"]
            usage = (await caller.client.call("Usage.Get", scope="agent"))["usage"]
    except NoToken:
        if not shared.gateway.open_metrics or asked.header("authorization"):
            raise
        return Response(text, media_type=_TYPE)
    return Response(text + generate_latest(_of_daemon(status, usage)), media_type=_TYPE)


def _of_daemon(status: Mapping[str, Any], usage: list[dict[str, Any]]) -> CollectorRegistry:
    found = CollectorRegistry()
    for name, text in _STATUS.items():
        Gauge(f"lightagent_{name}", text, registry=found).set(status[name])
    Gauge("lightagent_problems", "What the daemon says is wrong", registry=found).set(len(status["problems"]))
    Gauge("lightagent_history_bytes", "The size of the history", registry=found).set(
        status["history"]["size_bytes"]
    )
    Gauge("lightagent_history_events", "Events in the history", registry=found).set(
        status["history"]["events"]
    )
    tokens = Gauge("lightagent_tokens", "Tokens that an agent used", ["agent"], registry=found)
    for row in usage:
        tokens.labels(row["name"]).set(row["total_tokens"])
    return found


async def health(asked: Asked) -> Response:
    """GET /healthz."""
    metrics = asked.shared.metrics
    at, healthy = metrics.health
    if time.monotonic() - at > _HEALTH_S:
        with contextlib.suppress(LightagentError):
            healthy = await asked.shared.callers.answers()
        metrics.health = time.monotonic(), healthy
    return JSONResponse({"status": "ok" if healthy else "unavailable"}, status_code=200 if healthy else 503)
