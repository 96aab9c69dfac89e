"""Messages between the agents of one owner: who reads them when, and what a turn may do that they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightagentd.agents.choosing import chosen
from lightagentd.agents.sessions.session import Session, new_record
from lightagentd.agents.team.mail import Letter, held
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import PermissionDenied
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import ME, check_conversation, until, watch
from tests.agents.team.rig import Team, ask, by_agent, define_team, functions, results, team
from tests.agents.team.test_children import CHANGE_BOTH, answers
from tests.scripted_model import Answer, ScriptedModel, Stream, call, say


def send(to: str, text: str = "look at web1", call_id: str = "m1") -> Stream:
    return call("message_send", {"to": to, "text": text}, call_id=call_id)


def once(first: Answer, last: Answer) -> Callable[[dict[str, Any]], Answer]:
    """Says the first in a conversation without results, whatever messages come in between."""
    return lambda body: last if any(one["role"] == "tool" for one in body["messages"]) else first


async def session_with(test: Team, agent: str) -> str:
    made = await test.daemon.service.sessions.create(ME, agent, "")
    return str(made.id)


def is_idle(test: Team) -> bool:
    agents = test.daemon.registry.agents.values()
    return not any(agent.turns_running or agent.turns_queued for agent in agents)


def failed(test: Team) -> list[str]:
    """The codes of the calls that failed."""
    ended = [event.data or {} for event in test.stored() if event.type == "invocation"]
    return [one["result"] for one in ended if one["result"] != "ok"]


def said(test: Team, session: str) -> list[tuple[str, str, str]]:
    """Role, speaker and text of a session's messages."""
    found = [event.data or {} for event in test.daemon.history.queries.messages(session)]
    return [(one["role"], one.get("speaker", ""), one["content"]) for one in found]


async def test_a_message_begins_a_turn_where_none_runs(paths: Paths) -> None:
    async with team(paths, {"test": [send("dba"), say("told")], "dba": [say("on it")]}) as test:
        other = await session_with(test, "dba")
        events = await test.prompt(await test.begin())
        assert answers(events) == [("ok", "It is sent.")]
        await until(lambda: test.ends(other) == ["done"])
        text = "[A message of the agent test, not of the user:]\n\nlook at web1"
        assert said(test, other) == [("user", "test", text), ("assistant", "", "on it")]
        assert test.daemon.history.queries.state("mail") == {}
        (letter,) = await test.daemon.service.sessions.mail(ME)
        assert (letter.agent, letter.to_agent, letter.to_session) == ("test", "dba", other)
        assert (letter.text, letter.hops, letter.waits, letter.tainted) == ("look at web1", 1, False, False)
        assert await test.daemon.service.sessions.mail(ME, other) == [letter]
        viewed = Caller(uid=4711, gid=4711, pid=1, sees_all=False)
        with pytest.raises(PermissionDenied):
            await test.daemon.service.sessions.mail(viewed)


async def test_a_running_turn_reads_it_before_its_next_step(paths: Paths) -> None:
    prepare(paths)
    bodies: list[dict[str, Any]] = []

    def dba(body: dict[str, Any]) -> Answer:
        bodies.append(body)
        if len(bodies) == 1:
            return call("human_ask", {"question": "Which?"}, call_id="h")
        return say("done")

    async with team(paths, {"test": [send("dba"), say("told")], "dba": dba}) as test:
        other = await session_with(test, "dba")
        agent = test.daemon.registry.get("dba")
        turn = await agent.prompt(agent.sessions[other], "go")
        inputs = test.daemon.registry.shared.asked.inputs
        await until(lambda: bool(inputs.questions.waiting))
        await test.prompt(await test.begin())
        (letter,) = await test.daemon.service.sessions.mail(ME)
        assert letter.waits
        await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
        await watch(turn)
        assert bodies[1]["messages"][-1]["role"] == "user"
        assert "look at web1" in bodies[1]["messages"][-1]["content"]
        assert [role for role, *_ in said(test, other)] == ["user", "assistant", "tool", "user", "assistant"]
        check_conversation(test.conversation(agent.sessions[other]))
        await until(lambda: is_idle(test))
        assert len(bodies) == 2


async def test_who_cannot_be_written_to_is_told_with_the_reason(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [send("nosuch", call_id="a"), send("web", call_id="b"), send("low", call_id="c"), say("ok")],
        "dba": [say("x")],
        "web": [say("x")],
        "low": [say("x")],
    }
    async with team(paths, scripts, fronts={"test": "agents: [dba, low]"}) as test:
        await session_with(test, "web")
        found = answers(await test.prompt(await test.begin()))
        assert [code for code, _ in found] == ["agent_not_found"] * 3
        assert "It may write to: dba, low." in found[0][1]
        assert "no session with the agent low" in found[2][1]
        offered = functions(test.model.requests[-1].body)
        assert "message_send" in offered
        assert "message_parent" not in offered


