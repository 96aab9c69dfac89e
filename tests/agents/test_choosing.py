"""What a prompt chooses for its turn: with a scripted model, real workers and policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.choosing import Choice, both, chosen, narrowed
from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.api import TurnEvent
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import (
    ChoiceTooWide,
    InvalidArgument,
    LightagentError,
    LimitExceeded,
    SchemaUnsupported,
    ToolNotFound,
)
from lightagentd.events.journal.entry import journal_fields
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from tests.agents.asking import add, asked, asking, lines, prepare, result, waiting
from tests.agents.scripted import Scripted, define, scripted, until, watch
from tests.agents.test_approvals_restart import ask, kill, open_question, process, settled
from tests.conftest import write
from tests.scripted_model import Fault, ScriptedModel, Stream, call, say

DISK = {
    "type": "object",
    "properties": {"used": {"type": "integer", "maximum": 100}},
    "required": ["used"],
}
GOOD = '{"used": 42}'


async def prompt(test: Scripted, **choice: Any) -> list[TurnEvent]:
    """All events of a turn with a choice."""
    return await watch(await test.agent.prompt(await test.session(), "go", choice=await chosen(**choice)))


def functions(model: ScriptedModel, number: int = -1) -> set[str]:
    return {one["function"]["name"] for one in model.requests[number].body.get("tools", [])}


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (None, None, None),
        (None, ["a"], ["a"]),
        (["a"], None, ["a"]),
        (["a", "b"], ["b", "c"], ["b"]),
        (["a"], ["a.x", "a.y"], ["a.x", "a.y"]),
        (["a.x", "b"], ["a", "b.y"], ["a.x", "b.y"]),
        (["a.x"], ["a.y"], []),
        ([], None, []),
        ([], ["a"], []),
    ],
)
def test_two_lists_of_tools_have_in_common(one: Any, other: Any, found: Any) -> None:
    assert both(one, other) == found


def agent(**front: Any) -> AgentDefinition:
    return AgentDefinition(name="x", front=AgentFrontMatter(**front), prompt="", path=Path("/x"))


def test_a_choice_and_the_files_only_take_away() -> None:
    whole = agent()
    assert narrowed(whole, Choice()) is whole
    assert narrowed(whole, Choice(), agent()) is whole
    less = narrowed(whole, Choice(tools=("disk",), effects=(Effect.CHANGE, Effect.OBSERVE)))
    assert (less.front.tools, less.front.effects) == (["disk"], [Effect.OBSERVE, Effect.CHANGE])
    now = agent(tools=["disk.usage", "net"], effects=["observe"], skills=["health"])
    least = narrowed(whole, Choice(tools=("disk",)), now)
    assert (least.front.tools, least.front.effects, least.front.skills) == (
        ["disk.usage"],
        [Effect.OBSERVE],
        ["health"],
    )
    assert narrowed(now, Choice(), whole) is now


def test_a_choice_is_stored_whole() -> None:
    full = Choice(model="a/b", tools=(), effects=(Effect.REACH,), max_steps=3, schema={"type": "object"})
    assert Choice.from_dict(json.loads(json.dumps(full.to_dict()))) == full
    assert Choice.from_dict({}) == Choice()
    assert Choice().to_dict() == {}
    for wrong in ({"tools": "all"}, {"effects": ["all"]}, {"max_steps": "3"}, {"other": 1}):
        with pytest.raises((TypeError, ValueError)):
            Choice.from_dict(wrong)


async def test_what_the_agent_does_not_have_is_refused_by_name_and_leaves_nothing(paths: Paths) -> None:
    front = "tools: [probe, proc.list]\neffects: [observe]\nlimits: {max_steps: 4}"
    prepare(paths)
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123"
    cases: Sequence[tuple[dict[str, Any], type[LightagentError], str]] = [
        ({"model": "openai/other"}, InvalidArgument, "no model 'openai/other'"),
        ({"tools": ["probe", "nosuch"]}, ToolNotFound, "'nosuch'"),
        ({"tools": ["probe.nosuch"]}, ToolNotFound, "'probe.nosuch'"),
        ({"tools": ["probe", "systemd", "proc.info"]}, ChoiceTooWide, "the tools systemd, proc.info"),
        ({"effects": ["observe", "reach", "change"]}, ChoiceTooWide, "the effects reach, change"),
        ({"effects": ["everything"]}, InvalidArgument, "'everything' is not an effect"),
        ({"effects": []}, InvalidArgument, "no effect"),
        ({"max_steps": 0}, InvalidArgument, "max_steps is 0"),
        ({"max_steps": -1}, InvalidArgument, "max_steps is -1"),
        ({"max_steps": 5}, ChoiceTooWide, "4 steps"),
        ({"tools": ["x"] * 1001}, LimitExceeded, "1001"),
        ({"schema": {"description": secret}}, InvalidArgument, "looks like a key"),
    ]
    async with scripted(paths, [say("no")], front=front) as test:
        known = test.daemon.registry.shared.content.toolbox.tools
        assert {"probe", "proc", "systemd"} <= known.keys()
        session = await test.session()
        for choice, error, words in cases:
            with pytest.raises(error, match=words):
                await test.agent.prompt(session, "go", choice=await chosen(**choice))
        assert test.model.requests == []
        assert not test.stored(topic="agent.prompt")


async def test_a_turn_has_the_tools_that_were_chosen_and_the_next_one_all(paths: Paths) -> None:
    out = prepare(paths)
    script = [
        call("probe_add", add(out), call_id="c1"),
        call("probe_read", {"url": "read"}, call_id="c2"),
        say("done"),
        say("again"),
    ]
    async with asking(paths, script) as test:
        events = await prompt(test, tools=["probe.read"])
        assert functions(test.model, 0) == {"probe_read"}
        first, second = [event for event in events if event["type"] == "tool_result"]
        assert (first["result"], second["result"]) == ("policy_denied", "ok")
        assert "may not use probe.add" in first["text"]
        assert not waiting(test)
        assert lines(out) == []
        done = events[-1]
        assert [(one["tool"], one["action"], one["effect"], one["result"]) for one in done["calls"]] == [
            ("probe", "add", "change", "policy_denied"),
            ("probe", "read", "observe", "ok"),
        ]
        assert done["usage"]["total_tokens"] == 45
        assert (done["finish_reason"], done["data"]) == ("stop", None)
        (stored,) = test.stored(topic="agent.prompt")
        assert (stored.data or {})["choice"] == {"tools": ["probe.read"]}
        await prompt(test)
        assert {"probe_add", "probe_read"} <= functions(test.model)


async def test_no_tools_are_no_tools(paths: Paths) -> None:
    async with asking(paths, [call("tools_search", {"query": "add"}), say("done")]) as test:
        events = await prompt(test, tools=[])
        assert "tools" not in test.model.requests[0].body
        assert result(events)["result"] == "policy_denied"


async def test_a_turn_has_the_effects_that_were_chosen(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        events = await prompt(test, effects=["observe"])
        assert "probe_add" not in functions(test.model)
        assert result(events)["result"] == "policy_denied"
        assert "has only: observe" in result(events)["text"]
        assert "may have these effects: observe." in test.model.requests[0].body["messages"][0]["content"]
        assert lines(out) == []


async def test_a_turn_ends_with_the_steps_that_were_chosen(paths: Paths) -> None:
    async with asking(paths, [call("probe_read", {"url": "read"})]) as test:
        events = await prompt(test, max_steps=2)
        assert (events[-1]["code"], events[-1]["steps"]) == ("step_limit", 2)


async def test_the_chosen_model_is_asked_first(paths: Paths) -> None:
    async with ScriptedModel([say("the other one")]) as other:
        write(
            paths.config / "lightagentd.toml.d" / "20-other.toml",
            f'[models.providers.other]\nkind = "openai"\nbase_url = "{other.base_url}"\n',
        )
        async with scripted(paths, [say("the first")], front="fallback: [other/y]") as test:
            session = await test.session()
            choice = await chosen(model="other/y")
            events = await watch(await test.agent.prompt(session, "go", choice=choice))
            assert (events[-1]["text"], test.model.requests) == ("the other one", [])
            assert (await test.prompt(session))[-1]["text"] == "the first"


async def test_a_chosen_model_that_is_gone_when_the_turn_comes_is_told(paths: Paths) -> None:
    script = [Stream(pieces=[], hang=True), say("done")]
    async with scripted(paths, script, front="fallback: [openai/y]") as test:
        session = await test.session()
        await test.agent.prompt(session, "first")
        await until(lambda: test.model.requests)
        await test.agent.prompt(session, "second", choice=await chosen(model="openai/y"))
        define(paths, test.model)
        await test.daemon.reload()
        await test.agent.stop()
        watcher = session.stream.watch()
        await test.agent.start()
        async for event in watcher.events():
            if event["type"] == "notice":
                assert event["code"] == "model_gone"
                break
        await until(lambda: session.at_rest)
        assert test.conversation(session)[-1].content == "done"


async def test_a_reload_that_narrows_the_agent_counts_at_once(paths: Paths) -> None:
    """Also for a question that a person answers after it, and for turns that chose nothing."""
    choices: Sequence[dict[str, Any]] = ({"tools": ["probe"]}, {})
    for choice in choices:
        out = prepare(paths)
        out.unlink(missing_ok=True)
        async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
            turn = await test.agent.prompt(await test.session(), "go", choice=await chosen(**choice))
            question = await asked(test)
            define(paths, test.model, front="effects: [observe]\nlimits: {max_steps: 2}")
            reloaded = await test.daemon.reload()
            assert any("takes its new definition" in one for one in reloaded.applied)
            await approve(test, question.id)
            events = await watch(turn)
            assert events[-1]["type"] == "done"
            assert lines(out) == []
            assert [one["result"] for one in events[-1]["calls"]] == ["policy_denied"]


async def approve(test: Scripted, question: str) -> None:
    async with AsyncClient(test.daemon.paths.socket) as client:
        await client.call("Approvals.Approve", approval=question, note="")


# The form of the answer


async def test_an_answer_that_fits_is_given_as_data(paths: Paths) -> None:
    async with scripted(paths, [say(f"```json\n{GOOD}\n```")]) as test:
        events = await prompt(test, schema=DISK)
        assert (events[-1]["text"], events[-1]["data"]) == (GOOD, {"used": 42})
        asked_for = test.model.requests[0].body
        assert json.dumps(DISK) in asked_for["messages"][0]["content"]
        assert "response_format" not in asked_for  # with tools, many servers would let pass no call
        events = await prompt(test, schema=json.dumps(DISK), tools=[])
        form = test.model.requests[1].body["response_format"]["json_schema"]
        assert (form["schema"], events[-1]["data"]) == (DISK, {"used": 42})
        await prompt(test)
        assert "The form of your answer" not in test.model.requests[2].body["messages"][0]["content"]


async def test_an_answer_that_does_not_fit_is_repaired_once(paths: Paths) -> None:
    async with scripted(paths, [say('{"used": "much"}'), say(GOOD)]) as test:
        session = await test.session()
        events = await watch(await test.agent.prompt(session, "go", choice=await chosen(schema=DISK)))
        (told,) = [event for event in events if event["type"] == "notice"]
        assert told["code"] == "answer_misfit"
        assert "at $.used: 'much' is not of type 'integer'" in told["message"]
        assert (events[-1]["data"], events[-1]["steps"]) == ({"used": 42}, 2)
        again = test.model.requests[1].body
        assert [one["role"] for one in again["messages"]] == ["system", "user", "assistant", "user"]
        told = again["messages"][-1]["content"]
        assert "parts of your answer\nat $.used: 'much' is not of type 'integer'\n```" in told
        assert "response_format" in again
        roles = [message.role for message in test.conversation(session)]
        assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("more", "requests", "words"), [({}, 2, "the second"), ({"max_steps": 1}, 1, "no step left")]
)
async def test_an_answer_that_never_fits_is_an_error(
    paths: Paths, more: dict[str, Any], requests: int, words: str
) -> None:
    async with scripted(paths, [say('"It is half full."')]) as test:
        session = await test.session()
        events = await watch(await test.agent.prompt(session, "go", choice=await chosen(schema=DISK, **more)))
        assert events[-1]["code"] == "answer_misfit"
        assert (words in events[-1]["message"], "half full" in events[-1]["message"]) == (True, False)
        assert len(test.model.requests) == requests
        assert (await test.prompt(session))[-1]["text"] == '"It is half full."'
        (failed,) = test.stored(topic="agent.error")
        assert "half" not in journal_fields(failed)["MESSAGE"], "others read the journal"


async def test_the_repair_may_use_tools(paths: Paths) -> None:
    script = [say("?"), call("probe_read", {"url": "x"}), say(GOOD)]
    async with asking(paths, script) as test:
        events = await prompt(test, schema=DISK)
        assert (events[-1]["data"], events[-1]["steps"]) == ({"used": 42}, 3)


async def test_an_answer_that_looks_like_a_call_is_an_answer(paths: Paths) -> None:
    said = json.dumps({"tool": "hammer", "action": "hit"})
    async with scripted(paths, [say(said)]) as test:
        events = await prompt(test, schema={"type": "object", "required": ["tool"]})
        assert events[-1]["data"] == {"tool": "hammer", "action": "hit"}


async def test_a_server_that_does_not_take_the_form_is_asked_without(paths: Paths) -> None:
    refusal = b'{"error": {"message": "Custom grammar constraints are not supported"}}'
    async with scripted(paths, [Fault(status=400, body=refusal), say(GOOD)]) as test:
        events = await prompt(test, schema=DISK, tools=[])
        assert events[-1]["data"] == {"used": 42}
        assert ["response_format" in one.body for one in test.model.requests] == [True, False]


async def test_the_runbook_takes_no_schema_and_stands_in_for_nobody_who_does(paths: Paths) -> None:
    toml = '[models]\nfallback = ["runbook"]\n'
    async with scripted(paths, [Fault(status=500)], toml=toml) as test:
        with pytest.raises(SchemaUnsupported, match="fits no schema"):
            await test.agent.prompt(
                await test.session(), "go", choice=await chosen(schema=DISK, model="runbook")
            )
        session = await test.session()
        events = await watch(await test.agent.prompt(session, "check disk", choice=await chosen(schema=DISK)))
        assert events[-1]["code"] == "model_overloaded"
        assert events[-1]["type"] == "error"


# After kill -9


async def test_a_turn_that_goes_on_after_kill_9_has_its_choice(paths: Paths) -> None:
    """It waits for a person with an answer of JSON to come, and another prompt with a choice waits behind."""
    out = prepare(paths)
    script = [
        call("probe_add", add(out), call_id="c1"),
        call("bash_exec", {"command": "true"}, call_id="c2"),
        say('{"used": "much"}'),
        say(GOOD),
        call("probe_add", add(out), call_id="c3"),
        say("queued"),
    ]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        async with AsyncClient(paths.socket) as client:
            first = client.stream(
                "Sessions.Prompt", agent="test", text="go", tools=["probe"], schema=DISK, max_steps=4
            )
            opened = (await anext(first))["event"]
            queued = client_of(paths, opened["session"])
            question = (await open_question(paths))["id"]
            await queued
            await asyncio.to_thread(kill, daemon)
        await asyncio.to_thread(daemon.start)
        await ask(paths, "Approvals.Approve", approval=question, note="")
        session = await settled(paths)
        assert lines(out) == ["ran"]
        texts = [message["content"] for message in session["messages"]]
        assert GOOD in texts
        assert texts[-1] == "queued"
        refused = [text for text in texts if text.startswith("Error (policy_denied)")]
        assert ["bash.exec" in refused[0], "probe.add" in refused[1]] == [True, True]
        assert "The form of your answer" in model.requests[-3].body["messages"][0]["content"]
        assert "The form of your answer" not in model.requests[-1].body["messages"][0]["content"]


async def client_of(paths: Paths, session: str) -> None:
    """Queue a prompt that chooses to observe."""
    async with AsyncClient(paths.socket) as client:
        stream = client.stream("Sessions.Prompt", session=session, text="then", effects=["observe"])
        await anext(stream)
        await stream.aclose()
