"""One conversation, whoever began it, goes on with each of the dialects: nothing in it is refused or lost."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.dialects.fitting import NO_ANSWER, NO_RESULT, fitted, loop_start
from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.protocol import Message, ModelSettings, Reasoning, Request, ToolCall

CHAT_MODEL, RESPONSES_MODEL, MESSAGES_MODEL = "deepseek/x", "openai/x", "anthropic/x"


@dataclass
class Heard:
    """What an endpoint reads in a request: per call its result, in the order in which they came."""

    texts: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """The ids."""
    results: list[tuple[str, str]] = field(default_factory=list)
    """The id, and the result's last line."""
    reasoning: list[str] = field(default_factory=list)


def last_line(said: str) -> str:
    return said.rpartition("\n")[2]


def check_turns(kinds: Sequence[str]) -> None:
    """Check the rule of the templates of Gemma and Mistral; results count as the user's."""
    roles = [kind for kind in kinds if kind not in ("system", "reasoning")]
    assert roles[:1] in ([], ["user"]), roles
    follows = {"user": {"assistant", "call"}, "assistant": {"user", "call"}, "result": {"assistant", "call"}}
    for before, role in itertools.pairwise(roles):
        assert (
            role
            in ({**follows, "call": {"call", "result"}, "result": {*follows["result"], "result"}})[before]
        )


def heard_by_chat(wire: dict[str, Any]) -> Heard:
    heard, waiting = Heard(), set[str]()
    check_turns(
        [
            "result" if each["role"] == "tool" else "call" if "tool_calls" in each else each["role"]
            for each in wire["messages"]
        ]
    )
    for message in wire["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            heard.results.append((message["tool_call_id"], last_line(message["content"])))
            continue
        assert not waiting
        heard.texts += [message["content"]] if message["content"] else []
        heard.reasoning += [message[name] for name in ("reasoning_content", "reasoning") if name in message]
        ids = [call["id"] for call in message.get("tool_calls", ())]
        waiting = set(ids)
        heard.calls += ids
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert not waiting
    return heard


def heard_by_responses(wire: dict[str, Any]) -> Heard:
    heard, waiting = Heard(), set[str]()
    names = {"function_call": "call", "function_call_output": "result"}
    check_turns([names.get(each["type"]) or each.get("role", "reasoning") for each in wire["input"]])
    for item in wire["input"]:
        match item["type"]:
            case "function_call":
                waiting.add(item["call_id"])
                heard.calls.append(item["call_id"])
                assert isinstance(json.loads(item["arguments"]), dict)
            case "function_call_output":
                waiting.remove(item["call_id"])
                heard.results.append((item["call_id"], last_line(item["output"])))
            case "reasoning":
                heard.reasoning.append(item["encrypted_content"])
            case "message":
                assert not waiting
                heard.texts += [item["content"]] if item["content"] else []
    assert not waiting
    return heard


def heard_by_messages(wire: dict[str, Any]) -> Heard:
    heard, waiting = Heard(), set[str]()
    roles = [message["role"] for message in wire["messages"]]
    assert all(role == ("assistant" if at % 2 else "user") for at, role in enumerate(roles))
    assert roles[-1] == "user"
    for message in wire["messages"]:
        assert message["content"]
        others = False
        for block in message["content"]:
            match block["type"]:
                case "tool_use":
                    waiting.add(block["id"])
                    heard.calls.append(block["id"])
                    assert isinstance(block["input"], dict)
                case "tool_result":
                    assert not others, "results come first"
                    waiting.remove(block["tool_use_id"])
                    heard.results.append((block["tool_use_id"], last_line(block["content"])))
                case "text":
                    others = message["role"] == "user"
                    assert block["text"].strip()
                    heard.texts.append(block["text"])
                case "thinking":
                    heard.reasoning.append(block["signature"])
        assert not (waiting and message["role"] == "user")
    assert not waiting
    return heard


DIALECTS: dict[str, tuple[Callable[[], Any], Callable[[dict[str, Any]], Heard]]] = {
    "chat": (lambda: ChatCompletions(ModelSettings(provider="deepseek", model="x")), heard_by_chat),
    "responses": (lambda: Responses(ModelSettings(provider="openai", model="x")), heard_by_responses),
    "messages": (lambda: Messages(ModelSettings(provider="anthropic", model="x")), heard_by_messages),
}
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def heard(dialect: str, messages: Sequence[Message]) -> Heard:
    make, read = DIALECTS[dialect]
    body = make().body(Request(system="Be brief.", messages=messages))
    found = read(json.loads(body))
    assert len(set(found.calls)) == len(found.calls)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,40}", each) for each in found.calls)
    return found


