"""Interfaces, addresses, routes and gateways: what ip(8) says of them, and what is wrong with that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import PROBLEM, WARNING, CannotSee, Finding, check
from commands import read, run
from report import plural
from unit_states import units

_ERROR_SHARE, _FEW_ERRORS = 0.01, 100
_DROP_SHARE, _FEW_DROPS = 0.05, 10000
"""Drops count unknown protocols too, so only many of them mean something."""
_LEAST_MTU = 1280
"""The least that IPv6 needs (RFC 8200, section 5)."""
_INNER = re.compile(r"(docker|br-|virbr|veth|cni|podman|lxc|lxd|incusbr|flannel|cali|vnet|tap|ve-)")
"""Interfaces to containers and virtual machines, which lead to no other network."""
_TUNNELS = ("tun", "wireguard", "ipip", "sit", "gre", "vti", "ip6tnl")
_CONNECTIVITY = {"0": "not known", "1": "none", "2": "behind a portal", "3": "limited", "4": "full"}
"""NMConnectivityState."""
ASK = "check the network"


@dataclass(frozen=True)
class Interface:
    """One interface, with its addresses of global scope as `192.0.2.1/24`."""

    name: str
    is_up: bool
    """Whether an administrator's `ip link set up` is in force."""
    has_carrier: bool
    state: str
    mtu: int
    kind: str
    master: str
    hardware: str
    addresses: tuple[str, ...]
    duplicates: tuple[str, ...]
    """IPv6 addresses that another machine has too (RFC 4862, section 5.4)."""
    counters: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def is_inner(self) -> bool:
        return self.name == "lo" or bool(_INNER.match(self.name))


@dataclass(frozen=True)
class Route:
    """A default route; `gateway` is empty where the other end needs no address."""

    family: str
    gateway: str
    interface: str
    metric: int
    is_dead: bool


def asked(*arguments: str) -> list[dict[str, Any]]:
    """What `ip -j` prints; raises CannotSee."""
    answer = run("ip", "-j", *arguments, timeout_s=2)
    if answer.problem:
        raise CannotSee(answer.problem)
    try:
        rows = json.loads(answer.stdout or "[]")
    except ValueError:
        raise CannotSee("The command `ip` has no JSON output here.") from None
    return [row for row in rows if isinstance(row, dict) and row]


def interfaces(rows: list[dict[str, Any]]) -> list[Interface]:
    """From the rows of `ip -j -d -s address`."""
    found = []
    for row in rows:
        flags = row.get("flags", [])
        addresses = [one for one in row.get("addr_info", []) if one.get("local")]
        found.append(
            Interface(
                name=str(row.get("ifname", "?")),
                is_up="UP" in flags,
                has_carrier="NO-CARRIER" not in flags,
                state=str(row.get("operstate", "?")).lower(),
                mtu=int(row.get("mtu", 0)),
                kind=str(row.get("linkinfo", {}).get("info_kind", "")),
                master=str(row.get("master", "")),
                hardware=str(row.get("address", "")),
                addresses=tuple(
                    f"{one['local']}/{one.get('prefixlen', '?')}"
                    for one in addresses
                    if one.get("scope") == "global"
                ),
                duplicates=tuple(str(one["local"]) for one in addresses if one.get("dadfailed")),
                counters=row.get("stats64", {}),
            )
        )
    return found


def routes() -> list[Route]:
    """The default routes of both families, the preferred first."""
    found = []
    for family in ("-4", "-6"):
        for row in asked(family, "route", "show", "default"):
            for hop in row.get("nexthops") or [row]:
                way = hop.get("gateway") or hop.get("via", {}).get("host", "")
                flags = [*row.get("flags", []), *hop.get("flags", [])]
                found.append(
                    Route(
                        f"IPv{family[1]}",
                        str(way),
                        str(hop.get("dev", "")),
                        int(row.get("metric", 0)),
                        bool({"dead", "linkdown"} & set(flags)),
                    )
                )
    return sorted(found, key=lambda one: (one.family, one.metric))


def neighbour_states() -> dict[str, str]:
    """The state of each entry of the neighbour table by address: REACHABLE, STALE, FAILED."""
    return {str(row.get("dst")): " ".join(row.get("state", [])) for row in asked("neighbour", "show")}


def wanted_up() -> dict[str, str]:
    """Interfaces that a file configures by name, and that file."""
    found: dict[str, str] = {}
    if Path("/usr/sbin/ifup").exists():
        more = sorted(map(str, Path("/etc/network/interfaces.d").glob("*")))
        for file in ("/etc/network/interfaces", *more):
            for line in re.findall(r"^\s*auto\s+(.+)", read(file) or "", re.M):
                found.update({name: file for name in line.split() if not set(name) & set("/:*")})
    for network in sorted(Path("/etc/systemd/network").glob("*.network")) if _networkd_runs() else ():
        text = read(str(network)) or ""
        if re.search(r"^\s*(Unmanaged\s*=\s*yes|ActivationPolicy\s*=.*down)", text, re.M | re.I):
            continue
        for line in re.findall(r"^\s*Name\s*=\s*(.+)", text, re.M):
            found.update({name: str(network) for name in line.split() if not set(name) & set("*?[!")})
    found.pop("lo", None)
    return found


def _networkd_runs() -> bool:
    try:
        return any(one.is_running for one in units("systemd-networkd.service"))
    except CannotSee:
        return False


