"""The network as this machine sees it: interfaces, connections, routes; and two ways to reach out.

Actions that observe use /proc, /sys and only netlink sockets, so that they work in the sandbox. `ping` runs
the system's ping; `resolve` asks the C library, and `toolkit.dns` for MX and TXT.
"""

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import Field, field_validator

from lightagentd.errors import NotFound, PermissionDenied
from lightagentd.host.process import SYSTEM_PATH, Completed, run
from lightagentd.text.visible import visible
from lightagentd.tool import (
    Args,
    Context,
    Effect,
    InvalidArgument,
    Place,
    Result,
    TimedOut,
    Tool,
    ToolError,
    action,
)
from lightagentd.toolkit import dns

SYS_NET = Path("/sys/class/net")
HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9_.:%-]{0,252}[A-Za-z0-9_.])?|::1?"
RTF_UP, RTF_GATEWAY, RTF_REJECT, RTF_LOCAL = 0x1, 0x2, 0x200, 0x80000000
SO_ACCEPTCON = 0x10000
UNIX_ROW = re.compile(
    rb"[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} (?P<flags>[0-9A-F]{8}) [0-9A-F]{4} (?P<state>[0-9A-F]{2})"
    rb" +(?P<inode>\d+)(?: (?P<path>.*))?",
    re.DOTALL,
)
UNIX_STATES = {b"02": "CONNECTING", b"03": "CONNECTED", b"04": "DISCONNECTING"}
OWNED = ("LISTEN", "UNCONN", "ESTABLISHED", "CLOSE_WAIT", "SYN_SENT", "CONNECTED", "OPEN")
"""States in which a socket has a process; sockets in others may belong to the kernel alone."""


class NoArgs(Args):
    pass


class ConnectionsArgs(Args):
    kind: Literal["tcp", "udp", "unix"] = Field(default="tcp", description="Which sockets.")
    listening: bool = Field(default=False, description="Only sockets that wait for others.")
    port: int = Field(default=0, ge=0, le=65535, description="Only this port, local or remote.")
    limit: int = Field(default=100, ge=1, le=1000, description="How many are shown.")


class PingArgs(Args):
    host: str = Field(description="A host name or an address.")
    count: int = Field(default=3, ge=1, le=10, description="How many packets.")
    timeout_s: int = Field(default=5, ge=1, le=20, description="How long to wait for each answer.")

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if not re.fullmatch(HOST, host):
            raise ValueError("not a host name or an address")
        return host


class ResolveArgs(Args):
    name: str = Field(min_length=1, max_length=253, description="A host name; for PTR an address.")
    type: Literal["A", "AAAA", "PTR", "MX", "TXT"] = Field(default="A", description="What to look up.")
    timeout_s: float = Field(default=5, ge=0.1, le=20, description="How long to wait in all.")


