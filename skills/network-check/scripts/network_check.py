"""Checks interfaces, routes, name servers, the gateway, and a host if one is given. Sends packets."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from commands import read
from commands import run as run_command
from report import Report, options, refuse, run

_TIMEOUT_S = 4.0
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>\d{1,5}))?|(?P<bare>[0-9A-Fa-f:.]{2,45})"
)
_UNKNOWN = "cannot be pinged from here"
_COMMON_PORTS = (443, 80, 22)


def interfaces() -> list[tuple[str, str, str, str, str]]:
    """Name, state, address of the hardware, bytes in and out, errors; from /sys/class/net."""
    rows = []
    counters = {}
    for line in (read("/proc/net/dev") or "").splitlines()[2:]:
        name, _, values = line.partition(":")
        counters[name.strip()] = values.split()
    for name, numbers in sorted(counters.items()):
        state = (read(f"/sys/class/net/{name}/operstate") or "?").strip()
        hardware = (read(f"/sys/class/net/{name}/address") or "").strip()
        errors = f"{numbers[2]} in, {numbers[10]} out; dropped {numbers[3]} in, {numbers[11]} out"
        rows.append((name, state, hardware, f"{numbers[0]} in, {numbers[8]} out", errors))
    return rows


def addresses(report: Report) -> list[tuple[str, str]]:
    answer = run_command("ip", "-o", "address", "show")
    if not answer.problem:
        rows = [line.split() for line in answer.stdout.splitlines()]
        return [(row[1], row[3]) for row in rows if len(row) > 3]
    report.note(answer.problem)
    rows6 = [line.split() for line in (read("/proc/net/if_inet6") or "").splitlines()]
    found = [(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows6 if len(row) > 5]
    local = own_address()
    return found + ([("?", local)] if local else [])


def own_address() -> str:
    """The IPv4 source address of packets to the internet; connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def gateways() -> list[tuple[str, str]]:
    """Interface and gateway of each default route; an empty gateway is a route without one."""
    found = []
    for line in (read("/proc/net/route") or "").splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and columns[1] == "00000000" and columns[7] == "00000000":
            gateway = socket.inet_ntoa(struct.pack("=I", int(columns[2], 16)))
            found.append((columns[0], "" if gateway == "0.0.0.0" else gateway))  # noqa: S104  # compared, not bound
    for line in (read("/proc/net/ipv6_route") or "").splitlines():
        columns = line.split()
        if len(columns) > 9 and columns[0] == "0" * 32 and columns[1] == "00" and columns[9] != "lo":
            gateway = str(ipaddress.IPv6Address(bytes.fromhex(columns[4])))
            found.append((columns[9], "" if gateway == "::" else gateway))
    return found


def name_servers() -> list[str]:
    found = re.findall(r"^\s*nameserver\s+(\S+)", read("/etc/resolv.conf") or "", re.M)
    real = re.findall(r"^\s*nameserver\s+(\S+)", read("/run/systemd/resolve/resolv.conf") or "", re.M)
    return [*found, *(f"{server} (behind systemd-resolved)" for server in real if found == ["127.0.0.53"])]


def ping(address: str) -> str:
    """Whether the address answers to ping, or why it cannot be asked: no command, or no permission."""
    answer = run_command("ping", "-n", "-c", "2", "-W", "2", address, timeout_s=8)
    times = re.search(r"= [\d.]+/([\d.]+)/", answer.stdout)
    if times:
        return f"answers, {times[1]} ms on average"
    if "received" in answer.stdout:
        return "does not answer to ping"
    return _UNKNOWN if answer.problem else "does not answer to ping"


def neighbour(address: str) -> str:
    """The entry of the kernel's neighbour table: the hardware address when the machine is there."""
    for line in (read("/proc/net/arp") or "").splitlines()[1:]:
        columns = line.split()
        if columns and columns[0] == address:
            return (
                "in the neighbour table" if columns[2] != "0x0" else "in the neighbour table as unreachable"
            )
    return ""


def resolve(name: str) -> tuple[list[str], str]:
    """Addresses of a name, and the reason when there are none; the wait is bounded."""
    found: list[str] = []
    problems: list[str] = []

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found.extend(sorted({str(row[4][0]) for row in rows}))
        except (OSError, UnicodeError) as err:
            problems.append(getattr(err, "strerror", None) or str(err))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(2 * _TIMEOUT_S)
    if thread.is_alive():
        return [], f"no answer within {2 * _TIMEOUT_S:.0f} s"
    return found, problems[0] if problems else ""


