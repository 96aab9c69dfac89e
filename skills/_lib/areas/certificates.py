"""Certificates that services use or that lie in the usual folders, and whether they are good."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import clock
import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import read
from report import span
from x509_dates import Certificate, certificates

SOON_S = 14 * 86400.0
"""A renewal by ACME begins 30 days before the end; what has less than this has failed to renew."""
FOLDERS = (
    "/etc/letsencrypt/live",
    "/etc/ssl/private",
    "/etc/ssl/localcerts",
    "/etc/pki/tls/private",
    "/etc/pki/nginx",
    "/etc/nginx",
    "/etc/apache2",
    "/etc/httpd",
    "/etc/haproxy",
    "/etc/dovecot",
    "/etc/postfix",
    "/etc/exim4",
    "/etc/mysql",
    "/etc/postgresql",
    "/etc/openvpn",
    "/etc/ldap",
    "/etc/cockpit/ws-certs.d",
    "/etc/kubernetes/pki",
    "/etc/docker",
    "/etc/caddy",
    "/etc/traefik",
    "/etc/mosquitto",
    "/etc/rabbitmq",
    "/etc/grafana",
    "/etc/stunnel",
    "/etc/lighttpd",
    "/etc/acme",
    "/var/lib/caddy",
    "/var/lib/dehydrated/certs",
)
CONFIGURATIONS = {
    "nginx": ("/etc/nginx", r"^\s*ssl_certificate\s+([^\s;]+)"),
    "apache": ("/etc/apache2", r"^\s*SSLCertificateFile\s+\"?([^\s\"]+)"),
    "httpd": ("/etc/httpd", r"^\s*SSLCertificateFile\s+\"?([^\s\"]+)"),
    "haproxy": ("/etc/haproxy", r"\bcrt\s+(/\S+)"),
    "postfix": ("/etc/postfix/main.cf", r"^\s*smtpd?_tls_(?:eccert|cert)_file\s*=\s*(\S+)"),
    "dovecot": ("/etc/dovecot", r"^\s*ssl_(?:server_)?cert(?:_file)?\s*=\s*<?\s*(\S+)"),
    "postgresql": ("/etc/postgresql", r"^\s*ssl_cert_file\s*=\s*'([^']+)'"),
    "mysql": ("/etc/mysql", r"^\s*ssl[_-]cert\s*=\s*(\S+)"),
    "lighttpd": ("/etc/lighttpd", r"^\s*ssl\.pemfile\s*=\s*\"([^\"]+)\""),
    "stunnel": ("/etc/stunnel", r"^\s*cert\s*=\s*(\S+)"),
    "mosquitto": ("/etc/mosquitto", r"^\s*certfile\s+(\S+)"),
    "openvpn": ("/etc/openvpn", r"^\s*cert\s+(\S+)"),
    "exim": ("/etc/exim4", r"^\s*(?:MAIN_TLS_CERTIFICATE|tls_certificate)\s*=\s*(/\S+)"),
}
_STORES = ("ca-bundle", "ca-certificates", "tls-ca-bundle", "cacert")
"""Trust stores, which hold other people's certificates."""
_AUTHORITIES = ("/etc/ssl/certs", "/etc/pki/ca-trust", "/usr/share/ca-certificates", "/etc/ca-certificates")
"""Folders of them; what is a file of its own in the first, and no link, belongs to this machine."""
_ENDINGS = (".pem", ".crt", ".cer", ".cert", ".der")
_MOST_BYTES, _MOST_FILES = 1 << 20, 5000
ASK = "which certificates expire soon"


@dataclass(frozen=True)
class Found:
    """The first certificate of a file, or a later one that is no longer good."""

    path: str
    certificate: Certificate
    user: str = ""
    """The service whose configuration names the file."""
    issuers: tuple[str, ...] = ()
    """The subjects of the certificates behind it: its chain."""

    @property
    def is_used(self) -> bool:
        """Whether somebody presents it: a host, a service, or the links of certbot."""
        return bool(self.user) or not self.path.startswith("/") or "/live/" in self.path


@dataclass
class Search:
    """What a search found and what it could not read."""

    found: list[Found] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    """Files that a configuration names and that do not exist, with the service."""
    _seen: set[str] = field(default_factory=set)

    def add(self, path: Path, *, user: str = "", named: bool = False) -> None:
        """Read one file; a second name of the same file counts once."""
        real = os.path.realpath(path)
        if real in self._seen or (not named and any(word in path.name for word in _STORES)):
            return
        self._seen.add(real)
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                if user and not path.exists():
                    self.missing.append((str(path), user))
                return
            read_ones = certificates(path.read_bytes())
        except OSError as err:
            self.unread.append(f"{path} cannot be read: {err.strerror}.")
            return
        issuers = tuple(one.subject for one in read_ones[1:])
        for number, one in enumerate(read_ones):
            if number == 0 or one.not_after < time.time():
                where = str(path) if number == 0 else f"{path} (number {number + 1})"
                self.found.append(Found(where, one, user, issuers))

    def walk(self, folder: Path, *, named: bool = False, until: float = 0.0) -> None:
        """Read every file below a folder that may be a certificate, until this monotonic time."""

        def unreadable(err: OSError) -> None:
            self.unread.append(f"{err.filename} cannot be read: {err.strerror}.")

        count = 0
        for where, folders, names in os.walk(folder, onerror=unreadable):
            folders.sort()
            trusts = any(os.path.realpath(where).startswith(place) for place in _AUTHORITIES)
            if trusts:
                self.unread.append(f"Certificates of authorities in {where} are not listed.")
                names = [
                    name for name in names if where == _AUTHORITIES[0] and not Path(where, name).is_symlink()
                ]
            for name in sorted(names):
                if trusts and any(word in name for word in _STORES):
                    continue
                if name.lower().endswith(_ENDINGS):
                    count += 1
                    self.add(Path(where, name), named=named)
            if count > _MOST_FILES or (until and time.monotonic() > until):
                self.unread.append(f"The search below {folder} ended early, after {count} files.")
                return