async def test_sessions_of_others_and_the_own_one_cannot_be_written_to(paths: Paths) -> None:
    ids: list[str] = []

    def tries(body: dict[str, Any]) -> Answer:
        done = len(results(body))
        return send(ids[done], call_id=f"m{done}") if done < len(ids) else say("ok")

    async with team(paths, {"test": tries, "dba": [say("x")]}) as test:
        stranger = Session(new_record("dba", 4711, "x"), test.daemon.history)
        await test.daemon.history.append(changes=[stranger.record.change()])
        test.daemon.registry.get("dba").adopt(stranger)
        session = await test.begin()
        ids += [stranger.id, session.id, "ses_0000000000000000"]
        found = answers(await test.prompt(session))
        assert [code for code, _ in found] == ["agent_not_found", "agent_not_found", "session_not_found"]
        assert test.daemon.history.queries.state("mail") == {}


async def test_two_agents_do_not_talk_for_ever(paths: Paths) -> None:
    scripts = {"test": [send("dba"), say("told")], "dba": [send("test"), say("told")]}
    async with team(paths, scripts, toml="[limits]\nmessage_hops = 5\n") as test:
        await session_with(test, "dba")
        await test.prompt(await test.begin())
        await until(lambda: failed(test) == ["limit_exceeded"] and is_idle(test))
        letters = await test.daemon.service.sessions.mail(ME)
        assert [one.hops for one in letters] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("toml", "code"),
    [
        ("messages = 2", "limit_exceeded"),
        ("messages_per_minute = 2", "limit_exceeded"),
        ("mailbox = 2", "queue_full"),
    ],
)
async def test_messages_are_limited_by_number_rate_and_room(paths: Paths, toml: str, code: str) -> None:
    scripts: dict[str, Any] = {
        "test": [send("dba", f"n{number}", f"m{number}") for number in range(3)] + [say("ok")],
        "dba": once(call("human_ask", {"question": "Which?"}, call_id="h"), say("done")),
    }
    async with team(paths, scripts, toml=f"[limits]\n{toml}\n") as test:
        other = await session_with(test, "dba")
        agent = test.daemon.registry.get("dba")
        turn = await agent.prompt(agent.sessions[other], "go")
        await until(lambda: turn.is_waiting)
        found = answers(await test.prompt(await test.begin()))
        assert [one for one, _ in found] == ["ok", "ok", code]
        assert len(test.daemon.registry.shared.mail.waiting(other)) == 2
        inputs = test.daemon.registry.shared.asked.inputs
        await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
        await watch(turn)
        await until(lambda: is_idle(test))


@pytest.mark.parametrize(
    ("front", "wanted"),
    [
        ("effects: [observe]", "probe_add"),
        ("effects: [observe]", "probe_reach"),
        ("tools: [message]", "probe_read"),
    ],
)
async def test_a_turn_that_a_message_begins_can_do_no_more_than_its_sender(
    paths: Paths, front: str, wanted: str
) -> None:
    out = prepare(paths)
    args = add(out) if wanted == "probe_add" else {"url": "http://example.org/"}
    scripts = {"test": [send("dba"), say("ok")], "dba": [call(wanted, args), say("tried")]}
    async with team(paths, scripts, fronts={"test": front, "dba": FRONT}, toml=CHANGE_BOTH) as test:
        other = await session_with(test, "dba")
        await test.prompt(await test.begin())
        await until(lambda: test.ends(other) == ["done"])
        (text,) = [text for role, _, text in said(test, other) if role == "tool"]
        assert "Error (policy_denied)" in text
        assert "agent test" in text
        assert lines(out) == []


async def test_what_the_sender_did_not_choose_for_its_turn_is_not_done(paths: Paths) -> None:
    out = prepare(paths)
    scripts = {"test": [send("dba"), say("ok")], "dba": [call("probe_add", add(out)), say("tried")]}
    fronts = {"test": FRONT, "dba": FRONT}
    async with team(paths, scripts, fronts=fronts, toml=CHANGE_BOTH) as test:
        other, choice = await session_with(test, "dba"), await chosen(effects=["observe"])
        await watch(await test.agent.prompt(await test.begin(), "go", choice=choice))
        await until(lambda: test.ends(other) == ["done"])
        (text,) = [text for role, _, text in said(test, other) if role == "tool"]
        assert "Error (policy_denied)" in text
        assert lines(out) == []


