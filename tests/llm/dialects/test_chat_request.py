"""What is sent as a chat completion, and what a request does without once a server refused it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall

ASK = Request(system="S", messages=[Message(role="user", content="how?")])
FUNCTIONS = [Function(name="f_g", description="Does it.", parameters={"type": "object"})]


def dialect(**settings: Any) -> ChatCompletions:
    return ChatCompletions(ModelSettings(provider="p", model="m", **settings))


def body(chat: ChatCompletions, request: Request = ASK) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chat.body(request))
    return found


def step(number: int, *blocks: Reasoning) -> list[Message]:
    """A call with its reasoning, and its result."""
    call = ToolCall(id=f"c{number}", name="f_g", arguments="{}")
    return [
        Message(role="assistant", content="", tool_calls=(call,), reasoning=blocks),
        Message(role="tool", content="ok", tool_call_id=f"c{number}", name="f_g"),
    ]


def hmm(text: str, model: str = "p/m", field: str = "") -> Reasoning:
    return Reasoning(model=model, text=text, id=field)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://x.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://api.openai.com.evil.example/v1", "max_tokens"),
        ("http://127.0.0.1:11434/v1", "max_tokens"),
        ("https://openrouter.ai/api/v1", "max_tokens"),
    ],
)
def test_the_limit_has_the_name_that_the_server_takes(base: str, name: str) -> None:
    sent = body(dialect(base_url=base, max_output_tokens=500))
    assert sent[name] == 500
    assert len({"max_tokens", "max_completion_tokens"} & set(sent)) == 1


def test_there_is_no_limit_without_one() -> None:
    assert not {"max_tokens", "max_completion_tokens"} & set(body(dialect()))


def test_more_fields_win_over_those_of_the_client() -> None:
    chat = dialect(
        extra_body={"temperature": 0, "stream_options": None, "max_tokens": 7}, max_output_tokens=5
    )
    sent = body(chat)
    assert (sent["temperature"], sent["stream_options"], sent["max_tokens"]) == (0, None, 7)


def test_tools_of_the_configuration_are_not_sent_twice() -> None:
    chat = dialect(extra_body={"tools": []})
    assert chat.body(Request(system="", messages=ASK.messages, functions=FUNCTIONS)).count(b'"tools"') == 1


def test_a_refused_option_for_the_usage_is_left_out_from_then_on() -> None:
    chat = dialect()
    assert "stream_options" in body(chat)
    assert chat.concedes("Unrecognized request argument supplied: stream_options")
    assert "stream_options" not in body(chat)
    assert not chat.concedes("Unrecognized request argument supplied: stream_options")


def test_a_refused_name_of_the_limit_is_changed_once() -> None:
    chat = dialect(max_output_tokens=5)
    words = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    assert chat.concedes(words)
    assert body(chat)["max_completion_tokens"] == 5
    assert "max_tokens" not in body(chat)
    assert not chat.concedes("Unknown field: max_completion_tokens")


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: 5.",
        "Invalid schema for function",
        "Incorrect API key",
        "context_length_exceeded",
        "",
    ],
)
def test_nothing_is_left_out_for_other_refusals(words: str) -> None:
    assert not dialect(max_output_tokens=5).concedes(words)


def test_reasoning_goes_back_within_the_tool_loop_that_runs() -> None:
    messages = [
        Message(role="user", content="first"),
        *step(1, hmm("old")),
        Message(role="assistant", content="done", reasoning=(hmm("old too"),)),
        Message(role="user", content="second"),
        *step(2, hmm("new")),
        *step(3, hmm("newer", field="reasoning")),
    ]
    sent = body(dialect(), Request(system="S", messages=messages))["messages"]
    thoughts = [found.get("reasoning_content") or found.get("reasoning") for found in sent]
    assert thoughts == [None, None, None, None, None, None, "new", None, "newer", None]
    assert sent[6]["reasoning_content"] == "new"
    assert sent[8]["reasoning"] == "newer"


def test_blocks_of_reasoning_go_back_as_they_came() -> None:
    blocks = [{"type": "reasoning.encrypted", "index": 0, "data": "AA==", "id": None}]
    text = Reasoning(model="p/m", text="Hmm.", id="reasoning")
    for data, expected in ((json.dumps(blocks), (blocks, None)), ("junk", (None, "Hmm."))):
        stored = Reasoning(model="p/m", data=data, id="reasoning_details")
        said = [Message(role="user", content="a"), *step(1, text, stored)]
        sent = body(dialect(), Request(system="S", messages=said))["messages"][2]
        assert (sent.get("reasoning_details"), sent.get("reasoning")) == expected


def test_reasoning_of_another_model_stays_here() -> None:
    messages = [Message(role="user", content="x"), *step(1, hmm("theirs", model="other/m"))]
    assert "theirs" not in json.dumps(body(dialect(), Request(system="", messages=messages)))


def test_reasoning_that_is_refused_stays_here_from_then_on() -> None:
    chat = dialect()
    request = Request(system="", messages=[Message(role="user", content="x"), *step(1, hmm("mine"))])
    assert "mine" in json.dumps(body(chat, request))
    assert chat.concedes("messages.1.reasoning_content: Extra inputs are not permitted")
    assert "mine" not in json.dumps(body(chat, request))


def test_a_call_without_a_result_is_sent_with_one() -> None:
    messages = [Message(role="user", content="x"), step(1)[0], Message(role="user", content="y")]
    roles = [found["role"] for found in body(dialect(), Request(system="", messages=messages))["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_ids_are_short_where_the_endpoint_wants_them_so() -> None:
    chat = dialect()
    request = Request(system="", messages=[Message(role="user", content="x"), *step(1)])
    words = "Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9."
    assert chat.concedes(words)
    call, result = body(chat, request)["messages"][1:]
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", result["tool_call_id"])
    assert not chat.concedes(words)


@pytest.mark.parametrize(
    "words",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "Missing `reasoning_content` field in the assistant message at message index 2.",
    ],
)
def test_all_calls_have_reasoning_where_the_endpoint_wants_that(words: str) -> None:
    chat = dialect()
    user = Message(role="user", content="x")
    done = Message(role="assistant", content="done")
    request = Request(system="", messages=[user, *step(1, hmm("old")), *step(2), done, user])
    assert "reasoning_content" not in json.dumps(body(chat, request))
    assert chat.concedes(words)
    sent = body(chat, request)["messages"]
    assert [message.get("reasoning_content") for message in sent] == [None, "old", None, " ", None, " ", None]
    assert not chat.concedes(words)


def test_reasoning_that_deepseek_wants_removed_stays_here() -> None:
    chat = dialect()
    request = Request(system="", messages=[Message(role="user", content="x"), *step(1, hmm("mine"))])
    words = "It is for display purposes only. Please remove the reasoning_content from your message."
    assert chat.concedes(words)
    assert "mine" not in json.dumps(body(chat, request))


def signed(*blocks: Reasoning) -> list[Any]:
    """What stands beside the calls."""
    chat = dialect()
    chat.concedes("Function call is missing a thought_signature in functionCall parts.")
    sent = body(chat, Request(system="", messages=[Message(role="user", content="x"), *step(1, *blocks)]))
    return [call["extra_content"] for call in sent["messages"][1]["tool_calls"]]


def test_a_signature_goes_back_beside_its_call() -> None:
    extra = {"google": {"thought_signature": "S"}}
    block = Reasoning(model="p/m", data=json.dumps(extra), id="extra_content/0")
    user = Message(role="user", content="x")
    request = Request(system="", messages=[user, *step(1, block), user])
    call = body(dialect(), request)["messages"][1]
    assert call["tool_calls"][0]["extra_content"] == extra
    assert "reasoning_content" not in call
    assert signed(block) == [extra]


def test_calls_without_a_signature_have_the_word_for_that_where_the_endpoint_wants_one() -> None:
    dummy = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    theirs = Reasoning(model="other/m", data='{"a": 1}', id="extra_content/0")
    broken = Reasoning(model="p/m", data="junk", id="extra_content/0")
    assert signed() == signed(theirs) == signed(broken) == [dummy]


@pytest.mark.parametrize(
    ("base", "key", "header"),
    [
        ("https://x.openai.azure.com/openai/v1", "k", {"api-key": "k"}),
        ("https://x.services.ai.azure.com/openai/v1", "k", {"api-key": "k"}),
        ("https://x.openai.azure.com/openai/v1", "eyJ0.e.x", {"Authorization": "Bearer eyJ0.e.x"}),
        ("https://x.openai.azure.com.evil.example/v1", "k", {"Authorization": "Bearer k"}),
        ("https://x.openai.azure.com/openai/v1", "", {}),
        ("http://127.0.0.1:8000/v1", "k", {"Authorization": "Bearer k"}),
    ],
)
def test_the_key_goes_into_the_header_of_the_endpoint(base: str, key: str, header: dict[str, str]) -> None:
    assert dialect(base_url=base).headers(key) == header
    assert Responses(ModelSettings(provider="p", model="m", base_url=base)).headers(key) == header