def named_in(text: str, pattern: str) -> list[str]:
    """The absolute paths that a configuration names; variables are left out."""
    return [path for path in re.findall(pattern, text, re.M) if path.startswith("/") and "$" not in path]


def in_configurations() -> Iterator[tuple[str, str]]:
    """Every certificate that a configuration names, and its service."""
    for user, (place, pattern) in CONFIGURATIONS.items():
        base = Path(place)
        files: Iterable[Path] = base.rglob("*") if base.is_dir() else [base]
        for file in sorted(files)[:500]:
            if kind_of(file) == "file" and file.suffix not in (
                *_ENDINGS,
                ".key",
                ".dpkg-dist",
                ".dpkg-old",
                ".bak",
            ):
                if "available" in file.parent.name:
                    continue
                for path in named_in(read(str(file)) or "", pattern):
                    yield path, user


def kind_of(path: Path) -> str:
    """`file`, `folder`, `absent`, or `closed` where a folder above it may not be entered."""
    try:
        return "folder" if path.is_dir() else "file" if path.is_file() else "absent"
    except OSError:
        return "closed"


def _is_of_authorities(path: Path) -> bool:
    """Whether it is a trust store, or lies in one."""
    real = os.path.realpath(path)
    return any(word in path.name for word in _STORES) or real.startswith(_AUTHORITIES[1:])


def on_command_lines() -> Iterator[tuple[str, str]]:
    """Every certificate that the command of a running process names, and its unit or its name.

    Those in containers are left out: their paths are not this machine's.
    """
    for pid in procfs.pids():
        words = procfs.proc(pid, "cmdline").split("\0")
        paths = [word[word.find("/") :] for word in words if "/" in word and word.endswith(_ENDINGS)]
        unit = procfs.unit_of(pid) if paths else ""
        for path in paths if procfs.link(pid, "root") in ("", "/") and not unit.endswith(".scope") else ():
            if not _is_of_authorities(Path(path)) and kind_of(Path(path)) != "absent":
                yield path, unit or procfs.name(pid)


def local(until_s: float) -> Search:
    """The certificates that are in use here or lie in the usual folders."""
    search, until = Search(), time.monotonic() + until_s
    for path, user in (*in_configurations(), *on_command_lines()):
        if kind_of(Path(path)) == "folder":
            search.walk(Path(path), named=True, until=until)
        else:
            search.add(Path(path), user=user, named=True)
    for folder in FOLDERS:
        if os.path.lexists(folder):  # what may not be looked into is told
            search.walk(Path(folder), until=until)
    return search


def when(certificate: Certificate) -> str:
    """`expired 40 days ago`, `expires in 3 days`, `is not valid before 2030-01-01 00:00:00`."""
    now = time.time()
    if certificate.not_before > now:
        return f"is not valid before {clock.show(certificate.not_before)}"
    if certificate.not_after < now:
        return f"expired {span(now - certificate.not_after)} ago"
    return f"expires in {span(certificate.not_after - now)}"


def faults(found: Iterable[Found]) -> Iterator[Finding]:
    now = time.time()
    for one in found:
        cert = one.certificate
        if cert.not_before <= now and cert.not_after > now + SOON_S:
            continue
        is_bad = cert.not_after < now or cert.not_before > now
        used = f", which {one.user} uses," if one.user else ""
        yield Finding(
            f"The certificate of {cert.subject} in {one.path}{used} {when(cert)}.",
            ASK,
            since=cert.not_after if cert.not_after < now else None,
            severity=PROBLEM if is_bad and one.is_used else WARNING,
        )


def missing(search: Search) -> Iterator[Finding]:
    """Files that a configuration names and that do not exist."""
    for path, user in search.missing:
        if "snakeoil" not in path:  # the default of packages, made when it is wanted
            text = f"The configuration of {user} names {path}, which does not exist."
            yield Finding(text, ASK, severity=WARNING)


@check("certificates.validity", "certificates of services and in the usual folders")
def validity() -> Iterator[Finding]:
    search = local(1.5)
    yield from faults(search.found)
    yield from missing(search)
    unread = [sentence for sentence in search.unread if not sentence.startswith("/etc/ssl/private ")]
    if unread:  # that folder is for keys, and closed on every machine
        raise CannotSee(" ".join(unread[:3]))
