"""The tool net against this machine's own network, a real DNS server on loopback and a ping on PATH."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.host.process import SYSTEM_PATH
from lightagentd.tool import Effect
from tests.tools.conftest import Call, Load, is_root

pytestmark = pytest.mark.usefixtures("nothing_left")
Answer = Callable[[bytes, bool], list[bytes]]
MX, TXT, CNAME = 15, 16, 5
NOBODY = 65534


# -- what this machine has --


async def test_interfaces_have_addresses_with_prefix_and_counters(call: Call) -> None:
    result = await call("net", "list_interfaces")
    [lo] = [each for each in result.metadata["interfaces"] if each["name"] == "lo"]
    assert "127.0.0.1/8" in lo["addresses"]
    assert lo["mtu"] > 0
    assert lo["mac"] == ""
    assert lo["state"] in ("up", "down")
    assert result.output.splitlines()[0].startswith("lo: ")


async def test_every_address_of_an_interface_is_valid(call: Call) -> None:
    for each in (await call("net", "list_interfaces")).metadata["interfaces"]:
        for address in each["addresses"]:
            ipaddress.ip_interface(address)


async def test_interface_counters_grow_with_traffic(call: Call) -> None:
    def received(result_interfaces: list[dict[str, int | str]]) -> int:
        return next(int(each["received_bytes"]) for each in result_interfaces if each["name"] == "lo")

    before = received((await call("net", "list_interfaces")).metadata["interfaces"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.sendto(b"x" * 5000, udp.getsockname())
        udp.recv(6000)
    assert received((await call("net", "list_interfaces")).metadata["interfaces"]) >= before + 5000


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_connections_show_a_listener_with_its_process(call: Call, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    result = await call("net", "connections", port=port, listening=True)
    [found] = result.metadata["connections"]
    assert (found["local"], found["state"], found["pid"]) == (f"127.0.0.1:{port}", "LISTEN", os.getpid())
    assert found["process"] == Path("/proc/self/comm").read_text().strip().replace(" ", "\\x20")
    assert f"({os.getpid()})" in result.output


async def test_connections_show_both_ends_and_filter_by_remote_port(
    call: Call, listener: socket.socket
) -> None:
    address = listener.getsockname()
    with socket.create_connection(address) as client, listener.accept()[0]:
        found = (await call("net", "connections", port=address[1])).metadata["connections"]
        mine = f"127.0.0.1:{client.getsockname()[1]}"
    assert (mine, f"127.0.0.1:{address[1]}") in {(row["local"], row["remote"]) for row in found}
    assert {row["state"] for row in found} == {"LISTEN", "ESTABLISHED"}


async def test_listening_udp_sockets_are_those_without_a_peer(call: Call) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as open_to_all,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connected,
    ):
        open_to_all.bind(("127.0.0.1", 0))
        connected.connect(open_to_all.getsockname())
        port = open_to_all.getsockname()[1]
        found = (await call("net", "connections", kind="udp", listening=True, port=port)).metadata[
            "connections"
        ]
    assert [row["state"] for row in found] == ["UNCONN"]


async def test_unix_sockets_tell_listeners_and_keep_odd_names_harmless(call: Call) -> None:
    name = f"\0odd\xe9 name\n{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name.encode("latin-1"))
        server.listen()
        result = await call("net", "connections", kind="unix", listening=True, limit=1000)
    mine = [row for row in result.metadata["connections"] if row["pid"] == os.getpid()]
    assert [row["local"] for row in mine] == ["@odd\\xe9\\x20name"]
    result.output.encode()


async def test_connections_say_how_many_a_limit_left_out(call: Call, listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()), listener.accept()[0]:
        port = listener.getsockname()[1]
        result = await call("net", "connections", port=port, limit=1)
    assert len(result.metadata["connections"]) == 1
    assert result.metadata["connections"][0]["state"] == "LISTEN"
    assert f"{result.metadata['total'] - 1} more are not shown." in result.output


async def test_owners_that_cannot_be_seen_are_counted(call: Call) -> None:
    if not is_root():
        pytest.skip("only root can make a socket of another user")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, fd = server.getsockname()[1], server.fileno()
        child = subprocess.Popen(["/bin/sleep", "60"], pass_fds=[fd])
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        result = await call("net", "connections", port=port)
    finally:
        os.setresuid(0, 0, 0)
        child.kill()
        child.wait()
    assert result.metadata["connections"][0]["pid"] is None
    assert result.metadata["owners_not_seen"] == 1
    assert "The owners of 1 could not be seen" in result.output


async def test_ipv4_routes_are_those_of_the_kernel(call: Call) -> None:
    found = (await call("net", "routes")).metadata["routes"]
    lines = Path("/proc/net/route").read_text().splitlines()[1:]
    assert len([row for row in found if ":" not in row["destination"]]) == len(lines)
    for row in found:
        ipaddress.ip_network(row["destination"])
        assert row["default"] == (row["destination"] in ("0.0.0.0/0", "::/0") and not row["unreachable"])


async def test_default_routes_come_first_or_their_absence_is_said(call: Call) -> None:
    result = await call("net", "routes")
    if any(row["default"] for row in result.metadata["routes"]):
        assert result.output.startswith("default ")
    else:
        assert "There is no default route" in result.output


# -- names --


def wire_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def record(name: bytes, kind: int, data: bytes) -> bytes:
    return name + struct.pack(">HHIH", kind, 1, 60, len(data)) + data


def reply(query: bytes, *records: bytes, code: int = 0, flags: int = 0x8180) -> bytes:
    return (
        query[:2] + struct.pack(">5H", flags | code, 1, len(records), 0, 0) + query[12:] + b"".join(records)
    )


SELF = b"\xc0\x0c"
"""A pointer to the name of the question."""


class DnsServer(asyncio.DatagramProtocol):
    """A DNS server on loopback, over UDP and TCP; `answer(query, tcp)` gives the packets to send."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.queries: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # asyncio's own is no DatagramTransport before Python 3.12

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.queries.append(data)
        for packet in self.answer(data, False):
            self.transport.sendto(packet, addr)

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [length] = struct.unpack(">H", await reader.readexactly(2))
        for packet in self.answer(await reader.readexactly(length), True):
            writer.write(struct.pack(">H", len(packet)) + packet)
        writer.close()
        await writer.wait_closed()


