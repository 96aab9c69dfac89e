"""Questions of agents to people: what the turn, the model and the history see of them."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from lightagentd.agents.sessions.session import Session
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.errors import InputClosed, InputNotFound, InvalidArgument
from lightagentd.events.audit.verification import verify
from lightagentd.host.paths import Paths
from lightagentd.host.seat import Seat
from lightagentd.host.users import called
from tests.agents.asking import asked as asked_for
from tests.agents.questions import QUESTION, ask, ends, intents, kinds, prompted, question
from tests.agents.scripted import ME as CALLER
from tests.agents.scripted import Scripted, check_conversation, scripted, types, until, watch
from tests.conftest import write
from tests.scripted_model import call, calls, say

ME = os.getuid()
FROM_PERSON = "[Result of human_ask: from the daemon, with what a person said.]\n"
RULE = '[[rule]]\nname = "people"\ntool = "human"\naction = "ask"\ndecision = "{decision}"\n'


def result(test: Scripted) -> str:
    """What the model read last of a call."""
    request = test.model.requests[-1].body["messages"]
    return str(next(message["content"] for message in reversed(request) if message["role"] == "tool"))


async def test_an_answer_goes_to_the_turn_that_asked(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("sda it is")]) as test:
        session = await test.session()
        async with prompted(test, session) as (turn, events):
            asked = await question(test)
            assert (asked.question, asked.choices, asked.owner) == (QUESTION, (), ME)
            (stored,) = test.daemon.history.queries.state("turns").values()
            assert (stored["state"], stored["approval"]) == ("waiting", asked.id)
            assert test.agent.turns_waiting == 1
            assert turn.timer is not None
            assert turn.timer.when() is None, "its time stands still"
            await test.daemon.registry.shared.asked.inputs.answer(asked.id, "sda", uid=ME)
            found = await events
        kinds_told = [
            kind for kind in types(found) if kind not in ("queued", "started", "usage", "text_delta")
        ]
        assert kinds_told == ["tool_call", "input_requested", "input_answered", "tool_result", "done"]
        requested = next(event for event in found if event["type"] == "input_requested")
        assert (requested["input"], requested["question"], requested["choices"]) == (asked.id, QUESTION, [])
        told = next(event for event in found if event["type"] == "input_answered")
        assert (told["state"], told["answer"], told["answered_by"]) == ("answered", "sda", ME)
        assert result(test) == f"{FROM_PERSON}{called(ME)} answered:\nsda"
        assert kinds(test) == ["requested", "answered"]
        (end,) = ends(test)
        assert (end["result"], end["call_id"], end["taints"]) == ("ok", asked.call_id, False)
        assert end["metadata"] == {"input": asked.id, "state": "answered", "answered_by": ME}
        assert [one["call_id"] for one in intents(test)] == [asked.call_id]
        assert not session.record.tainted
        assert not test.daemon.history.queries.state("turns")
        check_conversation(test.conversation(session))


async def test_nobody_answers_in_time_is_an_answer_too(paths: Paths) -> None:
    async with scripted(paths, [ask(timeout_s=1), say("then not")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["text"] == "then not"
        told = next(event for event in events if event["type"] == "input_answered")
        assert (told["state"], told["answer"], told["answered_by"]) == ("expired", "", None)
        assert result(test).startswith(f"{FROM_PERSON}Nobody answered within 1 seconds")
        assert kinds(test) == ["requested", "expired"]
        (end,) = ends(test)
        assert (end["result"], end["metadata"]["state"]) == ("ok", "expired")
        inputs = test.daemon.registry.shared.asked.inputs
        with pytest.raises(InputClosed, match="has expired"):
            await inputs.answer(told["input"], "too late", uid=ME)
        assert kinds(test) == ["requested", "expired"]


async def test_the_configuration_limits_how_long_a_question_waits(paths: Paths) -> None:
    toml = "[limits]\ninput_timeout_s = 1\n"
    async with scripted(paths, [ask(timeout_s=86_400), say("then not")], toml=toml) as test:
        await test.prompt(await test.session())
        assert result(test).startswith(f"{FROM_PERSON}Nobody answered within 1 seconds")


async def test_of_two_answers_at_once_the_first_counts(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        async with prompted(test, await test.session()) as (_, events):
            asked = await question(test)
            inputs = test.daemon.registry.shared.asked.inputs
            first, second = await asyncio.gather(
                inputs.answer(asked.id, "one", uid=ME),
                inputs.answer(asked.id, "two", uid=ME),
                return_exceptions=True,
            )
            await events
        assert not isinstance(first, BaseException)
        assert first.answer == "one"
        assert isinstance(second, InputClosed)
        assert "answered already" in second.message
        assert result(test).endswith("\none")
        with pytest.raises(InputClosed, match="answered already"):
            await inputs.answer(asked.id, "three", uid=ME)
        assert kinds(test) == ["requested", "answered"]


@pytest.mark.parametrize(
    ("text", "picked"), [("sdb", "sdb"), (" sda\n", "sda"), ("2", "3"), ("3", "3"), ("1", "sda")]
)
async def test_a_choice_is_taken_by_its_text_or_else_by_its_number(
    paths: Paths, text: str, picked: str
) -> None:
    async with scripted(paths, [ask(choices=["sda", "3", "sdb"]), say("ok")]) as test:
        async with prompted(test, await test.session()) as (_, events):
            asked = await question(test)
            found = await test.daemon.registry.shared.asked.inputs.answer(asked.id, text, uid=ME)
            await events
        assert found.answer == picked
        assert result(test).endswith(f"\n{picked}")


@pytest.mark.parametrize("text", ["sdc", "0", "4", "sd", "٣", "1.0", "-1", "99999999999999999999999"])
async def test_what_is_none_of_the_choices_is_refused_and_the_question_stays(paths: Paths, text: str) -> None:
    async with scripted(paths, [ask(choices=["sda", "3", "sdb"])]) as test:
        async with prompted(test, await test.session()):
            asked = await question(test)
            with pytest.raises(InvalidArgument, match="none of the choices") as refused:
                await test.daemon.registry.shared.asked.inputs.answer(asked.id, text, uid=ME)
            assert "2 (3)" in refused.value.suggestion
            assert test.daemon.registry.shared.asked.inputs.questions.get(asked.id).state == "waiting"
        assert kinds(test) == ["requested"]


async def test_what_is_no_question_is_not_asked(paths: Paths) -> None:
    wrong: list[dict[str, object]] = [
        {"question": ""},
        {"question": " \n"},
        {"question": "a\0b"},
        {"question": "x" * 4001},
        {"question": "\ud800"},
        {"question": "q", "choices": ["one"]},
        {"question": "q", "choices": ["a", "a"]},
        {"question": "q", "choices": ["a", " a "]},
        {"question": "q", "choices": ["a", ""]},
        {"question": "q", "choices": ["a", "b\nc"]},
        {"question": "q", "choices": ["a", "b\u2028c"]},
        {"question": "q", "choices": ["a", "x" * 201]},
        {"question": "q", "choices": [f"c{number}" for number in range(21)]},
        {"question": "q", "choices": ["a", 7]},
        {"question": "q", "timeout_s": 0},
        {"question": "q", "timeout_s": -1},
        {"question": "q", "to": "root"},
        {},
    ]
    asking = [call("human_ask", one, call_id=f"c{number}") for number, one in enumerate(wrong)]
    async with scripted(paths, [*asking, say("pity")]) as test:
        events = await test.prompt(await test.session())
        results = [event["result"] for event in events if event["type"] == "tool_result"]
        assert results == ["invalid_argument"] * len(wrong)
        assert kinds(test) == []


async def test_nobody_is_asked_in_an_unattended_turn(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("I would have asked")]) as test:
        turn = await test.agent.prompt(await test.session(), "go", unattended=True)
        events = await watch(turn)
        assert events[-1]["text"] == "I would have asked"
        assert "runs unattended" in result(test)
        assert "in your final answer" in result(test)
        assert [end["result"] for end in ends(test)] == ["refused"]
        assert kinds(test) == []


async def test_a_call_without_a_session_is_refused(paths: Paths) -> None:
    async with scripted(paths, [say("-")]) as test:
        calling = call_as_person(test.agent, ME, "human", "ask", {"question": "q"}, approver=Seat())
        events = [event async for event in calling]
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "refused")
        assert "belongs to none" in events[-1]["message"]
        assert kinds(test) == []


async def test_a_second_question_comes_after_the_first(paths: Paths) -> None:
    both = calls(("human_ask", {"question": "first"}, "c1"), ("human_ask", {"question": "second"}, "c2"))
    async with scripted(paths, [both, say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            first = await question(test)
            assert first.question == "first"
            await test.daemon.registry.shared.asked.inputs.answer(first.id, "1", uid=ME)
            await until(lambda: len(kinds(test)) == 3)
            second = await question(test)
            assert second.question == "second"
            await test.daemon.registry.shared.asked.inputs.answer(second.id, "2", uid=ME)
            await events
        answers = [one.content[-1] for one in test.conversation(session) if one.role == "tool"]
        assert answers == ["1", "2"]


# The end of the turn


async def test_a_cancelled_turn_withdraws_its_question(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("again")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            test.agent.cancel(session)
            found = await events
        assert (found[-1]["type"], found[-1]["code"]) == ("error", "cancelled")
        await check_withdrawn(test, session, asked.id)


async def test_a_stopped_agent_withdraws_its_question(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("again")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            await test.agent.stop()
            await events
        await test.agent.start()
        await check_withdrawn(test, test.agent.sessions[session.id], asked.id)


async def test_an_emergency_stop_withdraws_every_question(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("again")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            await test.daemon.service.safety.panic(CALLER, "test")
            found = await events
        assert found[-1]["code"] == test.daemon.panic.error().code
        await test.daemon.service.safety.end_panic(CALLER)
        await check_withdrawn(test, session, asked.id)


async def check_withdrawn(test: Scripted, session: Session, asked: str) -> None:
    """The question lapsed, its call has one result, and the session goes on."""
    inputs = test.daemon.registry.shared.asked.inputs
    assert inputs.questions.get(asked).state == "lapsed"
    with pytest.raises(InputClosed, match="has lapsed"):
        await inputs.answer(asked, "too late", uid=ME)
    assert kinds(test) == ["requested", "lapsed"]
    assert [(end["call_id"], end["result"]) for end in ends(test)] == [
        (intents(test)[0]["call_id"], "cancelled")
    ]
    assert not inputs.questions.open_ones()
    assert not test.daemon.history.queries.state("turns")
    events = await test.prompt(session)
    assert events[-1]["text"] == "again"
    check_conversation(test.conversation(session))


async def test_with_its_session_a_question_goes_for_good(paths: Paths) -> None:
    async with scripted(paths, [ask("marmot?")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            await test.daemon.service.sessions.delete(CALLER, session.id, confirmed=True)
            assert (await events)[-1]["code"] == "cancelled"
        inputs = test.daemon.registry.shared.asked.inputs
        assert (
            inputs.questions.all(),
            inputs.questions.open_ones(),
            inputs.questions.of_session(session.id),
        ) == ([], [], [])
        with pytest.raises(InputNotFound):
            inputs.questions.get(asked.id)
        assert kinds(test) == ["requested", "lapsed"]
        assert not [event for event in test.stored(topic="input") if event.data]
        assert verify(test.daemon.history.environment).ok


async def test_a_question_that_is_just_being_closed_takes_no_answer(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            inputs = test.daemon.registry.shared.asked.inputs
            lapsed, changes = inputs.lapse(asked.id, "Its turn ends.")
            assert test.daemon.history.queries.state_of("inputs", asked.id)["state"] == "waiting"
            assert inputs.questions.get(asked.id).state == "lapsed"
            with pytest.raises(InputClosed, match="has lapsed"):
                await inputs.answer(asked.id, "too late", uid=ME)
            assert inputs.questions.of_session(session.id) == []
            await test.daemon.history.append(*lapsed, changes=changes)
            await events
        assert kinds(test) == ["requested", "lapsed"]


async def test_who_comes_later_to_watch_the_session_hears_the_question(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            async with contextlib.aclosing(
                test.daemon.service.conversations.watch(CALLER, session.id)
            ) as watched:
                first = await anext(watched)
                assert first["type"] == "session"
                assert (await anext(watched))["input"] == asked.id
                await test.daemon.registry.shared.asked.inputs.answer(asked.id, "sda", uid=ME)
                assert (await anext(watched))["type"] == "input_answered"
            await events


async def test_a_failed_agent_goes_on_with_the_same_question(paths: Paths) -> None:
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asked = await question(test)
            test.agent.supervision.fail(RuntimeError("for the test"))
            assert (await events)[-1]["code"] == "agent_not_running"
        await until(lambda: test.agent.restarts == 1)
        await question(test)
        await test.daemon.registry.shared.asked.inputs.answer(asked.id, "sda", uid=ME)
        await until(lambda: not test.daemon.history.queries.state("turns"))
        assert kinds(test) == ["requested", "answered"]
        assert [end["result"] for end in ends(test)] == ["ok"]
        assert len(intents(test)) == 1
        check_conversation(test.conversation(test.agent.sessions[session.id]))


# Policy


async def test_a_rule_can_ask_for_an_approval_first(paths: Paths) -> None:
    write(paths.config / "policy.d" / "50-ask.toml", RULE.format(decision="ask"))
    async with scripted(paths, [ask(), say("ok")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            approval = await asked_for(test)
            assert approval.name == "human.ask"
            assert kinds(test) == []
            await test.daemon.registry.shared.asked.approvals.answer(approval.id, grant=True, uid=ME)
            asked = await question(test)
            await test.daemon.registry.shared.asked.inputs.answer(asked.id, "sda", uid=ME)
            found = await events
        assert found[-1]["text"] == "ok"
        assert len(intents(test)) == len(ends(test)) == 1


async def test_a_rule_can_deny_it(paths: Paths) -> None:
    write(paths.config / "policy.d" / "50-ask.toml", RULE.format(decision="deny"))
    async with scripted(paths, [ask(), say("then not")]) as test:
        events = await test.prompt(await test.session())
        assert [event["result"] for event in events if event["type"] == "tool_result"] == ["policy_denied"]
        assert not test.daemon.registry.shared.policy.lint
        assert kinds(test) == []


@pytest.mark.parametrize(("tools", "offered"), [("[proc]", False), ("[human]", True), ("[human.ask]", True)])
async def test_the_tools_of_an_agent_say_whether_it_can_ask(paths: Paths, tools: str, offered: bool) -> None:
    async with scripted(paths, [ask(timeout_s=1), say("ok")], front=f"tools: {tools}") as test:
        await test.prompt(await test.session())
        named = [one["function"]["name"] for one in test.model.requests[0].body["tools"]]
        assert ("human_ask" in named) is offered
        assert kinds(test) == (["requested", "expired"] if offered else [])
