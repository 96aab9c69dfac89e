"""Says when TLS certificates expire: in files, of services, or on a host (that needs the network)."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from areas.certificates import ASK, Found, Search, faults, kind_of, local, missing, when
from checks import Finding
from headline import tell
from report import Report, option_parser, plural, refuse, run
from x509_dates import decode

_TIMEOUT_S = 8.0
_WALK_S = 12.0
_MOST_AS_JSON = 200
_SSL_REQUEST = struct.pack(">2I", 8, 80877103)
"""PostgreSQL's, which a server answers with one byte S or N."""
_STARTTLS = {
    25: (b"EHLO localhost\r\n", b"STARTTLS\r\n"),
    587: (b"EHLO localhost\r\n", b"STARTTLS\r\n"),
    143: (b". STARTTLS\r\n",),
    110: (b"STLS\r\n",),
    21: (b"AUTH TLS\r\n",),
}
"""What is said in the clear before TLS, each after a greeting (RFC 3207, RFC 2595, RFC 4217)."""


def connected(host: str, port: int) -> socket.socket:
    """A connection on which TLS can begin. Raises OSError."""
    plain = socket.create_connection((host, port), timeout=_TIMEOUT_S)
    try:
        if port == 5432:
            plain.sendall(_SSL_REQUEST)
            if plain.recv(1) != b"S":
                raise ConnectionError("the PostgreSQL server there has no TLS")
        if port in _STARTTLS:
            plain.recv(4096)
            for line in _STARTTLS[port]:
                plain.sendall(line)
                said = plain.recv(4096)
            if said[:1] in (b"4", b"5", b"-") or b". NO" in said or b". BAD" in said:
                raise ConnectionError("the server there refuses STARTTLS")
    except BaseException:
        plain.close()
        raise
    return plain


