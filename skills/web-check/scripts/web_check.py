"""Says whether the web servers here run and answer, and whether their configuration is good."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas.servers import WEB_SERVERS, Kind
from report import Report, clean, options, refuse, run
from server_report import report_on, tested

_REQUEST = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: lightagentd\r\nConnection: close\r\n\r\n"
_TESTS = {
    "nginx": ("nginx", "-t", "-q"),
    "Apache": ("apache2ctl", "configtest"),
    "HAProxy": ("haproxy", "-c", "-q", "-f", "/etc/haproxy/haproxy.cfg"),
    "Caddy": ("caddy", "validate", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"),
    "lighttpd": ("lighttpd", "-tt", "-f", "/etc/lighttpd/lighttpd.conf"),
}


def hello(plain: socket.socket, kind: Kind) -> str:
    """The status line for `/`; over TLS where the port is one for it."""
    stream = plain
    if plain.family != socket.AF_UNIX and plain.getpeername()[1] in (443, 8443):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # whether it answers, not whether it is trusted
        stream = context.wrap_socket(plain, server_hostname="localhost")
    stream.sendall(_REQUEST)
    data = stream.recv(400)
    if not data:
        raise ConnectionError("it closed the connection without an answer")
    if not data.startswith(b"HTTP/"):
        return f"{kind.name} without HTTP"
    return clean(data.split(b"\r\n")[0].decode("utf-8", "replace"))


def make(report: Report) -> None:
    asked = options(str(__doc__), unit="only this unit")
    if asked.unit is not None and (asked.unit.startswith("-") or not asked.unit.isprintable()):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    found = report_on(report, WEB_SERVERS, "web server", asked.unit, hello)
    for kind in dict.fromkeys(one.kind.name for one in found):
        if kind in _TESTS:
            bad = tested(report, _TESTS[kind], f"Configuration of {kind}")
            if bad:
                report.finding = f"The configuration of {kind} is bad: {bad.rstrip('.')}. {report.finding}"
                report.next = " ".join(_TESTS[kind])


run(make)
