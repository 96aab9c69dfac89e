"""The web: GET, HEAD and POST over http and https.

`toolkit.web.guard` decides which URLs are allowed, `fetch` makes the requests, and `text` converts the
answers. LIGHTAGENT_WEB_ALLOW names the private hosts that the administrator allows.
"""

import asyncio
import hashlib
import json
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from lightagentd.text.visible import visible
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, Tool, action
from lightagentd.toolkit.web import fetch
from lightagentd.toolkit.web import text as webtext
from lightagentd.toolkit.web.guard import Guard, parse_url, rules_in_force

BODY_LIMIT_CHARS = 1 << 20
SHOWN_HEADERS = (
    *("content-type", "content-length", "content-encoding", "content-language", "content-disposition"),
    *("location", "last-modified", "etag", "date", "expires", "age", "cache-control", "server", "allow"),
    *("link", "www-authenticate", "retry-after", "strict-transport-security", "accept-ranges"),
    *("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
    *("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id"),
)
"""The headers of an answer that a result has; cookies are credentials and are left out."""
HEADER_SHOWN_CHARS = 500


class RequestArgs(Args):
    url: str = Field(min_length=1, max_length=8192, description="An absolute http or https URL.")
    headers: dict[str, str] = Field(default_factory=dict, description="Headers to send.")
    params: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Added to the URL's query, percent-encoded."
    )
    as_text: bool = Field(default=False, description="Turn HTML into readable text with its links.")
    redirects: int = Field(
        default=fetch.REDIRECT_LIMIT,
        ge=0,
        le=fetch.REDIRECT_LIMIT,
        description="How many redirects are followed; 0 shows the redirect itself.",
    )
    timeout_s: float = Field(default=20, ge=0.1, le=120, description="How long it may take in all.")
    limit_bytes: int = Field(
        default=fetch.BODY_LIMIT_BYTES,
        ge=1,
        le=fetch.BODY_LIMIT_BYTES,
        description="How much of the body is kept.",
    )


class GetArgs(RequestArgs):
    head: bool = Field(default=False, description="Only ask for the status and the headers (HEAD).")


class PostArgs(RequestArgs):
    body: str | dict[str, Any] | list[Any] = Field(
        default="", description="Text is sent as it is (text/plain); an object or a list as JSON."
    )


class Web(Tool):
    """The web: ask for pages and interfaces over http and https. Private hosts need the administrator."""

    name = "web"

    @action(effect=Effect.REACH, taints=True, timeout_s=130, host="url")
    async def get(self, ctx: Context, args: GetArgs) -> Result:
        """Ask for a URL (GET) and show status, headers and body; every status is a result, not an error."""
        return await _exchange(ctx, args, "HEAD" if args.head else "GET", None)

    @action(effect=Effect.REACH, taints=True, timeout_s=130, host="url")
    async def post(self, ctx: Context, args: PostArgs) -> Result:
        """Send a body to a URL (POST) and show the answer; set the header Content-Type for other types."""
        return await _exchange(ctx, args, "POST", _content(args.body))


async def _exchange(ctx: Context, args: RequestArgs, method: str, content: bytes | None) -> Result:
    target = parse_url(_with_params(args))
    headers = fetch.checked_headers(args.headers)
    if isinstance(args, PostArgs) and content and "content-type" not in headers:
        kind = "text/plain; charset=utf-8" if isinstance(args.body, str) else "application/json"
        headers["content-type"] = kind
    request = fetch.Request(
        method=method,
        target=target,
        headers=headers,
        content=content,
        redirects=args.redirects,
        timeout_s=min(args.timeout_s, ctx.timeout_s),
        limit_bytes=args.limit_bytes,
    )
    guard = Guard(rules_in_force())
    response = await fetch.fetch(request, guard)
    return await asyncio.to_thread(_result, response, method, args.as_text)


def _with_params(args: RequestArgs) -> str:
    if not args.params:
        return args.url
    words = {True: "true", False: "false"}
    pairs = [
        (name, words[value] if isinstance(value, bool) else value) for name, value in args.params.items()
    ]
    try:
        added = urlencode(pairs)
    except UnicodeEncodeError as err:
        raise InvalidArgument("The params have characters that are not Unicode.", field="params") from err
    url = args.url.partition("#")[0]
    return f"{url}{'&' if '?' in url else '?'}{added}"


def _content(body: str | dict[str, Any] | list[Any]) -> bytes:
    try:
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, allow_nan=False)
        content = text.encode()
    except ValueError as err:  # NaN, or half of a surrogate pair
        raise InvalidArgument(f"The body cannot be sent: {err}.", field="body") from err
    if len(content) > BODY_LIMIT_CHARS:
        raise InvalidArgument(f"The body is longer than {BODY_LIMIT_CHARS} bytes.", field="body")
    return content


def _result(response: fetch.Response, method: str, as_text: bool) -> Result:
    """Status, URL and headers, an empty line, and the body as text or a line that describes it."""
    url, kind = response.target.url, response.header("content-type")
    shown = [(name, value[:HEADER_SHOWN_CHARS]) for name, value in response.headers if name in SHOWN_HEADERS]
    lines = [f"{response.status} {response.reason}".rstrip() + f" {url}"]
    lines += [f"redirected from {before}" for before in response.redirects]
    lines += [f"{name}: {value}" for name, value in shown]
    data: dict[str, Any] = {
        "url": url,
        "status": response.status,
        "address": response.address,
        "headers": dict(shown),
        "redirects": response.redirects,
        "content_type": webtext.media_type(kind)[:100],
        "size_bytes": len(response.body),
        "truncated": response.truncated,
    }
    text, more = _body(response, kind, as_text)
    if method == "HEAD":
        return Result(output="\n".join(lines), metadata=data)
    if response.truncated:
        text += f"\n[Only the first {len(response.body)} bytes of the body were kept.]"
    return Result(output="\n".join([*lines, "", text]), metadata={**data, **more})


def _body(response: fetch.Response, kind: str, as_text: bool) -> tuple[str, dict[str, Any]]:
    body = response.body
    if not body:
        return "(The body is empty.)", {}
    if not webtext.is_text(body, kind):
        digest = hashlib.sha256(body).hexdigest()
        what = visible(webtext.media_type(kind)[:100].encode()) or "unknown type"
        start = "the kept part's SHA-256" if response.truncated else "SHA-256"
        return f"Binary content: {what}, {len(body)} bytes, {start} {digest}.", {"sha256": digest}
    text, charset = webtext.decode(body, kind)
    if as_text and webtext.is_html(body, kind):
        text = webtext.html_to_text(text, response.target.url)
    return text, {"charset": charset}
