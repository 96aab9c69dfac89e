"""The official SDKs know the shapes: of the events that the tests script, and of what is sent."""

from __future__ import annotations

import functools
import importlib
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall
from tests.llm.dialects import messages_streams, responses_streams
from tests.model_server import messages, responses
from tests.model_server.said import Called, Said

FULL = Said(
    thinking=["Hm", "."],
    text=["Let ", "me."],
    calls=[Called(name="f", arguments='{"a": 1}'), Called(name="g", arguments="{}", id="c2")],
    cached_tokens=4,
)
SAID = [
    FULL,
    Said(text=["a"]),
    Said(text=["a"], finish="length"),
    Said(text=["a"], finish="content_filter"),
]
ANTHROPIC = "anthropic.types"
OPENAI = "openai.types.responses"


@functools.cache
def sdk(module: str, name: str) -> TypeAdapter[Any]:
    """A type of an SDK, which loads here: it takes seconds, in each process that collects the tests."""
    return TypeAdapter(getattr(importlib.import_module(module), name))


def data_of(pieces: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(piece.partition(b"data: ")[2]) for piece in pieces]


@pytest.mark.parametrize("said", SAID)
def test_the_events_of_the_messages_api_are_those_of_its_sdk(said: Said) -> None:
    for event in data_of(messages.pieces(said)):
        if event["type"] != "ping":  # the SDK leaves it out before it looks
            sdk(ANTHROPIC, "RawMessageStreamEvent").validate_python(event)


@pytest.mark.parametrize("said", SAID)
def test_the_events_of_the_responses_api_are_those_of_its_sdk(said: Said) -> None:
    for event in data_of(responses.pieces(said)):
        sdk(OPENAI, "ResponseStreamEvent").validate_python(event)
    ends = [responses.failed("Sorry.", "server_error"), responses.error_event("Sorry.", "", "server_error")]
    for event in data_of(ends):
        sdk(OPENAI, "ResponseStreamEvent").validate_python(event)
    for event in data_of(responses.refusal(0, "No.")):
        sdk(OPENAI, "ResponseStreamEvent").validate_python(event)


PLAIN_MESSAGES = [
    "text in pieces",
    "a call",
    "interleaved calls",
    "thinking between text and calls",
    "thinking that nobody can read",
    "tokens from the cache count as tokens of the prompt",
    "the end of the window",
    "a pause",
]
PLAIN_RESPONSES = [
    "text in pieces",
    "a refusal",
    "a call",
    "two calls",
    "reasoning with a summary",
    "the longest answer",
    "a filter after text",
]


@pytest.mark.parametrize("name", PLAIN_MESSAGES)
def test_a_scripted_stream_of_messages_is_one_that_the_sdk_knows(name: str) -> None:
    for event in data_of(messages_streams.STREAMS[name][0]):
        if event["type"] != "ping":
            sdk(ANTHROPIC, "RawMessageStreamEvent").validate_python(event)


@pytest.mark.parametrize("name", PLAIN_RESPONSES)
def test_a_scripted_stream_of_responses_is_one_that_the_sdk_knows(name: str) -> None:
    for event in data_of(responses_streams.STREAMS[name][0]):
        sdk(OPENAI, "ResponseStreamEvent").validate_python(event)


def conversation(model: str) -> list[Message]:
    call = ToolCall(id="c1", name="f", arguments='{"a": 1}')
    blocks = (
        Reasoning(model=model, text="Hm.", signature="abc", data="", id=""),
        Reasoning(model=model, data="gAAAA", id="rs_1"),
    )
    return [
        Message(role="user", content="go"),
        Message(role="assistant", content="Let me.", tool_calls=(call,), reasoning=blocks),
        Message(role="tool", content="ok", tool_call_id="c1", name="f"),
    ]


FUNCTION = Function(name="f", description="Does it.", parameters={"type": "object", "properties": {}})


def test_what_the_messages_api_is_sent_is_what_its_sdk_would_send() -> None:
    dialect = Messages(ModelSettings(provider="anthropic", model="claude-sonnet-4-5", thinking_tokens=2000))
    request = Request(
        system="Be brief.", messages=conversation("anthropic/claude-sonnet-4-5"), functions=[FUNCTION]
    )
    wire = json.loads(dialect.body(request))
    check(ANTHROPIC, "ThinkingConfigParam", wire["thinking"])
    for block in wire["system"]:
        check(ANTHROPIC, "TextBlockParam", block)
    for tool in wire["tools"]:
        check(ANTHROPIC, "ToolParam", tool)
    for message in wire["messages"]:
        check(ANTHROPIC, "MessageParam", message)
        for block in message["content"]:
            check(ANTHROPIC, "ContentBlockParam", block)
    check(
        ANTHROPIC,
        "ToolChoiceNoneParam",
        json.loads(dialect.body(Request(system="", messages=request.messages)))["tool_choice"],
    )


def test_what_the_responses_api_is_sent_is_what_its_sdk_would_send() -> None:
    dialect = Responses(ModelSettings(provider="openai", model="gpt-5"))
    request = Request(system="Be brief.", messages=conversation("openai/gpt-5"), functions=[FUNCTION])
    wire = json.loads(dialect.body(request))
    for item in wire["input"]:
        check(
            OPENAI,
            "ResponseInputItemParam",
            item | {"id": item.get("id", "rs_0")} if item["type"] == "reasoning" else item,
        )
    for tool in wire["tools"]:
        check(OPENAI, "FunctionToolParam", tool)


def check(module: str, name: str, value: Any) -> None:
    """That a value has a shape, and nothing that the shape does not have."""
    found = sdk(module, name).validate_python(value)
    if isinstance(value, dict):
        assert not isinstance(found, dict) or found.keys() == value.keys()
