"""`/hooks/NAME`: passes requests of other programs on to the daemon, which knows who may send them.

There is no lock-out of who sends wrong ones: behind a proxy all have one address, and alerts would be lost.
"""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse, Response

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import MalformedMessage, PermissionDenied
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import TIMEOUT_S
from lightagentd.gateway.refusals import NoToken, TooMany, WrongType

BODY_BYTES = 1 << 20
_PATIENCE_S = 10.0
_MOST_HEADERS = 100


async def take(asked: Asked) -> Response:
    """POST /hooks/{name}."""
    kind = asked.header("content-type").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise WrongType(
            "The body must be of the type application/json.",
            suggestion="Send the header Content-Type: application/json (in GitHub: Content type).",
        )
    try:
        body = (await asked.body()).decode()
    except UnicodeDecodeError:
        raise MalformedMessage("The body is not UTF-8.") from None
    headers = dict(list(asked.request.headers.items())[:_MOST_HEADERS])
    shared = asked.shared
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await shared.deliveries.acquire()
    except TimeoutError:
        raise TooMany("Too many requests for webhooks come at once.", retry_after_s=_PATIENCE_S) from None
    try:
        async with AsyncClient(shared.callers.control, timeout_s=TIMEOUT_S) as client:
            answer = await client.call(
                "Triggers.Deliver", name=asked.parameters["name"], headers=headers, body=body
            )
    except PermissionDenied as err:
        raise NoToken(err.message, suggestion=err.suggestion) from err
    finally:
        shared.deliveries.release()
    return JSONResponse({"number": answer["number"]}, status_code=202)


ENDPOINT = Endpoint(path="/hooks/{name}", methods={"POST": take}, max_body_bytes=BODY_BYTES)
