"""The official SDKs and our clients, on the same server with the same answers, get the same.

So the scripted server speaks the dialects as their makers read them, and so do we. What the SDKs call worth a
retry, we do, too; status 425 is the one that we add to theirs.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lightagentd.errors import ModelError
from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.dialects.dialect import Dialect as ClientDialect
from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.protocol import (
    Finish,
    Function,
    Message,
    ModelSettings,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
)
from tests.model_server import faults
from tests.model_server.dialects import DIALECTS, Dialect
from tests.model_server.said import Called, Said, call, say
from tests.model_server.server import ModelServer
from tests.model_server.wire import Answer

if TYPE_CHECKING:
    import anthropic
    import openai

ASKED = "What is it?"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = Function(name="file_stat", description="Look at a file.", parameters=SCHEMA)
_TWO = (
    Called(name="file_stat", arguments='{"path": "/etc/hosts"}', id="call_a"),
    Called(name="proc_list", arguments='{"limit": 3}', id="call_b"),
)
ANSWERS: dict[str, Said | Answer] = {
    "one delta": say("Hello."),
    "deltas": say("Hel", "lo", " there", "."),
    "a thousand deltas": say(*["word "] * 1000),
    "blanks and lines": say(" \n", "\r\n", "\t", "  x\n\n"),
    "characters": say("Grüße ", "\N{PILE OF POO}", "\N{ZERO WIDTH JOINER}", "漢字", '"\\/\b\f'),
    "what looks like an event": say("data: [DONE]\n\n", "event: error\ndata: {}\n\n", ": x"),
    "a long text": say("x" * 200_000),
    "a call": call("file_stat", {"path": "/etc/hosts"}),
    "a call without arguments": call("proc_list", {}),
    "nested arguments": call("f", {"a": [1, 2.5, None, True, {"b": "ü\n\"'\\"}], "c": {}}),
    "long arguments": call("file_write", {"content": "line\n" * 5000}),
    "two calls": Said(calls=_TWO),
    "the same call twice": Said(calls=(_TWO[0], Called(name="file_stat", arguments="{}", id="call_c"))),
    "text and a call": call("file_stat", {"path": "/"}, text=("Let me ", "see.")),
    "text and two calls": Said(text=("Both.",), calls=_TWO),
    "thinking": say("Four.", thinking=("Two and ", "two.")),
    "thinking and a call": call("file_stat", {"path": "/"}, thinking=("It must be ", "there.")),
    "cut by its length": say("And then", finish="length"),
    "filtered": say("I", finish="content_filter"),
    "cached tokens": say("Hello.", prompt_tokens=5000, completion_tokens=2, cached_tokens=4096),
    "many tokens": say("Hello.", prompt_tokens=1_000_000, completion_tokens=128_000),
    "packed": faults.gzip(say("Hello", " there.", prompt_tokens=12)),
    "in one chunk": Answer(said=Said(text=("a", "b"), calls=_TWO)).over(one_chunk=True),
    "with a length": Answer(said=say("Hello", " there.")).over(chunked=False),
    "slowly": Answer(said=call("file_stat", {"path": "/"}, text=("Let", "me"))).over(pause_s=0.002),
}
REFUSALS = {
    "400": faults.status(400, kind="invalid_request_error"),
    "401": faults.status(401, kind="authentication_error", code="invalid_api_key"),
    "403": faults.status(403, kind="permission_error"),
    "404": faults.status(404, kind="not_found_error", code="model_not_found"),
    "408": faults.status(408, kind="timeout_error"),
    "409": faults.status(409, kind="conflict_error"),
    "413": faults.status(413, kind="request_too_large"),
    "422": faults.status(422, kind="invalid_request_error"),
    "429": faults.status(429, kind="rate_limit_error", code="rate_limit_exceeded"),
    "429, later": faults.status(429, kind="rate_limit_error", retry_after="7"),
    "429, at a time": faults.status(429, kind="rate_limit_error", retry_after=faults.in_seconds(30)),
    "500": faults.status(500, kind="api_error"),
    "502": faults.web_page(502),
    "503": faults.status(503, kind="overloaded_error", retry_after="1"),
    "504": faults.status(504, kind="timeout_error"),
    "529": faults.status(529, kind="overloaded_error"),
    "reset before the head": faults.cut_in_head(after=0, ending="reset"),
    "closed before the head": faults.cut_in_head(after=0),
    "closed in the head": faults.cut_in_head(after=30),
}
BREAKS = {
    "reset in the body": faults.cut(after=120, ending="reset"),
    "closed in the body": faults.cut(after=120),
    "an error event": faults.error_in_stream(kind="overloaded_error", code="server_error"),
    "an error event behind text": faults.error_in_stream(
        say("half", " of it"), kind="api_error", code="server_error"
    ),
    "gzip garbage": faults.gzip_garbage(),
}


@dataclass(kw_only=True)
class Got:
    """What a client got of an answer. `usage`: tokens of the prompt, of the answer, and cached ones."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int, int, int] | None = None