Serve = Callable[[Answer], contextlib.AbstractAsyncContextManager[DnsServer]]


@pytest.fixture
def serve(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Answer], contextlib.AbstractAsyncContextManager[DnsServer]]:
    @contextlib.asynccontextmanager
    async def running(answer: Answer) -> AsyncIterator[DnsServer]:
        made = DnsServer(answer)
        tcp = await asyncio.start_server(made.tcp, "127.0.0.1", 0)
        address = tcp.sockets[0].getsockname()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: made, local_addr=address)
        monkeypatch.setenv("LIGHTAGENT_DNS", f"{address[0]}:{address[1]}")
        try:
            yield made
        finally:
            transport.close()
            tcp.close()
            await tcp.wait_closed()
            await asyncio.sleep(0)

    return running


async def test_mx_records_come_in_order_of_preference(call: Call, serve: Serve) -> None:
    def answer(query: bytes, tcp: bool) -> list[bytes]:
        second = record(SELF, MX, struct.pack(">H", 20) + b"\x01b" + SELF)
        first = record(SELF, MX, struct.pack(">H", 10) + wire_name("a.example.net"))
        return [reply(query, second, first)]

    async with serve(answer) as server:
        result = await call("net", "resolve", name="Example.org.", type="MX")
    assert result.metadata["answers"] == ["10 a.example.net", "20 b.example.org"]
    assert server.queries[0][12:] == wire_name("example.org") + struct.pack(">2H", MX, 1)


async def test_txt_strings_are_joined_and_odd_bytes_escaped(call: Call, serve: Serve) -> None:
    def answer(query: bytes, tcp: bool) -> list[bytes]:
        return [reply(query, record(SELF, TXT, b"\x08v=spf1 -\x03all"), record(SELF, TXT, b"\x03\xff\na"))]

    async with serve(answer):
        result = await call("net", "resolve", name="example.org", type="TXT")
    assert result.metadata["answers"] == ["v=spf1 -all", "\\xff\\x0aa"]


async def test_alias_is_followed_and_other_names_are_ignored(call: Call, serve: Serve) -> None:
    def answer(query: bytes, tcp: bool) -> list[bytes]:
        alias = record(SELF, CNAME, wire_name("real.example.org"))
        other = record(wire_name("evil.example.org"), TXT, b"\x04evil")
        real = record(wire_name("real.example.org"), TXT, b"\x04real")
        return [reply(query, alias, other, real)]

    async with serve(answer):
        result = await call("net", "resolve", name="www.example.org", type="TXT")
    assert result.metadata["answers"] == ["real"]


