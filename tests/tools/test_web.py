"""The tool web against real HTTP and TLS servers on loopback, which LIGHTAGENT_WEB_ALLOW lets in."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.tool import Effect
from lightagentd.worker.calls import describe
from tests.tools.conftest import TOOLS, Call, CallContext, Load
from tests.tools.web_server import Asked, Nameserver, fetch, reply, serve, text_page

Allow = Callable[..., None]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def allow(monkeypatch: pytest.MonkeyPatch) -> Allow:
    """Loopback is let in; `allow("127.0.0.1:80")` lets only that in."""

    def only(*entries: str) -> None:
        monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", ",".join(entries))

    only("127.0.0.0/8")
    return only


# -- requests --


async def test_get_shows_status_url_headers_and_body(call: Call) -> None:
    def page(_: Asked) -> bytes:
        return reply(b"hello", content_type="text/plain", etag='"1"', set_cookie="secret=1", x_odd="no")

    async with serve(page) as server:
        result = await call("web", "get", url=server.url("/a?b=c#d"))
    assert result.output == (
        f'200 OK {server.url("/a?b=c")}\ncontent-length: 5\ncontent-type: text/plain\netag: "1"\n\nhello'
    )
    assert result.metadata["status"] == 200
    assert result.metadata["address"] == "127.0.0.1"
    assert result.metadata["size_bytes"] == 5
    assert server.asked[0].line == "GET /a?b=c HTTP/1.1"
    assert server.asked[0].headers["host"] == f"127.0.0.1:{server.port}"


async def test_headers_and_params_are_sent_encoded(call: Call) -> None:
    params = {"q": "a b&c=ü", "n": 3, "yes": True}
    async with serve(text_page) as server:
        url = server.url("/ü?x=1")
        await call("web", "get", url=url, headers={"X-Token": "t"}, params=params)
    assert server.asked[0].line == "GET /%C3%BC?x=1&q=a+b%26c%3D%C3%BC&n=3&yes=true HTTP/1.1"
    assert server.asked[0].headers["x-token"] == "t"


@pytest.mark.parametrize(
    ("body", "headers", "sent", "kind"),
    [
        ("grüße", {}, "grüße".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, None]}, {}, b'{"a": [1, null]}', "application/json"),
        ("a=1", {"Content-Type": "application/x-www-form-urlencoded"}, b"a=1", None),
    ],
)
async def test_post_sends_text_or_json(
    call: Call, body: object, headers: dict[str, str], sent: bytes, kind: str | None
) -> None:
    async with serve(text_page) as server:
        await call("web", "post", url=server.url(), body=body, headers=headers)
    assert server.asked[0].line.startswith("POST / ")
    assert server.asked[0].body == sent
    assert server.asked[0].headers["content-type"] == kind or headers["Content-Type"]


async def test_head_reads_no_body(call: Call) -> None:
    head = reply(b"", content_type="text/plain", content_length="12345")
    async with serve(lambda _: head) as server:
        result = await call("web", "get", url=server.url(), head=True)
    assert server.asked[0].line.startswith("HEAD / ")
    assert result.output.splitlines()[-1] == "content-type: text/plain"


async def test_error_status_is_a_result(call: Call) -> None:
    async with serve(lambda _: reply(b"gone", "404 Not Found", content_type="text/plain")) as server:
        result = await call("web", "get", url=server.url("/x"))
    assert result.output.startswith(f"404 Not Found {server.url('/x')}\n")
    assert result.output.endswith("\n\ngone")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "1\r\nX-B: 2"},
        {"X-A": "1\nX-B: 2"},
        {"X-A": "nul\0"},
        {"X-A: 1\r\nX-B": "2"},
        {"X A": "1"},
        {"": "1"},
        {"X-A": "ü"},
        {"X-A": "1", "x-a": "2"},
        {"Host": "other.example"},
        {"Content-Length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"Proxy-Authorization": "Basic x"},
        {"X-A": "x" * 9000},
    ],
)
async def test_headers_that_would_change_the_request_are_refused(call: Call, headers: dict[str, str]) -> None:
    async with serve(text_page) as server:
        with pytest.raises(errors.InvalidArgument) as caught:
            await call("web", "get", url=server.url(), headers=headers)
    assert caught.value.field == "headers"
    assert server.connections == 0


@pytest.mark.parametrize("body", ["\udcff", {"a": float("nan")}, "x" * (MIB + 1)])
async def test_bodies_that_cannot_be_sent_are_refused(call: Call, body: object) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        await call("web", "post", url="http://127.0.0.1:9/", body=body)
    assert caught.value.field == "body"


async def test_unknown_methods_and_arguments_do_not_exist(call: Call, load: Load) -> None:
    assert set(load("web").actions) == {"get", "post"}
    with pytest.raises(ValidationError):
        await call("web", "get", url="http://127.0.0.1/", method="DELETE")


async def test_proxies_and_netrc_of_the_environment_are_not_used(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    async with serve(text_page) as server, serve(text_page) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        await call("web", "get", url=server.url())
    assert (server.connections, proxy.connections) == (1, 0)
    assert "authorization" not in server.asked[0].headers


# -- addresses --


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/", "http://localhost/", "http://169.254.169.254/", "http://[::ffff:7f00:1]/"]
)
async def test_private_hosts_are_refused_unless_they_are_let_in(call: Call, allow: Allow, url: str) -> None:
    allow()
    with pytest.raises(errors.PermissionDenied, match="may not be asked"):
        await call("web", "get", url=url)


async def test_url_with_a_password_is_refused(call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="has a user name in it"):
        await call("web", "get", url="http://user:password@127.0.0.1/")


async def test_name_is_resolved_once_and_the_checked_address_is_connected_to() -> None:
    names = Nameserver(["127.0.0.2"], ["169.254.169.254"])
    async with serve(text_page, host="127.0.0.2") as server:
        found = await fetch(f"http://Rebind.Example.:{server.port}/", names)
    assert found.address == "127.0.0.2"
    assert names.asked == ["rebind.example"]
    assert server.asked[0].headers["host"] == f"rebind.example:{server.port}"


async def test_second_address_is_tried_when_the_first_takes_no_connection() -> None:
    async with serve(text_page, host="127.0.0.3") as server:
        names = Nameserver(["127.0.0.2", "127.0.0.3"])
        found = await fetch(f"http://two.example:{server.port}/", names)
    assert found.address == "127.0.0.3"


async def test_name_without_addresses_is_not_found() -> None:
    with pytest.raises(errors.NotFound, match=r"none\.example has no address"):
        await fetch("http://none.example/", Nameserver([]))


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "a b", "http://x", "x:99999", "10.0.0.0/8:80", "*.example"])
async def test_broken_configuration_lets_nothing_in(call: Call, allow: Allow, entry: str) -> None:
    allow("127.0.0.0/8", entry)
    async with serve(text_page) as server:
        with pytest.raises(errors.ConfigError) as caught:
            await call("web", "get", url=server.url())
    assert repr(entry) in str(caught.value)
    assert server.connections == 0


# -- limits --


async def endless(head: bytes, piece: bytes) -> AsyncIterator[bytes]:
    yield head
    while True:
        yield piece


async def test_endless_body_is_cut(call: Call) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
    async with serve(lambda _: endless(head, b"x" * 65536)) as server:
        result = await call("web", "get", url=server.url())
    assert result.metadata["truncated"] is True
    assert result.metadata["size_bytes"] == 2 * MIB
    assert result.output.endswith("[Only the first 2097152 bytes of the body were kept.]")


async def test_body_of_the_limit_is_whole_and_one_byte_more_is_not(call: Call) -> None:
    async with serve(lambda _: reply(b"x" * 100, content_type="text/plain")) as server:
        whole = await call("web", "get", url=server.url(), limit_bytes=100)
        cut = await call("web", "get", url=server.url(), limit_bytes=99)
    assert (whole.metadata["truncated"], whole.metadata["size_bytes"]) == (False, 100)
    assert (cut.metadata["truncated"], cut.metadata["size_bytes"]) == (True, 99)


async def test_compressed_bomb_is_never_whole_in_memory(call: Call) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(128)) + packer.flush()
    async with serve(lambda _: reply(bomb, content_encoding="gzip", content_type="text/css")) as server:
        await call("web", "get", url=server.url())  # what is imported does not count
        tracemalloc.start()
        try:
            result = await call("web", "get", url=server.url())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (result.metadata["truncated"], result.metadata["size_bytes"]) == (True, 2 * MIB)
    assert peak_bytes < 24 * MIB


async def test_gzip_is_decoded_member_by_member(call: Call) -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    async with serve(lambda _: reply(body, content_encoding="gzip", content_type="text/plain")) as server:
        result = await call("web", "get", url=server.url())
    assert server.asked[0].headers["accept-encoding"] == "gzip"
    assert result.output.endswith("\n\none two")
    assert result.metadata["truncated"] is False


async def test_gzip_that_ends_early_counts_as_cut(call: Call) -> None:
    body = gzip.compress(b"hello " * 100)[:-12]
    async with serve(lambda _: reply(body, content_encoding="gzip", content_type="text/plain")) as server:
        assert (await call("web", "get", url=server.url())).metadata["truncated"] is True


@pytest.mark.parametrize(("encoding", "why"), [("gzip", "compression is broken"), ("br", "'br'")])
async def test_body_that_cannot_be_decoded_is_an_error(call: Call, encoding: str, why: str) -> None:
    async with serve(lambda _: reply(b"not packed", content_encoding=encoding)) as server:
        with pytest.raises(errors.ToolError, match=why):
            await call("web", "get", url=server.url())


async def test_slow_answer_ends_with_the_time(call: Call) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    async with serve(lambda _: dripping()) as server:
        with pytest.raises(errors.TimedOut, match=r"within 0\.2 s"):
            await call("web", "get", url=server.url(), timeout_s=0.2)


async def test_time_of_the_call_bounds_that_of_the_request(call: Call, context: CallContext) -> None:
    context.timeout_s = 0.2

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async with serve(lambda _: silent()) as server:
        with pytest.raises(errors.TimedOut):
            await call("web", "get", url=server.url(), timeout_s=100)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"])
async def test_answer_that_is_not_http_is_an_error(call: Call, answer: bytes) -> None:
    async with serve(lambda _: answer) as server:
        with pytest.raises(errors.ToolError, match="broke off"):
            await call("web", "get", url=server.url())


async def test_refused_connection_is_a_clear_error(call: Call) -> None:
    async with serve(text_page) as server:
        url = server.url()
    with pytest.raises(errors.ToolError, match="cannot be connected to: Connection refused"):
        await call("web", "get", url=url)


# -- content --


@pytest.mark.parametrize(
    ("body", "kind", "text", "charset"),
    [
        ("grüße".encode("latin-1"), "text/plain; charset=ISO-8859-1", "grüße", "cp1252"),
        ("привет".encode("koi8-r"), "text/plain; charset=koi8-r", "привет", "koi8-r"),
        ("grüße".encode(), "text/plain", "grüße", "utf-8"),
        ("grüße".encode("cp1252"), "text/plain", "grüße", "cp1252"),
        (b"\xef\xbb\xbfgr\xc3\xbc", "text/plain; charset=latin-1", "grü", "utf-8"),
        ("grüße".encode("utf-16"), "text/plain", "grüße", "utf-16"),
        ('<meta charset="koi8-r">мир'.encode("koi8-r"), "text/html", '<meta charset="koi8-r">мир', "koi8-r"),
        (b"a\\u0041", "text/plain; charset=unicode_escape", "a\\u0041", "utf-8"),
        (b"abc", "text/plain; charset=zip", "abc", "utf-8"),
        (b"\xff\xe9", "text/plain; charset=utf-8", "\ufffd\ufffd", "utf-8"),
        (b'{"a":1}', "application/problem+json", '{"a":1}', "utf-8"),
        (b"plain", "", "plain", "utf-8"),
        (b"\x1b[2Jx\x00", "text/plain; charset=utf-16le", "", "utf-16-le"),
        (b"a\x1b[2J\r\n\tb", "text/plain", "a\\x1b[2J\n\tb", "utf-8"),
    ],
)
async def test_text_is_read_in_its_charset(
    call: Call, body: bytes, kind: str, text: str, charset: str
) -> None:
    headers = {"content_type": kind} if kind else {}
    async with serve(lambda _: reply(body, **headers)) as server:
        result = await call("web", "get", url=server.url())
    assert result.metadata["charset"] == charset
    assert result.output.partition("\n\n")[2].endswith(text)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"ab\0cd", "text/plain"),
        (b"\x7fELF\x02", ""),
        (b"\xff\xfb\x90", "application/octet-stream"),
    ],
)
async def test_binary_content_is_described(call: Call, body: bytes, kind: str) -> None:
    headers = {"content_type": kind} if kind else {}
    async with serve(lambda _: reply(body, **headers)) as server:
        result = await call("web", "get", url=server.url())
    digest = hashlib.sha256(body).hexdigest()
    assert result.output.endswith(
        f"Binary content: {kind or 'unknown type'}, {len(body)} bytes, SHA-256 {digest}."
    )
    assert result.metadata["sha256"] == digest


async def test_header_values_cannot_drive_a_terminal(call: Call) -> None:
    answer = b"HTTP/1.1 200 O\xffK\r\nserver: a\xff\x9b2J\r\ncontent-length: 0\r\n\r\n"
    async with serve(lambda _: answer) as server:
        result = await call("web", "get", url=server.url())
    assert "server: a\\xff\\x9b2J" in result.output
    assert result.output.isprintable() or "\n" in result.output
    assert not any(ord(char) in range(127, 160) for char in result.output)


async def test_html_becomes_text_where_that_is_asked_for(call: Call) -> None:
    page = b"<script>x</script><p>One <a href=/two>two</a>"
    async with serve(lambda _: reply(page, content_type="text/html")) as server:
        raw = await call("web", "get", url=server.url())
        text = await call("web", "get", url=server.url(), as_text=True)
    assert raw.output.endswith(page.decode())
    assert text.output.endswith(f"\n\nOne [two]({server.url('/two')})")


async def test_as_text_leaves_what_is_not_html(call: Call) -> None:
    async with serve(lambda _: reply(b'{"a": "<b>"}', content_type="application/json")) as server:
        result = await call("web", "get", url=server.url(), as_text=True)
    assert result.output.endswith('{"a": "<b>"}')


# -- declarations --


def test_effects_and_taints_are_declared(load: Load) -> None:
    for found in load("web").actions.values():
        assert found.effect is Effect.REACH
        assert found.taints


def test_arguments_can_be_described_to_a_model(load: Load) -> None:
    described = describe(load("web"))
    assert described["problem"] == ""
    schemas = {action["name"]: action["schema"] for action in described["actions"]}
    assert schemas["post"]["required"] == ["url"]
    json.dumps(described)


def test_loading_the_tool_loads_no_http_client() -> None:
    code = (
        "import sys; from pathlib import Path; from lightagentd.worker.loader import load_tool;"
        f"assert load_tool(Path({str(TOOLS / 'web.py')!r})).tool;"
        "print([name for name in ('httpx', 'httpcore', 'idna', 'h11', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=TOOLS.parent
    )
    assert done.stdout == "[]\n"