def user(said: str) -> Message:
    return Message(role="user", content=said)


def assistant(said: str, *ids: str, reasoning: Sequence[Reasoning] = ()) -> Message:
    calls = tuple(ToolCall(id=each, name="proc_list", arguments="{}") for each in ids)
    return Message(role="assistant", content=said, tool_calls=calls, reasoning=tuple(reasoning))


def result(call_id: str, said: str) -> Message:
    return Message(role="tool", content=said, tool_call_id=call_id, name="proc_list")


THOUGHTS = {
    "chat": Reasoning(model=CHAT_MODEL, text="c"),
    "responses": Reasoning(model=RESPONSES_MODEL, data="r", id="rs_1"),
    "messages": Reasoning(model=MESSAGES_MODEL, text="m", signature="m"),
}
TRAVELLED = [
    user("one"),
    assistant("", "call_1", reasoning=[THOUGHTS["chat"]]),
    result("call_1", "first"),
    assistant("A.", reasoning=[THOUGHTS["chat"]]),
    user("two"),
    assistant("B.", "toolu_01", "toolu_02", reasoning=[THOUGHTS["messages"]]),
    result("toolu_02", "third"),
    result("toolu_01", "second"),
    assistant("", "fc|7 ä/é:" + "x" * 60, reasoning=[THOUGHTS["responses"]]),
    result("fc|7 ä/é:" + "x" * 60, "fourth"),
    assistant("", "call_1", "", reasoning=[THOUGHTS["chat"]]),
    result("call_1", "fifth"),
    result("", "sixth"),
]


@each_dialect
def test_a_conversation_that_three_models_had_goes_on_with_each_of_them(dialect: str) -> None:
    found = heard(dialect, TRAVELLED)
    assert [said for said in found.texts if said != "Be brief."] == ["one", "A.", "two", "B."]
    assert [said for _, said in found.results] == ["first", "third", "second", "fourth", "fifth", "sixth"]
    assert sorted(found.calls) == sorted(each for each, _ in found.results)
    # The ids in the order of the calls; the results of the second message came the other way round.
    order = [found.calls.index(each) for each, _ in found.results]
    assert order == [0, 2, 1, 3, 4, 5]


@each_dialect
def test_each_model_gets_its_own_reasoning_back_and_no_other(dialect: str) -> None:
    own = THOUGHTS[dialect]
    assert heard(dialect, TRAVELLED).reasoning == [own.signature or own.data or own.text]


@each_dialect
def test_a_result_goes_to_the_newest_call_of_its_id(dialect: str) -> None:
    found = heard(
        dialect,
        [
            user("a"),
            assistant("", "x"),
            result("x", "old"),
            assistant("", "x"),
            result("x", "new"),
            user("b"),
        ],
    )
    assert [said for _, said in found.results] == ["old", "new"]
    assert found.calls == [each for each, _ in found.results]


@each_dialect
def test_one_id_twice_in_a_message_gets_its_results_in_their_order(dialect: str) -> None:
    found = heard(dialect, [user("a"), assistant("", "x", "x"), result("x", "1"), result("x", "2")])
    assert list(zip(found.calls, ["1", "2"], strict=True)) == found.results


