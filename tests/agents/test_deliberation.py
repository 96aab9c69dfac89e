"""Drafts of a plan before a turn: with a scripted model behind real HTTP, real policy and history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lightagentd.agents.choosing import chosen
from lightagentd.agents.deliberation import scores_in
from lightagentd.api import TurnEvent
from lightagentd.cli.trace_tree import turn_of
from lightagentd.errors import ChoiceTooWide
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, prepare
from tests.agents.scripted import ME, Scripted, define, scripted, until, watch
from tests.agents.test_approvals_restart import ask, kill, open_question, process, settled
from tests.conftest import write
from tests.scripted_model import Answer, Fault, ScriptedModel, Stream, call, chunk, say

ASKED = "deliberate: {breadth: 2, depth: 1}"


def scores(*given: float, first: int = 1) -> Stream:
    """A judge's answer."""
    listed = [{"draft": first + at, "score": score, "reason": f"r{at}"} for at, score in enumerate(given)]
    return say(json.dumps({"scores": listed}))


async def deliberate(test: Scripted, **choice: Any) -> list[TurnEvent]:
    choice = {"deliberate": True, **choice}
    return await watch(await test.agent.prompt(await test.session(), "go", choice=await chosen(**choice)))


def notices(events: Sequence[TurnEvent], code: str) -> list[str]:
    return [event["message"] for event in events if event["type"] == "notice" and event["code"] == code]


def system(test: Scripted) -> str:
    """The system prompt of the newest request."""
    return str(test.model.requests[-1].body["messages"][0]["content"])


async def test_the_best_draft_is_refined_and_is_the_plan_of_the_turn(paths: Paths) -> None:
    script = [
        say("plan A\nCalls: proc_list"),
        say("plan B\nCalls: nosuch_tool"),
        scores(0.4, 0.7),
        say("plan C\nCalls: none"),
        scores(0.7, 0.9, first=2),
        say("the answer"),
    ]
    async with scripted(paths, script, front=ASKED) as test:
        events = await deliberate(test)
        assert [events[-1]["type"], events[-1]["text"], events[-1]["steps"]] == ["done", "the answer", 1]
        assert notices(events, "deliberated") == [
            "The plan is draft 3 of 3, with the score 0.9:\n\nplan C\nCalls: none"
        ]
        assert "".join(event["text"] for event in events if event["type"] == "text_delta") == "the answer"
        assert "# The plan for this prompt" in system(test)
        assert "plan C" in system(test)
        assert "plan B" not in system(test)
        bodies = [request.body for request in test.model.requests]
        assert ["tools" in body for body in bodies] == [False] * 5 + [True]
        assert "goes another way" in bodies[1]["messages"][1]["content"]
        assert "There is no function nosuch_tool." in bodies[2]["messages"][1]["content"]
        assert "r1 There is no function" in bodies[3]["messages"][1]["content"], "the judge's reason"
        trace = events[-1]["trace_id"]
        stored = test.stored(trace, "agent.deliberation")
        assert [event.type for event in stored] == ["draft", "draft", "judged", "draft", "judged", "taken"]
        assert [(event.data or {}).get("refines") for event in stored if event.type == "draft"] == [0, 0, 2]
        assert [one["score"] for one in (stored[2].data or {})["scores"]] == [0.4, 0.7]
        assert events[-1]["usage"]["total_tokens"] == 6 * 15, "each call counts"
        assert [e.type for e in test.stored(trace, "agent.llm_response")] == ["deliberation"] * 5 + [
            "response"
        ]
        tree = turn_of([event.to_dict() for event in test.stored(trace)])
        assert [node.name for node in tree.children if node.kind == "step"] == ["step 1"]
        assert {node.result for node in tree.children if node.kind == "model"} == {"ok"}
        session = test.agent.sessions[events[0]["session"]]
        conversation = [message.content for message in test.conversation(session)]
        assert conversation == ["go", "the answer"], "drafts are no part of the conversation"


async def test_nothing_is_drafted_unless_it_is_asked_for_and_allowed(paths: Paths) -> None:
    async with scripted(paths, [say("yes")], front=ASKED) as test:
        await test.prompt(await test.session())
        assert len(test.model.requests) == 1
        define(paths, test.model)
        await test.daemon.reload()
        with pytest.raises(ChoiceTooWide, match="does not deliberate"):
            await deliberate(test)
        define(paths, test.model, front="deliberate: {when: always, breadth: 1, depth: 0}")
        await test.daemon.reload()
        await deliberate(test, deliberate=False)
        assert len(test.model.requests) == 2
        await test.prompt(await test.session())
        assert len(test.model.requests) == 4


async def test_checks_judge_without_a_model(paths: Paths) -> None:
    deny = '[[rule]]\nname = "no-{}"\nreason = "no"\ndecision = "deny"\ntool = "{}"\n'
    text = deny.format("bash", "bash") + deny.format("info", "proc") + f'action = "info"\ncaller = {ME.uid}\n'
    write(paths.config / "policy.d" / "10-no.toml", text)
    script = [
        say("A\nCalls: nosuch_tool, proc_list"),
        say("B\nCalls: bash_exec, proc_info"),
        say("C\n**Calls:** `proc.list`"),
        say("D"),
        say("the answer"),
    ]
    async with scripted(paths, script, front="deliberate: {breadth: 4, depth: 0, judge: checks}") as test:
        events = await deliberate(test)
        judged = test.stored(events[-1]["trace_id"], "agent.deliberation")[-2].data or {}
        assert judged["judge"] == "checks"
        assert [(one["score"], one["reason"]) for one in judged["scores"]] == [
            (0.5, "There is no function nosuch_tool."),
            (0.0, "The agent does not have bash_exec. Policy denies proc_info."),
            (1.0, ""),
            (0.0, "It has no line that begins with Calls:"),
        ]
        assert "C\n" in notices(events, "deliberated")[0]
        assert len(test.model.requests) == 5


