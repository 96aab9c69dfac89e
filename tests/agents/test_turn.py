"""The turn loop: a real daemon and its workers, a scripted model behind real HTTP."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.turn import unanswered
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message, ToolCall
from tests.agents.scripted import ME, check_conversation, scripted, types, until, watch
from tests.conftest import write
from tests.scripted_model import Answer, Fault, ScriptedModel, Stream, call, calls, chunk, say

SLOW = call("bash_exec", {"command": "echo begun; exec sleep 4711"})


def alive(command: bytes) -> bool:
    """Whether a process with this in its command line runs."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


async def test_the_events_of_a_turn_come_in_order_and_say_whose_they_are(paths: Paths) -> None:
    script = [call("proc_info", {"pid": 1}, text="Looking. "), say("All ", "is well.")]
    async with scripted(paths, script) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "how is init?", "ticket-7")
        events = await watch(turn)
        assert types(events) == [
            "queued",
            "started",
            "text_delta",
            "usage",
            "tool_call",
            "tool_result",
            "text_delta",
            "usage",
            "done",
        ]
        assert {(event["session"], event["trace_id"]) for event in events} == {(session.id, turn.trace_id)}
        assert events[-1]["text"] == "All is well."
        assert events[-1]["steps"] == 2

        stored = test.stored(turn.trace_id)
        assert [(event.topic, event.type) for event in stored] == [
            ("agent.prompt", "prompt"),
            ("session.turn", "started"),
            ("agent.message", "message"),
            ("agent.llm_response", "response"),
            ("agent.message", "message"),
            ("agent.tool_dispatch", "intent"),
            ("tool.proc", "invocation"),
            ("agent.message", "message"),
            ("agent.llm_response", "response"),
            ("agent.message", "message"),
            ("session.turn", "done"),
        ]
        assert {event.agent for event in stored} == {"test"}
        assert {event.session for event in stored} == {session.id}
        assert {event.owner for event in stored} == {ME.uid}
        assert {event.correlation_id for event in stored} == {"ticket-7"}
        requests = [event.request_id for event in stored]
        assert requests[:3] == ["", "", ""]
        assert len(set(requests[3:8])) == 1
        assert len(set(requests[8:10])) == 1
        assert requests[3] != requests[8]
        assert requests[-1] == ""


async def test_the_model_sees_each_message_once(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1}), say("one"), say("two")]) as test:
        session = await test.session()
        await test.prompt(session, "first")
        await test.prompt(session, "second")
        roles = [[message["role"] for message in asked.body["messages"]] for asked in test.model.requests]
        assert roles == [
            ["system", "user"],
            ["system", "user", "assistant", "tool"],
            ["system", "user", "assistant", "tool", "assistant", "user"],
        ]
        assert test.model.requests[2].body["messages"][-1]["content"] == "second"


async def test_the_step_limit_ends_the_turn(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1})], front="limits: {max_steps: 2}") as test:
        session = await test.session()
        events = await test.prompt(session)
        assert (events[-1]["code"], events[-1]["steps"]) == ("step_limit", 2)
        assert len(test.model.requests) == 2
        assert test.stored(topic="agent.error")[-1].type == "step_limit"
        check_conversation(test.conversation(session))


@pytest.mark.usefixtures("sandboxed")
async def test_a_turn_has_a_time(paths: Paths) -> None:
    front = "limits: {turn_timeout_s: 0.5}"
    async with scripted(paths, [SLOW], front=front) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["code"] == "timeout"
        assert "0.5 seconds" in events[-1]["message"]
        check_conversation(test.conversation(session))
        await until(lambda: not alive(b"sleep\x004711"))


async def test_a_cancel_ends_the_model_call_and_closes_its_connection(paths: Paths) -> None:
    script = [Stream(pieces=[chunk({"content": "I th"})], hang=True), say("back")]
    async with scripted(paths, script) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        await until(lambda: test.model.open_requests)
        assert test.agent.cancel(session) == 1
        events = await watch(turn)
        assert events[-1]["code"] == "cancelled"
        await until(lambda: not test.model.open_requests)
        assert test.stored(turn.trace_id)[-1].type == "cancelled"
        assert (await test.prompt(session))[-1]["text"] == "back"


