"""Skills that work in a context of their own, and events that are handled aside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.agents.team import asides
from lightagentd.control.grants import Grant
from lightagentd.control.operations.service import Service
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    ChoiceTooWide,
    InvalidArgument,
    LightagentError,
    NotFound,
    PermissionDenied,
    QueueFull,
)
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import ME, check_conversation, until, watch
from tests.agents.team.rig import Team, by_agent, define_team, functions, results, team
from tests.agents.team.test_children import CHANGE_BOTH, HANG, answers
from tests.agents.team.test_mail import is_idle, said
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, Stream, call, say

BODY = "Count the rows, and nothing else."


def skill(paths: Paths, name: str = "rows", *, front: str = "") -> None:
    text = f"---\nname: {name}\ndescription: Counts rows.\n{front}\n---\n{BODY}\n"
    write(paths.config / "skills" / name / "SKILL.md", text)


def activate(name: str = "rows", **more: Any) -> Stream:
    return call("skill_activate", {"name": name, "task": "count them", **more}, call_id="s1")


def aside(inside: Answer | Sequence[Answer], outside: Sequence[Answer]) -> Any:
    """Says one script in the skill's context, and another in the conversation."""
    inner = inside if isinstance(inside, Sequence) else [inside]

    def says(body: dict[str, Any]) -> Answer:
        script = inner if BODY in str(body["messages"][0]["content"]) else outside
        return script[min(len(results(body)), len(script) - 1)]

    return says


def inside_of(test: Team) -> list[dict[str, Any]]:
    """The requests from the skill's context."""
    return [one.body for one in test.model.requests if BODY in str(one.body["messages"][0]["content"])]


async def test_a_skill_works_in_a_context_of_its_own(paths: Paths) -> None:
    skill(paths)
    async with team(paths, {"test": aside(say("7 rows"), [activate(), say("seven")])}) as test:
        session = await test.begin()
        events = await test.prompt(session)
        assert answers(events) == [("ok", "7 rows")]
        (record,) = test.records("test")
        assert (record.parent, record.of_turn) == (session.id, events[-1]["trace_id"])
        (body,) = inside_of(test)
        assert [one["content"] for one in body["messages"][1:]] == ["count them"]
        assert test.ends(record.id) == ["done"]
        check_conversation(test.conversation(session))


async def test_the_names_of_the_skills_are_an_enum(paths: Paths) -> None:
    skill(paths)
    skill(paths, "cols")
    skill(paths, "hidden", front="disable-model-invocation: true")
    scripts = {"test": [activate("nosuch"), say("hi")], "dba": [say("hi")]}
    fronts = {"test": "skills: [rows, cols, hidden]", "dba": "skills: []"}
    async with team(paths, scripts, fronts=fronts) as test:
        events = await test.prompt(await test.begin())
        assert answers(events)[0][0] == "policy_denied"
        offered = {one["function"]["name"]: one["function"] for one in test.model.requests[-1].body["tools"]}
        properties = offered["skill_activate"]["parameters"]["properties"]
        assert properties["name"]["enum"] == ["cols", "rows"]
        made = await test.daemon.service.sessions.create(ME, "dba", "")
        dba = test.daemon.registry.get("dba")
        await watch(await dba.prompt(dba.sessions[made.id], "go"))
        assert "skill_activate" not in functions(test.model.requests[-1].body)


@pytest.mark.parametrize(
    ("front", "context", "forked"),
    [("", "", False), ("context: fork", "", True), ("", "forked", True), ("context: fork", "empty", False)],
)
async def test_it_gets_the_conversation_where_the_skill_or_the_model_says_so(
    paths: Paths, front: str, context: str, forked: bool
) -> None:
    skill(paths, front=front)
    async with team(paths, {"test": aside(say("7"), [activate(context=context), say("ok")])}) as test:
        session = await test.begin()
        await test.prompt(session, "remember me")
        (body,) = inside_of(test)
        assert ("remember me" in str(body["messages"])) is forked


