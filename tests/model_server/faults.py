"""The faults that have a name: each of any answer, and `FAULTS` most of them with an answer of their own.

They go together: `cut(gzip(say("x")), after=20)`, or `error_in_stream(…).over(pause_s=1)`. What is wrong with
a connection before there is one is here, too: `bad_certificate`, `NO_SUCH_HOST` and `refusing_port`.
"""

from __future__ import annotations

import datetime
import email.utils
import ipaddress
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.model_server.said import Said, say
from tests.model_server.wire import Answer, Complaint, Ending, Wire

NO_SUCH_HOST = "http://no-such-host.invalid/v1"
"""RFC 6761 has resolvers know that there is none."""
_HELLO = say("Hello", " there.")
_HTML = b"<!doctype html><html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
_PORTAL = b"<html><body><h1>Welcome to the airport</h1><form action='/login'>Log in</form></body></html>"


def answer(said: Said | Answer = _HELLO) -> Answer:
    return said if isinstance(said, Answer) else Answer(said=said)


def status(
    number: int,
    *,
    message: str = "scripted failure",
    kind: str = "server_error",
    code: str = "",
    **headers: str,
) -> Answer:
    """A refusal, worded in the dialect; the `_` in names of headers are dashes."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    wire = Wire(status=number, content_type="application/json", chunked=False, headers=named)
    return Answer(complaint=Complaint(message=message, kind=kind, code=code), wire=wire)


def in_seconds(seconds: float) -> str:
    """`Retry-After` as a date."""
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return email.utils.format_datetime(at, usegmt=True)


def web_page(number: int = 200, page: bytes = _HTML) -> Answer:
    wire = Wire(status=number, content_type="text/html; charset=utf-8", chunked=False)
    return Answer(body=(page,), wire=wire)


def captive_portal(to: str = "http://portal.invalid/login?next=x") -> Answer:
    """A redirect to another host, which wants a person to log in."""
    return web_page(302, _PORTAL).over(headers=(("location", to),))


def cut(said: Said | Answer = _HELLO, *, after: int, ending: Ending = "close") -> Answer:
    """The connection ends after so many bytes of the body; with `reset` harshly."""
    return answer(said).over(body_bytes=after, ending=ending)


def cut_in_head(said: Said | Answer = _HELLO, *, after: int = 20, ending: Ending = "close") -> Answer:
    return answer(said).over(head_bytes=after, ending=ending)


def cut_in_character() -> Answer:
    """The stream ends, properly, in the middle of a character of several bytes."""
    event = 'data: {"choices": [{"index": 0, "delta": {"content": "Gr\N{LATIN SMALL LETTER U WITH DIAERESIS}'
    return Answer(body=(event.encode()[:-1],))


def silence(said: Said | Answer = _HELLO, *, after: int = 0) -> Answer:
    """After so many bytes of the body nothing comes any more; with 0 nothing at all."""
    if not after:
        return answer(said).over(head_bytes=0, ending="silence")
    return answer(said).over(body_bytes=after, ending="silence")


def unfinished(said: Said = _HELLO, *, pieces: int) -> Answer:
    """A stream that ends properly, without its last pieces."""
    return Answer(said=said, drop=pieces)


def slow_first_byte(said: Said | Answer = _HELLO, *, wait_s: float) -> Answer:
    return answer(said).over(wait_s=wait_s)


def a_chunk_a_minute(said: Said | Answer = _HELLO, *, pause_s: float = 60.0) -> Answer:
    return answer(said).over(pause_s=pause_s)


def garbage() -> Answer:
    """A stream of events that hold nothing that makes sense."""
    return Answer(body=(b"data: \xff\xfe{{{\n\n", b"\0\0\0data", b"\r\r\rdata: ]\n\n"))


def gzip(said: Said | Answer = _HELLO) -> Answer:
    return answer(said).over(packing="gzip")


def gzip_garbage() -> Answer:
    return answer().over(packing="gzip_garbage")


def error_in_200(*, message: str = "scripted failure", kind: str = "server_error", code: str = "") -> Answer:
    return status(200, message=message, kind=kind, code=code)


def error_in_stream(
    said: Said | None = None, *, message: str = "scripted failure", kind: str = "server_error", code: str = ""
) -> Answer:
    """An error event, behind what the model had said without its end."""
    complaint = Complaint(message=message, kind=kind, code=code)
    return Answer(said=said, drop=3 if said else 0, complaint=complaint)


def big_chunk(size_bytes: int = 10 << 20, *, events: int = 1) -> Answer:
    """As much text in one chunk, in so many events."""
    return Answer(said=say(*["x" * (size_bytes // events)] * events)).over(one_chunk=True)


def endless(*, pause_s: float = 0.0) -> Answer:
    """Comments that keep the connection alive, for ever."""
    return Answer(body=(b": still here\n\n" * 64,)).over(ending="endless", pause_s=pause_s)


FAULTS: dict[str, Callable[[], Answer]] = {
    "status_400": lambda: status(400, kind="invalid_request_error"),
    "status_401": lambda: status(401, message="bad key", kind="authentication_error", code="invalid_api_key"),
    "status_403": lambda: status(403, kind="permission_error"),
    "status_404": lambda: status(
        404, message="no such model", kind="not_found_error", code="model_not_found"
    ),
    "status_408": lambda: status(408),
    "status_409": lambda: status(409),
    "status_422": lambda: status(422, kind="invalid_request_error"),
    "status_429": lambda: status(429, kind="rate_limit_error", retry_after="0"),
    "status_429_date": lambda: status(429, kind="rate_limit_error", retry_after=in_seconds(0)),
    "status_500": lambda: status(500),
    "status_502_html": lambda: web_page(502),
    "status_503": lambda: status(503, kind="overloaded_error"),
    "status_529": lambda: status(529, kind="overloaded_error"),
    "html": web_page,
    "captive_portal": captive_portal,
    "reset_before_head": lambda: cut_in_head(after=0, ending="reset"),
    "closed_before_head": lambda: cut_in_head(after=0),
    "reset_in_head": lambda: cut_in_head(ending="reset"),
    "closed_in_head": cut_in_head,
    "reset_in_body": lambda: cut(after=100, ending="reset"),
    "cut_in_body": lambda: cut(after=100),
    "cut_in_character": cut_in_character,
    "no_end": lambda: unfinished(pieces=3),
    "garbage": garbage,
    "gzip_garbage": gzip_garbage,
    "gzip_cut": lambda: cut(gzip(), after=40),
    "error_in_200": error_in_200,
    "error_in_stream": error_in_stream,
    "error_behind_text": lambda: error_in_stream(_HELLO),
}
"""Those that show at once; see the functions for silence, slowness and size."""


def bad_certificate(folder: Path, *, host: str = "127.0.0.1") -> ssl.SSLContext:
    """A server's context, its certificate signed by nobody; that is `certificate.pem` in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scripted")])
    now = datetime.datetime.now(datetime.UTC)
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return context


def refusing_port() -> int:
    """A port on loopback on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
