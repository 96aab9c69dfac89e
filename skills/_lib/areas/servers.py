"""Databases and web servers: their units, what they listen on, and whether connections wait.

A worker that observes opens no connection, so what is judged is the kernel's view: which sockets listen and
how many connections wait for the program to take them (ss(8)).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import clock
import procfs
from checks import WARNING, Finding, check
from commands import journal, message, read, run, stamp
from report import plural, shorten, span
from unit_states import Unit, units

_PATIENCE_S = 30.0
"""How long a service may take from its start until it listens."""
_SAMPLE_S = 0.4
_ACCEPTING = 0x10000
"""__SO_ACCEPTCON in the flags of /proc/net/unix."""


@dataclass(frozen=True)
class Kind:
    """A program that serves: its units, the port without a configuration, and where it is configured."""

    name: str
    units: tuple[str, ...]
    ports: tuple[int, ...]
    files: tuple[str, ...] = ()
    pattern: str = ""
    """Of the port in those files."""
    sockets: str = ""
    """Of the path of its local socket."""
    complaints: str = ""
    """Of lines of its log that say that it turns people away."""


DATABASES = (
    Kind(
        "PostgreSQL",
        ("postgresql*.service",),
        (5432,),
        ("/etc/postgresql/*/*/postgresql.conf", "/var/lib/pgsql/*/data/postgresql.conf"),
        r"^\s*port\s*=\s*(\d+)",
        r"\.s\.PGSQL\.\d+$",
        r"too many clients|remaining connection slots|could not write|No space left|PANIC:",
    ),
    Kind(
        "MariaDB or MySQL",
        ("mariadb*.service", "mysql.service", "mysqld.service"),
        (3306,),
        ("/etc/mysql/*.cnf", "/etc/mysql/*/*.cnf", "/etc/my.cnf", "/etc/my.cnf.d/*.cnf"),
        r"^\s*port\s*=\s*(\d+)",
        r"(mysqld?|mysqld/mysqld|mariadb)\.sock$",
        r"Too many connections|is full|marked as crashed|Got error \d+ .*disk|Out of memory",
    ),
    Kind(
        "Redis",
        ("redis*.service", "valkey*.service"),
        (6379,),
        ("/etc/redis/*.conf", "/etc/redis.conf", "/etc/valkey/*.conf"),
        r"^\s*port\s+(\d+)",
        r"(redis|valkey)[^/]*\.sock$",
        r"MISCONF|OOM command|Can't save in background|Failed opening|max number of clients",
    ),
    Kind(
        "MongoDB",
        ("mongod.service", "mongodb.service"),
        (27017,),
        ("/etc/mongod.conf",),
        r"^\s*port:\s*(\d+)",
    ),
    Kind("memcached", ("memcached*.service",), (11211,), ("/etc/memcached.conf",), r"^\s*-p\s+(\d+)"),
    Kind("Elasticsearch", ("elasticsearch.service", "opensearch.service"), (9200,)),
    Kind("InfluxDB", ("influxdb.service", "influxd.service"), (8086,)),
    Kind("ClickHouse", ("clickhouse-server.service",), (8123, 9000)),
    Kind("CouchDB", ("couchdb.service",), (5984,)),
    Kind("etcd", ("etcd.service",), (2379,)),
)
WEB_SERVERS = (
    Kind(
        "nginx",
        ("nginx.service", "openresty.service"),
        (80, 443),
        ("/etc/nginx/nginx.conf", "/etc/nginx/conf.d/*.conf", "/etc/nginx/sites-enabled/*"),
        r"^\s*listen\s+(?:[^\s;]*:)?(\d+)\b",
        "",
        r"worker_connections are not enough|Too many open files|no live upstreams|No space left",
    ),
    Kind(
        "Apache",
        ("apache2*.service", "httpd.service"),
        (80, 443),
        ("/etc/apache2/ports.conf", "/etc/httpd/conf/httpd.conf", "/etc/httpd/conf.d/*.conf"),
        r"^\s*Listen\s+(?:\S*:)?(\d+)\b",
        "",
        r"reached MaxRequestWorkers|scoreboard is full|No space left",
    ),
    Kind("Caddy", ("caddy.service",), (80, 443), ("/etc/caddy/Caddyfile",), r"^\s*\S*:(\d+)\s*\{"),
    Kind(
        "HAProxy",
        ("haproxy.service",),
        (),
        ("/etc/haproxy/haproxy.cfg",),
        r"^\s*bind\s+\S*:(\d+)\b",
        "",
        r"has no server available|is DOWN",
    ),
    Kind(
        "lighttpd",
        ("lighttpd.service",),
        (80,),
        ("/etc/lighttpd/lighttpd.conf",),
        r"^\s*server\.port\s*=\s*(\d+)",
    ),
    Kind("Traefik", ("traefik.service",), (80, 443)),
    Kind("Varnish", ("varnish.service",), (6081,)),
    Kind(
        "Tomcat",
        ("tomcat*.service",),
        (8080,),
        ("/etc/tomcat*/server.xml", "/var/lib/tomcat*/conf/server.xml"),
        r"<Connector port=\"(\d+)\"",
    ),
)


@dataclass(frozen=True)
class Listener:
    """A socket that listens, with the connections that wait to be accepted; `most` is 0 where not known."""

    where: str
    port: int
    waiting: int
    most: int
    pids: tuple[int, ...] = ()

    @property
    def is_full(self) -> bool:
        return 0 < self.most < self.waiting + 1


@dataclass
class Server:
    """One unit of a kind, and what it listens on."""

    kind: Kind
    unit: Unit
    listeners: list[Listener] = field(default_factory=list)
    is_sure: bool = False
    """Whether the listeners are known to be this unit's, not only at its port."""
    expected: tuple[int, ...] = ()
    should_listen: bool = False
    """Whether it is certain that it should listen on one of these."""
    holder: str = ""
    """Who else listens on a port that this server should have."""

    @property
    def serves(self) -> bool:
        """Whether the unit has a program of its own, unlike postgresql.service, which only groups others."""
        return self.unit.is_running and self.unit.sub != "exited"

    @property
    def at(self) -> str:
        return ", ".join(dict.fromkeys(one.where for one in self.listeners[:4]))


