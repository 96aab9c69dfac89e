"""On whose word each event happened: over queues, restarts, plans, questions, workers, agents' own tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

import pytest

from lightagentd.agents import supervision
from lightagentd.agents.sessions.session import Session
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.model import Event
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from tests.agents.asking import add, asked, asking, prepare
from tests.agents.planning import TWO
from tests.agents.scripted import ME, Scripted, scripted, until
from tests.agents.test_agent import sabotage
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import Stream, call, chunk, say

ANNA = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)
HANG = Stream(pieces=[chunk({"content": "hm"})], hang=True)

TEACHER = """
import logging

from lightagentd.events.context import current_context
from lightagentd.tool import Args, Context, Result, Tool, action


class Teacher(Tool):
    "Says on whose behalf it runs."

    name = "teacher"

    @action()
    async def tell(self, ctx: Context, args: Args) -> Result:
        "Tell, emit and log it."
        own = current_context()
        ctx.emit("tool.teacher.told", "told", {})
        logging.getLogger("teacher").error("I was asked")
        return Result(output=str(own), metadata={"caller": own.caller, "trace": own.trace_id})
"""


async def anna(test: Scripted) -> Session:
    """A session of another user's."""
    made = await test.daemon.service.sessions.create(ANNA, "test", "")
    return test.agent.sessions[made.id]


def prompt(test: Scripted, caller: Caller, session: Session, text: str = "go") -> asyncio.Task[None]:
    """Prompt as the control planes do, in a task of the caller's own."""

    async def run() -> None:
        turn = test.daemon.service.conversations.prompt(
            caller, agent="", text=text, session=session.id, new=False, correlation_id=f"of {text}"
        )
        async with contextlib.aclosing(turn) as events:
            async for _ in events:
                pass

    return asyncio.create_task(run())


def of_turn(test: Scripted, text: str = "go") -> list[Event]:
    """All events of the turn of a prompt."""
    prompts = test.stored(topic="agent.prompt")
    trace = next(one.trace_id for one in prompts if one.data and one.data["text"] == text)
    return test.stored(trace)


def callers(events: list[Event]) -> set[int | None]:
    return {event.caller for event in events}


async def test_who_prompts_in_somebody_elses_session_is_the_caller_of_the_whole_turn(paths: Paths) -> None:
    async with scripted(paths, [call("proc_list", {"limit": 1}), say("done")]) as test:
        session = await anna(test)
        await prompt(test, ME, session)
        events = of_turn(test)
        assert {"agent.prompt", "session.turn", "agent.llm_response", "agent.tool_dispatch", "tool.proc"} < {
            event.topic for event in events
        }
        assert callers(events) == {ME.uid}
        assert {event.owner for event in events} == {ANNA.uid}
        assert {event.correlation_id for event in events} == {"of go"}
        assert callers(test.stored(topic="session.created")) == {ANNA.uid}


async def test_each_turn_of_a_queue_is_on_its_own_callers_word(paths: Paths) -> None:
    async with scripted(paths, [HANG, say("second"), say("third")]) as test:
        session = await anna(test)
        first = prompt(test, ANNA, session, "first")
        await until(lambda: test.model.requests)
        second = prompt(test, ME, session, "second")
        await until(lambda: len(session.queue) == 1)
        third = prompt(test, ANNA, session, "third")
        await until(lambda: len(session.queue) == 2)
        assert session.running is not None
        session.running.cancel()
        await asyncio.gather(first, second, third)
        assert [callers(of_turn(test, text)) for text in ("first", "second", "third")] == [
            {ANNA.uid},
            {ME.uid},
            {ANNA.uid},
        ]


async def test_a_turn_that_was_queued_keeps_its_caller_over_a_restart(paths: Paths) -> None:
    async with scripted(paths, [HANG]) as test:
        session = await anna(test)
        waiting = [prompt(test, ANNA, session, "first")]
        await until(lambda: test.model.requests)
        waiting.append(prompt(test, ME, session, "second"))
        await until(lambda: len(session.queue) == 1)
    await asyncio.gather(*waiting, return_exceptions=True)
    async with scripted(paths, [say("done")]) as test:
        await until(lambda: any(event.type == "done" for event in test.stored(topic="session.turn")))
        events = of_turn(test, "second")
        assert [event.type for event in events][-1] == "done"
        assert callers(events) == {ME.uid}


