"""Makes one HTTP request for the tool web: follows redirects, keeps limits, returns bytes.

`fetch` owns every connection that it makes, one transport for each hop, closed when it returns: a pooled TLS
connection would be used again for another name at the same address, with a certificate that nobody checked
for that name. It uses httpx one level below its client, which knows no redirects, cookies, .netrc or proxies.
A connection goes to an address that the guard has checked, with the name in Host and in TLS (SNI and
certificate).
Certificates are checked against the system's store (`SSL_CERT_FILE` and `SSL_CERT_DIR` name another).
httpx is imported with the first request, since it takes some megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import sys
import types
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urljoin

from lightagentd import __version__
from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, TimedOut, ToolError
from lightagentd.text.visible import visible
from lightagentd.toolkit.web.guard import DEFAULT_PORTS, Address, Guard, Target, parse_url

if TYPE_CHECKING:
    import httpx

_Kind = TypeVar("_Kind", bound=BaseException)

BODY_LIMIT_BYTES = 2 << 20
REDIRECT_LIMIT = 5
CONNECT_TIMEOUT_S = 10.0
HEADERS_LIMIT = 50
HEADER_LIMIT_CHARS = 8192
_ADDRESSES_TRIED = 4
_LOCATION_LIMIT_CHARS = 4096
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
"""What a header may be called (RFC 9110, section 5.6.2)."""
_VALUE = re.compile(r"(?:[!-~](?:[ -~\t]*[!-~])?)?")
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
    | {"keep-alive", "accept-encoding", "proxy-authorization", "proxy-connection", "http2-settings"}
)
"""They frame the request or belong to this connection, so a caller may not set them."""
_HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
"""The caller's headers that go along to another host: any other may hold a credential."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask. `headers` have lower-case names; `content` is None for a request without a body."""

    method: str
    target: Target
    headers: Mapping[str, str]
    content: bytes | None = None
    redirects: int = REDIRECT_LIMIT
    """How many are followed; with 0 a redirect is the answer itself."""
    timeout_s: float = 20.0
    limit_bytes: int = BODY_LIMIT_BYTES


@dataclass(frozen=True, kw_only=True)
class Response:
    """What came back. A body is decoded (gzip) and cut after `limit_bytes`."""

    status: int
    reason: str
    target: Target
    """Where the answer came from, behind all redirects."""
    address: str
    headers: list[tuple[str, str]]
    """As they came; characters that cannot be seen are escaped."""
    body: bytes
    truncated: bool
    redirects: list[str]
    """The URLs that were asked before."""

    def header(self, name: str) -> str:
        """The first value of a header, or an empty string."""
        return next((value for key, value in self.headers if key == name), "")