async def test_allowed_tools_narrow_and_never_widen(paths: Paths) -> None:
    out = prepare(paths)
    skill(paths, front="allowed-tools: Probe_Read, Bash(git:*) nosuch")
    inner = [call("probe_add", add(out)), call("bash_exec", {"command": "true"}, call_id="b"), say("tried")]
    scripts = {"test": aside(inner, [activate(), say("ok")])}
    fronts = {"test": "tools: [probe, skill]\neffects: [observe, reach, change]"}
    async with team(paths, scripts, fronts=fronts, toml=CHANGE_BOTH) as test:
        await test.prompt(await test.begin())
        bodies = inside_of(test)
        names = {"probe_read", "skill_run", "skill_load", "message_parent"}
        assert {*functions(bodies[0])} == names
        assert ["Error (policy_denied)" in one for one in results(bodies[-1])] == [True, True]
        assert lines(out) == []


async def test_a_skill_does_not_activate_itself_and_other_skills_are_not_there(paths: Paths) -> None:
    skill(paths)
    skill(paths, "cols")
    inner = [activate(), activate("cols"), call("skill_load", {"name": "cols"}, call_id="l"), say("no")]
    async with team(paths, {"test": aside(inner, [activate(), say("ok")])}) as test:
        await test.prompt(await test.begin())
        found = results(inside_of(test)[-1])
        assert "Error (child_refused)" in found[0]
        assert ["Error (policy_denied)" in one for one in found[1:]] == [True, True]
        assert len(test.records("test")) == 1


async def test_a_skill_that_waits_for_a_person_goes_on_after_a_restart(paths: Paths) -> None:
    out = prepare(paths)
    skill(paths, front="allowed-tools: human")
    inner = [call("human_ask", {"question": "Which?"}, call_id="h"), call("probe_add", add(out)), say("7")]
    scripts = {"test": aside(inner, [activate(), say("ok")])}
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {"test": FRONT}, CHANGE_BOTH)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            session = await test.begin()
            turn = await test.agent.prompt(session, "go")
            await until(lambda: turn.is_waiting)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            inputs = daemon.registry.shared.asked.inputs
            await until(lambda: daemon.registry.get("test").turns_waiting == 2)
            await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
            await until(lambda: is_idle(test))
            assert [text for role, _, text in said(test, session.id) if role == "tool"] == ["7"]
            assert "Error (policy_denied)" in results(inside_of(test)[-1])[1]
            assert lines(out) == []


# Events


async def send(test: Team, content: str = "backup finished: 3 errors", **more: Any) -> Any:
    service: Service = test.daemon.service
    return await service.conversations.send_event(ME, content=content, **{"agent": "test", **more})


async def ended(test: Team, session: str) -> None:
    await until(lambda: bool(test.ends(session)) and is_idle(test))


async def test_an_event_leaves_the_conversation_alone(paths: Paths) -> None:
    async with team(paths, {"test": [say("noted")]}) as test:
        session = await test.begin()
        await test.prompt(session)
        before = said(test, session.id)
        handled = await send(test)
        await ended(test, handled.session)
        assert (handled.parent, said(test, session.id)) == (session.id, before)
        assert said(test, handled.session) == [
            ("user", "", "backup finished: 3 errors"),
            ("assistant", "", "noted"),
        ]
        (child,) = await test.daemon.service.sessions.listed(ME, parent=session.id)
        assert (child.id, child.tainted, child.of_turn) == (handled.session, True, "")
        assert not session.record.tainted
        assert handled.session not in test.agent.sessions
        assert "message_parent" in functions(test.model.requests[-1].body)
        with pytest.raises(LightagentError):
            await test.agent.prompt(test.daemon.registry.session(handled.session)[1], "more")


