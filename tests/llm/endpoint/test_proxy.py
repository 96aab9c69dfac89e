"""Proxies, with a real one: for http and https, by configuration and environment, with a password, broken."""

from __future__ import annotations

import base64
import socket
from pathlib import Path

import pytest

from lightagentd.errors import ModelUnreachable
from lightagentd.redaction import Redactor
from tests.llm.endpoint.asking import asked, failed, said
from tests.llm.endpoint.certificates import Authority
from tests.llm.endpoint.raw_server import Proxy, RawServer, Reply, response
from tests.scripted_model import DONE, chunk

HELLO = [Reply([response(chunk({"content": "hello"}) + chunk({}, "stop") + DONE)])]
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def test_https_goes_through_a_tunnel(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with RawServer(HELLO, authority.server()) as server, Proxy() as proxy:
        parts = await asked(
            base_url=server.base_url, ca_file=authority.file, proxy=proxy.url, api_key="sk-very-secret"
        )
        assert said(parts) == "hello"
        assert [found.line for found in proxy.asked] == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
        assert not any("secret" in value for value in proxy.asked[0].headers.values())


async def test_http_goes_by_the_whole_url() -> None:
    async with RawServer(HELLO) as server, Proxy() as proxy:
        assert said(await asked(base_url=server.base_url, proxy=proxy.url)) == "hello"
        assert proxy.asked[0].line == f"POST {server.base_url}/chat/completions HTTP/1.1"


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, name: str, scheme: str
) -> None:
    async with RawServer(HELLO) as server, Proxy() as proxy:
        monkeypatch.setenv(name, f"{scheme}127.0.0.1:{proxy.port}")
        assert said(await asked(base_url=server.base_url)) == "hello"
        assert len(proxy.asked) == 1


async def test_none_is_no_proxy_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer(HELLO) as server, Proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert said(await asked(base_url=server.base_url, proxy="none")) == "hello"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert said(await asked(base_url=server.base_url)) == "hello"
        assert not proxy.asked


async def test_a_password_in_the_proxy_is_sent_to_it_and_to_nobody_else() -> None:
    authorization = "Basic " + base64.b64encode(b"ops:hunter2").decode()
    async with RawServer(HELLO) as server, Proxy(authorization=authorization) as proxy:
        url = proxy.url.replace("//", "//ops:hunter2@")
        assert said(await asked(base_url=server.base_url, proxy=url)) == "hello"
        assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize("tls", [True, False])
async def test_a_proxy_that_wants_a_password_says_so(tls: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server() if tls else None
    async with RawServer(HELLO, context) as server, Proxy(authorization="Basic x") as proxy:
        url = proxy.url.replace("//", "//ops:hunter2@")
        err = await failed(base_url=server.base_url, proxy=url, ca_file=authority.file)
        assert not server.requests
    assert isinstance(err, ModelUnreachable)
    assert not err.transient
    assert "407" in err.message
    assert "password" in err.suggestion
    assert Redactor().text(err.suggestion) == err.suggestion, "nothing in it looks like a secret"
    assert "hunter2" not in f"{err.message} {err.suggestion}"


@pytest.mark.parametrize(("status", "transient"), [("502 Bad Gateway", True), ("403 Forbidden", False)])
async def test_a_proxy_that_does_not_connect_is_told(tmp_path: Path, status: str, transient: bool) -> None:
    async with Proxy(refuses=status) as proxy:
        err = await failed(base_url="https://model.example.org/v1", proxy=proxy.url)
    assert isinstance(err, ModelUnreachable)
    assert err.transient is transient
    assert status in err.message
    assert f"127.0.0.1:{proxy.port}" in err.message
    assert "proxy" in err.suggestion


async def test_a_proxy_that_is_not_there_is_told_as_the_proxy() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        err = await failed(base_url="http://model.example.org/v1", proxy=f"http://u:hunter2@127.0.0.1:{port}")
    assert type(err) is ModelUnreachable
    assert f"The proxy 127.0.0.1:{port}" in err.message
    assert "hunter2" not in err.message


@pytest.mark.parametrize("proxy", ["nowhere", "ftp://h:1", "http://h:port", "socks5://127.0.0.1:9"])
async def test_a_proxy_that_cannot_be_used_is_told(proxy: str) -> None:
    err = await failed(base_url="http://127.0.0.1:9/v1", proxy=proxy)
    assert "proxy" in f"{err.message} {err.suggestion}"
