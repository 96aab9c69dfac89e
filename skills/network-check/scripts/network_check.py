"""Checks interfaces, routes and the gateway, and reaches a host if one is given (that sends packets)."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import names, network
from checks import CannotSee
from commands import read
from commands import run as run_command
from dns_query import resolve
from headline import tell
from report import Report, human, options, refuse, run

_TIMEOUT_S = 4.0
_PINGS = 4
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>\d{1,5}))?|(?P<bare>[0-9A-Fa-f:.]{2,45})"
)
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_COMMON_PORTS = (443, 80, 22)


def ping(address: str) -> tuple[bool, str]:
    """Whether the address answers to ping, and with which loss and delay, or why it cannot be asked."""
    answer = run_command("ping", "-n", "-c", str(_PINGS), "-i", "0.3", "-W", "2", address, timeout_s=9)
    loss = re.search(r"([\d.]+)% packet loss", answer.stdout)
    times = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)", answer.stdout)
    if times and loss:
        lost = f"{float(loss[1]):.0f}% packet loss" if float(loss[1]) else "no packet loss"
        return True, f"answers to ping with {lost}, {times[2]} ms on average ({times[1]} to {times[3]})"
    if loss:
        return False, "does not answer to ping"
    return False, f"cannot be pinged from here ({answer.problem.rstrip('.')})"


def connect(address: str, port: int) -> tuple[bool, str]:
    """Whether a TCP connection can be made; a refusal proves that the host is there."""
    started = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=_TIMEOUT_S):
            return True, f"connected in {1000 * (time.monotonic() - started):.0f} ms"
    except ConnectionRefusedError:
        return False, "refused: the host is there, and nothing listens on this port, or a firewall rejects it"
    except TimeoutError:
        return False, f"no answer within {_TIMEOUT_S:.0f} s: a firewall drops it, or the host is down"
    except OSError as err:
        return False, err.strerror or str(err)


def about_host(host: str, port: int | None, report: Report) -> tuple[bool, str]:
    """Whether a host can be reached and the sentence about it; its evidence is added to the report."""
    try:
        found, problem = [str(ipaddress.ip_address(host))], ""
    except ValueError:
        found, problem = resolve(host, 2 * _TIMEOUT_S)
    if not found:
        return False, f"The name {host} cannot be resolved: {problem}."
    rows, open_at, refused = [], "", False
    for address in found[:3]:
        for number in (port,) if port else _COMMON_PORTS:
            good, words = connect(address, number)
            rows.append((address, f"port {number}", words))
            open_at = open_at or (f"port {number} at {address}" if good else "")
            refused = refused or words.startswith("refused")
            if good or (refused and not port):
                break
        if open_at:
            break
    answers, words = ping(found[0])
    rows.append((found[0], "ping", words))
    report.table(f"Reaching {host}", ("Address", "How", "Result"), rows)
    where = f"{host} port {port}" if port else host
    if open_at or (not port and (answers or refused)):
        how = f" ({rows[-2][2]})" if open_at else ""
        return True, f"{where} can be reached{how}; {found[0]} {words}."
    return False, f"{where} cannot be reached: {rows[0][2]}; {found[0]} {words}."


def look(report: Report) -> tuple[list[network.Interface], list[network.Route], dict[str, str]]:
    """What ip(8) says; without that command nothing, and a note."""
    try:
        return (
            network.interfaces(network.asked("-d", "-s", "address", "show")),
            network.routes(),
            network.neighbour_states(),
        )
    except CannotSee as err:
        report.note(f"Interfaces and routes: {err}")
        return [], [], {}


def state(links: list[network.Interface], routes: list[network.Route], neighbours: dict[str, str]) -> str:
    """The sentence of a network without a fault."""
    up = [one for one in links if one.is_up and one.addresses and one.name != "lo"]
    if not up:
        return "No interface besides loopback has an address, so nothing else can be reached from here."
    first = ", ".join(f"{one.name} ({one.addresses[0]})" for one in up[:3])
    if not routes:
        return f"{first} up; there is no default route, so only their own networks can be reached."
    way = routes[0]
    known = neighbours.get(way.gateway, "").lower()
    seen = f", whose entry in the neighbour table is {known}" if known else ""
    gateway = f"the gateway {way.gateway}{seen}" if way.gateway else "no gateway address"
    return f"The network is up: {first}; the default route is over {way.interface} and {gateway}."


def tables(report: Report, links: list[network.Interface], routes: list[network.Route]) -> None:
    rows = []
    for one in links:
        rx, tx = one.counters.get("rx", {}), one.counters.get("tx", {})
        wrong = [
            f"{way.get(key, 0)} {key} {name}"
            for way, name in ((rx, "in"), (tx, "out"))
            for key in ("errors", "dropped")
        ]
        is_on = ("up" if one.has_carrier else "no carrier") if one.is_up else "off"
        data = f"{human(rx.get('bytes', 0))} in, {human(tx.get('bytes', 0))} out"
        bad = ", ".join(words for words in wrong if not words.startswith("0 ")) or "none"
        rows.append((one.name, is_on, ", ".join(one.addresses) or "-", one.mtu, data, bad))
    report.table("Interfaces", ("Name", "State", "Addresses", "MTU", "Data", "Errors and drops"), rows)
    report.table(
        "Default routes",
        ("Family", "Interface", "Gateway", "Metric"),
        [(one.family, one.interface, one.gateway or "-", one.metric) for one in routes],
    )


def make(report: Report) -> None:
    asked = options(
        str(__doc__),
        host="a host to resolve and to reach, optionally with a port",
        interface="only this interface",
    )
    match = _HOST.fullmatch(asked.host) if asked.host else None
    if asked.host and (match is None or (match["port"] and not 0 < int(match["port"]) < 65536)):
        refuse(f"--host={asked.host} is not a host name or address.")
    if asked.interface and not _INTERFACE.fullmatch(asked.interface):
        refuse(f"--interface={asked.interface} is not the name of an interface.")
    links, routes, neighbours = look(report)
    if asked.interface:
        links = [one for one in links if one.name == asked.interface]
        if not links and not report.has_notes:
            report.finding = f"There is no interface {asked.interface}."
            report.next = "ip -br address"
            report.found_nothing = True
            return
        found = list(network.of_links(links, {}))
    else:
        found = [*network.of_links(links, network.wanted_up()), *network.of_routes(links, routes, neighbours)]
    good = state(links, routes, neighbours)
    if asked.interface and links:
        one = links[0]
        is_on = ("up" if one.has_carrier else "up without carrier") if one.is_up else "switched off"
        has = ", ".join(one.addresses) or "no address"
        good = f"{one.name} is {is_on}: {has}, MTU {one.mtu}, no errors that matter."
    if report.has_notes and not links:
        good = "The state of the interfaces cannot be seen from here."
    if match:
        host = match["six"] or match["name"] or match["bare"]
        reached, sentence = about_host(host, int(match["port"]) if match["port"] else None, report)
        tell(report, found, good, look="ip route", own=network.ASK)
        report.text("The network here", report.finding)
        if found and not reached:
            sentence = f"{sentence.rstrip('.')}; {found[0].text[0].lower()}{found[0].text[1:]}"
        report.finding = sentence
        report.next = (
            "" if reached else f"ip route get {host}" if match["bare"] or match["six"] else report.next
        )
    else:
        is_way = any(word in one.text for one in found[:1] for word in ("route", "gateway"))
        tell(report, found, good, look="ip route" if is_way else "ip -s link", own=network.ASK)
    managed = "" if asked.interface else network.manager()
    servers = names.servers(read("/etc/resolv.conf") or "")
    tables(report, links, routes)
    if servers and not asked.interface:
        report.text("Name servers", ", ".join(servers))
    if managed:
        report.text("Managed by", managed)
    if not match and not asked.interface and routes:
        report.note("Whether the gateway and other hosts answer: nothing was sent. Name a host to try it.")


run(make)