async def test_cut_answer_is_asked_for_again_over_tcp(call: Call, serve: Serve) -> None:
    def answer(query: bytes, tcp: bool) -> list[bytes]:
        if not tcp:
            return [reply(query, flags=0x8380)]
        return [reply(query, *(record(SELF, TXT, b"\xc8" + bytes([65 + n]) * 200) for n in range(20)))]

    async with serve(answer):
        result = await call("net", "resolve", name="example.org", type="TXT")
    assert result.metadata["answers"] == [chr(65 + n) * 200 for n in range(20)]


async def test_answers_with_a_wrong_number_or_question_are_ignored(call: Call, serve: Serve) -> None:
    def answer(query: bytes, tcp: bool) -> list[bytes]:
        bad = record(SELF, TXT, b"\x06forged")
        number = bytes([query[0] ^ 1]) + query[1:]
        question = query[:12] + wire_name("example.net") + query[-4:]
        return [
            b"",
            reply(number, bad),
            reply(question, bad),
            query,
            reply(query, record(SELF, TXT, b"\x04true")),
        ]

    async with serve(answer):
        result = await call("net", "resolve", name="example.org", type="TXT")
    assert result.metadata["answers"] == ["true"]


async def test_two_queries_have_different_numbers_and_ports(call: Call, serve: Serve) -> None:
    async with serve(lambda query, _: [reply(query)]) as server:
        for _ in range(4):
            result = await call("net", "resolve", name="example.org", type="MX")
    assert len({query[:2] for query in server.queries}) > 1
    assert result.output == "example.org has no MX record."


async def test_name_that_does_not_exist_is_not_found(call: Call, serve: Serve) -> None:
    async with serve(lambda query, _: [reply(query, code=3)]):
        with pytest.raises(errors.NotFound, match=r"example\.org does not exist"):
            await call("net", "resolve", name="example.org", type="MX")


async def test_failing_nameserver_is_a_tool_error_with_its_code(call: Call, serve: Serve) -> None:
    async with serve(lambda query, _: [reply(query, code=2)]):
        with pytest.raises(errors.ToolError, match=r"127\.0\.0\.1: SERVFAIL"):
            await call("net", "resolve", name="example.org", type="MX")


async def test_silent_nameserver_ends_with_the_time(call: Call, serve: Serve) -> None:
    async with serve(lambda query, _: []):
        with pytest.raises(errors.TimedOut, match=r"No nameserver answered for example\.org within 0\.1 s"):
            await call("net", "resolve", name="example.org", type="MX", timeout_s=0.1)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">H", 10) + b"\xc0\xff",  # a pointer behind the packet
        struct.pack(">H", 10) + b"\xc0\x2b",  # a pointer to itself
        struct.pack(">H", 10) + b"\x3fshort",
        b"\x00",
    ],
)
async def test_broken_answer_is_an_error_and_no_loop(call: Call, serve: Serve, data: bytes) -> None:
    async with serve(lambda query, _: [reply(query, record(SELF, MX, data))]):
        with pytest.raises(errors.ToolError, match="broken answer"):
            await call("net", "resolve", name="example.org", type="MX")


@pytest.mark.parametrize("name", ["-h@x", "a b.org", "a..org", "x" * 64 + ".org", "a/b", "\udcff.org"])
async def test_names_that_are_none_are_refused_before_asking(call: Call, serve: Serve, name: str) -> None:
    async with serve(lambda query, _: [reply(query)]) as server:
        with pytest.raises((errors.InvalidArgument, ValidationError)):
            await call("net", "resolve", name=name, type="TXT")
    assert server.queries == []


async def test_international_names_are_encoded(call: Call, serve: Serve) -> None:
    async with serve(lambda query, _: [reply(query)]) as server:
        await call("net", "resolve", name="bücher.example", type="MX")
    assert wire_name("xn--bcher-kva.example") in server.queries[0]


async def test_addresses_and_pointers_come_from_the_c_library(call: Call) -> None:
    assert (await call("net", "resolve", name="localhost")).metadata["answers"] == ["127.0.0.1"]
    assert (await call("net", "resolve", name="::1", type="AAAA")).metadata["answers"] == ["::1"]
    with pytest.raises(errors.InvalidArgument, match="is not an address"):
        await call("net", "resolve", name="localhost", type="PTR")


