"""Says when TLS certificates expire: in files, in the usual places, or on a host (that needs the network)."""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
from report import Report, options, plural, refuse, run
from x509_dates import Certificate, certificates, decode

_PLACES = (
    "/etc/letsencrypt/live",
    "/etc/nginx",
    "/etc/apache2",
    "/etc/httpd",
    "/etc/pki/tls/certs",
    "/etc/pki/nginx",
    "/etc/ssl/private",
    "/etc/ssl/localcerts",
    "/etc/haproxy",
    "/etc/dovecot",
    "/etc/postfix",
    "/etc/exim4",
    "/etc/mysql",
    "/etc/postgresql",
    "/etc/openvpn",
    "/etc/ldap",
    "/etc/openldap",
    "/etc/cockpit/ws-certs.d",
    "/etc/kubernetes/pki",
    "/etc/docker",
    "/etc/caddy",
    "/etc/traefik",
    "/var/lib/caddy",
    "/etc/mosquitto",
    "/etc/rabbitmq",
    "/etc/grafana",
    "/etc/gitlab/ssl",
    "/etc/stunnel",
    "/etc/lighttpd",
    "/etc/acme",
    "/var/lib/dehydrated/certs",
    "/etc/ssl/certs/ssl-cert-snakeoil.pem",
)
_STORES = ("ca-bundle", "ca-certificates", "tls-ca-bundle", "cacert")
"""Trust stores, which hold other people's certificates."""
_ENDINGS = (".pem", ".crt", ".cer", ".cert", ".der")
_MOST_BYTES, _MOST_FILES, _WALK_S = 1 << 20, 5000, 12.0
_TIMEOUT_S = 8.0
_ROWS, _SOON_DAYS = 60, 30


def files_below(path: Path, report: Report) -> list[Path]:
    """Files below a folder that may be certificates, in order; the walk is bounded."""
    ends, found = time.monotonic() + _WALK_S, []

    def unreadable(err: OSError) -> None:
        report.note(f"{err.filename} cannot be read: {err.strerror}.")

    for folder, folders, names in os.walk(path, onerror=unreadable):
        folders.sort()
        found += [Path(folder, name) for name in sorted(names) if name.lower().endswith(_ENDINGS)]
        if len(found) > _MOST_FILES or time.monotonic() > ends:
            report.note(f"The search below {path} was stopped after {plural(len(found), 'file')}.")
            break
    return found


def read_file(path: Path, report: Report) -> list[Certificate]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return []
        return certificates(path.read_bytes())
    except OSError as err:
        report.note(f"{path} cannot be read: {err.strerror}.")
        return []


def local(places: list[str], report: Report, named: bool) -> list[tuple[str, Certificate]]:
    """The first certificate of each file (the rest are its chain), once for each real file."""
    rows, seen = [], set()
    for place in places:
        path = Path(place)
        for file in files_below(path, report) if path.is_dir() else [path]:
            real = os.path.realpath(file)
            if real in seen or (not named and any(word in file.name for word in _STORES)):
                continue
            seen.add(real)
            found = read_file(file, report)
            for number, certificate in enumerate(found):
                if number == 0 or certificate.days_left < 0:
                    rows.append((str(file) if number == 0 else f"{file} (number {number + 1})", certificate))
    return rows


def exists(place: str) -> bool:
    try:
        return bool(Path(place).lstat())
    except OSError:
        return False


def from_host(host: str, port: int, report: Report) -> list[tuple[str, Certificate]]:
    """The certificate that a host presents, trusted or not; a note gives the result of the verification."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # reading a certificate does not trust it
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain:
        starttls(plain, port)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            der = secure.getpeercert(binary_form=True)
            report.text("Connection", f"{secure.version()} with {(secure.cipher() or ('?',))[0]}.")
    return [(f"{host}:{port}", decode(der))] if der else []


def starttls(plain: socket.socket, port: int) -> None:
    """SMTP on 25 and 587 begins in the clear (RFC 3207)."""
    if port in (25, 587):
        for line in (b"", b"EHLO localhost\r\n", b"STARTTLS\r\n"):
            if line:
                plain.sendall(line)
            plain.recv(4096)


def trust(host: str, port: int) -> str:
    if port in (25, 587):
        return ""
    try:
        plain = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        with plain, ssl.create_default_context().wrap_socket(plain, server_hostname=host):
            return "This machine trusts it for this name."
    except ssl.SSLCertVerificationError as err:
        return f"This machine does not trust it: {err.verify_message or err.reason}."
    except OSError:
        return ""


def words(certificate: Certificate) -> str:
    left = certificate.days_left
    if certificate.not_after < time.time():
        return f"expired {plural(-left - 1, 'day')} ago"
    return f"expires in {plural(left, 'day')}"


def finding(rows: list[tuple[str, Certificate]]) -> str:
    where, first = min(rows, key=lambda row: row[1].not_after)
    when = f"{words(first)} ({clock.show(first.not_after)}): {first.subject} in {where}"
    if len(rows) == 1:
        return f"The certificate {when}."
    expired = sum(certificate.days_left < 0 for _, certificate in rows)
    if expired:
        return (
            f"{expired} of {len(rows)} certificates {'has' if expired == 1 else 'have'} "
            f"expired; the oldest {when}."
        )
    soon = sum(certificate.days_left < _SOON_DAYS for _, certificate in rows)
    lead = (
        f"{soon} of {len(rows)} certificates expire within {_SOON_DAYS} days"
        if soon
        else f"None of {len(rows)} certificates expires soon"
    )
    return f"{lead}; the first {when}."


def ask_host(text: str, report: Report) -> list[tuple[str, Certificate]]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(\d{1,5}))?", text)
    port = int(match[2] or 443) if match else 0
    if match is None or not 0 < port < 65536:
        refuse(f"--host={text} is not a host, optionally with a port.")
        return []
    host = match[1].strip("[]")
    try:
        rows = from_host(host, port, report)
    except (OSError, ValueError) as err:
        report.finding = f"The certificate of {host}:{port} could not be fetched: {err}."
        return []
    sentence = trust(host, port)
    if sentence:
        report.text("Trust", sentence)
    return rows


def make(report: Report) -> None:
    asked = options(
        str(__doc__), path="a certificate file, or a folder to search", host="a host, optionally with a port"
    )
    if asked.path is not None and not asked.path.startswith("/"):
        refuse(f"--path={asked.path} is not an absolute path.")
    if asked.host is not None:
        rows = ask_host(asked.host, report)
    elif asked.path is not None:
        rows = local([asked.path], report, True)
    else:
        rows = local([place for place in _PLACES if exists(place)], report, False)
    if rows:
        report.finding = finding(rows)
    elif not report.finding:
        report.finding = f"No certificate was found in {asked.path or 'the usual places'}."
    rows.sort(key=lambda row: row[1].not_after)
    report.table(
        "Certificates",
        ("Expires", "Days left", "Subject", "Names", "Issuer", "Where"),
        [
            (
                clock.show(one.not_after),
                one.days_left,
                one.subject,
                ", ".join(one.names[:4]),
                one.issuer,
                where,
            )
            for where, one in rows[:_ROWS]
        ],
    )
    if len(rows) > _ROWS:
        report.note(f"{len(rows) - _ROWS} more certificates, which expire later.")


run(make)
