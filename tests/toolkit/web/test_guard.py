"""Which URLs and addresses the guard of the tool web lets pass; nothing here connects to anything."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

import pytest

from lightagentd import errors
from lightagentd.toolkit.web.guard import Guard, is_own, parse_rules, parse_url, rules_in_force
from tests.tools.web_server import Nameserver


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("http://localhost/", "loopback"),
        ("http://localhost./", "loopback"),
        ("http://10.1.2.3/", "private"),
        ("http://172.16.0.1/", "private"),
        ("http://192.168.0.1/", "private"),
        ("http://100.64.0.1/", "shared"),
        ("http://169.254.1.1/", "link-local"),
        ("http://169.254.169.254/latest/", "metadata"),
        ("http://169.254.169.254./latest/", "metadata"),
        ("http://168.63.129.16/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://0.0.0.0/", "unspecified"),
        ("http://224.0.0.1/", "multicast"),
        ("http://255.255.255.255/", "reserved"),
        ("http://[::1]/", "loopback"),
        ("http://[::]/", "unspecified"),
        ("http://[fc00::1]/", "private"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fec0::1]/", "reserved"),
        ("http://[ff02::1]/", "multicast"),
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://[::ffff:a9fe:a9fe]/", "metadata"),
        ("http://[::127.0.0.1]/", "reserved"),
        ("http://[2002:7f00:1::1]/", "6to4"),
        ("http://[64:ff9b::10.0.0.1]/", "private"),
        ("http://[64:ff9b::a9fe:a9fe]/", "metadata"),
        ("http://[64:ff9b:1::a00:1]/", "reserved"),
        ("http://[2001::1]/", "tunnel"),
        ("http://①②⑦.⓪.⓪.①/", "loopback"),
        ("http://127。0。0。1/", "loopback"),
    ],
)
async def test_addresses_that_are_not_public_are_refused(url: str, why: str) -> None:
    with pytest.raises(errors.PermissionDenied, match=why) as caught:
        await Guard().addresses(parse_url(url))
    assert "web_allow in [worker]" in caught.value.suggestion


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1.5/",
        "http://user:password@127.0.0.1/",
        "http://127.0.0.1@public.example/",
        "http://public.example\\@127.0.0.1/",
        "http://%31%32%37.0.0.1/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:80:90/",
        "http://[::1%25lo]/",
        "http://[::1].public.example/",
        "http://a..example/",
        "http://-a.example/",
        "http:///path",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX-A: 1",
        "http://127.0.0.1/\udcff",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1/",
        "//127.0.0.1/",
        "http://" + "a" * 8200,
    ],
)
def test_urls_that_can_be_read_in_two_ways_are_refused(url: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        parse_url(url)
    assert caught.value.field == "url"


def test_public_addresses_pass() -> None:
    async def checked(url: str) -> list[str]:
        return [str(address) for address in await Guard().addresses(parse_url(url))]

    assert asyncio.run(checked("https://1.1.1.1/")) == ["1.1.1.1"]
    assert asyncio.run(checked("https://[2606:4700::1111]/")) == ["2606:4700::1111"]
    assert asyncio.run(checked("https://[::ffff:1.1.1.1]/")) == ["1.1.1.1"]
    assert asyncio.run(checked("https://[64:ff9b::1.1.1.1]/")) == ["64:ff9b::101:101"]


def test_addresses_of_this_machine_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("192.0.2.1"))


@pytest.mark.parametrize("bad", ["10.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1%lo"])
async def test_one_private_address_of_a_name_refuses_the_name(bad: str) -> None:
    guard = Guard(resolve=Nameserver(["1.1.1.1", bad]))
    with pytest.raises(errors.PermissionDenied, match=r"name\.example leads to"):
        await guard.addresses(parse_url("http://name.example/"))


@pytest.mark.parametrize(
    ("entry", "url", "address", "passes"),
    [
        ("intra.example", "http://intra.example:81/", "10.0.0.1", True),
        ("intra.example:81", "http://intra.example:81/", "10.0.0.1", True),
        ("intra.example:80", "http://intra.example:81/", "10.0.0.1", False),
        ("intra.example", "http://other.example/", "10.0.0.1", False),
        ("intra.example", "http://a.intra.example/", "10.0.0.1", False),
        ("intra.example", "http://intra.example/", "169.254.169.254", False),
        ("intra.example", "http://intra.example/", "fd00:ec2::254", False),
        ("intra.example", "http://intra.example/", "169.254.1.1", False),
        ("10.0.0.0/8", "http://any.example/", "10.0.0.1", True),
        ("10.0.0.0/8", "http://any.example/", "11.0.0.1", True),
        ("10.0.0.0/8", "http://any.example/", "192.168.0.1", False),
        ("192.168.0.1:443, 10.0.0.1", "https://any.example/", "192.168.0.1", True),
        ("192.168.0.1:443", "http://any.example/", "192.168.0.1", False),
        ("[fd12::1]:80", "http://any.example/", "fd12::1", True),
        ("fd12::1", "http://any.example:81/", "fd12::1", True),
        ("0.0.0.0/0", "http://any.example/", "169.254.169.254", False),
        ("fc00::/7", "http://any.example/", "fd00:ec2::254", False),
        ("169.254.169.254", "http://any.example/", "169.254.169.254", True),
    ],
)
async def test_configuration_lets_in_what_it_names(entry: str, url: str, address: str, passes: bool) -> None:
    guard = Guard(parse_rules(entry), resolve=Nameserver([address]))
    if passes:
        assert [str(each) for each in await guard.addresses(parse_url(url))] == [address]
    else:
        with pytest.raises(errors.PermissionDenied):
            await guard.addresses(parse_url(url))


def test_the_rules_come_from_the_configuration_where_the_worker_is_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def let_in(text: str | None) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        if text is not None:
            (folder / "lightagentd.toml").write_text(text)
        monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW_IN", str(folder))
        return [rule.name for rule in rules_in_force()]

    monkeypatch.delenv("LIGHTAGENT_WEB_ALLOW", raising=False)
    assert let_in('[worker]\nweb_allow = ["intranet.example"]\n') == ["intranet.example"]
    assert let_in(None) == []
    assert let_in("[worker]\nweb_allow = 7\n") == []
    assert "no private address can be reached" in caplog.text
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "other.example")
    assert let_in('[worker]\nweb_allow = ["intranet.example"]\n') == ["other.example"]