async def ours(server: ModelServer, dialect: Dialect) -> Got:
    """Raises ModelError."""
    url = server.url if dialect == "messages" else server.base_url
    settings = ModelSettings(provider="p", model="m", base_url=url, api_key="key-of-tests")
    kinds: dict[Dialect, Callable[[ModelSettings], ClientDialect]] = {
        "chat": ChatCompletions,
        "responses": Responses,
        "messages": Messages,
    }
    client = HttpClient(settings, kinds[dialect](settings))
    got = Got()
    request = Request(system="", messages=[Message(role="user", content=ASKED)], functions=[FUNCTION])
    try:
        async for part in client.stream(request):
            match part:
                case TextDelta(text):
                    got.text += text
                case ReasoningDelta(text):
                    got.thinking += text
                case ToolCall():
                    got.calls.append((part.id, part.name, part.arguments))
                case Finish():
                    got.finish, used = part.reason, part.usage
                    if used is not None:
                        got.usage = (used.prompt_tokens, used.completion_tokens, used.cached_tokens)
    finally:
        await client.close()
    return got


class Failed(Exception):
    """An event said so."""


def openais(url: str) -> openai.AsyncOpenAI:
    """OpenAI's client; it need not load certificates."""
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, http_client=http)


def anthropics(url: str) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    return anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0, http_client=http)


async def theirs_chat(server: ModelServer) -> Got:
    got = Got()
    calls: dict[int, list[str]] = {}
    async with openais(server.base_url) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": ASKED}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                cached = details.cached_tokens if details is not None else 0
                got.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached or 0)
            for choice in chunk.choices:
                got.finish = choice.finish_reason or got.finish
                got.text += choice.delta.content or ""
                got.thinking += (choice.delta.model_extra or {}).get("reasoning_content", "")
                for piece in choice.delta.tool_calls or ():
                    known = calls.setdefault(piece.index, [piece.id or "", "", ""])
                    if piece.function is not None:
                        known[1] += piece.function.name or ""
                        known[2] += piece.function.arguments or ""
    got.calls = [(known[0], known[1], known[2]) for _, known in sorted(calls.items())]
    return got


async def theirs_responses(server: ModelServer) -> Got:
    got = Got()
    async with openais(server.base_url) as client:
        async for event in await client.responses.create(model="m", input=ASKED, stream=True, store=False):
            match event.type:
                case "response.output_text.delta":
                    got.text += event.delta
                case "response.reasoning_summary_text.delta":
                    got.thinking += event.delta
                case "response.output_item.done":
                    if event.item.type == "function_call":
                        got.calls.append((event.item.call_id, event.item.name, event.item.arguments))
                case "error" | "response.failed":
                    raise Failed  # the SDK leaves it to its caller
                case "response.completed" | "response.incomplete":
                    why = event.response.incomplete_details
                    reason = None if why is None else why.reason
                    got.finish = {
                        "max_output_tokens": "length",
                        None: "tool_calls" if got.calls else "stop",
                    }.get(reason, reason)
                    used = event.response.usage
                    if used is not None:
                        cached = used.input_tokens_details.cached_tokens
                        got.usage = (used.input_tokens, used.output_tokens, cached)
    return got


