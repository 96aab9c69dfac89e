"""A real HTTP server on loopback that answers with what a test gives, certificates for it, and names."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lightagentd.toolkit.web import fetch as webfetch
from lightagentd.toolkit.web.guard import Guard, parse_rules, parse_url


@dataclass
class Asked:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """A running server; `asked` has its requests, `names` the names that TLS clients asked for."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"


Answer = Callable[[Asked], bytes | AsyncIterator[bytes]]


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """An answer; `content_type="text/plain"` is a header."""
    fields = {"content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}\r\n".encode() for name, value in fields.items()]
    return f"HTTP/1.1 {status}\r\n".encode() + b"".join(lines) + b"\r\n" + body


@contextlib.asynccontextmanager
async def serve(
    answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Served]:
    """Serve while the context is open; each connection takes one request."""
    served = Served()
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: served.names.append(name)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        try:
            asked = await _read(reader)
            served.asked.append(asked)
            found = answer(asked)
            if isinstance(found, bytes):
                writer.write(found)
            else:
                async for piece in found:
                    writer.write(piece)
                    await writer.drain()
            await writer.drain()
        except (OSError, EOFError):
            pass  # the client has seen enough
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    running: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        running.add(task)

    server = await asyncio.start_server(accepted, host, 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    line, *rows = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (row.partition(": ") for row in rows)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(line=line, headers=headers, body=body)


class Nameserver:
    """Gives the lists of addresses one after the other, the last one again and again."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def fetch(url: str, names: Nameserver, allowed: str = "127.0.0.0/8") -> Awaitable[webfetch.Response]:
    """GET a URL with the given names, let in what `allowed` says."""
    request = webfetch.Request(method="GET", target=parse_url(url), headers={})
    return webfetch.fetch(request, Guard(parse_rules(allowed), resolve=names))


def text_page(_: Asked) -> bytes:
    """An answer to everything."""
    return reply(b"hello", content_type="text/plain")


class Authority:
    """A certificate authority of one test; `path` is its certificate, as SSL_CERT_FILE takes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test Authority")])
        self._certificate = (
            self._builder(self._name, self._key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / "authority.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    def server(self, host: str, *, days: int = 30) -> ssl.SSLContext:
        """TLS for a server with this name or address; with negative days its certificate is too old."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        path = self._folder / f"{host}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
