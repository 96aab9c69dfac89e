"""What the Messages API is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.protocol import Function, Message, ModelSettings, Reasoning, Request, ToolCall

ME = "anthropic/claude-sonnet-4-5"
LOOK = Function(
    name="file_stat",
    description="Look at a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
LIST = Function(name="proc_list", description="List processes.", parameters={})
EPHEMERAL = {"type": "ephemeral"}
THOUGHT = Reasoning(model=ME, text="Hm.", signature="abc+/=")


def dialect(**fields: Any) -> Messages:
    return Messages(ModelSettings(**{"provider": "anthropic", "model": "claude-sonnet-4-5", **fields}))


def sent(*messages: Message, system: str = "", functions: Any = (), **fields: Any) -> dict[str, Any]:
    """The body of a request, as the endpoint reads it."""
    return again(dialect(**fields), *messages, system=system, functions=functions)


def again(made: Messages, *messages: Message, system: str = "", functions: Any = ()) -> dict[str, Any]:
    return dict(json.loads(made.body(Request(system=system, messages=messages, functions=functions))))


def user(said: str = "go") -> Message:
    return Message(role="user", content=said)


def assistant(said: str = "", *calls: ToolCall, reasoning: tuple[Reasoning, ...] = ()) -> Message:
    return Message(role="assistant", content=said, tool_calls=calls, reasoning=reasoning)


def tool(call_id: str = "c1", arguments: str = "{}", name: str = "proc_list") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str = "c1", said: str = "ok") -> Message:
    return Message(role="tool", content=said, tool_call_id=call_id, name="proc_list")


def kinds(wire: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The roles, and the types of their blocks."""
    return [(each["role"], [block["type"] for block in each["content"]]) for each in wire["messages"]]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1/messages"),
        ("https://api.example/anthropic", "https://api.example/anthropic/v1/messages"),
        ("https://api.example/v1?beta=true", "https://api.example/v1/messages?beta=true"),
    ],
)
def test_a_base_url_works_however_much_of_the_path_it_has(base: str, url: str) -> None:
    assert dialect().url(base) == url


def test_the_key_goes_into_its_own_header() -> None:
    assert dialect().headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert dialect().headers("") == {"anthropic-version": "2023-06-01"}


def test_a_first_request() -> None:
    assert sent(user("hello"), system="Be brief.", functions=[LIST, LOOK]) == {
        "model": "claude-sonnet-4-5",
        "stream": True,
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": EPHEMERAL}],
        "tools": [
            {"name": "proc_list", "description": "List processes.", "input_schema": {"type": "object"}},
            {
                "name": "file_stat",
                "description": "Look at a file.",
                "input_schema": LOOK.parameters,
                "cache_control": EPHEMERAL,
            },
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": EPHEMERAL}]}
        ],
    }


def test_a_call_and_its_result_go_back() -> None:
    wire = sent(
        user(),
        assistant("Let me.", tool(arguments='{"path": "/"}')),
        result(),
        functions=[LIST],
    )
    said, got = wire["messages"][1:]
    assert said["content"] == [
        {"type": "text", "text": "Let me."},
        {"type": "tool_use", "id": "c1", "name": "proc_list", "input": {"path": "/"}},
    ]
    assert got["role"] == "user"
    (block,) = got["content"]
    assert (block["type"], block["tool_use_id"]) == ("tool_result", "c1")
    assert block["content"].endswith("\nok")