async def theirs_messages(server: ModelServer) -> Got:
    got = Got()
    async with (
        anthropics(server.url) as client,
        client.messages.stream(
            model="m", max_tokens=100, messages=[{"role": "user", "content": ASKED}]
        ) as stream,
    ):
        message = await stream.get_final_message()
    for block in message.content:
        if block.type == "text":
            got.text += block.text
        elif block.type == "thinking":
            got.thinking += block.thinking
        elif block.type == "tool_use":
            got.calls.append((block.id, block.name, json.dumps(block.input)))
    reasons = {
        "end_turn": "stop",
        "max_tokens": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    }
    got.finish = reasons[message.stop_reason or ""]
    used = message.usage
    read = used.cache_read_input_tokens or 0
    made = used.cache_creation_input_tokens or 0
    got.usage = (used.input_tokens + read + made, used.output_tokens, read)
    return got


@pytest.fixture(autouse=True, scope="module")
def sdks() -> None:
    """Load the SDKs here: they take seconds, in each process that collects the tests. What they consist of
    stays, so no look for garbage goes through it.
    """
    globals().update({name: importlib.import_module(name) for name in ("anthropic", "openai")})
    gc.collect()
    gc.freeze()


def broken() -> tuple[type[Exception], ...]:
    """What the SDKs raise in the middle of an answer; some of it comes from their HTTP library as it is."""
    http = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
    return (Failed, openai.APIError, anthropic.APIError, http.HTTPError, UnicodeDecodeError)


THEIRS: dict[Dialect, Callable[[ModelServer], Coroutine[Any, Any, Got]]] = {
    "chat": theirs_chat,
    "responses": theirs_responses,
    "messages": theirs_messages,
}


def comparable(got: Got) -> dict[str, Any]:
    """With the arguments as what they mean: Anthropic's SDK gives no others."""
    calls = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in got.calls]
    return {**vars(got), "calls": calls}


async def worth_a_retry(error: Exception) -> bool:
    """Whether an SDK makes the call again after this: all calls without an answer, and some with one."""
    if isinstance(error, openai.APIStatusError):
        async with openais("http://127.0.0.1") as client:
            return client._should_retry(error.response)
    if isinstance(error, anthropic.APIStatusError):
        async with anthropics("http://127.0.0.1") as other:
            return other._should_retry(error.response)
    assert isinstance(error, openai.APIConnectionError | anthropic.APIConnectionError)
    return True


_ROUNDS = 10


@pytest.fixture(autouse=True)
async def forgotten_streams() -> AsyncIterator[None]:
    """The SDKs leave some of their generators to the event loop, which closes them in tasks: one that is
    closed may let go of the next, a round of the loop later.
    """
    yield
    gc.collect()
    own, quiet = asyncio.current_task(), 0
    while quiet < _ROUNDS:
        await asyncio.sleep(0)
        quiet = 0 if any(task is not own for task in asyncio.all_tasks()) else quiet + 1


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_both_get_the_same_answer(dialect: Dialect, name: str) -> None:
    async with ModelServer([ANSWERS[name]]) as server:
        got, expected = await ours(server, dialect), await THEIRS[dialect](server)
    assert comparable(got) == comparable(expected)
    answer = faults.answer(ANSWERS[name]).said
    assert answer is not None
    assert got.text == "".join(answer.text)
    assert got.finish == answer.finished
    assert [called[:2] for called in got.calls] == [(called.id, called.name) for called in answer.calls]


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_both_call_the_same_worth_a_retry(dialect: Dialect, name: str) -> None:
    async with ModelServer([REFUSALS[name]]) as server:
        with pytest.raises(ModelError) as our:
            await ours(server, dialect)
        with pytest.raises((openai.APIError, anthropic.APIError)) as their:
            await THEIRS[dialect](server)
    assert our.value.transient is await worth_a_retry(their.value), our.value.code


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_neither_takes_a_broken_answer_for_a_whole_one(dialect: Dialect, name: str) -> None:
    async with ModelServer([BREAKS[name]]) as server:
        with pytest.raises(ModelError):
            await ours(server, dialect)
        with pytest.raises(broken()):
            await THEIRS[dialect](server)