def from_host(host: str, port: int, report: Report) -> list[Found]:
    """The certificate that a host presents, trusted or not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # reading a certificate does not trust it
    with connected(host, port) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
        der = secure.getpeercert(binary_form=True)
        report.text("Connection", f"{secure.version()} with {(secure.cipher() or ('?',))[0]}.")
    return [Found(f"{host}:{port}", decode(der))] if der else []


def distrust(host: str, port: int) -> str:
    """Why this machine does not trust the certificate for this name, or an empty string."""
    try:
        with connected(host, port) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as err:
        words = (err.verify_message or err.reason or "").rstrip(".")
        if "unable to get local issuer" in words or "unable to verify the first" in words:
            return "its chain is incomplete, or its issuer is not trusted here"
        if "self-signed" in words or "self signed" in words:
            return "it is signed by itself, or by an authority that is not trusted here"
        if "mismatch" in words.lower() or "not valid for" in words:
            return f"it is not for the name {host}"
        return words
    except OSError:
        return ""
    return ""


def ask_host(text: str, report: Report) -> tuple[list[Found], list[Finding]]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(\d{1,5}))?", text)
    port = int(match[2] or 443) if match else 0
    if match is None or not 0 < port < 65536:
        refuse(f"--host={text} is not a host, optionally with a port.")
        return [], []
    host = match[1].strip("[]")
    try:
        rows = from_host(host, port, report)
    except (OSError, ValueError) as err:
        report.finding = f"The certificate of {host}:{port} could not be fetched: {err}."
        return [], []
    why = distrust(host, port)
    report.text(
        "Trust", f"This machine does not trust it: {why}." if why else "This machine trusts it for this name."
    )
    expired = any(row.certificate.not_after < time.time() for row in rows)
    if why and not expired:
        names = ", ".join(rows[0].certificate.names[:4]) or rows[0].certificate.subject
        rest = f" (it is for {names})" if "not for the name" in why else f"; it {when(rows[0].certificate)}"
        return rows, [Finding(f"The certificate of {host}:{port} is not trusted: {why}{rest}.", ASK)]
    return rows, []


def good(rows: list[Found]) -> str:
    """The sentence where nothing is expired or near it."""
    first = min(rows, key=lambda row: row.certificate.not_after)
    cert = first.certificate
    words = f"{when(cert)} ({clock.show(cert.not_after)})"
    if len(rows) == 1:
        return f"The certificate of {cert.subject} in {first.path} {words}."
    lead = f"None of {len(rows)} certificates expires soon"
    return f"{lead}; the first is that of {cert.subject} in {first.path}, which {words}."


def of_hosts(hosts: list[str]) -> str:
    """The certificates of many hosts as JSON; its notes say what is wrong with a host."""

    def ask(host: str) -> tuple[list[Found], list[str]]:
        own = Report()
        rows, found = ask_host(host, own)
        return rows, [own.finding, *(one.text for one in found)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, hosts))
    rows = sorted((row for found, _ in answers for row in found), key=lambda row: row.certificate.not_after)
    return as_json(rows, "", [note for _, notes in answers for note in notes if note])


def as_json(rows: list[Found], finding: str, notes: list[str]) -> str:
    """The certificates, the first to end before the others; `ends` is in seconds since 1970."""
    certificates = [
        {
            "where": one.path,
            "user": one.user,
            "subject": one.certificate.subject,
            "names": list(one.certificate.names[:10]),
            "issuer": one.certificate.issuer,
            "ends": one.certificate.not_after,
        }
        for one in rows[:_MOST_AS_JSON]
    ]
    whole = {"count": len(rows), "certificates": certificates, "finding": finding, "notes": notes[:20]}
    return json.dumps(whole)


def nothing(report: Report, path: str | None, search: Search) -> None:
    """Say that there is no certificate, or that none can be seen."""
    where = path or "a configuration of a service or the usual places"
    absent = path and kind_of(Path(path)) == "absent"
    report.finding = f"{where} does not exist." if absent else f"No certificate was found in {where}."
    if search.unread:
        hidden = plural(len(search.unread), "place")
        report.finding = f"No certificate can be seen in {where}: {hidden} could not be read."
        if path and len(search.unread) == 1:
            report.finding = search.unread[0]
    report.found_nothing = bool(path) and not search.unread


def make(report: Report) -> None:
    parser = option_parser(str(__doc__))
    parser.add_argument("--path", help="a certificate file, or a folder to search")
    parser.add_argument("--host", help="a host, optionally with a port")
    parser.add_argument("--json", action="store_true", help="print the certificates as JSON")
    parser.add_argument("--hosts", type=json.loads, help="a JSON list of hosts; prints JSON")
    asked = parser.parse_args()
    Report.full = asked.full
    if asked.path is not None and not asked.path.startswith("/"):
        refuse(f"--path={asked.path} is not an absolute path.")
    if asked.hosts:
        sys.stdout.write(of_hosts(asked.hosts) + "\n")
        raise SystemExit(0)
    found: list[Finding] = []
    search = Search()
    if asked.path is not None:  # before a host: it was named too, but the certificates are there
        path = Path(asked.path)
        if kind_of(path) == "folder":
            search.walk(path, named=True, until=time.monotonic() + _WALK_S)
        else:
            search.add(path, named=True)
    elif asked.host is not None:
        search.found, found = ask_host(asked.host, report)
    else:
        search = local(_WALK_S)
    rows = sorted(search.found, key=lambda row: row.certificate.not_after)
    for sentence in search.unread:
        report.note(sentence)
    unfound = list(missing(search))
    found += [*faults(rows), *unfound]
    if rows or found:
        look = f"openssl x509 -noout -dates -subject -in {rows[0].path.partition(' (')[0]}" if rows else ""
        tell(
            report,
            found,
            good(rows) if rows else "",
            look="" if asked.host and not asked.path else look,
            own=ASK,
        )
    elif not report.finding:
        nothing(report, asked.path, search)
    if asked.json:
        notes = [*search.unread, *(one.text for one in unfound)]
        sys.stdout.write(as_json(rows, "" if rows else report.finding, notes) + "\n")
        raise SystemExit(0)
    report.table(
        "Certificates",
        ("Expires", "When", "Subject", "Names", "Issuer", "Where"),
        [
            (
                clock.show(one.certificate.not_after)[:10],
                when(one.certificate).replace("expires ", ""),
                one.certificate.subject,
                ", ".join(one.certificate.names[:3]),
                one.certificate.issuer,
                f"{one.path} ({one.user})" if one.user else one.path,
            )
            for one in rows
        ],
    )


run(make)
