"""What goes wrong on the way to an endpoint and back, over real connections: each has its code and advice."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import socket
import zlib
from typing import Any

import pytest

from lightagentd.errors import (
    ModelCutOff,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelRateLimited,
    ModelRedirected,
    ModelTimedOut,
    ModelUnreachable,
)
from lightagentd.llm.answer_bound import PIECE_CHARS
from lightagentd.llm.endpoint import http
from lightagentd.llm.protocol import Finish, TextDelta, ToolCall, Usage
from lightagentd.text.sse import MOST_EVENT_BYTES
from tests.clock import pass_time
from tests.llm.endpoint.asking import ASK, asked, client_of, failed, said
from tests.llm.endpoint.raw_server import END, HEAD, RawServer, Reply, chunked, response
from tests.scripted_model import DONE, chunk

HELLO = chunk({"content": "hello"}) + chunk({}, "stop") + DONE


async def answer_of(*pieces: bytes, then: str = "close", **settings: Any) -> str:
    async with RawServer([Reply(pieces, then)]) as server:
        return said(await asked(base_url=server.base_url, **settings))


async def error_of(*pieces: bytes, then: str = "close", read: bool = True, **settings: Any) -> ModelError:
    async with RawServer([Reply(pieces, then, read)]) as server:
        err = await failed(base_url=server.base_url, **settings)
    assert err.suggestion
    assert "openai/x" in err.message
    return err


async def test_a_connection_that_nobody_takes_is_unreachable() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
        err = await failed(base_url=url)
    assert type(err) is ModelUnreachable
    assert "refused" in err.message.lower()
    assert url in err.message
    assert "base_url" in err.suggestion
    assert err.transient
    assert not err.reached


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", f"{'a' * 70}.invalid"])
async def test_a_host_without_an_address_is_unreachable(host: str) -> None:
    err = await failed(base_url=f"http://{host}/v1")
    assert type(err) is ModelUnreachable
    assert "its name is not known" in err.message
    assert "DNS" in err.suggestion


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("read", [True, False])
async def test_a_connection_that_ends_before_the_answer_is_cut_off(then: str, read: bool) -> None:
    err = await error_of(then=then, read=read)
    assert type(err) is ModelCutOff
    assert "before the answer" in err.message
    assert err.reached


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_that_ends_in_the_answer_is_cut_off(then: str) -> None:
    err = await error_of(HEAD, chunked(chunk({"content": "The disk"})), then=then)
    assert type(err) is ModelCutOff
    assert "in the middle of the answer" in err.message


async def test_an_answer_that_is_shorter_than_its_length_is_cut_off() -> None:
    whole = response(HELLO)
    assert type(await error_of(whole[:-30])) is ModelCutOff


async def test_half_an_event_before_a_clean_end_is_cut_off() -> None:
    body = chunk({"content": "The disk"}) + chunk({"content": " is full"})[:-20]
    assert type(await error_of(response(body))) is ModelCutOff
    old = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    assert type(await error_of(old + body)) is ModelCutOff


async def test_the_end_after_done_is_no_matter() -> None:
    for then in ("close", "reset"):
        assert await answer_of(HEAD, chunked(HELLO), then=then) == "hello"


async def test_a_response_that_never_ends_after_done_is_ended() -> None:
    assert await answer_of(HEAD, chunked(HELLO), then="hang") == "hello"


@pytest.mark.parametrize(
    "noise",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        HEAD + b"zz\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_garbled(noise: bytes) -> None:
    err = await error_of(noise)
    assert isinstance(err, ModelGarbled)
    assert err.transient


async def test_a_silent_endpoint_times_out() -> None:
    err = await error_of(then="hang", idle_timeout_s=0.05)
    assert type(err) is ModelTimedOut
    assert "idle_timeout_s" in err.suggestion


async def test_an_endpoint_that_falls_silent_times_out() -> None:
    err = await error_of(HEAD, chunked(chunk({"content": "x"})), then="hang", idle_timeout_s=0.05)
    assert type(err) is ModelTimedOut


@pytest.mark.parametrize("piece", [b": still here\n\n", chunk({"content": "x"})])
async def test_an_endless_drip_ends_with_the_total_time(piece: bytes) -> None:
    drip = itertools.chain([HEAD], itertools.repeat(chunked(piece)))
    async with RawServer([Reply(drip, pause_s=0.01)]) as server:
        err = await failed(base_url=server.base_url, total_timeout_s=0.3)
    assert type(err) is ModelTimedOut
    assert "0.3 s" in err.message
    assert "total_timeout_s" in err.suggestion


async def test_headers_that_never_end_are_ended_by_the_total_time() -> None:
    err = await error_of(b"HTTP/1.1 200 OK\r\ncontent-ty", then="hang", total_timeout_s=0.1)
    assert type(err) is ModelTimedOut


async def test_a_refusal_whose_body_hangs_is_still_a_refusal() -> None:
    head = b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\nbusy"
    async with RawServer([Reply([head], "hang")]) as server:
        failing = asyncio.create_task(failed(base_url=server.base_url, idle_timeout_s=30))
        while not server.requests:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # the head comes; without it, the call would time out
        pass_time(30)
        err = await failing
    assert type(err) is ModelOverloaded


async def test_a_redirect_is_told_and_not_followed() -> None:
    async with RawServer([Reply([response(HELLO)])]) as other:
        there = f"http://user:secret@127.0.0.1:{other.port}/v1/chat/completions?token=hidden"
        err = await error_of(response(b"", status="307 Elsewhere", location=there), api_key="sk-very-secret")
        assert not other.requests
        assert other.connections == 0
    assert type(err) is ModelRedirected
    assert f"http://127.0.0.1:{other.port}/v1/chat/completions" in err.message
    assert "status 307" in err.message
    assert not any(word in err.message for word in ("secret", "hidden"))
    assert not err.transient


@pytest.mark.parametrize("location", ["", "/login", "http://[bad", "//host/x", "\u00e4"])
@pytest.mark.parametrize("status", ["301", "302", "303", "304", "308"])
async def test_any_redirect_is_one(status: str, location: str) -> None:
    headers = {"location": location} if location else {}
    err = await error_of(response(b"", status=f"{status} X", **headers))
    assert type(err) is ModelRedirected


@pytest.mark.parametrize(
    "page",
    [b"<html><title>Hotel Wi-Fi</title>Log in</html>", b"\n\n<!DOCTYPE html><title>Hotel Wi-Fi</title>"],
)
@pytest.mark.parametrize("kind", ["text/html", "text/event-stream", "application/json"])
async def test_a_web_page_is_told_with_its_title(page: bytes, kind: str) -> None:
    err = await error_of(response(page, content_type=kind))
    assert isinstance(err, ModelGarbled)
    assert not err.transient
    assert "Hotel Wi-Fi" in err.message
    assert kind in err.message
    assert "login" in err.suggestion


async def test_an_endless_web_page_is_left() -> None:
    err = await error_of(HEAD, chunked(b"<html>" + b"x" * 100_000), then="hang")
    assert isinstance(err, ModelGarbled)


@pytest.mark.parametrize("body", [b"", b"\n\n", b": comment\n\n"])
async def test_an_empty_answer_is_no_answer(body: bytes) -> None:
    err = await error_of(response(body))
    assert type(err) in (ModelCutOff, ModelGarbled)


@pytest.mark.parametrize(
    "body", [b"upstream says no", b"event: ping\n\n", b"\xff\xfe\x00", b'{"a": ', b"{}{}", b"[1]"]
)
async def test_what_is_no_answer_is_garbled(body: bytes) -> None:
    assert isinstance(await error_of(response(body)), ModelGarbled)


async def test_an_error_with_a_status_of_success_is_an_error() -> None:
    body = json.dumps({"error": {"message": "Slow down", "code": "rate_limit_exceeded"}}).encode()
    err = await error_of(response(body, content_type="application/json", retry_after="7"))
    assert type(err) is ModelRateLimited
    assert err.retry_after_s == 7
    assert "Slow down" in err.message


async def test_a_whole_completion_is_an_answer() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "a_b", "arguments": '{"x": 1}'}}
    body = {
        "object": "chat.completion",
        "choices": [{"message": {"content": "Look:", "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    reply = Reply([response(json.dumps(body, indent=2).encode(), content_type="application/json")])
    async with RawServer([reply]) as server:
        assert await asked(base_url=server.base_url) == [
            TextDelta("Look:"),
            ToolCall(id="c1", name="a_b", arguments='{"x": 1}'),
            Finish(reason="tool_calls", usage=Usage(prompt_tokens=3, completion_tokens=4)),
        ]


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/octet-stream", "", "text/event-stream; charset=latin1"]
)
async def test_events_are_events_whatever_they_are_called(status: str, kind: str) -> None:
    assert await answer_of(response(HELLO, status=status, content_type=kind)) == "hello"


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("identity", HELLO),
        ("gzip", gzip.compress(HELLO)),
        ("x-gzip", gzip.compress(HELLO[:50]) + gzip.compress(HELLO[50:])),
        ("deflate", zlib.compress(HELLO)),
        ("deflate", _raw_deflate(HELLO)),
    ],
)
async def test_compression_that_nobody_asked_for_is_taken_off(encoding: str, body: bytes) -> None:
    assert await answer_of(response(body, content_encoding=encoding)) == "hello"
    pieces = [bytes([byte]) for byte in body]
    head = response(body, content_encoding=encoding)[: -len(body)]
    assert await answer_of(head, *pieces) == "hello"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"\x1f\x8b this is no gzip"),
        ("gzip", HELLO),
        ("deflate", b"\xff\xff\xff\xff"),
        ("br", HELLO),
        ("zstd", HELLO),
        ("gzip, gzip", gzip.compress(gzip.compress(HELLO))),
    ],
)
async def test_compression_that_cannot_be_taken_off_is_garbled(encoding: str, body: bytes) -> None:
    err = await error_of(response(body, content_encoding=encoding))
    assert isinstance(err, ModelGarbled)
    assert err.transient


async def test_a_bomb_of_compressed_blanks_is_garbled_before_it_is_whole() -> None:
    packed = gzip.compress(b"data: " + b"x" * (200 << 20), 9)
    err = await error_of(response(packed, content_encoding="gzip"))
    assert isinstance(err, ModelGarbled)
    assert "8 MiB" in err.message


async def test_compressed_refusals_are_read() -> None:
    body = gzip.compress(b'{"error": {"message": "too many", "code": "rate_limit_exceeded"}}')
    err = await error_of(response(body, status="429 Slow", content_encoding="gzip"))
    assert "too many" in err.message


async def test_ten_megabytes_of_events_in_one_chunk_are_an_answer() -> None:
    piece = chunk({"content": "0123456789"})
    count = (10 << 20) // len(piece)
    body = piece * count + chunk({}, "stop") + DONE
    assert len(await answer_of(HEAD, chunked(body) + END)) == 10 * count


async def test_ten_megabytes_in_one_event_are_garbled() -> None:
    body = chunk({"content": "x" * (10 << 20)}, "stop")
    assert len(body) > MOST_EVENT_BYTES
    err = await error_of(HEAD, chunked(body) + END)
    assert isinstance(err, ModelGarbled)
    assert "8 MiB" in err.message


@pytest.mark.parametrize("end", [b"", b"}"])
async def test_one_endless_object_is_garbled(end: bytes) -> None:
    err = await error_of(HEAD, chunked(b'{"a": "' + b"x" * (9 << 20) + end), then="hang")
    assert isinstance(err, ModelGarbled)


async def test_an_answer_without_end_is_left() -> None:
    piece = chunk({"padding": "x" * 1_000_000})
    err = await error_of(HEAD, *[chunked(piece)] * 80, then="hang")
    assert type(err) is ModelTimedOut


async def test_an_answer_in_tiny_chunks_is_left_though_it_has_few_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_ANSWER_BYTES", 100_000)
    tiny = chunked(b":") * 5000
    err = await error_of(HEAD, chunked(b"data: {}\n\n"), tiny, then="hang", idle_timeout_s=20)
    assert type(err) is ModelTimedOut
    assert "does not come to an end" in err.message


async def test_compressed_nothings_count_with_the_bytes_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_BYTES", 100_000)
    nothing = gzip.compress(b"") * 10_000
    err = await error_of(response(nothing, content_encoding="gzip"))
    assert type(err) is ModelTimedOut


async def test_others_get_their_turn_while_much_is_unpacked() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    first, last = chunk({"content": "a"}), chunk({"content": "b"}) + chunk({}, "stop") + DONE
    packed = gzip.compress(first + b"\n" * (4 << 20) + last, 9)
    other = asyncio.create_task(take_turns())
    async with RawServer([Reply([response(packed, content_encoding="gzip")], "close")]) as server:
        client = client_of(base_url=server.base_url)
        seen = [turns async for part in client.stream(ASK) if isinstance(part, TextDelta)]
        await client.close()
    other.cancel()
    assert seen[1] - seen[0] > 50


async def test_an_answer_that_no_model_would_give_is_garbled() -> None:
    piece = chunk({"content": "x" * 1_000_000})
    err = await error_of(HEAD, *[chunked(piece)] * 3, then="hang")
    assert isinstance(err, ModelGarbled)
    assert "2 MiB" in err.message
    assert err.reached


async def test_a_long_piece_goes_on_in_shorter_ones() -> None:
    text = "0123456789" * 20_000
    body = chunk({"content": text}) + chunk({}, "stop") + DONE
    async with RawServer([Reply([HEAD, chunked(body) + END], "close")]) as server:
        parts = await asked(base_url=server.base_url)
    assert said(parts) == text
    assert max(len(part.text) for part in parts if isinstance(part, TextDelta)) <= PIECE_CHARS


async def test_a_content_type_is_shown_without_control_characters() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: \x1b[2J\x9bx\r\nConnection: close\r\n\r\n"
    err = await error_of(head, b"data: {}\n\n")
    assert isinstance(err, ModelGarbled)
    assert err.message.isprintable()


async def test_a_key_that_the_words_of_an_endpoint_cut_off_is_not_shown() -> None:
    key = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz"
    for words in (f"{'x' * 480} {key}", f"your key {key} is bad"):
        body = json.dumps({"error": {"message": words}}).encode()
        err = await error_of(response(body, status="400 Bad"), api_key=key)
        assert key[:12] not in err.message
        assert "[the key" in err.message


async def test_closing_the_client_ends_the_answers_that_run() -> None:
    async with RawServer([Reply([HEAD, chunked(chunk({"content": "x"}))], "hang")]) as server:
        client = client_of(base_url=server.base_url)
        async with contextlib.aclosing(client.stream(ASK)) as parts:
            assert await anext(parts) == TextDelta("x")
            await client.close()
            with pytest.raises(ModelCutOff):
                await anext(parts)


@pytest.mark.parametrize(
    "url", ["api.example.org/v1", "ftp://127.0.0.1/v1", "http://", "https:///v1", "http://h:99999/v1"]
)
async def test_a_base_url_that_is_none_says_so(url: str) -> None:
    err = await failed(base_url=url)
    assert not err.transient
    assert not err.reached
    assert "base_url" in err.suggestion


@pytest.mark.parametrize("value", ["kl\u00e4ger-secret", "two\nlines-secret", "nul\0secret"])
async def test_a_header_that_cannot_be_sent_is_told_without_its_value(value: str) -> None:
    err = await failed(base_url="http://127.0.0.1:9/v1", headers={"X-Team": value})
    assert not err.transient
    assert "headers" in err.suggestion
    assert "secret" not in err.message


async def test_a_query_in_the_base_url_stays_the_last_and_is_not_shown() -> None:
    async with RawServer([Reply([response(HELLO)]), Reply([response(b"", status="500 X")])]) as server:
        url = f"{server.base_url}?api-version=1&key=hidden"
        assert said(await asked(base_url=url)) == "hello"
        assert server.requests[0].line == "POST /v1/chat/completions?api-version=1&key=hidden HTTP/1.1"
        err = await failed(base_url=url)
    assert "hidden" not in err.message


async def test_a_key_that_the_endpoint_repeats_is_not_shown() -> None:
    body = b'{"error": {"message": "Wrong key: sk-0123456789", "code": "invalid_api_key"}}'
    err = await error_of(response(body, status="401 No"), api_key="sk-0123456789")
    assert "0123456789" not in f"{err.message} {err} {err.args}"
    assert "[the key]" in err.message


async def test_what_an_endpoint_says_cannot_drive_a_terminal() -> None:
    body = b'{"error": {"message": "\\u001b[2Jgone\\u0007\\r\\n\\u202e"}}'
    err = await error_of(response(body, status="400 No"))
    assert all(char.isprintable() for char in err.message)


async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew() -> None:
    async with RawServer([Reply([HEAD, chunked(HELLO) + END])]) as server:
        client = client_of(base_url=server.base_url)
        for _ in range(3):
            assert said([part async for part in client.stream(ASK)]) == "hello"
            while server.busy:
                await asyncio.sleep(0.005)
        await client.close()
        assert server.connections == 3