def connect(address: str, port: int) -> tuple[bool, str]:
    """Whether a TCP connection can be made; a refusal proves that the host is there."""
    started = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=_TIMEOUT_S):
            return True, f"connected in {1000 * (time.monotonic() - started):.0f} ms"
    except ConnectionRefusedError:
        return False, "refused: the host is there, and nothing listens on this port"
    except TimeoutError:
        return False, f"no answer within {_TIMEOUT_S:.0f} s"
    except OSError as err:
        return False, err.strerror or str(err)


def about_host(host: str, port: int | None, report: Report) -> str:
    """The sentence about one host, with its evidence added to the report."""
    try:
        found, problem = [str(ipaddress.ip_address(host))], ""
    except ValueError:
        found, problem = resolve(host)
    if not found:
        return f"The name {host} cannot be resolved: {problem}."
    rows, reached, there = [], False, False
    for address in found[:3]:
        for number in (port,) if port else _COMMON_PORTS:
            good, words = connect(address, number)
            rows.append((address, f"port {number}", words))
            reached, there = reached or good, there or good or words.startswith("refused")
            if good or (there and not port):
                break
        if reached:
            break
    if not reached and not port:
        words = ping(found[0])
        rows.append((found[0], "ping", words))
        there = there or words.startswith("answers")
    report.table(f"Reaching {host}", ("Address", "How", "Result"), rows)
    if port:
        return (
            f"{host} port {port} can be reached."
            if reached
            else f"{host} port {port} cannot be reached: {rows[-1][2]}."
        )
    return f"{host} can be reached." if reached or there else f"{host} cannot be reached: {rows[-1][2]}."


def finding(up: list[str], routes: list[tuple[str, str]], gateway_words: str, servers: list[str]) -> str:
    if not up:
        return (
            "No interface besides loopback is up or visible here, so nothing else can be reached from here."
        )
    if not routes:
        return f"There is no default route, so only the networks of {', '.join(up)} can be reached."
    way = routes[0][1] or "no gateway address"
    words = f"The network is configured: {', '.join(up)} up, default route over {routes[0][0]} ({way}"
    words += f", which {gateway_words})" if gateway_words else ")"
    return words + (f", name server {servers[0]}." if servers else ", but no name server is configured.")


def make(report: Report) -> None:
    asked = options(str(__doc__), host="a host to resolve and to reach, optionally with a port").host
    match = _HOST.fullmatch(asked) if asked else None
    if asked and (match is None or (match["port"] and not 0 < int(match["port"]) < 65536)):
        refuse(f"--host={asked} is not a host name or address.")
    rows, routes, servers = interfaces(), gateways(), name_servers()
    found = addresses(report)
    with_address = {name.split("@")[0] for name, _ in found}
    up = [
        row[0]
        for row in rows
        if row[0] != "lo" and (row[1] == "up" or (row[1] == "unknown" and row[0] in with_address))
    ]
    words = ""
    if routes and routes[0][1]:
        words = ping(routes[0][1])
        if words == _UNKNOWN:
            report.note("Whether the gateway answers: the command `ping` is missing or may not be used here.")
        known = neighbour(routes[0][1])
        words = words if words.startswith("answers") else f"{words}{', but is ' + known if known else ''}"
    report.finding = finding(up, routes, words, servers)
    if asked and match:
        name = match["six"] or match["name"] or match["bare"]
        report.finding = (
            f"{about_host(name, int(match['port']) if match['port'] else None, report)} {report.finding}"
        )
    report.table(
        "Interfaces",
        ("Name", "State", "Hardware address", "Bytes", "Errors"),
        rows,
        "No interface is visible.",
    )
    report.table("Addresses", ("Interface", "Address"), found)
    report.table(
        "Default routes",
        ("Interface", "Gateway"),
        [(name, gateway or "-") for name, gateway in routes],
        "There is none.",
    )
    report.table(
        "Name servers",
        ("Server",),
        [(server,) for server in servers],
        "None is configured in /etc/resolv.conf.",
    )
    if not Path("/sys/class/net").exists():
        report.note("The state of the interfaces: /sys/class/net is not visible.")


run(make)