def checked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers as `Request` has them. Raises InvalidArgument; no value can begin another header (CWE-113)."""
    if len(given) > HEADERS_LIMIT:
        raise InvalidArgument(f"There are more than {HEADERS_LIMIT} headers.", field="headers")
    found: dict[str, str] = {}
    for name, value in given.items():
        key, value = name.lower(), value.strip(" \t")
        if not _TOKEN.fullmatch(name) or key in found:
            raise InvalidArgument(
                f"{name[:100]!r} is no name of a header, or is there twice.", field="headers"
            )
        if key in _OURS:
            raise InvalidArgument(
                f"The header {name} cannot be set.", field="headers", suggestion="Leave it out."
            )
        if len(value) > HEADER_LIMIT_CHARS or not _VALUE.fullmatch(value):
            raise InvalidArgument(
                f"The value of the header {name} is too long or has characters that a header cannot have.",
                field="headers",
                suggestion="Use one line of printable ASCII characters.",
            )
        found[key] = value
    return found


async def fetch(request: Request, guard: Guard) -> Response:
    """Ask, follow redirects, read the body up to its limit.

    Every answer is a result, whatever its status. Raises InvalidArgument, PermissionDenied, NotFound,
    TimedOut, LimitExceeded (too many redirects), ToolError.
    """
    passed: list[str] = []
    try:
        async with asyncio.timeout(request.timeout_s):
            while True:
                found = await _hop(request, guard, passed)
                if isinstance(found, Response):
                    return found
                if len(passed) >= request.redirects:
                    raise LimitExceeded(
                        f"{passed[0] if passed else request.target.url} redirects more than"
                        f" {request.redirects} times.",
                        suggestion="Ask for the URL that it leads to.",
                    )
                passed.append(request.target.url)
                request = found
    except TimeoutError as err:
        raise TimedOut(
            f"{request.target.url} did not answer completely within {request.timeout_s:g} s.",
            suggestion="Try again with a longer timeout_s, or ask for less.",
        ) from err


async def _hop(request: Request, guard: Guard, passed: list[str]) -> Response | Request:
    """One request: the answer, or the request that a redirect asks for."""
    httpx = _httpx()
    target = request.target
    addresses = await guard.addresses(target)
    verify = tls_context() if target.scheme == "https" else False  # plain HTTP needs no certificates
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
    sockets: list[Any] = []
    try:
        async with httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits) as transport:
            answer, address = await _send(transport, request, addresses, sockets)
            try:
                moved = answer.headers.get("location") if request.redirects else None
                if moved is not None and answer.status_code in (301, 302, 303, 307, 308):
                    return _redirected(request, answer.status_code, moved)
                body, truncated = await _body(answer, request)
            finally:
                await answer.aclose()
    except (httpx.HTTPError, httpx.InvalidURL) as err:
        raise _failure(target, err) from err
    finally:
        # A cancel during the TLS handshake would leave httpcore's connection open.
        for each in sockets:
            await each.aclose()
    return Response(
        status=answer.status_code,
        reason=visible(answer.extensions.get("reason_phrase", b""), keep=" ")[:100],
        target=target,
        address=str(address),
        headers=[(visible(key).lower(), visible(value, keep=" ")) for key, value in answer.headers.raw],
        body=body,
        truncated=truncated,
        redirects=passed,
    )


async def _send(
    transport: httpx.AsyncHTTPTransport, request: Request, addresses: list[Address], sockets: list[Any]
) -> tuple[httpx.Response, Address]:
    """The answer's head from the first address that takes a connection, so nothing is sent twice.

    Every connection that was made is added to `sockets`.
    """
    httpx = _httpx()

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            sockets.append(info["return_value"])

    target = request.target
    timeout = httpx.Timeout(request.timeout_s, connect=min(CONNECT_TIMEOUT_S, request.timeout_s))
    headers = {"host": target.authority, "user-agent": f"lightagentd/{__version__}", "accept": "*/*"}
    headers |= {"accept-encoding": "gzip", "connection": "close", **request.headers}
    last = addresses[:_ADDRESSES_TRIED][-1]
    for address in addresses[:_ADDRESSES_TRIED]:
        url = httpx.URL(
            scheme=target.scheme, host=str(address), port=target.port, raw_path=target.path.encode()
        )
        message = httpx.Request(
            request.method,
            url,
            headers=headers,
            content=request.content,
            extensions={"timeout": timeout.as_dict(), "sni_hostname": target.host, "trace": trace},
        )
        try:
            return await transport.handle_async_request(message), address
        except (httpx.ConnectError, httpx.ConnectTimeout) as err:
            if address == last or _cause(err, ssl.SSLError) is not None:
                raise
    raise AssertionError("a guard gives at least one address")


def _redirected(request: Request, status: int, location: str) -> Request:
    """The request that a redirect asks for (RFC 9110, section 15.4); the next hop checks its address.

    A page may not send a body, or credentials from https to http, where the caller did not mean them to go.
    """
    before = request.target
    try:
        target = parse_location(before, location)
    except (InvalidArgument, ValueError) as err:
        raise ToolError(
            f"{before.url} redirects to something that is not an http or https URL: {location[:200]!r}."
        ) from err
    headers = dict(request.headers)
    private = sorted(set(headers) - _HARMLESS)
    if private and (before.scheme, target.scheme) == ("https", "http"):
        raise ToolError(
            f"{before.url} redirects to {target.url}, where {', '.join(private)} would be sent unencrypted.",
            suggestion="Ask for that URL without these headers, if it is the right one.",
        )
    if not _same_site(before, target):
        headers = {name: value for name, value in headers.items() if name in _HARMLESS}
    method, content = request.method, request.content
    if status == 303 or (status in (301, 302) and method == "POST"):
        method, content = "HEAD" if method == "HEAD" else "GET", None
        headers.pop("content-type", None)
    elif method == "POST" and before.origin != target.origin:
        raise ToolError(
            f"{before.url} wants the body to be sent to {target.url} instead, which is another host.",
            suggestion="Post to that URL, if it is the right one.",
        )
    return replace(request, method=method, target=target, headers=headers, content=content)


def parse_location(base: Target, location: str) -> Target:
    """Where the header Location leads, seen from `base`; as in browsers it may have blanks and the like.

    Raises InvalidArgument, ValueError.
    """
    if len(location) > _LOCATION_LIMIT_CHARS:
        raise ValueError("the location is too long")
    return parse_url(urljoin(base.url, quote(location.strip(), safe="!#$%&'()*+,/:;=?@[]~\\")))


def _same_site(before: Target, target: Target) -> bool:
    """Whether credentials may go along: the same host and port, or the same host's own https."""
    upgrade = all(each.port == DEFAULT_PORTS[each.scheme] for each in (before, target))
    upgrade = upgrade and (before.scheme, target.scheme) == ("http", "https")
    return before.host == target.host and (before.origin == target.origin or upgrade)