class Net(Tool):
    """The network: interfaces, connections and routes of this machine; ping and name resolution."""

    name = "net"

    @action(clean="numbers, and short names that root gave")
    async def list_interfaces(self, ctx: Context, args: NoArgs) -> Result:
        """List the network interfaces with addresses, state, speed, MTU and counters."""
        found = await asyncio.to_thread(_interfaces)
        lines: list[str] = []
        for each in found:
            speed = f", {each['speed_mbit']} Mbit/s" if each["speed_mbit"] else ""
            lines.append(
                f"{each['name']}: {each['state']}, mtu {each['mtu']}, mac {each['mac'] or 'none'}{speed}"
            )
            lines += [f"  {address}" for address in each["addresses"]]
            lines += [
                f"  {way}: {each[f'{way}_bytes']} bytes, {each[f'{way}_packets']} packets,"
                f" {each[f'{way}_errors']} errors, {each[f'{way}_dropped']} dropped"
                for way in ("received", "sent")
            ]
        return Result(output="\n".join(lines), metadata={"interfaces": found})

    @action(place=Place.INSPECT, taints=True)
    async def connections(self, ctx: Context, args: ConnectionsArgs) -> Result:
        """List sockets with their state and the process that owns them, as far as it may be seen."""
        return await asyncio.to_thread(_connections, args)

    @action(clean="numbers, and short names that root gave")
    async def routes(self, ctx: Context, args: NoArgs) -> Result:
        """List the IPv4 and IPv6 routes of the main table; default routes are marked."""
        found = await asyncio.to_thread(_routes)
        lines = [
            f"{'default ' if each['default'] else ''}{each['destination']}"
            + (f" via {each['gateway']}" if each["gateway"] else "")
            + f" dev {each['interface']} metric {each['metric']}"
            + (" unreachable" if each["unreachable"] else "")
            for each in found
        ]
        if not any(each["default"] for each in found):
            lines.append("There is no default route: other networks cannot be reached.")
        return Result(output="\n".join(lines), metadata={"routes": found})

    @action(effect=Effect.REACH, timeout_s=240, host="host", clean="numbers, and what the call names")
    async def ping(self, ctx: Context, args: PingArgs) -> Result:
        """Send echo requests to a host; says the loss and the times. A host that is silent is no error."""
        program = shutil.which("ping", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
        if program is None:
            raise ToolError("ping is not installed.", suggestion="Install the package iputils-ping.")
        deadline_s = args.count + args.timeout_s
        options = ["-n", "-c", str(args.count), "-W", str(args.timeout_s), "-w", str(deadline_s)]
        env = {"LANG": "C", "LC_ALL": "C"}
        limit_s = min(ctx.timeout_s, deadline_s + 5.0)
        done = await run([program, *options, "--", args.host], timeout_s=limit_s, env=env)
        return _ping_result(args.host, done)

    @action(effect=Effect.REACH, taints=True, host="name")
    async def resolve(self, ctx: Context, args: ResolveArgs) -> Result:
        """Look up a name: its addresses (A, AAAA), mail servers (MX) or TXT records; PTR names an address."""
        if args.type in dns.TYPES:
            found = await dns.ask(args.name, args.type, args.timeout_s)
        else:
            found = await _ask_libc(args.name, args.type, args.timeout_s)
        text = "\n".join(found) if found else f"{args.name} has no {args.type} record."
        return Result(output=text, metadata={"name": args.name, "type": args.type, "answers": found})


def _read(path: Path, default: str = "") -> str:
    """A small file of /sys; some of them cannot be read while an interface is down."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return default


def _interfaces() -> list[dict[str, Any]]:
    counters = psutil.net_io_counters(pernic=True)
    addresses = psutil.net_if_addrs()
    names = sorted({*counters, *addresses}, key=lambda name: (name != "lo", name))
    found = []
    for name in names:
        folder = SYS_NET / name
        count = counters.get(name)
        speed = _read(folder / "speed")
        mac = _read(folder / "address")
        found.append(
            {
                "name": name,
                "state": _state(folder),
                "mtu": int(_read(folder / "mtu", "0") or 0),
                "mac": "" if set(mac) <= set("0:") else mac,
                "speed_mbit": int(speed) if speed.isdigit() else None,
                "addresses": [text for each in addresses.get(name, []) if (text := _address(each))],
                "received_bytes": count.bytes_recv if count else 0,
                "received_packets": count.packets_recv if count else 0,
                "received_errors": count.errin if count else 0,
                "received_dropped": count.dropin if count else 0,
                "sent_bytes": count.bytes_sent if count else 0,
                "sent_packets": count.packets_sent if count else 0,
                "sent_errors": count.errout if count else 0,
                "sent_dropped": count.dropout if count else 0,
            }
        )
    return found


def _state(folder: Path) -> str:
    """The operational state; loopback and some tunnels only know whether they are switched on (IFF_UP)."""
    state = _read(folder / "operstate", "unknown")
    if state != "unknown":
        return state
    return "up" if int(_read(folder / "flags", "0x0"), 16) & 1 else "down"


def _address(each: Any) -> str:
    if each.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    address = each.address.partition("%")[0]
    if not each.netmask:
        return str(address)
    if each.family == socket.AF_INET:
        return str(ipaddress.ip_interface(f"{address}/{each.netmask}"))
    prefix = bin(int(ipaddress.IPv6Address(each.netmask))).count("1")
    return f"{address}/{prefix}"


def _connections(args: ConnectionsArgs) -> Result:
    found = _unix_sockets() if args.kind == "unix" else _inet_sockets(args.kind)
    rows = [
        row
        for row in found
        if (not args.listening or row["state"] in ("LISTEN", "UNCONN"))
        and (not args.port or args.port in row["ports"])
    ]
    rows.sort(key=lambda row: (row["state"] != "LISTEN", not row["local"], row["local"], row["remote"]))
    unseen = sum(row["pid"] is None and row["state"] in OWNED for row in rows)
    shown = rows[: args.limit]
    lines = []
    for row in shown:
        del row["ports"]
        row["process"] = _process_name(row["pid"]) if row["pid"] else ""
        to = f" -> {row['remote']}" if row["remote"] else ""
        by = f"  {row['process']} ({row['pid']})" if row["pid"] else ""
        lines.append(f"{row['state']:<11} {row['local'] or '(no name)'}{to}{by}")
    more = f" {len(rows) - len(shown)} more are not shown." if len(rows) > len(shown) else ""
    lines.append(f"{len(rows)} {args.kind} sockets.{more}")
    if unseen:
        lines.append(
            f"The owners of {unseen} could not be seen: this user may not look into their processes."
        )
    data = {"connections": shown, "total": len(rows), "owners_not_seen": unseen}
    return Result(output="\n".join(lines), metadata=data)


def _inet_sockets(kind: str) -> Iterator[dict[str, Any]]:
    for each in psutil.net_connections(kind):
        state = str(each.status)
        if kind == "udp":  # which has no listening: a socket without a peer takes from everybody
            state = "ESTABLISHED" if each.raddr else "UNCONN"
        yield {
            "local": _endpoint(each.laddr),
            "remote": _endpoint(each.raddr),
            "state": state,
            "pid": each.pid,
            "ports": {end.port for end in (each.laddr, each.raddr) if end},
        }


def _endpoint(end: Any) -> str:
    if not end:
        return ""
    return f"[{end.ip}]:{end.port}" if ":" in end.ip else f"{end.ip}:{end.port}"


def _unix_sockets() -> Iterator[dict[str, Any]]:
    """From /proc/net/unix, since psutil does not tell which of them listen (unix(7), SO_ACCEPTCON)."""
    owners = _socket_owners()
    for line in Path("/proc/net/unix").read_bytes().split(b"\n"):
        row = UNIX_ROW.fullmatch(line)
        if row is None:
            continue  # the heading, or the rest of a name with a line break
        word = "LISTEN" if int(row["flags"], 16) & SO_ACCEPTCON else UNIX_STATES.get(row["state"], "OPEN")
        local, pid = visible(row["path"] or b""), owners.get(row["inode"])
        yield {"local": local, "remote": "", "state": word, "pid": pid, "ports": set()}


def _socket_owners() -> dict[bytes, int]:
    """A process for each socket's inode, of those processes that this user may look into."""
    found: dict[bytes, int] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as links:
            for link in links:
                with contextlib.suppress(OSError):
                    target = os.fsencode(Path(link).readlink())
                    if target.startswith(b"socket:["):
                        found.setdefault(target[8:-1], pid)
    return found


def _process_name(pid: int) -> str:
    try:
        return visible(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n"))
    except OSError:
        return "?"


def _routes() -> list[dict[str, Any]]:
    rows = [*_routes_v4(), *_routes_v6()]
    return sorted(
        rows, key=lambda row: (not row["default"], row["destination"].count(":") > 0, row["metric"])
    )


def _route(network: Any, gateway: str, interface: str, metric: int, flags: int) -> dict[str, Any]:
    unreachable = bool(flags & RTF_REJECT)
    return {
        "destination": str(network),
        "gateway": gateway if flags & RTF_GATEWAY else "",
        "interface": interface,
        "metric": metric,
        "default": network.prefixlen == 0 and not unreachable,
        "unreachable": unreachable,
    }


def _routes_v4() -> Iterator[dict[str, Any]]:
    """/proc/net/route has addresses as words of the machine's byte order."""
    for line in _read(Path("/proc/net/route")).splitlines()[1:]:
        name, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
        address, netmask, via = (
            socket.inet_ntoa(struct.pack("=I", int(word, 16))) for word in (destination, mask, gateway)
        )
        if int(flags, 16) & RTF_UP:
            network = ipaddress.IPv4Network(f"{address}/{netmask}")
            yield _route(network, via, name, int(metric), int(flags, 16))


def _routes_v6() -> Iterator[dict[str, Any]]:
    for line in _read(Path("/proc/net/ipv6_route")).splitlines():
        destination, prefix, _, _, gateway, metric, _, _, flags, name = line.split()
        network = ipaddress.IPv6Network((bytes.fromhex(destination), int(prefix, 16)))
        bits = int(flags, 16)
        if (
            bits & RTF_LOCAL
            or network.is_multicast
            or not bits & RTF_UP
            or (name == "lo" and bits & RTF_REJECT)
        ):
            continue  # addresses of this machine, and the entry for what has no route
        yield _route(network, str(ipaddress.IPv6Address(bytes.fromhex(gateway))), name, int(metric, 16), bits)


def _ping_result(host: str, done: Completed) -> Result:
    out, err = done.stdout.text(), done.stderr.text()
    counts = re.search(r"(\d+) packets transmitted, (\d+) (?:packets )?received", out)
    if re.search(
        r"Operation not permitted|Lacking privilege|missing cap_net_raw|permission denied", out + err, re.I
    ):
        raise PermissionDenied(
            "ping may not open its socket here.",
            suggestion="It needs CAP_NET_RAW or net.ipv4.ping_group_range.",
        )
    if done.timed_out:
        raise TimedOut(f"ping of {host} did not end in time.")
    if counts is None:
        reason = (err or out).strip().splitlines()
        raise ToolError(f"ping of {host} failed: {reason[-1] if reason else f'status {done.status}'}")
    sent, received = int(counts[1]), int(counts[2])
    times = [float(found) for found in re.findall(r"time[=<]([0-9.]+) ?ms", out)]
    at = re.search(r"^PING \S+ \(([0-9A-Fa-f.:]+)\)", out, re.M)
    loss = 100 * (sent - received) / sent if sent else 100.0
    text = f"{host}{f' ({at[1]})' if at else ''}: {received} of {sent} answered, {loss:.0f} % loss"
    if times:
        text += f", {min(times):g} / {sum(times) / len(times):.3g} / {max(times):g} ms (least, average, most)"
    data = {"host": host, "address": at[1] if at else "", "sent": sent, "received": received}
    return Result(output=f"{text}.", metadata={**data, "loss_percent": loss, "times_ms": times})


async def _ask_libc(name: str, kind: str, timeout_s: float) -> list[str]:
    """What the C library finds; it cannot be stopped, so after the time its thread is left to itself."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(_look_up, name, kind)
    except TimeoutError as err:
        raise TimedOut(f"No nameserver answered for {name} within {timeout_s:g} s.") from err


def _look_up(name: str, kind: str) -> list[str]:
    try:
        if kind == "PTR":
            host, aliases, _ = socket.gethostbyaddr(str(ipaddress.ip_address(name)))
            return [host, *aliases]
        family = socket.AF_INET if kind == "A" else socket.AF_INET6
        found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
    except ValueError as err:
        what = "an address" if kind == "PTR" else "a host name"
        raise InvalidArgument(f"{name!r} is not {what}.", field="name") from err
    except (socket.gaierror, socket.herror) as err:
        if err.errno in (socket.EAI_NONAME, socket.EAI_NODATA, 1, 4):  # 1 and 4: HOST_NOT_FOUND, NO_DATA
            raise NotFound(f"{name} has no {kind} record.", field="name") from err
        raise ToolError(
            f"{name} cannot be resolved: {err.strerror}.",
            suggestion="Check the nameservers in /etc/resolv.conf.",
        ) from err
    return list(dict.fromkeys(str(row[4][0]) for row in found))