async def test_a_turn_that_waits_for_an_answer_keeps_its_caller_over_a_restart(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as test:
        waiting = prompt(test, ME, await anna(test))
        await asked(test)
    await asyncio.gather(waiting, return_exceptions=True)
    async with asking(paths, [say("done")]) as test:
        question = await asked(test)
        await test.daemon.service.approvals.approve(ME, question.id, "")
        await until(lambda: any(event.type == "done" for event in test.stored(topic="session.turn")))
        assert callers(of_turn(test)) == {ME.uid}


async def test_an_answer_is_on_the_word_of_who_gave_it_and_the_call_on_that_of_who_prompted(
    paths: Paths,
) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        turn = prompt(test, ANNA, await anna(test))
        question = await asked(test)
        await asyncio.create_task(test.daemon.service.approvals.approve(ME, question.id, ""))
        await turn
        by_type = {event.type: event.caller for event in test.stored(topic="approval")}
        assert by_type == {"requested": ANNA.uid, "granted": ME.uid, "used": ANNA.uid}
        assert callers(test.stored(topic="tool.probe")) == {ANNA.uid}


async def test_what_ran_out_of_time_is_on_nobodys_word(paths: Paths) -> None:
    out = prepare(paths)
    toml = "[limits]\napproval_timeout_s = 1\n"
    async with asking(paths, [call("probe_add", add(out)), say("done")], toml=toml) as test:
        await prompt(test, ANNA, await anna(test))
        by_type = {event.type: event.caller for event in test.stored(topic="approval")}
        assert by_type == {"requested": ANNA.uid, "expired": None}


async def test_a_plans_tasks_are_on_the_word_of_who_had_it_applied(paths: Paths) -> None:
    script = [say("did a"), say("what?"), say("did b")]
    async with scripted(paths, script) as test:
        session = await anna(test)
        service = test.daemon.service
        await asyncio.create_task(service.plans.set(ANNA, session.id, TWO))
        await asyncio.create_task(service.plans.apply(ME, session.id, "", ""))
        between = prompt(test, ANNA, session, "between")
        await between
        await until(lambda: session.at_rest)
        assert callers(of_turn(test, "between")) == {ANNA.uid}
        by_kind = [(event.type, event.caller) for event in test.stored(topic="plan")]
        assert by_kind[:2] == [("begun", ANNA.uid), ("ready", ANNA.uid)]
        assert {caller for _, caller in by_kind[2:]} == {ME.uid}
        assert [kind for kind, _ in by_kind[2:]].count("task") == 4
        tasks = [one for one in test.stored(topic="agent.prompt") if one.data and "task" in one.data["text"]]
        assert [callers(test.stored(one.trace_id)) for one in tasks] == [{ME.uid}] * 2


async def test_what_an_agent_does_by_itself_is_on_nobodys_word(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.02)
    async with scripted(paths, [say("done")]) as test:
        service = test.daemon.service
        await asyncio.create_task(service.agents.stop(ME, "test"))
        await asyncio.create_task(service.agents.start(ME, "test"))
        sabotage(test)
        await asyncio.gather(prompt(test, ANNA, await anna(test)), return_exceptions=True)

        def own() -> list[tuple[str, int | None]]:
            found = test.daemon.history.queries.select(Filter(topic="daemon.agent", agent="test"), limit=10)
            return [(event.type, event.caller) for event in found]

        await until(lambda: len(own()) == 5)
        assert own() == [
            ("started", None),
            ("stopped", ME.uid),
            ("started", ME.uid),
            ("failed", None),
            ("restarted", None),
        ]


async def test_a_worker_knows_on_whose_behalf_it_works(
    paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    write(paths.config / "tools" / "teacher.py", TEACHER)
    async with scripted(paths, [call("teacher_tell", {}), say("done")]) as test:
        session = await anna(test)
        await prompt(test, ME, session)
        events = of_turn(test)
        [told] = [event for event in events if event.topic == "tool.teacher.told"]
        [ended] = [event for event in events if event.topic == "tool.teacher"]
        trace = ended.trace_id
        assert ended.data is not None
        assert ended.data["metadata"] == {"caller": ME.uid, "trace": trace}
        assert (told.caller, told.trace_id, told.session) == (ME.uid, trace, session.id)
        [said] = [one for one in test.conversation(session) if one.role == "tool"]
        for name, value in (
            ("agent", "test"),
            ("session", session.id),
            ("owner", ANNA.uid),
            ("request_id", ended.request_id),
            ("correlation_id", "of go"),
        ):
            assert f"{name}={value!r}" in said.content
    logged = [line for line in capfd.readouterr().err.splitlines() if "I was asked" in line]
    assert [f"caller={ME.uid}" in line and f"trace_id={trace}" in line for line in logged] == [True]


async def test_over_the_socket_the_caller_is_the_peer_and_the_daemon_itself_is_nobody(
    paths: Paths, daemon: Daemon
) -> None:
    async with AsyncClient(paths.socket, timeout_s=60) as client:
        await client.call("Manager.Ask", agent="ops", text="how full are the disks")
        [session] = (await client.call("Sessions.List"))["sessions"]
        await client.call("Sessions.Rename", session=session["id"], title="a name")
        await client.call("Manager.Reload")
    events = daemon.history.queries.select(Filter(), limit=1000)
    found: dict[str, set[int | None]] = {}
    for event in events:
        found.setdefault(f"{event.topic}/{event.type}", set()).add(event.caller)
    me: Any = {os.getuid()}
    assert {found[f"daemon.state/{one}"] == {None} for one in ("starting", "ready", "sandbox")} == {True}
    assert found["daemon.agent/started"] == {None}
    assert found["agent.prompt/prompt"] == found["session.renamed/renamed"] == me
    assert found["daemon.state/reloaded"] == me
    traced = {event.trace_id for event in events} - {""}
    assert [one for one in events if one.trace_id in traced and one.caller not in me] == []
    assert json.dumps(events[-1].to_dict())
