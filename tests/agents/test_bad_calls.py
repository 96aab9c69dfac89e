"""Calls that a model should not make: cut off, no JSON, unknown, or the same failing one again and again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.agents.tool_calls.repeats import MOST, Repeats
from lightagentd.errors import CallLoop
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import ToolCall
from tests.agents.asking import FRONT, TOML
from tests.agents.endpoints import asking_providers
from tests.agents.scripted import check_conversation, scripted
from tests.model_server.said import Called, Said, call, say
from tests.model_server.server import ModelServer
from tests.scripted_model import Answer
from tests.scripted_model import call as chat_call
from tests.scripted_model import say as chat_say

FAILING = ("proc_info", {"pid": 0})
NO_OBJECTS = {
    "null": "null",
    "a list": '[{"pid": 1}]',
    "a string": '"pid 1"',
    "an object in a string": '"{\\"pid\\": 1}"',
    "a number": "1",
    "a word": "pid=1",
    "half": '{"pid": 1',
    "two": '{"pid": 1}{"pid": 1}',
    "a key twice": '{"pid": 1, "pid": 1}',
    "NaN": '{"pid": NaN}',
    "infinity": '{"pid": 1e999}',
    "a comment": '{"pid": 1} // of init',
    "single quotes": "{'pid': 1}",
    "nothing but blanks": "  ",
    "very deep": '{"pid":' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep, beside a secret": '{"password": "hunter2hunter2", "pid":' + "[" * 900 + "]" * 900 + "}",
    "1 MB": json.dumps({"pid": "9" * 1_000_000}),
    "a lone surrogate": '{"pid": "\\ud800"}',
}


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic"])
async def test_arguments_that_are_no_object_go_back_to_the_model_and_nothing_runs(
    paths: Paths, dialect: str
) -> None:
    wanted = [
        Called(name="proc_info", arguments=text, id=f"c{at}") for at, text in enumerate(NO_OBJECTS.values())
    ]
    wanted.append(Called(name="proc_info", arguments='{"pid": 1}', id="last"))
    async with (
        ModelServer([Said(calls=wanted), say("I see.")]) as server,
        asking_providers(paths, {"main": {"kind": dialect, "base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        found = [event for event in events if event["type"] == "tool_result"]
        results = dict(zip([*NO_OBJECTS, "last"], [event["result"] for event in found], strict=True))
        assert results.pop("last") == "ok"
        assert set(results.values()) == {"invalid_argument"}, results
        assert events[-1]["text"] == "I see."
        invocations = test.stored(topic="tool.proc")
        assert [event.data["result"] for event in invocations if event.data] == ["ok"], (
            "only the last one ran"
        )
        began = [event["args"] for event in events if event["type"] == "tool_call"]
        stored = [event.data for event in test.stored(topic="agent.tool_dispatch") if event.type == "refused"]
        assert began[:-1] == [each and each["args"] for each in stored], "as the model wrote them"
        assert began[1] == {"not_a_json_object": NO_OBJECTS["a list"]}
        assert {each and (each["tool"], each["action"]) for each in stored} == {("proc", "info")}
        sent = json.dumps(server.asked[1].body)
        assert "not_a_json_object" in sent, "the model sees what it wrote"
        check_conversation(test.conversation(session))


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic"])
async def test_one_id_for_two_calls_and_unknown_names_are_told_apart(paths: Paths, dialect: str) -> None:
    wanted = [
        Called(name="proc_info", arguments='{"pid": 1}', id="same"),
        Called(name="proc_infos", arguments='{"pid": 1}', id="same"),
        Called(name="proc_info", arguments='{"pid": 2}', id="same"),
    ]
    async with (
        ModelServer([Said(calls=wanted), say("I see.")]) as server,
        asking_providers(paths, {"main": {"kind": dialect, "base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        found = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["ok", "tool_not_found", "ok"]
        assert "proc_info" in found[1]["text"]
        began = [event for event in events if event["type"] == "tool_call"]
        assert (began[1]["tool"], began[1]["action"], began[1]["args"]) == ("proc_infos", "", {"pid": 1})
        check_conversation(test.conversation(session))
        assert events[-1]["type"] == "done"


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic"])
@pytest.mark.parametrize("arguments", ['{"pid": 1, "det', ""])
async def test_a_call_that_was_cut_off_does_not_run_and_the_model_is_told_why(
    paths: Paths, dialect: str, arguments: str
) -> None:
    whole, cut = (Called(name="proc_list", arguments=text, id=text or "x") for text in ("{}", arguments))
    async with (
        ModelServer([Said(calls=[whole, cut], finish="length"), say("I see.")]) as server,
        asking_providers(paths, {"main": {"kind": dialect, "base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        found = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in found] == ["ok", "invalid_argument"]
        assert "answer was cut" not in found[0]["text"]
        assert "answer was cut" in found[1]["text"]
        assert "smaller arguments" in test.conversation(session)[-2].content
        assert events[-1]["text"] == "I see."


# The same failing call again and again


async def test_the_same_failing_call_is_told_after_three_times_and_ends_the_turn(paths: Paths) -> None:
    async with scripted(paths, [chat_call(*FAILING)]) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["code"] == "call_loop"
        assert f"lactl trace show {events[-1]['trace_id']}" in events[-1]["suggestion"]
        assert "proc_info" in events[-1]["message"]
        found = [event for event in events if event["type"] == "tool_result"]
        assert len(found) == MOST
        assert ["3rd time in a row" in event["text"] for event in found] == [False, False, True]
        assert len(test.model.requests) == MOST + 1
        assert "3rd time in a row" in test.model.requests[-1].body["messages"][-1]["content"]
        check_conversation(test.conversation(session))
        test.model.script = [chat_say("fine again")]
        events = await test.prompt(session, "and now?")
        assert events[-1]["text"] == "fine again"
        check_conversation(test.conversation(session))


async def test_four_of_them_in_one_answer_are_a_loop_too(paths: Paths) -> None:
    wanted = [Called(name="proc_inof", arguments="{}", id=f"c{number}") for number in range(6)]
    async with (
        ModelServer([Said(calls=wanted), say("never")]) as server,
        asking_providers(paths, {"main": {"base_url": server.base_url}}) as test,
    ):
        session = await test.session()
        events = await test.prompt(session, "hello")
        assert events[-1]["code"] == "call_loop"
        assert len([event for event in events if event["type"] == "tool_result"]) == MOST
        check_conversation(test.conversation(session))
        assert server.requests == 1


async def test_a_model_that_takes_the_hint_goes_on(paths: Paths) -> None:
    script = [*[call(*FAILING)] * MOST, call("proc_info", {"pid": 1}), *[call(*FAILING)] * 2, say("done")]
    async with (
        ModelServer(script) as server,
        asking_providers(paths, {"main": {"base_url": server.base_url}}) as test,
    ):
        events = await test.prompt(await test.session(), "hello")
        results = [event["result"] == "ok" for event in events if event["type"] == "tool_result"]
        assert results == [False, False, False, True, False, False]
        assert events[-1]["text"] == "done"


@pytest.mark.usefixtures("sandboxed")
async def test_a_command_that_fails_in_the_same_way_is_a_loop(paths: Paths) -> None:
    async with scripted(paths, [chat_call("bash_exec", {"command": "cat /nonexistent"})]) as test:
        events = await test.prompt(await test.session())
        assert events[-1]["code"] == "call_loop"
        assert [event["result"] for event in events if event["type"] == "tool_result"] == ["ok"] * MOST


@pytest.mark.usefixtures("sandboxed")
async def test_a_command_that_waits_for_something_is_none(paths: Paths) -> None:
    def script(body: dict[str, Any]) -> Answer:
        done = sum(message["role"] == "tool" for message in body["messages"])
        return chat_say("done") if done == 6 else chat_call("bash_exec", {"command": "date +%N; false"})

    async with scripted(paths, script) as test:
        events = await test.prompt(await test.session())
        assert events[-1]["text"] == "done"


async def test_what_a_person_denied_three_times_is_not_asked_again(paths: Paths) -> None:
    denied = chat_call("file_write", {"path": "/nonexistent/x", "content": "x"})
    async with scripted(paths, [denied], front=FRONT, toml=TOML) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go", unattended=True)
        events = [event async for event in turn.stream.watch().events()]
        assert events[-1]["code"] == "call_loop"


def made(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=arguments)


def after(repeats: Repeats, one: ToolCall, result: str = "tool_failed", **metadata: Any) -> str:
    repeats.check(one)
    return repeats.remark(one, result, "text", metadata)


def test_the_same_is_the_same_however_it_is_written() -> None:
    repeats = Repeats("trace_1")
    ways = ['{"a": 1, "b": [2]}', '{"b":[2],"a":1}', ' {"a" : 1,\n"b":[2]}']
    assert [bool(after(repeats, made("f", way))) for way in ways] == [False, False, True]
    with pytest.raises(CallLoop):
        repeats.check(made("f", ways[0]))
    repeats.check(made("f", '{"a": 2, "b": [2]}'))
    repeats.check(made("g", ways[0]))


def test_another_call_or_a_success_begins_the_count_anew() -> None:
    repeats, one = Repeats("trace_1"), made("f", "{}")
    for between in (("g", "tool_failed"), ("f", "ok")):
        after(repeats, one)
        after(repeats, one)
        after(repeats, made(between[0], "{}"), between[1])
        assert after(repeats, one) == ""
        assert after(repeats, one) == ""
        repeats = Repeats("trace_1")


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    repeats = Repeats("trace_1")
    assert [bool(after(repeats, made("f", "{"))) for _ in range(MOST)] == [False, False, True]
    repeats.check(made("f", "{ "))


def test_other_output_of_a_failing_command_begins_the_count_anew() -> None:
    repeats, one = Repeats("trace_1"), made("f", "{}")
    for text in ("a", "a", "b", "b"):
        assert repeats.remark(one, "ok", text, {"exit_status": 1}) == ""
    assert repeats.remark(one, "ok", "b", {"exit_status": 1})
