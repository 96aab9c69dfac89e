"""What the areas of the network, names, the firewall and the clock find, from made tables and files."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import pytest

from tests.skills.library import module
from tests.skills.script import finding, report

network, names, firewall, clock_sync = (
    module(f"areas.{name}") for name in ("network", "names", "firewall", "clock_sync")
)
unit_states, dns_query = module("unit_states"), module("dns_query")


def link(name: str, *flags: str, address: str = "", **more: Any) -> dict[str, Any]:
    """A row of `ip -j -d -s address`."""
    own = [{"local": address, "prefixlen": 24, "scope": "global"}] if address else []
    return {"ifname": name, "flags": list(flags), "mtu": 1500, "addr_info": own, "operstate": "UP", **more}


LO = link("lo", "UP", mtu=65536)
ETH0 = link("eth0", "UP", address="192.0.2.2")


@pytest.mark.parametrize(
    ("rows", "wanted", "said"),
    [
        ([LO, ETH0], {}, []),
        ([LO, link("eth1")], {}, []),  # a port that nobody uses
        (
            [LO, link("docker0", "UP", "NO-CARRIER", address="172.17.0.1", linkinfo={"info_kind": "bridge"})],
            {},
            [],
        ),
        (
            [link("eth0", "UP", "NO-CARRIER", address="192.0.2.2")],
            {},
            ["The interface eth0 (192.0.2.2/24) has no carrier"],
        ),
        (
            [link("eth0", address="192.0.2.2")],
            {},
            ["eth0 is switched off, although it has the address 192.0.2.2/24"],
        ),
        (
            [link("eth0")],
            {"eth0": "/etc/network/interfaces"},
            ["although /etc/network/interfaces configures it"],
        ),
        (
            [],
            {"eth7": "/etc/network/interfaces"},
            ["eth7, which /etc/network/interfaces configures, does not exist"],
        ),
        ([link("lo")], {}, ["loopback interface lo is switched off"]),
        ([link("eth0", "UP", mtu=576)], {}, ["The MTU of eth0 is 576"]),
        ([ETH0, link("eth1", "UP", address="192.0.2.2")], {}, ["192.0.2.2 is on both eth0 and eth1"]),
        (
            [link("eth0", "UP", stats64={"rx": {"packets": 5000, "errors": 900}})],
            {},
            ["eth0 has 900 errors of 5000 packets received"],
        ),
        ([link("eth0", "UP", stats64={"rx": {"packets": 90000, "errors": 120}})], {}, []),
        (
            [link("p1", "UP", master="br0", mtu=9000), link("p2", "UP", master="br0")],
            {},
            ["The members of br0 differ in their MTU: p2 1500, p1 9000"],
        ),
    ],
)
def test_faults_of_interfaces(rows: list[dict[str, Any]], wanted: dict[str, str], said: list[str]) -> None:
    found = [one.text for one in network.of_links(network.interfaces(rows), wanted)]
    assert len(found) == len(said), found
    for text, words in zip(found, said, strict=True):
        assert words in text


def test_faults_of_routes() -> None:
    links = network.interfaces([LO, ETH0])
    way = network.Route("IPv4", "192.0.2.1", "eth0", 100, False)

    def told(*routes: Any, state: str = "REACHABLE") -> str:
        return " ".join(one.text for one in network.of_routes(links, list(routes), {"192.0.2.1": state}))

    assert told(way) == ""
    assert told() == "There is no default route: only the networks of eth0 (192.0.2.2/24) can be reached."
    assert "The gateway 192.0.2.1 does not answer on eth0" in told(way, state="FAILED")
    assert "which has no carrier" in told(network.Route("IPv4", "192.0.2.1", "eth0", 100, True))
    other = network.Route("IPv4", "192.0.2.9", "eth0", 100, False)
    assert "2 default routes with the same metric" in told(way, other)
    assert list(network.of_routes(network.interfaces([LO]), [], {})) == []  # a container without a network


@pytest.mark.parametrize(
    ("judge", "text", "said"),
    [
        ("hosts", "127.0.0.1 localhost\n::1 ip6-localhost # mine\nfe80::1%eth0 router\n", []),
        ("hosts", "# a\n\n10.0.0.300 shop\n", ["/etc/hosts line 3: '10.0.0.300' is not an address."]),
        ("hosts", "10.0.0.3\n", ["/etc/hosts line 1: the address 10.0.0.3 has no name."]),
        ("hosts", "10.0.0.3 sh/op\n", ["/etc/hosts line 1: 'sh/op' is not a host name."]),
        ("hosts", "10.0.0.3 localhost\n", ["/etc/hosts line 1: localhost is 10.0.0.3, not 127.0.0.1."]),
        ("resolv", "nameserver 192.0.2.1\nsearch example.org\noptions edns0 trust-ad\n", []),
        (
            "resolv",
            "nameservr 192.0.2.1\n",
            ["/etc/resolv.conf line 1: 'nameservr' is no keyword of resolv.conf."],
        ),
        (
            "resolv",
            "nameserver one\n",
            ["/etc/resolv.conf line 1: 'one' is not an address, so it is no name server."],
        ),
        (
            "resolv",
            "nameserver 192.0.2.1\n" * 5,
            ["/etc/resolv.conf line 4: only the first 3 name servers are used."],
        ),
        ("nsswitch", "passwd: files systemd\nhosts: files dns\n", []),
        (
            "nsswitch",
            "hosts files dns\n",
            ["/etc/nsswitch.conf line 1: 'hosts' has no colon, so the line is ignored."],
        ),
        (
            "nsswitch",
            "hosts: files\n",
            ["/etc/nsswitch.conf line 1: hosts has neither `dns` nor `resolve`, so no name server is asked."],
        ),
        (
            "nsswitch",
            "hosts: files dns nosuch\n",
            ["/etc/nsswitch.conf line 1: hosts has 'nosuch', but there is no library for it here."],
        ),
        (
            "nsswitch",
            "passwd: ldap\nhosts: dns\n",
            [
                "/etc/nsswitch.conf line 2: hosts has no `files`, so /etc/hosts is not read.",
                "/etc/nsswitch.conf line 1: passwd has no `files`, so /etc/passwd is not read.",
            ],
        ),
    ],
)
def test_faults_of_files_of_names_have_their_line(judge: str, text: str, said: list[str]) -> None:
    assert [one.sentence for one in getattr(names, f"{judge}_faults")(text)] == said


def test_a_name_server_on_this_machine_has_to_listen() -> None:
    (text,) = [one.text for one in names.deaf(["192.0.2.1", "127.0.0.53", "127.86.75.30"])]
    assert text.startswith("The name server 127.86.75.30 in /etc/resolv.conf does not answer")


def unit(name: str, active: str = "active", file_state: str = "enabled", **more: Any) -> Any:
    values = {
        "sub": "running",
        "pid": 1,
        "has_met_conditions": True,
        "since": 1e9,
        "started": 1e9,
        "path": "",
    }
    return unit_states.Unit(name=name, active=active, file_state=file_state, **(values | more))


def test_a_firewall_that_is_switched_on_has_to_run() -> None:
    def told(one: Any, ufw: bool | None = None) -> list[str]:
        return [each.text for each in firewall.faults([one], ufw)]

    assert told(unit("nftables.service")) == told(unit("nftables.service", "inactive", "disabled")) == []
    assert "nftables.service failed since 2001-" in told(unit("nftables.service", "failed"))[0]
    assert told(unit("ufw.service", "inactive"), ufw=False) == []
    assert (
        "switched on in /etc/ufw/ufw.conf but inactive" in told(unit("ufw.service", "inactive"), ufw=True)[0]
    )
    assert firewall.is_ufw_on("ENABLED=no\n") is False


def test_bans_of_fail2ban_end_with_their_unban() -> None:
    lines = ["NOTICE [sshd] Ban 192.0.2.1", "NOTICE [sshd] Ban 192.0.2.2", "NOTICE [sshd] Unban 192.0.2.1"]
    found = firewall.bans_in([(float(number), line) for number, line in enumerate(lines)])
    assert [(one.jail, one.address) for one in found] == [("sshd", "192.0.2.2")]


@pytest.mark.parametrize(
    ("services", "synchronised", "container", "said"),
    [
        ([], True, False, ""),
        ([], None, False, ""),
        ([], False, True, ""),
        ([], False, False, "Nothing sets the clock: no NTP service is installed."),
        ([unit("chrony.service")], True, False, ""),
        ([unit("chrony.service")], False, False, "The clock is not synchronised by chrony.service"),
        ([unit("chrony.service", since=time.time() + 3600)], False, False, ""),
        (
            [unit("chrony.service", "failed")],
            False,
            True,
            "Nothing sets the clock: chrony.service failed since",
        ),
        ([unit("systemd-timesyncd.service", "inactive", has_met_conditions=False)], False, True, ""),
        (
            [unit("ntp.service", "inactive", "disabled")],
            False,
            False,
            "ntp.service is installed but switched off",
        ),
    ],
)
def test_faults_of_the_clock(
    services: list[Any], synchronised: bool | None, container: bool, said: str
) -> None:
    sync = clock_sync.Sync(synchronised=synchronised, services=services, is_container=container)
    found = [one.text for one in clock_sync.faults(sync, [(1.0, "Can't synchronise: no selectable sources")])]
    assert (said in found[0] and len(found) == 1) if said else found == []


def test_the_reports_say_what_is_not_there() -> None:
    assert finding(report("network-check", interface="nosuch0")) == "There is no interface nosuch0."
    assert "does not resolve" in finding(report("name-resolution", host="surely.absent.invalid"))
    assert "localhost resolves to" in finding(report("name-resolution", host="localhost"))


def test_a_name_server_is_asked_and_its_codes_are_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]

        def answer() -> None:
            for code in (3, 0):
                data, peer = server.recvfrom(512)
                counts = struct.pack(">H", 0 if code else 1)
                server.sendto(data[:2] + bytes([0x81, code]) + data[4:6] + counts + data[8:], peer)

        thread = threading.Thread(target=answer)
        thread.start()
        said = [dns_query.ask_server("127.0.0.1", "shop.example", port) for _ in range(2)]
        thread.join()
    assert [good for good, _ in said] == [False, True]
    assert said[0][1].startswith("NXDOMAIN in ")
    assert said[1][1].startswith("NOERROR with 1 record in ")
    assert dns_query.ask_server("127.0.0.1", "shop.example", port) == (
        False,
        "refused: nothing listens on its port 53",
    )
    with pytest.raises(ValueError, match="another question"):
        dns_query.reply(b"\0" * 12, 7)