async def _body(answer: httpx.Response, request: Request) -> tuple[bytes, bool]:
    """The decoded body and whether its end is missing. Never more than the limit is decoded at once."""
    if request.method == "HEAD":
        return b"", False
    kept, received = bytearray(), 0
    gunzip = _gunzip(answer.headers.get("content-encoding", ""), request.target)
    pieces = answer.aiter_raw()
    try:
        async for piece in pieces:
            received += len(piece)
            room = request.limit_bytes + 1 - len(kept)
            kept += gunzip.decode(piece, room) if gunzip else piece[:room]
            if len(kept) > request.limit_bytes or received > BODY_LIMIT_BYTES + 1:
                await _abandon(answer, pieces)
                return bytes(kept[: request.limit_bytes]), True
    except zlib.error as err:
        await _abandon(answer, pieces)
        raise ToolError(f"{request.target.url} sent a body whose compression is broken: {err}.") from err
    return bytes(kept), gunzip is not None and gunzip.inside


async def _abandon(answer: httpx.Response, pieces: AsyncIterator[bytes]) -> None:
    """Close the connection and let httpcore's generators run into that; else the loop must collect them."""
    await answer.aclose()
    with contextlib.suppress(_httpx().HTTPError):
        async for _ in pieces:
            pass


class _Gunzip:
    """Decodes gzip (and zlib, which `deflate` means), members one after the other (RFC 1952, section 2.2)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self.inside = False
        """A member has begun and not ended."""

    def decode(self, data: bytes, room: int) -> bytes:
        """At most `room` bytes; what would be more is lost."""
        out = b""
        while data and len(out) < room:
            self.inside = True
            out += self._member.decompress(data, room - len(out))
            data = self._member.unconsumed_tail
            if self._member.eof:
                self.inside = False
                data = self._member.unused_data.lstrip(b"\0")
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        return out


def _gunzip(encoding: str, target: Target) -> _Gunzip | None:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Gunzip()
    raise ToolError(f"{target.url} sent a body in the encoding {encoding[:50]!r}, which was not asked for.")


def tls_context() -> ssl.SSLContext:
    """Checks certificates and names against the system's store, or certifi's where the system has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _httpx() -> types.ModuleType:
    """httpx without its command line, which loads rich and pygments where these are installed: 5 MiB."""
    sys.modules.setdefault("httpx._main", cast(types.ModuleType, None))
    import httpx

    return httpx


def _failure(target: Target, err: Exception) -> LightagentError:
    """What went wrong with a connection, in words."""
    httpx = _httpx()
    certificate = _cause(err, ssl.SSLCertVerificationError)
    if certificate is not None:
        return ToolError(
            f"The certificate of {target.authority} is not valid: {certificate.verify_message.rstrip('.')}.",
            suggestion="Check the host's name. An administrator can add an authority to the system's store.",
        )
    tls = _cause(err, ssl.SSLError)
    if tls is not None:
        return ToolError(f"TLS with {target.authority} failed: {tls.reason or tls}.")
    if isinstance(err, httpx.TimeoutException):
        return TimedOut(f"{target.authority} did not answer in time ({type(err).__name__}).")
    if isinstance(err, httpx.ConnectError):
        reason = _cause(err, OSError)
        text = os.strerror(reason.errno) if reason is not None and reason.errno else ""
        return ToolError(
            f"{target.authority} cannot be connected to: {text or err}.",
            suggestion="Check the host and the port.",
        )
    return ToolError(f"The exchange with {target.authority} broke off: {err or type(err).__name__}.")


def never_sent(err: LightagentError) -> bool:
    """Whether an error of `fetch` says that there was no connection to send anything on."""
    httpx = _httpx()
    return isinstance(err.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


def _cause(err: BaseException, kind: type[_Kind]) -> _Kind | None:
    """The error of a kind that is the deepest of those that led to `err`."""
    found: _Kind | None = None
    at: BaseException | None = err
    while at is not None:
        found = at if isinstance(at, kind) else found
        at = at.__cause__ or at.__context__
    return found
