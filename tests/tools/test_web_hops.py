"""The tool web from one host to the next: redirects, and whom a TLS connection is made with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd import errors
from tests.clock import pass_time
from tests.tools.conftest import Call
from tests.tools.web_server import Asked, Authority, Nameserver, fetch, reply, serve, text_page


@pytest.fixture(autouse=True)
def _loopback_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "127.0.0.0/8")


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Whose certificates are trusted."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return made


# -- redirects --


def moved(location: str, status: str = "302 Found") -> bytes:
    return reply(b"", status, location=location)


async def test_redirects_are_followed_and_named(call: Call) -> None:
    def page(asked: Asked) -> bytes:
        return moved("b c?d") if asked.line.startswith("GET /a ") else text_page(asked)

    async with serve(page) as server:
        result = await call("web", "get", url=server.url("/a"))
    assert result.metadata["url"] == server.url("/b%20c?d")
    assert result.metadata["redirects"] == [server.url("/a")]
    assert f"redirected from {server.url('/a')}" in result.output


async def test_every_redirect_is_checked_again(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(text_page) as hidden, serve(lambda _: moved(hidden.url())) as server:
        monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", f"127.0.0.1:{server.port}")
        with pytest.raises(errors.PermissionDenied, match=f"127.0.0.1:{hidden.port} may not be asked"):
            await call("web", "get", url=server.url())
    assert hidden.connections == 0


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/", "//169.254.169.254/", "http://[::ffff:169.254.169.254]/"],
)
async def test_redirect_to_metadata_is_refused(call: Call, location: str) -> None:
    async with serve(lambda _: moved(location)) as server:
        with pytest.raises(errors.PermissionDenied, match="metadata"):
            await call("web", "get", url=server.url())


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "http://2130706433/",
        "http://a@127.0.0.1/",
        "http://[",
        "x" * 5000,
        "javascript:1",
    ],
)
async def test_redirect_to_a_strange_url_is_an_error(call: Call, location: str) -> None:
    async with serve(lambda _: moved(location)) as server:
        with pytest.raises(errors.ToolError, match="redirects to something"):
            await call("web", "get", url=server.url())


async def test_at_most_five_redirects_are_followed(call: Call) -> None:
    async with serve(lambda _: moved("/again")) as server:
        with pytest.raises(errors.LimitExceeded, match="redirects more than 5 times"):
            await call("web", "get", url=server.url())
    assert server.connections == 6


async def test_redirect_can_be_the_answer(call: Call) -> None:
    async with serve(lambda _: moved("/there")) as server:
        result = await call("web", "get", url=server.url(), redirects=0)
    assert result.metadata["status"] == 302
    assert "location: /there" in result.output


async def test_credentials_stay_with_their_host(call: Call) -> None:
    headers = {"Authorization": "Bearer t", "Cookie": "c=1", "X-Api-Key": "k", "Accept": "text/plain"}
    async with serve(text_page, host="127.0.0.2") as other:

        def page(asked: Asked) -> bytes:
            there = f"http://127.0.0.2:{other.port}/"
            return moved("/b" if asked.line.startswith("GET /a ") else there)

        async with serve(page) as server:
            await call("web", "get", url=server.url("/a"), headers=headers)
    assert server.asked[1].headers["authorization"] == "Bearer t"
    assert server.asked[1].headers["x-api-key"] == "k"
    assert not {"authorization", "cookie", "x-api-key"} & set(other.asked[0].headers)
    assert other.asked[0].headers["accept"] == "text/plain"


async def test_credentials_are_not_sent_from_https_to_http(call: Call, authority: Authority) -> None:
    async with (
        serve(text_page) as plain,
        serve(lambda _: moved(plain.url()), tls=authority.server("127.0.0.1")) as server,
    ):
        with pytest.raises(errors.ToolError, match="authorization would be sent unencrypted"):
            await call("web", "get", url=server.url(scheme="https"), headers={"Authorization": "x"})
        assert plain.connections == 0
        result = await call("web", "get", url=server.url(scheme="https"))
    assert result.metadata["url"] == plain.url()


@pytest.mark.parametrize(
    ("status", "method", "body"),
    [("302 Found", "GET", b""), ("303 See Other", "GET", b""), ("307 Temporary Redirect", "POST", b"x")],
)
async def test_post_becomes_get_where_http_says_so(call: Call, status: str, method: str, body: bytes) -> None:
    def page(asked: Asked) -> bytes:
        return moved("/b", status) if " /a " in asked.line else text_page(asked)

    async with serve(page) as server:
        await call("web", "post", url=server.url("/a"), body="x")
    assert server.asked[1].line == f"{method} /b HTTP/1.1"
    assert server.asked[1].body == body


async def test_page_cannot_have_a_body_sent_to_another_host(call: Call) -> None:
    async with serve(text_page) as other, serve(lambda _: moved(other.url(), "308 P")) as server:
        with pytest.raises(errors.ToolError, match="which is another host"):
            await call("web", "post", url=server.url(), body="secret")
    assert other.connections == 0


# -- TLS --


async def test_tls_asks_for_the_name_and_checks_it(authority: Authority) -> None:
    names = Nameserver(["127.0.0.1"])
    async with serve(text_page, tls=authority.server("site.example")) as server:
        found = await fetch(f"https://site.example:{server.port}/", names)
        with pytest.raises(
            errors.ToolError, match=r"certificate of other\.example:\d+ is not valid: Hostname"
        ):
            await fetch(f"https://other.example:{server.port}/", names)
    assert found.body == b"hello"
    assert server.names[0] == "site.example"
    assert server.asked[0].headers["host"] == f"site.example:{server.port}"


async def test_name_behind_a_redirect_is_checked_on_a_connection_of_its_own(authority: Authority) -> None:
    def page(asked: Asked) -> bytes:
        return moved(f"https://other.example:{server.port}/")

    async with serve(page, tls=authority.server("site.example")) as server:
        with pytest.raises(errors.ToolError, match=r"certificate of other\.example"):
            await fetch(f"https://site.example:{server.port}/", Nameserver(["127.0.0.1"]))


async def test_certificate_of_an_address_is_checked(call: Call, authority: Authority) -> None:
    async with serve(text_page, tls=authority.server("127.0.0.1")) as server:
        result = await call("web", "get", url=server.url(scheme="https"))
    assert result.output.endswith("hello")


async def test_expired_certificate_is_named(call: Call, authority: Authority) -> None:
    async with serve(text_page, tls=authority.server("127.0.0.1", days=-5)) as server:
        with pytest.raises(errors.ToolError, match=r"certificate of 127\.0\.0\.1:\d+ .* has expired"):
            await call("web", "get", url=server.url(scheme="https"))
    assert server.asked == []


async def test_unknown_authority_is_refused(
    call: Call, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "other").path))
    async with serve(text_page, tls=authority.server("127.0.0.1")) as server:
        with pytest.raises(errors.ToolError, match=r"is not valid: .*(certificate|signature)"):
            await call("web", "get", url=server.url(scheme="https"))


async def test_server_without_tls_is_a_clear_error(call: Call, authority: Authority) -> None:
    async def greeting(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"x" * 50))
        writer.close()

    async with await asyncio.start_server(greeting, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.ToolError, match="TLS with"):
            await call("web", "get", url=f"https://127.0.0.1:{port}/", timeout_s=5)


async def test_handshake_that_does_not_end_leaves_no_connection(call: Call, authority: Authority) -> None:
    came, closed = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        while await reader.read(4096):
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        calling = asyncio.create_task(call("web", "get", url=f"https://127.0.0.1:{port}/", timeout_s=25))
        await came.wait()
        pass_time(25)
        with pytest.raises(errors.TimedOut):
            await calling
        async with asyncio.timeout(30):
            await closed.wait()
