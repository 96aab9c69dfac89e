"""What bad clients of the gateway get, and that others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.gateway.limits import UNPROVED_BYTES
from lightagentd.gateway.live import STORED_CHARS
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.test_authz import needs_root
from tests.control.test_authz import open_paths as open_paths
from tests.gateway.rig import Gateway, gateway
from tests.scripted_model import Stream, chunk, say

HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HEAD
BODY = b'{"model":"test","messages":[{"role":"user","content":"hi"}]}'
LIMITS = """
max_connections = 60
header_timeout_s = 0.5
body_timeout_s = 0.5
idle_timeout_s = 60
write_timeout_s = 1.0
request_bytes = 100000
hosts = ["gw.example.org"]
origins = ["https://chat.example.org"]
"""


async def sent(it: Gateway, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """What the gateway answers to bytes, until it ends the connection."""
    reader, writer = await asyncio.open_unix_connection(it.unix)
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDED = [
    (POST + CHUNKED + b"Content-Length: 5\r\n\r\n" + SMUGGLED, [400]),
    (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + SMUGGLED, [400]),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + SMUGGLED, [400]),
    (POST + CHUNKED + CHUNKED + b"\r\n" + SMUGGLED, [400]),
    (POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + SMUGGLED, [400]),
    (POST + CHUNKED + b"\r\nZZ\r\n" + BODY, [400]),
    (POST + CHUNKED + b"\r\n-1\r\n" + BODY, [400]),
    (POST + b"Content-Length: -5\r\n\r\n", [400]),
    (POST + b"Content-Length : 5\r\n\r\n12345", [400]),
    (POST + b"X: a\r\n b\r\n\x00: y\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n", [400]),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 40, [400]),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    (POST + b"Content-Length: 104857600\r\n\r\n" + b" " * 3_000_000, [413]),
    (POST + CHUNKED + b"\r\n" + b"10000\r\n%b\r\n" % (b" " * 65536) * 4, [413]),
]


async def test_what_is_framed_wrong_or_too_large_ends_the_connection(paths: Paths) -> None:
    async with gateway(paths, [say("ok")], toml=LIMITS) as it:
        for data, expected in ENDED:
            assert statuses(await sent(it, data)) == expected, data[:120]
        # Half a request: of the head, of the body, and of a connection that sends nothing.
        assert statuses(await sent(it, b"GET /healthz HT", pause_s=0.1)) == [408]
        assert statuses(await sent(it, *([b"x"] * 16), pause_s=0.05)) == [408]
        assert statuses(await sent(it, POST + b"Content-Length: 50\r\n\r\n{")) == [408]
        assert await sent(it) == b""
        # Two requests in one piece are two answers, in their order.
        two = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        two += b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await sent(it, two)
        assert statuses(answer) == [200, 200]
        assert answer.index(b"chat.completion") < answer.index(b'{"status":"ok"}')
        assert (await it.http.get("/healthz")).status_code == 200


async def refusals_name_what_was_asked_for(it: Gateway, chat: str) -> None:
    for path, host, page, status, said in (
        (chat, "localhost", {}, 405, f"'{chat}' takes POST, not GET."),
        (
            "/chat/completions",
            "localhost",
            {},
            404,
            "no path '/chat/completions'. Give clients of OpenAI",
        ),
        (chat, "evil.example", {}, 421, "not called 'evil.example'"),
        (chat, "localhost", {"origin": "https://evil.example"}, 403, "Pages of 'https://evil.example'"),
    ):
        answer = await it.http.get(path, headers={"host": host, **page})
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), said


async def test_methods_types_names_and_pages(paths: Paths) -> None:
    chat = "/v1/chat/completions"
    async with gateway(paths, [say("ok")], toml=LIMITS) as it:
        get, post = it.http.get, it.http.post
        deep = '{"messages":' + "[" * 1000 + "]" * 1000 + "}"
        plain = {"content-type": "application/json"}
        for body, headers, status in (
            (BODY, {"content-type": "text/plain"}, 415),
            (BODY, {}, 415),
            (BODY, {**plain, "content-encoding": "gzip"}, 415),
            (b"{", plain, 400),
            (b'{"model":1,"model":2}', plain, 400),
            (deep.encode(), plain, 400),
            (b"[]", plain, 400),
            (b'{"model":"\xff"}', plain, 400),
        ):
            assert (await post(chat, content=body, headers=headers)).status_code == status, body[:50]
        assert (await get(chat)).headers["allow"] == "POST, OPTIONS"
        await refusals_name_what_was_asked_for(it, chat)
        head = await it.http.head("/healthz")
        assert (head.status_code, head.content) == (200, b"")
        options = await it.http.options("/healthz")
        assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        for path in (
            "/",
            "/v1//models",
            "/v1/models/",
            "/V1/models",
            "/v1/../metrics",
            "/v1%2fmodels",
            "/%00",
        ):
            target = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            assert statuses(await sent(it, target)) == [404], path
        # A web page that resolves its own name to this machine, and one that just asks.
        for host, status in (
            ("evil.example", 421),
            ("gw.example.org:8443", 200),
            ("LOCALHOST.", 200),
            ("", 421),
        ):
            assert (await get("/healthz", headers={"host": host})).status_code == status, host
        evil = await post(chat, content=BODY, headers={**plain, "origin": "https://evil.example"})
        assert evil.status_code == 403
        assert "access-control-allow-origin" not in evil.headers
        assert (await get("/healthz", headers={"origin": "null"})).status_code == 403
        page = {"origin": "https://chat.example.org"}
        asked = {
            **page,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        before = await it.http.options(chat, headers=asked)
        assert before.headers["access-control-allow-headers"] == "authorization"
        answer = await post(chat, content=BODY, headers={**plain, **page})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert "access-control-allow-credentials" not in answer.headers
        assert "set-cookie" not in answer.headers


@contextlib.asynccontextmanager
async def idle(it: Gateway, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that send nothing."""
    made = [await asyncio.open_unix_connection(it.unix) for _ in range(count)]
    try:
        yield [reader for reader, _ in made]
    finally:
        for _, writer in made:
            writer.close()


