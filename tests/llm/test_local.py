"""Model servers on this machine: told by what they answer, and whatever else answers is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.llm.local import SIGNS, LocalServer, found_at, found_locally, served

MODELS = {"object": "list", "data": [{"id": "a-model", "object": "model", "owned_by": "llamacpp"}]}
OLLAMA = {
    "/api/version": {"version": "0.12.1"},
    "/api/tags": {"models": [{"name": "llama3.2:3b"}, {"name": 7}]},
}
LLAMACPP = {
    "/props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1},
    "/v1/models": MODELS,
}
LMSTUDIO = {
    "/api/v0/models": {"object": "list", "data": [{"id": "qwen", "type": "llm", "state": "loaded"}]},
    "/v1/models": MODELS,
}
VLLM = {"/v1/models": {"object": "list", "data": [{"id": "org/model", "owned_by": "vllm"}]}}

LITELLM = {"/health/readiness": {"status": "connected", "litellm_version": "1.80.0"}}


@contextlib.asynccontextmanager
async def serving(answers: dict[str, Any], *, head: str = "", hang: bool = False) -> AsyncIterator[str]:
    """A server with these answers: JSON for a path, or the bytes of a body; gives its root."""
    over, writers = asyncio.Event(), list[asyncio.StreamWriter]()
    tasks = set[asyncio.Task[Any] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        writers.append(writer)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                if hang:
                    await over.wait()
                found = answers.get(asked.split()[1].decode())
                status = "404 Not Found" if found is None else "200 OK"
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
                )
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        over.set()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(task for task in tasks if task))


async def look(root: str, *providers: str) -> list[LocalServer]:
    """Look for these providers there, and for no other anywhere."""
    nowhere = {sign.provider: "http://127.0.0.1:1/v1" for sign in SIGNS}
    return await found_locally(timeout_s=30.0, places=nowhere | dict.fromkeys(providers, f"{root}/v1"))


@pytest.mark.parametrize(
    ("provider", "answers", "models", "version"),
    [
        ("ollama", OLLAMA, ("llama3.2:3b",), "0.12.1"),
        ("llamacpp", LLAMACPP, ("a-model",), ""),
        ("lmstudio", LMSTUDIO, ("qwen",), ""),
        ("vllm", VLLM, ("org/model",), ""),
        ("litellm", LITELLM | {"/v1/models": MODELS}, ("a-model",), ""),
        ("litellm", LITELLM, (), ""),
    ],
)
async def test_a_server_is_told_by_what_it_answers(
    provider: str, answers: dict[str, Any], models: tuple[str, ...], version: str
) -> None:
    async with serving(answers) as root:
        [found] = await look(root, *(sign.provider for sign in SIGNS))
        assert found == LocalServer(name=provider, base_url=f"{root}/v1", models=models, version=version)
        assert found.model_strings == [f"{provider}/{model}" for model in models]


@pytest.mark.parametrize(
    "answers",
    [
        {},
        dict.fromkeys(("/api/version", "/props", "/v1/models"), b"<html>a login page</html>"),
        {path: [1, 2] for path in ("/api/version", "/props", "/api/v0/models", "/v1/models")},
        {path: {"error": "no"} for path in ("/api/version", "/props", "/api/v0/models", "/v1/models")},
        dict.fromkeys(("/api/version", "/props", "/api/v0/models", "/v1/models"), b"[" * 100000),
        dict.fromkeys(("/api/version", "/props", "/v1/models"), b" " * (2 << 20) + b"{}"),
        {"/api/version": {"version": 3}, "/props": {"default_generation_settings": 1}, "/v1/models": MODELS},
    ],
)
async def test_whatever_else_answers_is_no_model_server(answers: dict[str, Any]) -> None:
    async with serving(answers) as root:
        assert await look(root, *(sign.provider for sign in SIGNS)) == []


async def test_names_that_nobody_could_write_are_left_out() -> None:
    names = ["good", "", "x" * 300, "with\nnewline", None, {"a": 1}]
    answers = {**OLLAMA, "/api/tags": {"models": [{"name": name} for name in names]}}
    async with serving(answers) as root:
        [found] = await look(root, "ollama")
        assert found.models == ("good",)


async def test_an_answer_is_taken_as_it_is_and_followed_nowhere() -> None:
    async with serving(OLLAMA, head="Content-Encoding: gzip\r\n") as root:
        assert await look(root, "ollama") == []


async def test_a_server_that_hangs_holds_up_nobody_for_long() -> None:
    async with serving({}, hang=True) as root:
        places = {sign.provider: f"{root}/v1" for sign in SIGNS}
        assert await found_locally(timeout_s=0.05, places=places) == []


async def test_what_a_server_lists() -> None:
    async with serving(VLLM) as root:
        assert await served(f"{root}/v1", {"Authorization": "Bearer x"}) == ["org/model"]
        assert await served(f"{root}/other", {}) == []
        elsewhere = f"{root.replace('127.0.0.1', '127.1')}/v1"
        assert await served(elsewhere, {}) == [], "only on this machine"
        assert await served(elsewhere, {}, anywhere=True) == ["org/model"], "one that is configured"
    assert await served(f"{root}/v1", {}) == []
    assert await served("https://127.0.0.1/v1", {}, anywhere=True) == []


async def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with serving(OLLAMA) as root:
        assert len(await look(root, "ollama")) == 1


async def test_the_addresses_that_are_named_are_looked_at_and_nothing_else() -> None:
    async with (
        serving(OLLAMA) as ollama,
        serving({"/": b"a web page"}) as other,
        serving({}, hang=True) as hung,
    ):
        # A name that is not there, a port that nobody listens on, a page, and a server that never answers.
        urls = [ollama, f"{ollama}/", "http://nowhere.invalid:11434", "http://127.0.0.1:1", other, hung]
        found = await found_at(urls, timeout_s=1.0)
    first = found[0]
    assert (first.name, first.kind, first.models) == ("127-0-0-1", "ollama", ("llama3.2:3b",))
    assert first.base_url == f"{ollama}/v1"
    assert [one.reached for one in found] == [True, True, False, False, False, False]
    assert first.how_to_use == f'Add [models.providers.127-0-0-1] with base_url = "{ollama}/v1".'


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://gpu1.example.invalid:11434", "gpu1"),
        ("http://openai.invalid", "openai-host"),
        ("https://[::1]:1", "1"),
    ],
)
async def test_a_server_elsewhere_is_named_after_its_host(url: str, name: str) -> None:
    [found] = await found_at([url])
    assert (found.name, found.reached) == (name, False)