def of_links(all_links: list[Interface], wanted: dict[str, str]) -> Iterator[Finding]:
    """Faults of interfaces: down, no carrier, errors, drops, MTU, addresses that are there twice."""
    masters = {one.master for one in all_links}
    seen: dict[str, str] = {}
    for one in all_links:
        where = f" ({one.addresses[0]})" if one.addresses else ""
        source = wanted.get(one.name)
        because = f"although {source} configures it"
        if not source and one.addresses:
            because = f"although it has the address {one.addresses[0]}"
        if not one.is_up and (one.addresses or source) and one.name != "lo":
            yield Finding(f"The interface {one.name} is switched off, {because}.", ASK)
        elif one.name == "lo" and not one.is_up:
            yield Finding("The loopback interface lo is switched off: nothing can reach 127.0.0.1.", ASK)
        elif (
            one.is_up
            and not one.has_carrier
            and (one.addresses or source)
            and one.kind not in _TUNNELS
            and not (one.kind == "bridge" and (one.name not in masters or not source))
        ):
            yield Finding(
                f"The interface {one.name}{where} has no carrier: the cable, the switch port or its other "
                "end is down.",
                ASK,
            )
        yield from _of_counters(one)
        if one.is_up and one.mtu < _LEAST_MTU and one.name != "lo" and one.kind not in _TUNNELS:
            yield Finding(
                f"The MTU of {one.name} is {one.mtu}: IPv6 needs {_LEAST_MTU}, and most networks have 1500.",
                ASK,
                severity=WARNING,
            )
        for address in one.duplicates:
            yield Finding(f"Another machine has the address {address} of {one.name} too.", ASK)
        for address in () if one.kind in _TUNNELS else one.addresses:
            bare, _, length = address.partition("/")
            if length not in ("32", "128") and seen.setdefault(bare, one.name) != one.name:
                yield Finding(f"The address {bare} is on both {seen[bare]} and {one.name}.", ASK)
    for name in sorted(set(wanted) - {one.name for one in all_links}):
        yield Finding(f"The interface {name}, which {wanted[name]} configures, does not exist.", ASK)
    for master in sorted(masters - {""}):
        sizes = {one.mtu: one.name for one in all_links if one.master == master}
        if len(sizes) > 1:
            words = ", ".join(f"{name} {size}" for size, name in sorted(sizes.items()))
            yield Finding(f"The members of {master} differ in their MTU: {words}.", ASK, severity=WARNING)


def _of_counters(one: Interface) -> Iterator[Finding]:
    for way, words in (("rx", "received"), ("tx", "sent")):
        counts = one.counters.get(way, {})
        packets = max(1, counts.get("packets", 0))
        for key, share, few in (
            ("errors", _ERROR_SHARE, _FEW_ERRORS),
            ("dropped", _DROP_SHARE, _FEW_DROPS),
        ):
            count = counts.get(key, 0)
            if count >= few and count > share * packets and not one.is_inner:
                what = plural(count, "error") if key == "errors" else f"{plural(count, 'packet')} dropped"
                yield Finding(
                    f"The interface {one.name} has {what} of {plural(packets, 'packet')} {words} since it "
                    "came up.",
                    ASK,
                    severity=WARNING,
                )


def of_routes(
    all_links: list[Interface], defaults: list[Route], neighbours: dict[str, str]
) -> Iterator[Finding]:
    """Faults of the way out: no default route, one over a dead link, two alike, a gateway that is gone."""
    outer = [
        one
        for one in all_links
        if one.is_up and one.has_carrier and one.addresses and not one.is_inner and one.kind not in _TUNNELS
    ]
    if outer and not defaults:
        names = ", ".join(f"{one.name} ({one.addresses[0]})" for one in outer[:3])
        text = f"There is no default route: only the networks of {names} can be reached."
        yield Finding(text, ASK, severity=WARNING)
    for route in defaults:
        if route.is_dead:
            yield Finding(
                f"The default route over {route.gateway or route.interface} leads to {route.interface}, "
                "which has no carrier.",
                ASK,
            )
        elif route.gateway and "FAILED" in neighbours.get(route.gateway, ""):
            yield Finding(
                f"The gateway {route.gateway} does not answer on {route.interface}: its entry in the "
                "neighbour table is FAILED.",
                ASK,
                severity=PROBLEM if len({one.family for one in defaults}) == 1 else WARNING,
            )
    for family in ("IPv4", "IPv6"):
        ways = {(one.gateway, one.interface) for one in defaults if one.family == family}
        metrics = [one.metric for one in defaults if one.family == family]
        if len(ways) > 1 and len(set(metrics)) == 1 and family == "IPv4":
            words = " and ".join(sorted(f"{gateway} on {name}" for gateway, name in ways))
            yield Finding(
                f"There are {len(ways)} default routes with the same metric: {words}.", ASK, severity=WARNING
            )


def manager() -> str:
    """Which service manages the network and what it says of it, as a sentence; empty where none does."""
    for name, words in (("NetworkManager", _CONNECTIVITY), ("systemd-networkd", {})):
        try:
            if not any(one.is_running for one in units(f"{name}.service")):
                continue
        except CannotSee:
            return ""
        bus = "NetworkManager" if words else "network1"
        where = f"org.freedesktop.{bus}"
        interface, key = (where, "Connectivity") if words else (f"{where}.Manager", "OperationalState")
        path = f"/org/freedesktop/{bus}"
        said = run("busctl", "get-property", where, path, interface, key, timeout_s=2).stdout.split()
        value = said[1].strip('"') if len(said) == 2 else ""
        return f"{name} manages it and says: {words.get(value, value)}." if value else f"{name} manages it."
    return ""


@check("network.links", "interfaces that are down, without carrier or with errors")
def links() -> Iterator[Finding]:
    yield from of_links(interfaces(asked("-d", "-s", "address", "show")), wanted_up())


@check("network.routes", "default routes and their gateways")
def ways_out() -> Iterator[Finding]:
    yield from of_routes(interfaces(asked("-d", "-s", "address", "show")), routes(), neighbour_states())