async def test_it_reaches_the_conversation_through_a_message_alone_and_taints_it(paths: Paths) -> None:
    def says(body: dict[str, Any]) -> Answer:
        told = str(body["messages"])
        if "A message of the agent" in told:
            return say("the user should know")
        return say("sent") if results(body) else call("message_parent", {"text": "3 errors in the backup"})

    async with team(paths, {"test": says}, fronts={"test": "tools: []"}) as test:
        session = await test.begin()
        handled = await send(test, session=session.id)
        await ended(test, handled.session)
        await until(lambda: len(said(test, session.id)) == 2 and is_idle(test))
        assert said(test, session.id)[0][2].endswith("3 errors in the backup")
        assert session.record.tainted


async def test_options_narrow_what_an_event_may_use(paths: Paths) -> None:
    prepare(paths)
    skill(paths, "db-rows")
    skill(paths, "web-logs")
    fronts = {"test": "tools: [probe, bash, skill]", "dba": "tools: [probe]"}
    async with team(paths, {"test": [say("x")], "dba": [say("x")]}, fronts=fronts) as test:
        handled = await send(
            test,
            tools_remove=["probe", "skill.run"],
            tools_add=["probe.read"],
            skills_remove_prefix="db-",
            allow_activate_skill=False,
            system_append="You handle backups.",
            max_steps=1,
        )
        await ended(test, handled.session)
        body = test.model.requests[-1].body
        offered = {*functions(body)}
        assert {"probe_read", "bash_exec", "skill_load", "message_parent"} <= offered
        assert not offered & {"probe_add", "probe_reach", "skill_run", "skill_activate"}
        system = body["messages"][0]["content"]
        assert "You handle backups." in system
        assert "web-logs" in system
        assert "db-rows" not in system
        handled = await send(test, sub_agent_name="dba")
        await ended(test, handled.session)
        assert test.daemon.registry.session(handled.session)[1].record.agent == "dba"


async def test_a_member_that_handles_an_event_can_do_no_more_than_the_conversation(paths: Paths) -> None:
    out = prepare(paths)
    scripts = {"test": [say("x")], "dba": [call("probe_add", add(out)), say("tried")]}
    fronts = {"test": "effects: [observe]", "dba": FRONT}
    async with team(paths, scripts, fronts=fronts, toml=CHANGE_BOTH) as test:
        handled = await send(test, sub_agent_name="dba")
        await ended(test, handled.session)
        assert "Error (policy_denied)" in results(test.model.requests[-1].body)[0]
        assert lines(out) == []


async def test_what_the_turn_of_an_event_knows_of_before(paths: Paths) -> None:
    async with team(paths, {"test": [say("noted")]}) as test:
        await test.prompt(await test.begin(), "remember me")
        given = [{"role": "user", "content": "given"}, {"role": "assistant", "content": "taken"}]
        for initial, known in (("empty", []), ("forked", ["remember me"]), (given, ["given", "taken"])):
            handled = await send(test, initial_messages=initial)
            await ended(test, handled.session)
            body = [one["content"] for one in test.model.requests[-1].body["messages"][1:-1]]
            assert [one for one in body if one != "noted"] == known