@each_dialect
def test_a_call_without_a_result_gets_one_that_says_so(dialect: str) -> None:
    found = heard(dialect, [user("a"), assistant("", "x", "y"), result("y", "1"), user("b")])
    assert found.results == [("y", "1"), ("x", NO_RESULT)]


@each_dialect
def test_a_result_without_a_call_is_told_as_text(dialect: str) -> None:
    found = heard(
        dialect, [result("x", "lost"), user("a"), assistant("", "y"), result("z", "?"), result("y", "1")]
    )
    assert found.results == [("y", "1")]
    assert [last_line(said) for said in found.texts if "Result of" in said] == ["lost", "?"]


@each_dialect
def test_what_a_person_said_between_the_results_comes_after_them(dialect: str) -> None:
    found = heard(
        dialect, [user("a"), assistant("", "x", "y"), result("x", "1"), user("hurry"), result("y", "2")]
    )
    assert found.results == [("x", "1"), ("y", "2")]
    assert found.texts[-1] == "hurry"


@each_dialect
def test_bad_names_and_arguments_of_another_model_are_no_obstacle(dialect: str) -> None:
    calls = (
        ToolCall(id="1", name="what is this?" * 20, arguments="{"),
        ToolCall(id="2", name="", arguments="[]"),
        ToolCall(id="3", name="\ud800", arguments='{"a": "\ud800"}'),
    )
    said = Message(role="assistant", content="\udcff", tool_calls=calls)
    found = heard(dialect, [user("a"), said, *(result(each.id, "ok") for each in calls)])
    assert found.calls == ["1", "2", "3"]


IDS = st.sampled_from(["a", "b", "", "ä", "toolu_1", "x" * 50, "a b", "\ud800"])
MESSAGES = st.one_of(
    st.builds(user, st.sampled_from(["", " ", "hi"])),
    st.builds(
        lambda said, ids: assistant(said, *ids), st.sampled_from(["", "\n", "so"]), st.lists(IDS, max_size=3)
    ),
    st.builds(result, IDS, st.sampled_from(["", "ok"])),
)


@each_dialect
@given(messages=st.lists(MESSAGES, max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_messages_make_a_conversation(dialect: str, messages: list[Message]) -> None:
    heard(dialect, messages)


@given(messages=st.lists(MESSAGES, max_size=12), more=st.lists(MESSAGES, max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_longer_conversation_begins_as_the_shorter_one_did(
    messages: list[Message], more: list[Message]
) -> None:
    known = [*messages, user("stop"), assistant("so")]
    assert fitted([*known, *more])[: len(fitted(known))] == fitted(known)


def test_what_is_missing_between_two_of_one_role_is_said() -> None:
    summary = Message(role="user", content="before", name="summary")
    odd = [assistant("so"), assistant("well"), user("a"), user("b"), assistant(""), assistant("", "x")]
    told = [
        (each.role, each.content) for each in fitted([summary, user("0"), *odd, result("x", "1"), user("c")])
    ]
    assert told == [
        ("user", "before\n\n0"),
        ("assistant", "so"),
        ("user", "Go on."),
        ("assistant", "well"),
        ("user", "a"),
        ("assistant", NO_ANSWER),
        ("user", "b"),
        ("assistant", ""),
        ("tool", "1"),
        ("assistant", NO_ANSWER),
        ("user", "c"),
    ]


def test_a_conversation_that_fits_stays_as_it_is() -> None:
    plain = [user("a"), assistant("", "x"), result("x", "1"), assistant("b"), user("c")]
    assert fitted(plain) == plain


def test_where_the_tool_loop_begins() -> None:
    assert loop_start([]) == 0
    assert loop_start([user("a")]) == 0
    assert loop_start([user("a"), assistant("", "x"), result("x", "1")]) == 0
    done = [user("a"), assistant("", "x"), result("x", "1"), assistant("b")]
    assert loop_start(done) == 0
    assert loop_start([*done, user("c")]) == 4
    assert loop_start([*done, user("c"), assistant("", "y"), result("y", "1")]) == 4
