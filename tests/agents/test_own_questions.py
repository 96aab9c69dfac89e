"""Own tools that ask people: what they may ask, what they get back, and what lets their calls go on."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.agents.tool_calls.working import QUESTIONS
from lightagentd.errors import ApprovalRequired, LightagentError
from lightagentd.host.paths import Paths
from lightagentd.host.seat import Seat
from tests.agents.asking import approvals, asked
from tests.agents.own_questions import answer, asker, ends, install, lines, saved
from tests.agents.questions import kinds, prompted, question
from tests.agents.scripted import ME, check_conversation, types, watch
from tests.conftest import write
from tests.scripted_model import call, calls, say

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"
UID = os.getuid()
RULE = '[[rule]]\nname = "asker"\ntool = "asker"\naction = "change"\ndecision = "{decision}"\n'


def results(events: list[Any]) -> list[tuple[str, str]]:
    return [(event["result"], event["text"]) for event in events if event["type"] == "tool_result"]


async def test_the_answer_goes_to_the_method_that_goes_on_with_the_state(paths: Paths) -> None:
    wanted = {"out": "", "note": f"mine and {SECRET}", "questions": 2}
    async with asker(paths, [call("asker_look", wanted), say("so be it")]) as test:
        session = await test.session()
        async with prompted(test, session) as (turn, events):
            first = await question(test)
            assert (first.question, first.choices, first.owner) == ("Which disk?", ("sda", "sdb"), UID)
            (stored,) = test.daemon.history.queries.state("turns").values()
            assert (stored["state"], stored["approval"]) == ("waiting", first.id)
            assert turn.timer is not None
            assert turn.timer.when() is None, "its time stands still"
            assert SECRET not in str(saved(test))
            assert await answer(test, "2") == first.id
            second = await question(test, after=first.id)
            assert (second.question, second.choices) == ("And then?", ())
            (old, new) = saved(test)
            assert (old, new["state"]["before"], new["state"]["left"]) == ({}, "sdb", 0)
            await answer(test, "nothing")
            found = await events
        told = [kind for kind in types(found) if kind not in ("queued", "started", "usage", "text_delta")]
        asking = ["input_requested", "input_answered"]
        assert told == ["tool_call", *asking, *asking, "tool_result", "done"]
        assert results(found) == [("ok", "observe sdb nothing, a secret: False")]
        assert saved(test) == [{}, {}]
        assert kinds(test) == ["requested", "answered", "used"] * 2
        assert ends(test) == ["ok"]
        assert not session.record.tainted
        assert not test.daemon.history.queries.state("turns")
        check_conversation(test.conversation(session))


async def test_what_cannot_be_asked_is_one_error_and_the_turn_goes_on(paths: Paths) -> None:
    says = {
        "large state": "state: it has 10485762 bytes as JSON, more than 65536",
        "NaN": "state: NaN is not a number of JSON",
        "bytes": "state: it is not JSON: Object of type bytes is not JSON serializable",
        "half a pair": "state: it holds half of a surrogate pair",
        "deep": "state: it is nested too deeply",
        "circle": "state: Circular reference detected",
        "no text": "question: Input should be a valid string",
        "empty": "question: a question is text",
        "many choices": "choices: List should have at most 20 items",
        "one choice": "choices: one choice is none",
        "a choice that is none": "choices.0: Input should be a valid string",
    }
    wanted: list[tuple[str, Any, str]] = [("asker_odd", {"kind": kind}, kind) for kind in says]
    wanted += [
        ("asker_deaf", {}, "deaf"),
        ("asker_look", {"out": "", "questions": QUESTIONS + 1}, "too many"),
    ]
    async with asker(paths, [calls(*wanted), say("pity")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            last = ""
            for _ in range(QUESTIONS):
                last = await answer(test, "sda", after=last)
            found = await events
        assert found[-1]["text"] == "pity"
        assert [code for code, _ in results(found)] == ["input_invalid"] * len(wanted)
        for (_, text), why in zip(
            results(found), [*says.values(), "declares no resume", "8 questions"], strict=True
        ):
            assert why in text
            assert len(text) < 400
        assert kinds(test).count("requested") == QUESTIONS
        assert ends(test) == ["input_invalid"] * len(wanted)
        assert test.agent.restarts == 0
        check_conversation(test.conversation(session))


async def test_an_approved_change_goes_on_by_its_approval_and_by_that_alone(paths: Paths) -> None:
    out = install(paths)
    wanted = {"out": str(out), "questions": 2}
    async with asker(paths, [call("asker_change", wanted), say("done")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            approval = await asked(test)
            await test.daemon.service.approvals.approve(ME, approval.id, "", approval.digest)
            first = await answer(test, "sda")
            await question(test, after=first)
            used = test.daemon.registry.shared.asked.approvals
            bound = approval.bound
            assert used.used_by(approval.id, bound, approval.call_id).id == approval.id
            for wrong in (
                ("apr_0000000000000000", bound, approval.call_id),
                (approval.id, bound, "call_0"),
                (approval.id, replace(bound, args={**bound.args, "line": "more"}), approval.call_id),
                (approval.id, replace(bound, effect="observe"), approval.call_id),
                (approval.id, replace(bound, session=""), approval.call_id),
            ):
                with pytest.raises(ApprovalRequired):
                    used.used_by(*wrong)
            await answer(test, "stop")
            found = await events
        expecting = "{'line': 'ran'}"
        assert lines(out) == ["ran begins", f"ran sda change {expecting}", f"ran stop change {expecting}"]
        assert [code for code, _ in results(found)] == ["ok"]
        assert [one.state for one in approvals(test)] == ["used"]


@pytest.mark.parametrize("decision", ["deny", "ask"])
async def test_a_rule_that_changed_meanwhile_counts(paths: Paths, decision: str) -> None:
    out = install(paths)
    rule = paths.config / "policy.d" / "50-asker.toml"
    write(rule, RULE.format(decision="allow"))
    async with asker(paths, [call("asker_change", {"out": str(out)}), say("pity")]) as test:
        async with prompted(test, await test.session()) as (_, events):
            await question(test)
            write(rule, RULE.format(decision=decision))
            await test.daemon.service.manager.reload(ME)
            await answer(test, "sda")
            found = await events
        assert lines(out) == ["ran begins"]
        code = "policy_denied" if decision == "deny" else "approval_required"
        assert [code for code, _ in results(found)] == [code]
        assert (saved(test), ends(test), kinds(test)) == ([{}], [code], ["requested", "answered"])


async def test_without_an_answer_the_call_does_not_go_on(paths: Paths) -> None:
    out = install(paths)
    write(paths.config / "policy.d" / "50-asker.toml", RULE.format(decision="allow"))
    toml = "[limits]\ninput_timeout_s = 1\n"
    async with asker(paths, [call("asker_change", {"out": str(out)}), say("pity")], toml=toml) as test:
        session = await test.session()
        found = await test.prompt(session)
        ((code, text),) = results(found)
        assert (code, lines(out)) == ("timeout", ["ran begins"])
        assert "Nobody answered the question of asker.change within 1 seconds" in text
        assert (saved(test), ends(test), kinds(test)) == ([{}], ["timeout"], ["requested", "expired"])
        check_conversation(test.conversation(session))


async def test_a_cancelled_turn_withdraws_the_question_of_its_tool(paths: Paths) -> None:
    async with asker(paths, [call("asker_look", {"out": ""}), say("again")]) as test:
        session = await test.session()
        async with prompted(test, session) as (_, events):
            asking = await question(test)
            test.agent.cancel(session)
            assert (await events)[-1]["code"] == "cancelled"
        assert (saved(test), ends(test), kinds(test)) == ([{}], ["cancelled"], ["requested", "lapsed"])
        inputs = test.daemon.registry.shared.asked.inputs
        with pytest.raises(LightagentError, match="has lapsed"):
            await inputs.answer(asking.id, "sda", uid=UID)
        assert (await test.prompt(session))[-1]["text"] == "again"
        check_conversation(test.conversation(session))


async def test_where_nobody_can_be_asked_the_tool_asks_nobody(paths: Paths) -> None:
    async with asker(paths, [call("asker_look", {"out": ""}), say("I would have asked")]) as test:
        found = await watch(await test.agent.prompt(await test.session(), "go", unattended=True))
        ((code, text),) = results(found)
        assert code == "refused"
        assert "runs unattended" in text
        direct = call_as_person(test.agent, UID, "asker", "look", {"out": ""}, approver=Seat())
        last = [event async for event in direct][-1]
        assert (last["type"], last["code"]) == ("error", "refused")
        assert "asker.look asks in the middle of a turn, and this call belongs to none" in last["message"]
        assert (kinds(test), ends(test)) == ([], ["refused", "refused"])