@pytest.mark.parametrize(
    "judge",
    [
        say("I like the first one best."),
        say('{"scores": [{"draft": 1, "score": 7, "reason": "good"}]}'),
        Fault(status=400),
    ],
    ids=["prose", "nonsense", "error"],
)
async def test_a_judge_of_no_use_leaves_the_first_draft(paths: Paths, judge: Answer) -> None:
    script = [say("plan A\nCalls: none"), say("plan B\nCalls: none"), judge, say("the answer")]
    async with scripted(paths, script, front=ASKED) as test:
        events = await deliberate(test)
        assert events[-1]["text"] == "the answer"
        assert "gave no scores" in notices(events, "deliberation_failed")[-1]
        assert notices(events, "deliberated") == ["The plan is draft 1 of 2:\n\nplan A\nCalls: none"]
        assert "plan A" in system(test)
        judged = test.stored(events[-1]["trace_id"], "agent.deliberation")[2].data or {}
        assert (judged["scores"], "draft 1 is taken" in judged["message"]) == ([], True)


async def test_another_model_judges(paths: Paths) -> None:
    async with ScriptedModel([say(json.dumps({"scores": []})), scores(0.1, 0.2)]) as other:
        toml = f'[models.providers.other]\nkind = "openai"\nbase_url = "{other.base_url}"\n'
        front = "deliberate: {breadth: 2, depth: 0, judge: other/judge}"
        async with scripted(paths, [say("A"), say("B"), say("yes")], front=front, toml=toml) as test:
            assert "gave no scores" in notices(await deliberate(test), "deliberation_failed")[-1]
            test.model.requests.clear()
            test.model.script = [say("A"), say("B"), say("yes")]
            assert "draft 2 of 2, with the score 0.2" in notices(await deliberate(test), "deliberated")[0]
            assert [len(test.model.requests), len(other.requests)] == [3, 2]
            assert other.requests[0].body["model"] == "judge"
            assert test.daemon.registry.models_in_use()["other/judge"] == ["test"]


async def test_a_model_that_fails_leaves_the_turn_without_a_plan(paths: Paths) -> None:
    async with scripted(paths, [Fault(status=400), say("the answer")], front=ASKED) as test:
        events = await deliberate(test)
        assert events[-1]["text"] == "the answer"
        assert notices(events, "deliberation_failed")
        assert "# The plan" not in system(test)


async def test_a_budget_ends_the_turn_in_the_middle(paths: Paths) -> None:
    toml = "[budgets.turn]\ntokens = 30\n"
    async with scripted(paths, [say("plan\nCalls: none")], front=ASKED, toml=toml) as test:
        events = await deliberate(test)
        assert events[-1]["code"] == "budget_exceeded"
        assert len(test.model.requests) == 2


async def test_a_cancel_in_the_middle_is_counted_and_ends_the_turn(paths: Paths) -> None:
    hang = Stream(pieces=[chunk({"role": "assistant", "content": "I will"})], hang=True)
    async with scripted(paths, [say("A\nCalls: none"), hang], front=ASKED) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go", choice=await chosen(deliberate=True))
        await until(lambda: len(test.model.requests) == 2)
        test.agent.cancel(session)
        assert (await watch(turn))[-1]["code"] == "cancelled"
        stored = [event.type for event in test.stored(turn.trace_id, "agent.llm_response")]
        assert stored == ["deliberation", "failed"]


async def test_a_turn_that_goes_on_after_kill_9_has_its_plan_and_makes_no_other(paths: Paths) -> None:
    out = prepare(paths)
    script = [say("the plan\nCalls: probe_add"), call("probe_add", add(out), call_id="c1"), say("done")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        define(paths, model, front=f"{FRONT}\ndeliberate: {{breadth: 1, depth: 0}}")
        await asyncio.to_thread(daemon.start)
        sent = await asyncio.to_thread(
            daemon.lactl, "prompt", "test", "go", "--deliberate", "--no-wait", "--json"
        )
        question = await open_question(paths)
        await asyncio.to_thread(kill, daemon)
        await asyncio.to_thread(daemon.start)
        await ask(paths, "Approvals.Approve", approval=question["id"])
        assert (await settled(paths))["messages"][-1]["content"] == "done"
        assert len(model.requests) == 3
        assert "the plan" in model.requests[2].body["messages"][0]["content"]
        trace = json.loads(sent.stdout)["trace_id"]
        shown = (await asyncio.to_thread(daemon.lactl, "trace", "show", trace)).stdout
        assert "agent.deliberation:draft  draft=1 refines=0 the plan Calls: probe_add" in shown
        assert "agent.deliberation:taken" in shown


def test_a_judge_has_to_score_each_draft_once() -> None:
    one = {"draft": 1, "score": 1, "reason": "x"}
    fenced = f"```json\n{json.dumps({'scores': [one]})}\n```"
    assert scores_in(fenced, [1]) == {1: {"score": 1.0, "reason": "x"}}
    for wrong in (
        *("", "null", "[]", '{"scores": {}}', '{"scores": [3]}', '{"scores": [{"draft": 1}]}'),
        *(
            json.dumps({"scores": [one | more]})
            for more in ({"draft": True}, {"score": True}, {"score": "1"}, {"score": -1}, {"reason": None})
        ),
        json.dumps({"scores": [one, one]}),
        fenced.replace("1, ", "NaN, "),
    ):
        assert scores_in(wrong, [1]) == {}
    assert scores_in(fenced, [1, 2]) == {}