async def test_idle_connections_make_room(paths: Paths) -> None:
    toml = LIMITS.replace("header_timeout_s = 0.5", "header_timeout_s = 60")
    async with gateway(paths, [say("ok")], toml=toml) as it, idle(it, 300) as readers:
        assert (await it.http.get("/healthz")).status_code == 200
        await until(lambda: sum(reader.at_eof() for reader in readers) >= 240)
        assert not readers[-1].at_eof()


async def test_tokens(paths: Paths) -> None:
    async with gateway(paths, [say("ok")], toml=LIMITS) as it:
        good = it.over_tcp(await it.token("inspect", "prompt", agents=("test",), requests_per_minute=6))
        assert (await it.over_tcp().get("/v1/models")).status_code == 401
        assert [one["id"] for one in (await good.get("/v1/models")).json()["data"]] == ["test"]
        assert (await good.get("/v1/models/ops")).status_code in (403, 404)
        chat: dict[str, Any] = {"model": "test", "messages": [{"role": "user", "content": "hi"}]}
        answer = await good.post("/v1/chat/completions", json={**chat, "model": "ops"})
        assert answer.status_code in (403, 404)
        small = it.over_tcp(await it.token(request_bytes=2000))
        long = {**chat, "messages": [{"role": "user", "content": "x" * 3000}]}
        assert (await small.post("/v1/chat/completions", json=long)).status_code == 413
        assert (await it.over_tcp().post("/v1/chat/completions", json=long)).status_code == 401
        looks = it.over_tcp(await it.token("inspect"))
        assert (await looks.post("/v1/chat/completions", json=chat)).status_code == 403
        prompts = it.over_tcp(await it.token("prompt"))
        again = {
            **chat,
            "messages": [*chat["messages"], {"role": "assistant", "content": "ok"}, *chat["messages"]],
        }
        codes = [(await prompts.post("/v1/chat/completions", json=one)).status_code for one in (chat, again)]
        assert codes == [200, 200]
        assert (await prompts.get("/metrics")).status_code == 403
        few = it.over_tcp(await it.token(tokens_per_day=20))
        answers = [await few.post("/v1/chat/completions", json=chat) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].json()["error"]["code"] == "budget_exceeded"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 86_401, "until midnight"
        revoked = await it.token()
        used = it.over_tcp(revoked)
        assert (await used.get("/v1/models")).status_code == 200
        await it.call("Tokens.Revoke", name=revoked[3:11])
        assert (await used.get("/v1/models")).status_code in (401, 403)  # its connection knows first
        assert (await used.get("/v1/models")).status_code == 401
        # Guesses are refused without asking the daemon, and the good token goes on.
        bad = it.over_tcp("la_" + "x" * 57)
        seen = [(await bad.get("/v1/models")).status_code for _ in range(60)]
        assert (seen[0], seen[-1]) == (401, 429)
        refused = await it.over_tcp("la_" + "y" * 57).get("/v1/models")
        assert int(refused.headers["retry-after"]) > 0
        assert (await good.get("/v1/models")).status_code == 200
        told = it.daemon.stored(topic="token")
        assert len(told) < 30
        statuses = [(await good.get("/v1/models")).status_code for _ in range(4)]
        assert statuses[-1] == 429


