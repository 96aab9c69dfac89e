"""A receiver of OTLP for tests: HTTP on loopback, and each request decoded by the protocol's own code.

The decoder is that of `opentelemetry-proto`, made from the definitions of OpenTelemetry. It refuses names
that the protocol does not have, and values of another type.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Reply = Callable[[], web.Response | None]
"""An answer in place of a good one; None for no answer at all."""


def refuses(status: int, text: str = "", **headers: str) -> Reply:
    return lambda: web.Response(status=status, text=text, headers=headers)


def partly(**said: Any) -> Reply:
    return lambda: web.json_response({"partialSuccess": said})


@dataclass
class OtlpReceiver:
    """Enter it to receive. `replies` are given first, one a request; what they answer is not taken."""

    base: str = ""
    replies: list[Reply] = field(default_factory=list)
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What was no OTLP."""
    requests: int = 0
    port: int = 0
    listens: socket.socket | None = None
    """Where it listens, in the place of a port of this machine."""

    async def __aenter__(self) -> OtlpReceiver:
        app = web.Application()
        app.router.add_post(f"{self.base}/v1/traces", self._traces)
        app.router.add_post(f"{self.base}/v1/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        where = self.listens or socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, where).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.base}"

    @property
    def spans(self) -> list[Any]:
        """The spans that were taken."""
        return [
            span
            for taken in self.traces
            for resource in taken.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def points(self) -> dict[str, list[Any]]:
        """The points of the metrics that were taken, by their names."""
        found: dict[str, list[Any]] = {}
        for taken in self.metrics:
            for resource in taken.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        kind = metric.WhichOneof("data") or ""
                        found.setdefault(metric.name, []).extend(getattr(metric, kind).data_points)
        return found

    async def _traces(self, asked: web.Request) -> web.Response:
        return await self._take(asked, ExportTraceServiceRequest(), self.traces)

    async def _metrics(self, asked: web.Request) -> web.Response:
        return await self._take(asked, ExportMetricsServiceRequest(), self.metrics)

    async def _take(self, asked: web.Request, into: Any, taken: list[Any]) -> web.Response:
        self.requests += 1
        self.headers.append({name.lower(): value for name, value in asked.headers.items()})
        body = await asked.read()
        text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        try:
            json_format.Parse(_ids_in_base64(text), into)
        except json_format.ParseError as err:
            self.faults.append(str(err))
            return web.Response(status=400, text=str(err))
        if self.replies:
            answer = self.replies.pop(0)()
            if answer is None:
                await asyncio.Event().wait()
            elif answer.status != 200 or answer.content_type != "application/json":
                return answer
            taken.append(into)
            assert answer is not None
            return answer
        taken.append(into)
        return web.json_response({})


def _ids_in_base64(text: bytes) -> str:
    """OTLP writes ids in hexadecimal, where the JSON of Protocol Buffers has base64 for bytes."""

    def mended(value: Any) -> Any:
        if isinstance(value, list):
            return [mended(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            name: b64encode(bytes.fromhex(one)).decode()
            if name in ("traceId", "spanId", "parentSpanId")
            else mended(one)
            for name, one in value.items()
        }

    return json.dumps(mended(json.loads(text)))


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span, a point or a resource."""
    found: dict[str, Any] = {}
    for one in of.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found
