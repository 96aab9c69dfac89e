"""What the Responses API is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall

ME = "openai/gpt-5"
LIST = Function(name="proc_list", description="List processes.", parameters={"type": "object"})
THOUGHT = Reasoning(model=ME, text="Hm.", data="gAAAA", id="rs_1")


def dialect(**fields: Any) -> Responses:
    return Responses(ModelSettings(**{"provider": "openai", "model": "gpt-5", **fields}))


def again(made: Responses, *messages: Message, system: str = "", functions: Any = ()) -> dict[str, Any]:
    return dict(json.loads(made.body(Request(system=system, messages=messages, functions=functions))))


def sent(*messages: Message, system: str = "", functions: Any = (), **fields: Any) -> dict[str, Any]:
    """The body of a request, as the endpoint reads it."""
    return again(dialect(**fields), *messages, system=system, functions=functions)


def user(said: str = "go") -> Message:
    return Message(role="user", content=said)


def assistant(said: str = "", *calls: ToolCall, reasoning: tuple[Reasoning, ...] = ()) -> Message:
    return Message(role="assistant", content=said, tool_calls=calls, reasoning=reasoning)


def tool(call_id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name="proc_list", arguments=arguments)


def result(call_id: str = "c1", said: str = "ok") -> Message:
    return Message(role="tool", content=said, tool_call_id=call_id, name="proc_list")


def kinds(wire: dict[str, Any]) -> list[str]:
    """The items: what they are, and who says a message."""
    return [item["role"] if item["type"] == "message" else item["type"] for item in wire["input"]]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/responses", "https://api.openai.com/v1/responses"),
        ("https://x.example/openai?api-version=1", "https://x.example/openai/responses?api-version=1"),
    ],
)
def test_a_base_url_works_with_and_without_the_path(base: str, url: str) -> None:
    assert dialect().url(base) == url


def test_the_key_goes_into_the_authorization() -> None:
    assert dialect().headers("k") == {"Authorization": "Bearer k"}
    assert dialect().headers("") == {}


def test_a_first_request() -> None:
    wire = sent(user("hello"), system="Be brief.", functions=[LIST], max_output_tokens=500)
    assert wire == {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": "hello"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 500,
        "tools": [
            {
                "type": "function",
                "name": "proc_list",
                "description": "List processes.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
    }


def test_a_call_and_its_result_go_back_without_the_id_of_the_item() -> None:
    wire = sent(user(), assistant("Let me.", tool(arguments='{"a": 1}')), result())
    assert wire["input"][1:3] == [
        {"type": "message", "role": "assistant", "content": "Let me."},
        {"type": "function_call", "call_id": "c1", "name": "proc_list", "arguments": '{"a": 1}'},
    ]
    got = wire["input"][3]
    assert (got["type"], got["call_id"]) == ("function_call_output", "c1")
    assert got["output"].endswith("\nok")


@pytest.mark.parametrize("arguments", ["", "[1]", "oops", '"a"', "null"])
def test_arguments_that_are_no_object_go_back_in_one(arguments: str) -> None:
    wire = sent(user(), assistant("", tool(arguments=arguments)), result())
    assert json.loads(wire["input"][1]["arguments"]) == {"not_a_json_object": arguments}


def test_reasoning_goes_back_unaltered_before_what_came_of_it() -> None:
    wire = sent(user(), assistant("Let me.", tool(), reasoning=(THOUGHT,)), result())
    assert kinds(wire) == ["user", "reasoning", "assistant", "function_call", "function_call_output"]
    assert wire["input"][1] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "gAAAA",
    }


def test_reasoning_in_words_goes_back_in_words() -> None:
    said = Reasoning(model=ME, text="Hm.")
    wire = sent(user(), assistant("", tool(), reasoning=(said,)), result())
    assert wire["input"][1] == {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }


def test_only_the_reasoning_of_the_present_loop_goes_back() -> None:
    earlier = [user(), assistant("", tool("c0"), reasoning=(THOUGHT,)), result("c0"), assistant("Done.")]
    loop = [user(), assistant("", tool(), reasoning=(THOUGHT,)), result()]
    assert kinds(sent(*earlier, *loop)).count("reasoning") == 1
    assert kinds(sent(*earlier, user())).count("reasoning") == 0


def test_foreign_reasoning_and_reasoning_that_led_to_nothing_are_dropped() -> None:
    foreign = Reasoning(model="anthropic/claude", text="Hm.", signature="abc")
    wire = sent(user(), assistant("", tool(), reasoning=(foreign,)), result())
    assert "reasoning" not in kinds(wire)
    assert kinds(sent(user(), assistant("", reasoning=(THOUGHT,)))) == ["user"]


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("gpt-5", True),
        ("o4-mini", True),
        ("openai/gpt-5.1", True),
        ("gpt-4.1", False),
        ("openai/gpt-4o", False),
    ],
)
def test_reasoning_in_cipher_is_asked_of_models_that_reason(model: str, thinks: bool) -> None:
    assert ("include" in sent(user(), model=model)) is thinks


def test_an_endpoint_that_encrypts_nothing_is_not_asked_to() -> None:
    made = dialect()
    assert made.concedes("Encrypted content is not supported with this model.")
    assert "include" not in again(made, user())
    assert not made.concedes("messages: nothing to include here")
    assert dialect().concedes("include.0: Input should be 'file_search_call.results'")


def test_an_endpoint_that_refuses_reasoning_gets_none() -> None:
    made = dialect()
    loop = [user(), assistant("", tool(), reasoning=(THOUGHT,)), result()]
    assert made.concedes("Item 'rs_1' of type 'reasoning' was provided without its required following item.")
    assert "reasoning" not in kinds(again(made, *loop))
    assert not made.concedes("The encrypted content gAAA... could not be verified.")


def test_fields_of_the_configuration_win() -> None:
    extra = {"store": True, "reasoning": {"effort": "low"}, "include": [], "tools": []}
    wire = sent(user(), functions=[LIST], extra_body=extra)
    assert wire | extra == wire
