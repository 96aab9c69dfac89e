"""`/answers/TOKEN`: the links of notifications, by which people who are away answer an approval.

GET shows the call and a button, so that a preview of a link decides nothing; POST decides. The daemon knows
what a token stands for. Wrong ones count as wrong tokens of their address.
"""

from __future__ import annotations

from html import escape
from typing import Any

from starlette.responses import HTMLResponse, Response

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import LightagentError, NotFound
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import TIMEOUT_S
from lightagentd.gateway.refusals import status_of
from lightagentd.text.readable import call_lines, visible

PATH = "/answers/"
_BODY_BYTES = 4096
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}
_DONE = {"approve": "It was allowed.", "deny": "It was refused."}
_BUTTON = {"approve": "Allow it, once", "deny": "Refuse it"}


async def show(asked: Asked) -> Response:
    """GET /answers/{token}."""
    return await _answered(asked, decide=False)


async def decide(asked: Asked) -> Response:
    """POST /answers/{token}."""
    await asked.body(_BODY_BYTES)
    return await _answered(asked, decide=True)


async def _answered(asked: Asked, *, decide: bool) -> Response:
    callers, address = asked.shared.callers, asked.connection.address
    callers.guesses.check(address)
    try:
        async with asked.shared.deliveries, AsyncClient(callers.control, timeout_s=TIMEOUT_S) as client:
            token = asked.parameters["token"]
            found = (await client.call("Approvals.AnswerFromAway", token=token, decide=decide))["answer"]
    except LightagentError as err:
        if isinstance(err, NotFound):
            callers.wrong_tokens += 1
            callers.guesses.wrong(address)
        return _page("Not answered", [f"{err.message} {err.suggestion}".strip()], status=status_of(err))
    if decide:
        return _page(_DONE[found["decision"]], [_call(found["approval"])])
    return _page(
        f"{_BUTTON[found['decision']]}, as {found['user']}?",
        [_call(found["approval"]), *call_lines(found["approval"])],
        button=_BUTTON[found["decision"]],
    )


def _call(approval: dict[str, Any]) -> str:
    return f"{approval['tool']}.{approval['action']} ({approval['effect']}) of the agent {approval['agent']}"


def _page(title: str, lines: list[str], *, button: str = "", status: int = 200) -> Response:
    """Plain HTML: everything in it is shown as text."""
    shown = "".join(f"<pre>{escape(visible(one))}</pre>" for one in lines)
    form = f'<form method="post"><button type="submit">{escape(button)}</button></form>' if button else ""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    text = f"<!doctype html>{head}<title>lightagentd</title><h1>{escape(visible(title))}</h1>{shown}{form}"
    return HTMLResponse(text, status_code=status, headers=_HEADERS)


ENDPOINT = Endpoint(
    path="/answers/{token}", methods={"GET": show, "POST": decide}, max_body_bytes=_BODY_BYTES
)