def listeners() -> tuple[list[Listener], str]:
    """Every TCP and local socket that listens, and what could not be seen."""
    waits: dict[tuple[str, int], tuple[int, int]] = {}
    answer = run("ss", "-Hltn", timeout_s=2)
    for line in answer.stdout.splitlines():
        columns = line.split()
        if len(columns) >= 5 and columns[3].rpartition(":")[2].isdigit():
            address, _, port = columns[3].rpartition(":")
            waits[(address.strip("[]").partition("%")[0], int(port))] = (int(columns[1]), int(columns[2]))
    owners, hidden = procfs.socket_owners()
    found = []
    for one in procfs.sockets():
        if one.is_listening and one.protocol.startswith("tcp"):
            names = (one.address, "*" if one.address in ("::", "0.0.0.0") else "")  # noqa: S104  # compared
            waiting, most = next(
                (waits[(name, one.port)] for name in names if (name, one.port) in waits), (0, 0)
            )
            where = f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}"
            found.append(Listener(where, one.port, waiting, most, tuple(owners.get(one.inode, ()))))
    for line in (read("/proc/net/unix") or "").splitlines()[1:]:
        columns = line.split(maxsplit=7)
        if len(columns) == 8 and int(columns[3], 16) & _ACCEPTING:
            found.append(Listener(columns[7], 0, 0, 0, tuple(owners.get(int(columns[6]), ()))))
    return found, "" if not hidden else f"The sockets of {plural(hidden, 'process')} of other users."


def configured_ports(kind: Kind, unit: str) -> tuple[tuple[int, ...], bool]:
    """The ports that the configuration names, else the usual ones, and whether one can rely on that."""
    found: list[int] = []
    texts = []
    cluster = re.fullmatch(r"postgresql@(\S+?)-(\S+)\.service", unit)
    for glob in kind.files:
        for file in sorted(Path("/").glob(glob[1:]))[:100]:
            if cluster and f"/{cluster[1]}/{cluster[2]}/" not in str(file):
                continue
            texts.append(read(str(file)))
            found += [int(port) for port in re.findall(kind.pattern, texts[-1] or "", re.M)]
    if found:
        return tuple(dict.fromkeys(port for port in found if port)), None not in texts
    return kind.ports, bool(texts) and None not in texts and bool(kind.sockets)


def servers(kinds: tuple[Kind, ...]) -> tuple[list[Server], str]:
    """Every server of these kinds that runs or should, and what could not be seen."""
    by_pattern = units(*(pattern for kind in kinds for pattern in kind.units))
    all_listeners, hidden = listeners() if by_pattern else ([], "")
    found = []
    for kind in kinds:
        for unit in by_pattern:
            if not any(Path(unit.name).match(pattern) for pattern in kind.units):
                continue
            if not (unit.is_running or unit.is_wanted or unit.active == "activating"):
                continue
            ports, is_known = configured_ports(kind, unit.name)
            one = Server(kind, unit, expected=ports)
            own = [row for row in all_listeners if unit.name in {procfs.unit_of(pid) for pid in row.pids}]
            one.is_sure = bool(own) or not hidden
            one.should_listen = bool(ports) and (is_known or one.is_sure)
            holders = [pid for row in all_listeners if row.port in one.expected for pid in row.pids]
            if holders and not own:
                one.holder = f"{procfs.name(holders[0])} (pid {holders[0]}) of {procfs.unit_of(holders[0])}"
            one.listeners = own or [
                row
                for row in all_listeners
                if not row.pids
                and (row.port in one.expected or (kind.sockets and re.search(kind.sockets, row.where)))
            ]
            found.append(one)
    return found, hidden


