"""Says whether the databases here run and answer, and since when. Only observes."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas.servers import DATABASES, Kind
from report import Report, clean, options, refuse, run
from server_report import report_on

_SSL_REQUEST = struct.pack(">2I", 8, 80877103)
"""PostgreSQL answers it with one byte, before any login."""
_HELLO = {
    "PostgreSQL": _SSL_REQUEST,
    "Redis": b"PING\r\n",
    "memcached": b"version\r\n",
    "Elasticsearch": b"HEAD / HTTP/1.0\r\n\r\n",
    "InfluxDB": b"HEAD /ping HTTP/1.0\r\n\r\n",
    "ClickHouse": b"HEAD /ping HTTP/1.0\r\n\r\n",
    "CouchDB": b"HEAD / HTTP/1.0\r\n\r\n",
    "etcd": b"GET /health HTTP/1.0\r\n\r\n",
}
"""What is said first; MariaDB greets by itself, and for others a connection has to do."""


def hello(plain: socket.socket, kind: Kind) -> str:
    said = _HELLO.get(kind.name)
    if said is None and not kind.name.startswith("Maria"):
        return "a connection is taken"
    if said:
        plain.sendall(said)
    data = plain.recv(200)
    if not data:
        raise ConnectionError("it closed the connection")
    if kind.name == "PostgreSQL":
        return "the hello" if data in (b"S", b"N") else "an error"
    if kind.name.startswith("Maria"):
        version = data[5:].split(b"\0")[0].decode("utf-8", "replace")
        if data[4:5] == b"\xff":
            raise ConnectionError(clean(data[7:].decode("utf-8", "replace")))
        return f"as {clean(version)}"
    return clean(data.split(b"\r\n")[0].decode("utf-8", "replace"))


def make(report: Report) -> None:
    asked = options(str(__doc__), unit="only this unit")
    if asked.unit is not None and (asked.unit.startswith("-") or not asked.unit.isprintable()):
        refuse(f"--unit={asked.unit} is not the name of a unit.")
    report_on(report, DATABASES, "database", asked.unit, hello)


run(make)