# -- ping --

FakePing = Callable[[str], Path]
PING = """#!/bin/sh
printf '%s\\n' "$@" > {seen}
echo "LANG=$LANG" >> {seen}
{body}
"""
GOOD = """cat <<'END'
PING host.example (192.0.2.7) 56(84) bytes of data.
64 bytes from 192.0.2.7: icmp_seq=1 ttl=64 time=0.040 ms
64 bytes from 192.0.2.7: icmp_seq=2 ttl=64 time=0.080 ms

--- host.example ping statistics ---
3 packets transmitted, 2 received, 33.3333% packet loss, time 2003ms
rtt min/avg/max/mdev = 0.040/0.060/0.080/0.020 ms
END"""


@pytest.fixture
def fake_ping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePing:
    """`fake_ping(body)` puts a program ping on PATH; gives the file where it writes its arguments."""

    def made(body: str) -> Path:
        seen, program = tmp_path / "seen", tmp_path / "ping"
        program.write_text(PING.format(seen=seen, body=body))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return seen

    return made


async def test_ping_reports_loss_times_and_address(call: Call, fake_ping: FakePing) -> None:
    seen = fake_ping(GOOD)
    result = await call("net", "ping", host="host.example", count=3)
    assert result.output == (
        "host.example (192.0.2.7): 2 of 3 answered, 33 % loss, 0.04 / 0.06 / 0.08 ms (least, average, most)."
    )
    assert result.metadata["times_ms"] == [0.04, 0.08]
    arguments = seen.read_text().splitlines()
    assert arguments[-3:] == ["--", "host.example", "LANG=C"]
    assert arguments[arguments.index("-c") + 1] == "3"


async def test_ping_of_a_silent_host_is_a_result(call: Call, fake_ping: FakePing) -> None:
    fake_ping("echo '2 packets transmitted, 0 received, 100% packet loss, time 1001ms'; exit 1")
    result = await call("net", "ping", host="192.0.2.9", count=2)
    assert result.output == "192.0.2.9: 0 of 2 answered, 100 % loss."


async def test_ping_of_an_unknown_host_is_an_error(call: Call, fake_ping: FakePing) -> None:
    fake_ping("echo 'ping: nowhere.example: Name or service not known' >&2; exit 2")
    with pytest.raises(errors.ToolError, match="Name or service not known"):
        await call("net", "ping", host="nowhere.example")


async def test_ping_without_the_right_to_is_permission_denied(call: Call, fake_ping: FakePing) -> None:
    fake_ping("echo 'ping: socktype: SOCK_RAW' >&2; echo 'ping: socket: Operation not permitted' >&2; exit 2")
    with pytest.raises(errors.PermissionDenied, match="may not open its socket") as caught:
        await call("net", "ping", host="192.0.2.9")
    assert "CAP_NET_RAW" in caught.value.suggestion


@pytest.mark.parametrize("host", ["-f", "--help", "a b", "a;b", "", "$(x)", "a\nb", "-"])
async def test_ping_takes_no_option_as_a_host(call: Call, host: str) -> None:
    with pytest.raises(ValidationError):
        await call("net", "ping", host=host)


@pytest.mark.skipif(shutil.which("ping", path=SYSTEM_PATH) is not None, reason="ping is installed")
async def test_missing_ping_is_a_clear_error(call: Call) -> None:
    with pytest.raises(errors.ToolError, match="ping is not installed"):
        await call("net", "ping", host="127.0.0.1")


@pytest.mark.skipif(shutil.which("ping", path=SYSTEM_PATH) is None, reason="ping is not installed")
async def test_real_ping_of_loopback_is_understood(call: Call) -> None:
    try:
        result = await call("net", "ping", host="127.0.0.1", count=1)
    except errors.PermissionDenied:
        pytest.skip("this user may not ping")
    assert result.metadata["received"] == 1
    assert len(result.metadata["times_ms"]) == 1


def test_effects_and_taints_are_declared(load: Load) -> None:
    actions = load("net").actions
    assert {name for name, found in actions.items() if found.effect is Effect.REACH} == {"ping", "resolve"}
    assert {name for name, found in actions.items() if found.taints} == {"connections", "resolve"}
