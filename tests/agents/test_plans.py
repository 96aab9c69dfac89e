"""A plan from its first draft to its last task: the phases, who may move them, and where it stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lightagentd.agents.planning.plan import Plan, Task
from lightagentd.agents.planning.task import prompt_of
from lightagentd.control.authz import Caller
from lightagentd.errors import (
    AgentNotRunning,
    InvalidArgument,
    PlanConflict,
    PlanInvalid,
    SessionNotFound,
    SessionPaused,
)
from lightagentd.events.journal.entry import journal_fields
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, add, asked, lines, prepare
from tests.agents.planning import THREE, TWO, Heard, answer, checked, planning, propose
from tests.agents.scripted import ME, Scripted, check_conversation, scripted, types, until
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import Answer, Fault, Stream, call, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
HANG = Stream(pieces=[], hang=True)


def prompts(test: Scripted) -> list[str]:
    """What the model was prompted with last, request by request."""
    bodies = [request.body for request in test.model.requests]
    return [[one["content"] for one in body["messages"] if one["role"] == "user"][-1] for body in bodies]


def system(test: Scripted, request: int = -1) -> str:
    return str(test.model.requests[request].body["messages"][0]["content"])


def offered(test: Scripted, request: int = -1) -> set[str]:
    tools = test.model.requests[request].body.get("tools") or []
    return {tool["function"]["name"] for tool in tools}


async def test_a_plan_is_drafted_revised_and_applied_in_conversation(paths: Paths) -> None:
    script = [
        propose(TWO),
        say("look at it"),
        propose(THREE, "c2"),
        say("now it has three"),
        *(say(f"did {name}") for name in "abc"),
        say("anything else?"),
    ]
    async with scripted(paths, script) as test:
        plan = await planning(test)
        assert ((await plan.get()).phase, plan.session.mode) == ("off", "normal")
        assert ((await plan.begin()).phase, plan.session.mode) == ("drafting", "drafting")
        events = await test.prompt(plan.session, "draft it")
        assert types(events).count("plan") == 1
        found = await plan.get()
        assert (found.phase, found.title) == ("ready", "Two things")
        assert [(task.id, task.text, task.state) for task in found.tasks] == [
            ("a", "do a", "pending"),
            ("b", "do b", "pending"),
        ]
        await test.prompt(plan.session, "three, please")
        assert [task.id for task in (await plan.get()).tasks] == ["1", "2", "3"]
        assert (await plan.get()).phase == "ready"
        async with Heard(plan.session) as heard:
            begun = await plan.apply()
            assert (begun.phase, begun.tasks[0].state, plan.session.mode) == (
                "applying",
                "running",
                "applying",
            )
            done = await plan.rests()
            await until(lambda: len(heard.lines) == 6)
        assert (done.phase, plan.session.mode) == ("completed", "normal")
        assert plan.states() == "done done done"
        assert heard.lines == [
            "applying: running pending pending [1]",
            "applying: done pending pending [1]",
            "applying: done running pending [2]",
            "applying: done done pending [2]",
            "applying: done done running [3]",
            "completed: done done done [3]",
        ]
        assert plan.events() == [
            *("begun", "ready", "ready", "applying"),
            *("1 running", "1 done", "2 running", "2 done", "3 running", "3 done"),
            "completed",
        ]
        assert [text.splitlines()[0] for text in prompts(test)[4:7]] == ["do a", "do b", "do c"]
        turns = {task.trace_id for task in done.tasks}
        assert len(turns) == 3
        assert all(test.stored(trace, topic="session.turn") for trace in turns)
        await test.prompt(plan.session, "thanks")
        assert "lan mode" not in system(test)
        check_conversation(test.conversation(plan.session))


async def test_while_drafting_the_model_is_told_how_to_propose_and_offered_what_observes(
    paths: Paths,
) -> None:
    async with scripted(paths, [say("hm")], front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await test.prompt(plan.session)
        assert "Plan mode" not in system(test)
        assert {"file_write", "web_get", "file_read"} <= offered(test)
        await plan.begin()
        await test.prompt(plan.session)
        assert "# Plan mode" in system(test)
        assert "plan_propose" in system(test)
        assert {"plan_propose", "plan_show", "file_read", "bash_exec"} <= offered(test)
        assert not {"file_write", "web_get", "systemd_restart", "net_ping"} & offered(test)
        await plan.set(TWO)
        await test.prompt(plan.session)
        assert '"text": "do a"' in system(test)


async def test_an_answer_that_is_a_plan_is_taken_and_any_other_is_text(paths: Paths) -> None:
    script = [say("first I look"), answer(TWO), answer({"tasks": []}), say("sorry"), answer(THREE)]
    async with scripted(paths, script, front="plan_tools: none") as test:
        plan = await planning(test)
        await plan.begin()
        await test.prompt(plan.session)
        assert (await plan.get()).phase == "drafting"
        assert "exactly one JSON object" in system(test)
        assert offered(test) == set()
        await test.prompt(plan.session)
        assert (await plan.get()).title == "Two things"
        events = await test.prompt(plan.session)
        notice = next(event for event in events if event["type"] == "notice")
        assert (notice["code"], events[-1]["type"]) == ("plan_invalid", "done")
        found = await plan.get()
        assert (found.phase, found.title) == ("ready", "Two things")
        assert "The plan has no tasks." in found.note
        await test.prompt(plan.session)
        assert "The plan has no tasks." in system(test)
        await test.prompt(plan.session)
        assert ((await plan.get()).title, "no tasks" in (await plan.get()).note) == ("Three", False)


async def test_an_answer_outside_of_plan_mode_is_no_plan(paths: Paths) -> None:
    async with scripted(paths, [answer(TWO)]) as test:
        plan = await planning(test)
        await test.prompt(plan.session)
        assert (await plan.get()).phase == "off"


async def test_the_model_gets_the_error_of_a_wrong_plan_as_people_do(paths: Paths) -> None:
    wrong = {"title": "x", "tasks": [{"id": "1", "text": "a"}, {"id": "1", "text": "b"}]}
    async with scripted(paths, [propose(wrong), say("oh")]) as test:
        plan = await planning(test)
        await plan.begin()
        events = await test.prompt(plan.session)
        result = next(event for event in events if event["type"] == "tool_result")
        assert result["result"] == "plan_invalid"
        assert "Two tasks have the id 1." in result["text"]
        with pytest.raises(PlanInvalid, match=r"Two tasks have the id 1\.") as caught:
            await plan.set(wrong)
        assert caught.value.field == "tasks[1].id"
        assert (await plan.get()).phase == "drafting"


@pytest.mark.parametrize("applied", [False, True], ids=["no plan mode", "completed"])
async def test_a_model_cannot_propose_a_plan_that_nobody_wanted(paths: Paths, applied: bool) -> None:
    async with scripted(paths, [say("a"), say("b"), propose(TWO), say("ok")]) as test:
        plan = await planning(test)
        if applied:
            await plan.set(TWO)
            await plan.apply()
            await plan.rests()
        else:
            await test.prompt(plan.session)
            await test.prompt(plan.session)
        events = await test.prompt(plan.session)
        result = next(event for event in events if event["type"] == "tool_result")
        assert result["result"] == "plan_conflict"
        assert plan.session.mode == "normal"


async def test_a_task_cannot_replace_the_plan_that_it_is_of(paths: Paths) -> None:
    async with scripted(paths, [propose(THREE), answer(THREE), say("b")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        done = await plan.rests()
        assert (done.phase, done.title) == ("completed", "Two things")


async def test_a_plan_of_a_persons_begins_plan_mode_and_replaces_the_one_before(paths: Paths) -> None:
    async with scripted(paths, [say("a")]) as test:
        plan = await planning(test)
        assert (await plan.set(TWO)).phase == "ready"
        assert plan.session.plan_gate(test.agent.running_parts().definition) == "observe"
        assert (await plan.set(THREE)).title == "Three"
        assert plan.events() == ["begun", "ready", "ready"]
        stored = test.stored(topic="plan.ready")[-1]
        assert stored.data is not None
        assert (stored.data["by"], len(stored.data["tasks"])) == (ME.uid, 3)


async def test_beginning_again_keeps_what_was_drafted_and_drops_what_is_completed(paths: Paths) -> None:
    async with scripted(paths, [say("a")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        assert (await plan.begin()).phase == "ready"
        await plan.apply()
        assert (await plan.rests()).phase == "completed"
        again = await plan.begin()
        assert (again.phase, again.tasks) == ("drafting", [])


async def test_what_cannot_be_done_in_a_phase_says_what_can(paths: Paths) -> None:
    async with scripted(paths, [HANG]) as test:
        plan = await planning(test)
        with pytest.raises(PlanConflict, match="There is no plan"):
            await plan.apply()
        await plan.begin()
        with pytest.raises(PlanConflict, match="not ready") as caught:
            await plan.apply()
        assert "lactl plan set" in caught.value.suggestion
        await plan.set(TWO)
        with pytest.raises(PlanConflict, match="nothing to choose"):
            await plan.apply("retry")
        with pytest.raises(InvalidArgument) as wrong:
            await plan.apply("again")
        assert wrong.value.field == "choice"
        await plan.apply()
        with pytest.raises(PlanConflict, match="being applied already"):
            await plan.apply()
        for attempt in (plan.begin(), plan.set(THREE)):
            with pytest.raises(PlanConflict, match="is being applied"):
                await attempt
        for choice in ("retry", "skip", "abort"):
            with pytest.raises(PlanConflict, match="No task has failed"):
                await plan.apply(choice)
        await plan.end()
        await until(lambda: plan.session.at_rest)


async def test_a_plan_that_may_still_be_revised_is_not_applied(paths: Paths) -> None:
    """What is applied is what the person has read."""
    async with scripted(paths, [HANG, say("ok")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        turn = await test.agent.prompt(plan.session, "make it three")
        await until(lambda: test.model.open_requests)
        with pytest.raises(PlanConflict, match="may revise the plan"):
            await plan.apply()
        turn.cancel()
        await turn.over.wait()
        assert (await plan.apply()).phase == "applying"
        assert (await plan.rests()).phase == "completed"


async def test_ending_drops_the_plan_and_cancels_the_task(paths: Paths) -> None:
    async with scripted(paths, [HANG]) as test:
        plan = await planning(test)
        assert (await plan.end()).phase == "off"
        await plan.begin()
        assert (await plan.end()).phase == "off"
        await plan.set(TWO)
        await plan.apply()
        await until(lambda: test.model.open_requests)
        running = plan.session.running
        assert running is not None
        assert (await plan.end()).phase == "off"
        await until(lambda: plan.session.at_rest)
        assert running.failure is not None
        assert running.failure.code == "cancelled"
        assert plan.events() == ["begun", "ended", "begun", "ready", "applying", "a running", "ended"]
        assert test.daemon.history.queries.state("plans") == {}


async def test_it_stops_at_the_first_task_that_failed(paths: Paths) -> None:
    script: list[Answer] = [say("a"), Fault(status=400), say("b"), say("c")]
    async with scripted(paths, script) as test:
        plan = await planning(test)
        await plan.set(THREE)
        await plan.apply()
        stopped = await plan.rests()
        assert (stopped.phase, stopped.stopped_at) == ("applying", "2")
        assert plan.states() == "done failed pending"
        assert "status 400" in stopped.tasks[1].note
        assert "retry it, skip it or abort" in stopped.note
        with pytest.raises(PlanConflict, match="stopped at the task 2") as caught:
            await plan.apply()
        assert caught.value.field == "choice"
        again = await plan.apply("retry")
        assert (again.stopped_at, again.tasks[1].note) == ("", "")
        assert (await plan.rests()).phase == "completed"
        assert "It was tried before, and failed: " in prompts(test)[2]
        assert plan.events().count("2 running") == 2


async def test_a_task_that_failed_can_be_left_out(paths: Paths) -> None:
    async with scripted(paths, [Fault(status=400), say("b"), say("c")]) as test:
        plan = await planning(test)
        await plan.set(THREE)
        await plan.apply()
        assert (await plan.rests()).stopped_at == "1"
        await plan.apply("skip")
        assert (await plan.rests()).phase == "completed"
        assert plan.states() == "skipped done done"
        completed = test.stored(topic="plan.completed")[0].data
        assert completed == {"done": 2, "skipped": 1}


async def test_leaving_out_the_last_task_completes_the_plan(paths: Paths) -> None:
    async with scripted(paths, [say("a"), Fault(status=400)]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        assert (await plan.rests()).stopped_at == "b"
        assert (await plan.apply("skip")).phase == "completed"
        assert plan.session.mode == "normal"


async def test_a_plan_can_be_given_up(paths: Paths) -> None:
    async with scripted(paths, [Fault(status=400)]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        await plan.rests()
        assert (await plan.apply("abort")).phase == "off"
        assert plan.session.mode == "normal"
        assert plan.events()[-1] == "ended"


async def test_cancelling_the_session_fails_the_task_that_runs(paths: Paths) -> None:
    async with scripted(paths, [HANG]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        await until(lambda: test.model.open_requests)
        assert await test.daemon.service.conversations.cancel(ME, plan.session.id) == 1
        stopped = await plan.rests()
        assert (stopped.stopped_at, stopped.tasks[0].note) == ("a", "The turn was cancelled.")
        assert plan.states() == "failed pending"


async def test_prompts_go_between_two_tasks(paths: Paths) -> None:
    script = [call("probe_add", add(prepare(paths))), say("a"), say("the prompt's"), say("b")]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        question = await asked(test)
        turn = await test.agent.prompt(plan.session, "how is it going?")
        assert turn.task_id == ""
        await test.daemon.service.approvals.approve(ME, question.id, "")
        assert (await plan.rests()).phase == "completed"
        begun = [text.splitlines()[0] for text in prompts(test)]
        assert begun == ["do a", "do a", "how is it going?", "do b"]


async def test_a_paused_session_begins_no_task_and_goes_on_when_it_is_resumed(paths: Paths) -> None:
    script = [call("probe_add", add(prepare(paths))), say("a"), say("b")]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        service = test.daemon.service
        await plan.set(TWO)
        await service.sessions.pause(ME, plan.session.id)
        with pytest.raises(SessionPaused):
            await plan.apply()
        await service.sessions.resume(ME, plan.session.id)
        await plan.apply()
        question = await asked(test)
        await service.sessions.pause(ME, plan.session.id)
        await service.approvals.approve(ME, question.id, "")
        await until(lambda: len(plan.session.queue) == 1)
        assert plan.states() == "done running"
        assert len(test.model.requests) == 2
        await service.sessions.resume(ME, plan.session.id)
        assert (await plan.rests()).phase == "completed"
        assert len(test.model.requests) == 3


@pytest.mark.usefixtures("sandboxed")
async def test_a_task_is_done_only_when_its_check_passes(paths: Paths) -> None:
    async with scripted(paths, [say("I did it"), say("I did it again"), say("fine")]) as test:
        plan = await planning(test)
        await plan.set(checked("test -d /etc", "echo no such luck; exit 3"))
        await plan.apply()
        stopped = await plan.rests()
        assert plan.states() == "done failed"
        assert stopped.stopped_at == "2"
        assert stopped.tasks[1].note.startswith("Its check did not pass: no such luck")
        assert "exit status 3" in stopped.tasks[1].note
        assert plan.intents() == ["bash_exec", "bash_exec"]
        intent = test.stored(stopped.tasks[1].trace_id, topic="agent.tool_dispatch")[0]
        assert intent.data is not None
        assert (intent.data["effect"], intent.data["trigger"]) == ("observe", "check")
        assert test.stored(stopped.tasks[1].trace_id, topic="tool.bash")
        # The model did not ask for the check, so the conversation has no call without a request.
        check_conversation(test.conversation(plan.session))
        assert all(message.role != "tool" for message in test.conversation(plan.session))
        assert plan.session.record.tainted
        await plan.apply("retry")
        await plan.rests()
        assert "no such luck" in prompts(test)[-1]


@pytest.mark.usefixtures("sandboxed")
async def test_a_check_can_change_nothing(paths: Paths) -> None:
    out = prepare(paths)
    async with scripted(paths, [say("ok")], front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.set(checked(f"echo x > {out}"))
        await plan.apply()
        assert (await plan.rests()).stopped_at == "1"
        assert lines(out) == []


@pytest.mark.parametrize(
    ("front", "toml", "code"),
    [
        ("tools: [plan]", "", "policy_denied"),
        ("", '[worker]\nsandbox = "none"\nchange_agents = ["test"]\n', "policy_denied"),
    ],
    ids=["no shell", "no sandbox"],
)
async def test_a_check_that_policy_refuses_has_failed_and_nobody_is_asked(
    paths: Paths, front: str, toml: str, code: str
) -> None:
    async with scripted(paths, [say("ok")], front=front, toml=toml) as test:
        plan = await planning(test)
        await plan.set(checked("true"))
        await plan.apply()
        stopped = await plan.rests()
        assert stopped.tasks[0].note.startswith(f"Its check could not run ({code}): ")
        assert test.daemon.registry.shared.asked.approvals.questions.all() == []
        assert plan.refusals() == [("bash_exec", code)]
        check_conversation(test.conversation(plan.session))


@pytest.mark.usefixtures("sandboxed")
async def test_cancelling_while_the_check_runs_fails_the_task(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(checked("sleep 600"))
        await plan.apply()
        await until(lambda: plan.intents() == ["bash_exec"])
        await test.daemon.service.conversations.cancel(ME, plan.session.id)
        stopped = await plan.rests()
        assert stopped.tasks[0].note == "The turn was cancelled."
        check_conversation(test.conversation(plan.session))


async def test_a_task_may_need_an_approval_and_waits_for_it(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("did a"), say("did b")]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        question = await asked(test)
        assert (plan.states(), lines(out)) == ("running pending", [])
        await test.daemon.service.approvals.approve(ME, question.id, "")
        assert (await plan.rests()).phase == "completed"
        assert lines(out) == ["ran"]


async def test_a_check_with_a_secret_is_refused_and_a_text_loses_it(paths: Paths) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123"
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        with pytest.raises(PlanInvalid, match="holds a secret") as caught:
            await plan.set(checked("true", f"curl -H 'x: {secret}'"))
        assert caught.value.field == "tasks[1].check"
        found = await plan.set({"tasks": [{"text": f"use {secret}"}]})
        assert secret not in found.tasks[0].text
        assert found == await plan.get()


@pytest.mark.usefixtures("sandboxed")
async def test_a_note_shows_no_secret_that_a_check_printed(paths: Paths) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123"
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(checked(f"printf 'sk-%s' {secret.removeprefix('sk-')}; false"))
        await plan.apply()
        stopped = await plan.rests()
        assert stopped.tasks[0].note.startswith("Its check did not pass: ")
        assert secret not in stopped.tasks[0].note
        stored = test.daemon.history.queries.state("plans")[plan.session.id]
        assert stored["tasks"][0]["note"] == stopped.tasks[0].note


def test_a_prompt_names_the_plan_and_the_number_and_the_runbook_model_sees_the_task_alone() -> None:
    tasks = (Task(id="a", text="check disk", check="true"), Task(id="b", text="check memory", note="why"))
    plan = Plan(session="s", phase="applying", title="Free ``` space", tasks=tasks)
    text = prompt_of(plan, tasks[0]).text
    assert "task a, 1 of 2, of the plan 'Free ``` space'" in text
    assert "ends with status 0: true" in text
    assert "failed: why" in prompt_of(plan, tasks[1]).text
    assert [prompt_of(plan, task).question for task in tasks] == ["check disk", "check memory"]


async def test_a_plan_needs_an_agent_that_runs(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await test.agent.stop()
        with pytest.raises(AgentNotRunning):
            await plan.apply()
        await test.agent.start()
        assert (await plan.get()).phase == "ready"
        await plan.apply()
        assert (await plan.rests()).phase == "completed"


async def test_two_who_apply_at_once_apply_it_once(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(THREE)
        found: list[Any] = await asyncio.gather(*(plan.apply() for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(one, PlanConflict) for one in found) == 4
        assert (await plan.rests()).phase == "completed"
        assert len(test.model.requests) == 3


async def test_a_caller_who_hangs_up_leaves_no_half_of_a_change(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        task = asyncio.create_task(plan.apply())
        while not plan.session.storing:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await plan.rests()).phase == "completed"


async def test_the_plan_of_another_user_does_not_exist(paths: Paths) -> None:
    async with scripted(paths, [say("ok")]) as test:
        plan = await planning(test)
        await plan.set(TWO)
        service, session = test.daemon.service, plan.session.id
        told = set()
        for which in (session, "ses_0123456789abcdef"):
            for attempt in (
                service.plans.get(OTHER, which),
                service.plans.begin(OTHER, which),
                service.plans.set(OTHER, which, {}),
                service.plans.apply(OTHER, which, "", ""),
                service.plans.end(OTHER, which),
            ):
                with pytest.raises(SessionNotFound) as caught:
                    await attempt
                told.add(str(caught.value.to_dict()).replace(which, "ID"))
        assert len(told) == 1
        assert (await plan.get()).phase == "ready"


async def test_the_journal_has_ids_and_states_and_not_what_the_tasks_say(paths: Paths) -> None:
    secretive = {
        "title": "Wombat",
        "tasks": [{"id": "t1", "text": "wombat a", "check": "echo wombat; false"}],
    }
    async with scripted(paths, [propose(secretive), say("hm"), say("done")], front="tools: [plan]") as test:
        plan = await planning(test)
        await plan.begin()
        await test.prompt(plan.session)
        await plan.apply()
        assert (await plan.rests()).stopped_at == "t1"
        entries = [journal_fields(event) for event in test.stored()]
        messages = [entry["MESSAGE"] for entry in entries]
        assert "test: plan: task t1 failed" in messages
        # The check is a command of the daemon's own, which stands there as every command does.
        plans = [entry for entry in entries if entry.get("LIGHTAGENT_TOOL") != "bash"]
        assert not [entry for entry in plans if "ombat" in str(entry)]
        assert "ombat" in str([event.data for event in test.stored(topic="plan.ready")])