async def test_a_reader_that_is_slow_ends_its_turn_and_streams_are_few(paths: Paths) -> None:
    pieces = [chunk({"content": "x" * 20_000}) for _ in range(2000)]
    async with gateway(paths, [Stream(pieces=pieces, pause_s=0.001, hang=True)], toml=LIMITS) as it:
        token = await it.token(streams=1)
        body = json.dumps({"model": "test", "stream": True, "messages": [{"role": "user", "content": "x"}]})
        head = f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        reader, writer = await asyncio.open_unix_connection(it.unix, limit=1024)
        writer.write(POST + head)
        assert b"200" in await reader.readline()
        other = await it.over_tcp(token).post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert (other.status_code, other.headers["retry-after"]) == (429, "2")
        await until(lambda: it.daemon.model.open_requests == 0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_without_a_daemon(paths: Paths) -> None:
    async with gateway(paths, [say("ok")], toml="open_metrics = true") as it:
        metrics = await it.over_tcp().get("/metrics")
        assert metrics.status_code == 200
        assert "lightagent_gateway_turns" in metrics.text
        assert "lightagent_agents_total" not in metrics.text
        assert "lightagent_agents_total 2.0" in (await it.http.get("/metrics")).text
        await it.daemon.daemon.close()
        health = await it.over_tcp().get("/healthz")
        assert (health.status_code, health.json()) == (503, {"status": "unavailable"})
        answer = await it.http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "daemon_unreachable")


async def test_a_client_that_hangs_up_before_its_turn_is_known_ends_it(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(paths, [Stream(pieces=[chunk({"content": "x"})], hang=True)], toml=LIMITS) as it:
        access = it.daemon.daemon.service.conversations._access
        told, noticed = access.for_caller, asyncio.Event()

        async def late(*given: Any) -> Any:
            await noticed.wait()
            return await told(*given)

        monkeypatch.setattr(access, "for_caller", late)
        reader, writer = await asyncio.open_unix_connection(it.unix)
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        await until(lambda: it.daemon.model.open_requests == 1)
        writer.write_eof()
        assert await reader.read() == b"", "the gateway has noticed"
        noticed.set()
        await until(lambda: it.daemon.model.open_requests == 0, 20)
        writer.close()


@pytest.mark.parametrize(
    "ahead", [b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b" " * 300_000]
)
async def test_who_sends_ahead_and_hangs_up_ends_their_turn(paths: Paths, ahead: bytes) -> None:
    async with gateway(paths, [Stream(pieces=[chunk({"content": "x"})], hang=True)], toml=LIMITS) as it:
        reader, writer = await asyncio.open_unix_connection(it.unix)
        spare = b"Content-Length: %d\r\n\r\n" % len(BODY)
        writer.write(POST + spare + BODY)
        await until(lambda: it.daemon.model.open_requests == 1)
        for _ in range(2):
            writer.write(ahead)
            await asyncio.sleep(0.05)  # so that it is read by itself
        writer.transport.abort()
        await until(lambda: it.daemon.model.open_requests == 0, 10)
        assert await reader.read() == b""


async def test_bodies_of_nobody_take_no_room_of_others(paths: Paths) -> None:
    async with (
        gateway(paths, [say("ok")], toml="body_timeout_s = 30") as it,
        contextlib.AsyncExitStack() as open_,
    ):
        hook = b"POST /hooks/x HTTP/1.1\r\n" + HEAD + b"Content-Length: 1048576\r\n\r\n"

        async def filler() -> asyncio.Task[bytes]:
            """Have almost 1 MiB held; the task ends where it is refused, as it may be while another asks."""
            reader, writer = await asyncio.open_unix_connection(it.unix)
            open_.callback(writer.close)
            writer.write(hook + b" " * ((1 << 20) - 1))
            answer = asyncio.create_task(reader.read(1))
            open_.callback(answer.cancel)
            return answer

        fillers = [await filler() for _ in range(UNPROVED_BYTES >> 20)]
        plain = {"content-type": "application/json"}

        async def refused() -> bool:
            answer = await it.http.post("/hooks/x", content=b" " * 1000, headers=plain)
            return answer.status_code == 429

        async with asyncio.timeout(20):
            while not await refused():
                fillers = [await filler() if one.done() else one for one in fillers]
                await asyncio.sleep(0.05)
        chat = await it.http.post("/v1/chat/completions", content=BODY, headers=plain)
        assert chat.status_code == 200


async def test_what_clients_send_along_is_kept_with_no_answer(paths: Paths) -> None:
    async with gateway(paths, [say("ok")]) as it:
        for note, status in (("x", 200), ("x" * STORED_CHARS, 404)):
            asked = {"model": "test", "input": "hi", "metadata": {"note": note}}
            answer = (await it.http.post("/v1/responses", json=asked)).json()
            kept = await it.http.get(f"/v1/responses/{answer['id']}")
            assert kept.status_code == status
            assert status != 200 or kept.json() == answer


GUESSING = """
import os, socket, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
for _ in range(12):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(sys.argv[1])
        sock.sendall(b"GET /v1/models HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
            b"Authorization: Bearer la_x\\r\\n\\r\\n")
        answer = sock.recv(1 << 16)
print(answer[9:12].decode())
"""


@needs_root
async def test_a_local_user_who_guesses_locks_out_nobody_else(open_paths: Paths) -> None:
    below = Paths(config=open_paths.config, state=open_paths.state, runtime=open_paths.runtime / "run")
    async with gateway(below, [say("ok")]) as it:
        it.unix.chmod(0o666)
        argv = (sys.executable, "-c", GUESSING, str(it.unix))
        guessing = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert (await guessing.communicate())[0] == b"429\n"
        assert (await it.http.get("/v1/models")).status_code == 200