async def test_who_may_not_prompt_a_member_does_not_choose_it_for_an_event(paths: Paths) -> None:
    narrow = replace(ME, grant=Grant(name="narrow", agents=frozenset({"test"})))
    async with team(paths, {"test": [say("x")], "dba": [say("x")]}) as test:
        send_event = test.daemon.service.conversations.send_event
        with pytest.raises(PermissionDenied, match="does not cover the agent dba"):
            await send_event(narrow, agent="test", content="x", sub_agent_name="dba")
        handled = await send_event(narrow, agent="test", content="x")
        await ended(test, handled.session)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"agent": "nosuch"}, NotFound),
        ({"sub_agent_name": "nosuch"}, NotFound),
        ({"tools_add": ["nosuch"]}, ChoiceTooWide),
        ({"max_steps": 0}, InvalidArgument),
        ({"max_steps": 10_000}, ChoiceTooWide),
        ({"initial_messages": "some"}, InvalidArgument),
        ({"initial_messages": [{"role": "tool", "content": "x"}]}, InvalidArgument),
        ({"content": ""}, InvalidArgument),
        ({"content": "x\0"}, InvalidArgument),
        ({"system_append": "password = hunter2hunter2hunter2"}, InvalidArgument),
    ],
)
async def test_what_is_wrong_with_an_event_is_told_and_leaves_nothing(
    paths: Paths, options: dict[str, Any], error: type[Exception]
) -> None:
    async with team(paths, {"test": [say("x")]}) as test:
        await test.begin()
        with pytest.raises(error):
            await send(test, **options)
        assert len(test.daemon.history.queries.state("sessions")) == 1
        assert test.daemon.registry.shared.asides._room._value == 16


async def test_an_event_for_a_conversation_that_is_gone_leaves_the_room_free(paths: Paths) -> None:
    async with team(paths, {"test": [say("x")]}) as test:
        session, registry = await test.begin(), test.daemon.registry
        session.deleted = True
        with pytest.raises(NotFound):
            await registry.shared.asides.send(registry, test.agent, session, "x", asides.Aside())
        session.deleted = False
        assert registry.shared.asides._room._value == 16


async def test_a_flood_is_slowed_down_and_what_was_taken_is_handled(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asides, "WAIT_S", 0.2)
    busy: list[int] = []
    hang = asyncio.Event()

    def says(_: dict[str, Any]) -> Answer:
        busy.append(test.agent.turns_running + test.agent.turns_queued)
        return Stream(pieces=say("x").pieces, gate=(1, hang))

    async with team(paths, {"test": says}, toml="[limits]\nevents_at_once = 3\n") as test:
        session = await test.begin()
        sent = [asyncio.create_task(send(test, f"event {number}")) for number in range(10)]
        await asyncio.wait(sent)
        taken = [one.result() for one in sent if one.exception() is None]
        assert len(taken) == 3
        assert {type(one.exception()) for one in sent} == {type(None), QueueFull}
        hang.set()
        monkeypatch.setattr(asides, "WAIT_S", 30.0)
        taken += await asyncio.gather(*[send(test, f"later {number}") for number in range(20)])
        await until(lambda: is_idle(test))
        assert [test.ends(one.session) for one in taken] == [["done"]] * 23
        assert max(busy) <= 3
        assert [*test.agent.sessions] == [session.id]


async def test_an_event_goes_on_after_a_restart_and_is_deleted_with_its_conversation(paths: Paths) -> None:
    inner = [call("human_ask", {"question": "Which?"}, call_id="h"), say("done")]
    async with ScriptedModel(by_agent({"test": inner})) as model:
        define_team(paths, model, {"test": inner}, {})
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            session = await test.begin()
            handled = await send(test)
            await until(lambda: test.agent.turns_waiting == 1)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            inputs = daemon.registry.shared.asked.inputs
            await until(lambda: test.agent.turns_waiting == 1)
            await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
            await ended(test, handled.session)
            assert test.ends(handled.session) == ["done"]
            assert handled.session not in test.agent.sessions
            await daemon.service.sessions.delete(ME, session.id, confirmed=True)
            assert daemon.history.queries.state("sessions") == {}


async def test_a_cancel_and_a_stop_end_an_event(paths: Paths) -> None:
    async with team(paths, {"test": [HANG]}) as test:
        await test.begin()
        handled = await send(test)
        await until(lambda: test.agent.turns_running == 1)
        await test.daemon.service.conversations.cancel(ME, handled.session)
        await ended(test, handled.session)
        assert test.ends(handled.session) == ["cancelled"]
        other = await send(test)
        await until(lambda: test.agent.turns_running == 1)
        await test.agent.stop()
        assert test.ends(other.session) == ["cancelled"]