def _pids(unit: Unit) -> list[int]:
    """The processes of a unit, of which its main process is one."""
    files = Path("/sys/fs/cgroup").glob(f"system.slice/**/{unit.name}/cgroup.procs")
    found = {int(word) for file in files for word in (read(str(file)) or "").split()}
    return sorted(found | ({unit.pid} if unit.pid else set()))


def stopped_processes(unit: Unit) -> list[int]:
    """The processes of a unit that a signal has stopped, so that they answer nobody."""
    return [pid for pid in _pids(unit) if (seen := procfs.stat(pid)) is not None and seen.state == "T"]


def _spent(unit: Unit) -> float:
    """The seconds of processor time that the processes of a unit have used."""
    return sum(seen.cpu_s for pid in _pids(unit) if (seen := procfs.stat(pid)) is not None)


def waits(server: Server) -> Listener | None:
    """A listener whose connections nobody takes: they stay while the program uses no processor time."""
    first = {row.where: row for row in server.listeners if row.waiting}
    if not first:
        return None
    before = _spent(server.unit)
    time.sleep(_SAMPLE_S)
    if _spent(server.unit) > before:
        return None
    later = {row.where: row for row in listeners()[0]}
    return next(
        (row for where, row in first.items() if where in later and later[where].waiting >= row.waiting), None
    )


def complaints(server: Server, since: str = "-1h") -> list[tuple[float, str]]:
    """Lines of the server's journal that say that it turns people away."""
    if not server.kind.complaints:
        return []
    entries, _ = journal(f"--since={since}", f"--unit={server.unit.name}", limit=500, timeout_s=2)
    pattern = re.compile(server.kind.complaints)
    return [(stamp(one), message(one)) for one in entries if pattern.search(message(one))]


def down(found: list[Server]) -> Iterator[Finding]:
    """Servers whose unit does not run though it should."""
    for one in found:
        unit = one.unit
        if unit.is_running or not unit.has_met_conditions:
            continue
        since = f" since {clock.show(unit.since)}" if unit.since else ""
        state = "failed" if unit.active == "failed" else f"is {unit.active} ({unit.sub})"
        yield Finding(
            f"{one.kind.name} does not run: {unit.name} {state}{since}.",
            f"why is {unit.name} down",
            unit.since,
        )


def faults(found: list[Server]) -> Iterator[Finding]:
    """Servers that run and yet serve nobody."""
    for one in found:
        unit = one.unit
        if not one.serves:
            continue
        ran_s = time.time() - (unit.started or 0)
        stopped = stopped_processes(unit)
        full = [row for row in one.listeners if row.is_full]
        if stopped:
            yield Finding(
                f"{one.kind.name} does not answer: {plural(len(stopped), 'process')} of {unit.name} "
                f"({', '.join(f'pid {pid}' for pid in stopped[:3])}) {'is' if len(stopped) == 1 else 'are'} "
                "stopped by a signal.",
                f"what is process {stopped[0]}",
                unit.since,
            )
        elif full:
            row = full[0]
            yield Finding(
                f"{one.kind.name} takes no connection: {row.waiting} wait at {row.where}, with room for "
                f"{row.most} ({unit.name}).",
                f"errors of {unit.name}",
            )
        elif (idle := waits(one)) is not None:
            yield Finding(
                f"{one.kind.name} ({unit.name}) does not answer: {plural(idle.waiting, 'connection')} at "
                f"{idle.where} {'waits' if idle.waiting == 1 else 'wait'} and nobody takes "
                f"{'it' if idle.waiting == 1 else 'them'}.",
                f"errors of {unit.name}",
                unit.since,
            )
        elif not one.listeners and one.should_listen and ran_s > _PATIENCE_S:
            ports = ", ".join(str(port) for port in one.expected)
            yield Finding(
                f"{unit.name} runs for {span(ran_s)}, but {one.holder or 'nothing'} listens on port {ports}.",
                f"errors of {unit.name}",
                unit.since,
            )
        said = complaints(one)
        if said:
            yield Finding(
                f"{one.kind.name} ({unit.name}) complained {plural(len(said), 'time')} in the last hour: "
                f"{shorten(said[-1][1]).rstrip('.')}.",
                f"errors of {unit.name}",
                said[0][0],
                WARNING,
            )


@check("servers.databases", "databases that run but serve nobody")
def databases() -> Iterator[Finding]:
    yield from faults(servers(DATABASES)[0])


@check("servers.web", "web servers that run but serve nobody")
def web() -> Iterator[Finding]:
    yield from faults(servers(WEB_SERVERS)[0])