async def test_taint_goes_with_a_message_into_new_and_running_turns(paths: Paths) -> None:
    prepare(paths)
    read = call("probe_read", {"url": "outside"}, call_id="r")
    scripts: dict[str, Any] = {
        "test": [read, send("dba"), say("ok")],
        "dba": once(call("human_ask", {"question": "Which?"}, call_id="h"), say("done")),
        "web": [send("dba"), say("ok")],
    }
    async with team(paths, scripts, fronts={"test": FRONT}) as test:
        other, clean = await session_with(test, "dba"), await session_with(test, "web")
        dba, web = test.daemon.registry.get("dba"), test.daemon.registry.get("web")
        turn = await dba.prompt(dba.sessions[other], "go")
        await until(lambda: turn.is_waiting)
        await watch(await web.prompt(web.sessions[clean], "go"))
        await test.prompt(await test.begin())
        inputs = test.daemon.registry.shared.asked.inputs
        assert not dba.sessions[other].record.tainted
        await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
        await watch(turn)
        assert dba.sessions[other].record.tainted
        idle = await session_with(test, "dba")
        await dba.sessions[idle].become_current(by=ME.uid)
        await test.prompt(await test.begin())
        await until(lambda: dba.sessions[idle].record.turns == 1)
        assert dba.sessions[idle].record.tainted


async def test_a_child_writes_into_the_conversation_above_it(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": once(ask("dba"), say("heard")),
        "dba": [call("message_parent", {"text": "it is slow"}, call_id="p"), say("done")],
    }
    async with team(paths, scripts) as test:
        session = await test.begin()
        events = await test.prompt(session)
        assert events[-1]["text"] == "heard"
        spoke = [(role, speaker) for role, speaker, _ in said(test, session.id)]
        assert spoke == [("user", ""), ("assistant", ""), ("tool", ""), ("user", "dba"), ("assistant", "")]
        child = next(body.body for body in test.model.requests if "agent dba on" in str(body.body))
        assert "message_parent" in functions(child)


async def test_nothing_is_sent_while_a_plan_is_drafted_or_to_a_deleted_session(paths: Paths) -> None:
    scripts = {"test": [send("dba"), say("ok")], "dba": [say("x")]}
    async with team(paths, scripts) as test:
        other = await session_with(test, "dba")
        session = await test.begin()
        await test.daemon.registry.shared.plans.begin(session, by=ME.uid)
        assert [code for code, _ in answers(await test.prompt(session))] == ["refused"]
        await test.daemon.service.sessions.pause(ME, other)
        assert [code for code, _ in answers(await test.prompt(await test.begin()))] == ["ok"]
        assert len(test.daemon.history.queries.state("mail")) == 1
        await test.daemon.service.sessions.delete(ME, other, confirmed=True)
        assert test.daemon.history.queries.state("mail") == {}


async def test_a_message_waits_over_a_restart_and_for_a_paused_session(paths: Paths) -> None:
    scripts = {"test": [send("dba"), say("ok")], "dba": [say("on it")]}
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {})
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            other = await session_with(test, "dba")
            await daemon.service.sessions.pause(ME, other)
            await test.prompt(await test.begin())
            assert len(daemon.registry.shared.mail.waiting(other)) == 1
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            (letter,) = await daemon.service.sessions.mail(ME)
            assert letter.waits
            await daemon.service.sessions.resume(ME, other)
            await until(lambda: test.ends(other) == ["done"])
            assert daemon.registry.shared.mail.waiting(other) == []
            await daemon.registry.get("dba").stop()
            await test.prompt(await test.begin())
            assert len(daemon.registry.shared.mail.waiting(other)) == 1
            await daemon.registry.get("dba").start()
            await until(lambda: test.ends(other) == ["done", "done"])


async def test_a_turn_that_waits_for_a_person_is_held_to_its_sender_after_a_restart(paths: Paths) -> None:
    out = prepare(paths)
    scripts: dict[str, Any] = {
        "test": [send("dba"), say("ok")],
        "dba": [
            call("human_ask", {"question": "Which?"}, call_id="h"),
            call("probe_add", add(out), call_id="a"),
            say("tried"),
        ],
    }
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {"test": "effects: [observe]", "dba": FRONT}, CHANGE_BOTH)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            other = await session_with(test, "dba")
            await test.prompt(await test.begin())
            inputs = daemon.registry.shared.asked.inputs
            await until(lambda: daemon.registry.get("dba").turns_waiting == 1)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            inputs = daemon.registry.shared.asked.inputs
            await until(lambda: daemon.registry.get("dba").turns_waiting == 1)
            await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
            await until(lambda: test.ends(other) == ["done"])
            text = [text for role, _, text in said(test, other) if role == "tool"][-1]
            assert "Error (policy_denied)" in text
            assert lines(out) == []


async def test_a_child_session_that_is_over_is_not_woken_by_a_message(paths: Paths) -> None:
    async with team(paths, {"test": [ask("dba"), say("ok")], "dba": [say("x")]}) as test:
        session = await test.begin()
        await test.prompt(session)
        (record,) = test.records("dba")
        agent, child = test.daemon.registry.session(record.id)
        mail, sender = test.daemon.registry.shared.mail, test.daemon.registry.get("test")
        letter = Letter(
            id="msg_1",
            session=record.id,
            owner=ME.uid,
            by=(held(sender.running_parts().definition),),
            sender=session.id,
            text="x",
            tainted=False,
            unattended=False,
            hops=1,
            sent_us=1,
        )
        mail._all()[record.id] = [letter]
        mail.wake(agent, child)
        assert mail._beginning == {}
