"""The files that name resolution goes by, and systemd-resolved.

See hosts(5), resolv.conf(5), nsswitch.conf(5).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import read
from report import shorten
from unit_states import units

from areas.network import routes

_MOST_SERVERS = 3
"""glibc's MAXNS."""
_KEYWORDS = ("nameserver", "domain", "search", "sortlist", "options")
_STUB = ("127.0.0.53", "127.0.0.54")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_BUILT_IN = ("files", "dns", "compat")
"""Services that are in glibc itself; the others are a libnss_NAME.so.2 each (nss(5))."""
_LIBRARIES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/lib/*-linux-*",
    "/usr/lib/*-linux-*",
    "/usr/local/lib",
)
_SANDBOX = "/run/lightagent-scratch"
ASK = "check name resolution"


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a file; line 0 is about the whole file."""

    file: str
    line: int
    text: str
    is_problem: bool = True
    is_usual: bool = False
    """Whether healthy machines have it, so that only who asks is told."""

    @property
    def sentence(self) -> str:
        return f"{self.file}{f' line {self.line}' if self.line else ''}: {self.text}."


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _lines(text: str, comments: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.split(f"[{comments}]", line, maxsplit=1)[0].split()
        if words:
            yield number, words


def hosts_faults(text: str, file: str = "/etc/hosts") -> Iterator[Fault]:
    """What is wrong in /etc/hosts; glibc skips such a line without a word."""
    localhost: set[str] = set()
    for number, (address, *aliases) in _lines(text, "#"):
        if not _address(address):
            yield Fault(file, number, f"{shorten(address, 60)!r} is not an address")
            continue
        if not aliases:
            yield Fault(file, number, f"the address {address} has no name")
        for alias in aliases:
            if not _NAME.fullmatch(alias):
                yield Fault(file, number, f"{shorten(alias, 60)!r} is not a host name")
        if "localhost" in aliases:
            localhost.add(address)
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                yield Fault(file, number, f"localhost is {address}, not 127.0.0.1")


def resolv_faults(text: str, file: str = "/etc/resolv.conf") -> Iterator[Fault]:
    """What is wrong in resolv.conf, besides a missing name server."""
    servers = 0
    for number, (keyword, *values) in _lines(text, "#;"):
        if keyword not in _KEYWORDS:
            yield Fault(file, number, f"{shorten(keyword, 60)!r} is no keyword of resolv.conf")
        elif not values:
            yield Fault(file, number, f"{keyword} has no value", is_problem=keyword == "nameserver")
        elif keyword == "nameserver":
            servers += 1
            if not _address(values[0]):
                yield Fault(
                    file, number, f"{shorten(values[0], 60)!r} is not an address, so it is no name server"
                )
            elif servers == _MOST_SERVERS + 1:
                yield Fault(
                    file, number, f"only the first {_MOST_SERVERS} name servers are used", False, True
                )


def servers(text: str) -> list[str]:
    """The valid name servers of resolv.conf."""
    found = [words[1] for _, words in _lines(text, "#;") if words[0] == "nameserver" and len(words) > 1]
    return [one for one in found if _address(one)]


def _has_library(service: str) -> bool:
    return any(
        next(Path("/").glob(f"{folder[1:]}/libnss_{service}.so.2"), None) is not None for folder in _LIBRARIES
    )


def nsswitch_faults(text: str, file: str = "/etc/nsswitch.conf") -> Iterator[Fault]:
    """What is wrong in nsswitch.conf for hosts, passwd and group."""
    known: dict[str, tuple[int, list[str]]] = {}
    for number, words in _lines(text, "#"):
        database, colon, rest = " ".join(words).partition(":")
        if not colon:
            yield Fault(file, number, f"{shorten(words[0], 60)!r} has no colon, so the line is ignored")
            continue
        services = re.sub(r"\[[^\]]*\]", " ", rest).split()
        if rest.count("[") != rest.count("]"):
            yield Fault(file, number, f"a bracket is open in the line of {database.strip()}")
        known[database.strip()] = (number, services)
    if "hosts" in known:
        number, services = known["hosts"]
        unknown = [shorten(one, 40) for one in services if one not in _BUILT_IN and not _has_library(one)]
        lacks = "files" not in services or not {"dns", "resolve"} & set(services)
        if unknown:
            what = f"hosts has {' and '.join(map(repr, unknown))}, but there is no library for it here"
            yield Fault(file, number, what, is_problem=lacks)
        if "files" not in services:
            yield Fault(file, number, "hosts has no `files`, so /etc/hosts is not read", is_problem=False)
        if not {"dns", "resolve"} & set(services):
            what = "hosts has neither `dns` nor `resolve`, so no name server is asked"
            yield Fault(file, number, what, is_problem=not unknown)
    for database in ("passwd", "group"):
        number, services = known.get(database, (0, ["files"]))
        if not {"files", "compat", "db"} & set(services):
            yield Fault(file, number, f"{database} has no `files`, so /etc/{database} is not read")


def file_faults() -> Iterator[Fault]:
    """What is wrong in the three files; one that is missing has its defaults."""
    for path, judge in (
        ("/etc/hosts", hosts_faults),
        ("/etc/resolv.conf", resolv_faults),
        ("/etc/nsswitch.conf", nsswitch_faults),
    ):
        text = read(path)
        if text is not None:
            yield from judge(text)


def lead(path: str = "/etc/resolv.conf") -> str:
    """Where a link of this name leads to, or an empty string."""
    return os.path.realpath(path) if Path(path).is_symlink() else ""


def is_hidden(path: str = "/etc/resolv.conf") -> bool:
    """Whether it is a link into /run, of which the sandbox of a worker sees little."""
    return lead(path).startswith("/run/") and not Path(path).exists() and Path(_SANDBOX).exists()


def told(faults: Iterable[Fault]) -> Iterator[Finding]:
    """The findings of these faults."""
    for fault in faults:
        yield Finding(fault.sentence, ASK, severity=PROBLEM if fault.is_problem else WARNING)


@check("names.files", "/etc/hosts, resolv.conf and nsswitch.conf")
def files() -> Iterator[Finding]:
    yield from told(fault for fault in file_faults() if not fault.is_usual)


def deaf(addresses: list[str]) -> Iterator[Finding]:
    """Name servers on this machine, by their address, at which nothing listens."""
    listening = {one.address for one in procfs.sockets() if one.port == 53 and one.is_listening}
    for address in addresses:
        is_local = ipaddress.ip_address(address.partition("%")[0]).is_loopback and address not in _STUB
        if is_local and not listening & {address, "0.0.0.0", "::"}:  # noqa: S104  # compared, not bound
            where = f"The name server {address} in /etc/resolv.conf"
            yield Finding(f"{where} does not answer: nothing listens on its port 53.", ASK)


@check("names.servers", "name servers that are configured, and systemd-resolved")
def resolver() -> Iterator[Finding]:
    resolved, problem = None, ""
    try:
        resolved = next(iter(units("systemd-resolved.service")), None)
    except CannotSee as err:
        problem = str(err)
    text, target = read("/etc/resolv.conf"), lead()
    asks_resolved = bool(set(servers(text or "")) & set(_STUB)) or "systemd/resolve" in target
    if asks_resolved and not problem and (resolved is None or not resolved.is_running):
        state = "is not installed" if resolved is None else f"is {resolved.active}"
        yield Finding(
            f"No name can be resolved by DNS: /etc/resolv.conf leads to systemd-resolved, which {state}.",
            ASK if resolved is None else "why is systemd-resolved.service down",
            since=resolved.since if resolved else None,
        )
    elif is_hidden():
        if not asks_resolved:
            raise CannotSee(f"/etc/resolv.conf leads to {target}, which cannot be seen from here.")
    elif text is None and target:
        yield Finding(
            f"No name server is known: /etc/resolv.conf leads to {target}, which does not exist.", ASK
        )
    elif not servers(text or "") and ((text or "").strip() or routes()):
        what = "does not exist" if text is None else "names no valid name server"
        yield Finding(f"No name can be resolved by DNS: /etc/resolv.conf {what}.", ASK)
    else:
        yield from deaf(servers(text or ""))