@pytest.mark.usefixtures("sandboxed")
async def test_a_cancel_during_a_command_ends_the_command(paths: Paths) -> None:
    async with scripted(paths, [SLOW, say("back")]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        watcher = turn.stream.watch().events()
        events = []
        async for event in watcher:
            events.append(event)
            if event["type"] == "tool_output":
                await until(lambda: alive(b"sleep\x004711"))  # the shell said so before it became sleep
                test.agent.cancel(session)
                test.agent.cancel(session)
        assert types(events)[-2:] == ["tool_result", "error"]
        assert events[-1]["code"] == "cancelled"
        await until(lambda: not alive(b"sleep\x004711"))
        assert "cancelled" in test.conversation(session)[-2].content
        check_conversation(test.conversation(session))
        assert (await test.prompt(session))[-1]["text"] == "back"
        check_conversation(test.conversation(session))


async def test_a_cancel_ends_the_prompts_that_wait_too(paths: Paths) -> None:
    async with scripted(paths, [Stream(pieces=[], hang=True), say("never")]) as test:
        session = await test.session()
        turns = [await test.agent.prompt(session, text) for text in ("one", "two", "three")]
        await until(lambda: test.model.open_requests)
        assert test.agent.cancel(session) == 3
        for turn in turns:
            assert (await watch(turn))[-1]["code"] == "cancelled"
        assert len(test.model.requests) == 1
        assert [message.content for message in test.conversation(session)] == ["one", ""]
        assert test.daemon.history.queries.state("turns") == {}


async def test_a_cancel_before_the_turn_began_ends_it(paths: Paths) -> None:
    async with scripted(paths, [say("never")]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        test.agent.cancel(session)
        assert (await watch(turn))[-1]["code"] == "cancelled"
        assert test.model.requests == []
        assert test.daemon.history.queries.state("turns") == {}


async def test_two_prompts_to_one_session_keep_their_order(paths: Paths) -> None:
    def echo(body: dict[str, Any]) -> Answer:
        return say(f"answer to {body['messages'][-1]['content']}")

    async with scripted(paths, echo) as test:
        session = await test.session()
        ended = await asyncio.gather(*(test.prompt(session, f"p{number}") for number in range(5)))
        assert [events[-1]["text"] for events in ended] == [f"answer to p{number}" for number in range(5)]
        assert [events[0]["position"] for events in ended] == [0, 1, 2, 3, 4]
        users = [message.content for message in test.conversation(session) if message.role == "user"]
        assert users == [f"p{number}" for number in range(5)]


async def test_the_next_model_is_asked_when_one_fails_before_it_spoke(paths: Paths) -> None:
    async with ScriptedModel([Fault(status=503)]) as spare:
        toml = f'[models.providers.spare]\nbase_url = "{spare.base_url}"\nmax_retry_s = 0.05\n'
        front = "fallback: [spare/y, runbook]"
        async with scripted(paths, [Fault(status=500)], front=front, toml=toml) as test:
            session = await test.session()
            events = await test.prompt(session, "check disk")
            notices = [event for event in events if event["type"] == "notice"]
            assert {event["code"] for event in notices} == {"model_overloaded"}
            messages = [event["message"] for event in notices]
            assert ["goes on with" in message for message in messages] == 2 * [*4 * [False], True]
            assert "tried 5 times. The turn goes on with spare/y." in messages[4]
            assert "tried 5 times. The turn goes on with runbook." in messages[9]
            assert events[-1]["type"] == "done"
            assert "openai/x" not in events[-1]["text"]
            assert "skill" in {event.get("tool") for event in events}
            assert len(test.model.requests) == len(spare.requests) == 5
            assert [event.type for event in test.stored(topic="agent.error")] == ["fallback", "fallback"]


async def test_a_model_that_spoke_and_then_failed_is_not_replaced(paths: Paths) -> None:
    broken = Fault(body=chunk({"content": "The disk"}), cut=True)
    async with scripted(paths, [broken], front="fallback: [runbook]") as test:
        session = await test.session()
        events = await test.prompt(session, "check disk")
        assert events[-1]["code"] == "model_cut_off"


async def test_a_call_written_as_text_is_run(paths: Paths) -> None:
    written = '```json\n{"tool": "proc", "action": "info", "args": {"pid": 1}}\n```'
    async with scripted(paths, [say(written), say("done")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        results = [event for event in events if event["type"] == "tool_result"]
        assert [event["result"] for event in results] == ["ok"]
        sent = test.model.requests[1].body["messages"]
        assert sent[-2]["tool_calls"][0]["function"]["name"] == "proc_info"
        assert sent[-1]["role"] == "tool"
        check_conversation(test.conversation(session))


@pytest.mark.usefixtures("sandboxed")
async def test_a_history_that_cannot_store_ends_the_turn(paths: Paths) -> None:
    async with scripted(paths, [SLOW]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        events = []
        async for event in turn.stream.watch().events():
            events.append(event)
            if event["type"] == "tool_output":
                await test.daemon.history.close()
                test.agent.cancel(session)
        assert events[-1]["code"] == "storage_failed"
        await until(lambda: not alive(b"sleep\x004711"))


async def test_every_ending_leaves_a_conversation_that_every_endpoint_takes(paths: Paths) -> None:
    dice = random.Random(20261)

    def answer(_: dict[str, Any]) -> Answer:
        answers: list[Answer] = [
            say("fine"),
            say("a", "b", "c", pause_s=0.002),
            call("proc_info", {"pid": 1}),
            calls(("proc_info", {"pid": 1}, "call_1"), ("bash_exec", {"command": "sleep 1"}, "call_2")),
            calls(("no_such", {}, "x"), ("proc_info", "{bad", "x"), ("proc_info", {"pid": 1}, "y")),
            calls(("bash_exec", {"command": "echo x", "effect": "change"}, ""), ("proc_list", {}, "")),
            Fault(status=500),
            Fault(body=chunk({"content": "half"}), cut=True),
            Stream(pieces=[b"data: nonsense\n\n"]),
            Stream(pieces=[chunk({"content": "…"})], hang=True),
        ]
        return dice.choice(answers)

    front = "limits: {max_steps: 3, turn_timeout_s: 0.8}"
    async with scripted(paths, answer, front=front) as test:
        sessions = [await test.session() for _ in range(3)]
        for _ in range(4):
            turns = [await test.agent.prompt(session, "go") for session in sessions for _ in range(2)]
            await asyncio.sleep(dice.random() * 0.15)
            if dice.random() < 0.7:
                test.agent.cancel(dice.choice(sessions))
            for turn in turns:
                assert (await watch(turn))[-1]["type"] in ("done", "error")
            for session in sessions:
                check_conversation(test.conversation(session))
                assert session.messages == [each.for_model() for each in test.conversation(session)]
        assert test.agent.restarts == 0
        assert test.daemon.history.queries.state("turns") == {}


def assistant(*ids: str) -> Message:
    made = tuple(ToolCall(id=call_id, name="f_g", arguments="{}") for call_id in ids)
    return Message(role="assistant", content="", tool_calls=made)


def result(call_id: str) -> Message:
    return Message(role="tool", content="ok", tool_call_id=call_id, name="f_g")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], []),
        ([assistant("a", "b"), result("a")], ["b"]),
        ([assistant("a", "b"), result("b")], ["a"]),
        ([assistant("a"), result("a"), assistant("a")], ["a"]),
        ([assistant("a"), result("a"), assistant("a"), result("a")], []),
    ],
)
def test_a_result_belongs_to_the_newest_call_of_its_id(messages: list[Message], expected: list[str]) -> None:
    assert [one.id for one in unanswered(messages)] == expected


async def test_an_edited_prompt_file_is_in_force_with_the_next_turn(paths: Paths) -> None:
    write(paths.config / "agent" / "USER.md", "Her name is Ada.")
    async with scripted(paths, [say("x")]) as test:
        session = await test.session()
        await test.prompt(session)
        write(paths.config / "agent" / "USER.md", "His name is Bob.")
        await test.prompt(session)
        first, second = (asked.body["messages"][0]["content"] for asked in test.model.requests)
        assert "Ada" in first
        assert "Bob" in second