def test_all_results_of_a_message_are_one_message() -> None:
    wire = sent(user(), assistant("", tool("a"), tool("b")), result("a"), result("b"), user("and?"))
    assert kinds(wire) == [
        ("user", ["text"]),
        ("assistant", ["tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]


def test_no_block_of_text_is_empty() -> None:
    wire = sent(user(""), assistant("", tool()), result(), assistant(" \n"), user(" "))
    texts = [
        block["text"] for each in wire["messages"] for block in each["content"] if block["type"] == "text"
    ]
    assert all(said.strip() for said in texts)
    assert kinds(wire) == [
        ("user", ["text"]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]


def test_the_user_speaks_first_and_last() -> None:
    assert [role for role, _ in kinds(sent(assistant("Hello.")))] == ["user", "assistant", "user"]
    assert [role for role, _ in kinds(sent())] == ["user"]


def test_an_empty_system_prompt_is_left_out() -> None:
    assert "system" not in sent(user(), system="\n")


@pytest.mark.parametrize(
    "arguments", ["", "[1]", "oops", '"a"', "null", "[" * 50_000, '{"a":' * 500 + "1" + "}" * 500]
)
def test_arguments_that_are_no_object_go_back_in_one(arguments: str) -> None:
    wire = sent(user(), assistant("", tool(arguments=arguments)), result())
    assert wire["messages"][1]["content"][0]["input"] == {"not_a_json_object": arguments}


@pytest.mark.parametrize("arguments", ["{}", '{"a": {"b": [1, null]}}', '{"a": NaN}'])
def test_arguments_that_are_an_object_go_back_as_they_are(arguments: str) -> None:
    wire = sent(user(), assistant("", tool(arguments=arguments)), result())
    assert wire["messages"][1]["content"][0]["input"] == json.loads(arguments.replace("NaN", "null"))


def test_a_conversation_with_calls_keeps_their_functions_although_none_is_offered() -> None:
    wire = sent(user(), assistant("", tool(), tool("c2", name="what ever")), result(), result("c2"), user())
    assert [each["name"] for each in wire["tools"]] == ["proc_list", "what_ever"]
    assert all(each["input_schema"] == {"type": "object"} for each in wire["tools"])
    assert wire["tool_choice"] == {"type": "none"}
    assert "tools" not in sent(user())


# Caching


def marks(wire: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (at, place)
        for at, each in enumerate(wire["messages"])
        for place, block in enumerate(each["content"])
        if "cache_control" in block
    ]


def test_what_the_request_before_had_cached_is_marked_again() -> None:
    conversation = [user(), assistant("", tool()), result()]
    first, second = sent(*conversation), sent(*conversation, assistant("", tool("c2")), result("c2"))
    assert marks(first) == [(0, 0), (2, 0)]
    assert marks(second) == [(2, 0), (4, 0)]


def test_a_request_marks_no_more_than_four_places() -> None:
    steps = [each for at in range(9) for each in (assistant("", tool(f"c{at}")), result(f"c{at}"))]
    wire = json.dumps(sent(user(), *steps, system="Be brief.", functions=[LIST, LOOK]))
    assert wire.count("cache_control") == 4


def test_a_longer_conversation_begins_with_the_same_bytes() -> None:
    made = dialect()
    conversation = [user(), assistant("", tool("*odd*")), result("*odd*"), assistant("", tool("c2"))]
    short = again(made, *conversation, result("c2"))
    long = again(made, *conversation, result("c2"), assistant("", tool("c3")), result("c3"))
    plain = [
        json.loads(json.dumps(each).replace(', "cache_control": {"type": "ephemeral"}', ""))
        for each in (short["messages"], long["messages"])
    ]
    assert plain[1][: len(plain[0])] == plain[0]


# How long an answer may be


def test_the_answer_may_be_as_long_as_is_configured() -> None:
    assert sent(user(), max_output_tokens=500)["max_tokens"] == 500
    assert sent(user(), extra_body={"max_tokens": 77}, max_output_tokens=500)["max_tokens"] == 77


def test_the_answer_may_not_be_longer_than_what_the_prompt_leaves_of_the_window() -> None:
    wire = sent(user("x" * 30_000), max_output_tokens=64_000, context_tokens=20_000)
    assert 9_000 < wire["max_tokens"] < 10_000
    assert sent(user("x" * 90_000), context_tokens=20_000)["max_tokens"] == 1024


def test_an_endpoint_says_how_long_an_answer_may_be_at_most() -> None:
    made = dialect()
    said = "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku"
    assert made.concedes(said)
    assert again(made, user())["max_tokens"] == 4096
    assert not made.concedes(said)


def test_an_endpoint_cannot_make_answers_empty() -> None:
    made = dialect()
    assert not made.concedes("max_tokens: 8192 > 0")
    assert again(made, user())["max_tokens"] == 8192


# Thinking


def test_thinking_has_a_budget_that_leaves_room_for_the_answer() -> None:
    wire = sent(user(), thinking_tokens=4000)
    assert wire["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    assert wire["max_tokens"] == 4000 + 8192
    assert "thinking" not in sent(user())


@pytest.mark.parametrize(
    ("asked", "most", "budget"),
    [(1, None, 1024), (4000, 10_000, 4000), (4000, 4000, 2000), (4000, 1500, 1024), (4000, 1024, None)],
)
def test_a_budget_is_never_below_what_the_api_takes_nor_as_long_as_the_answer(
    asked: int, most: int | None, budget: int | None
) -> None:
    wire = sent(user(), thinking_tokens=asked, max_output_tokens=most)
    assert wire.get("thinking") == (budget and {"type": "enabled", "budget_tokens": budget})


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("claude-3-7-sonnet-20250219", "enabled"),
        ("claude-sonnet-4-20250514", "enabled"),
        ("claude-opus-4-1-20250805", "enabled"),
        ("claude-opus-4-6", "enabled"),
        ("claude-opus-4-7", "adaptive"),
        ("anthropic/claude-opus-4.7", "adaptive"),
        ("claude-sonnet-5", "adaptive"),
        ("claude-fable-5-1", "adaptive"),
        ("claude-mythos-preview", "adaptive"),
        ("kimi-k2-thinking", "enabled"),
    ],
)
def test_a_model_is_asked_to_think_in_the_form_that_it_takes(model: str, form: str) -> None:
    assert sent(user(), model=model, thinking_tokens=2000)["thinking"]["type"] == form


def test_a_form_that_is_refused_is_followed_by_the_other_and_then_by_none() -> None:
    made = dialect(thinking_tokens=2000)
    said = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"'
    assert made.concedes(said)
    assert again(made, user())["thinking"] == {"type": "adaptive"}
    assert made.concedes("adaptive thinking is not supported on this model")
    assert "thinking" not in again(made, user())
    assert not made.concedes("thinking is bad")


def test_the_name_of_a_model_is_no_complaint_about_thinking() -> None:
    made = dialect(model="kimi-k2-thinking", thinking_tokens=2000)
    assert not made.concedes("The model anthropic/kimi-k2-thinking refused the request: temperature is odd")


def test_fields_that_do_not_go_with_thinking_are_left_out_while_it_is_on() -> None:
    extra = {"temperature": 0.3, "top_k": 5, "top_p": 0.99}
    thinks = sent(user(), thinking_tokens=2000, extra_body=extra)
    assert {"temperature", "top_k", "top_p"} & thinks.keys() == {"top_p"}
    assert sent(user(), extra_body=extra)["temperature"] == 0.3
    own = sent(user(), extra_body={**extra, "thinking": {"type": "adaptive"}})
    assert own["thinking"] == {"type": "adaptive"}
    assert "temperature" not in own


def test_thinking_goes_back_unaltered_before_the_calls() -> None:
    hidden = Reasoning(model=ME, data="c2VjcmV0")
    unseen = Reasoning(model=ME, signature="xyz")
    said = assistant("Let me.", tool(), reasoning=(THOUGHT, hidden, unseen))
    wire = sent(user(), said, result(), thinking_tokens=2000)
    assert wire["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "abc+/="},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "thinking", "thinking": "", "signature": "xyz"},
        {"type": "text", "text": "Let me."},
        {"type": "tool_use", "id": "c1", "name": "proc_list", "input": {}},
    ]
    assert wire["thinking"]["type"] == "enabled"


def test_thinking_goes_back_to_where_it_stood() -> None:
    blocks = (THOUGHT, Reasoning(model=ME, data="B", id="7/0"), Reasoning(model=ME, data="C", id="7/1"))
    wire = sent(
        user(), assistant("Let me.", tool("a"), tool("b"), reasoning=blocks), result("a"), result("b")
    )
    assert kinds(wire)[1][1] == [
        "thinking",
        "text",
        "redacted_thinking",
        "tool_use",
        "redacted_thinking",
        "tool_use",
    ]


@pytest.mark.parametrize("place", ["9999/99", "-1/0", "a/b", "/", "1", "²/0", "3/0"])
def test_a_place_that_makes_no_sense_loses_nothing(place: str) -> None:
    blocks = (Reasoning(model=ME, data="B", id=place), Reasoning(model=ME, data="C", id="1/0"))
    wire = sent(user(), assistant("Let me.", tool(), reasoning=blocks), result())
    content = wire["messages"][1]["content"]
    assert "".join(block.get("text", "") for block in content) == "Let me."
    assert [block["data"] for block in content if "data" in block] == ["B", "C"]
    assert sum(block["type"] == "tool_use" for block in content) == 1


def test_the_thinking_of_earlier_turns_stays_behind() -> None:
    earlier = [user(), assistant("", tool("c0"), reasoning=(THOUGHT,)), result("c0"), assistant("Done.")]
    wire = sent(
        *earlier, user("more"), assistant("", tool(), reasoning=(THOUGHT,)), result(), thinking_tokens=2000
    )
    assert [kind for _, blocks in kinds(wire) for kind in blocks].count("thinking") == 1
    assert kinds(wire)[-2] == ("assistant", ["thinking", "tool_use"])


def test_foreign_thinking_is_dropped_and_thinking_is_off_until_the_next_prompt() -> None:
    foreign = Reasoning(model="openai/gpt-5", data="gAAAA", id="rs_1")
    loop = [user(), assistant("", tool(), reasoning=(foreign,)), result()]
    wire = sent(*loop, thinking_tokens=2000)
    assert kinds(wire)[1] == ("assistant", ["tool_use"])
    assert "thinking" not in wire
    assert "thinking" in sent(*loop, assistant("Done."), user("more"), thinking_tokens=2000)


def test_thinking_is_off_where_its_block_was_removed() -> None:
    assert "thinking" not in sent(user(), assistant("", tool()), result(), thinking_tokens=2000)


def test_thinking_is_off_after_another_model_took_a_part_in_the_loop() -> None:
    foreign = Reasoning(model="deepseek/r1", text="Hm.")
    loop = [
        user(),
        assistant("", tool("a"), reasoning=(THOUGHT,)),
        result("a"),
        assistant("", tool("b"), reasoning=(foreign,)),
        result("b"),
    ]
    assert "thinking" not in sent(*loop, thinking_tokens=2000)


def test_later_steps_need_no_thinking_of_their_own() -> None:
    loop = [user(), assistant("", tool("a"), reasoning=(THOUGHT,)), result("a"), assistant("", tool("b"))]
    assert "thinking" in sent(*loop, result("b"), thinking_tokens=2000)


def test_an_endpoint_that_refuses_blocks_of_thinking_gets_none() -> None:
    made = dialect(thinking_tokens=2000)
    loop = [user(), assistant("", tool(), reasoning=(THOUGHT,)), result()]
    assert made.concedes("messages.1.content.0: Invalid `signature` in `thinking` block")
    wire = again(made, *loop)
    assert kinds(wire)[1] == ("assistant", ["tool_use"])
    assert "thinking" not in wire
    assert "thinking" in again(made, user())


def test_all_calls_have_thinking_where_the_endpoint_wants_that() -> None:
    made = dialect()
    loop = [user(), assistant("", tool(), reasoning=(THOUGHT,)), result()]
    words = "The `content[].thinking` in the thinking mode must be passed back to the API."
    assert made.concedes(words)
    wire = again(made, *loop, assistant("", tool("c2")), result("c2"), user("more"))
    thinking = [kind for _, blocks in kinds(wire) for kind in blocks if kind in ("thinking", "tool_use")]
    assert thinking == ["thinking", "tool_use"] * 2
    assert not made.concedes(words)


def test_an_endpoint_that_knows_no_caching_is_not_asked_for_it() -> None:
    made = dialect()
    assert "cache_control" in json.dumps(again(made, user(), system="a", functions=[LIST]))
    assert made.concedes("tools.0.cache_control: Extra inputs are not permitted")
    assert "cache_control" not in json.dumps(again(made, user(), system="a", functions=[LIST]))
    assert not made.concedes("cache_control: no")


def test_nothing_is_conceded_to_a_refusal_of_something_else() -> None:
    made = dialect(thinking_tokens=2000)
    assert not made.concedes("messages: text content blocks must be non-empty")
    assert not made.concedes("")
