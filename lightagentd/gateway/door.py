"""The ASGI application: what every request must be, and who answers it.

A request is looked at in this order: its framing (bytes that two programs could cut differently end the
connection), the name it calls the gateway by (DNS rebinding), the page it comes from (CORS), its path and its
method. Errors of an endpoint become an answer here, in the endpoint's own shape.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from email.utils import formatdate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from lightagentd.config.gateway import allowed_hosts
from lightagentd.errors import LightagentError, MalformedMessage, NotFound, PermissionDenied, Unavailable
from lightagentd.gateway import answers
from lightagentd.gateway.asked import Asked, Endpoint, Shared
from lightagentd.gateway.http import HEAD_BYTES
from lightagentd.gateway.refusals import (
    ClientGone,
    NoToken,
    TooMany,
    TooSlow,
    WrongMethod,
    WrongPlace,
    error_object,
    retry_after_s,
    status_of,
)

_log = logging.getLogger("lightagentd.gateway")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_CODED = re.compile(rb"%2[ef]|%5c|%[01]", re.IGNORECASE)
"""Dots, slashes and controls that are written so that they do not look like it."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(?:\s*,\s*[A-Za-z0-9-]+)*")
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
_EXPOSED = (
    "Retry-After, Mcp-Session-Id, X-Lightagent-Session, X-Lightagent-Trace, X-Vercel-AI-UI-Message-Stream"
)


class Door:
    """The application over a table of endpoints."""

    def __init__(self, shared: Shared, endpoints: Sequence[Endpoint]) -> None:
        self._shared = shared
        self._hosts = allowed_hosts(shared.gateway)
        self._table = [(compile_path(one.path)[0], one) for one in endpoints]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        with contextlib.ExitStack() as until_answered:
            response = await self._response(Request(scope, receive), until_answered)
            if response is not None:
                await response(scope, receive, send)

    async def _response(self, request: Request, until_answered: contextlib.ExitStack) -> Response | None:
        """The answer to a request; None where nobody reads one."""
        path, endpoint = "", None
        cors: list[tuple[bytes, bytes]] = []
        try:
            self._check_framing(request)
            self._check_host(request)
            cors = self._cors(request)
            endpoint, parameters = self._found(request.scope)
            path = endpoint.path
            asked = Asked(self._shared, request, parameters, endpoint)
            until_answered.callback(asked.release)
            response = await self._answered(asked)
        except ClientGone:
            self._shared.metrics.gone.inc()
            return None
        except LightagentError as err:
            response = refused(err, endpoint)
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("a request failed in a way that nobody expected")
            response = refused(LightagentError("The request failed inside the gateway."), endpoint)
        date = (b"date", formatdate(usegmt=True).encode())
        response.raw_headers.extend([date, *cors, *_HEADERS])
        self._shared.metrics.requests.labels(path, _method(request), str(response.status_code)).inc()
        return response

    async def _answered(self, asked: Asked) -> Response:
        request, endpoint = asked.request, asked.endpoint
        method = "GET" if request.method == "HEAD" and "GET" in endpoint.methods else request.method
        allow = ", ".join([*endpoint.methods, *(["HEAD"] if "GET" in endpoint.methods else []), "OPTIONS"])
        if method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allow, **_preflight(request, allow)})
        answer = endpoint.methods.get(method)
        if answer is None:
            taken = " and ".join(endpoint.methods)
            fault = f"{request.url.path[:100]!r} takes {taken}, not {request.method[:20]}."
            response = refused(WrongMethod(fault), endpoint)
            response.headers["Allow"] = allow
            return response
        return await answer(asked)

    def _check_framing(self, request: Request) -> None:
        """Raises MalformedMessage (RFC 9112, 2.3, 6.1 and 6.3), with which the connection ends."""
        names = [name for name, _ in request.scope["headers"]]
        version, coded = request.scope["http_version"], names.count(b"transfer-encoding")
        if version not in ("1.0", "1.1"):
            fault = "The gateway speaks HTTP/1.1."
        elif coded and (coded > 1 or b"content-length" in names or version != "1.1"):
            fault = "The request says in two ways where its body ends."
        elif names.count(b"host") > 1 or names.count(b"authorization") > 1:
            fault = "The request has a header twice that there may be once."
        elif _head_bytes(request) > HEAD_BYTES:  # h11 only bounds one that is not whole yet
            fault = f"The head of the request is larger than {HEAD_BYTES} bytes."
        else:
            return
        request.scope["state"]["connection"].last = True
        raise MalformedMessage(fault)

    def _check_host(self, request: Request) -> None:
        """Raises WrongPlace."""
        host = request.headers.get("host", "").lower()
        name = re.sub(r":\d*$", "", host).rstrip(".")
        if name not in self._hosts:
            raise WrongPlace(
                f"The gateway is not called {name[:100]!r}.",
                suggestion="An administrator may name it: [gateway] hosts in lightagentd.toml(5).",
            )

    def _cors(self, request: Request) -> list[tuple[bytes, bytes]]:
        """The headers that let a page read the answer; none where no page asks. Raises PermissionDenied."""
        origin = request.headers.get("origin")
        if origin is None:
            return []
        own = self._shared.gateway.public_url.rstrip("/")
        if origin == own and request.scope["path"].startswith(answers.PATH):  # the form of our own page
            return []
        if origin not in self._shared.gateway.origins:
            raise PermissionDenied(
                f"Pages of {origin[:100]!r} may not use the gateway.",
                suggestion="An administrator may name it: [gateway] origins in lightagentd.toml(5).",
            )
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED.encode()),
            (b"vary", b"Origin"),
        ]

    def _found(self, scope: MutableMapping[str, Any]) -> tuple[Endpoint, dict[str, str]]:
        """Raises NotFound; also for a path that a proxy may read otherwise."""
        path = scope["path"] if not _CODED.search(scope["raw_path"]) else ""
        for pattern, endpoint in self._table:
            if (match := pattern.match(path)) is not None:
                return endpoint, match.groupdict()
        raise NotFound(
            f"The gateway has no path {scope['path'][:100]!r}.",
            suggestion="Give clients of OpenAI an address that ends in /v1, those of MCP one in /mcp/AGENT.",
        )


def refused(err: LightagentError, endpoint: Endpoint | None = None) -> JSONResponse:
    """An error as an answer."""
    shape = endpoint.refusal if endpoint is not None else error_object
    response = JSONResponse(shape(err), status_code=status_of(err))
    if not isinstance(err, TooMany | TooSlow | Unavailable):
        # OpenAI's libraries send what failed again, and a turn that failed may have changed something.
        response.headers["X-Should-Retry"] = "false"
    if (after_s := retry_after_s(err)) is not None:
        response.headers["Retry-After"] = str(max(1, round(after_s + 0.5)))
    if isinstance(err, NoToken):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _head_bytes(request: Request) -> int:
    scope = request.scope
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + headers


def _preflight(request: Request, allow: str) -> dict[str, str]:
    """What a browser asks before a request of a page that may make it (`_cors` has checked that)."""
    asked = request.headers.get("access-control-request-headers", "")
    if "origin" not in request.headers:
        return {}
    names = asked if _HEADER_NAMES.fullmatch(asked) else "Authorization, Content-Type"
    return {
        "Access-Control-Allow-Methods": allow,
        "Access-Control-Allow-Headers": names,
        "Access-Control-Max-Age": "600",
    }


def _method(request: Request) -> str:
    """For counts: a client may send any word."""
    return request.method if request.method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
